"""The relay: real clients work as they do without it, and what they see is equal byte for byte."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from harness.database import OWNER, PASSWORD, Database
from tests.serve.raw import Raw, kinds
from tests.serve.serving import Relaying, Serving, serving
from tidemark.serve import messages
from tidemark.serve.messages import FLUSH, SYNC, BindMessage
from tidemark.serve.wire import ClientKind, frame

pytestmark = pytest.mark.quick

MODES = ("simple", "extended", "prepared")


def psql(database: Database, dsn: str, *commands: str) -> str:
    """What psql prints, errors included."""
    program = database.server._space.reachable(database.server.install).program("psql")
    arguments = [word for command in commands for word in ("-c", command)]
    done = subprocess.run(
        [program, "--no-psqlrc", dsn, *arguments],
        capture_output=True,
        text=True,
        check=False,
        **database.server._space.as_user(),
    )
    return str(done.stdout + done.stderr)


def test_every_message_is_the_same_as_from_the_source(db: Database, served: Serving) -> None:
    direct, through = Raw(db.server.port, db.name), Raw(served.port, db.name)
    parsed = messages.parse(b"s", b"select $1::int4 + 1 as x")
    bound = messages.bind(BindMessage(b"", b"s", (), (b"1",), (1,)))
    executed = [bound, messages.describe(b"P", b""), messages.execute(b"")]
    row = frame(ClientKind.COPY_DATA, b"1\tone\n")
    copied = frame(ClientKind.COPY_DONE)
    copy_in = [messages.parse(b"", b"copy t from stdin"), messages.bind(BindMessage(b"", b"", (), (), ()))]
    conversations: list[tuple[list[bytes], int]] = [
        ([messages.query(b"create temp table t (id int, name text)")], 1),
        ([messages.query(b"select 1; select 'a', null; select 1/0; select 3")], 1),
        ([messages.query(b"")], 1),
        ([parsed, SYNC, *executed, SYNC, *executed, SYNC], 3),
        ([*executed, *executed, FLUSH, SYNC], 1),
        ([messages.query(b"copy t from stdin"), row, row, copied], 1),
        ([messages.query(b"copy t from stdin"), row, frame(ClientKind.COPY_FAIL, b"no\0")], 1),
        ([*copy_in, messages.execute(b""), SYNC, row, copied, SYNC], 1),
        ([messages.query(b"copy t to stdout")], 1),
        ([messages.parse(b"", b"select wrong"), SYNC, messages.query(b"select 2")], 2),
        ([messages.query(b"set timezone = 'Asia/Tokyo'; do $$ begin raise notice 'hello'; end $$")], 1),
        ([messages.query(b"begin"), messages.query(b"declare c cursor for select generate_series(1, 5)")], 2),
        ([messages.query(b"fetch 3 from c"), messages.query(b"commit")], 2),
        ([messages.query(b"select repeat('x', 300000), length(repeat('y', 10))")], 1),
        ([messages.query(b"select length('" + b"z" * 600_000 + b"')")], 1),
    ]
    for sent, readies in conversations:
        expected = direct.ask(*sent, readies=readies)
        assert through.ask(*sent, readies=readies) == expected, sent
    for client in (direct, through):
        client.send(messages.TERMINATE)
        assert client.message() is None
        client.close()


def test_the_report_in_a_pipeline_is_a_placeholder(db: Database, served: Serving) -> None:
    client = Raw(served.port, db.name)
    found = client.ask(messages.query(b"select 1"), messages.query(b"show tidemark.last"), readies=2)
    assert kinds(found) == "TDCZTDCZ"
    assert b"run it alone" in found[5][1]
    client.close()


def test_psql_describes_copies_and_reports_errors(db: Database, served: Serving, tmp_path: Path) -> None:
    db.run("create table t (id int primary key, name text)")
    tmp_path.chmod(0o777)
    file = Path(served.database.server.folder) / f"{db.name}.csv"
    file.write_text("1,one\n2,two\n")
    file.chmod(0o666)
    commands = [
        f"\\copy t from '{file}' with (format csv)",
        "\\d t",
        "\\d",
        "\\l+ template0",
        "table t",
        f"\\copy t to '{file}'",
        "select * from missing",
        "\\df pg_catalog.lower",
        "truncate t",
    ]
    direct = psql(db, db.dsn(OWNER).reveal(), *commands)
    file.write_text("1,one\n2,two\n")
    assert psql(db, served.dsn(), *commands) == direct
    assert "COPY 2" in direct
    assert 'relation "missing" does not exist' in direct


def test_ctrl_c_cancels_the_statement_of_psql(db: Database, served: Serving) -> None:
    space = db.server._space
    program = space.reachable(db.server.install).program("psql")
    process = subprocess.Popen(
        [program, "--no-psqlrc", served.dsn(), "-c", "select pg_sleep(600)"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **space.as_user(),
    )
    while not db.admin("select from pg_stat_activity where query like 'select pg_sleep(600)' and state = 'active'"):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "canceling statement due to user request" in errors


def test_psycopg_pipelines_cursors_copies_and_notifications(db: Database, served: Serving) -> None:
    with psycopg.connect(served.dsn()) as connection:
        connection.execute("create table t (id int, name text)")
        with connection.pipeline():
            cursors = [connection.execute("insert into t values (%s, %s) returning id", [n, str(n)]) for n in range(20)]
            assert [cursor.fetchone() for cursor in cursors] == [(n,) for n in range(20)]
        connection.commit()
        with connection.cursor().copy("copy t from stdin (format binary)") as copy:
            copy.set_types(["int4", "text"])
            for number in range(1000):
                copy.write_row((number, "x" * number))
        with connection.cursor(name="c") as named:
            named.itersize = 100
            named.execute("select id from t order by id")
            assert len(named.fetchall()) == 1020
        with connection.cursor().copy("copy t to stdout") as copy:
            assert sum(1 for _ in copy.rows()) == 1020
        for _ in range(10):
            assert connection.execute("select count(*) from t where id < %s", [5]).fetchone() == (10,)
        connection.execute("listen news")
        connection.commit()
        db.run("notify news, 'payload'")
        assert [each.payload for each in connection.notifies(timeout=30, stop_after=1)] == ["payload"]


def test_asyncpg_works_as_without_the_server(db: Database, served: Serving) -> None:
    async def run() -> list[Any]:
        connection = await asyncpg.connect(
            host="127.0.0.1", port=served.port, user=OWNER, password=PASSWORD, database=db.name
        )
        await connection.execute("create table t (id int, name text)")
        await connection.executemany("insert into t values ($1, $2)", [(n, str(n)) for n in range(50)])
        await connection.copy_records_to_table("t", records=[(n, None) for n in range(50)])
        async with connection.transaction():
            rows = [row async for row in connection.cursor("select id from t", prefetch=7)]
        with pytest.raises(asyncpg.QueryCanceledError):
            await connection.execute("set statement_timeout = 50; select pg_sleep(30)")
        with pytest.raises(asyncio.TimeoutError):
            await connection.execute("set statement_timeout = 0; select pg_sleep(30)", timeout=0.3)
        found = [len(rows), await connection.fetchval("select count(*) from t where id < $1", 10)]
        await connection.close()
        return found

    assert asyncio.run(run()) == [100, 20]


@pytest.mark.parametrize("mode", MODES)
def test_pgbench_runs_without_errors(db: Database, mode: str) -> None:
    db.server.program("pgbench", "--initialize", "--scale=1", "--quiet", "-I", "dt", db.dsn(OWNER).reveal())
    db.run(
        "insert into pgbench_branches values (1, 0)",
        "insert into pgbench_tellers select n, 1, 0 from generate_series(1, 10) n",
    )
    for router in (None, Relaying()):
        with serving(db, router) as running:
            done = db.server.program("pgbench", "-n", "-M", mode, "-c", "4", "-t", "5", running.dsn())
        assert "number of failed transactions: 0" in done.stdout
        assert "actually processed: 20/20" in done.stdout
    (found,) = db.run("select count(*), sum(delta) - (select sum(tbalance) from pgbench_tellers) from pgbench_history")
    assert found == (40, 0)


def test_a_replication_connection_is_relayed(db: Database, served: Serving) -> None:
    with psycopg.connect(served.dsn("mirror", replication="database"), autocommit=True) as connection:
        assert connection.execute("IDENTIFY_SYSTEM").fetchone() is not None
    received = db.server.program("pg_recvlogical", "--version").stdout
    assert "pg_recvlogical" in received
