"""The commit index: what a snapshot does not see, found at once in arrays, against the same said for each commit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.log.history import START
from tests.log.messages import block, frames, plain, stream_commit
from tidemark.clock import Boundary, Lsn, Snapshot, Xid8
from tidemark.errors import LogBehind, LogDamaged, LogDiskFailed, NotAnswerable
from tidemark.log.disk import Disk
from tidemark.log.forgotten import read_forgotten, read_forgotten_lsn
from tidemark.log.index import IndexPart, hidden, unpacked, unpacked_rows, widened
from tidemark.log.index_rows import GrowingIndex, IndexRows
from tidemark.log.reader import LogReader
from tidemark.log.recovery import open_log
from tidemark.log.summaries import summary_of
from tidemark.log.trimming import forget
from tidemark.pgoutput.rows import ABORTED, COMMITS, EXTENTS, RELATIONS, Assembled, Rows

pytestmark = pytest.mark.quick

WRAP = 2**32


def commits_of(xids: list[int], first: int = 100, step: int = 7) -> Rows:
    """Commits by these transactions, in this order."""
    rows = np.zeros(len(xids), COMMITS)
    rows["xid"] = np.array(xids, np.uint64)
    rows["lsn"] = first + step * np.arange(len(xids))
    return rows


@st.composite
def snapshots(draw: st.DrawFn, low: int, high: int) -> Snapshot:
    """Snapshots of ids around these."""
    xmin = draw(st.integers(low, high))
    xmax = draw(st.integers(xmin, high + 1))
    running = draw(st.sets(st.integers(xmin, xmax - 1), max_size=8)) if xmax > xmin else set()
    return Snapshot(Xid8(xmin), Xid8(xmax), tuple(Xid8(xid) for xid in sorted(running)))


@given(st.data(), st.sampled_from([10, WRAP - 20, 5 * WRAP - 20, 2**63 - 20, 2**64 - 60]))
def test_hidden_commits_are_those_that_the_snapshot_does_not_see(data: st.DataObject, low: int) -> None:
    xids = data.draw(st.lists(st.integers(low, low + 40), unique=True, max_size=40))
    snapshot = data.draw(snapshots(low, low + 40))
    commits, lsn = commits_of(xids), Lsn(data.draw(st.integers(90, 400)))
    each = zip(xids, commits["lsn"].tolist(), strict=True)
    expected = tuple(Lsn(at) for xid, at in each if at <= lsn.value and not snapshot.sees(Xid8(xid)))
    assert hidden(commits, snapshot, lsn) == expected


def test_the_commit_at_the_very_position_counts_and_the_next_does_not() -> None:
    commits, snapshot = commits_of([20, 21, 22]), Snapshot(Xid8(20), Xid8(20))
    assert hidden(commits, snapshot, Lsn(99)) == ()
    assert hidden(commits, snapshot, Lsn(107)) == (Lsn(100), Lsn(107))
    assert hidden(commits[:0], snapshot, Lsn(107)) == ()


@given(
    st.one_of(
        st.integers(2**31 + 3, 2**64 - 2**31 - 1),
        st.integers(1, 9).map(lambda epoch: epoch * WRAP),
        st.just(3 * WRAP - 1),
    ),
    st.lists(st.integers(-(2**31) + 1, 2**31 - 1), max_size=20),
)
def test_widened_ids_are_those_that_xid8_widens_to(reference: int, ahead: list[int]) -> None:
    xids = [(reference + each) % WRAP for each in ahead if (reference + each) % WRAP >= Xid8.FIRST_NORMAL]
    expected = [Xid8(reference).widen(xid).value for xid in xids]
    found = widened(commits_of(xids), reference)
    assert found["xid"].tolist() == expected
    assert found["lsn"].tolist() == commits_of(xids)["lsn"].tolist()


def test_ids_on_both_sides_of_the_wrap_are_told_apart() -> None:
    assert widened(commits_of([WRAP - 1, 3]), 7 * WRAP + 5)["xid"].tolist() == [7 * WRAP - 1, 7 * WRAP + 3]
    assert widened(commits_of([WRAP - 1, 3]), 7 * WRAP - 5)["xid"].tolist() == [7 * WRAP - 1, 7 * WRAP + 3]


def test_a_boundary_excludes_what_the_session_did_not_see(tmp_path: Path) -> None:
    near = WRAP - 1
    with open_log(tmp_path, START, segment_bytes=400) as writer:
        writer.begin_session(b"{}", Xid8(near))
        writer.append(frames(*plain(WRAP - 2, 100, 1, described=True), *block(WRAP - 1, 2, first=True)))
        writer.append(frames(*plain(3, 120, 3), *plain(4, 130, 4)))
        writer.append(frames(stream_commit(WRAP - 1, 140), *plain(5, 150, 5)), Lsn(160))
    with open_log(tmp_path, START, segment_bytes=400) as writer:
        writer.set_xid(Xid8(WRAP + 5))
        writer.append(frames(*plain(6, 170, 6)))
    reader = LogReader(tmp_path)
    commits = [(Xid8(int(row["xid"])), Lsn(int(row["lsn"]))) for row in reader.commits()]
    assert [xid.value for xid, _ in commits] == [WRAP - 2, WRAP + 3, WRAP + 4, WRAP - 1, WRAP + 5, WRAP + 6]
    snapshot = Snapshot.parse(f"{WRAP - 1}:{WRAP + 5}:{WRAP - 1},{WRAP + 4}")
    for at in (90, 100, 135, 140, 150, 165, 170):
        assert reader.boundary(snapshot, Lsn(at)) == Boundary.of_snapshot(snapshot, Lsn(at), commits)
    assert reader.boundary(snapshot, Lsn(150)) == Boundary(Lsn(150), frozenset([Lsn(130), Lsn(140), Lsn(150)]))
    with pytest.raises(LogBehind, match="0/AB has not been received: the received LSN is 0/AA"):
        reader.boundary(snapshot, Lsn(171))


def test_a_snapshot_that_may_not_see_a_commit_that_is_not_listed_any_more_is_refused(tmp_path: Path) -> None:
    with open_log(tmp_path, START, segment_bytes=400) as writer:
        writer.begin_session(b"{}", Xid8(WRAP + 10))
        for n in range(12):
            writer.append(frames(*plain(10 + n, 100 + 10 * n, n, described=n == 0)), Lsn(101 + 10 * n))
        writer.trim(Lsn(210))
    before, gone = LogReader(tmp_path).commits(), forget(tmp_path, Lsn(150), dry_run=True)
    assert gone
    assert read_forgotten(tmp_path, Disk()) == Xid8(0)
    assert forget(tmp_path, Lsn(150), dry_run=False) == gone
    reader = LogReader(tmp_path)
    listed, highest = set(reader.commits()["xid"].tolist()), read_forgotten(tmp_path, Disk())
    assert highest.value == max(set(before["xid"].tolist()) - listed) == min(listed) - 1
    removed = before["lsn"][before["xid"] <= highest.value]
    assert read_forgotten_lsn(tmp_path, Disk()) == Lsn(int(removed.max())) < Lsn(int(reader.commits()["lsn"].min()))
    low, high = highest.value, highest.value + 1
    for answered in (f"{high}:{high}:", f"{high}:{high + 2}:{high},{high + 1}"):
        assert reader.given(Snapshot.parse(answered), Lsn(210)) == reader.boundary(Snapshot.parse(answered), Lsn(210))
    for refused in (f"{low}:{low}:", f"{low - 1}:{low}:", f"{low - 1}:{high + 2}:{low - 1}"):
        with pytest.raises(NotAnswerable, match=f"commits up to transaction {highest} are no longer listed"):
            reader.given(Snapshot.parse(refused), Lsn(210))
    assert not forget(tmp_path, Lsn(150), dry_run=False)
    assert read_forgotten(tmp_path, Disk()) == highest


def test_what_goes_is_told_before_it_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_log(tmp_path, START, segment_bytes=400) as writer:
        writer.begin_session(b"{}", Xid8(10))
        for n in range(12):
            writer.append(frames(*plain(10 + n, 100 + 10 * n, n, described=n == 0)), Lsn(101 + 10 * n))
        writer.trim(Lsn(210))

    def crash(disk: Disk, path: Path) -> None:
        raise LogDiskFailed(f"cannot remove {path}", "the disk")

    with monkeypatch.context() as patched, pytest.raises(LogDiskFailed):
        patched.setattr(Disk, "remove", crash)
        forget(tmp_path, Lsn(150), dry_run=False)
    reader = LogReader(tmp_path)
    assert len(reader.commits()) == 12
    highest = read_forgotten(tmp_path, Disk())
    assert highest.value >= 10
    still_listed = Snapshot.parse(f"10:{highest.value + 1}:10")
    assert reader.given(still_listed, Lsn(210)) == reader.boundary(still_listed, Lsn(210))


@given(st.tuples(*[st.integers(0, 3)] * 5), st.integers(0, 2**63))
def test_a_payload_is_read_as_it_was_packed_and_no_other_length_is(sizes: tuple[int, ...], described: int) -> None:
    kinds = (COMMITS, EXTENTS, ABORTED, RELATIONS, RELATIONS)
    rows = [
        np.frombuffer(np.random.default_rng(1).bytes(n * kind.itemsize), kind)
        for n, kind in zip(sizes, kinds, strict=True)
    ]
    payload = IndexPart(Assembled(*rows), described).packed()
    part = unpacked(payload, "it")
    assert part.described == described
    for name, row in zip(("commits", "extents", "aborted", "relations", "standing"), rows, strict=True):
        assert getattr(part.rows, name).tobytes() == row.tobytes()
    for other in (payload[:-1], payload + b"\0", payload[:7], b""):
        with pytest.raises(LogDamaged, match="it: index block"):
            unpacked(other, "it")


@st.composite
def index_parts(draw: st.DrawFn) -> Assembled:
    """The rows of some transactions."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.integers(0, 5))
    commits = np.zeros(count, COMMITS)
    for name in ("lsn", "xid", "micros"):
        commits[name] = rng.integers(0, 1000, count)
    for name in ("extents", "aborted", "relations", "streamed"):
        commits[name] = rng.integers(0, 2 if name == "streamed" else 3, count)
    extents, relations = np.zeros(commits["extents"].sum(), EXTENTS), np.zeros(commits["relations"].sum(), RELATIONS)
    aborted, standing = np.zeros(commits["aborted"].sum(), ABORTED), np.zeros(draw(st.integers(0, 2)), RELATIONS)
    extents["end"] = rng.integers(0, 100, len(extents))
    aborted[:] = rng.integers(0, 100, len(aborted))
    for rows in (relations, standing):
        rows["start"], rows["oid"] = rng.integers(0, 100, len(rows)), rng.integers(1, 9, len(rows))
    return Assembled(commits, extents, aborted, relations, standing)


def require_rows(found: IndexRows, rows: Assembled) -> None:
    """Require these rows, by what a search of all of them finds."""
    same(found.rows, rows)
    ends: list[int] = []
    at = 0
    for commit in rows.commits:
        at += int(commit["extents"])
        plain = not commit["streamed"] and commit["extents"]
        ends.append(max([*ends[-1:], int(rows.extents["end"][at - 1]) if plain else 0]))
    assert found.count_from().tolist() == [sum(end <= each["start"] for end in ends) for each in rows.standing]
    for first in range(len(rows) + 1):
        same(found.some(first, len(rows)), rows.some(first, len(rows)))
        same(found.some(0, first), rows.some(0, first))
        assert found.relations_before(first).tobytes() == rows.some(0, first).relations.tobytes()


def same(one: Assembled, other: Assembled) -> None:
    for name in ("commits", "extents", "aborted", "relations", "standing"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes()


@given(st.lists(index_parts(), min_size=1, max_size=8))
def test_rows_that_are_appended_are_found_as_if_all_were_read_again(parts: list[Assembled]) -> None:
    growing, views = GrowingIndex(), []
    for number, part in enumerate(parts, 1):
        growing.add(unpacked_rows([memoryview(IndexPart(part, 0).packed())], "it"))
        views.append(growing.view())
        commits = [each.commits for each in parts[:number]]
        assert growing.summary(7, 8, 9).tobytes() == summary_of(7, 8, 9, commits).tobytes()
    for number, view in enumerate(views, 1):
        require_rows(view, Assembled.joined(parts[:number]))
    require_rows(growing.closed(), Assembled.joined(parts))
