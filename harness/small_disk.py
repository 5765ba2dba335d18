"""A file system of a given size, for tests in which a disk is really full."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class CannotMount(Exception):
    """This process may not mount a file system."""


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Mount an empty file system at a new directory until the context ends."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        raise CannotMount(mounted.stderr.strip())
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Use up the free space with one file; return the file, whose removal frees the space."""
    ballast = folder / "ballast"
    with ballast.open("wb") as file:
        try:
            while free := shutil.disk_usage(folder).free:
                file.write(bytes(min(free, 1 << 20)))
                file.flush()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    return ballast
