"""`eaco check`: a history of any scheduler against the invariants."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import attrs
import click

from eaco_adapters.cli._journal_file import JournalFile
from eaco_adapters.cli._option_types import file_path
from eaco_adapters.cli._output import print_json, progress
from eaco_adapters.journal.reader import is_journal
from eaco_adapters.words import counted
from eaco_core.errors import InputError
from eaco_core.history import Header, read_history, read_lines
from eaco_core.invariants import TITLES, HistoryChecker, compare_histories

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from eaco_core.history import Line
    from eaco_core.invariants import Report, Violation

EXIT_VIOLATION = 1
SCHEMA = "eaco.check/1"
_SHOWN = 5


@click.command(
    "check",
    epilog="Example: eaco simulate --policy eaco --events run.jsonl && eaco check run.jsonl",
)
@click.argument("file", type=file_path, metavar="FILE")
@click.option(
    "--same-as",
    "other",
    type=file_path,
    metavar="FILE",
    help="A second history of the same input; both must hold the same steps (I23).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.pass_context
def command(context: click.Context, file: Path, other: Path | None, *, as_json: bool) -> None:
    """Check a history FILE (eaco.history/1) against the invariants that bind its policy.

    FILE may be the journal of a scheduler, also one that is running. What the history
    cannot answer is named as not checked. Exit status: 0 when nothing is violated, 1
    when something is, 2 when the file is not a history.
    """
    report = _check(file)
    differences = None
    if other is not None:
        differences = compare_histories(_lines(file), _lines(other))
    if as_json:
        print_json(_document(file, report, differences))
    else:
        _print(file, report, differences)
    if report.failed or differences:
        context.exit(EXIT_VIOLATION)


def _lines(file: Path) -> Iterator[Line]:
    return read_lines(JournalFile(file), str(file)) if is_journal(file) else read_history(file)


def _check(file: Path) -> Report:
    checker: HistoryChecker | None = None
    journal = JournalFile(file) if is_journal(file) else None
    with progress(f"checking {file.name}") as show:
        total = file.stat().st_size if file.is_file() else 0
        done = 0

        def lines() -> Iterator[str]:
            nonlocal done
            with ExitStack() as stack:
                source: Iterable[str] | None = journal
                if source is None:
                    source = stack.enter_context(file.open(encoding="utf-8-sig", newline="\n"))
                for text in source:
                    done += len(text)
                    show(done, max(done, total))
                    yield text

        source = read_lines(lines(), str(file)) if file.is_file() else read_history(file)
        try:
            for line in source:
                if checker is None:
                    checker = HistoryChecker(line if isinstance(line, Header) else Header())
                checker.take(line)
        except UnicodeDecodeError:
            raise InputError(
                "this is not a history file: it is not UTF-8.", where=str(file)
            ) from None
    if checker is None:
        raise InputError("this history is empty.", where=str(file))
    report = checker.report()
    if journal is not None and journal.note is not None:
        report = attrs.evolve(report, notes=(*report.notes, journal.note))
    return report


def _document(file: Path, report: Report, differences: list[Violation] | None) -> object:
    failed, passed, not_checked = _with_differences(report, differences)
    return {
        "schema": SCHEMA,
        "file": str(file),
        "origin": report.origin,
        "policy": report.policy,
        "steps": report.steps,
        "jobs": report.jobs,
        "jobs_not_ended": report.unended,
        "ok": not failed,
        "passed": passed,
        "failed": [
            {
                "invariant": invariant,
                "title": TITLES[invariant],
                "count": report.counts.get(invariant, len(violations)),
                "first": [{"seq": v.seq, "message": v.message} for v in violations],
            }
            for invariant, violations in failed.items()
        ],
        "not_checked": not_checked,
        "notes": list(report.notes),
    }


def _with_differences(
    report: Report, differences: list[Violation] | None
) -> tuple[dict[str, list[Violation]], list[str], dict[str, str]]:
    """Give failed, passed and not checked, with I23 as the comparison found it."""
    failed: dict[str, list[Violation]] = {}
    for violation in [*report.failed, *(differences or [])]:
        failed.setdefault(violation.invariant, []).append(violation)
    passed, not_checked = set(report.passed), dict(report.not_checked)
    if differences is not None:
        not_checked.pop("I23", None)
        if not differences:
            passed.add("I23")
    return dict(sorted(failed.items())), sorted(passed), not_checked


def _print(file: Path, report: Report, differences: list[Violation] | None) -> None:
    failed, passed, not_checked = _with_differences(report, differences)
    policy = f"policy {report.policy}" if report.policy else "policy not named"
    steps, jobs = counted(report.steps, "step"), counted(report.jobs, "job")
    click.echo(f"{file}: {policy}, {steps}, {jobs}.")
    for invariant, violations in failed.items():
        count = report.counts.get(invariant, len(violations))
        times = "once" if count == 1 else f"{count:,} times"
        click.echo(f"VIOLATED {invariant} ({TITLES[invariant]}), {times}:")
        for violation in violations[:_SHOWN]:
            step = "" if violation.seq is None else f"step {violation.seq}: "
            click.echo(f"  {step}{violation.message}.")
        if count > _SHOWN:
            click.echo(f"  and {count - _SHOWN:,} more.")
    click.echo(f"Passed: {', '.join(passed) or 'none'}.")
    for invariant, why in not_checked.items():
        click.echo(f"Not checked: {invariant} ({TITLES[invariant]}): {why}.")
    for note in report.notes:
        click.echo(f"Note: {note}.")
