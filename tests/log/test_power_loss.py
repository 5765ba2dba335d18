"""The power fails after every operation on the disk, and whatever it left there, nothing that was promised is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from random import Random

import pytest

from tests.conftest import quick_only
from tests.log.history import SEGMENT_BYTES, START, XID, Life, Source, append, contents
from tests.log.messages import frames, plain
from tests.log.worlds import Operation, Quick, RecordingDisk, World, made, platters
from tidemark.clock import Lsn
from tidemark.errors import LogDiskFailed
from tidemark.log.reader import LogReader
from tidemark.log.recovery import last_position, open_log
from tidemark.log.segment import SEGMENT, numbers
from tidemark.storage.disk import File

pytestmark = pytest.mark.quick

EVENTS = 32
SEEDS = [719, 1012]  # lives with trims of several segments, restarts in mid-air, aborts, positions, altered tables
Make = Callable[[World], Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes folders."""
    made_before = count()
    return lambda world: made(world, tmp_path / f"world{next(made_before)}")


def lived(folder: Path, seed: int, disk: RecordingDisk) -> Life:
    """A log's life on this disk, to its end or to the disk's."""
    life = Life(Source(seed, EVENTS), folder, disk, Random(seed), disk.operations)  # noqa: S311
    try:
        with suppress(LogDiskFailed):
            life.lead()
    finally:
        if life.writer:
            life.writer.close()
    return life


def require_whole(folder: Path, source: Source, promised: Lsn, after: Lsn) -> None:
    """It opens, holds what was promised and nothing but what was sent, goes on, and opens again the same."""
    looked = last_position(folder)
    with open_log(folder, START, Quick(), SEGMENT_BYTES) as writer:
        assert (looked or START) == writer.received
        assert writer.received == writer.durable >= promised
        reader = LogReader(folder)
        assert reader.received == writer.received
        assert reader.commits()["lsn"].tolist() == source.commits(writer.received)
        assert contents(reader, after) == source.rows(after, writer.received)
        writer.begin_session(b"{}", XID)
        rest = source.stream(writer.durable)
        for part in (rest[:3], rest[3:20], rest[20:]):
            append(writer, part)
    with open_log(folder, START, Quick(), SEGMENT_BYTES) as writer:
        assert writer.received >= source.end
        reader.refresh()
        assert reader.commits()["lsn"].tolist() == source.commits(source.end)
        assert contents(reader, after) == contents(LogReader(folder), after) == source.rows(after, source.end)


def worlds_of(
    folder: Path, operations: list[Operation], several: int, lasting: World | None = None
) -> Iterator[tuple[int, World]]:
    """Every world that may be left after so many of the operations; one that the next leaves too, with the last."""
    random, before = Random(len(operations)), dict[int, tuple[int, World]]()  # noqa: S311
    for done, platter in enumerate(platters(folder, operations, lasting)):
        now = {hash(frozenset(world.items())): (done, world) for world in platter.worlds(random, several)}
        yield from (found for known, found in before.items() if known not in now)
        before = now
    yield from before.values()


@pytest.mark.parametrize("seed", quick_only(SEEDS, SEEDS[0]))
def test_nothing_promised_is_lost_when_the_power_fails_after_any_operation(
    tmp_path: Path, make: Make, seed: int, short: bool
) -> None:
    """In the quick tier after every fourth operation."""
    disk = RecordingDisk()
    life = lived(tmp_path / "log", seed, disk)
    for done, world in islice(worlds_of(life.folder, disk.operations, several=1), 0, None, 4 if short else 1):
        require_whole(make(world), life.source, life.promised(done), life.trimmed(done))


@pytest.mark.full
def test_nothing_is_lost_when_the_power_fails_again_while_the_log_is_being_opened(tmp_path: Path, make: Make) -> None:
    disk = RecordingDisk()
    life = lived(tmp_path / "log", SEEDS[0], disk)
    for done, world in list(worlds_of(life.folder, disk.operations, several=1))[3::29]:
        again, folder, after = RecordingDisk(), make(world), life.trimmed(done)
        writer = open_log(folder, START, again, SEGMENT_BYTES)
        writer.close()
        for opened, left in worlds_of(folder, again.operations, 1, world):
            promised = writer.durable if opened == len(again.operations) else life.promised(done)
            require_whole(make(left), life.source, promised, after)


class Killed(Exception):
    """The process is no more."""


class Until(list[Operation]):
    """As many operations as a process does that is killed then."""

    def __init__(self, killed: int) -> None:
        super().__init__()
        self._killed = killed

    def append(self, operation: Operation) -> None:
        super().append(operation)
        if len(self) == self._killed:
            raise Killed


@pytest.mark.full
def test_nothing_is_lost_when_a_process_is_killed_and_the_power_fails_while_the_next_one_opens_the_log(
    tmp_path: Path, make: Make
) -> None:
    """What the first one did not sync can be read by the second, and is on no disk."""
    whole = RecordingDisk()
    life = lived(tmp_path / "log", SEEDS[0], whole)
    before = [at for at, done in enumerate(whole.operations) if done.kind in ("create", "sync_folder", "replace")]
    for killed in before[3:12]:
        disk = RecordingDisk()
        disk.operations = Until(killed)
        folder = tmp_path / f"log{killed}"
        with pytest.raises(Killed):
            lived(folder, SEEDS[0], disk)
        writer = open_log(folder, START, disk, SEGMENT_BYTES)
        writer.close()
        for done, world in worlds_of(folder, disk.operations, several=1):
            promised = writer.durable if done == len(disk.operations) else life.promised(killed)
            if done > killed:
                require_whole(make(world), life.source, promised, life.trimmed(killed))


class FailingSync(RecordingDisk):
    """One of its syncs fails. What was to be synced can be read, and is not on the disk, and never will be."""

    def __init__(self, fails: int) -> None:
        super().__init__()
        self._left = fails

    def sync(self, file: File) -> None:
        self._left -= 1
        if self._left == 0:
            self.operations.append(Operation("failed_sync", file.path.name))
            raise LogDiskFailed(f"cannot sync {file.path}", "nothing")
        super().sync(file)


def test_what_a_failed_sync_left_in_memory_is_written_again_before_it_is_promised(tmp_path: Path, make: Make) -> None:
    for fails in range(1, 100):
        disk = FailingSync(fails)
        life = lived(tmp_path / f"log{fails}", SEEDS[0], disk)
        failed = [operation.kind for operation in disk.operations].count("failed_sync")
        if not failed:
            break
        writer = open_log(life.folder, START, disk, SEGMENT_BYTES)
        writer.close()
        after = life.trimmed(len(disk.operations))
        *_, platter = platters(life.folder, disk.operations)
        require_whole(make(next(platter.worlds(Random(0), 0))), life.source, writer.durable, after)  # noqa: S311
    assert fails > 20


def test_segments_that_a_trim_removed_come_back_without_a_gap(tmp_path: Path, make: Make) -> None:
    disk = RecordingDisk()
    with open_log(tmp_path / "log", START, disk, 300) as writer:
        for lsn in range(100, 200, 10):
            writer.append(frames(*plain(lsn, lsn, lsn, described=True)))
        begun = len(disk.operations)
        writer.trim(Lsn(190))
    assert [operation.kind for operation in disk.operations[begun:]].count("remove") > 3
    for done, world in worlds_of(tmp_path / "log", disk.operations, several=4):
        if done < begun:
            continue
        folder = make(world)
        open_log(folder, START, Quick()).close()
        found = numbers([path.name for path in folder.iterdir()], SEGMENT)
        assert found == list(range(found[0], found[-1] + 1))


def test_the_names_of_new_folders_are_durable_before_anything_is_promised(tmp_path: Path) -> None:
    disk = RecordingDisk()
    open_log(tmp_path / "a" / "b", START, disk).close()
    synced = [operation.target for operation in disk.operations if operation.kind == "sync_folder"]
    assert synced[:2] == [str(tmp_path), str(tmp_path / "a")]
    assert str(tmp_path / "a" / "b") in synced[2:]
