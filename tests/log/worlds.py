"""A disk that writes down what is done to it, and what it may hold when the power fails after any of that.

An operation on a file's bytes lasts from the file's next sync on, one on its name from the folder's next sync on. Until
then each may have happened or not, whatever happened to the others; the last write may have happened in part. Where a
later write lasted and an earlier one did not, there are zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar

from tidemark.log.disk import Disk
from tidemark.storage.disk import File

World = dict[str, bytes]  # the files of a folder
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Operation:
    """What was done to a file of the folder; to the folder itself where `name` is empty."""

    kind: str
    name: str = ""
    at: int = 0
    data: bytes = b""
    target: str = ""


class RecordingDisk(Disk):
    """Does everything, and writes it down. It need not wait for the real disk: the worlds are made from the record."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def create(self, path: Path) -> File:
        file = super().create(path)
        self.operations.append(Operation("create", path.name))
        return file

    def append(self, file: File, *parts: bytes | memoryview) -> None:
        at = file.path.stat().st_size
        super().append(file, *parts)
        self.operations.append(Operation("write", file.path.name, at, b"".join(parts)))

    def rewrite(self, path: Path, offset: int, data: bytes) -> None:
        super().rewrite(path, offset, data)
        self.operations.append(Operation("write", path.name, offset, data))

    def sync(self, file: File) -> None:
        self.operations.append(Operation("sync", file.path.name))

    def sync_folder(self, folder: Path) -> None:
        self.operations.append(Operation("sync_folder", target=str(folder)))

    def truncate(self, path: Path, size: int) -> None:
        super().truncate(path, size)
        self.operations.append(Operation("truncate", path.name, size))

    def replace(self, path: Path, target: Path) -> None:
        super().replace(path, target)
        self.operations.append(Operation("replace", path.name, target=target.name))

    def remove(self, path: Path) -> None:
        super().remove(path)
        self.operations.append(Operation("remove", path.name))


@dataclass(slots=True)
class _Bytes:
    """A file whatever its name: what lasts, and what was done to it since."""

    lasting: bytes = b""
    since: list[Operation] = field(default_factory=list)

    def after(self, done: list[Operation]) -> bytes:
        data = bytearray(self.lasting)
        for operation in done:
            if operation.kind == "truncate":
                del data[operation.at :]
            else:
                data.extend(bytes(max(0, operation.at - len(data))))
                data[operation.at : operation.at + len(operation.data)] = operation.data
        return bytes(data)


_Named = tuple[str, _Bytes | None, str]  # a name, the file it stands for from now on, a name that goes


class Platter:
    """What a folder holds: lasting names and bytes, and what was done since."""

    def __init__(self, folder: str, lasting: World | None = None) -> None:
        self._folder = folder
        self._lasting = {name: _Bytes(data) for name, data in (lasting or {}).items()}
        self._now = dict(self._lasting)
        self._since: list[_Named] = []

    def take(self, operation: Operation) -> None:
        """One more operation."""
        name = operation.name
        if operation.kind in ("write", "truncate"):
            self._now[name].since.append(operation)
        elif operation.kind == "sync":
            file = self._now[name]
            file.lasting, file.since = file.after(file.since), []
        elif operation.kind == "failed_sync":  # Linux takes the pages for written from now on, though they are not
            self._now[name].since = [Operation("write", name, 0, b"")]
        elif operation.kind == "create":
            self._name(name, _Bytes(), "")
        elif operation.kind == "replace":
            self._name(operation.target, self._now[name], name)
        elif operation.kind == "remove":
            self._name(name, None, "")
        elif operation.target == self._folder:
            self._lasting, self._since = dict(self._now), []

    def _name(self, name: str, file: _Bytes | None, gone: str) -> None:
        self._since.append((name, file, gone))
        self._now = _named(self._now, [self._since[-1]])

    def worlds(self, random: Random, several: int) -> Iterator[World]:
        """What there may be after a power loss: nothing of what does not last, all of it, and some of it."""
        yield self._world(lambda _: [], lambda _: [])
        yield self._world(lambda done: done, lambda names: names)
        yield self._world(lambda done: done, lambda _: [])
        yield self._world(lambda _: [], lambda names: names)
        for lost in self._since:
            yield self._world(lambda done: done, partial(_without, lost))
        for _ in range(several):
            yield self._world(lambda done: _torn(done, random), lambda names: names)
            yield self._world(lambda done: _some(done, random), lambda names: _some(names, random))

    def _world(
        self,
        done: Callable[[list[Operation]], list[Operation]],
        named: Callable[[list[_Named]], list[_Named]],
    ) -> World:
        names = _named(self._lasting, named(self._since))
        return {name: file.after(done(file.since)) for name, file in names.items()}


def platters(folder: Path, operations: list[Operation], lasting: World | None = None) -> Iterator[Platter]:
    """The folder before the first operation, and after each."""
    platter = Platter(str(folder), lasting)
    yield platter
    for operation in operations:
        platter.take(operation)
        yield platter


class Quick(Disk):
    """Does not wait for the real disk."""

    def sync(self, file: File) -> None:
        """Nothing: the power will not fail."""

    def sync_folder(self, folder: Path) -> None:
        """Nothing."""


def made(world: World, folder: Path) -> Path:
    """A folder that holds this."""
    folder.mkdir()
    for name, data in world.items():
        (folder / name).write_bytes(data)
    return folder


def _named(names: dict[str, _Bytes], done: list[_Named]) -> dict[str, _Bytes]:
    names = dict(names)
    for name, file, gone in done:
        names.pop(gone, None)
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file
    return names


def _without(lost: _Named, items: list[_Named]) -> list[_Named]:
    return [item for item in items if item is not lost]


def _some(items: list[T], random: Random) -> list[T]:
    return [item for item in items if random.random() < 0.5]


def _torn(done: list[Operation], random: Random) -> list[Operation]:
    """All but a part of the last."""
    if not done or not done[-1].data:
        return done
    last = done[-1]
    cut = random.randrange(len(last.data))
    return [*done[:-1], Operation(last.kind, last.name, last.at, last.data[:cut])]
