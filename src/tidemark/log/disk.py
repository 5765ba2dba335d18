"""All file operations of the log, in one class that tests replace to record operations, fail them or lose writes.

A failed operation raises LogDiskFull, after which the command can be retried once space is free, or LogDiskFailed.
"""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import numpy as np

from tidemark.errors import LogDiskFailed, LogDiskFull
from tidemark.storage.disk import FULL, File, LocalDisk, sync
from tidemark.values.kernels import Bytes, read_only


class Disk(LocalDisk):
    """File operations on the real disk, with the errors of a log, whose files are private to their owner."""

    file_mode, folder_mode = 0o600, 0o700

    def open(self, path: Path) -> File:
        """Open an existing file for appending."""
        with self.failing("open", path):
            return File(path, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))

    def rewrite(self, path: Path, offset: int, data: bytes) -> None:
        """Write bytes that the file already contains, so that the next sync writes them even after a failed sync."""
        with self.failing("write to", path):
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                rest, at = memoryview(data), offset
                while rest:
                    done = os.pwrite(descriptor, rest, at)
                    rest, at = rest[done:], at + done
            finally:
                os.close(descriptor)

    def sync_path(self, path: Path) -> None:
        """Return when a file or directory is on disk, including what other processes wrote."""
        with self.failing("sync", path):
            sync(path)

    def truncate(self, path: Path, size: int) -> None:
        """Truncate a file."""
        with self.failing("truncate", path):
            os.truncate(path, size)

    def names(self, folder: Path) -> list[str]:
        """The names in a directory, sorted."""
        with self.failing("list", folder):
            return sorted(path.name for path in folder.iterdir())

    def size(self, path: Path) -> int:
        """The size of a file in bytes."""
        with self.failing("read the size of", path):
            return path.stat().st_size

    def read(self, path: Path, start: int = 0, end: int | None = None) -> bytes:
        """The bytes from `start` to `end`, or to the end of the file if it is shorter."""
        with self.failing("read", path), path.open("rb") as file:
            file.seek(start)
            return file.read(-1 if end is None else end - start)

    def map(self, path: Path) -> Bytes:
        """Map the file at its current size into memory."""
        return self.identify(path)[1]

    def identify(self, path: Path) -> tuple[int, Bytes]:
        """The inode number of the file that has this name now, and its memory map.

        No other file gets the same inode number while the map exists.
        """
        with self.failing("read", path), path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_size == 0:
                return status.st_ino, read_only(np.empty(0, np.uint8))
            data = mmap.mmap(file.fileno(), status.st_size, access=mmap.ACCESS_READ)
            return status.st_ino, read_only(np.frombuffer(data, np.uint8))

    def failure(self, error: OSError, act: str, path: Path) -> LogDiskFull | LogDiskFailed:
        """Return the error for a failed operation on a file or directory."""
        message = f"cannot {act} {path}: {os.strerror(error.errno or errno.EIO)}"
        if error.errno in FULL:
            hint = f"Free disk space on {path.parent} and retry the command. No data is lost: the source retains it."
            return LogDiskFull(message, hint)
        return LogDiskFailed(message, f"Check the disk and the permissions of {path.parent}, then retry the command.")
