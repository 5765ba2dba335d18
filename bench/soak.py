"""`make soak`: a mirror under constant load, with fold, compaction, expiry and a reader; nothing may grow.

pgbench runs 200 transactions per second on tables whose contents keep their size, `tidemark sync` follows with a
retention of five minutes, and a reader queries the latest state every second. A row per minute shows rates, memory,
files and lag. After the first minutes, in which the retention period and the memory of the JVM fill up, a line is
fitted to each column: `…_drift` is its change over the rest of the run divided by the mean, and `…_noise` twice the
standard error of that. What grows has a drift above its noise. At the end all tables are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import tidemark
from bench.figures import report
from bench.memory import children, resident_mb
from harness.database import Database, add_roles, create_database
from harness.postgres import installs, start_server
from tidemark.clock import Lsn
from tidemark.mirror.mirror import Mirror
from tidemark.mirror.positions import LATEST
from tidemark.postgres.dsn import Dsn
from tidemark.spark import SparkOptions, spark_session

RATE, KEEP = 200, "5min"
FULL_MIN = 12  # by then the retention period and the grace period after it have passed
SCRIPT = """\\set account random(1, 100000)
\\set teller random(1, 100)
\\set branch random(1, 10)
\\set delta random(-5000, 5000)
begin;
update account set balance = balance + :delta where id = :account;
update teller set balance = balance + :delta where id = :teller;
update branch set balance = balance + :delta where id = :branch;
insert into entry (account, teller, branch, delta) values (:account, :teller, :branch, :delta)
returning id as entry \\gset
delete from entry where id = :entry - 20000;
commit;
"""
QUERY = "select count(*), sum(balance), (select count(*) from entry) from account"
DRIFTING = (
    "tx_per_s", "sync_mb", "jvm_mb", "receiver_mb", "reader_mb", "read_ms", "lag_mb", "files", "delta_log_files",
    "lake_mb", "log_mb",
)  # fmt: skip


def main() -> None:
    """Run the load for some minutes, and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=int, default=60)
    minutes = parser.parse_args().minutes
    server = start_server(installs()[18], {"fsync": True, "wal_level": "logical"})
    add_roles(server)
    database = create_database(server)
    _create_tables(database)
    heap = {"spark.driver.memory": "512m"}  # of the reader: with more, the JVM takes an hour to use all of it
    conf = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", **heap}
    spark = spark_session(SparkOptions(conf=conf))
    with tempfile.TemporaryDirectory() as folder:
        lake = Path(folder) / "lake"
        with _following(database, lake) as sync, _load(database, Path(folder)):
            mirror = tidemark.open(lake, spark, source=_source(database))
            rows = list(_watched(database, lake, sync.pid, mirror, minutes))
            assert sync.poll() is None, "sync ended"  # noqa: S101
        figures = _figures(rows)
        with _following(database, lake):
            compared = list(tidemark.compare(lake, source=_source(database), spark=spark))
        for each in compared:
            print(f"  compare {each.table}: {each.verdict.value}", flush=True)
        mirror.close()
    figures["tables_equal"] = sum(each.verdict.value == "equal" for each in compared)
    figures["tables_not_equal"] = len(compared) - figures["tables_equal"]
    report("soak", figures)
    server.remove()
    spark.stop()


def _create_tables(database: Database) -> None:
    database.run(
        *(
            f"create table {name} (id int primary key, balance bigint not null, filler text not null)"
            for name in ("account", "teller", "branch")
        ),
        *(
            f"insert into {name} select i, 0, repeat('x', 80) from generate_series(1, {count}) i"
            for name, count in (("account", 100_000), ("teller", 100), ("branch", 10))
        ),
        "create table entry (id bigserial primary key, account int, teller int, branch int, delta int,"
        " at timestamptz default now())",
        "insert into entry (account, teller, branch, delta) select 1, 1, 1, 0 from generate_series(1, 20000)",
    )


def _source(database: Database) -> Dsn:
    """The source, as a superuser, which can publish the tables."""
    return Dsn(database.server.dsn("postgres", database.name))


@contextmanager
def _following(database: Database, lake: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `tidemark sync`, and wait until every table can be read."""
    program = "from tidemark.cli.main import main; main()"
    options = ["sync", _source(database).reveal(), str(lake), "--keep", KEEP, "--quiet"]
    process = subprocess.Popen([sys.executable, "-c", program, *options])
    try:
        while not _is_readable(lake):
            assert process.poll() is None, "sync ended"  # noqa: S101
            time.sleep(1)
        yield process
    finally:
        process.terminate()
        process.wait()


def _is_readable(lake: Path) -> bool:
    if not (lake / "_tidemark.json").exists():
        return False
    found = tidemark.status(lake).tables
    return len(found) == 4 and all(table.state == "readable" for table in found)


@contextmanager
def _load(database: Database, folder: Path) -> Iterator[None]:
    script = folder / "load.sql"
    script.write_text(SCRIPT)
    folder.chmod(0o755)
    options = ["--no-vacuum", "--client=4", f"--rate={RATE}", "--time=86400", f"--file={script}"]
    process = database.server.start_program("pgbench", *options, database.dsn("app").reveal())
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@dataclass
class _Reader:
    """Queries the latest state every second, and keeps the times."""

    mirror: Mirror
    taken_ms: list[float] = field(default_factory=list)

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(1.0):
            begin = time.monotonic()
            with self.mirror.at(LATEST) as moment:
                ((count, _, entries),) = moment.sql(QUERY).collect()
            assert (count, entries) == (100_000, 20_000), f"{count} accounts, {entries} entries"  # noqa: S101
            self.taken_ms.append(1000 * (time.monotonic() - begin))

    def median_ms(self) -> float:
        taken, self.taken_ms = self.taken_ms, []
        return statistics.median(taken) if taken else float("nan")


Row = dict[str, float]


def _watched(database: Database, lake: Path, sync: int, mirror: Mirror, minutes: int) -> Iterator[Row]:
    """Measure every minute, and print a row."""
    reader, stop, failures = _Reader(mirror), threading.Event(), []

    def read() -> None:
        try:
            reader.run(stop)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        transactions, since = _transactions(database), time.monotonic()
        for minute in range(1, minutes + 1):
            time.sleep(max(0.0, since + 60 - time.monotonic()))
            before, begun, transactions, since = transactions, since, _transactions(database), time.monotonic()
            if failures:
                raise failures[0]
            row = {"minute": float(minute), "tx_per_s": (transactions - before) / (since - begun)}
            row |= _memory(sync) | {"read_ms": reader.median_ms()} | _disk(database, lake)
            if minute == 1:
                print("  ".join(f"{name:>15}" for name in row), flush=True)
            print("  ".join(f"{value:>15,.1f}" for value in row.values()), flush=True)
            yield row
    finally:
        stop.set()
        thread.join()


def _transactions(database: Database) -> int:
    return int(database.admin("select last_value from entry_id_seq")[0][0])


def _memory(sync: int) -> Row:
    """Resident memory of the processes of `tidemark sync`, and of this one with its JVM."""
    own, ours = children(sync), children(os.getpid())
    jvm = sum(resident_mb(pid) for pid, name in own.items() if name == "java")
    receiver = sum(resident_mb(pid) for pid, name in own.items() if name != "java")
    reader = resident_mb(os.getpid()) + sum(resident_mb(pid) for pid, name in ours.items() if name == "java")
    return {"sync_mb": resident_mb(sync), "jvm_mb": jvm, "receiver_mb": receiver, "reader_mb": reader}


def _disk(database: Database, lake: Path) -> Row:
    """Lag, files and sizes."""
    (written,) = database.admin("select pg_current_wal_lsn()::text")[0]
    found = tidemark.status(lake)
    sizes: dict[Path, int] = {}
    for path in lake.rglob("*"):
        with suppress(FileNotFoundError):  # deleted since it was listed
            sizes |= {path: path.stat().st_size} if path.is_file() else {}
    logs = [path for path in sizes if "_delta_log" in path.parts]
    in_log = sum(size for path, size in sizes.items() if path.is_relative_to(found.log))
    return {
        "lag_mb": max(0, Lsn.parse(written) - found.applied_lsn) / 1e6,
        "files": len(sizes) - len(logs),
        "delta_log_files": len(logs),
        "change_files": sum(table.change_files for table in found.tables),
        "version_files": sum(table.version_files for table in found.tables),
        "lake_mb": (sum(sizes.values()) - in_log) / 1e6,
        "log_mb": in_log / 1e6,
    }


def _figures(rows: Sequence[Row]) -> dict[str, float]:
    figures = {name: statistics.median(row[name] for row in rows[-min(10, len(rows)) :]) for name in DRIFTING}
    full = [row for row in rows if row["minute"] > FULL_MIN]
    if len(full) >= 5:
        for name in DRIFTING:
            figures[f"{name}_drift"], figures[f"{name}_noise"] = _drift([row[name] for row in full])
    print(json.dumps(rows), file=sys.stderr, flush=True)
    return figures


def _drift(values: Sequence[float]) -> tuple[float, float]:
    """The change of a fitted line over all values, and twice its standard error, both divided by the mean."""
    x, y = np.arange(len(values), dtype=float), np.array(values)
    (slope, _), covariance = np.polyfit(x, y, 1, cov=True)
    scale = (len(values) - 1) / max(float(y.mean()), 1e-9)
    return float(slope) * scale, 2 * float(np.sqrt(covariance[0, 0])) * scale


if __name__ == "__main__":
    main()
