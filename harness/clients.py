"""Programs of other projects that talk to PostgreSQL, in virtual environments of their own in the clone's `.cache`."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from harness.debian import CACHE


def environment(name: str, requirements: tuple[str, ...]) -> Path:
    """The directory of the programs of a virtual environment with these packages, which is made once."""
    digest = hashlib.sha256("\n".join(requirements).encode()).hexdigest()[:12]
    root = CACHE / f"{name}-{digest}"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "complete").exists():
            shutil.rmtree(root, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", root], check=True)
            install = [str(root / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*install, *requirements], check=True, capture_output=True)
            (root / "complete").touch()
    return root / "bin"
