"""A mirrored table of 13 columns for benchmarks: filled, applied, folded, changed; and its rows as plain Parquet."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from bench.backlog import SETTINGS
from harness.database import add_roles, create_database
from harness.lake import Lakeside, following, lakeside
from harness.postgres import installs, start_server
from tidemark.lake.files import FileWriter
from tidemark.lake.lake import Lake
from tidemark.lake.versions import INTERVAL, Versions, read_versions
from tidemark.pipeline.apply.applier import StreamApplier
from tidemark.pipeline.fold import layout
from tidemark.pipeline.fold.compactor import Compactor, Folded
from tidemark.pipeline.fold.job import GROUP_ROWS
from tidemark.spark import SparkOptions, spark_session

COLUMNS = """account int, quantity int, version int, balance bigint, amount numeric(12,2), status text, code text,
    note text, created timestamptz, due date, active bool, score double precision"""
VALUES = """(random() * 1e9)::int, (random() * 1e6)::int, 0, (random() * 1e15)::bigint, (random() * 1e6)::numeric(12,2),
    (array['new', 'paid', 'sent', 'back', 'lost', 'done'])[1 + i % 6], 'code ' || i % 1000, md5(i::text),
    timestamptz '2026-01-01' + i * interval '1 second', date '2026-01-01' + i % 1000, i % 3 = 0, random()"""
CHANGE = "version = version + 1, quantity = quantity + 1, amount = amount + 1, created = created + interval '1 day'"
FILLED_AT_ONCE = 500_000
CHANGED_BY = 5  # transactions


@dataclass(frozen=True, slots=True)
class Wide:
    """The lake under measurement, and its writer."""

    side: Lakeside
    writer: StreamApplier
    folder: Path

    def fill(self, table: str, rows: int, key: str = "i") -> None:
        """Insert rows in several transactions and apply them; `key` is the key columns as expressions of `i`."""
        for start in range(1, rows + 1, FILLED_AT_ONCE):
            numbers = f"generate_series({start}, {min(start + FILLED_AT_ONCE - 1, rows)}) i"
            self.side.database.run(f"insert into {table} select {key}, {VALUES} from {numbers}")
            self.apply()

    def change(self, table: str, share: float) -> None:
        """Update a share of the rows, chosen at random, in several transactions; apply them without a fold."""
        for _ in range(CHANGED_BY):
            self.side.database.run(f"update {table} set {CHANGE} where random() < {share / CHANGED_BY}")
        self.apply()

    def apply(self) -> None:
        """Apply everything."""
        self.writer.catch_up(self.side.position())

    def fold(self, table: str, buckets: int | None = None) -> tuple[float, Folded]:
        """Fold one table, into the default or about this number of buckets; return the seconds and the result."""
        usual = layout.BUCKET_BYTES
        with Compactor(self.side.options.lake, self.side.spark) as compactor:
            (found,) = (each for each in compactor.foldable() if each.name == f"public.{table}")
            if buckets is not None:
                layout.BUCKET_BYTES = -(-found.changed_bytes // buckets)
            try:
                begin = time.monotonic()
                done = compactor.fold(found)
                return time.monotonic() - begin, done
            finally:
                layout.BUCKET_BYTES = usual

    def versions(self, table: str) -> Versions:
        """The versions of a table."""
        lake = Lake.open(self.side.options.lake)
        for history in lake.tables().values():
            if history.last.fingerprint.name == table:
                found = read_versions(lake.path, history.path)
                if found is not None:
                    return found
        raise SystemExit(f"{table} has not been folded")

    def live(self, table: str) -> list[str]:
        """The files of a table's live rows."""
        versions = self.versions(table)
        return [versions.path(file) for file in versions.live]

    def plain(self, table: str) -> list[str]:
        """Files with the same rows, as many, written by the same writer without the intervals."""
        folder = self.folder / f"plain_{table}"
        folder.mkdir()
        return [_plainly(Path(path), folder) for path in self.live(table)]


def _plainly(path: Path, folder: Path) -> str:
    rows = pq.read_table(path).drop_columns(INTERVAL.names)
    writer = FileWriter(folder, "plain")
    for start in range(0, len(rows), GROUP_ROWS):
        writer.write(rows.slice(start, GROUP_ROWS))
    return str(folder / writer.close().path)


@contextmanager
def wide(tables: Mapping[str, str]) -> Iterator[Wide]:
    """A server, a warm session and a lake with empty tables; `tables` maps their names to their key columns."""
    spark = session()
    server = start_server(installs()[18], SETTINGS)
    add_roles(server)
    database = create_database(server)
    for table, key in tables.items():
        names = ", ".join(column.split()[0] for column in key.split(","))
        database.run(f"create table {table} ({key}, {COLUMNS}, primary key ({names}))")
    with tempfile.TemporaryDirectory() as folder:
        side = lakeside(database, Path(folder), spark, *tables)
        with following(side), side.writing() as writer:
            yield Wide(side, writer, Path(folder))
    server.remove()
    spark.stop()


def session() -> SparkSession:
    """The session of a reader."""
    spark = spark_session(SparkOptions(conf={"spark.ui.enabled": "false"}))
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def by_turns(ways: Mapping[str, Callable[[int], object]], turns: int, warming: int) -> dict[str, float]:
    """The median seconds of each way; the ways run alternately, and each in turn runs first."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    names: Sequence[str] = list(ways)
    for turn in range(-warming, turns):
        first = turn % len(names)
        for name in (*names[first:], *names[:first]):
            begin = time.monotonic()
            ways[name](turn)
            taken[name].append(time.monotonic() - begin)
    return {name: statistics.median(seconds[warming:]) for name, seconds in taken.items()}


def size_bytes(paths: Sequence[str]) -> int:
    """The total size of files."""
    return sum(Path(path).stat().st_size for path in paths)
