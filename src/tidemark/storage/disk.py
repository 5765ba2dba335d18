"""File operations on a local disk, and the atomic write that consists of them.

Tests replace the class to record operations, fail them or lose writes. A failed operation raises a TidemarkError that
names the file, and is not retried, in particular not fsync: the kernel may have dropped the pages that it could not
write.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from tidemark.errors import LakeAccessDenied, LakeDiskFailed, LakeDiskFull, TidemarkError

FULL = (errno.ENOSPC, errno.EDQUOT)
TEMPORARY = ".new"  # the suffix of files that are not complete; only a crash leaves one
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True, slots=True)
class File:
    """A file open for appending."""

    path: Path
    descriptor: int


class LocalDisk:
    """File operations on the real disk, with the errors and permissions of a lake."""

    file_mode, folder_mode = 0o666, 0o777  # reduced by the umask

    def create(self, path: Path) -> File:
        """Create an empty file, which must not exist, and open it for appending."""
        with self.failing("create", path):
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
            return File(path, os.open(path, flags, self.file_mode))

    def append(self, file: File, *parts: bytes | memoryview) -> None:
        """Write all parts at the end of the file."""
        rest = [memoryview(part) for part in parts if len(part)]
        with self.failing("write to", file.path):
            while rest:
                done = os.writev(file.descriptor, rest)
                while rest and done >= len(rest[0]):
                    done -= len(rest.pop(0))
                if rest:
                    rest[0] = rest[0][done:]

    def sync(self, file: File) -> None:
        """Return when all appended data is on disk; fail if the file was removed."""
        with self.failing("sync", file.path):
            os.fdatasync(file.descriptor)
            if os.fstat(file.descriptor).st_nlink == 0:
                raise FileNotFoundError(errno.ENOENT, "the file was removed")

    def sync_folder(self, folder: Path) -> None:
        """Return when the entries of a directory are on disk."""
        with self.failing("sync", folder):
            sync(folder)

    def close(self, file: File) -> None:
        """Close a file, without syncing it."""
        os.close(file.descriptor)

    def replace(self, path: Path, target: Path) -> None:
        """Rename a file, replacing the target."""
        with self.failing("rename", path):
            path.replace(target)

    def link(self, path: Path, target: Path) -> bool:
        """Give a file another name; return False if a file has that name."""
        with self.failing("link", path):
            try:
                target.hardlink_to(path)
            except FileExistsError:
                return False
        return True

    def remove(self, path: Path) -> None:
        """Remove a file."""
        with self.failing("remove", path):
            path.unlink()

    def make_folder(self, path: Path) -> None:
        """Create a directory and its parents; return when their names are on disk."""
        with self.failing("create", path):
            if not path.parent.exists():
                self.make_folder(path.parent)
            path.mkdir(exist_ok=True, mode=self.folder_mode)
        self.sync_folder(path.parent)

    def write_atomically(self, path: Path, *parts: bytes | memoryview) -> None:
        """Create or replace a file: after a crash it has its old or its new contents. Durable when this returns."""
        with self._complete(path, *parts) as new:
            self.replace(new, path)
        self.sync_folder(path.parent)

    def put_if_absent(self, path: Path, data: bytes) -> bool:
        """Create a file with all its contents; return False if it exists. Durable when this returns.

        A crash between `link` and `remove` leaves the temporary name of the new file, which is ignored.
        """
        with self._complete(path, data) as new:
            created = self.link(new, path)
            self.remove(new)
        self.sync_folder(path.parent)
        return created

    @contextmanager
    def _complete(self, path: Path, *parts: bytes | memoryview) -> Iterator[Path]:
        """Write and sync a temporary file for a path. It has a name of its own, so that writers do not share it."""
        file = self.create(path.with_name(f"{path.name}.{uuid4().hex}{TEMPORARY}"))
        try:
            try:
                self.append(file, *parts)
                self.sync(file)
            finally:
                self.close(file)
            yield file.path
        except BaseException:
            with suppress(OSError):
                file.path.unlink(missing_ok=True)
            raise

    @contextmanager
    def failing(self, act: str, path: Path) -> Iterator[None]:
        """Raise the errors of the operating system as `failure` describes them."""
        try:
            yield
        except OSError as error:
            raise self.failure(error, act, path) from error

    def failure(self, error: OSError, act: str, path: Path) -> TidemarkError:
        """Return the error for a failed operation on a file or directory."""
        reason = os.strerror(error.errno or errno.EIO)
        if error.errno in FULL:
            return _disk_full(path.parent, reason)
        if error.errno in _DENIED:
            return LakeAccessDenied(
                f"cannot {act} {path}: {reason}",
                f"Grant the operating system user of this process access to {path.parent}, or use another directory.",
            )
        hint = f"Check the disk and that {path.parent} is a directory, then retry the command."
        return LakeDiskFailed(f"cannot {act} {path}: {reason}", hint)


def sync(path: Path) -> None:
    """Return when a file, or the entries of a directory, are on disk, including what other processes wrote."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def room_in(folder: Path) -> Iterator[None]:
    """Raise LakeDiskFull if a write to a data file of the lake fails because the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise _disk_full(folder, os.strerror(error.errno)) from error


def _disk_full(folder: Path, reason: str) -> LakeDiskFull:
    """Return the error for a full disk, which names the file system of a directory."""
    disk = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.is_mount())
    return LakeDiskFull(
        f"cannot write to {folder}: {reason} on the file system mounted at {disk}",
        f"Free disk space on {disk}, then retry the command. No data was lost.",
    )
