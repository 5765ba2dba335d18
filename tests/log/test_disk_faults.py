"""A disk that is full or broken at any operation: the writer stops for good, and nothing that was promised is lost."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.log.history import SEGMENT_BYTES, START, XID, Life, Source, contents
from tests.log.messages import frames, plain
from tests.log.worlds import Quick
from tidemark.clock import Lsn
from tidemark.errors import LogDiskFailed, LogDiskFull, LogError
from tidemark.log.disk import Disk
from tidemark.log.reader import LogReader
from tidemark.log.recovery import open_log
from tidemark.log.writer import LogWriter
from tidemark.storage.disk import File

pytestmark = pytest.mark.quick

SEED, EVENTS = 719, 32


class FaultyDisk(Quick):
    """Its operation number `fails` fails, and of what that would have written, `written` of it is there."""

    def __init__(self, fails: int, number: int, written: float = 0) -> None:
        self.operations: list[str] = []
        self.failed = ""
        self._fails, self._number, self._written = fails, number, written

    def _count(self, kind: str, path: Path) -> None:
        self.operations.append(kind)
        if len(self.operations) == self._fails:
            self.failed = kind
            raise self.failure(OSError(self._number, "as the test asks"), kind, path)

    def create(self, path: Path) -> File:
        self._count("create", path)
        return super().create(path)

    def open(self, path: Path) -> File:
        self._count("open", path)
        return super().open(path)

    def append(self, file: File, *parts: bytes | memoryview) -> None:
        if len(self.operations) + 1 == self._fails:
            whole = b"".join(parts)
            super().append(file, whole[: int(len(whole) * self._written)])
        self._count("append", file.path)
        super().append(file, *parts)

    def rewrite(self, path: Path, offset: int, data: bytes) -> None:
        self._count("rewrite", path)
        super().rewrite(path, offset, data)

    def sync(self, file: File) -> None:
        self._count("sync", file.path)

    def sync_folder(self, folder: Path) -> None:
        self._count("sync_folder", folder)

    def truncate(self, path: Path, size: int) -> None:
        self._count("truncate", path)
        super().truncate(path, size)

    def replace(self, path: Path, target: Path) -> None:
        self._count("replace", path)
        super().replace(path, target)

    def remove(self, path: Path) -> None:
        self._count("remove", path)
        super().remove(path)


def acts_of(writer: LogWriter) -> list[Callable[[], object]]:
    """All that one can ask of a writer."""
    return [
        writer.sync,
        lambda: writer.append(frames(*plain(1000, 10_000, 1))),
        lambda: writer.append(frames(), Lsn(10_000)),
        lambda: writer.begin_session(b"{}", XID),
        lambda: writer.trim(Lsn(10_000)),
    ]


def require_refusing(writer: LogWriter, disk: FaultyDisk) -> None:
    """It refuses everything, and asks nothing of the disk."""
    before, durable = list(disk.operations), writer.durable
    for act in acts_of(writer):
        with pytest.raises(LogDiskFailed, match="failed earlier"):
            act()
    assert disk.operations == before
    assert writer.durable == durable


def require_recovered(life: Life) -> None:
    """The log opens on a disk that works, with what was promised and nothing else, and takes the rest."""
    promised = max((lsn for _, lsn in life.promises), default=Lsn.ZERO)
    after = max((lsn for _, lsn in life.trims), default=Lsn.ZERO)
    with open_log(life.folder, START, Quick(), SEGMENT_BYTES) as writer:
        assert writer.received >= promised
        assert contents(LogReader(life.folder), after) == life.source.rows(after, writer.received)
        writer.begin_session(b"{}", XID)
        rest = life.source.stream(writer.durable)
        writer.append(frames(*(message.raw for message in rest if message.raw)))
    assert contents(LogReader(life.folder), after) == life.source.rows(after, life.source.end)


def outcome(life: Life, expected: type[LogError]) -> str:
    """What the error said that ended this life, if one did."""
    try:
        life.lead()
    except expected as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("number", "written", "expected"),
    [
        pytest.param(errno.ENOSPC, 0.6, LogDiskFull, marks=pytest.mark.full),
        pytest.param(errno.ENOSPC, 0, LogDiskFull, marks=pytest.mark.full),
        pytest.param(errno.EDQUOT, 0, LogDiskFull, marks=pytest.mark.full),
        pytest.param(errno.EIO, 0.3, LogDiskFailed, marks=pytest.mark.full),
    ],
)
def test_after_a_failure_of_any_operation_the_writer_stops_and_nothing_promised_is_lost(
    tmp_path: Path, number: int, written: float, expected: type[LogError]
) -> None:
    failed = set()
    for fails in range(1, 1000):
        disk = FaultyDisk(fails, number, written)
        life = Life(Source(SEED, EVENTS), tmp_path / f"log{fails}", disk, Random(SEED))  # noqa: S311
        said = outcome(life, expected)
        if not said:
            break
        assert os.strerror(number) in said
        if life.writer is not None:
            require_refusing(life.writer, disk)
            life.writer.close()
        failed.add(disk.failed)
        require_recovered(life)
    assert failed == {"create", "open", "append", "rewrite", "sync", "sync_folder", "replace", "remove"}


def test_a_failed_sync_is_not_tried_again_also_when_the_log_is_left(tmp_path: Path) -> None:
    disk = FaultyDisk(fails=0, number=errno.EIO)
    with pytest.raises(LogDiskFailed, match="cannot sync"), open_log(tmp_path, START, disk) as writer:
        writer.append(frames(*plain(10, 100, 1, described=True)))
        disk._fails = len(disk.operations) + 1
        before = disk.operations.count("sync")
        writer.sync()
    assert disk.operations.count("sync") == before + 1


def test_what_the_writer_refuses_of_the_source_is_not_written(tmp_path: Path) -> None:
    disk = FaultyDisk(fails=0, number=0)
    writer = open_log(tmp_path, START, disk)
    writer.append(frames(*plain(10, 100, 1, described=True)), Lsn(200))
    before = list(disk.operations)
    with pytest.raises(Exception, match="0/B4 after it had reported 0/C8 as sent"):
        writer.append(frames(*plain(11, 180, 2)))
    assert disk.operations == before
    require_refusing(writer, disk)
    writer.close()
    with open_log(tmp_path, START) as again:
        assert again.received == Lsn(200)
        assert contents(LogReader(tmp_path)) == [(100, "t", 1)]


def test_files_are_let_go_of_whatever_failed(tmp_path: Path) -> None:
    def held() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = held()
    for fails in range(1, 60):
        disk = FaultyDisk(fails, errno.EIO)
        life = Life(Source(SEED, EVENTS), tmp_path / f"log{fails}", disk, Random(SEED))  # noqa: S311
        with pytest.raises(LogDiskFailed):
            life.lead()
        if life.writer is not None:
            life.writer.close()
        assert held() == before, disk.operations[-1]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogDiskFailed, match=r"cannot create .*file"):
        open_log(tmp_path / "file", START)
    (tmp_path / "log" / "lock").mkdir(parents=True)
    with pytest.raises(LogDiskFailed, match=r"cannot open .*lock: Is a directory"):
        open_log(tmp_path / "log", START, Disk())
