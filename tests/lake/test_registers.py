"""What a register keeps when its files become one: every cycle that a read or the expire job needs."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.clock import Lsn
from tidemark.errors import NotAnswerable
from tidemark.lake import registers
from tidemark.lake.columns import StoredColumn
from tidemark.lake.commits import ChangeTable
from tidemark.lake.paths import CHANGES
from tidemark.lake.polls import Polls
from tidemark.lake.registers import (
    _CYCLES_SCHEMA,
    Cycle,
    Cycles,
    ExpiryRegister,
    Tables,
    kept_cycles,
    read_cycle,
    read_retained,
    read_tables,
    read_times,
)
from tidemark.mirror.times import lsn_of_poll
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.history import TableEvent, TableEventKind, table_path
from tidemark.schema.table import Persistence

pytestmark = pytest.mark.quick

NOW = datetime(2024, 2, 29, 12, 0, tzinfo=UTC)
STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4000), st.integers(-40, 600)), max_size=60)


def cycles_of(steps: list[tuple[int, int, int]], polls: int) -> pa.Table:
    """Cycles up to `NOW`, of which the first are polls: by how much LSN, time and the source's clock advance."""
    rows, lsn, written = [], 100, NOW - timedelta(seconds=sum(step[1] for step in steps))
    source = written
    for number, (ahead, seconds, clock) in enumerate(steps):
        lsn, written, source = lsn + ahead, written + timedelta(seconds=seconds), source + timedelta(seconds=clock)
        row = {"written_at": written, "applied_lsn": lsn, "schema_lsn": lsn, "behind": [], "source_time": source}
        seen = {"snapshot": "7:7:", "source_lsn": lsn, "timeline": 1, "reconciled_lsn": lsn}
        rows.append({**row, "changes": ahead, "tables": 1, **(seen if number < polls else {})})
    return pa.Table.from_pylist(rows, _CYCLES_SCHEMA)


@given(STEPS.filter(bool), st.integers(0, 60), st.integers(90, 110))
def test_polls_read_the_same_above_the_retained_lsn(
    steps: list[tuple[int, int, int]], polls: int, retained: int
) -> None:
    cycles = cycles_of(steps, polls)
    before, after = Polls(cycles), Polls(kept_cycles(cycles, Lsn(retained), NOW))
    last = cycles["schema_lsn"][-1].as_py()
    assert (after.last, after.seen_at, after.handed_over) == (before.last, before.seen_at, before.handed_over)
    end = before.handed_over[0].value if before.handed_over is not None else last + 1
    for lsn in range(retained, end):
        assert after.at(Lsn(lsn)) == before.at(Lsn(lsn))
    if after.latest[0] < before.latest[len(cycles) - len(after)]:
        return  # the source's clock was set back, and a poll that has expired was later by it
    for row in cycles.to_pylist()[:polls]:
        position = position_at(row["source_time"], before)
        assert position < Lsn(retained) or position_at(row["source_time"], after) == position


def position_at(time: datetime, polls: Polls) -> Lsn:
    try:
        return lsn_of_poll(time, polls)
    except NotAnswerable:
        return Lsn.ZERO


@given(STEPS.filter(bool), st.integers(90, 300), st.integers(0, 90_000))
def test_the_expire_job_finds_the_same_lsn_or_that_of_a_minute_or_an_hour_before(
    steps: list[tuple[int, int, int]], retained: int, keep: int
) -> None:
    cycles = cycles_of(steps, 0)
    kept, past = kept_cycles(cycles, Lsn(retained), NOW), NOW - timedelta(seconds=keep)

    def wanted(rows: pa.Table, past: datetime) -> int:
        found = pc.max(rows.filter(pc.field("written_at") <= past)["applied_lsn"]).as_py()
        return max(found or 0, retained)

    earlier = timedelta(minutes=1) if keep < 86_400 - 60 else timedelta(hours=1)
    assert wanted(cycles, past - earlier) <= wanted(kept, past) <= wanted(cycles, past)


def test_a_week_of_cycles_is_thinned_and_what_expired_is_dropped() -> None:
    count = 7 * 86_400 // 12
    kept = kept_cycles(cycles_of([(1, 12, 12)] * count, 0), Lsn(0), NOW)
    assert len(kept) <= 6 * 24 + 23 * 60 + 300 + 3
    assert len(kept_cycles(kept, Lsn(100 + count), NOW)) == 1
    assert len(kept_cycles(kept, Lsn(100 + count - 60), NOW)) == 61
    assert kept_cycles(kept, Lsn(0), NOW).equals(kept)


def test_the_writer_drops_what_expired_and_deletes_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registers, "_COMPACT_EVERY", 10)
    monkeypatch.setattr(registers, "REPLACED_S", 0.0)
    cycles = Cycles(tmp_path)
    ExpiryRegister(tmp_path).record(Lsn(150))
    for lsn in range(1, 25):
        cycles.record(Cycle(Lsn(lsn * 10), Lsn(lsn * 10), NOW, 1, 1, behind={7: Lsn(lsn)}))
    assert read_cycle(tmp_path) == Cycle(Lsn(240), Lsn(240), behind={7: Lsn(24)})
    assert read_times(tmp_path)["applied_lsn"].to_pylist() == [*range(150, 250, 10)]
    files = list(cycles.folder.glob("*.parquet"))
    assert len(files) < 10
    assert {path.name for path in files} == {Path(uri).name for uri in cycles.table.file_uris()}


def test_files_replaced_a_moment_ago_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registers, "_COMPACT_EVERY", 10)
    cycles = Cycles(tmp_path)
    for lsn in range(1, 25):
        cycles.record(Cycle(Lsn(lsn), Lsn(lsn), NOW, 1, 1))
    assert len(cycles.table.file_uris()) < 10
    assert len(list(cycles.folder.glob("*.parquet"))) >= 24
    long_ago = time.time() - registers.REPLACED_S - 1
    for commit in (cycles.folder / "_delta_log").glob("*.json"):
        os.utime(commit, (long_ago, long_ago))
    for lsn in range(25, 31):
        cycles.record(Cycle(Lsn(lsn), Lsn(lsn), NOW, 1, 1))
    assert len(list(cycles.folder.glob("*.parquet"))) < 20, (
        "the current file, and those that the last compaction has just replaced"
    )


def test_files_that_were_never_used_or_removed_long_ago_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registers, "_COMPACT_EVERY", 10)
    cycles = Cycles(tmp_path)
    old, new = cycles.folder / "part-0.parquet", cycles.folder / "part-1.parquet"
    for path in (old, new):
        path.write_bytes(b"left by a process that was killed")
    os.utime(old, (0, 0))
    for lsn in range(1, 12):
        cycles.record(Cycle(Lsn(lsn), Lsn(lsn), NOW, 1, 1))
    assert (old.exists(), new.exists()) == (False, True)


def events_of(oid: int, *events: tuple[TableEventKind, int]) -> list[TableEvent]:
    table = Fingerprint(oid, "public", f"t{oid}", oid, Persistence.PERMANENT, (1,), (), None, None, (), ())
    return [TableEvent(kind, table, table_path(oid), Lsn(lsn), Lsn(lsn)) for kind, lsn in events]


def test_tables_that_were_dropped_long_ago_leave_nothing(tmp_path: Path) -> None:
    tables, begun, dropped = Tables(tmp_path), TableEventKind.BEGUN, TableEventKind.DROPPED
    for oid in range(1, 6):
        ChangeTable.create(tmp_path / table_path(oid) / CHANGES, [StoredColumn("id", 1, pa.int32())])
    left = tmp_path / table_path(4) / CHANGES / "part-0.parquet"
    left.write_bytes(b"not deleted yet")
    for name in ("_removed-77", "78"):  # left by processes that were killed
        (tmp_path / "tables" / name / CHANGES).mkdir(parents=True)
    (tmp_path / "tables" / "notes").mkdir()  # not a table's
    (tmp_path / "tables" / "79").write_text("not a directory")
    tables.append(events_of(1, (begun, 10), (dropped, 20)))
    tables.append(events_of(2, (begun, 10)))
    tables.append(events_of(3, (begun, 10), (dropped, 20), (begun, 30)))
    tables.append(events_of(4, (begun, 10), (dropped, 20)))
    tables.append(events_of(5, (begun, 10), (dropped, 50)))
    tables.append(events_of(6, (TableEventKind.UNION, 10), (dropped, 20)))
    tables = Tables(tmp_path)
    assert tables.forget(Lsn(50)) == {1, 6}
    assert sorted(read_tables(tmp_path).histories) == [2, 3, 4, 5]
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == ["2", "3", "4", "5", "79", "notes"]
    assert [event.lsn.value for event in read_tables(tmp_path).histories[3].events] == [30]
    version = tables.table.version()
    assert not tables.forget(Lsn(50))
    assert tables.table.version() == version, "nothing is left to do"
    left.unlink()
    tables.append(events_of(2, (TableEventKind.SEEN, 11)))
    assert tables.forget(Lsn(50)) == {4}
    assert sorted(read_tables(tmp_path).histories) == [2, 3, 5]
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == ["2", "3", "5", "79", "notes"]
    assert tables.number == Tables(tmp_path).number == 13


def test_only_the_last_retained_lsn_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registers, "_COMPACT_EVERY", 10)
    register = ExpiryRegister(tmp_path)
    for lsn in range(1, 26):
        register.record(Lsn(lsn))
    assert read_retained(tmp_path) == Lsn(25)
    assert register.table.to_pyarrow_table().num_rows < 10


def test_the_rows_of_a_register_are_durable_before_their_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    actual = os.fsync

    def recording(file: int) -> None:
        synced.append(Path(f"/proc/self/fd/{file}").readlink().name)
        actual(file)

    cycles = Cycles(tmp_path)
    monkeypatch.setattr(os, "fsync", recording)
    cycles.record(Cycle(Lsn(1), Lsn(1), NOW, 1, 1))
    (file,) = cycles.folder.glob("*.parquet")
    assert synced.index(file.name) < synced.index(f"{cycles.table.version():020}.json")
