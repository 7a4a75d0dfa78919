"""The core is light and pure, and a room imports downwards only."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("eaco_core", "telemetry", "predictors", "adapters")
CORE = ROOT / "eaco_core" / "eaco_core"


def test_importing_the_core_pulls_in_attrs_and_the_standard_library_only() -> None:
    script = Path(__file__).with_name("foreign_modules.py")
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert set(ran.stdout.split()) == {"attr", "attrs", "eaco_core"}


def _imported_names(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


_CORE_FILES = [path for path in sorted(CORE.rglob("*.py")) if "testing" not in path.parts]


@pytest.mark.parametrize("path", _CORE_FILES, ids=lambda path: str(path.relative_to(CORE)))
def test_no_module_of_the_core_imports_more_than_attrs_or_the_test_kit(path: Path) -> None:
    allowed = sys.stdlib_module_names | {"attr", "attrs", "eaco_core"}
    names = _imported_names(path)
    assert {name.split(".")[0] for name in names} <= allowed
    kit = {name for name in names if name.startswith("eaco_core.testing")}
    assert not kit, "the test kit is for tests of other people's schedulers"


def _lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    tool = Path(sys.executable).with_name("lint-imports")
    if not tool.exists():
        pytest.skip("import-linter is not installed here: pip install -e '.[dev]'")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(str(tree / r) for r in ROOMS)}
    return subprocess.run(
        [str(tool), "--no-cache", "--config", "pyproject.toml"],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy_of_the_rooms(tmp_path: Path) -> Path:
    for room in ROOMS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / room, tmp_path / room, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_import_contract_holds(copy_of_the_rooms: Path) -> None:
    ran = _lint_imports(copy_of_the_rooms)
    assert ran.returncode == 0, ran.stdout
    assert "0 broken" in ran.stdout


@pytest.mark.parametrize(
    ("file", "planted"),
    [
        ("eaco_core/eaco_core/errors.py", "time"),
        ("eaco_core/eaco_core/jobs.py", "subprocess"),
        ("eaco_core/eaco_core/errors.py", "asyncio"),
        ("eaco_core/eaco_core/errors.py", "click"),
        ("eaco_core/eaco_core/errors.py", "eaco_telemetry"),
        ("telemetry/eaco_telemetry/__init__.py", "eaco_predictors"),
        ("predictors/eaco_predictors/__init__.py", "eaco_adapters.cli"),
    ],
)
def test_a_planted_violation_is_reported(copy_of_the_rooms: Path, file: str, planted: str) -> None:
    with (copy_of_the_rooms / file).open("a", encoding="utf-8") as source:
        source.write(f"\nimport {planted}\n")
    ran = _lint_imports(copy_of_the_rooms)
    assert ran.returncode == 1
    importer = ".".join(Path(file).with_suffix("").parts[1:]).removesuffix(".__init__")
    assert f"{importer} -> {planted}" in " ".join(ran.stdout.split())
