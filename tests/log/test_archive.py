"""An archive has every closed segment of a log, whole and in order, and no segment leaves the log before."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path

import pytest

from tests.log.messages import frames, plain
from tidemark.clock import Lsn, Xid8
from tidemark.errors import InvalidValue, LogDamaged, LogDiskFailed, LogError
from tidemark.log.archive import (
    CommandArchive,
    DirectoryArchive,
    parse_archive,
    read_archived,
    store_segment,
    unarchived,
)
from tidemark.log.disk import Disk
from tidemark.log.inspection import inspect
from tidemark.log.recovery import open_log
from tidemark.log.segment import SEGMENT, index_path, numbers, segment_path
from tidemark.log.writer import LogWriter
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.receive import archiving
from tidemark.receive.archiving import Archiving
from tidemark.receive.options import ReceiveOptions

pytestmark = pytest.mark.quick

START = Lsn(50)
LATER = Lsn(10_000)


def never() -> bool:
    return False


def opened(folder: Path) -> LogWriter:
    writer = open_log(folder, START, segment_bytes=400)
    writer.begin_session(b"{}", Xid8(10))
    return writer


def fill(writer: LogWriter, first: int = 0, count: int = 30) -> None:
    """Append transactions; a segment holds a few."""
    for n in range(first, first + count):
        writer.append(frames(*plain(10 + n, 100 + 10 * n, n, described=n == first)), Lsn(101 + 10 * n))
    writer.sync()


def segments(folder: Path) -> list[int]:
    return numbers([path.name for path in folder.iterdir()], SEGMENT)


def archived(folder: Path, archive: DirectoryArchive | CommandArchive) -> None:
    for number in unarchived(folder, Disk())[:-1]:
        store_segment(folder, Disk(), number, archive, never)


def test_a_directory_has_every_closed_segment_and_the_log_goes_on_without_them(tmp_path: Path) -> None:
    log, archive = tmp_path / "log", DirectoryArchive(tmp_path / "some" / "archive")
    log.mkdir()
    with opened(log) as writer:
        fill(writer)
        before = list(inspect(log))
        writer.keep_above(0)
        writer.trim(LATER)
        assert segments(log) == [each.number for each in before], "nothing is archived yet"
        archived(log, archive)
        writer.keep_above(read_archived(log, Disk()))
        writer.trim(LATER)
        assert segments(log) == [before[-1].number]
    assert list(inspect(archive.folder)) == before[:-1]
    assert not list(archive.folder.glob("*.new"))


def test_a_file_that_is_archived_again_stays_and_another_is_never_replaced(tmp_path: Path) -> None:
    path, archive = tmp_path / "000000000001.segment", DirectoryArchive(tmp_path / "archive")
    path.write_bytes(b"one")
    archive.store(path, never)
    archive.store(path, never)
    (tmp_path / "archive" / path.name).unlink()
    (tmp_path / "archive" / path.name).write_bytes(b"one")
    archive.store(path, never)
    (tmp_path / "archive" / path.name).write_bytes(b"two")
    with pytest.raises(LogError, match="exists and has other contents") as refused:
        archive.store(path, never)
    assert "separate archive directory" in (refused.value.hint or "")
    assert [each.name for each in (tmp_path / "archive").iterdir()] == [path.name]


def test_on_another_file_system_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, archive = tmp_path / "000000000001.segment", DirectoryArchive(tmp_path / "archive")
    path.write_bytes(b"x" * 100_000)
    link = Path.hardlink_to

    def across(target: Path, source: Path) -> None:
        if source.parent == tmp_path:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        link(target, source)

    monkeypatch.setattr(Path, "hardlink_to", across)
    archive.store(path, never)
    (stored,) = (tmp_path / "archive").iterdir()
    assert stored.name == path.name
    assert stored.read_bytes() == path.read_bytes()
    assert stored.stat().st_ino != path.stat().st_ino


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "segment").write_text("")
    with pytest.raises(LogDiskFailed, match=str(tmp_path / "file")):
        DirectoryArchive(tmp_path / "file" / "archive").store(tmp_path / "segment", never)


def test_a_command_is_executed_for_the_index_and_the_segment(tmp_path: Path) -> None:
    log, away = tmp_path / "log of", tmp_path / "away"
    log.mkdir()
    away.mkdir()
    command = parse_archive(f'test ! -f {away}/%f && cp "%p" {away}/%f && echo 100%% >> {tmp_path}/done')
    assert isinstance(command, CommandArchive)
    with opened(log) as writer:
        fill(writer)
        archived(log, command)
        closed = list(inspect(log))[:-1]
    assert list(inspect(away)) == closed
    assert (tmp_path / "done").read_text() == "100%\n" * (2 * len(closed))
    assert read_archived(log, Disk()) == closed[-1].number


def test_a_command_that_fails_is_reported_with_its_output_and_nothing_is_recorded(tmp_path: Path) -> None:
    with opened(tmp_path) as writer:
        fill(writer)
        with pytest.raises(LogError, match=r"ended with status 3: no room for 000000000001\.index\n"):
            archived(tmp_path, CommandArchive("echo no room for %f; exit 3; # %p"))
    assert read_archived(tmp_path, Disk()) == 0


def test_a_command_that_does_not_end_is_killed_with_its_children_when_the_receiver_stops(tmp_path: Path) -> None:
    stopping = threading.Event()
    path = tmp_path / "segment"
    path.write_text("")
    threading.Timer(0.3, stopping.set).start()
    with pytest.raises(LogError, match="ended with status -9"):
        CommandArchive(f"(sleep 1; touch {tmp_path}/late); sleep 60 # %p").store(path, stopping.is_set)
    time.sleep(1.2)  # longer than the child sleeps
    assert not (tmp_path / "late").exists()


def test_the_thread_archives_what_is_closed_and_retries_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("INTERVAL_S", "RETRY_S"):
        monkeypatch.setattr(archiving, name, 0.01)
    log, away = tmp_path / "log", tmp_path / "away"
    log.mkdir()
    with opened(log) as writer:
        fill(writer, 0, 15)
        thread = Archiving(writer, CommandArchive(f"cp %p {away}/%f"))
        try:
            deadline = time.monotonic() + 60
            while not caplog.records and time.monotonic() < deadline:
                time.sleep(0.01)
            assert "cannot archive" in caplog.text
            assert "; retry in " in caplog.text
            writer.trim(LATER)
            assert segments(log)[0] == 1, "it is not archived"
            away.mkdir()
            fill(writer, 20, 15)
            while writer.kept_above < writer.last_closed and time.monotonic() < deadline:
                time.sleep(0.01)
            writer.trim(LATER)
        finally:
            thread.close()
        assert segments(log) == [writer.last_closed + 1]
        assert [each.number for each in inspect(away)] == [*range(1, writer.last_closed + 1)]


def test_segments_that_were_removed_without_an_archive_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, archive = tmp_path / "log", DirectoryArchive(tmp_path / "archive")
    log.mkdir()
    with opened(log) as writer:
        fill(writer, 0, 10)
        archived(log, archive)
        last = read_archived(log, Disk())
        fill(writer, 20, 20)
        writer.trim(LATER)
        Archiving(writer, archive).close()
    missing = segments(log)[0] - last - 1
    assert f"the archive lacks {missing} segments from number {last + 1} on" in caplog.text


@pytest.mark.parametrize("path", [index_path, segment_path])
def test_an_archive_without_a_segment_in_the_middle_is_damaged(tmp_path: Path, path: object) -> None:
    log, archive = tmp_path / "log", DirectoryArchive(tmp_path / "archive")
    log.mkdir()
    with opened(log) as writer:
        fill(writer)
        archived(log, archive)
    index_path(archive.folder, 2).unlink()
    if path is segment_path:
        segment_path(archive.folder, 2).unlink()
    with pytest.raises(LogDamaged, match=r"000000000002\.index"):
        list(inspect(archive.folder))


def test_a_damaged_record_is_reported(tmp_path: Path) -> None:
    (tmp_path / "archived.json").write_text("{")
    with pytest.raises(LogDamaged, match=r"archived\.json is damaged"):
        read_archived(tmp_path, Disk())


@pytest.mark.parametrize("archive", ["", "relative", "s3/100%"])
def test_an_archive_that_is_neither_a_path_nor_a_command_is_refused(tmp_path: Path, archive: str) -> None:
    with pytest.raises(InvalidValue, match="invalid archive"):
        ReceiveOptions(Dsn("host=x"), tmp_path, MirrorNames("m"), archive=archive)
