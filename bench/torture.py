"""`make torture`: a mirror under load whose processes are killed, whose network fails, and whose source restarts.

`tidemark sync` runs with fold, compaction and a retention of two minutes, connects through a proxy, and is started
again when it ends, as a service manager does. Meanwhile its driver, its receiver, its JVM and its Python workers are
killed with -9; connections are cut, stalled, slowed and half closed; the source is restarted, also without a shutdown;
and tables are altered, created, truncated and dropped. Every few minutes, and at the end, each table is compared with
the source. At the end nothing may be left behind: slots, processes, sessions, files that no table lists, and temporary
files. It fails if a table differs or anything is left behind.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

import tidemark
from bench.figures import report
from harness.database import Database, add_roles, create_database
from harness.postgres import installs, start_server
from harness.postgres.server import Mode, Server
from harness.processes import JVM, RECEIVER, WORKERS, in_session
from harness.proxy import Proxy
from tests.pipeline.sync.load import Manner, create, transaction
from tidemark.clock import Lsn
from tidemark.errors import NotAnswerable, TidemarkError
from tidemark.lake.pipeline_state import read_pipeline_state
from tidemark.mirror.compare.narrowing import Verdict
from tidemark.pipeline.expire.expiry import ExpireOptions, expire_lake
from tidemark.postgres.dsn import Dsn
from tidemark.spark import SparkOptions, spark_session

TABLES = ("orders", "items", "bag_of_events")
KILLS_EVERY_S, FAULTS_EVERY_S, DDL_EVERY_S, COMPARES_EVERY_S = 8.0, 11.0, 20.0, 240.0
PROGRESS_S = 45.0  # the kill of a driver or JVM waits for progress, but no longer than this
CATCH_UP_S = 600.0
PROGRAM = "from tidemark.cli.main import main; main()"


class Torture:
    """One run: the source, the proxy before it, the sync, and what was done to them."""

    def __init__(self, server: Server, database: Database, folder: Path, chance: random.Random) -> None:
        self.server, self.database, self.chance = server, database, chance
        self.lake, self.errors, self.temporary = folder / "lake", folder / "errors", folder / "temporary"
        self.temporary.mkdir()
        self.sessions = list[int]()
        self.proxy = Proxy(server.port)
        self.kills, self.faults = Counter[str](), Counter[str]()
        self.starts = self.transactions = self.altered = 0
        self.comparisons = self.mismatches = self.not_compared = 0
        self.stop, self.calm = threading.Event(), threading.Event()
        self._restarting = threading.Lock()
        self.sync: subprocess.Popen[bytes] | None = None

    def source(self, port: int | None = None) -> Dsn:
        """The connection string of a superuser, directly or through the proxy."""
        text = self.server.dsn("postgres", self.database.name)
        return Dsn(text if port is None else make_conninfo(text, host="127.0.0.1", port=port))

    def threads(self) -> list[threading.Thread]:
        """What happens at the same time."""
        writers = [Manner(), Manner(empties=True, held_s=0.2)]
        works: list[Callable[[], None]] = [self._supervise, self._kill, self._fail, self._alter]
        works += [partial(self._write, manner) for manner in writers]
        return [threading.Thread(target=work, name=f"torture {n}", daemon=True) for n, work in enumerate(works)]

    def _supervise(self) -> None:
        """Start the sync whenever it does not run."""
        while not self.stop.is_set():
            with self.errors.open("ab") as errors:
                options = ["sync", self.source(self.proxy.port).reveal(), str(self.lake), "--keep", "2min", "--quiet"]
                command = [sys.executable, "-c", PROGRAM, *options, "--cycle-time", "1s", "--master", "local[2]"]
                environment = {**os.environ, "TMPDIR": str(self.temporary)}
                self.sync = subprocess.Popen(command, stderr=errors, start_new_session=True, env=environment)
            self.sessions.append(self.sync.pid)
            self.starts += 1
            while self.sync.poll() is None and not self.stop.wait(0.2):
                pass
            if not self.stop.wait(1.0):
                self._end_session()
        if self.sync is not None:
            self.sync.send_signal(signal.SIGTERM)
            self.sync.wait(300)

    def _end_session(self) -> None:
        """Wait until the processes of a sync that has ended have gone, as they must without help."""
        until = time.monotonic() + 120
        while self.sync is not None and in_session(self.sync.pid) and time.monotonic() < until:
            time.sleep(0.5)

    def _kill(self) -> None:
        kinds = {"driver": b"", "receiver": RECEIVER, "jvm": JVM, "workers": WORKERS}
        while not self._rest(KILLS_EVERY_S * self.chance.uniform(0.5, 1.5)):
            kind = self.chance.choices(list(kinds), [2, 4, 2, 4])[0]
            if kind in ("driver", "jvm"):
                self._wait_for_progress()
            sync = self.sync
            if sync is None or sync.poll() is not None:
                continue
            pids = [sync.pid] if kind == "driver" else in_session(sync.pid, kinds[kind])
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.kills[kind] += bool(pids)

    def _wait_for_progress(self) -> None:
        before, until = self._applied(), time.monotonic() + PROGRESS_S
        while self._applied() == before and time.monotonic() < until and not self.stop.is_set():
            time.sleep(0.2)

    def _applied(self) -> Lsn | None:
        with suppress(TidemarkError):
            state = read_pipeline_state(self.lake)
            return state.applied_lsn if state is not None else None
        return None

    def _fail(self) -> None:
        faults: dict[str, Callable[[], None]] = {
            "cut": self.proxy.cut,
            "half closed": self.proxy.half_close,
            "stalled": self._stalled,
            "slow": self._slow,
            "restart": lambda: self._restart("fast"),
            "crash": lambda: self._restart("immediate"),
        }
        while not self._rest(FAULTS_EVERY_S * self.chance.uniform(0.5, 1.5)):
            kind = self.chance.choices(list(faults), [5, 4, 4, 4, 1, 1])[0]
            faults[kind]()
            self.faults[kind] += 1

    def _stalled(self) -> None:
        self.proxy.stalled = True
        self._rest(3.0)
        self.proxy.stalled = False

    def _slow(self) -> None:
        self.proxy.bytes_per_s = 50_000
        self._rest(4.0)
        self.proxy.bytes_per_s = None

    def _restart(self, mode: Mode) -> None:
        with self._restarting:
            self.server.restart(mode)

    def _alter(self) -> None:
        number = 0
        while not self._rest(DDL_EVERY_S * self.chance.uniform(0.5, 1.5)):
            number += 1
            table = self.chance.choice(TABLES)
            statement = self.chance.choice(
                [
                    f"alter table {table} add column c{number} int default {number}",
                    f"alter table {table} add column c{number} text; update {table} set c{number} = 'x' where n < 99",
                    f"alter table {table} alter column v type varchar",
                    f"alter table {table} alter column v type text",
                    f"truncate {table}; insert into {table} select i, i, i, 'new' from generate_series(1, 500) i",
                    f"create table extra_{number} (id int primary key); insert into extra_{number} values (1), (2)",
                    f"drop table if exists extra_{number - 3}",
                    f"create index on {table} (n)",
                ]
            )
            with suppress(psycopg.Error), self._session() as session:
                session.execute("set lock_timeout = '5s'")
                session.execute(f"begin; {statement}; commit".encode())
                self.altered += 1

    def _write(self, manner: Manner) -> None:
        while not self.stop.is_set():
            with suppress(psycopg.Error), self._session() as session:
                while not self.stop.is_set():
                    try:
                        session.execute(transaction(self.chance, TABLES, manner).encode())
                        self.stop.wait(manner.held_s)
                        session.execute("commit")
                        self.transactions += 1
                    except (psycopg.errors.IntegrityError, psycopg.errors.TransactionRollback):
                        session.execute("rollback")
                    self.stop.wait(0.02)
                    while manner.empties and self.calm.is_set() and not self.stop.is_set():
                        time.sleep(0.1)  # a table that is truncated while it is compared cannot be compared
            self.stop.wait(0.5)

    def _session(self) -> psycopg.Connection[Any]:
        session = self.server.connect(self.database.name)
        session.autocommit = True
        return session

    def _rest(self, seconds: float) -> bool:
        """Wait, also while all is to be calm; return whether the run ends."""
        until = time.monotonic() + seconds
        while (time.monotonic() < until or self.calm.is_set()) and not self.stop.is_set():
            time.sleep(0.1)
        return self.stop.is_set()

    @contextmanager
    def calmed(self) -> Iterator[None]:
        """Cause no faults, and empty no table, while the context lasts; the other load continues."""
        self.calm.set()
        try:
            with self._restarting:
                self.proxy.stalled, self.proxy.bytes_per_s = False, None
                yield
        finally:
            self.calm.clear()

    def compare(self, spark: SparkSession) -> None:
        """Compare every table with the source, in one snapshot, once a sync runs again and has copied its tables."""
        until = time.monotonic() + CATCH_UP_S
        while True:
            try:
                found = tidemark.compare(self.lake, source=self.source(), wait=CATCH_UP_S, spark=spark)
            except NotAnswerable:
                if time.monotonic() > until:
                    raise
                time.sleep(1.0)
                continue
            different = [each for each in found if each.verdict is Verdict.DIFFERENT]
            missing = [each for each in found if each.verdict is Verdict.NOT_COMPARED]
            if different or not missing or time.monotonic() > until:
                break
            time.sleep(2.0)
        self.comparisons += len(found)
        self.mismatches += len(different)
        self.not_compared += len(missing)
        for each in (*different, *missing):
            print(f"  {each.table}: {each.verdict.value} {each.reason}", flush=True)

    def leaks(self) -> dict[str, float]:
        """What is left when the sync has ended."""
        until = time.monotonic() + 30
        while processes := [pid for session in self.sessions for pid in in_session(session)]:
            if time.monotonic() > until:
                break
            time.sleep(0.5)
        expire_lake(self.lake, ExpireOptions(120.0, None, 0.0))
        query = "select greatest(count(*) - 1, 0) from pg_replication_slots"  # all but that of the mirror
        sessions = "select count(*) from pg_stat_activity where application_name like 'tidemark%'"
        return {
            "leaked_slots": float(self.server.sql(query)[0][0]),
            "leaked_sessions": float(self.server.sql(sessions)[0][0]),
            "leaked_processes": float(len(processes)),
            "leaked_temporary_files": float(sum(path.is_file() for path in self.temporary.rglob("*"))),
            "leaked_file_bytes": float(tidemark.status(self.lake).disk.unlisted_bytes),
        }


def main() -> None:
    """Run for some minutes, and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9))
    options = parser.parse_args()
    print(f"  --seed {options.seed}", flush=True)
    server = start_server(installs()[18], {"fsync": True, "wal_level": "logical", "max_prepared_transactions": 10})
    add_roles(server)
    database = create_database(server)
    create(database, *TABLES, rows=20_000)
    spark = spark_session(SparkOptions(conf={"spark.ui.enabled": "false", "spark.driver.memory": "512m"}))
    with tempfile.TemporaryDirectory() as folder:
        run = Torture(server, database, Path(folder), random.Random(options.seed))  # noqa: S311 - repeatable
        threads, end = run.threads(), time.monotonic() + 60 * options.minutes
        for thread in threads:
            thread.start()
        while time.monotonic() < end:
            time.sleep(min(COMPARES_EVERY_S, max(0.0, end - time.monotonic())))
            with run.calmed():
                run.compare(spark)
            print(f"  {dict(run.kills)} {dict(run.faults)}, {run.starts} starts, {run.transactions} transactions,"
                  f" {run.comparisons} comparisons, {run.mismatches} mismatches", flush=True)  # fmt: skip
        run.stop.set()
        for thread in threads:
            thread.join()
        assert run.transactions, "no transaction was committed"  # noqa: S101
        figures = {
            "kills": float(run.kills.total()),
            **{f"kills_{kind}": float(count) for kind, count in sorted(run.kills.items())},
            "faults": float(run.faults.total()),
            **{f"faults_{kind.replace(' ', '_')}": float(count) for kind, count in sorted(run.faults.items())},
            "alterations": float(run.altered),
            "starts": float(run.starts),
            "transactions": float(run.transactions),
            "comparisons": float(run.comparisons),
            "mismatches": float(run.mismatches),
            "not_compared": float(run.not_compared),
            **run.leaks(),
        }
        report("torture", figures)
    spark.stop()
    server.remove()
    left = {name: figures[name] for name in figures if name == "mismatches" or name.startswith("leaked_")}
    if any(left.values()):
        raise SystemExit(f"a table differs, or something was left behind: {left}")


if __name__ == "__main__":
    main()
