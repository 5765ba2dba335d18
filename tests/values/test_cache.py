"""Kernels work where nothing can be written: a read-only installation, and a user without a home directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tidemark

pytestmark = pytest.mark.quick

PROGRAM = """
import numpy as np
import tidemark
from tidemark.values.kernels import be32, read_only
print(tidemark.__file__)
print(be32(read_only(np.array([0, 0, 1, 2], np.uint8)), 0))
"""


def test_kernels_compile_without_a_home_in_an_installation_that_cannot_be_written(tmp_path: Path) -> None:
    """A file in the place of a directory keeps root from writing there too."""
    package = tmp_path / "tidemark"
    shutil.copytree(Path(tidemark.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in {path.parent for path in package.rglob("*.py")}:
        (folder / "__pycache__").touch()
    environment = {"PATH": os.environ["PATH"], "HOME": "/dev/null", "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-B", "-c", PROGRAM]
    found = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, check=False)
    assert found.stdout.splitlines() == [str(package / "__init__.py"), "258"], found.stderr
