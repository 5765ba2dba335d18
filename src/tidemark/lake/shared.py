"""Directories shared between the driver and the executors: a token in each proves that both access the same one.

Files that a task writes to a directory that the driver does not share would be committed and lost. The driver therefore
writes a random token to the directory, and every executor process reads it there before it reads or writes other files.
"""

from __future__ import annotations

import atexit
import socket
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from tidemark.errors import FolderNotShared, LakeAccessDenied, LakeError
from tidemark.storage import open_storage

FOLDER = "_shared"
_SUFFIX, _REPLY = ".token", ".reply"
_HINT = (
    "Mount the directory at the same path on every executor, or run Spark on this machine with `--master 'local[*]'`."
)
_verified: set[SharedFolder] = set()
_shared: dict[Path, SharedFolder] = {}


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """A directory of the driver, and the name of its token file; None if the driver cannot write to it."""

    path: Path
    token: str | None

    def verified(self) -> Path:
        """Return the path if this process accesses the driver's directory; checked once per process."""
        if self not in _verified:
            self._require_token()
            _verified.add(self)
        return self.path

    def reply(self) -> str:
        """Write a file that the driver has to find, and return its name."""
        name = f"{self.token}-{uuid4().hex}{_REPLY}"
        try:
            open_storage(self.verified()).write(f"{FOLDER}/{name}", name.encode())
        except LakeError as error:
            raise self._refused(error.message) from error
        return name

    def take_reply(self, name: str, host: str) -> None:
        """Remove a file that an executor wrote. Raises FolderNotShared if it does not exist here."""
        storage, key = open_storage(self.path), f"{FOLDER}/{name}"
        found = storage.read(key)
        storage.delete(key)
        if found != name.encode():
            raise FolderNotShared(
                f"files that the executor on {host} writes to {self.path} are not visible to the driver", _HINT
            )

    def _require_token(self) -> None:
        storage = open_storage(self.path)
        try:
            storage.require_root()
            found = storage.read(f"{FOLDER}/{self.token}")
        except LakeError as error:
            raise self._refused(error.message) from error
        if self.token is not None and found != self.token.encode():
            raise self._refused("it does not contain the driver's token")

    def _refused(self, why: str) -> FolderNotShared:
        return FolderNotShared(
            f"the executor on {socket.gethostname()} cannot read the driver's directory {self.path}: {why}", _HINT
        )


def shared_folder(path: Path) -> SharedFolder:
    """Write a token to a directory, if this process has none there yet; it exists while the process runs."""
    known = _shared.get(path)
    if known is None or known.token is None or open_storage(path).read(f"{FOLDER}/{known.token}") is None:
        _shared[path] = known = _with_token(path)
    return known


def _with_token(path: Path) -> SharedFolder:
    storage = open_storage(path)
    try:
        storage.create_root()
        storage.leases(FOLDER, _SUFFIX)  # deletes tokens of processes that have ended
        lease = storage.lease(FOLDER, _SUFFIX)
    except LakeAccessDenied:  # another user's log
        return SharedFolder(path, None)
    token = lease.key.removeprefix(f"{FOLDER}/")
    lease.write(token.encode())
    atexit.register(lease.close)
    return SharedFolder(path, token)


def forget_replies(folder: SharedFolder) -> None:
    """Remove the files of executors that the driver did not take."""
    storage = open_storage(folder.path)
    for key in storage.list_keys(FOLDER, _REPLY):
        if key.startswith(f"{FOLDER}/{folder.token}-"):
            storage.delete(key)
