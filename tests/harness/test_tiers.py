"""Every test is in a tier: the nearest mark decides, and a test without one fails collection."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[2]
MARKED = """
import pytest
pytestmark = pytest.mark.quick

def test_as_its_module(): pass

@pytest.mark.full
def test_as_itself(): pass

@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.full)])
def test_as_its_parameter(n): pass
"""


def collected(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "tests.tiers", "-c", "/dev/null", "--collect-only", "-q", *options]
    return subprocess.run([*command, str(file)], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.full
def test_the_nearest_mark_decides(tmp_path: Path) -> None:
    file = tmp_path / "test_marked.py"
    file.write_text(MARKED)
    quick = collected(file, "--quick")
    names = [line.partition("::")[2] for line in quick.stdout.splitlines() if "::" in line]
    assert names == ["test_as_its_module", "test_as_its_parameter[1]"], quick.stdout + quick.stderr
    assert "4 tests collected" in collected(file).stdout


@pytest.mark.full
def test_a_test_in_no_tier_fails_collection(tmp_path: Path) -> None:
    file = tmp_path / "test_unmarked.py"
    file.write_text("def test_something(): pass\n")
    done = collected(file)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "1 tests are in no tier" in done.stderr
    assert "test_unmarked.py::test_something" in done.stderr
