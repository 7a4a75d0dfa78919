"""The README promises only what is there: its commands exist and parse."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from eaco_adapters.cli import _app

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _command_lines() -> list[str]:
    """Collect the lines of the shell blocks, continued lines joined."""
    blocks: list[str] = re.findall(r"^```sh\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


LINES = _command_lines()
SETUP = re.compile(
    r"python3 -m venv \.venv && \.venv/bin/pip install -q -e '\.\[(?P<extra>\w+)\]'"
    r" && \.venv/bin/(?P<tool>\w+)"
)
EACO = [
    part.strip()
    for line in LINES
    for part in line.split("&&")
    if part.strip().removeprefix(".venv/bin/").split(" ")[0] == "eaco"
]


def test_two_commands_bring_everything_up() -> None:
    bare = [line.split(" simulate")[0].split(" -n ")[0] for line in LINES]
    found = [match for line in bare if (match := SETUP.fullmatch(line))]
    assert [match["tool"] for match in found] == ["eaco", "pytest"]
    for match in found:
        assert match["extra"] in PROJECT["optional-dependencies"]
    assert "eaco" in PROJECT["scripts"]


def test_readme_shows_commands() -> None:
    assert EACO


@pytest.mark.parametrize("line", EACO)
def test_a_command_of_the_readme_parses(line: str) -> None:
    """Options and arguments are read as click reads them; nothing is run."""
    name, *arguments = shlex.split(line.removeprefix(".venv/bin/"))[1:]
    if name.startswith("-"):
        with pytest.raises(click.exceptions.Exit):
            _app.app.make_context("eaco", [name])
        return
    context = _app.app.make_context("eaco", [name])
    command = _app.app.get_command(context, name)
    assert command is not None, f"there is no command {name}"
    command.make_context(name, arguments, parent=context)


@pytest.mark.parametrize("target", re.findall(r"\]\((?!https?:|#)([^)]+)\)", README))
def test_a_link_of_the_readme_leads_somewhere(target: str) -> None:
    assert (ROOT / target.partition("#")[0]).exists()
