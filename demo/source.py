"""The source: what it lacks, what it holds at exact positions, and how often a snapshot is no position at all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import LiteralString

from demo.saying import say
from harness.database import MIRROR, Database
from harness.decoded import call_witness
from tidemark.cli.main import run
from tidemark.clock import Boundary, Lsn, Snapshot
from tidemark.source.session import Session
from tidemark.source.shared import SharedSnapshot
from tidemark.source.slot import exact_snapshot

SNAPSHOTS = 400
QUESTIONS: dict[str, LiteralString] = {
    "accounts": "select coalesce(sum(abalance), 0) from public.pgbench_accounts",
    "branches": "select coalesce(sum(bbalance), 0) from public.pgbench_branches",
    "tellers": "select coalesce(sum(tbalance), 0) from public.pgbench_tellers",
    "history": "select coalesce(sum(delta), 0) from public.pgbench_history",
}
# A number from every row of the table, summed: any other row would give another sum.
_ROW: LiteralString = (
    "md5(concat_ws(',', cast(aid as varchar(20)), cast(bid as varchar(20)), cast(abalance as varchar(20)), filler))"
)
DIGEST: dict[str, LiteralString] = {
    "digest": f"select sum(cast(conv(substr({_ROW}, 1, 8), 16, 10) as bigint)) from public.pgbench_accounts"
}
_DIGEST: LiteralString = f"select sum(('x' || substr({_ROW}, 1, 8))::bit(32)::bigint) from public.pgbench_accounts"


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


def answers_at_an_exact_position(database: Database) -> tuple[Lsn, dict[str, int]]:
    """Four sums that agree at every commit and at no moment in between, and a digest of every row of one table."""
    with exact_snapshot(database.dsn(), wait_s=30) as exact:
        asked = {**QUESTIONS, "digest": _DIGEST}
        return exact.lsn, {name: _read(exact.shared, query) for name, query in asked.items()}


def _read(snapshot: SharedSnapshot, query: LiteralString) -> int:
    with snapshot.session("demo") as session:
        return int(session.row(query)[0])


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
