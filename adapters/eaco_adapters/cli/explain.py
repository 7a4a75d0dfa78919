"""`eaco explain`: why a job was placed where it was, or why it waited."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eaco_adapters.cli._journal_file import JournalFile
from eaco_adapters.cli._option_types import file_name
from eaco_adapters.cli._output import print_json
from eaco_adapters.cli._server_options import client_of, plain, server_options
from eaco_adapters.journal.reader import is_journal
from eaco_core.explain import explain_job, is_cut_off, span
from eaco_core.history import read_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eaco_adapters.server.client import Client
    from eaco_core.explain import Sentence

SCHEMA = "eaco.explain/1"
SERVER_SCHEMA = "eaco.story/1"
_FILE_AND_JOB = 2


@click.command(
    "explain",
    epilog="Example: eaco explain run.jsonl job-001; eaco explain train-7",
)
@click.argument("words", nargs=-1, required=True, metavar="[FILE] JOB", type=file_name)
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print the story as JSON.")
def command(
    *, words: tuple[str, ...], server: str | None, token_file: Path | None, as_json: bool
) -> None:
    """Tell the story of JOB, step by step, from a history FILE or from the server.

    Where it was placed and beside whom, by which bounds, what was refused, what the
    trial showed, and whether its deadline was met. FILE (eaco.history/1) may be the
    journal of a scheduler, also one that is running; without it the server is asked.
    """
    if len(words) == 1:
        _ask_server(client_of(server, token_file), words[0], as_json=as_json)
        return
    if len(words) != _FILE_AND_JOB:
        raise click.UsageError("give a history and a job, or a job of the server")
    if server is not None or token_file is not None:
        raise click.UsageError("a history file needs no server")
    _from_file(Path(words[0]), words[1], as_json=as_json)


def _ask_server(client: Client, job: str, *, as_json: bool) -> None:
    story = client.story(job)
    if as_json:
        print_json({"schema": SERVER_SCHEMA, **story})
        return
    click.echo(f"job {job}")
    for sentence in story["sentences"]:
        click.echo(f"{sentence['time']:>22}  {plain(sentence['text'])}")


def _from_file(file: Path, job: str, *, as_json: bool) -> None:
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
