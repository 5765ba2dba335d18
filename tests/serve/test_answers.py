"""Answers: another statement runs in the client's session, and the client cannot tell the difference."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from typing import Any

import asyncpg
import psycopg
import pytest

from harness.database import OWNER, PASSWORD, Database
from harness.mirrored import eventually
from tests.conftest import installs_from
from tests.serve.raw import Raw, error_of, kinds
from tests.serve.serving import INT_ARRAY, TEXT_ARRAY, Relaying, Rewrite, Rewriting, Serving, serving
from tidemark.serve import messages
from tidemark.serve.messages import SYNC, BindMessage
from tidemark.serve.routing import MIRROR, REFUSED, SOURCE, Refuse, RouteReport

pytestmark = pytest.mark.quick

install = installs_from(0, oldest=True)

ALL = b"select id, name from t order by id"
SOME = b"select id, name from t where id > $1 order by id"
UNFIT = b"select id from t"
FAILS = b"select id from t where id = 2"
LOOKS = b"SELECT pg_catalog.array_agg(id ORDER BY id), pg_catalog.array_agg(name ORDER BY id) FROM public.t"
ANSWER = b"SELECT id, name FROM unnest($1, $2) AS b(id, name) ORDER BY id"
REWRITES = {
    ALL: Rewrite(LOOKS, ANSWER, (INT_ARRAY, TEXT_ARRAY)),
    SOME: Rewrite(LOOKS + b" WHERE id > $1", ANSWER, (INT_ARRAY, TEXT_ARRAY)),
    UNFIT: Rewrite(
        b"SELECT pg_catalog.array_agg(id) FROM public.t", b"SELECT id::text FROM unnest($1) AS b(id)", (INT_ARRAY,)
    ),
    FAILS: Rewrite(
        b"SELECT pg_catalog.array_agg(id) FROM public.t", b"SELECT 1/0 FROM unnest($1) AS b(id)", (INT_ARRAY,)
    ),
}
ROWS = [(1, "one"), (2, "two"), (3, "three"), (4, None)]


@pytest.fixture
def filled(db: Database, router: Rewriting) -> Database:
    router.rewrites = dict(REWRITES)
    db.run(
        "create table t (id int primary key, name text)",
        "insert into t values (1, 'one'), (2, 'two'), (3, 'three'), (4, null)",
    )
    return db


@pytest.fixture
def client(filled: Database, served: Serving) -> Any:
    with psycopg.connect(served.dsn(), autocommit=True) as connection:
        yield connection


def own_names(connection: psycopg.Connection[Any]) -> list[Any]:
    return connection.execute("select name from pg_prepared_statements where name like '\\_tidemark%'").fetchall()


@pytest.mark.parametrize("binary", [False, True])
def test_psycopg_gets_an_answer_in_both_formats(
    client: psycopg.Connection[Any], router: Rewriting, binary: bool
) -> None:
    cursor = client.execute(ALL, binary=binary)
    assert cursor.fetchall() == ROWS
    assert cursor.statusmessage == "SELECT 4"
    assert router.routes == [MIRROR]
    assert client.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert own_names(client) == []


def test_a_described_answer_has_the_columns_of_the_original(filled: Database, served: Serving) -> None:
    direct = Raw(filled.server.port, filled.name)
    through = Raw(served.port, filled.name)
    described = [
        messages.parse(b"", ALL),
        messages.describe(b"S", b""),
        messages.bind(BindMessage(b"", b"", (), (), (1, 0))),
        messages.describe(b"P", b""),
        messages.execute(b""),
        SYNC,
    ]
    for sent in ([messages.query(ALL)], described, [messages.query(b"select 1"), *described]):
        readies = sum(each[:1] in (b"S", b"Q") for each in sent)
        assert through.ask(*sent, readies=readies) == direct.ask(*sent, readies=readies)
    direct.close()
    through.close()


@pytest.mark.parametrize("block", ["", "begin", "begin isolation level repeatable read"])
def test_parameters_row_limits_and_named_statements(
    filled: Database, served: Serving, router: Rewriting, block: str
) -> None:
    direct, through = Raw(filled.server.port, filled.name), Raw(served.port, filled.name)
    bound = messages.bind(BindMessage(b"c", b"s", (), (b"1",), ()))
    rounds = [
        *([[messages.query(block.encode())]] if block else []),
        [messages.parse(b"s", SOME), messages.describe(b"S", b"s"), SYNC],
        [bound, messages.describe(b"P", b"c"), messages.execute(b"c", 2), SYNC],
        [messages.execute(b"c", 2), SYNC],  # the rest in a block; without one, the portal is gone
        [messages.query(b"select 1"), messages.query(b"rollback")],
        [messages.bind(BindMessage(b"", b"s", (1,), (b"\0\0\0\3",), (1,))), messages.execute(b""), SYNC],
        [messages.close(b"S", b"s"), SYNC],
    ]
    for sent in rounds:
        readies = sum(each[:1] in (b"S", b"Q") for each in sent)
        expected = direct.ask(*sent, readies=readies)
        assert through.ask(*sent, readies=readies) == expected
    assert router.routes[:1] == [MIRROR]
    direct.close()
    through.close()


def test_a_parameter_that_is_not_valid_is_an_error_of_the_source(
    filled: Database, served: Serving, router: Rewriting
) -> None:
    client = Raw(served.port, filled.name)
    bound = messages.bind(BindMessage(b"", b"", (), (b"no",), ()))
    answered = client.ask(messages.parse(b"", SOME), bound, messages.execute(b""), SYNC)
    assert kinds(answered) == "1EZ"  # the look fails, and the error is that of the client's own statement
    assert error_of(answered) == "22P02"
    eventually(lambda: router.outcomes, 10)
    assert router.routes == [SOURCE]
    client.close()


def test_prepared_statements_of_psycopg_are_answered_each_time(
    client: psycopg.Connection[Any], router: Rewriting
) -> None:
    statement = "select id, name from t where id > %s order by id"
    for _ in range(3):
        assert client.execute(statement, [2], prepare=True).fetchall() == ROWS[2:]
    assert router.routes == [MIRROR] * 3
    for _ in range(3):
        assert client.execute(ALL, prepare=True).fetchall() == ROWS
    assert router.routes == [MIRROR] * 3


def test_a_prepared_statement_that_sql_replaced_goes_to_the_source(filled: Database, served: Serving) -> None:
    client = Raw(served.port, filled.name)
    client.ask(messages.parse(b"s", ALL), SYNC)
    client.ask(messages.query(b"deallocate s"))
    client.ask(messages.query(b"prepare s as select 7"))
    found = client.ask(messages.bind(BindMessage(b"", b"s", (), (), ())), messages.execute(b""), SYNC)
    assert (ord("D"), b"\0\1\0\0\0\0017") in found
    client.close()


def test_asyncpg_gets_answers_in_and_outside_of_a_block(filled: Database, served: Serving, router: Rewriting) -> None:
    async def run() -> list[Any]:
        connection = await asyncpg.connect(
            host="127.0.0.1", port=served.port, user=OWNER, password=PASSWORD, database=filled.name
        )
        found = [await connection.fetch(SOME.decode(), 1), await connection.fetch(SOME.decode(), 1)]
        async with connection.transaction():
            found.append(await connection.fetch(SOME.decode(), 1))
            found.append([row async for row in connection.cursor(SOME.decode(), 1, prefetch=1)])
        lines = [row[0] for row in await connection.fetch("show tidemark.last")]
        lines += [row[0] for row in await connection.fetch("show tidemark.last")]
        lines += [row[0] for row in await connection.fetch(f"explain (tidemark) {ALL.decode()}")]
        await connection.close()
        return [*([tuple(row) for row in rows] for rows in found), lines]

    *answers, lines = asyncio.run(run())
    assert answers == [ROWS[1:]] * 4
    assert router.routes == [MIRROR] * 4  # the last one by a portal that is suspended after each row
    assert lines == ["mirror: rewritten"] * 2 + ["rewritten", f'say "{ALL.decode()}"']


def test_psql_gets_an_answer_and_its_report(filled: Database, served: Serving, router: Rewriting) -> None:
    commands = [ALL.decode(), "show tidemark.last", f"explain (tidemark)\n{ALL.decode()}"]
    arguments = [word for command in commands for word in ("-c", command)]
    shown = filled.server.program("psql", "--no-psqlrc", "-At", served.dsn(), *arguments).stdout
    expected = ["1|one", "2|two", "3|three", "4|", "mirror: rewritten", "rewritten", f'say "{ALL.decode()}"']
    assert shown.splitlines() == expected
    assert router.routes == [MIRROR]


def test_a_statement_that_cannot_be_explained_has_a_reason(client: psycopg.Connection[Any]) -> None:
    found = client.execute("explain (tidemark) select wrong").fetchall()
    assert found == [("relayed",), ('say "select wrong"',)]
    assert client.execute("explain (tidemark) fails").fetchall() == [('source: syntax error at or near "fails"',)]
    assert client.execute("select 1").fetchall() == [(1,)]


def test_the_own_statements_leave_the_unnamed_statement_and_the_settings_as_they_were(
    filled: Database, served: Serving, router: Rewriting
) -> None:
    with psycopg.connect(served.dsn()) as connection:
        connection.execute("set idle_in_transaction_session_timeout = '1h'")
        assert connection.execute(ALL).fetchall() == ROWS
        assert connection.execute("show idle_in_transaction_session_timeout").fetchone() == ("1h",)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
        connection.execute("insert into t values (5, 'five')")  # the client's block is not read only
        assert connection.execute(ALL).fetchall() == [*ROWS, (5, "five")]
        assert own_names(connection) == []
        connection.rollback()
    assert router.routes == [MIRROR] * 2
    client = Raw(served.port, filled.name)
    client.ask(messages.parse(b"", SOME), SYNC)
    for _ in range(2):
        found = client.ask(messages.bind(BindMessage(b"", b"", (), (b"3",), ())), messages.execute(b""), SYNC)
        assert kinds(found) == "2DCZ"
    client.close()


@pytest.mark.parametrize("statement", [UNFIT, FAILS])
@pytest.mark.parametrize("block", [False, True])
def test_what_cannot_be_used_goes_to_the_source_before_the_first_byte(
    filled: Database, served: Serving, router: Rewriting, statement: bytes, block: bool
) -> None:
    with psycopg.connect(served.dsn(), autocommit=not block) as connection:
        expected = [(2,)] if statement == FAILS else [(1,), (2,), (3,), (4,)]
        assert sorted(connection.execute(statement).fetchall()) == expected
        assert connection.execute("select 1").fetchall() == [(1,)]
        (last,) = connection.execute("show tidemark.last").fetchone() or ()
        assert last.startswith("source: the answer of the mirror could not be used")
    assert router.routes == [SOURCE]


def test_errors_of_the_statement_are_those_of_the_source(filled: Database, served: Serving, router: Rewriting) -> None:
    filled.run("drop table t")
    direct, through = Raw(filled.server.port, filled.name), Raw(served.port, filled.name)
    extended = [messages.parse(b"", ALL), messages.bind(BindMessage(b"", b"", (), (), ())), messages.execute(b""), SYNC]
    for sent in ([messages.query(ALL)], extended, [messages.query(b"begin")], extended, [messages.query(ALL)]):
        assert through.ask(*sent) == direct.ask(*sent)
    assert router.routes[0] == SOURCE
    direct.close()
    through.close()


def test_a_failed_block_is_relayed(client: psycopg.Connection[Any], router: Rewriting) -> None:
    client.execute("begin")
    with pytest.raises(psycopg.errors.DivisionByZero):
        client.execute("select 1/0")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        client.execute(ALL)
    client.execute("rollback")
    assert router.routes == []


@pytest.mark.parametrize("block", [False, True])
def test_a_refused_statement_fails_as_an_error_of_postgresql_does(
    filled: Database, served: Serving, router: Rewriting, block: bool
) -> None:
    router.refused[b"select 8"] = Refuse("0A000", "not proven", RouteReport(REFUSED, "not proven"), "Set it.")
    with psycopg.connect(served.dsn(), autocommit=not block) as connection:
        if block:
            connection.execute("select 1")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="not proven") as raised:
            connection.execute("select 8")
        assert raised.value.diag.message_hint == "Set it."
        if block:
            with pytest.raises(psycopg.errors.InFailedSqlTransaction):
                connection.execute("select 1")
            connection.rollback()
        assert connection.execute("select 1").fetchall() == [(1,)]
        assert connection.execute("show tidemark.last").fetchone() == ("refused: not proven",)


@pytest.mark.parametrize("block", [False, True])
def test_cancel_ends_the_engine_and_the_statement(
    filled: Database, served: Serving, router: Rewriting, block: bool
) -> None:
    router.slow_s = 60
    with psycopg.connect(served.dsn(), autocommit=not block) as connection:

        def cancel() -> None:
            assert router.working.wait(30)
            connection.cancel_safe()

        canceller = threading.Thread(target=cancel)
        canceller.start()
        with pytest.raises(psycopg.errors.QueryCanceled, match="due to user request"):
            connection.execute(ALL)
        canceller.join()
        status = psycopg.pq.TransactionStatus
        assert connection.info.transaction_status == (status.INERROR if block else status.IDLE)
        connection.rollback()
        assert connection.execute("select 1").fetchall() == [(1,)]
    assert router.routes == [REFUSED]


def test_a_client_that_disconnects_ends_the_engine(filled: Database, served: Serving, router: Rewriting) -> None:
    router.slow_s = 60
    client = Raw(served.port, filled.name)
    client.send(messages.query(ALL))
    assert router.working.wait(30)
    client.close()
    while served.server.connections:
        pass
    assert router.routes == []


def test_messages_after_a_candidate_wait_for_their_turn(filled: Database, served: Serving, router: Rewriting) -> None:
    client = Raw(served.port, filled.name)
    extended = [messages.parse(b"", ALL), messages.bind(BindMessage(b"", b"", (), (), ())), messages.execute(b""), SYNC]
    found = client.ask(*extended, *extended, messages.query(b"select 1"), *extended, readies=4)
    assert kinds(found) == "12DDDDCZ" * 2 + "TDCZ" + "12DDDDCZ"
    assert router.routes[:2] == [MIRROR, MIRROR]
    client.close()


def test_notices_and_notifications_reach_the_client(filled: Database, served: Serving, router: Rewriting) -> None:
    router.notice = "answered by the mirror"
    with psycopg.connect(served.dsn(), autocommit=True) as connection:
        heard = list[str]()
        connection.add_notice_handler(lambda diagnostic: heard.append(str(diagnostic.message_primary)))
        connection.execute("listen news")
        filled.run("notify news, 'one'")
        assert connection.execute(ALL).fetchall() == ROWS
        assert [each.payload for each in connection.notifies(timeout=10, stop_after=1)] == ["one"]
        assert heard == ["answered by the mirror"]


def test_a_look_before_every_statement_changes_nothing(filled: Database) -> None:
    with serving(filled, Relaying()) as running, psycopg.connect(running.dsn()) as connection:
        for _ in range(3):
            assert connection.execute(ALL).fetchall() == ROWS
            with pytest.raises(psycopg.errors.UndefinedColumn):
                connection.execute("select x from t")
            connection.rollback()
        with connection.cursor(name="c") as cursor:
            cursor.execute(ALL)
            assert cursor.fetchall() == ROWS
        connection.execute("insert into t values (6, 'six')")
        assert connection.execute("select count(*) from t").fetchone() == (5,)


def test_psql_reports_syntax_errors_with_their_place(filled: Database) -> None:
    with serving(filled, Relaying()) as running:
        for dsn in (running.dsn(), running.dsn().replace(f"port={running.port}", f"port={filled.server.port}")):
            with pytest.raises(subprocess.CalledProcessError) as raised:
                filled.server.program("psql", "--no-psqlrc", dsn, "-c", "select 1 fro m t")
            assert "LINE 1: select 1 fro m t" in raised.value.stderr
