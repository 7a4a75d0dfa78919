"""The house rules that no linter knows: sizes, words, empty places, reasons.

A file holds one noun and a function fits on a screen. Nothing in the repository
names a machine that it was made on.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    ROOT / "eaco_core" / "eaco_core",
    ROOT / "telemetry" / "eaco_telemetry",
    ROOT / "predictors" / "eaco_predictors",
    ROOT / "adapters" / "eaco_adapters",
)
FOLDERS = (
    "eaco_core",
    "telemetry",
    "predictors",
    "adapters",
    "tests",
    "examples",
    "docs",
    "benchmarks",
)
TEXT = {".py", ".md", ".toml", ".json", ".jsonl", ".csv", ".yaml", ".yml", ".txt", ".sh", ".trace"}

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 70

# Written in pieces, so that this file does not hold what it looks for.
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
INDEX_HOST = re.compile(
    r"py" + r"pi\.|python" + r"hosted|dev" + r"pi|arti" + r"factory", re.IGNORECASE
)
MACHINE = re.compile(r"(?<![\w.-])/(?:wo" + r"rk|root|ho" + r"me/\w+)(?![\w-])")
NEIGHBOUR = re.compile(r"\.\./sha" + r"red")
PROCESS = re.compile(
    r"DESIGN" + r"\.md|\bsub-?" + r"agent\b|acceptance" + r" criteri", re.IGNORECASE
)


def _is_built(path: Path) -> bool:
    return any(part == "__pycache__" or part.startswith(".") for part in path.parts)


def _files() -> list[Path]:
    """List every file that people write, without what tools make."""
    found = [path for path in ROOT.iterdir() if path.is_file() and path.suffix in TEXT]
    found += [path for path in (ROOT / ".ci").rglob("*") if path.is_file()]
    for folder in FOLDERS:
        inside = (ROOT / folder).rglob("*")
        found += [
            path
            for path in inside
            if path.suffix in TEXT and path.is_file() and not _is_built(path.relative_to(ROOT))
        ]
    return sorted(found)


FILES = _files()
SOURCES = [path for path in FILES if path.suffix == ".py"]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_lists_are_not_empty() -> None:
    names = {_name(path) for path in FILES}
    assert {"README.md", "pyproject.toml", ".ci/run", "tests/house/test_tidy.py"} <= names
    assert len(SOURCES) > 20


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_a_file_is_about_one_noun(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_FILE_LINES, f"{lines} lines: split it"


def _long_functions(source: str) -> list[str]:
    return [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    ]


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_a_function_fits_on_a_screen(path: Path) -> None:
    assert _long_functions(path.read_text(encoding="utf-8")) == []


def test_a_long_function_is_seen() -> None:
    body = "    pass\n" * MAX_FUNCTION_LINES
    assert _long_functions("def f():\n" + body) == [f"f: {MAX_FUNCTION_LINES + 1} lines"]


def _banned(path: Path) -> list[re.Pattern[str]]:
    banned = [UNFINISHED, INDEX_HOST, MACHINE, PROCESS]
    # The one file that knows where the external traces may lie.
    return banned if _name(path) == ".ci/run" else [*banned, NEIGHBOUR]


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_no_banned_word(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = [match[0] for pattern in _banned(path) for match in pattern.finditer(text)]
    assert found == [], "words that do not belong in the repository"


@pytest.mark.parametrize(
    ("pattern", "bad", "good"),
    [
        (MACHINE, "see /wo" + "rk/main", "the /workload folder"),
        (INDEX_HOST, "https://py" + "pi.org", "pip install eaco"),
        (UNFINISHED, "# TO" + "DO later", "the todos of others"),
        (NEIGHBOUR, "../sha" + "red/data", "a shared placement"),
    ],
)
def test_the_patterns_see_what_they_should(pattern: re.Pattern[str], bad: str, good: str) -> None:
    assert pattern.search(bad)
    assert not pattern.search(good)


@pytest.mark.parametrize("package", PACKAGES, ids=_name)
def test_a_package_is_typed(package: Path) -> None:
    assert (package / "__init__.py").is_file()
    assert (package / "py.typed").is_file()


def test_the_outer_folders_and_the_tests_are_no_packages() -> None:
    outer = [ROOT / folder / "__init__.py" for folder in FOLDERS]
    inner = list((ROOT / "tests").rglob("__init__.py"))
    assert [_name(path) for path in (*outer, *inner) if path.exists()] == []


def test_every_subfolder_of_a_package_is_a_package() -> None:
    """A folder with modules but without `__init__.py` would be lost to type checkers."""
    lost = {
        _name(path.parent)
        for package in PACKAGES
        for path in package.rglob("*.py")
        if not (path.parent / "__init__.py").is_file()
    }
    assert lost == set()


def test_names_of_test_files_are_unique() -> None:
    names = [path.name for path in SOURCES if path.is_relative_to(ROOT / "tests")]
    assert sorted(names) == sorted(set(names))


def test_every_ignore_of_the_linter_has_a_reason() -> None:
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    ignores = [line for line in lines if re.match(r'\s+"[A-Z]+\d*",', line)]
    assert len(ignores) > 10
    without = [line for line in ignores if len(re.findall(r"\w+", line.partition("#")[2])) < 3]
    assert without == []


_SILENCED = re.compile(
    r"#\s*(?:noqa|type: ignore|pyright: ignore)(?::\s*|\[)(?:[A-Z]+\d+|[\w-]+)(?:,\s*[\w-]+)*\]?"
    r"(?P<reason>.*)"
)


def _without_reason(source: str) -> list[str]:
    return [
        line.strip()
        for line in source.splitlines()
        if (found := _SILENCED.search(line)) and len(re.findall(r"\w+", found["reason"])) < 2
    ]


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_every_silenced_line_has_a_reason(path: Path) -> None:
    """The reason follows the code on the same line: ``noqa: S603 - our own command``."""
    assert _without_reason(path.read_text(encoding="utf-8")) == []


def test_a_silenced_line_without_a_reason_is_seen() -> None:
    bare = [
        "x  # no" + "qa: S603",
        "x  # no" + "qa: S603, S607",
        "x  # type: ig" + "nore[arg-type]",
    ]
    assert _without_reason("\n".join(bare)) == bare
    assert _without_reason("\n".join(f"{line} - our own command" for line in bare)) == []
