"""Which tables of the target fit: every difference is refused with the statement that resolves it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from harness.database import OWNER, Database
from tests.conftest import NEWEST, quick_only
from tests.target.copies import Pair, pair_of, tables
from tidemark.errors import TargetTableUnfit
from tidemark.postgres.catalog import read_catalog
from tidemark.target.columns import CopyServer, carried_columns, read_server
from tidemark.target.copying import FilledTable, TableFailed

pytestmark = [pytest.mark.full, NEWEST]

HERE = (
    "create type mood as enum ('sad', 'ok')",
    "create type spot as (x int, y int)",
    'create table "T t" (id int, v numeric(6,2), m mood, p spot, twice int generated always as (id * 2) stored)',
    "insert into \"T t\" values (1, 2.5, 'ok', '(1,2)')",
)
NAME = '"T t"'
# What is done at the target, and what the error names.
DIFFERENCES = {
    "missing": ([f"drop table {NAME}"], "does not exist at the target"),
    "lacks a column": ([f"alter table {NAME} drop v"], "lacks column 'v'"),
    "lacks a column of an own type": ([f"alter table {NAME} drop m"], "lacks column 'm'"),
    "another type": ([f"alter table {NAME} alter v type text"], "has type text for column 'v', which is numeric(6,2)"),
    "another modifier": ([f"alter table {NAME} alter v type numeric(7,2)"], "has type numeric(7,2) for column 'v'"),
    "an extra column": ([f"alter table {NAME} add extra int"], "has a column 'extra'"),
    "generated": ([f"alter table {NAME} drop v, add v numeric(6,2) generated always as (1) stored"], "computes"),
    "not generated": ([f"alter table {NAME} alter twice drop expression"], "does not compute column 'twice'"),
    "other labels": (["alter type mood add value 'glad' before 'sad'"], "type public.mood of column 'm'"),
    "other attributes": (["alter type spot add attribute z int"], "type public.spot of column 'p'"),
    "attributes in another order": (
        ["alter type spot drop attribute x", "alter type spot add attribute x int"],
        "type public.spot of column 'p'",
    ),
    "partitioned": ([f"drop table {NAME}", f"create table {NAME} (id int) partition by list (id)"], "is a partitioned"),
    "a view": ([f"drop table {NAME}", f"create view {NAME} as select 1 as id"], "does not exist at the target"),
    "unlogged": ([f"alter table {NAME} set unlogged"], "is unlogged, and that of the source is not"),
    "not empty": ([f"insert into {NAME} (id) values (9)"], "is not empty"),
    "a trigger": (
        [
            "create function f() returns trigger language plpgsql as 'begin return null; end'",
            f"create trigger tr before insert on {NAME} for each row execute function f()",
        ],
        "trigger 'tr' of table public.T t",
    ),
    "a trigger for UPDATE": (
        [
            "create function f() returns trigger language plpgsql as 'begin return null; end'",
            f"create trigger tr before update of v on {NAME} for each row execute function f()",
        ],
        "trigger 'tr' of table public.T t",
    ),
    "a rule": (
        [f"create rule ru as on update to {NAME} do also insert into {NAME} (id) values (old.id)"],
        "rule 'ru' of table public.T t",
    ),
    "a trigger for TRUNCATE": (
        [
            "create function f() returns trigger language plpgsql as 'begin return null; end'",
            f"create trigger tr after truncate on {NAME} execute function f()",
        ],
        "trigger 'tr' of table public.T t",
    ),
    "a foreign key": (
        ["create table r (id int primary key)", f"alter table {NAME} add constraint fk foreign key (id) references r"],
        "foreign key 'fk' of table public.T t",
    ),
    "a reference": (
        [f"alter table {NAME} add primary key (id)", f"create table r (id int constraint fk references {NAME})"],
        "foreign key 'fk' of table public.r",
    ),
}
FIXED = {
    "lacks a column", "lacks a column of an own type", "another type", "another modifier", "an extra column",
    "generated", "unlogged", "not empty", "a trigger", "a trigger for UPDATE", "a rule", "a trigger for TRUNCATE",
    "a foreign key", "a reference",
}  # fmt: skip


@pytest.fixture
def pair(db: Database) -> Iterator[Pair]:
    with pair_of(db.server, db.server) as found:
        found.fill(*HERE)
        yield found


@pytest.mark.quick
@pytest.mark.parametrize("difference", quick_only(DIFFERENCES, *list(DIFFERENCES)[::4]))
def test_a_table_that_does_not_fit_is_refused_with_what_resolves_it(pair: Pair, difference: str) -> None:
    statements, named = DIFFERENCES[difference]
    pair.target.run(*statements)
    (result,) = pair.copy("T t").values()
    assert isinstance(result, TableFailed)
    assert isinstance(result.error, TargetTableUnfit)
    assert named in result.error.message
    assert "T t" in result.error.message or "public.r" in result.error.message
    assert "`" in result.error.hint
    if difference in FIXED:
        (fix,) = re.findall("`(.*)`", result.error.hint)
        pair.target.run(fix)
        (result,) = pair.copy("T t").values()
        assert isinstance(result, FilledTable)
        order = "id, v, m, p, twice"
        rows = f"select row({order})::text from {NAME}"
        assert pair.target.admin(rows) == pair.source.admin(rows)


def test_a_trigger_of_a_partitioned_table_is_ended_there(pair: Pair) -> None:
    pair.fill(
        "create table p (id int) partition by list (id)",
        "create table p1 partition of p for values in (1)",
        "insert into p values (1)",
    )
    pair.target.run(
        "create function f() returns trigger language plpgsql as 'begin return null; end'",
        "create trigger tr before insert on p for each row execute function f()",
    )
    (result,) = pair.copy("p1").values()
    assert isinstance(result, TableFailed)
    assert "trigger 'tr' of table public.p of the target" in result.error.message
    (fix,) = re.findall("`(.*)`", result.error.hint)
    pair.target.run(fix)
    pair.copy_all("p1")
    assert pair.target.admin("select id from p") == [(1,)]


def test_rows_that_no_copy_has_written_are_never_removed(pair: Pair) -> None:
    pair.target.run(f"insert into {NAME} (id) values (9)")
    for _ in range(2):
        pair.copy("T t")
        assert pair.target.admin(f"select id from {NAME}") == [(9,)]


def test_columns_may_be_in_another_order(pair: Pair) -> None:
    pair.both("create type many as (a int)")
    pair.source.run("create table o (a int, b text, c date)", "insert into o values (1, 'x', '2020-01-01')")
    pair.target.run("create table o (c date, gone int, a int, b text)", "alter table o drop gone")
    pair.copy_all("o")
    assert pair.target.admin("select a, b, c::text from o") == [(1, "x", "2020-01-01")]


def test_a_disabled_trigger_and_a_deferrable_key_do_not_prevent_a_copy(pair: Pair) -> None:
    pair.target.run(
        f"alter table {NAME} add unique (id) deferrable initially deferred",
        "create function f() returns trigger language plpgsql as 'begin return null; end'",
        f"create trigger tr before insert on {NAME} for each row execute function f()",
        f"create trigger other before delete on {NAME} for each row execute function f()",
        f"create rule ru as on insert to {NAME} do instead nothing",
        f"alter table {NAME} disable trigger tr, enable replica trigger other, disable rule ru",
    )
    pair.copy_all("T t")
    pair.require_equal()


def test_the_format_depends_on_the_versions_of_both_servers(pair: Pair) -> None:
    pair.both("create table i (v interval[])", "create table o (m mood[])")
    with pair.source.session() as here, pair.target.session(OWNER) as there, here.transaction(), there.transaction():
        source, target = read_server(here), read_server(there)
        found = {table.name: table for table in read_catalog(there).tables}
        ours = {table.name: table for table in tables(here)}

    def binary(name: str, one: CopyServer, other: CopyServer) -> bool:
        return carried_columns(ours[name], found[name], one, other).binary

    older, oldest = replace(target, version_num=160004), replace(target, version_num=130014)
    assert [binary("i", *each) for each in ((source, target), (source, older), (older, target), (older, older))] == [
        True, False, True, True
    ]  # fmt: skip
    assert [binary("o", source, each) for each in (target, older, oldest)] == [True, True, False]
    unsent = replace(target, sent=target.sent - {ours["o"].columns[0].type.parts[0].type.oid})
    assert not binary("o", replace(source, sent=unsent.sent), target)
