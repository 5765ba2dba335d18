"""The archive of a log: closed segments and their indexes are stored there before they are removed from the log.

An archive is a directory, or a shell command that is executed for each file, as PostgreSQL's archive_command is: it
must return zero only if the file is stored durably, and must not replace another file. Segments are archived in order.
The number of the last one is recorded next to the log after it is stored, so one that was stored before a crash can be
archived again.
"""

from __future__ import annotations

import errno
import filecmp
import json
import os
import re
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from tidemark.errors import LogDamaged, LogError
from tidemark.log.disk import Disk
from tidemark.log.segment import SEGMENT, index_path, numbers, segment_path
from tidemark.storage.disk import TEMPORARY
from tidemark.storage.local import LocalStorage

NAME = "archived.json"
_PLACEHOLDER = re.compile(r"%([pf%])")
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)
_POLL_S = 0.1
_LONGEST_OUTPUT = 500


class Archive(ABC):
    """A place that stores the files of closed segments."""

    @abstractmethod
    def store(self, path: Path, stopping: Callable[[], bool]) -> None:
        """Store a file, which is durable when this returns. Storing the same file again has no effect.

        Raises LogError if it fails, or `stopping` became true while a command ran.
        """

    def tidy(self) -> None:  # noqa: B027 - a command leaves nothing that is known here
        """Delete what an interrupted `store` left."""


@dataclass(frozen=True, slots=True)
class DirectoryArchive(Archive):
    """A directory, created if it does not exist. On the file system of the log, files are linked and not copied."""

    folder: Path

    def store(self, path: Path, stopping: Callable[[], bool]) -> None:  # noqa: ARG002 - a copy takes little time
        """Store a file under its name."""
        disk, target = Disk(), self.folder / path.name
        disk.make_folder(self.folder)
        new = target.with_name(f"{target.name}.{uuid4().hex}{TEMPORARY}")
        try:
            with disk.failing("archive", target):
                _link_or_copy(path, new)
            if not disk.link(new, target) and not filecmp.cmp(path, target, shallow=False):
                raise LogError(
                    f"cannot archive {path}: {target} exists and has other contents",
                    "Use a separate archive directory for each mirror.",
                )
        finally:
            with suppress(OSError):
                new.unlink(missing_ok=True)
        disk.sync_folder(self.folder)

    def tidy(self) -> None:
        """Delete incomplete copies."""
        for path in self.folder.glob(f"*{TEMPORARY}"):
            path.unlink(missing_ok=True)


def _link_or_copy(path: Path, target: Path) -> None:
    """Give a file a second name, or copy it to another file system; durable but for the name."""
    try:
        target.hardlink_to(path)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        with path.open("rb") as source, target.open("xb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())


@dataclass(frozen=True, slots=True)
class CommandArchive(Archive):
    """A shell command, in which %p is the path of the file, %f its name, and %% a percent sign."""

    command: str

    def store(self, path: Path, stopping: Callable[[], bool]) -> None:
        """Execute the command for a file."""
        values = {"p": str(path), "f": path.name, "%": "%"}
        command = _PLACEHOLDER.sub(lambda match: values[match[1]], self.command)
        with subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            output = _output_of(process, stopping)
        if process.returncode != 0:
            said = output.decode(errors="replace").strip()[-_LONGEST_OUTPUT:]
            raise LogError(
                f"cannot archive {path}: the command `{command}` ended with status {process.returncode}"
                + (f": {said}" if said else ""),
                "Correct the command of `--archive`.",
            )


def _output_of(process: subprocess.Popen[bytes], stopping: Callable[[], bool]) -> bytes:
    """Wait for a command, and return what it printed. It is killed with its children if `stopping` becomes true."""
    while True:
        try:
            return process.communicate(timeout=_POLL_S)[0]
        except subprocess.TimeoutExpired:
            if stopping():
                os.killpg(process.pid, 9)


def parse_archive(text: str) -> Archive:
    """Return the archive of `--archive`: a command if the text contains %p, a directory otherwise."""
    return CommandArchive(text) if "%p" in text else DirectoryArchive(Path(text))


def read_archived(folder: Path, disk: Disk) -> int:
    """The number of the last segment of a log that was archived, or 0."""
    data = LocalStorage(folder, disk).read(NAME)
    if data is None:
        return 0
    try:
        return int(json.loads(data)["segment"])
    except (ValueError, KeyError, TypeError) as error:
        raise LogDamaged(f"{folder / NAME} is damaged", "Restore the file from a backup.") from error


def store_segment(folder: Path, disk: Disk, number: int, archive: Archive, stopping: Callable[[], bool]) -> None:
    """Store a segment and its index, and record that it is archived. Of a damaged log, a file may be missing."""
    for path in (index_path(folder, number), segment_path(folder, number)):
        if path.exists():
            archive.store(path, stopping)
    LocalStorage(folder, disk).write(NAME, json.dumps({"segment": number}).encode() + b"\n")


def unarchived(folder: Path, disk: Disk) -> list[int]:
    """The numbers of the segments that are not archived, ascending, with the last one, which is not closed."""
    archived = read_archived(folder, disk)
    return [number for number in numbers(disk.names(folder), SEGMENT) if number > archived]
