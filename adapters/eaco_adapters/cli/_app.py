"""The group of commands, and what each kind of error looks like to a person.

A command is one row of `COMMANDS` and one module with a click command called
`command`. Modules are imported when their command runs, so that `eaco --help`
and a small command stay fast.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import click
from attrs import frozen

from eaco_adapters.cli._process import Stopped
from eaco_core.errors import EnvironmentFault, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_FAULT = 1
EXIT_WRONG_USE = 2
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_READER_GONE = 128 + signal.SIGPIPE


@frozen
class CommandEntry:
    """Where a command lives, and its line in `eaco --help`."""

    module: str
    summary: str


COMMANDS: dict[str, CommandEntry] = {
    "simulate": CommandEntry(
        "eaco_adapters.cli.simulate",
        "Replay a job trace on a simulated cluster under one or more policies.",
    ),
    "check": CommandEntry(
        "eaco_adapters.cli.check",
        "Check a history of any scheduler against the invariants.",
    ),
    "agent": CommandEntry(
        "eaco_adapters.cli.agent",
        "Read the sensors of this node and publish them over MQTT; record, replay, export.",
    ),
    "energy": CommandEntry(
        "eaco_adapters.cli.energy",
        "Book every joule of a recording on the jobs that held the GPUs.",
    ),
    "explain": CommandEntry(
        "eaco_adapters.cli.explain",
        "Say why a job was placed where it was, or why it waited.",
    ),
    "shadow": CommandEntry(
        "eaco_adapters.cli.shadow",
        "Tell what eaco would have done with the jobs of another scheduler.",
    ),
    "demo": CommandEntry(
        "eaco_adapters.cli.demo",
        "Show the whole live loop on this machine in about a minute.",
    ),
    "serve": CommandEntry(
        "eaco_adapters.cli.serve",
        "Schedule jobs on this machine, as a daemon.",
    ),
    "submit": CommandEntry("eaco_adapters.cli.submit", "Hand a job to the server."),
    "jobs": CommandEntry("eaco_adapters.cli.jobs", "Show the jobs of the server."),
    "cancel": CommandEntry("eaco_adapters.cli.cancel", "Take jobs back."),
    "logs": CommandEntry("eaco_adapters.cli.logs", "Print what a job wrote."),
    "drain": CommandEntry(
        "eaco_adapters.cli.drain", "Keep new jobs off a node, or list the nodes."
    ),
    "profile": CommandEntry(
        "eaco_adapters.cli.profile",
        "Measure a workload alone, or beside another, and keep it as profiles.",
    ),
    "top": CommandEntry(
        "eaco_adapters.cli.top",
        "Show live nodes, GPUs, watts and processes, of this machine or of a broker.",
    ),
}


class LazyGroup(click.Group):
    """A group that imports the module of a command only when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Name the commands in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import one command; None when there is no such command."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = importlib.import_module(entry.module).command
        if not isinstance(command, click.Command):
            msg = f"{entry.module}.command is not a click command"
            raise TypeError(msg)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of these arguments; an unknown one is answered with the known ones."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            known = ", ".join(COMMANDS)
            raise click.UsageError(f"there is no command {name!r}; the commands are {known}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """List the commands from the table, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: eaco simulate --policy fifo,eaco --seed 1",
)
@click.version_option(package_name="eaco", prog_name="eaco", message="%(prog)s %(version)s")
def app() -> None:
    """Decide which training jobs may share which GPUs, and account for every joule."""


def run(arguments: Sequence[str]) -> int:
    """Run one command and return the exit status; errors become one sentence on stderr.

    An error that is nobody's mistake but ours keeps its traceback.
    """
    try:
        _accept_any_text()
        status = _invoke(list(arguments))
        sys.stdout.flush()
    except _ANSWERED as error:
        status = _answer(error)
        _drop_what_cannot_be_written()
    return status


# Everything that somebody outside this program can put right.
_ANSWERED = (
    click.ClickException,
    click.Abort,
    KeyboardInterrupt,
    InputError,
    EnvironmentFault,
    OSError,
)

_WRONG_NAME = (errno.ENAMETOOLONG, errno.ELOOP)


def _answer(error: BaseException) -> int:
    """Tell the user what happened and return the exit status that says the same."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return EXIT_WRONG_USE
    if isinstance(error, BrokenPipeError):
        return EXIT_READER_GONE
    if isinstance(error, Stopped) and error.status != EXIT_INTERRUPTED:
        _say("stopped by a signal; no file was left half-written")
        return error.status
    if isinstance(error, KeyboardInterrupt | click.Abort):
        _say("stopped by the user; no file was left half-written")
        return EXIT_INTERRUPTED
    if isinstance(error, click.ClickException):
        _say(_sentence_of(error))
        return EXIT_WRONG_USE
    if isinstance(error, OSError):
        _say(f"{error.filename or 'standard output'}: {error.strerror or error}")
        return EXIT_WRONG_USE if error.errno in _WRONG_NAME else EXIT_FAULT
    _say(str(error))
    return EXIT_WRONG_USE if isinstance(error, InputError) else EXIT_FAULT


def _invoke(arguments: list[str]) -> int:
    """Parse and run, with click's own way of leaving early turned into a status."""
    try:
        with app.make_context("eaco", arguments) as context:
            app.invoke(context)
    except click.exceptions.Exit as early:
        return early.exit_code
    return 0


def _sentence_of(error: click.ClickException) -> str:
    sentence = error.format_message().strip().rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context is not None else "eaco"
    return f"{sentence} (see `{path} --help`)"


def _say(sentence: str) -> None:
    """Write one sentence to stderr; an error text of several lines becomes one line."""
    text = " ".join(sentence.split())
    if not text.endswith((".", "!", "?")):
        text += "."
    with suppress(OSError):  # the exit status still says it
        click.echo(f"eaco: {text}", err=True)


def _accept_any_text() -> None:
    """Let names that are no text in the encoding of stdout appear with their bytes escaped."""
    stream: object = sys.stdout
    if isinstance(stream, io.TextIOWrapper) and sys.stdout.errors == "strict":
        stream.reconfigure(errors="backslashreplace")


def _drop_what_cannot_be_written() -> None:
    """Point a broken stream at nothing, so that the interpreter's last flush cannot fail again."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, stream.fileno())
            os.close(nothing)
