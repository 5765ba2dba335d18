"""Searches in a commit index that is cut into files anywhere find what a search of all commits finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.log.cut import cut_into_indexes
from tests.log.messages import frames, plain
from tidemark.clock import Boundary, Lsn, Snapshot, Xid8
from tidemark.errors import LogDamaged
from tidemark.log.disk import Disk
from tidemark.log.index import shown_by_standby
from tidemark.log.reader import LogReader
from tidemark.log.recovery import open_log
from tidemark.log.segment import index_path, segment_path
from tidemark.log.summaries import NAME, packed_summaries, read_summaries, repair_summaries
from tidemark.pgoutput.rows import COMMITS, Rows

pytestmark = pytest.mark.quick

START = Lsn(50)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Rows, list[int]]:
    """Commits whose transaction IDs and times are in another order than their LSNs, and where they are cut."""
    count = draw(st.integers(0, 14))
    rows = np.zeros(count, COMMITS)
    rows["lsn"] = np.arange(1, count + 1) * 10
    rows["xid"] = 100 + np.array(draw(st.permutations(range(count))), np.uint64)
    rows["micros"] = draw(st.lists(st.integers(-3, 9), min_size=count, max_size=count))
    return rows, sorted(draw(st.lists(st.integers(0, count), max_size=6)))


@given(histories(), st.integers(0, 150), st.integers(0, 150), st.integers(-5, 12))
def test_commits_are_found_by_lsn_and_time(history: tuple[Rows, list[int]], a: int, b: int, micros: int) -> None:
    rows, cuts = history
    index, above = cut_into_indexes(rows, cuts), Lsn(min(a, b))
    upto = Lsn(max(a, b))
    after = rows[rows["lsn"] > above.value]
    assert index.count(above, upto) == np.count_nonzero(after["lsn"] <= upto.value)
    first = index.first(above)
    assert (first.lsn.value if first else None) == (int(after["lsn"][0]) if len(after) else None)
    below = after[after["lsn"] <= upto.value]
    found = index.at(upto, above)
    assert (found is None) == (not len(below))
    if found is not None:
        last = below[-1]
        expected = (int(last["lsn"]), int(last["xid"]), int(last["micros"]), int(below["micros"].max()))
        assert (found.lsn.value, found.xid, found.micros, found.latest) == expected
    times = np.maximum.accumulate(after["micros"])
    before = int(np.searchsorted(times, micros, side="right"))
    last_before = Lsn(int(after["lsn"][before - 1])) if before else None
    assert index.last_before(micros, above) == (last_before, before < len(after))


@given(histories(), st.integers(98, 116), st.sets(st.integers(98, 116), max_size=4), st.integers(0, 150))
def test_commits_are_found_by_snapshot(history: tuple[Rows, list[int]], xmax: int, running: set[int], lsn: int) -> None:
    rows, cuts = history
    index = cut_into_indexes(rows, cuts)
    xip = sorted(xid for xid in running if xid < xmax)
    snapshot = Snapshot.parse(f"{min([*xip, xmax])}:{xmax}:{','.join(map(str, xip))}")
    commits = [(Xid8(int(row["xid"])), Lsn(int(row["lsn"]))) for row in rows]
    assert Boundary(Lsn(lsn), index.hidden(snapshot, Lsn(lsn))) == Boundary.of_snapshot(snapshot, Lsn(lsn), commits)
    for xid in range(98, 116):
        assert index.has(Xid8(xid)) == (xid in rows["xid"].tolist())
    for before, after in ((lsn, lsn), (lsn, lsn + 15), (0, lsn)):
        expected = shown_by_standby(rows, snapshot, Lsn(before), Lsn(after))
        assert index.shown_by_standby(snapshot, Lsn(before), Lsn(after)) == expected


def log_of(folder: Path, first: int = 0, count: int = 40) -> None:
    """Append transactions to a log of small segments."""
    with open_log(folder, START, segment_bytes=400) as writer:
        writer.begin_session(b"{}", Xid8(10))
        for n in range(first, first + count):
            writer.append(frames(*plain(10 + n, 100 + 10 * n, n, described=n == first)), Lsn(101 + 10 * n))


def opened_indexes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The indexes that are opened from now on."""
    opened: list[str] = []
    identify = Disk.identify

    def identify_and_note(disk: Disk, path: Path) -> tuple[int, object]:
        opened.append(path.name)
        return identify(disk, path)

    monkeypatch.setattr(Disk, "identify", identify_and_note)
    return opened


def test_a_reader_opens_the_last_index_and_those_that_a_search_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_of(tmp_path)
    count = len(list(tmp_path.glob("*.index")))
    assert count > 10
    opened = opened_indexes(tmp_path, monkeypatch)
    reader = LogReader(tmp_path)
    assert reader.received == Lsn(101 + 10 * 39)
    assert len(opened) == 1
    assert reader.boundary(Snapshot.parse("49:50:"), reader.received) == Boundary(reader.received)
    assert reader.count(Lsn.ZERO, reader.received) == 40
    assert len(opened) == 1
    assert reader.index.at(Lsn(155), Lsn.ZERO) is not None
    assert len(opened) == 2
    assert [row["lsn"] for row in reader.commits()] == [100 + 10 * n for n in range(40)]
    assert len(opened) == count


def test_a_reader_follows_a_log_without_listing_its_directory_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_of(tmp_path)
    reader = LogReader(tmp_path)
    monkeypatch.setattr(Disk, "names", None)
    reader.refresh()
    monkeypatch.undo()
    with open_log(tmp_path, START, segment_bytes=400) as writer:
        reader.refresh()  # the last index was replaced
        writer.begin_session(b"{}", Xid8(10))
        for n in range(40, 70):
            writer.append(frames(*plain(10 + n, 100 + 10 * n, n, described=n == 40)), Lsn(101 + 10 * n))
    monkeypatch.setattr(Disk, "names", None)
    reader.refresh()
    assert reader.count(Lsn.ZERO, reader.received) == 70
    assert reader.commits()["lsn"].tolist() == [100 + 10 * n for n in range(70)]


@pytest.mark.parametrize("late", [False, True])
def test_an_index_whose_segment_was_never_started_is_not_the_end_of_the_one_before(tmp_path: Path, late: bool) -> None:
    log_of(tmp_path)
    last = len(list(tmp_path.glob("*.index")))
    with open_log(tmp_path, START, segment_bytes=400) as writer:
        writer._roll()
    reader = LogReader(tmp_path)
    assert index_path(tmp_path, last + 1).exists()
    segment_path(tmp_path, last + 1).unlink()  # its name was not synced when the power failed
    with open_log(tmp_path, START, segment_bytes=1 << 20) as writer:
        writer.begin_session(b"{}", Xid8(10))
        writer.append(frames(*plain(50, 500, 40, described=True)), Lsn(501))
        if not late:
            reader.refresh()
            assert reader.commits()["lsn"].tolist() == [100 + 10 * n for n in range(41)]
        writer._roll()
    reader.refresh()
    assert reader.commits()["lsn"].tolist() == [100 + 10 * n for n in range(41)]


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "of the last index"])
def test_summaries_that_are_damaged_are_ignored_and_written_again(tmp_path: Path, damage: str) -> None:
    log_of(tmp_path)
    path = tmp_path / NAME
    intact = path.read_bytes()
    known, valid = read_summaries(tmp_path, Disk())
    last = len(list(tmp_path.glob("*.index")))
    assert valid
    assert known["number"].tolist() == list(range(1, last))
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(intact[:-5])
    elif damage == "flipped":
        path.write_bytes(intact[:100] + bytes([intact[100] ^ 4]) + intact[101:])
    else:
        stale = known[-1:].copy()
        stale["number"], stale["commits"] = last, 7
        path.write_bytes(intact + packed_summaries(stale))
    assert LogReader(tmp_path).commits()["lsn"].tolist() == [100 + 10 * n for n in range(40)]
    repair_summaries(tmp_path, Disk(), last)
    assert path.read_bytes() == intact


def test_every_bit_of_a_summary_is_checked(tmp_path: Path) -> None:
    log_of(tmp_path)
    path = tmp_path / NAME
    intact = path.read_bytes()
    known, _ = read_summaries(tmp_path, Disk())
    for bit in range(8 * len(intact) // len(known)):
        data = bytearray(intact)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        found, valid = read_summaries(tmp_path, Disk())
        assert not valid
        assert found.tolist() == known.tolist()[1:]


def test_an_index_that_is_not_what_its_summary_states_is_damage(tmp_path: Path) -> None:
    log_of(tmp_path)
    known, _ = read_summaries(tmp_path, Disk())
    changed = known.copy()
    changed["commits"][3] += 1
    (tmp_path / NAME).write_bytes(packed_summaries(changed))
    reader = LogReader(tmp_path)
    with pytest.raises(LogDamaged, match=r"000000000004\.index differs from its summary"):
        reader.commits()
