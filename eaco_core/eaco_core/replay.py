"""A history folded into a machine: the state that the scheduler had when it wrote it (I21).

The machine decides everything again. What it asks for must be what is on record: a
machine that decides otherwise has another state than the one whose effects were
carried out. Lines as `encode_step` writes them take a short way: only the event is
read, and the effects are compared as text.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, NoReturn

from attrs import frozen

from eaco_core._codec import Json, Malformed
from eaco_core.errors import EventRefused, InputError
from eaco_core.history import (
    Header,
    Step,
    decode_event,
    decode_line,
    encode_effects,
    encode_event,
    refuse_constant,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eaco_core.effects import Effect
    from eaco_core.events import Event
    from eaco_core.history import Line
    from eaco_core.machine import SchedulerMachine

_ADVICE: Final = (
    "The history was written by another version of eaco, or with another policy, rules, "
    "predictor or power model. Start the scheduler that wrote it once more, let it end in "
    "good order (it then leaves a snapshot), and go on from there"
)
_STEP: Final = re.compile(
    r'\{"kind":"step","seq":(\d{1,18}),"t_s":(-?\d[\d.e+-]*),"term":(\d{1,18}),"event":'
)
_EVENT: Final = json.JSONDecoder(parse_constant=refuse_constant).raw_decode


@frozen
class Replayed:
    """What was replayed: steps and terms; the machine's last step, time and term."""

    steps: int
    last_seq: int
    last_t_s: float
    last_term: int
    energy_lines: int = 0


class Diverged(InputError):
    """The machine decides otherwise than the history says. It is of no use after that.

    `seq`: the step; `recorded` and `computed`: the effects, as JSON.
    """

    def __init__(self, seq: int, told: str, recorded: str, computed: str) -> None:
        super().__init__(
            f"step {seq} of the history cannot be repeated: {told}. On record are the effects "
            f"{_short(recorded)}, now they would be {_short(computed)}. {_ADVICE}"
        )
        self.seq = seq
        self.recorded = recorded
        self.computed = computed


class Replay:
    """Takes the lines of a history one by one into a machine.

    The machine is new, or in the state after the step before the first line. Raises
    Diverged, and InputError for a line that is wrong or does not follow the one before.
    """

    def __init__(self, machine: SchedulerMachine) -> None:
        self.machine = machine
        self._steps = 0
        self._energy_lines = 0
        self._headed = machine.seq > 0

    def take(self, line: str | Line) -> None:
        """Take one line, as text or as it was read."""
        if isinstance(line, str):
            if self._take_step_text(line):
                return
            line = decode_line(line, f"the line after step {self.machine.seq}")
        if isinstance(line, Step):
            computed = self._step(line.seq, line.t_s, line.term, line.event)
            if computed != line.effects:
                recorded = encode_effects(line.effects)
                self._refuse(line.seq, "it decides otherwise", recorded, computed)
        elif isinstance(line, Header):
            self._check_header(line)
        else:
            self._energy_lines += 1

    def result(self) -> Replayed:
        """Give what was replayed so far."""
        machine = self.machine
        return Replayed(self._steps, machine.seq, machine.now_s, machine.term, self._energy_lines)

    def _take_step_text(self, text: str) -> bool:
        """Take a step that is written as we write it; False = read it the long way."""
        head = _STEP.match(text)
        if head is None:
            return False
        try:
            data, end = _EVENT(text, head.end())
            event = decode_event(data)
            t_s = float(head[2])
        except (Malformed, ValueError, RecursionError):
            return False  # the long way tells what is wrong
        # A quote inside a string is escaped, so these can only be keys; events have no such.
        if text.startswith(',"effects":[', end):
            begin = end + 12
        elif text.startswith(',"records":[', end) or text[end:].rstrip() == "}":
            begin = -1
        else:
            return False
        seq = int(head[1])
        effects = self._step(seq, t_s, int(head[3]), event)
        if begin < 0:
            same = not effects
        else:
            done = encode_effects(effects)
            same = text.startswith(done, begin) and text.startswith(
                ("]}", '],"records":['), begin + len(done)
            )
        if not same:
            self._compare_slowly(text, effects)
        return True

    def _compare_slowly(self, text: str, computed: tuple[Effect, ...]) -> None:
        """Compare effects that are perhaps only written otherwise."""
        line = decode_line(text, f"step {self.machine.seq}")
        recorded = line.effects if isinstance(line, Step) else ()
        if recorded != computed:
            told = "it decides otherwise"
            self._refuse(self.machine.seq, told, encode_effects(recorded), computed)

    def _step(self, seq: int, t_s: float, term: int, event: Event) -> tuple[Effect, ...]:
        machine = self.machine
        if seq != machine.seq + 1:
            raise InputError(
                f"step {seq} of the history does not follow step {machine.seq}: lines are missing "
                "or stand in another order"
            )
        if event.t_s != t_s:
            raise InputError(f"step {seq} of the history is at {t_s} s, its event at {event.t_s} s")
        if term != machine.term:
            machine.begin_term(term)
        try:
            effects = machine.step(event)
        except EventRefused as refused:
            told = f"its event {_short(encode_event(event))} is refused ({refused})"
            raise Diverged(seq, told, "?", "none") from refused
        self._headed = True
        self._steps += 1
        return effects

    @staticmethod
    def _refuse(seq: int, told: str, recorded: str, computed: tuple[Effect, ...]) -> NoReturn:
        raise Diverged(seq, told, f"[{recorded}]", f"[{encode_effects(computed)}]")

    def _check_header(self, header: Header) -> None:
        if self._headed:
            raise InputError("a header in the middle of a history; one history has one header")
        self._headed = True
        check_header(header, self.machine)


def check_header(header: Header, machine: SchedulerMachine) -> None:
    """Refuse a history that this machine cannot repeat: of another policy or other rules."""
    policy = machine.policy.name
    if header.origin != "eaco":
        raise InputError(
            f"this history was written by {header.origin!r}: only one of eaco's own can be repeated"
        )
    if header.policy != policy:
        raise InputError(
            f"this history is one of policy {header.policy}, the scheduler has {policy}: start it "
            f"with {header.policy}, or with a new history"
        )
    if header.rules != machine.rules:
        raise InputError(
            "this history was written under other rules than the scheduler has now: start it with "
            "the same rules, or with a new history"
        )


def replay(lines: Iterable[str | Line], machine: SchedulerMachine) -> Replayed:
    """Fold a history, or what comes after a machine's last step, into the machine.

    See `Replay` for what it raises.
    """
    folding = Replay(machine)
    take = folding.take
    for line in lines:
        take(line)
    return folding.result()


def _short(text: Json) -> str:
    return text if len(text) <= 400 else f"{text[:397]}..."  # noqa: PLR2004 - some lines' worth
