"""`tidemark status` and what it is made from, on a lake of a few tables: no PostgreSQL, no Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from harness.shell import here
from tests.documentation.keys import require_documented
from tidemark.clock import Lsn
from tidemark.errors import ExitCode, NotAnswerable
from tidemark.lake import registers
from tidemark.lake.changes import change_writer
from tidemark.lake.columns import OURS, StoredColumn
from tidemark.lake.commits import ChangeTable
from tidemark.lake.files import FileWriter
from tidemark.lake.lake import NAME, Lake
from tidemark.lake.paths import VERSIONS
from tidemark.lake.registers import Cycle, Cycles, Tables
from tidemark.lake.status import TableStatus, status_of, tables_of
from tidemark.lake.sync_records import Retention, record_retention
from tidemark.lake.versions import VersionTable, version_schema
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.history import TableEvent, TableEventKind
from tidemark.schema.reasons import NOT_COPIED, needs_copy, no_replica_identity
from tidemark.schema.table import Child, Column, Generated, Persistence, PgType
from tidemark.units import format_size

pytestmark = pytest.mark.quick

ID = StoredColumn("id", 1, pa.int32())
COLUMNS = (
    Column(1, "id", PgType(23, "pg_catalog.int4", "b"), -1, True, Generated.NO, None, None, 700),
    Column(2, "total", PgType(1700, "pg_catalog.numeric", "b"), (10 << 16 | 2) + 4, False, Generated.NO, None, None, 7),
)
FIX = "Run `ALTER TABLE public.log REPLICA IDENTITY FULL;` at the source, or add a primary key."


def table(oid: int, name: str, **others: object) -> Fingerprint:
    found = Fingerprint(oid, "public", name, oid, Persistence.PERMANENT, (1,), COLUMNS, None, None, (), ())
    return replace(found, **others)  # type: ignore[arg-type]


ORDERS, LOG, LATE = table(1, "orders"), table(2, "log"), table(3, "late")
ROOT = table(4, "root", children=(Child(1, "public.orders"), Child(3, "public.late")))


def event(kind: TableEventKind, of: Fingerprint, lsn: int, reason: str = "", fix: str = "") -> TableEvent:
    return TableEvent(kind, of, f"tables/{of.oid}", Lsn(lsn), Lsn(lsn), frozenset(), reason, fix=fix)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path, "shop", 7, 5, "shop", 170000, tmp_path / "_log")
    made.create()
    reason = no_replica_identity(LOG)
    Tables(tmp_path).append(
        [
            event(TableEventKind.BEGUN, ORDERS, 10),
            event(TableEventKind.WAITING, LOG, 10, reason.text, reason.fix),
            event(TableEventKind.WAITING, LATE, 10, NOT_COPIED.text, NOT_COPIED.fix),
            event(TableEventKind.UNION, ROOT, 10),
        ]
    )
    Cycles(tmp_path).record(Cycle(Lsn(30), Lsn(30)))
    return made


def folded(lake: Lake, rows: int) -> None:
    """Versions of `orders` that are folded up to 0/14."""
    folder = lake.path / "tables/1" / VERSIONS
    versions = VersionTable.create(folder, [ID])
    writer = FileWriter(folder, "live-00000-of-00001")
    writer.write(pa.table([range(rows), [12] * rows, [None] * rows], schema=version_schema([ID])))
    versions.replace([writer.close()], [], Lsn(20), Lsn(10))


def changed(lake: Lake, lsn: int) -> None:
    """An insert into `orders`."""
    changes = ChangeTable.create(lake.path / "tables/1/changes", [ID])
    ours = {"_change_type": ["insert"], "_commit_version": [lsn], "_ordinal": [0], "_xid": [700]}
    columns = [pa.array(ours.get(field.name, [None]), field.type) for field in OURS]
    writer = change_writer(changes.folder, pa.schema([ID.field(), *OURS]))
    writer.write(pa.table([pa.array([1], pa.int32()), *columns], schema=pa.schema([ID.field(), *OURS])))
    changes.append([writer.close()], Lsn(lsn))


def found(lake: Lake) -> dict[str, TableStatus]:
    return {each.name: each for each in tables_of(lake)}


def test_a_table_without_a_replica_identity_has_the_statement_that_fixes_it_in_status_and_when_it_is_read(
    lake: Lake,
) -> None:
    log = found(lake)["public.log"]
    assert (log.state, log.reason, log.fix) == ("waiting", no_replica_identity(LOG).text, FIX)
    with pytest.raises(NotAnswerable, match=f"table public.log cannot be read at 0/1E: {log.reason}") as refused:
        lake.tables()[LOG.oid].at(Lsn(30))
    assert refused.value.hint == FIX
    shown = here("status", str(lake.path))
    assert f"public.log: {log.reason}\n  Fix: {FIX}\n" in shown.stdout
    assert [line.split("|")[1].strip() for line in shown.stdout.splitlines() if line.startswith("public.orders ")] == [
        "readable"
    ]


def test_a_fix_names_the_table_as_it_is_called_now(lake: Lake) -> None:
    Tables(lake.path).append([event(TableEventKind.SEEN, replace(LOG, name="Order log"), 20)])
    assert '`ALTER TABLE public."Order log" REPLICA IDENTITY FULL;`' in found(lake)["public.Order log"].fix


def test_a_table_that_is_read_up_to_a_gap_has_the_fix_and_the_range_in_its_hint(lake: Lake) -> None:
    reason = needs_copy("column 'a' dropped")
    Tables(lake.path).append([event(TableEventKind.GAP, ORDERS, 20, reason.text, reason.fix)])
    with pytest.raises(NotAnswerable, match="must be copied again: column 'a' dropped") as refused:
        lake.tables()[ORDERS.oid].at(Lsn(25))
    assert refused.value.hint == f"{reason.fix} Read the table at an LSN from 0/A to 0/14."


def test_rows_are_known_where_everything_is_folded(lake: Lake) -> None:
    assert found(lake)["public.orders"].rows is None
    folded(lake, 3)
    orders = found(lake)["public.orders"]
    assert (orders.rows, orders.folded_lsn) == (3, Lsn(20))
    assert [(each.name, each.type) for each in orders.columns] == [("id", "integer"), ("total", "numeric(10,2)")]
    changed(lake, 25)
    assert found(lake)["public.orders"].rows is None


def test_a_partitioned_table_is_readable_where_its_partitions_are(lake: Lake) -> None:
    folded(lake, 3)
    root = found(lake)["public.root"]
    assert (root.kind, root.state, root.rows) == ("partitioned table", "waiting", None)
    assert root.reason == "partitions that cannot be read: public.late"
    Tables(lake.path).append([event(TableEventKind.UNION, replace(ROOT, children=ROOT.children[:1]), 20)])
    root = found(lake)["public.root"]
    assert (root.state, root.rows, root.reason) == ("readable", 3, "")


def test_status_as_json_has_the_watermarks(lake: Lake) -> None:
    plain = json.loads(here("status", str(lake.path), "--json").stdout)
    require_documented("status", plain)
    assert (plain["applied_lsn"], plain["schema_lsn"], plain["received_lsn"]) == ("0/1E", "0/1E", None)
    assert plain["tables"][1]["fix"] == NOT_COPIED.fix or plain["tables"][0]["fix"] == NOT_COPIED.fix
    assert status_of(lake.path).retained_lsn == Lsn.ZERO


def recorded(lake: Lake, monkeypatch: pytest.MonkeyPatch, *seconds: int) -> None:
    """Cycles that were recorded so many seconds ago."""
    cycles = Cycles(lake.path)
    for number, ago in enumerate(seconds):
        past = datetime.now(UTC) - timedelta(seconds=ago)
        monkeypatch.setattr(registers, "datetime", SimpleNamespace(now=lambda _, past=past: past))
        cycles.record(Cycle(Lsn(40 + number), Lsn(40 + number)))
    monkeypatch.undo()


def test_disk_use_is_forecast_for_the_retention(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    folded(lake, 1000)
    changed(lake, 25)
    lake.log.mkdir()
    (lake.log / "segment").write_bytes(b"x" * 1000)
    (lake.path / "tables/1/changes/part-0.parquet").write_bytes(b"x" * 500)
    disk = status_of(lake.path).disk
    assert (disk.log_bytes, disk.unlisted_bytes, disk.covered_s) == (1000, 500, None)
    assert disk.current_bytes > 0
    assert disk.history_bytes > 0
    assert (disk.retention, disk.expected_bytes, disk.history_bytes_per_day) == (None, None, None)
    assert "Retention:" not in here("status", str(lake.path)).stdout
    record_retention(lake.path, Retention(7 * 86400.0))
    assert "Retention:     7 d\n" in here("status", str(lake.path)).stdout, "too early to tell"
    recorded(lake, monkeypatch, 2 * 86400)
    disk = status_of(lake.path).disk
    assert disk.expected_bytes == pytest.approx(disk.total_bytes + 2.5 * disk.history_bytes, 0.01)
    assert disk.history_bytes_per_day == pytest.approx(disk.history_bytes / 2, 0.01)
    shown = here("status", str(lake.path)).stdout
    expected = f"{format_size(disk.expected_bytes or 0)} expected in 5 d at the present rate"
    assert f"Retention:     7 d, {expected}\n" in shown
    record_retention(lake.path, Retention(86400.0))
    assert status_of(lake.path).disk.expected_bytes == disk.total_bytes, "the history already covers it"
    record_retention(lake.path, Retention(None))
    per_day = f"{format_size(disk.history_bytes_per_day or 0)} of history per day"
    assert f"Retention:     forever, {per_day} at the present rate\n" in here("status", str(lake.path)).stdout


@pytest.mark.parametrize(
    ("number", "message", "hint"),
    [
        (2, "has lake format 2, and this Tidemark supports format 1", "Upgrade Tidemark"),
        (None, "has lake format none, and this Tidemark supports format 1", "`tidemark sync SOURCE LAKE`"),
    ],
)
def test_a_lake_of_another_format_is_refused_with_both_numbers(
    lake: Lake, number: int | None, message: str, hint: str
) -> None:
    plain = json.loads((lake.path / NAME).read_text())
    assert plain.pop("format") == 1
    (lake.path / NAME).write_text(json.dumps(plain | ({} if number is None else {"format": number})))
    refused = here("status", str(lake.path))
    assert refused.returncode == ExitCode.LAKE
    assert message in refused.stderr
    assert hint in refused.stderr


def test_expire_reports_what_it_deletes_as_text_and_as_json(lake: Lake) -> None:
    dry = here("expire", str(lake.path), "--before", "0/14", "--dry-run")
    assert dry.stdout.splitlines()[-1] == "retained LSN: 0/14 (dry run)", dry.stderr
    plain = json.loads(here("expire", str(lake.path), "--before", "0/14", "--json").stdout)
    require_documented("expire", plain)
    assert (plain["retained_lsn"], plain["deleted"], plain["readers"]) == ("0/14", [], [])
    assert status_of(lake.path).retained_lsn == Lsn(20)
    record_retention(lake.path, Retention(None))
    for keep in ([], ["--keep", "forever"]):
        kept = json.loads(here("expire", str(lake.path), *keep, "--json").stdout)
        assert (kept["requested_lsn"], kept["retained_lsn"]) == ("0/0", "0/14"), "not less than sync keeps"
    both = here("expire", str(lake.path), "--before", "0/14", "--keep", "1d")
    assert (both.returncode, "--keep and --before" in both.stderr) == (ExitCode.USAGE, True)
