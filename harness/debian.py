"""Debian packages, unpacked into the clone's `.cache` without being installed."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

CACHE = Path(__file__).parents[1] / ".cache"


def unpacked(name: str, packages: tuple[str, ...]) -> Path | None:
    """The root directory of these packages, cached under a name; None if they are not available."""
    root = CACHE / name
    if shutil.which("apt-get") and shutil.which("dpkg"):
        root.mkdir(parents=True, exist_ok=True)
        with (root / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (root / "usr").exists():
                _unpack(root, packages)
    return root if (root / "usr").exists() else None


def _unpack(root: Path, packages: tuple[str, ...]) -> None:
    """Download and unpack, with private package lists if those of the machine are missing."""
    lists = root / "lists"
    lists.mkdir(exist_ok=True)
    private = ["-o", f"Dir::State::lists={lists}", "-o", "APT::Sandbox::User=root"]
    for options, update in (([], False), (private, True)):
        if update and subprocess.run(["apt-get", *options, "update"], capture_output=True, check=False).returncode:
            return
        if not subprocess.run(
            ["apt-get", *options, "download", *packages], cwd=root, capture_output=True, check=False
        ).returncode:
            break
    partial = root / "partial"
    for package in root.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, partial], check=True)
    if partial.exists():
        (partial / "usr").rename(root / "usr")
