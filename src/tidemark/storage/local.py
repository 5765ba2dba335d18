"""Storage in a directory of a local or shared file system.

Locks and leases are files that are locked with `flock`, which the operating system releases when the owner ends for any
reason, and not before: neither age nor silence of a process ends its claim. The file of a lock remains; a lease that is
not locked belongs to a process that has ended, and the next process that lists the leases deletes it.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from tidemark.storage.disk import TEMPORARY, LocalDisk
from tidemark.storage.interface import Owner, StorageLease, StorageLock, StoredLease

_PAUSE_S = 0.01
_OWNER_WRITES = 0o644
_ABSENT = (FileNotFoundError, NotADirectoryError)


class LocalStorage:
    """Implements `Storage`. An absent root has no objects, and refuses new ones."""

    def __init__(self, root: Path, disk: LocalDisk | None = None) -> None:
        self._root, self._disk = root, disk or LocalDisk()

    @property
    def root(self) -> str:
        """The path of the directory."""
        return str(self._root)

    def create_root(self) -> None:
        """Create the directory and its parents, if it does not exist."""
        with self._disk.failing("create", self._root):
            there = self._root.is_dir()
        if not there:
            self._disk.make_folder(self._root)

    def require_root(self) -> None:
        """Raise an error unless the directory exists and can be listed."""
        with self._disk.failing("list", self._root):
            next(self._root.iterdir(), None)

    def read(self, key: str) -> bytes | None:
        """Return the contents of a file, or None if it does not exist."""
        path = self._path(key)
        with self._disk.failing("read", path), suppress(*_ABSENT):
            return path.read_bytes()
        return None

    def write(self, key: str, data: bytes) -> None:
        """Create or replace a file atomically."""
        self._disk.write_atomically(self._path_in_folder(key), data)

    def remove_unfinished(self, key: str) -> None:
        """Delete the temporary files that interrupted writes of a file left."""
        path = self._path(key)
        with self._disk.failing("remove", path):
            for left in path.parent.glob(f"{path.name}.*{TEMPORARY}"):
                left.unlink(missing_ok=True)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create a file atomically; return False if it already exists."""
        return self._disk.put_if_absent(self._path_in_folder(key), data)

    def list_keys(self, folder: str, suffix: str) -> list[str]:
        """Return the files in a directory that end with a suffix, sorted."""
        path = self._path(folder)
        with self._disk.failing("list", path), suppress(*_ABSENT):
            names = [child.name for child in path.iterdir()]
            return sorted(f"{folder}/{name}" for name in names if name.endswith(suffix))
        return []

    def delete(self, key: str) -> None:
        """Delete a file, if it exists."""
        path = self._path(key)
        with self._disk.failing("remove", path), suppress(*_ABSENT):
            path.unlink()
            self._disk.sync_folder(path.parent)

    def lock(self, key: str, wait_s: float = 0.0) -> StorageLock | None:
        """Lock a file and write its owner; None if another process has locked it for `wait_s` seconds."""
        deadline = time.monotonic() + wait_s
        while True:
            try:
                return LocalLock(self._disk, self._path_in_folder(key), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return None
            time.sleep(_PAUSE_S)

    def wait_for_lock(self, key: str) -> StorageLock:
        """Lock a file as soon as no other process has locked it, and write its owner."""
        return LocalLock(self._disk, self._path(key), fcntl.LOCK_EX)

    def is_locked(self, key: str) -> bool:
        """Return whether a file is locked exclusively. A file that cannot be read counts as not locked."""
        with suppress(OSError):
            file = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
            try:
                return _is_locked(file)
            finally:
                os.close(file)
        return False

    def lease(self, folder: str, suffix: str, *, for_all_users: bool = False) -> StorageLease:
        """Create a locked file. A directory for all users is writable by them, and each may delete only their own."""
        path = self._path(folder)
        with self._disk.failing("create", path):
            if not path.exists():
                path.mkdir(exist_ok=True)
                if for_all_users:
                    path.chmod(0o1777)
            return LocalLease(self._disk, self._root, folder, suffix)

    def leases(self, folder: str, suffix: str) -> list[StoredLease]:
        """Return the locked files, and delete the others."""
        found = []
        for key in self.list_keys(folder, suffix):
            with suppress(OSError):  # released since it was listed
                file = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    if _is_locked(file):
                        status = os.fstat(file)
                        found.append(StoredLease(key, os.read(file, status.st_size), status.st_mtime))
                    else:
                        self._path(key).unlink(missing_ok=True)
                finally:
                    os.close(file)
        return found

    def _path(self, key: str) -> Path:
        return self._root / key

    def _path_in_folder(self, key: str) -> Path:
        """Return the path of a key, whose folder below the root exists durably from then on."""
        path = self._path(key)
        if path.parent != self._root:
            with self._disk.failing("create", path.parent):
                path.parent.mkdir(exist_ok=True, mode=self._disk.folder_mode)
            self._disk.sync_folder(self._root)
        return path


class LocalLock:
    """A file that is locked until `close`, and contains its owner. Raises BlockingIOError if `how` does not wait."""

    def __init__(self, disk: LocalDisk, path: Path, how: int) -> None:
        self._file = _locked(disk, path, how)
        try:
            with disk.failing("write to", path):
                owner = json.dumps(Owner.current().plain()).encode()
                os.pwrite(self._file, owner, 0)
                os.ftruncate(self._file, len(owner))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock."""
        os.close(self._file)


def _locked(disk: LocalDisk, path: Path, how: int) -> int:
    """Lock the file that has this name, and return its descriptor: not of one that was deleted before it was locked."""
    while True:
        with disk.failing("open", path):
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, disk.file_mode & _OWNER_WRITES)
        try:
            fcntl.flock(file, how)
            if os.fstat(file).st_nlink:
                return file
        except BlockingIOError:
            os.close(file)
            raise
        except OSError as error:
            os.close(file)
            raise disk.failure(error, "lock", path) from error
        os.close(file)


class LocalLease:
    """A new file in a directory, locked until `close`."""

    def __init__(self, disk: LocalDisk, root: Path, folder: str, suffix: str) -> None:
        self._disk, self._file = disk, -1
        while self._file < 0:
            self.key = f"{folder}/{uuid4().hex}{suffix}"
            self._path = root / self.key
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_WRITES)
            os.fchmod(file, _OWNER_WRITES)  # with any umask: a lease that others cannot read protects nothing
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink:
                self._file = file
            else:  # before it was locked, another process has deleted it as one of an ended process
                os.close(file)

    def write(self, data: bytes) -> None:
        """Replace the contents of the file."""
        if self._file >= 0:
            with self._disk.failing("write to", self._path):
                os.pwrite(self._file, data, 0)
                os.ftruncate(self._file, len(data))

    def close(self) -> None:
        """Delete the file and release the lock. Idempotent."""
        if self._file >= 0:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
