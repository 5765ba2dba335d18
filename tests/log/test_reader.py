"""Reading while another process writes, after trims, and from the middle of a long history."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.log import follow
from tests.log.history import SEGMENT_BYTES, START, XID, Life, Row, Source, append, contents
from tests.log.messages import (
    begin,
    block,
    change,
    commit,
    frames,
    insert,
    plain,
    relation,
    stream_abort,
    stream_commit,
    truncate,
)
from tests.log.worlds import Quick
from tidemark.clock import Lsn
from tidemark.errors import LogBehind, LogDiskFailed, LogInUse, LogTrimmed
from tidemark.log import index_rows
from tidemark.log.blocks import MAGIC
from tidemark.log.disk import Disk
from tidemark.log.mapped import decoded
from tidemark.log.reader import LogReader
from tidemark.log.recovery import last_position, open_log
from tidemark.log.segment import index_path
from tidemark.log.slices import plan
from tidemark.log.trimming import forget
from tidemark.log.writer import LogWriter
from tidemark.pgoutput.changes import ChangeBatch
from tidemark.storage.disk import File
from tidemark.values.kernels import Bytes
from tidemark.values.types import Types

pytestmark = pytest.mark.quick


class Untrimmed(Life):
    """A life in which nothing is removed: whoever reads must find everything."""

    def _trim(self, writer: LogWriter) -> None:
        pass


class Follower:
    """A process that follows the log up to there."""

    def __init__(self, folder: Path, upto: Lsn) -> None:
        command = [sys.executable, follow.__file__, str(folder), str(upto.value)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._seen = 0
        self.rows: list[Row] = []

    def catch_up(self, upto: Lsn) -> None:
        """Wait until it has seen so much."""
        assert self._process.stdout is not None
        while self._seen < upto.value:
            self._seen, rows = json.loads(self._process.stdout.readline())
            self.rows += [(lsn, name, value) for lsn, name, value in rows]

    def end(self) -> None:
        """It ends by itself."""
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0


def test_another_process_that_follows_sees_every_transaction_once_and_whole(tmp_path: Path) -> None:
    source, random = Source(3, 200), Random(3)  # noqa: S311
    writer = open_log(tmp_path, START, Quick(), SEGMENT_BYTES)
    follower = Follower(tmp_path, source.end)
    follower.catch_up(START)
    writer.begin_session(b"{}", XID)
    ahead = source.stream(writer.durable)
    while ahead:
        size, chance = random.choice([1, 3, 9]), random.random()
        append(writer, ahead[:size])
        ahead = ahead[size:]
        if chance < 0.1:
            writer.close()
            writer = open_log(tmp_path, START, Quick(), SEGMENT_BYTES)
        if chance < 0.15:
            writer.begin_session(b"{}", XID)
            ahead = source.stream(writer.durable)
        if chance > 0.9:
            follower.catch_up(writer.received)
    writer.close()
    follower.catch_up(source.end)
    follower.end()
    assert follower.rows == source.rows(START, source.end)


class Watching(Quick):
    """Reads the log at every operation, as another process could."""

    def __init__(self, folder: Path, source: Source) -> None:
        self._folder, self._source = folder, source
        self.reader: LogReader | None = None
        self.looks = 0

    def look(self) -> None:
        self.reader = self.reader or LogReader(self._folder)
        self.reader.refresh()
        self.looks += 1
        upto = self.reader.received
        assert self.reader.commits()["lsn"].tolist() == self._source.commits(upto)
        assert contents(self.reader, START) == self._source.rows(START, upto)
        looked = last_position(self._folder)
        assert looked is None or looked >= upto

    def create(self, path: Path) -> File:
        file = super().create(path)
        self.look()
        return file

    def append(self, file: File, *parts: bytes | memoryview) -> None:
        whole = b"".join(parts)
        super().append(file, whole[: len(whole) // 2])
        self.look()
        super().append(file, whole[len(whole) // 2 :])
        self.look()

    def replace(self, path: Path, target: Path) -> None:
        super().replace(path, target)
        self.look()


def test_a_reader_sees_whole_transactions_at_every_moment_of_writing(tmp_path: Path) -> None:
    source = Source(3, 30)
    disk = Watching(tmp_path, source)
    Untrimmed(source, tmp_path, disk, Random(3)).lead()  # noqa: S311
    assert disk.looks > 100


def test_a_reader_starts_anew_when_recovery_has_put_another_index_in_the_same_place(tmp_path: Path) -> None:
    """Twice between two looks: without care the third index has the first one's inode."""
    writer = open_log(tmp_path, START, Quick())
    writer.append(frames(*plain(10, 100, 1, described=True)))
    reader = LogReader(tmp_path)
    for lsn in range(110, 200, 10):
        for _ in range(2):
            writer.close()
            writer = open_log(tmp_path, START, Quick())
        writer.append(frames(*plain(lsn, lsn, lsn)))
        reader.refresh()
        assert reader.commits()["lsn"].tolist() == [100, *range(110, lsn + 1, 10)]
    writer.close()


def test_what_was_trimmed_says_so_and_its_commits_are_still_listed(tmp_path: Path) -> None:
    with open_log(tmp_path, START, Quick(), 400) as writer:
        for lsn in range(100, 200, 10):
            writer.append(frames(*plain(lsn, lsn, lsn, described=lsn == 100)))
        before = LogReader(tmp_path)
        mapped = before.buffers(next(iter(before.transactions(START, Lsn(120)))))
        writer.trim(Lsn(150))
        for reader in (before, LogReader(tmp_path)):
            reader.refresh()
            assert reader.commits()["lsn"].tolist() == list(range(100, 200, 10))
            assert [row[0] for row in contents(reader, Lsn(150))] == [160, 170, 180, 190]
            with pytest.raises(LogTrimmed, match=r"000000000001\.segment was removed"):
                contents(reader, Lsn(90))
        assert all(data[: len(MAGIC)].tobytes() == MAGIC for data in mapped.values())


def test_a_trim_keeps_what_open_streamed_transactions_and_those_not_applied_need(tmp_path: Path) -> None:
    with open_log(tmp_path, START, Quick(), 400) as writer:
        writer.append(frames(*plain(10, 100, 1, described=True)))
        writer.append(frames(*block(20, 5, first=True)))
        for lsn in range(110, 200, 10):
            writer.append(frames(*plain(lsn, lsn, lsn)))
        writer.trim(Lsn(190))
        writer.append(frames(stream_commit(20, 200), *plain(30, 210, 7)))
        writer.trim(Lsn(199))
        assert contents(LogReader(tmp_path), Lsn(199)) == [(200, "t", 5), (210, "t", 7)]
        kept = writer.size_bytes
        writer.trim(Lsn(210))
        assert writer.size_bytes < kept
        assert len(list(tmp_path.glob("*.segment"))) == 1


def test_an_aborted_streamed_transaction_keeps_nothing(tmp_path: Path) -> None:
    with open_log(tmp_path, START, Quick(), 400) as writer:
        writer.append(frames(*block(20, 5, first=True)))
        for lsn in range(110, 200, 10):
            writer.append(frames(*plain(lsn, lsn, lsn, described=True)))
        writer.trim(Lsn(190))
        assert len(list(tmp_path.glob("*.segment"))) > 5
        writer.append(frames(stream_abort(20)))
        writer.trim(Lsn(190))
        assert len(list(tmp_path.glob("*.segment"))) == 1
        assert writer.open_transactions == 0


def test_a_table_described_long_ago_inside_a_streamed_transaction_is_known_in_every_segment(tmp_path: Path) -> None:
    with open_log(tmp_path, START, Quick(), 400) as writer:
        writer.append(frames(*block(20, 5, first=True), stream_commit(20, 100)))
        for lsn in range(110, 300, 10):
            writer.append(frames(*plain(lsn, lsn, lsn)))
        writer.trim(Lsn(280))
    for _ in range(2):
        assert contents(LogReader(tmp_path), Lsn(280)) == [(290, "t", 290)]
        with open_log(tmp_path, START, Quick(), 400) as writer:
            writer.trim(Lsn(280))
    assert len(list(tmp_path.glob("*.segment"))) == 1


def test_a_description_that_came_later_stays_in_force_when_an_older_transaction_commits(tmp_path: Path) -> None:
    """Also when a segment was begun in between, which writes both descriptions down anew."""
    for segment_bytes in (1 << 20, 300):
        folder = tmp_path / str(segment_bytes)
        with open_log(folder, START, Quick(), segment_bytes) as writer:
            start, _, *rest = block(20, 5, first=True)
            writer.append(frames(start, relation(20, "old"), *rest))
            writer.append(frames(begin(10, 100), relation(name="new"), insert(1), commit(100)))
            writer.append(frames(*plain(11, 110, 2)))
            writer.append(frames(stream_commit(20, 120), *plain(12, 130, 3)))
            writer.append(frames(*plain(13, 140, 4)))
        expected = [(100, "new", 1), (110, "new", 2), (120, "old", 5), (130, "new", 3), (140, "new", 4)]
        assert contents(LogReader(folder)) == expected
        for at in range(len(expected)):
            assert contents(LogReader(folder), Lsn(expected[at][0] - 1)) == expected[at:]


def test_what_a_transaction_described_that_is_sent_again_counts_for_the_next_ones(tmp_path: Path) -> None:
    start, _, *rest = block(20, 5, first=True)
    streamed, altered = (
        [start, relation(20, "old"), *rest],
        [begin(10, 100), relation(name="new"), insert(1), commit(100)],
    )
    with open_log(tmp_path, START, Quick()) as writer:
        writer.append(frames(*streamed, *altered))
        writer.begin_session(b"{}", XID)
        writer.append(frames(*streamed, *altered, stream_commit(20, 110), *plain(12, 120, 2)))
    assert contents(LogReader(tmp_path)) == [(100, "new", 1), (110, "old", 5), (120, "new", 2)]
    assert contents(LogReader(tmp_path), Lsn(110)) == [(120, "new", 2)]


def test_a_transaction_cut_over_segments_is_read_as_one(tmp_path: Path) -> None:
    values = list(range(40))
    with open_log(tmp_path, START, Quick(), 300) as writer:
        for message in plain(10, 100, *values, described=True):
            writer.append(frames(message))
            reader = LogReader(tmp_path)
            assert len(reader.commits()) == (message[:1] == b"C")
    assert len(np.unique(next(iter(reader.transactions(START, Lsn(100)))).extents["place"])) > 3
    assert contents(reader) == [(100, "t", value) for value in values]


def test_a_streamed_transaction_that_did_nothing_is_a_commit_without_rows(tmp_path: Path) -> None:
    with open_log(tmp_path, START, Quick()) as writer:
        writer.append(frames(block(20, first=True)[0], b"E", stream_commit(20, 100)))
    assert LogReader(tmp_path).commits()["lsn"].tolist() == [100]
    assert contents(LogReader(tmp_path)) == []


def test_a_reader_holds_no_file_for_each_index(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    reader = LogReader(tmp_path)
    with open_log(tmp_path, START, Quick(), 300) as writer:
        for lsn in range(100, 300, 10):
            writer.append(frames(*plain(lsn, lsn, lsn, described=True)))
            reader.refresh()
    assert len(list(tmp_path.glob("*.index"))) > 10
    assert len(contents(reader)) == 20
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


def test_a_reader_refuses_what_was_not_received(tmp_path: Path) -> None:
    with open_log(tmp_path, START, Quick()) as writer:
        writer.append(frames(*plain(10, 100, 1, described=True)))
        reader = LogReader(tmp_path)
        with pytest.raises(LogBehind, match="0/78 has not been received: the received LSN is 0/64"):
            contents(reader, START, Lsn(120))
        writer.append(frames(), Lsn(120))
        reader.refresh()
        assert contents(reader, START, Lsn(120)) == [(100, "t", 1)]


def test_threads_share_a_reader(tmp_path: Path) -> None:
    interval, stop = sys.getswitchinterval(), threading.Event()
    sys.setswitchinterval(1e-6)
    try:
        with open_log(tmp_path, START, Quick()) as writer:
            reader = LogReader(tmp_path)

            def refresh() -> None:
                while not stop.is_set():
                    reader.refresh()
                    reader.commits()

            threads = [threading.Thread(target=refresh) for _ in range(6)]
            for thread in threads:
                thread.start()
            for n in range(300):
                writer.append(frames(*plain(n + 10, 100 + 20 * n, 1, described=True)))
            stop.set()
            for thread in threads:
                thread.join()
            reader.refresh()
            assert reader.commits()["xid"].tolist() == list(range(10, 310))
    finally:
        sys.setswitchinterval(interval)


def test_a_second_writer_is_told_who_the_first_is(tmp_path: Path) -> None:
    with open_log(tmp_path, START, Quick()) as writer:
        with pytest.raises(LogInUse, match=f"in use by process {os.getpid()}"):
            open_log(tmp_path, START)
        writer.append(frames(*plain(10, 100, 1, described=True)))
    open_log(tmp_path, START).close()


def test_a_description_older_than_the_head_that_its_transaction_commits_under_is_in_force_afterwards(
    tmp_path: Path,
) -> None:
    """pgoutput does not describe a table again that a streamed transaction described, once that is committed."""
    for size in (10, 300, 1 << 20):
        with open_log(tmp_path / str(size), START, Quick(), size) as writer:
            writer.begin_session(b"{}", XID)
            writer.append(frames(begin(10, 100), relation(name="old"), insert(1), commit(100)))
            streamed = block(12, 2, first=True)
            streamed[1] = relation(12, "new")
            writer.append(frames(*streamed))
            writer.append(frames(*plain(13, 150), stream_commit(12, 200), *plain(14, 300, 3)))
        expected = [(100, "old", 1), (200, "new", 2), (300, "new", 3)]
        assert contents(LogReader(tmp_path / str(size))) == expected


def test_a_plan_has_the_tables_that_are_changed_and_the_descriptions_of_no_others(tmp_path: Path) -> None:
    many = range(10, 1000)
    described = [relation(oid=oid) for oid in many]
    sent = [relation(20, oid=oid) for oid in (14, 15, 16)]
    streamed = [b"S" + bytes([0, 0, 0, 20, 1]), *sent, change("U", 14, 20), truncate(15, 16, xid=20), b"E"]
    for size in (200, 1 << 20):
        with open_log(tmp_path / str(size), START, Quick(), size) as writer:
            writer.append(frames(begin(9, 100), *described, *(change("I", oid) for oid in many), commit(100)))
            writer.append(frames(*streamed))
            writer.append(frames(begin(10, 110), change("I", 11), change("I", 1035), change("I", 11), commit(110)))
            writer.append(frames(begin(11, 120), change("D", 12), truncate(13, 999), commit(120)))
            writer.append(frames(stream_commit(20, 130)))
            writer.append(frames(begin(12, 140), truncate(*many), commit(140)))
        reader = LogReader(tmp_path / str(size))
        for after, upto, tables in (
            (0, 100, set(many)),
            (100, 110, {11, 1035}),
            (110, 120, {12, 13, 999}),
            (120, 130, {14, 15, 16}),
            (100, 130, {11, 1035, 12, 13, 999, 14, 15, 16}),
            (130, 140, set(many)),
        ):
            planned = plan(reader, Lsn(after), Lsn(upto), 1 << 30, 1 << 30)
            assert planned.tables == tables
            assert {*planned.relations["oid"].tolist()} == tables - {1035}  # which was never described
            standing = [oid for each in planned.slices for part in each.parts for oid in part.standing["oid"].tolist()]
            assert set(standing) <= tables


class Watched(Disk):
    """Records which files are mapped."""

    def __init__(self) -> None:
        super().__init__()
        self.mapped: list[str] = []

    def identify(self, path: Path) -> tuple[int, Bytes]:
        """As the disk does."""
        self.mapped.append(path.name)
        return super().identify(path)


def test_expiry_of_the_first_indexes_leaves_the_others_in_memory(tmp_path: Path) -> None:
    disk = Watched()
    with open_log(tmp_path, START, Quick(), 400) as writer:
        for lsn in range(110, 400, 10):
            writer.append(frames(*plain(lsn, lsn, lsn, described=True)))
        reader = LogReader(tmp_path, disk)
        commits = reader.commits()
        writer.trim(Lsn(300))
        assert len(forget(tmp_path, Lsn(300), dry_run=False)) > 3
        disk.mapped.clear()
        reader.refresh()
        left = reader.commits()
    assert left["lsn"].tolist() == LogReader(tmp_path).commits()["lsn"].tolist()
    assert 0 < len(left) < len(commits)
    assert set(disk.mapped) == {max(path.name for path in tmp_path.glob("*.index"))}


class Failing(Quick):
    """A disk that cannot open the second index, once."""

    def __init__(self) -> None:
        self.fails = True

    def identify(self, path: Path) -> tuple[int, Bytes]:
        """As the disk does."""
        if self.fails and path == index_path(path.parent, 2):
            self.fails = False
            raise LogDiskFailed(f"{path}: too many open files", "")
        return super().identify(path)


def test_after_a_refresh_that_failed_every_commit_is_listed_once(tmp_path: Path) -> None:
    with open_log(tmp_path, START, Quick(), 400) as writer:
        writer.append(frames(*plain(110, 110, 1, described=True)))
        disk = Failing()
        reader = LogReader(tmp_path, disk)
        for lsn in range(120, 200, 10):
            writer.append(frames(*plain(lsn, lsn, lsn, described=True)))
        with pytest.raises(LogDiskFailed):
            reader.refresh()
        assert not disk.fails
        assert reader.commits()["lsn"].tolist() == [*range(110, 200, 10)]
        assert reader.received == Lsn(190)
        assert reader.count(START, Lsn(190)) == 9


def test_after_a_refresh_that_was_interrupted_every_commit_is_listed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    with open_log(tmp_path, START, Quick()) as writer:
        writer.append(frames(*plain(10, 110, 1, described=True)))
        reader = LogReader(tmp_path)
        writer.append(frames(*plain(11, 120, 2)))
        monkeypatch.setattr(index_rows, "_ends", interrupted)
        with pytest.raises(KeyboardInterrupt):
            reader.refresh()
        assert contents(reader, START, Lsn(120)) == [(110, "t", 1), (120, "t", 2)]
        assert reader.count(START, Lsn(120)) == len(reader.commits()) == 2


@pytest.mark.parametrize("segment_bytes", [300, 1 << 20])
def test_pieces_of_a_transaction_are_read_with_the_descriptions_of_its_changes(
    tmp_path: Path, segment_bytes: int
) -> None:
    """A Relation message inside of a transaction is moved into the heads of the segments that the transaction spans."""
    first = [relation(), *map(insert, range(24))]
    again = [*map(insert, range(12)), relation(name="new"), *map(insert, range(12, 24))]
    twice = [*first, relation(name="new"), *map(insert, range(24, 36))]
    for number, messages in enumerate((first, again, twice)):
        folder = tmp_path / str(number)
        with open_log(folder, START, Quick(), segment_bytes) as writer:
            before = plain(9, 90, -1, described=True) if messages is again else []
            for message in (*before, begin(10, 100), *messages, commit(100)):
                writer.append(frames(message))
        reader = LogReader(folder)
        expected = contents(reader)
        assert len(expected) == len(before[1:-2]) + sum(message[:1] == b"I" for message in messages)
        for slice_bytes in (50, 300, 1 << 30):
            parts = [part for each in plan(reader, START, Lsn(100), 1 << 30, slice_bytes).slices for part in each.parts]
            batches = [batch for part in parts for batch in decoded(part, folder, Types())]
            assert all(isinstance(batch, ChangeBatch) for batch in batches)
            rows = [
                (lsn, batch.relation.name, value)
                for batch in batches
                if isinstance(batch, ChangeBatch)
                for lsn, value in zip(batch.commit_lsns.tolist(), batch.new[0].array.to_pylist(), strict=True)
            ]
            assert rows == expected
