"""All file operations of the log, in one small object: what a test records, fails or loses, it does here.

An operation that fails raises ours: a full disk can be emptied and tried again, any other failure ends the process. In
particular a failed fsync is never tried again: the kernel may have dropped what it could not write.
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
    """The real one."""

    def create(self, path: Path) -> File:
        """A new, empty file; one of that name must not be there."""
        with _failing("create", path):
            return File(path, os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600))

    def open(self, path: Path) -> File:
        """A file to be appended to."""
        with _failing("open", path):
            return File(path, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))

    def append(self, file: File, *parts: bytes | memoryview) -> None:
        """Write all of it at the end."""
        rest = [memoryview(part) for part in parts if len(part)]
        with _failing("write to", file.path):
            while rest:
                done = os.writev(file.descriptor, rest)
                while rest and done >= len(rest[0]):
                    done -= len(rest.pop(0))
                if rest:
                    rest[0] = rest[0][done:]

    def rewrite(self, path: Path, offset: int, data: bytes) -> None:
        """Write again what is there already, so that the next sync does not take it for written."""
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
        """Return when everything appended is on the disk."""
        with _failing("sync", file.path):
            os.fdatasync(file.descriptor)
            if os.fstat(file.descriptor).st_nlink == 0:
                raise FileNotFoundError(errno.ENOENT, "the file was removed")

    def sync_folder(self, folder: Path) -> None:
        """Return when the folder's entries are on the disk."""
        self.sync_path(folder)

    def sync_path(self, path: Path) -> None:
        """Return when what is behind a name is on the disk, whoever wrote it."""
        with _failing("sync", path):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def truncate(self, path: Path, size: int) -> None:
        """Cut a file."""
        with _failing("truncate", path):
            os.truncate(path, size)

    def replace(self, path: Path, target: Path) -> None:
        """Give a file the name of another, which it replaces."""
        with _failing("rename", path):
            path.replace(target)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        with _failing("remove", path):
            path.unlink()

    def close(self, file: File) -> None:
        """Let go of a file."""
        os.close(file.descriptor)

    def names(self, folder: Path) -> list[str]:
        """What is in a folder, in order."""
        with _failing("list", folder):
            return sorted(path.name for path in folder.iterdir())

    def size(self, path: Path) -> int:
        """How long a file is."""
        with _failing("read the size of", path):
            return path.stat().st_size

    def read(self, path: Path, start: int = 0, end: int | None = None) -> bytes:
        """The bytes from `start` to `end`, or as many as there are."""
        with _failing("read", path), path.open("rb") as file:
            file.seek(start)
            return file.read(-1 if end is None else end - start)

    def map(self, path: Path) -> Bytes:
        """The whole file as it is now, read from the disk as it is looked at."""
        return self.identify(path)[1]

    def identify(self, path: Path) -> tuple[int, Bytes]:
        """Which file has this name now, and its map: no other file gets that number while the map is held."""
        with _failing("read", path), path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_size == 0:
                return status.st_ino, read_only(np.empty(0, np.uint8))
            data = mmap.mmap(file.fileno(), status.st_size, access=mmap.ACCESS_READ)
            return status.st_ino, read_only(np.frombuffer(data, np.uint8))

    def make_folder(self, path: Path) -> None:
        """A folder, with those above it; return when their names are on the disk."""
        with _failing("create", path):
            if not path.parent.exists():
                self.make_folder(path.parent)
            path.mkdir(exist_ok=True, mode=0o700)
        self.sync_folder(path.parent)


def write_whole(disk: Disk, path: Path, data: bytes) -> None:
    """Write a small file so that it is there as a whole, or as it was before."""
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
    """Our error for what the system said."""
    said = f"cannot {act} {path}: {os.strerror(error.errno or errno.EIO)}"
    if error.errno in FULL:
        hint = f"Free disk space on {path.parent} and retry the command. No data is lost: the source retains it."
        return LogDiskFull(said, hint)
    return LogDiskFailed(said, f"Check the disk and the permissions of {path.parent}, then retry the command.")
