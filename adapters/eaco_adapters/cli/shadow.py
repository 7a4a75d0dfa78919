"""`eaco shadow`: what eaco would have done with the jobs of another scheduler."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eaco_adapters.cli import _output
from eaco_adapters.cli._option_types import file_name, number
from eaco_adapters.cli._process import Stopped
from eaco_adapters.cli._shadow_words import print_report
from eaco_adapters.shadow import Past, ShadowOptions, shadow_report
from eaco_adapters.shadow.source import Intake, file_lines, stream_lines
from eaco_core.rules import GIB

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEFAULT = ShadowOptions()
_EXAMPLES = """\
\b
Examples:
  eaco shadow --events history.jsonl
  my-scheduler --log-events | eaco shadow --events - --every 3600
  eaco shadow --events history.jsonl --follow --every 600 --json
"""


def _three(value: object) -> tuple[float, float, float]:
    low, middle, high = _numbers(value, 3, least=1.0, most=100.0)
    return low, middle, high


def _two(value: object) -> tuple[float, float]:
    low, high = _numbers(value, 2, least=0.001, most=1.0)
    return low, high


def _numbers(value: object, count: int, *, least: float, most: float) -> list[float]:
    """Read numbers that go up, separated by commas."""
    found: list[float] = []
    with contextlib.suppress(ValueError):
        found = [float(part) for part in str(value).split(",")]
    if len(found) != count or found != sorted(found) or not least <= found[0] <= found[-1] <= most:
        raise click.BadParameter(
            f"{value!r} must be {count} numbers from {least:g} to {most:g}, going up, with commas"
        )
    return found


@click.command("shadow", epilog=_EXAMPLES)
@click.option(
    "--events",
    type=file_name,
    metavar="FILE|-",
    required=True,
    help="History of the other scheduler (docs/history.md), or a journal; - is standard input.",
)
@click.option("--follow", is_flag=True, help="Go on reading as the file grows, until Ctrl-C.")
@click.option(
    "--every",
    "every_s",
    type=number(above=True),
    metavar="S",
    help="Report every S seconds while reading.  [default with --follow: 600]",
)
@click.option(
    "--interference",
    type=_three,
    metavar="LOW,LIKELY,HIGH",
    default=",".join(f"{one:g}" for one in _DEFAULT.interference_ratios),
    show_default=True,
    help="Factors on the slowdown of sets that nobody measured: the interval.",
)
@click.option(
    "--stress",
    type=number(1.0, 100.0),
    metavar="FACTOR",
    default=_DEFAULT.stress_ratio,
    show_default=True,
    help="Such a factor beyond the interval, told apart.",
)
@click.option(
    "--assume-gpu-util",
    type=_two,
    metavar="LOW,HIGH",
    default=",".join(f"{one:g}" for one in _DEFAULT.util_ratios),
    show_default=True,
    help="GPU utilisation of jobs of which none was measured: only for their energy.",
)
@click.option(
    "--gpu-type",
    metavar="TYPE",
    help="Type of GPUs that no NodeJoined describes.  [default: that of the profiles]",
)
@click.option(
    "--gpu-mem-gib",
    type=number(1e-3, 1e6),
    metavar="GIB",
    help="Memory of each GPU of which the history does not say it.",
)
@click.option(
    "--sleep/--no-sleep",
    "can_sleep",
    default=None,
    help="Let all nodes sleep when idle, or none, in both schedules.  [default: as each node says]",
)
@click.option(
    "--idle-w",
    type=number(),
    metavar="W",
    help="Power of an idle node.  [default: that of the power model]",
)
@click.option(
    "--sleep-w",
    type=number(),
    metavar="W",
    default=_DEFAULT.sleep_w,
    show_default=True,
    help="Power of a node asleep.",
)
@click.option(
    "--explore", is_flag=True, help="Try sets about which nothing is known, one at a time (R5)."
)
@click.option(
    "--top",
    type=click.IntRange(min=0, max=1000),
    default=_DEFAULT.top,
    show_default=True,
    help="How many savings and risks are told.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON alone (eaco.shadow/1), one document for each report.",
)
def command(
    *,
    events: str,
    follow: bool,
    every_s: float | None,
    interference: tuple[float, float, float],
    stress: float,
    assume_gpu_util: tuple[float, float],
    gpu_type: str | None,
    gpu_mem_gib: float | None,
    can_sleep: bool | None,
    idle_w: float | None,
    sleep_w: float,
    explore: bool,
    top: int,
    as_json: bool,
) -> None:
    """Tell what eaco would have done with the jobs of another scheduler.

    Reads the events of that scheduler and acts on nothing. Reports the energy that
    the same jobs would have used under eaco, with an interval, which of them would
    have been late, and which placements saved or risked most.
    """
    options = ShadowOptions(
        interference_ratios=interference,
        stress_ratio=stress,
        util_ratios=assume_gpu_util,
        can_sleep=can_sleep,
        idle_w=idle_w,
        sleep_w=sleep_w,
        explore=explore,
        top=top,
    )
    if follow and every_s is None:
        every_s = 600.0
    name = "standard input" if events == "-" else events
    past = Past(gpu_type, None if gpu_mem_gib is None else round(gpu_mem_gib * GIB))
    intake = Intake(past, name)
    several = every_s is not None
    due_s = None if every_s is None else time.monotonic() + every_s
    try:
        for text in _lines(events, follow=follow):
            if text is not None:
                intake.take(text)
            if due_s is not None and every_s is not None and time.monotonic() >= due_s:
                _report(past, options, as_json=as_json, several=several)
                due_s = time.monotonic() + every_s
    except KeyboardInterrupt as stop:
        if not follow or (isinstance(stop, Stopped) and stop.status != _CTRL_C):
            raise
        _output.note("eaco: stopped; the last report follows")
    else:
        intake.end()
    _report(past, options, as_json=as_json, several=several)


_CTRL_C = 130


def _lines(events: str, *, follow: bool) -> Iterator[str | None]:
    if events == "-":
        return stream_lines(sys.stdin.buffer, "standard input", follow=follow)
    return file_lines(Path(events), follow=follow)


def _report(past: Past, options: ShadowOptions, *, as_json: bool, several: bool) -> None:
    with _output.progress("simulating eaco") as show:
        report = shadow_report(past, options, show)
    if not as_json:
        print_report(report)
    elif several:
        click.echo(json.dumps(report.to_json(), allow_nan=False))
    else:
        _output.print_json(report.to_json())
    sys.stdout.flush()
