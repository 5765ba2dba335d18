"""A backlog for benchmarks: pgbench and one large transaction; and pg_recvlogical, which writes it to a file."""

from __future__ import annotations

import resource
import subprocess
import tempfile
import time

from harness.database import Database
from harness.postgres import Server
from tidemark.clock import Lsn
from tidemark.postgres.names import MirrorNames
from tidemark.receive.connection import Plugin

CLIENTS = 8
SETTINGS: dict[str, str | int | bool] = {"max_replication_slots": 60, "max_wal_senders": 20, "max_wal_size": "8GB"}


def tables(server: Server, database: Database) -> None:
    """Create the tables of pgbench and one for the large transaction, with a publication for pg_recvlogical."""
    server.program("pgbench", "--initialize", "--scale=10", "--quiet", database.dsn("app").reveal())
    database.run("create table big (id int primary key, v text, n numeric(10,2))")
    database.run("alter table pgbench_history replica identity full")
    database.admin("create publication backlog for all tables")


def prepare(database: Database, name: str) -> MirrorNames:
    """Create the publication and slot of a mirror, which starts at the LSN of the slot."""
    names = MirrorNames(name)
    options = "publish_generated_columns = stored"
    tables = "pgbench_accounts, pgbench_branches, pgbench_tellers, pgbench_history, big"
    database.admin(f"create publication {names.publication} for table {tables} with ({options})")
    database.admin(f"select pg_create_logical_replication_slot('{names.slot}', 'pgoutput')")
    return names


def fill(server: Server, database: Database, transactions: int, big: int, *, big_first: bool = False) -> Lsn:
    """Write `transactions` of pgbench per client and one with `big` rows; return the LSN at their end."""
    begin = time.monotonic()
    insert = f"insert into big select i, 'some text ' || i, i / 100.0 from generate_series(1, {big}) i"
    if big_first:
        database.run(insert)
    options = [f"--client={CLIENTS}", f"--transactions={transactions}", "--no-vacuum"]
    server.start_program("pgbench", *options, database.dsn("app").reveal()).wait()
    if not big_first:
        database.run(insert)
    (end,) = database.admin("select pg_current_wal_insert_lsn()::text")[0]
    database.admin("select pg_logical_emit_message(true, 'bench', 'the end')", "checkpoint")
    print(f"{changes(transactions, big)} changes written in {time.monotonic() - begin:.0f} s", flush=True)
    return Lsn.parse(end)


def changes(transactions: int, big: int) -> int:
    """The number of changes: a transaction of pgbench has four."""
    return 4 * CLIENTS * transactions + big


def theirs(database: Database, slot: str, end: Lsn, mode: tuple[bool, bool]) -> tuple[float, float]:
    """Wall and CPU time of pg_recvlogical up to `end`; `mode` is streaming and binary."""
    plugin = Plugin(("backlog",), *mode)
    options = [f"--option={name}={value}" for name, value in plugin.options()]
    dsn = database.server.dsn("postgres", database.name)
    program = database.server.install.program("pg_recvlogical")
    with tempfile.TemporaryDirectory() as folder:
        command = [str(program), "--dbname", dsn, "--slot", slot, "--start", "--no-loop", f"--endpos={end}", *options]
        begin, before = time.monotonic(), children_cpu_s()
        subprocess.run([*command, "--file", f"{folder}/out"], check=True, capture_output=True)
        return time.monotonic() - begin, children_cpu_s() - before


def children_cpu_s() -> float:
    """CPU time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
