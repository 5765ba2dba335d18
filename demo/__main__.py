"""`make demo`: a busy database, examined, prepared, received live and read at exact positions. Ends by itself."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import LiteralString

from harness.database import MIRROR, Database, add_roles, create_database
from harness.decoded import call_witness
from harness.mirrored import Mirrored, connected, receiving, take_over_slot
from harness.postgres import Server, installs, start_server
from tidemark.cli.main import run
from tidemark.clock import Boundary, Lsn, Snapshot
from tidemark.decode.changes import ChangeBatch
from tidemark.decode.types import Types
from tidemark.decode.warm import warm
from tidemark.log.reader import LogReader
from tidemark.receive.options import ReceiveOptions
from tidemark.source.session import Session
from tidemark.source.slot import create_slot, drop_slot, exact_snapshot

CLIENTS = 16
SNAPSHOTS = 400

SUMS = {
    "accounts": "select coalesce(sum(abalance), 0) from public.pgbench_accounts",
    "branches": "select coalesce(sum(bbalance), 0) from public.pgbench_branches",
    "tellers": "select coalesce(sum(tbalance), 0) from public.pgbench_tellers",
    "history": "select coalesce(sum(delta), 0) from public.pgbench_history",
}


def main() -> None:
    """Show one thing after another."""
    server = start_server(installs()[18], {"fsync": True})
    add_roles(server)
    database = create_database(server)
    say(f"A private PostgreSQL {server.install.version} on port {server.port}, and an application on it: pgbench")
    if pgbench(server, database, "--initialize", "--quiet", "--scale=16").wait() != 0:
        sys.exit(f"pgbench failed:\n{server.log.read_text()}")
    warm()
    with load(server, database):
        examine_and_prepare(database)
        read_at_an_exact_position(database)
        receive_live(database)
        tell_snapshots_from_positions(database)
    if sys.stdin.isatty() and sys.stdout.isatty():
        say(f"The server runs until you press Enter: psql '{server.dsn('postgres', database.name)}'")
        input()


def examine_and_prepare(database: Database) -> None:
    """What the source lacks, the SQL that mends it, and the source afterwards."""
    source = database.dsn().reveal()
    database.run(f"revoke select on all tables in schema public from {MIRROR}")
    say("tidemark doctor: what stands in the way of a role with LOGIN and REPLICATION and nothing else")
    run(["doctor", source])
    say("tidemark setup --print: what the owner runs once")
    run(["setup", source, "--print"])
    say("tidemark setup, run by the owner, and doctor again")
    run(["setup", database.dsn("app").reveal(), "--role", MIRROR])
    run(["doctor", source])


def read_at_an_exact_position(database: Database) -> None:
    """Four sums that agree at every commit and at no moment in between, read in several sessions of one snapshot."""
    say("A snapshot at one exact commit LSN, taken under load; four sessions read one table each in it")
    for _ in range(3):
        with exact_snapshot(database.dsn(), wait_s=30) as exact:
            sums = {table: _read(database, exact.snapshot_id, query) for table, query in SUMS.items()}
        shown = "  ".join(f"{table} {value:>9}" for table, value in sums.items())
        print(f"  {exact.lsn!s:>12}  {shown}  {'equal' if len(set(sums.values())) == 1 else 'DIFFERENT'}")


def _read(database: Database, snapshot_id: str, query: LiteralString) -> int:
    with database.session() as session, session.transaction(snapshot_id=snapshot_id):
        return int(session.row(query)[0])


def receive_live(database: Database) -> None:
    """Everything the source commits into a log, seen from outside; killed, started again, and compared."""
    say("tidemark receive, live: what the source commits, on our disk before it is confirmed")
    names, judge = database.names, "judge"
    create_slot(database.dsn(), names.slot, wait_s=30)
    database.admin(f"select pg_copy_logical_replication_slot('{names.slot}', '{judge}')")
    with tempfile.TemporaryDirectory() as folder:
        options = ReceiveOptions(database.dsn(), Path(folder) / "log", names)
        take_over_slot(options)
        mirror = Mirrored(database, options, judge, names.all_publications)
        with receiving(mirror) as process:
            _show_positions(mirror, seconds=4)
            process.kill()
        print("  kill -9; started again")
        with receiving(mirror) as process:
            _show_positions(mirror, seconds=2)
            join_copy_and_stream(mirror)
            process.stop()
            process.wait()
        count = mirror.require_equal_so_far()
        print(f"  {count} transactions in the log; the same {count}, message by message, in a second slot read by SQL")
    with database.session() as session:
        drop_slot(session, names.slot)
    database.admin(f"select pg_drop_replication_slot('{judge}')")


def _show_positions(mirror: Mirrored, seconds: int) -> None:
    with connected(mirror.options.folder) as client:
        reader, before = LogReader(mirror.options.folder), 0
        for second in range(seconds + 1):
            position = client.position()
            (at,) = mirror.database.admin("select pg_current_wal_flush_lsn()::text")[0]
            reader.refresh()
            commits = len(reader.commits())
            if second:
                behind = f"({Lsn.parse(at) - position.received} bytes behind)"
                print(f"  source {at:>11}  received {position.received!s:>11} {behind:<21}", end="  ")
                print(f"durable {position.durable!s:>11}  {commits - before:>5} transactions/s", flush=True)
            before = commits
            time.sleep(1)


def join_copy_and_stream(mirror: Mirrored) -> None:
    """What a table held at one LSN, and the changes up to another, against what it held there."""
    say("The table at LSN A, and the changes in the log from A to B, against the table at LSN B")
    a, before = _history(mirror.database)
    time.sleep(2)
    b, after = _history(mirror.database)
    with connected(mirror.options.folder) as client:
        client.wait(b, limit_s=30)
    begin, changes, between = time.perf_counter(), 0, 0
    for batch in LogReader(mirror.options.folder).read(a, b, Types()):
        if isinstance(batch, ChangeBatch):
            changes += len(batch)
            if batch.relation.name == "pgbench_history":
                column = [column.name for column in batch.relation.columns].index("delta")
                between += int(batch.new[column].array.to_numpy(zero_copy_only=False).sum())
    taken_s = time.perf_counter() - begin
    print(f"  A {a}: sum of deltas {before}; log: {between:+}; B {b}: {after}", end="  ")
    print("equal" if before + between == after else "DIFFERENT")
    print(f"  {changes} changes of 4 tables decoded in {taken_s:.2f} s")


def _history(database: Database) -> tuple[Lsn, int]:
    with exact_snapshot(database.dsn(), wait_s=30) as exact:
        return exact.lsn, _read(database, exact.snapshot_id, SUMS["history"])


def tell_snapshots_from_positions(database: Database) -> None:
    """How often an ordinary session's snapshot is no position in the log at all."""
    say(f"{SNAPSHOTS} ordinary snapshots under the same load: is each one some LSN?")
    witness = call_witness(database)
    with database.session() as session:
        moments = list(islice(_moments(session), SNAPSHOTS))
    commits = witness.commits()
    without = []
    for snapshot, lsn in moments:
        at = Boundary.of_snapshot(snapshot, lsn, [(snapshot.xmax.widen(c.xid), c.lsn) for c in commits])
        if any(at.floor < commit.lsn and at.sees(commit.lsn) for commit in commits):
            without.append((snapshot, at))
    print(f"  {len(commits)} commits; {len(without)} of {len(moments)} snapshots are no LSN: they see a later commit,")
    print("  and not an earlier one. A boundary says so, and is exact; a plain LSN would be wrong for each of them:")
    for snapshot, at in without[:3]:
        print(f"    snapshot {snapshot}  is  {at}")


def _moments(session: Session) -> Iterator[tuple[Snapshot, Lsn]]:
    while True:
        time.sleep(0.002)
        snapshot, lsn = session.row("select pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text")
        yield Snapshot.parse(snapshot), Lsn.parse(lsn)


def pgbench(server: Server, database: Database, *options: str) -> subprocess.Popen[bytes]:
    """The application: pgbench as the owner of its tables."""
    return server.start_program("pgbench", *options, database.dsn("app").reveal())


@contextmanager
def load(server: Server, database: Database) -> Iterator[None]:
    """Clients that write until the context ends."""
    process = pgbench(server, database, f"--client={CLIENTS}", "--time=600", "--no-vacuum")
    try:
        while not database.admin("select 1 from pgbench_history limit 1"):
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


def say(text: str) -> None:
    """A heading."""
    print(f"\n── {text}", flush=True)


if __name__ == "__main__":
    main()
