"""The second part of `make bench-replicate`: changes applied to another PostgreSQL, against a native subscription.

Both apply the same backlog, by turns, each from a slot of its own into a new database that has the rows of before: 8
clients of pgbench, and one large transaction. Ours is the receiver and the follower together, from their start on. The
subscription has `binary = true` and `streaming = off`, with which it is fastest. Then `tidemark clone --follow` runs
beside pgbench at 500 transactions per second: the lag is the time from the return of COMMIT at the source until a
session at the target sees the row.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.backlog import changes, children_cpu_s, fill, prepare, tables
from bench.memory import tree_cpu_s
from harness.copied import record_copied
from harness.database import MIRROR, OWNER, Database, create_database
from harness.mirrored import take_over_slot
from harness.postgres import Server
from tidemark.clock import Lsn
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.identity import locate
from tidemark.postgres.names import MirrorNames
from tidemark.receive.options import ReceiveOptions
from tidemark.receive.process import ReceiveProcess
from tidemark.schema.fingerprint import Fingerprint
from tidemark.target.follow import FollowOptions, follow
from tidemark.target.state import read_clones

TRANSACTIONS, BIG = int(os.environ.get("TRANSACTIONS", "20000")), int(os.environ.get("BIG", "640000"))
TURNS, WARMING = int(os.environ.get("TURNS", "5")), 1
PROBES, RATE, PAUSE_S, LOOK_S = 500, 500, 0.02, 0.0005
ENDING_S, LIMIT_S = 0.3, 600.0
NAMES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history", "big", "ended")
ROWS = (
    "select count(*), coalesce(sum(abalance), 0)::bigint, (select count(*) from pgbench_history) from pgbench_accounts"
)


@dataclass(frozen=True)
class Applied:
    """Seconds until the target has the backlog, and CPU seconds of the target and of our processes meanwhile."""

    wall_s: float
    target_cpu_s: float
    client_cpu_s: float = 0.0


def _median(turns: Sequence[Applied]) -> Applied:
    return Applied(
        statistics.median(turn.wall_s for turn in turns),
        statistics.median(turn.target_cpu_s for turn in turns),
        statistics.median(turn.client_cpu_s for turn in turns),
    )


def follow_figures(source: Server, target: Server) -> dict[str, float]:
    """Apply a backlog by turns; the median of each, and ours over that of the subscription."""
    backlog = Backlog.written(source, target)
    turns: dict[str, list[Applied]] = {"ours": [], "native": []}
    for turn in range(WARMING + TURNS):
        turns["ours"].append(backlog.ours(turn))
        turns["native"].append(backlog.native(turn))
        line = ", ".join(
            f"{name} {each[-1].wall_s:.2f} s, target {each[-1].target_cpu_s:.2f} core-s" for name, each in turns.items()
        )
        print(f"  {line}" + (" (warm-up)" if turn < WARMING else ""), flush=True)
    backlog.source.drop()
    ours, native = (_median(each[WARMING:]) for each in turns.values())
    return {
        "changes": float(changes(TRANSACTIONS, BIG)),
        "follow_over_native_subscription": ours.wall_s / native.wall_s,
        "target_cpu_over_native_subscription": ours.target_cpu_s / native.target_cpu_s,
        "follow_s": ours.wall_s,
        "follow_native_subscription_s": native.wall_s,
        "follow_target_cpu_s": ours.target_cpu_s,
        "follow_client_cpu_s": ours.client_cpu_s,
        "follow_native_target_cpu_s": native.target_cpu_s,
    }


@dataclass(frozen=True)
class Backlog:
    """Changes that every slot of the source has still to send, and a database of the target with the rows of before."""

    source: Database
    target: Server
    before: Database
    end: Lsn
    names: tuple[MirrorNames, ...]

    @classmethod
    def written(cls, server: Server, target: Server) -> Backlog:
        """Create the tables and the slots, and write the changes."""
        source, before = create_database(server), create_database(target)
        for database in (source, before):
            tables(database.server, database)
            database.run("create table ended (id int primary key)")
        names = tuple(prepare(source, f"ours_{turn}") for turn in range(WARMING + TURNS))
        for each in names:
            source.admin(f"alter publication {each.publication} add table ended")
        for turn in range(WARMING + TURNS):
            source.admin(f"select pg_create_logical_replication_slot('native_{turn}', 'pgoutput')")
        fill(server, source, TRANSACTIONS, BIG)
        source.run("insert into ended values (1)")
        end = Lsn.parse(source.admin("select pg_current_wal_insert_lsn()::text")[0][0])
        return cls(source, target, before, end, names)

    def ours(self, turn: int) -> Applied:
        """Apply it by a receiver and a follower, from their start on."""
        target = self._new_target()
        with tempfile.TemporaryDirectory() as folder, (Path(folder) / "stderr").open("w") as stderr:
            receive = ReceiveOptions(self.source.dsn(MIRROR), Path(folder) / "log", self.names[turn], endpos=self.end)
            take_over_slot(receive)
            options = self._begun(target, receive)
            meter = _Meter(self.target)
            client = children_cpu_s() + time.process_time()
            with ReceiveProcess.start(receive, stderr=stderr) as process:
                follow(options, self.end, lambda: False)
                wall_s, target_cpu_s = meter.read()
                process.wait()
            client = children_cpu_s() + time.process_time() - client
        self._require_equal(target)
        return Applied(wall_s, target_cpu_s, client)

    def native(self, turn: int) -> Applied:
        """Apply it by a subscription, from the time on when it is enabled."""
        target = self._new_target()
        options = f"slot_name = 'native_{turn}', create_slot = false, enabled = false, copy_data = false"
        connection = self.source.server.dsn(dbname=self.source.name)
        target.admin(
            f"create subscription applied connection '{connection}' publication backlog "
            f"with ({options}, binary = true, streaming = off)"
        )
        meter = _Meter(self.target)
        target.admin("alter subscription applied enable")
        with target.connect() as session:
            session.autocommit = True
            _until(lambda: session.execute("select from ended").fetchone() is not None, 0.01)
        applied = Applied(*meter.read())
        target.admin(
            "alter subscription applied disable",
            "alter subscription applied set (slot_name = none)",
            "drop subscription applied",
        )
        self._require_equal(target)
        return applied

    def _new_target(self) -> Database:
        name = f"applied_{time.monotonic_ns()}"
        self.target.sql(f"create database {name} template {self.before.name} owner {OWNER}", "checkpoint")
        return Database(self.target, name)

    def _begun(self, target: Database, receive: ReceiveOptions) -> FollowOptions:
        with self.source.session() as session:
            identity = locate(session, self.source.dsn(), may_replicate=True).identity
            definitions = [Fingerprint.of(each, ()) for each in read_catalog(session).tables if each.name in NAMES]
        record_copied(target, receive.names.mirror, identity, definitions)
        return FollowOptions(identity, target.dsn(OWNER), receive.names.mirror, receive.folder)

    def _require_equal(self, target: Database) -> None:
        found, expected = target.admin(ROWS), self.source.admin(ROWS)
        if found != expected:
            raise SystemExit(f"the target has {found}, and the source {expected}")
        target.drop()


class _Meter:
    """Wall time, and CPU time of a server, from now on."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._begin, self._cpu_s = time.monotonic(), tree_cpu_s(server.pid)

    def read(self) -> tuple[float, float]:
        """The seconds so far; those of a session that ended are counted a moment later."""
        wall_s = time.monotonic() - self._begin
        time.sleep(ENDING_S)
        return wall_s, tree_cpu_s(self._server.pid) - self._cpu_s


def lag_figures(server: Server, target_server: Server) -> dict[str, float]:
    """The lag of `tidemark clone --follow` beside pgbench at a steady rate."""
    source, target = create_database(server), create_database(target_server)
    tables(server, source)
    source.run("create table probes (id int primary key)")
    names = MirrorNames(source.name)
    source.admin(
        f"create publication {names.publication} for table probes, {', '.join(NAMES[:5])} "
        "with (publish_generated_columns = stored)",
        f"grant select on all sequences in schema public to {MIRROR}",
    )
    with tempfile.TemporaryDirectory() as folder:
        command = [
            str(Path(sys.executable).parent / "tidemark"),
            "clone",
            source.dsn(MIRROR).reveal(),
            target.dsn(OWNER).reveal(),
        ]
        options = [
            "--follow",
            "--mode",
            "logical",
            "--name",
            names.mirror,
            "--state",
            folder,
            "--pg-bin",
            str(server.install.home / "bin"),
        ]
        with (Path(folder) / "stderr").open("w") as stderr:
            clone = subprocess.Popen([*command, *options], stdout=stderr, stderr=stderr)
        try:
            with target.session(OWNER) as session:
                _until(lambda: clone.poll() is not None or any(c.is_followed for c in read_clones(session)), 0.1)
            if clone.poll() is not None:
                raise SystemExit((Path(folder) / "stderr").read_text())
            lags = _lags_ms(source, target)
        finally:
            clone.terminate()
            clone.wait()
    return {
        "lag_ms_p50": statistics.median(lags),
        "lag_ms_p99": statistics.quantiles(lags, n=100)[98],
        "lag_ms_max": max(lags),
    }


def _lags_ms(source: Database, target: Database) -> list[float]:
    load = ["--no-vacuum", "--client=4", f"--rate={RATE}", "--time=3600"]
    pgbench = source.server.start_program("pgbench", *load, source.dsn("app").reveal())
    lags = []
    try:
        time.sleep(3)
        with source.connect() as here, target.connect() as there:
            here.autocommit = there.autocommit = True
            for number in range(PROBES):
                here.execute("insert into probes values (%s)", [number])
                begin = time.monotonic()
                row = "select from probes where id = %s"
                _until(lambda: there.execute(row, [number]).fetchone() is not None, LOOK_S)  # noqa: B023
                lags.append(1000 * (time.monotonic() - begin))
                time.sleep(PAUSE_S)
    finally:
        pgbench.terminate()
        pgbench.wait()
    return lags


def _until(holds: Callable[[], bool], pause_s: float) -> None:
    limit = time.monotonic() + LIMIT_S
    while not holds():
        if time.monotonic() > limit:
            raise SystemExit(f"not reached within {LIMIT_S:g} s")
        time.sleep(pause_s)
