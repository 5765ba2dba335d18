"""`make bench-age`: a mirror of 90 days beside a new one with the same rows; each cost of the old one over the new one.

Both follow the same 20 tables of one server. The old one gets the history that a mirror with 100 transactions per
second and a retention of 7 days has on any day after the first week, the new one that of its first ten minutes
(`bench.aging`): so long Delta logs keep their commits. Then both apply the same changes, and each operation is measured
on one and the other in turn. `…_old_over_new` are ratios of medians; `…_ms` are those
of the old mirror. `rss` is the resident memory of a process that opens the lake, reads its status and finds a commit by
its time, and that of the receiver.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import tidemark
from bench.aging import Age, age_log, age_registers, age_tables
from bench.backlog import SETTINGS
from bench.figures import report
from bench.memory import children, resident_mb
from harness.database import MIRROR, Database, add_roles, create_database
from harness.postgres import Server, installs, start_server
from tidemark.clock import Lsn
from tidemark.lake import cached
from tidemark.lake.changes import change_writer
from tidemark.lake.columns import OURS, StoredColumn
from tidemark.lake.commits import LOG_S, ChangeTable
from tidemark.lake.lake import Lake
from tidemark.lake.paths import CHANGES
from tidemark.lake.status import status_of
from tidemark.log.disk import Disk
from tidemark.log.mirror import LogMirror, write_mirror
from tidemark.mirror.positions import LATEST, NOW
from tidemark.pipeline.expire.expiry import ExpireOptions, expire_lake
from tidemark.pipeline.fold.compactor import Compactor
from tidemark.pipeline.logical import LogicalReplication
from tidemark.pipeline.plan import PipelineOptions
from tidemark.postgres.identity import locate
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.session import Session
from tidemark.spark import SparkOptions, spark_session

DAYS, PER_S, TABLES = float(os.environ.get("DAYS", "7")), int(os.environ.get("PER_S", "100")), 20
ROWS, TURNS = int(os.environ.get("ROWS", "20000")), int(os.environ.get("TURNS", "21"))
FIRST_SEGMENT = 100_001
COLUMNS = (StoredColumn("id", 1, pa.int32()), StoredColumn("n", 2, pa.int64()), StoredColumn("v", 3, pa.string()))
QUERY = " union all ".join(f"select count(*), sum(n), max(v) from t{number}" for number in range(TABLES))
_MEASURED = """
import sys
from datetime import datetime, timedelta, UTC
from pathlib import Path
from tidemark.lake.lake import Lake
from tidemark.lake.status import status_of
from tidemark.mirror.times import position_of, time_of
from tidemark.reads.snapshot import LakeView, log_reader
lake = Lake.open(Path(sys.argv[1]))
view = LakeView(lake, log_reader(lake))
status_of(lake.path)
time_of(view.answerable, view)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")))
"""


@dataclass
class Side:
    """One of the two mirrors; `replication` is that of its pipeline while it runs."""

    name: str
    options: PipelineOptions
    replication: LogicalReplication | None = None

    @property
    def lake(self) -> Path:
        """The directory of its lake."""
        return self.options.lake


def main() -> None:
    """Create both mirrors, age one, and measure."""
    spark = spark_session(SparkOptions(conf={"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}))
    spark.sparkContext.setLogLevel("ERROR")
    server = _advanced_server()
    database = create_database(server)
    for number in range(TABLES):
        database.run(
            f"create table t{number} (id int primary key, n bigint, v text)",
            f"insert into t{number} select i, i, md5(i::text) from generate_series(1, {ROWS}) i",
        )
    with tempfile.TemporaryDirectory() as folder:
        new, old = (Side(name, _options(database, Path(folder), name)) for name in ("new", "old"))
        for side, days in ((new, LOG_S / 86400), (old, DAYS)):
            print(f"  {side.name}: {days:.2g} days at {PER_S} transactions per second", flush=True)
            begin = time.monotonic()
            _start_log_at(side, database, FIRST_SEGMENT)
            with _running(spark, side):
                pass
            _age(side, database, days)
            print(f"  {side.name}: written in {time.monotonic() - begin:.0f} s", flush=True)
        figures = _measured(database, spark, old, new)
    report("age", figures)
    server.remove()
    spark.stop()


def _advanced_server() -> Server:
    """A server whose LSNs and transaction IDs leave room for a history below them."""
    server = start_server(installs()[18], SETTINGS)
    add_roles(server)
    server.stop()
    server.program("pg_resetwal", "--next-wal-file=000000010000010000000001", "--epoch=1", "--pgdata", server.data)
    server.start()
    return server


def _options(database: Database, folder: Path, name: str) -> PipelineOptions:
    names = MirrorNames(f"{database.name}_{name}")
    database.admin(
        f"create publication {names.publication} for table {', '.join(f't{number}' for number in range(TABLES))} "
        "with (publish = 'insert, update, delete, truncate', publish_generated_columns = stored)"
    )
    return PipelineOptions(database.dsn(MIRROR), folder / name, names, folds=False, keep_s=None)


def _start_log_at(side: Side, database: Database, segment: int) -> None:
    """Let the log begin with a segment above those of the history."""
    with Session.open(database.dsn(MIRROR), "bench") as session:
        identity = locate(session, database.dsn(MIRROR), may_replicate=True).identity
    Disk().make_folder(side.options.log_folder)
    write_mirror(side.options.log_folder, Disk(), LogMirror(identity, side.options.names.mirror, None, segment=segment))


@contextmanager
def _running(spark: SparkSession, *sides: Side) -> Iterator[None]:
    """Run the pipelines; when the context begins, every table is copied."""
    with ExitStack() as held:
        for side in sides:
            side.replication = held.enter_context(LogicalReplication(side.options, spark, lambda _: None))
            while not side.replication.settled or side.replication.copies:
                side.replication.applier.read_catalog()
                side.replication.step()
        yield


def _age(side: Side, database: Database, days: float) -> None:
    ((xid,),) = database.admin("select pg_current_xact_id()::text")
    lake = Lake.open(side.lake)
    begun = min(event.lsn for history in lake.tables().values() for event in history.events)
    age = Age(days, PER_S, TABLES, Lsn(begun.value - 1), int(xid) - 1_000_000)
    age_log(side.options.log_folder, age, FIRST_SEGMENT)
    age_tables(lake, COLUMNS, age)
    age_registers(lake, age)


def _measured(database: Database, spark: SparkSession, old: Side, new: Side) -> dict[str, float]:
    sides = {"old": old, "new": new}
    figures: dict[str, float] = {}

    def ratio(name: str, act: Callable[[Side], object], turns: int = TURNS) -> None:
        taken = _alternately(sides, act, turns)
        figures[f"{name}_old_over_new"] = taken["old"] / taken["new"]
        figures[f"{name}_ms"] = 1000 * taken["old"]
        print(f"  {name}: old {1000 * taken['old']:.1f} ms, new {1000 * taken['new']:.1f} ms", flush=True)

    with _running(spark, *sides.values()):
        _cycle(database, sides)
        ratio("cycle", lambda side: _applied(side, database))
        open_mirrors = {
            name: tidemark.open(side.lake, spark, source=database.dsn(MIRROR)) for name, side in sides.items()
        }
        ratio("latest", lambda side: open_mirrors[side.name].at(LATEST).close(), 4 * TURNS)
        ratio("now", lambda side: open_mirrors[side.name].at(NOW).close(), 4 * TURNS)
        ratio("read", lambda side: _read(open_mirrors[side.name]))
        ratio("open", lambda side: _opened(side, spark))
        ratio("status", lambda side: _status(side))
        receivers = {name: _receiver_mb(side) for name, side in sides.items()}
        for mirror in open_mirrors.values():
            mirror.close()
    memory = {name: _reader_mb(side) for name, side in sides.items()}
    for each, measured in (("rss", memory), ("receiver_rss", receivers)):
        figures[f"{each}_old_over_new"], figures[f"{each}_mb"] = measured["old"] / measured["new"], measured["old"]
    ratio("foldable", lambda side: _foldable(side, spark))
    ratio("expire", lambda side: expire_lake(side.lake, ExpireOptions(keep_s=365 * 86400.0)), 5)
    ratio("append_cost", _Appending(sides).append, 4 * TURNS)
    found = status_of(old.lake)
    figures["files_per_table"] = statistics.median(table.change_files + table.version_files for table in found.tables)
    changes = DAYS * 86400 * PER_S
    figures["bytes_per_change"] = sum(table.change_bytes for table in found.tables) / changes
    figures["closed_bytes_per_change"] = (
        found.disk.history_bytes - sum(t.change_bytes for t in found.tables)
    ) / changes
    figures["index_bytes_per_commit"] = found.disk.log_bytes / changes
    return figures


def _alternately(sides: dict[str, Side], act: Callable[[Side], object], turns: int) -> dict[str, float]:
    """The median time for each side, after a first run that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(turns + 1):
        for name in sorted(sides, reverse=bool(turn % 2)):
            begin = time.perf_counter()
            act(sides[name])
            taken[name].append(time.perf_counter() - begin)
    return {name: statistics.median(seconds[1:]) for name, seconds in taken.items()}


def _cycle(database: Database, sides: dict[str, Side]) -> None:
    for side in sides.values():
        _applied(side, database)


def _applied(side: Side, database: Database) -> None:
    """Change a row of every table, and wait until the mirror has applied it; both mirrors apply all changes."""
    with database.connect() as connection:
        for number in range(TABLES):
            connection.execute(f"update t{number} set n = n + 1 where id = 1".encode())
    assert side.replication is not None  # noqa: S101
    upto = side.replication.position()
    side.replication.step()
    side.replication.applier.catch_up(upto)


def _read(mirror: tidemark.Mirror) -> None:
    with mirror.at(LATEST) as moment:
        moment.sql(QUERY).collect()


def _opened(side: Side, spark: SparkSession) -> None:
    """Open the lake as a new process does, and get a handle."""
    cached.forget(side.lake)
    with tidemark.open(side.lake, spark) as mirror:
        mirror.at(LATEST).close()


def _status(side: Side) -> None:
    cached.forget(side.lake)
    status_of(side.lake)


def _foldable(side: Side, spark: SparkSession) -> None:
    with Compactor(side.lake, spark) as compactor:
        compactor.foldable()


def _reader_mb(side: Side) -> float:
    done = subprocess.run([sys.executable, "-c", _MEASURED, str(side.lake)], capture_output=True, text=True, check=True)
    return int(done.stdout) / 1024


def _receiver_mb(side: Side) -> float:
    """The memory of the receiver, which has the directory of the log as an argument of its parent's pipe."""
    assert side.replication is not None  # noqa: S101
    pid = side.replication._receiving.pid
    assert pid in children(os.getpid())  # noqa: S101
    return resident_mb(pid)


class _Appending:
    """Commits files of one change to the first table of each mirror. The lakes are not used after that."""

    def __init__(self, sides: dict[str, Side]) -> None:
        self._schema = pa.schema([*(column.field() for column in COLUMNS), *OURS])
        folders = {
            name: side.lake / next(iter(Lake.open(side.lake).tables().values())).path / CHANGES
            for name, side in sides.items()
        }
        self._tables = {name: ChangeTable(folder) for name, folder in folders.items()}

    def append(self, side: Side) -> None:
        """Write and commit a file."""
        table = self._tables[side.name]
        lsn = Lsn(table.applied.value + 1)
        ours = {"_change_type": "insert", "_commit_version": lsn.value, "_ordinal": 0, "_xid": 1}
        writer = change_writer(table.folder, self._schema)
        writer.write(pa.Table.from_pylist([{"id": 1, "n": 1, "v": "v", **ours}], self._schema))
        table.append([writer.close()], lsn)


if __name__ == "__main__":
    main()
