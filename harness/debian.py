"""Debian packages and sources of packages, unpacked into the clone's `.cache` without being installed."""

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


ARCHIVE = "http://deb.debian.org/debian"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


def source_tree(package: str, suite: str, below: str) -> Path | None:
    """A directory of the source of a package, as a suite of Debian has it; None if it is not available.

    The archive is that of the authors, without Debian's changes. The lists of packages are private ones.
    """
    root = CACHE / f"{package}-{suite}-source"
    found = root / "source" / below
    if shutil.which("apt-get") and Path(KEYS).exists():
        root.mkdir(parents=True, exist_ok=True)
        with (root / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not found.exists():
                _unpack_source(root, package, suite, below)
    return found if found.exists() else None


def _unpack_source(root: Path, package: str, suite: str, below: str) -> None:
    lists, partial = root / "lists", root / "partial"
    sources = root / "source.sources"
    sources.write_text(f"Types: deb-src\nURIs: {ARCHIVE}\nSuites: {suite}\nComponents: main\nSigned-By: {KEYS}\n")
    for folder in (lists, partial):
        folder.mkdir(exist_ok=True)
    private = {"Dir::State::lists": lists, "Dir::Etc::sourcelist": sources, "Dir::Etc::sourceparts": "-"}
    options = [f"--option={key}={value}" for key, value in private.items()]
    command = ["apt-get", *options, "--option=APT::Sandbox::User=root"]
    for arguments in (["update"], ["source", "--download-only", package]):
        if subprocess.run([*command, *arguments], cwd=root, capture_output=True, check=False).returncode:
            return
    for archive in root.glob("*.orig.tar.*"):
        unpack = ["tar", "--extract", f"--file={archive}", f"--directory={partial}", "--strip-components=1"]
        subprocess.run([*unpack, "--wildcards", f"*/{below}/*"], check=True)
    partial.rename(root / "source")
