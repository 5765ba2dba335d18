"""Directories shared between the driver and the executors: a token in each proves that both access the same one.

Files that a task writes to a directory that the driver does not share would be committed and lost. The driver therefore
writes a random token to the directory, and every executor process reads it there before it reads or writes other files.
"""

from __future__ import annotations

import atexit
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from tidemark.errors import FolderNotShared
from tidemark.lake.flocked import HeldFile, held_files

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
            (self.verified() / FOLDER / name).write_text(name)
        except OSError as error:
            raise self._refused(error.strerror or str(error)) from error
        return name

    def take_reply(self, name: str, host: str) -> None:
        """Remove a file that an executor wrote. Raises FolderNotShared if it does not exist here."""
        reply = self.path / FOLDER / name
        try:
            seen = reply.read_text() == name
            reply.unlink()
        except OSError:
            seen = False
        if not seen:
            raise FolderNotShared(
                f"files that the executor on {host} writes to {self.path} are not visible to the driver", _HINT
            )

    def _require_token(self) -> None:
        try:
            if self.token is None:
                next(self.path.iterdir(), None)
            elif (self.path / FOLDER / self.token).read_text() != self.token:
                raise self._refused("it contains a different token")
        except OSError as error:
            raise self._refused(error.strerror or str(error)) from error

    def _refused(self, why: str) -> FolderNotShared:
        return FolderNotShared(
            f"the executor on {socket.gethostname()} cannot read the driver's directory {self.path}: {why}", _HINT
        )


def shared_folder(path: Path) -> SharedFolder:
    """Write a token to a directory, if this process has none there yet; it exists while the process runs."""
    known = _shared.get(path)
    if known is None or known.token is None or not (path / FOLDER / known.token).exists():
        _shared[path] = known = _with_token(path)
    return known


def _with_token(path: Path) -> SharedFolder:
    try:
        (path / FOLDER).mkdir(parents=True, exist_ok=True)
        held_files(path / FOLDER, _SUFFIX)  # removes tokens of processes that have ended
        file = HeldFile(path / FOLDER, _SUFFIX)
    except PermissionError:  # another user's log
        return SharedFolder(path, None)
    file.write(file.path.name.encode())
    atexit.register(file.close)
    return SharedFolder(path, file.path.name)


def forget_replies(folder: SharedFolder) -> None:
    """Remove the files of executors that the driver did not take."""
    for path in (folder.path / FOLDER).glob(f"{folder.token}-*{_REPLY}"):
        with suppress(OSError):
            path.unlink()
