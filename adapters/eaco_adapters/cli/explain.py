"""`eaco explain`: why a job was placed where it was, or why it waited."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from eaco_adapters.cli._journal_file import JournalFile
from eaco_adapters.cli._option_types import file_path
from eaco_adapters.cli._output import print_json
from eaco_adapters.journal.reader import is_journal
from eaco_core.explain import explain_job, is_cut_off, span
from eaco_core.history import read_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from eaco_core.explain import Sentence

SCHEMA = "eaco.explain/1"


@click.command(
    "explain",
    epilog="Example: eaco explain run.jsonl job-001",
)
@click.argument("file", type=file_path, metavar="FILE")
@click.argument("job")
@click.option("--json", "as_json", is_flag=True, help="Print the story as JSON.")
def command(file: Path, job: str, *, as_json: bool) -> None:
    """Tell the story of JOB from a history FILE (eaco.history/1), step by step.

    Where it was placed and beside whom, by which bounds, what was refused, what the
    trial showed, and whether its deadline was met. FILE may be the journal of a
    scheduler, also one that is running.
    """
    story, cut_off = _story(file, job)
    if as_json:
        sentences = [{"t_s": s.t_s, "seq": s.seq, "text": s.text} for s in story]
        print_json(
            {
                "schema": SCHEMA,
                "file": str(file),
                "job_id": job,
                "cut_off": cut_off,
                "story": sentences,
            }
        )
        return
    click.echo(f"job {job}")
    told_s: float | None = None
    for sentence in story:
        when = f"{sentence.t_s:.1f} s"
        since = (
            "" if told_s is None or sentence.t_s == told_s else f"+{span(sentence.t_s - told_s)}"
        )
        if sentence.t_s == told_s:
            when = ""
        click.echo(f"{when:>14}  {since:>12}  {sentence.text}")
        told_s = sentence.t_s
    if cut_off:
        click.echo("The history was cut off in its last line: what came then is not known.")


def _story(file: Path, job: str) -> tuple[list[Sentence], bool]:
    """Give the story, and whether the history ends in the middle of a line."""
    if not is_journal(file):
        return explain_job(file, job), is_cut_off(file)
    journal = JournalFile(file)
    named = json.dumps(job)

    def texts() -> Iterator[str]:
        """Give the header, what concerns the job, and which jobs there are."""
        for number, text in enumerate(journal):
            if number == 0 or named in text or '"JobSubmitted"' in text:
                yield text

    return explain_job(read_lines(texts(), str(file)), job, where=str(file)), bool(journal.note)
