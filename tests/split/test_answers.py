"""Statements that are split, with PostgreSQL as the engine: columns, types and values are those of the original."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from harness.database import create_database
from harness.postgres import Server
from tests.conftest import installs_from
from tests.split.corpus import ANSWERED, REFUSED, ROWS, TABLES
from tests.split.reference import planned
from tidemark.errors import Unproven

pytestmark = pytest.mark.quick
install = installs_from(0)


@pytest.fixture(scope="module")
def session(server: Server) -> Iterator[psycopg.Connection[Any]]:
    database = create_database(server)
    with database.connect() as connection:
        connection.autocommit = True
        for statement in (*TABLES, *ROWS):
            connection.execute(statement.encode())
        yield connection
    database.drop()


def described(result: Any) -> tuple[Any, ...]:
    assert result.status in (1, 2), result.error_message.decode()
    columns = [(result.fname(at), result.ftype(at), result.fmod(at)) for at in range(result.nfields)]
    rows = [tuple(result.get_value(row, at) for at in range(result.nfields)) for row in range(result.ntuples)]
    return columns, rows


@pytest.mark.parametrize("statement", ANSWERED)
def test_a_split_statement_has_the_result_of_the_original(session: psycopg.Connection[Any], statement: str) -> None:
    plan, found = planned(statement, session)
    assert plan.parts
    assert described(found) == described(session.pgconn.exec_params(statement.encode(), []))


@pytest.mark.parametrize(("statement", "reason"), REFUSED)
def test_what_is_not_proven_is_refused(session: psycopg.Connection[Any], statement: str, reason: str) -> None:
    with pytest.raises(Unproven, match=reason):
        planned(statement, session)


@pytest.mark.parametrize(
    ("objects", "statement", "reason"),
    [
        (["create function looks(varchar, varchar) returns bool language sql immutable return $1 < $2",
          "create operator public.= (leftarg = varchar, rightarg = varchar, function = looks)"],
         "select count(*) from items where v = v", "an operator = was added"),
        (["create function sum(int4, int4) returns int4 language sql immutable return 1"],
         "select sum(id) from items", "the function sum is not built in"),
        (["create table later (id int)", "alter table later enable row level security"],
         "select count(*) from later", "row-level security"),
        (["create view seen as select * from items"], "select count(*) from seen", "not an ordinary table"),
        (["create table child () inherits (items)"], "select count(*) from items", "children"),
        (["set search_path to public, pg_catalog"], "select count(*) from items", "search path"),
        (["set standard_conforming_strings to off"], "select count(*) from items", "standard_conforming_strings"),
    ],
)  # fmt: skip
def test_look_alikes_and_settings_of_the_session_are_refused(
    session: psycopg.Connection[Any], objects: list[str], statement: str, reason: str
) -> None:
    with session.transaction(force_rollback=True):
        for each in objects:
            session.execute(each.encode())
        with pytest.raises(Unproven, match=reason):
            planned(statement, session)


def test_an_operator_that_a_statement_does_not_use_may_be_added(session: psycopg.Connection[Any]) -> None:
    with session.transaction(force_rollback=True):
        session.execute("create function near(text, text) returns bool language sql immutable return $1 < $2")
        session.execute("create operator public.% (leftarg = text, rightarg = text, function = near)")
        plan, _ = planned("select sum(n + 1), count(*) from items where t = 'x'", session)
        assert plan.parts
        with pytest.raises(Unproven, match="an operator % was added"):
            planned("select count(*) from items where t % 'x'", session)


@pytest.mark.parametrize("change", ["truncate rewritten", "alter table rewritten alter id type int8"])
def test_a_table_that_was_rewritten_after_the_snapshot_is_refused(
    session: psycopg.Connection[Any], change: str
) -> None:
    session.execute("drop table if exists rewritten")
    session.execute("create table rewritten as select 1 as id")
    dsn, password = session.info.dsn, session.info.password
    with session.transaction(), psycopg.connect(dsn, password=password, autocommit=True) as other:
        session.execute("set transaction isolation level repeatable read")
        session.execute("select count(*) from items")  # takes the snapshot, and no lock on the other table
        other.execute(change.encode())
        with pytest.raises(Unproven, match="truncated or rewritten"):
            planned("select count(*) from rewritten", session)
    assert planned("select count(*) from rewritten", session)[0].parts


@pytest.mark.parametrize(
    "condition",
    [
        "id in (select from parts)",
        "id in (select id, item from parts)",
        "id in (select from parts group by ())",
        "id in (select item, count(*) from parts group by item)",
        "id = (select from parts p where p.item = items.id)",
        "id = (select max(q), min(q) from parts p where p.item = items.id)",
    ],
)
def test_a_subquery_that_has_not_one_column_is_an_error_of_postgresql(
    session: psycopg.Connection[Any], condition: str
) -> None:
    _, found = planned(f"select count(*) from items where {condition}", session)
    assert b"subquery" in found.error_message
