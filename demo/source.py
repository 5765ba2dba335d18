"""The source: its requirements, its contents at exact LSNs, and the number of snapshots that have no LSN."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import LiteralString

from demo.heading import print_heading
from harness.database import MIRROR, Database
from harness.decoded import call_witness
from tidemark.cli.main import run
from tidemark.clock import Boundary, Lsn, Snapshot
from tidemark.postgres.session import Session
from tidemark.postgres.shared import SharedSnapshot
from tidemark.postgres.slot import exact_snapshot

SNAPSHOTS = 400
QUERIES: dict[str, LiteralString] = {
    "accounts": "select coalesce(sum(abalance), 0) from public.pgbench_accounts",
    "branches": "select coalesce(sum(bbalance), 0) from public.pgbench_branches",
    "tellers": "select coalesce(sum(tbalance), 0) from public.pgbench_tellers",
    "history": "select coalesce(sum(delta), 0) from public.pgbench_history",
}
# The sum of a 32-bit hash of every row: a different row gives, almost certainly, a different sum.
_ROW: LiteralString = (
    "md5(concat_ws(',', cast(aid as varchar(20)), cast(bid as varchar(20)), cast(abalance as varchar(20)), filler))"
)
DIGEST: dict[str, LiteralString] = {
    "digest": f"select sum(cast(conv(substr({_ROW}, 1, 8), 16, 10) as bigint)) from public.pgbench_accounts"
}
_DIGEST: LiteralString = f"select sum(('x' || substr({_ROW}, 1, 8))::bit(32)::bigint) from public.pgbench_accounts"


def check_and_prepare(database: Database) -> None:
    """Check the requirements, print and execute the SQL that meets them, and check again."""
    source = database.dsn().reveal()
    database.run(f"revoke select on all tables in schema public from {MIRROR}")
    print_heading("tidemark doctor: the requirements, for a role that has LOGIN and REPLICATION only")
    run(["doctor", source])
    print_heading("tidemark setup --print: the SQL that the owner runs once")
    run(["setup", source, "--print"])
    print_heading("tidemark setup, run by the owner, and doctor again")
    run(["setup", database.dsn("app").reveal(), "--role", MIRROR])
    run(["doctor", source])


def answers_at_an_lsn(database: Database) -> tuple[Lsn, dict[str, int]]:
    """Four sums, equal at every commit but not within a transaction, and a digest of one table, at an LSN."""
    with exact_snapshot(database.dsn(), wait_s=30) as exact:
        queries = {**QUERIES, "digest": _DIGEST}
        return exact.lsn, {name: _read(exact.shared, query) for name, query in queries.items()}


def _read(snapshot: SharedSnapshot, query: LiteralString) -> int:
    with snapshot.session("demo") as session:
        return int(session.row(query)[0])


def compare_snapshots_with_lsns(database: Database) -> None:
    """Count the snapshots of an ordinary session for which no LSN has the same visible commits."""
    print_heading(f"{SNAPSHOTS} snapshots of a session under the same load: is there an LSN for each?")
    witness = call_witness(database)
    with database.session() as session:
        moments = list(islice(_moments(session), SNAPSHOTS))
    commits = witness.commits()
    without = []
    for snapshot, lsn in moments:
        at = Boundary.of_snapshot(snapshot, lsn, [(snapshot.xmax.widen(c.xid), c.lsn) for c in commits])
        if any(at.floor < commit.lsn and at.sees(commit.lsn) for commit in commits):
            without.append((snapshot, at))
    print(f"  {len(commits):,} commits; {len(moments) - len(without)} of {len(moments)} snapshots have an LSN.")
    if not without:
        print("  Under higher load some snapshots see a later commit and not an earlier one. No LSN describes these,")
        print("  so Tidemark reads at a boundary: an LSN, and the commits that are not visible.")
        return
    print(f"  The other {len(without)} see a later commit and not an earlier one: a read at any LSN would be wrong.")
    print("  Tidemark reads at a boundary, an LSN and the commits that are not visible, which is exact:")
    for snapshot, at in without[:3]:
        print(f"    snapshot {snapshot}  is  {at}")


def _moments(session: Session) -> Iterator[tuple[Snapshot, Lsn]]:
    while True:
        time.sleep(0.002)
        snapshot, lsn = session.row("select pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text")
        yield Snapshot.parse(snapshot), Lsn.parse(lsn)
