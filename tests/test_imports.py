"""Imports point one way, as `make check` requires, which is shown to have teeth here; names of classes are unique."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]
LINT = Path(sys.executable).parent / "lint-imports"


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(folder / "src"), "PATH": ""}
    return subprocess.run(
        [sys.executable, LINT, "--no-cache"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_the_tree_keeps_the_contract_and_a_backward_import_breaks_it(tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", ROOT / "src", ROOT / "pyproject.toml", tmp_path], check=True)
    kept = lint(tmp_path)
    assert kept.returncode == 0, kept.stdout
    with (tmp_path / "src/tidemark/clock/lsn.py").open("a") as file:
        file.write("\nfrom tidemark.postgres import session\n")
    broken = lint(tmp_path)
    assert broken.returncode != 0
    assert "tidemark.clock.lsn -> tidemark.postgres" in broken.stdout


def test_every_class_of_the_package_has_a_name_of_its_own() -> None:
    names: Counter[str] = Counter()
    for path in (ROOT / "src/tidemark").rglob("*.py"):
        names.update(node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []
