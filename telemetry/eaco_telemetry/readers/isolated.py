"""A reader in a process of its own, because a driver library may end the process it is in.

A GPU that falls off the bus has made driver libraries crash. In a child process that is one
sentence in a sample: the child is started again, with growing pauses, and joules go on from
where they were. Only lines of JSON go through the pipes.

What it costs: one more Python, about 20 MB, and 3 ms for each read of 8 GPUs. So it is not
the default: the agent already runs under a supervisor that starts it again, and a crash of
a driver library is rare. It is worth it where one process also does other things, such as
a scheduler, or where a GPU is known to be shaky.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from attrs import define, evolve, field

from eaco_core.errors import EnvironmentFault, InputError, InternalError
from eaco_telemetry.readers._reading_json import dump_line, reading_of
from eaco_telemetry.readers.base import DeviceEvent, Reading, without_values
from eaco_telemetry.readers.nvml import NvmlOptions, NvmlReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eaco_telemetry.samples import GpuSample, HostSample, Moment

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 300.0
CALM_READS: Final = 60
"""After so many good reads a crash counts as the first one again."""

MAX_LINE_BYTES: Final = 16 << 20
_CHUNK_BYTES: Final = 1 << 16
_NEEDS_NEW: Final = "its driver needs a new process"
_JOULES: Final = ("energy_j", "integrated_j")
_HOST_JOULES: Final = ("package_energy_j", "dram_energy_j", "platform_energy_j", "node_energy_j")


class _ChildEnded(Exception):
    """The child crashed, hung or spoke nonsense. The message says which."""

    def __init__(self, why: str, code: int | None = None) -> None:
        super().__init__(why)
        self.code = code


@define(eq=False)
class _Child:
    """The process and its two pipes."""

    process: subprocess.Popen[bytes]
    rest: bytes = b""

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send one line and wait for one. Raise `_ChildEnded`."""
        self.tell(request)
        line = self._line(time.monotonic() + timeout_s, timeout_s)
        try:
            answer: Any = json.loads(line)
        except ValueError:
            raise _ChildEnded("it answered with something that is no JSON") from None
        if not isinstance(answer, dict):
            raise _ChildEnded("it answered with something else than an object")
        return cast("dict[str, Any]", answer)

    def tell(self, request: dict[str, Any]) -> None:
        pipe = self.process.stdin
        if pipe is None:
            raise InternalError("a child without a pipe")
        try:
            pipe.write(dump_line(request))
            pipe.flush()
        except OSError:
            raise self._ended() from None

    def _line(self, until_s: float, timeout_s: float) -> bytes:
        pipe = self.process.stdout
        if pipe is None:
            raise InternalError("a child without a pipe")
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while b"\n" not in self.rest:
                left_s = until_s - time.monotonic()
                if left_s <= 0 or not selector.select(left_s):
                    raise _ChildEnded(f"it did not answer in {timeout_s:g} s")
                part = os.read(pipe.fileno(), _CHUNK_BYTES)
                if not part:
                    raise self._ended()
                self.rest += part
                if len(self.rest) > MAX_LINE_BYTES:
                    raise _ChildEnded("it answered with too much")
        line, _, self.rest = self.rest.partition(b"\n")
        return line

    def _ended(self) -> _ChildEnded:
        try:
            code = self.process.wait(3.0)
        except subprocess.TimeoutExpired:
            return _ChildEnded("it closed its pipe")
        if code >= 0:
            return _ChildEnded(f"it ended with code {code}", code)
        try:
            word = signal.Signals(-code).name
        except ValueError:
            word = f"signal {-code}"
        return _ChildEnded(f"it crashed ({word})", -code)

    def end(self, patience_s: float = 0.0) -> bool:
        """Close the pipes and end the process. False: the kernel cannot end it (yet)."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if patience_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience_s)
        self.process.kill()
        try:
            self.process.wait(1.0)
        except subprocess.TimeoutExpired:  # it hangs in the kernel
            return False
        return True


@define(eq=False)
class _Carried:
    """What was counted before the child that counts now was started."""

    base: dict[str, float] = field(factory=dict[str, float])
    shown: dict[str, float] = field(factory=dict[str, float])

    def next_child(self) -> None:
        self.base = dict(self.shown)

    def add(self, key: str, value: float) -> float:
        total = self.base.get(key, 0.0) + value
        self.shown[key] = total
        return total


class IsolatedReader:
    """Runs a reader in a child process. See `eaco_telemetry.readers.base.Reader`.

    `factory`: ``module:name`` of what makes the reader there, `arguments`: named arguments
    for it, of the kinds that JSON knows. A call that takes longer than its time limit ends
    the child; so does a reader whose `must_restart` is true.
    """

    def __init__(
        self,
        name: str,
        factory: str,
        arguments: Mapping[str, object],
        *,
        read_timeout_s: float = 10.0,
        open_timeout_s: float = 65.0,
    ) -> None:
        if not factory.partition(":")[2]:
            raise InputError(f"a factory is written module:name, not {factory!r}")
        self._name = name
        self._first = {"factory": factory, "arguments": dict(arguments)}
        self._read_timeout_s = read_timeout_s
        self._open_timeout_s = open_timeout_s
        self._child: _Child | None = None
        self._unkillable: _Child | None = None
        self._is_open = False
        self._facts: dict[str, Any] = {}
        self._last: tuple[GpuSample, ...] = ()
        self._problem = ""
        self._crashes = 0
        self._good_reads = 0
        self._not_before_s = 0.0
        self._carried = _Carried()

    @property
    def name(self) -> str:
        """The name of the reader in the child."""
        return self._name

    @property
    def capabilities(self) -> Mapping[str, tuple[str, ...]]:
        """For each device, the names of the values that it gives, as told by the child."""
        told: dict[str, list[str]] = self._facts.get("capabilities", {})
        return {key: tuple(names) for key, names in told.items()}

    @property
    def pci_addresses(self) -> frozenset[str]:
        """Where its devices are, as far as they are on PCI."""
        return frozenset(self._facts.get("pci_addresses", ()))

    @property
    def pid(self) -> int | None:
        """The process number of the child that works now."""
        return None if self._child is None else self._child.process.pid

    @property
    def restarts(self) -> int:
        """How often the child ended that should not have, since the last calm time."""
        return self._crashes

    def open(self) -> None:
        """Start the child and let it find its devices.

        Raise `EnvironmentFault` if it finds none, or if the child ends over it.
        """
        if self._is_open:
            return
        try:
            self._start()
        except _ChildEnded as ended:
            self._drop()
            raise EnvironmentFault(f"the process for the reader {self._name}: {ended}") from None
        except EnvironmentFault:
            self._drop()
            raise
        self._is_open = True

    def read(self, now: Moment) -> Reading:
        """Let the child read. Blocks for at most the time limit of a read."""
        if not self._is_open:
            raise InternalError("IsolatedReader.read needs IsolatedReader.open first")
        try:
            if self._child is None:
                if time.monotonic() < self._not_before_s:
                    return self._blank(self._problem)
                self._start()
            reading = self._read(now)
        except _ChildEnded as ended:
            return self._crashed(ended)
        except EnvironmentFault as fault:
            return self._crashed(_ChildEnded(str(fault)))
        self._good_reads += 1
        if self._good_reads >= CALM_READS:
            self._crashes = 0
        if self._facts.get("must_restart"):
            events = (*reading.events, *self._crashed(_ChildEnded(_NEEDS_NEW)).events)
            return evolve(reading, events=events)
        return reading

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.end(patience_s=1.0)
        self._child = None
        self._is_open = False
        self._carried = _Carried()

    # ---------------------------------------------------------------------- the child

    def _start(self) -> None:
        if self._unkillable is not None:
            if self._unkillable.process.poll() is None:
                raise EnvironmentFault("its process hangs in the kernel and cannot be ended")
            self._unkillable = None
        # Nothing that is meant for this program alone, such as the password of the broker.
        environment = {key: text for key, text in os.environ.items() if not key.startswith("EACO_")}
        # Of its own session, so that Ctrl-C at the terminal is for the parent alone.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "eaco_telemetry.readers._isolated_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        self._child = _Child(process)
        self._take(self._child.ask(self._first, self._open_timeout_s))
        self._carried.next_child()
        self._good_reads = 0

    def _read(self, now: Moment) -> Reading:
        if self._child is None:
            raise InternalError("there is no child to read with")
        request = {"wall_ns": now.wall_ns, "monotonic_ns": now.monotonic_ns}
        answer = self._take(self._child.ask(request, self._read_timeout_s))
        try:
            reading = reading_of(answer["reading"])
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise _ChildEnded(f"its reading cannot be understood ({error})") from None
        gpus = tuple(self._gpu(gpu) for gpu in reading.gpus)
        self._last = gpus or self._last
        host = None if reading.host is None else self._host(reading.host)
        return evolve(reading, gpus=gpus, host=host)

    def _take(self, answer: dict[str, Any]) -> dict[str, Any]:
        if "fault" in answer:
            raise EnvironmentFault(str(answer["fault"]))
        if "error" in answer:
            raise _ChildEnded(f"it failed ({answer['error']})")
        self._facts = answer
        return answer

    def _gpu(self, gpu: GpuSample) -> GpuSample:
        changed: dict[str, Any] = {}
        for name in _JOULES:
            value: float | None = getattr(gpu, name)
            if value is not None:
                changed[name] = self._carried.add(f"{gpu.gpu_id}/{name}", value)
        changed["rejected"] = int(self._carried.add(f"{gpu.gpu_id}/rejected", gpu.rejected))
        if self._carried.base.get(f"{gpu.gpu_id}/energy_j"):
            changed["flags"] = tuple(sorted({*gpu.flags, "energy_rebased"}))
        return evolve(gpu, **changed)

    def _host(self, host: HostSample) -> HostSample:
        changed: dict[str, Any] = {
            name: self._carried.add(f"host/{name}", getattr(host, name))
            for name in _HOST_JOULES
            if getattr(host, name) is not None
        }
        return evolve(host, **changed)

    def _drop(self) -> None:
        child, self._child = self._child, None
        if child is not None and not child.end():
            self._unkillable = child

    def _crashed(self, ended: _ChildEnded) -> Reading:
        self._drop()
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**self._crashes)
        self._crashes = min(self._crashes + 1, 30)
        self._not_before_s = time.monotonic() + pause_s
        self._problem = (
            f"the process for the reader {self._name}: {ended}; it is started again"
            f" {pause_s:g} s later"
        )
        event = DeviceEvent("failed", None, ended.code, self._problem)
        return evolve(self._blank(self._problem), events=(event,))

    def _blank(self, problem: str) -> Reading:
        gpus = tuple(without_values(gpu, problem) for gpu in self._last)
        return Reading(gpus=gpus, problem=problem)


def make_nvml(node_id: str, root: str = "/") -> NvmlReader:
    """Make the NVML reader in the child."""
    return NvmlReader(node_id, NvmlOptions(root=Path(root)))


def isolated_nvml(node_id: str, *, root: Path) -> IsolatedReader:
    """Give the NVML reader in a process of its own."""
    arguments = {"node_id": node_id, "root": str(root)}
    return IsolatedReader("nvml", "eaco_telemetry.readers.isolated:make_nvml", arguments)
