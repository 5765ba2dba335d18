"""All file operations of the log, in one class that tests replace to record operations, fail them or lose writes.

A failed operation raises LogDiskFull, after which the command can be retried once space is free, or LogDiskFailed. No
operation is retried in the same process, in particular not fsync: the kernel may have dropped the pages that it could
not write.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidemark.errors import LogDiskFailed, LogDiskFull
from tidemark.values.kernels import Bytes, read_only

FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class File:
    """A file open for appending."""

    path: Path
    descriptor: int


class Disk:
    """File operations on the real disk."""

    def create(self, path: Path) -> File:
        """Create an empty file, which must not exist, and open it for appending."""
        with _failing("create", path):
            return File(path, os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600))

    def open(self, path: Path) -> File:
        """Open an existing file for appending."""
        with _failing("open", path):
            return File(path, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))

    def append(self, file: File, *parts: bytes | memoryview) -> None:
        """Write all parts at the end of the file."""
        rest = [memoryview(part) for part in parts if len(part)]
        with _failing("write to", file.path):
            while rest:
                done = os.writev(file.descriptor, rest)
                while rest and done >= len(rest[0]):
                    done -= len(rest.pop(0))
                if rest:
                    rest[0] = rest[0][done:]

    def rewrite(self, path: Path, offset: int, data: bytes) -> None:
        """Write bytes that the file already contains, so that the next sync writes them even after a failed sync."""
        with _failing("write to", path):
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                rest, at = memoryview(data), offset
                while rest:
                    done = os.pwrite(descriptor, rest, at)
                    rest, at = rest[done:], at + done
            finally:
                os.close(descriptor)

    def sync(self, file: File) -> None:
        """Return when all appended data is on disk; fail if the file was removed."""
        with _failing("sync", file.path):
            os.fdatasync(file.descriptor)
            if os.fstat(file.descriptor).st_nlink == 0:
                raise FileNotFoundError(errno.ENOENT, "the file was removed")

    def sync_folder(self, folder: Path) -> None:
        """Return when the entries of a directory are on disk."""
        self.sync_path(folder)

    def sync_path(self, path: Path) -> None:
        """Return when a file or directory is on disk, including what other processes wrote."""
        with _failing("sync", path):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def truncate(self, path: Path, size: int) -> None:
        """Truncate a file."""
        with _failing("truncate", path):
            os.truncate(path, size)

    def replace(self, path: Path, target: Path) -> None:
        """Rename a file, replacing the target."""
        with _failing("rename", path):
            path.replace(target)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        with _failing("remove", path):
            path.unlink()

    def close(self, file: File) -> None:
        """Close a file, without syncing it."""
        os.close(file.descriptor)

    def names(self, folder: Path) -> list[str]:
        """The names in a directory, sorted."""
        with _failing("list", folder):
            return sorted(path.name for path in folder.iterdir())

    def size(self, path: Path) -> int:
        """The size of a file in bytes."""
        with _failing("read the size of", path):
            return path.stat().st_size

    def read(self, path: Path, start: int = 0, end: int | None = None) -> bytes:
        """The bytes from `start` to `end`, or to the end of the file if it is shorter."""
        with _failing("read", path), path.open("rb") as file:
            file.seek(start)
            return file.read(-1 if end is None else end - start)

    def map(self, path: Path) -> Bytes:
        """Map the file at its current size into memory."""
        return self.identify(path)[1]

    def identify(self, path: Path) -> tuple[int, Bytes]:
        """The inode number of the file that has this name now, and its memory map.

        No other file gets the same inode number while the map exists.
        """
        with _failing("read", path), path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_size == 0:
                return status.st_ino, read_only(np.empty(0, np.uint8))
            data = mmap.mmap(file.fileno(), status.st_size, access=mmap.ACCESS_READ)
            return status.st_ino, read_only(np.frombuffer(data, np.uint8))

    def make_folder(self, path: Path) -> None:
        """Create a directory and its parents; return when their names are on disk."""
        with _failing("create", path):
            if not path.parent.exists():
                self.make_folder(path.parent)
            path.mkdir(exist_ok=True, mode=0o700)
        self.sync_folder(path.parent)


def write_whole(disk: Disk, path: Path, data: bytes) -> None:
    """Replace a small file atomically: after a crash it has either the old contents or the new."""
    new = path.with_name(f"{path.name}.new")
    if new.exists():
        disk.remove(new)
    file = disk.create(new)
    try:
        disk.append(file, data)
        disk.sync(file)
    finally:
        disk.close(file)
    disk.replace(new, path)
    disk.sync_folder(path.parent)


@contextmanager
def _failing(act: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise failure(error, act, path) from error


def failure(error: OSError, act: str, path: Path) -> LogDiskFull | LogDiskFailed:
    """The LogDiskFull or LogDiskFailed error for an error of the operating system."""
    said = f"cannot {act} {path}: {os.strerror(error.errno or errno.EIO)}"
    if error.errno in FULL:
        hint = f"Free disk space on {path.parent} and retry the command. No data is lost: the source retains it."
        return LogDiskFull(said, hint)
    return LogDiskFailed(said, f"Check the disk and the permissions of {path.parent}, then retry the command.")
