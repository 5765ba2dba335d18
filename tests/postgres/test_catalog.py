"""The catalogue, read by a role with few rights from tables of every kind."""

from dataclasses import dataclass

import psycopg
import pytest
from psycopg import sql

from harness.database import Database
from tidemark.errors import NotPermitted
from tidemark.postgres.catalog import only_element, read_catalog
from tidemark.schema.display import type_name
from tidemark.schema.table import Catalog, Child, Generated, Persistence, RelationKind, ReplicaIdentity, Table

pytestmark = pytest.mark.quick


def catalog(db: Database, role: str | None = None) -> Catalog:
    with db.session() as session, session.transaction():
        return read_catalog(session, role)


def named(seen: Catalog) -> dict[tuple[str, str], Table]:
    return {(each.schema, each.name): each for each in seen.tables}


def table(db: Database, name: str, schema: str = "public") -> Table:
    return named(catalog(db))[schema, name]


def test_columns_go_by_attnum_through_drops_and_renames(db: Database) -> None:
    db.run(
        "create table t (a int primary key, b text, c varchar(10) not null)",
        "alter table t drop b",
        "alter table t add b numeric(10,2)",
        "alter table t rename c to d",
    )
    columns = table(db, "t").columns
    assert [(c.attnum, c.name, c.type.name, c.not_null) for c in columns] == [
        (1, "a", "pg_catalog.int4", True),
        (3, "d", "pg_catalog.varchar", True),
        (4, "b", "pg_catalog.numeric", False),
    ]
    assert columns[2].typmod == (10 << 16 | 2) + 4


def test_missing_value_defaults_are_the_text_that_old_rows_show(db: Database) -> None:
    additions = {
        "i": ("int", "7"),
        "t": ("text", "'a \"b\" \\ {x},y'"),
        "e": ("text", "''"),
        "n": ("text", "'NULL'"),
        "f": ("float8", "0.1"),
        "d": ("timestamptz", "'2020-01-02 03:04:05+00'"),
        "r": ("int[]", "'{1,NULL,\"3\"}'"),
        "x": ("box", "'(1,2),(3,4)'"),
        "y": ("bytea", "'\\xff'"),
        "j": ("jsonb", '\'{"a": [1, "\\"q\\""]}\''),
    }
    db.run("create table t (id int)", "insert into t values (1)")
    db.run(*(f"alter table t add {name} {kind} default {value}" for name, (kind, value) in additions.items()))
    shown = table(db, "t").columns[1:]
    with db.session() as session:
        expected = session.row(f"select {', '.join(name + '::text' for name in additions)} from public.t")
    assert {c.name: c.missing for c in shown} == dict(zip(additions, expected, strict=True))


def test_only_element_unquotes_what_array_out_quotes() -> None:
    assert only_element('{"a\\"b\\\\c"}') == 'a"b\\c'
    assert only_element("{7}") == "7"
    assert only_element("{(3,4),(1,2)}") == "(3,4),(1,2)"
    assert only_element('{""}') == ""


def test_generated_columns_say_how(db: Database) -> None:
    db.run("create table t (a int, s int generated always as (a * 2) stored)")
    columns = table(db, "t").columns
    assert [c.generated for c in columns] == [Generated.NO, Generated.STORED]
    assert columns[0].expression is None
    assert columns[1].expression
    if db.server.install.major >= 18:
        db.run("create table v (a int, w int generated always as (a + 1) virtual)")
        assert table(db, "v").columns[1].generated is Generated.VIRTUAL


@dataclass(frozen=True)
class Case:
    statements: tuple[str, ...]
    setting: ReplicaIdentity
    key: tuple[int, ...] | None
    usable: bool


BY_INDEX = "alter table t replica identity using index t_b"
IDENTITIES = {
    "primary key": Case(("alter table t add primary key (b, a)",), ReplicaIdentity.DEFAULT, (2, 1), True),
    "none": Case((), ReplicaIdentity.DEFAULT, None, False),
    "unique only": Case(("alter table t add unique (a)",), ReplicaIdentity.DEFAULT, None, False),
    "full": Case(("alter table t replica identity full",), ReplicaIdentity.FULL, None, True),
    "nothing": Case(
        ("alter table t add primary key (a)", "alter table t replica identity nothing"),
        ReplicaIdentity.NOTHING,
        None,
        False,
    ),
    "index": Case(
        ("create unique index t_b on t (b) include (a)", BY_INDEX),
        ReplicaIdentity.INDEX,
        (2,),
        True,
    ),
    "index beside a primary key": Case(
        ("alter table t add primary key (a)", "create unique index t_b on t (b)", BY_INDEX),
        ReplicaIdentity.INDEX,
        (2,),
        True,
    ),
    "deferrable primary key": Case(
        ("alter table t add primary key (a) deferrable",), ReplicaIdentity.DEFAULT, None, False
    ),
    "dropped index": Case(
        ("create unique index t_b on t (b)", BY_INDEX, "drop index t_b"), ReplicaIdentity.INDEX, None, False
    ),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_an_identity_is_usable_exactly_when_postgresql_lets_a_published_update_through(db: Database, name: str) -> None:
    case = IDENTITIES[name]
    db.run("create table t (a int not null, b int not null)", "insert into t values (1, 1)", *case.statements)
    found = table(db, "t")
    assert found.replica_identity is case.setting
    assert (found.identity_key.attnums if found.identity_key else None) == case.key
    assert found.identifies_rows == case.usable
    db.run("create publication p for table t")
    if case.usable:
        db.run("update t set a = 2")
    else:
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="replica identity"):
            db.run("update t set a = 2")


def test_partitions_know_their_place(db: Database) -> None:
    db.run(
        "create table root (a int, b int, primary key (a, b)) partition by range (a)",
        "create table low partition of root for values from (0) to (10)",
        "create table high partition of root for values from (10) to (20) partition by list (b)",
        "create table high1 partition of high for values in (1)",
        "create table loose (a int not null, b int not null)",
        "alter table root attach partition loose for values from (20) to (30)",
        "alter table root detach partition loose",
    )
    seen = catalog(db)
    root = named(seen)["public", "root"]
    assert (root.kind, root.filenode, root.parent) == (RelationKind.PARTITIONED, 0, None)
    assert [child.name for child in root.children] == ["public.low", "public.high"]
    assert [child.name for child in named(seen)["public", "high"].children] == ["public.high1"]
    low = named(seen)["public", "low"]
    assert low.parent == root.oid
    assert low.bound != named(seen)["public", "high"].bound
    assert named(seen)["public", "loose"].parent is None
    assert seen.by_oid[low.oid] is low


def test_inheritance_is_not_partitioning(db: Database) -> None:
    db.run("create table parent (a int)", "create table child () inherits (parent)")
    child, parent = table(db, "child"), table(db, "parent")
    assert (child.parent, child.inherits) == (None, (parent.oid,))
    assert parent.children == (Child(child.oid, "public.child"),)


def test_a_parent_names_every_child_once_but_for_temporary_ones(db: Database) -> None:
    db.run(
        "create table a (x int)",
        "create table b () inherits (a)",
        "create unlogged table c () inherits (a)",
        "create table d () inherits (b, c)",
        "alter table d rename to e",
    )
    with db.connect() as session:
        session.execute("create temporary table t () inherits (a)")
        seen = {each.name: each for each in catalog(db).tables}
    assert [child.name for child in seen["a"].children] == ["public.b", "public.c"]
    assert seen["b"].children == seen["c"].children == (Child(seen["e"].oid, ""),)


def test_a_key_on_a_generated_column_names_rows_only_where_the_stream_carries_it(db: Database) -> None:
    db.run("create table t (a int, id int generated always as (a * 2) stored primary key)")
    assert table(db, "t").identifies_rows == (db.server.install.major >= 18)


def test_unlogged_foreign_and_temporary_tables(db: Database) -> None:
    db.run("create unlogged table u (a int primary key)")
    db.admin(
        "create foreign data wrapper w",
        "create server s foreign data wrapper w",
        "create foreign table f (a int) server s",
    )
    with db.connect() as owner:
        owner.execute("create temporary table hidden (a int)")
        seen = catalog(db)
    assert named(seen)["public", "u"].persistence is Persistence.UNLOGGED
    assert not named(seen)["public", "u"].streams
    assert named(seen)["public", "f"].kind is RelationKind.FOREIGN
    assert "hidden" not in {t.name for t in seen.tables}


def test_rights_are_those_of_the_role_asked_about(db: Database) -> None:
    db.run(
        "create table open (a int, b int)",
        "create table shut (a int)",
        "create table half (a int, b int)",
        "revoke all on shut, half from mirror",
        "grant select (a) on half to mirror",
        "create schema inner_room",
        "create table inner_room.t (a int)",
        "revoke all on schema inner_room from mirror",
    )
    seen = catalog(db)
    assert {t.name: t.readable for t in seen.tables} == {"open": True, "shut": False, "half": False, "t": False}
    with db.session() as session, pytest.raises(NotPermitted), session.transaction():
        session.execute(sql.SQL("lock table public.half in access share mode").format(), "locking")
    assert all(t.readable for t in catalog(db, "app").tables)
    assert not any(t.readable for t in catalog(db, "no_such_role").tables)


def test_row_security_counts_only_where_it_hides_rows_from_us(db: Database) -> None:
    db.run("create table t (a int)", "alter table t enable row level security")
    assert table(db, "t").row_security
    assert not named(catalog(db, "app"))["public", "t"].row_security, "the owner is exempt"
    assert not named(catalog(db, "postgres"))["public", "t"].row_security, "and so is a superuser"
    db.run("alter table t force row level security")
    assert named(catalog(db, "app"))["public", "t"].row_security
    with db.session() as session:
        assert session.row("select row_security_active('public.t')") == (True,), "PostgreSQL agrees"


def test_names_that_bite_are_only_names(db: Database) -> None:
    names = [
        'quo"te',
        "sl/ash",
        "do.t",
        "..",
        "per%cent",
        "bra[ck]et{s}",
        "_lead",
        "UPPER",
        "upper",
        "select",
        "ü" * 31,
    ]
    for name in names:
        quoted = '"' + name.replace('"', '""') + '"'
        db.run(f"create schema {quoted}", f"create table {quoted}.{quoted} ({quoted} int primary key)")
    seen = catalog(db)
    for name in names:
        found = named(seen)[name, name]
        assert found.columns[0].name == name
        assert found.primary_key is not None
        assert found.primary_key.attnums == (1,)


def test_types_are_described_down_to_their_labels(db: Database) -> None:
    db.run(
        "create type mood as enum ('sad', 'ok')",
        "create domain small as int check (value < 10)",
        "create type pair as (x small, m mood[])",
        "create table t (m mood, a mood[], d small, p pair, r int4range, mr int8multirange)",
    )
    by_name = {c.name: c.type for c in table(db, "t").columns}
    assert [label for _, label in by_name["m"].labels] == ["sad", "ok"]
    assert by_name["a"].parts[0].type == by_name["m"]
    assert (by_name["d"].kind, by_name["d"].parts[0].type.name) == ("d", "pg_catalog.int4")
    assert [(p.attnum, p.name, p.type.name) for p in by_name["p"].parts] == [
        (1, "x", "public.small"),
        (2, "m", "public._mood"),
    ]
    assert by_name["r"].parts[0].type.name == "pg_catalog.int4"
    assert by_name["mr"].parts[0].type.parts[0].type.name == "pg_catalog.int8"


def test_types_are_named_as_format_type_names_them(db: Database) -> None:
    kinds = (
        *("bool", "int2", "int4", "int8", "float4", "float8", "numeric", "numeric(10,2)", "numeric(3,-2)", "text"),
        *("varchar", "varchar(20)", "char(3)", "bpchar", '"char"', "bit", "bit(5)", "varbit", "varbit(7)", "bytea"),
        *("date", "time", "time(3)", "timetz(2)", "timestamp", "timestamp(0)", "timestamptz", "timestamptz(6)"),
        *("interval", "interval(3)", "interval year to month", "interval day to second(2)", "interval hour"),
        *("json", "jsonb", "xml", "uuid", "inet", "oid", "int2vector", "name", "point", "regclass", "tsvector"),
        *("int4range", "int4multirange", "int[]", "numeric(5,1)[]", "varchar(9)[][]", "timestamptz(3)[]"),
    )
    db.run("create table t (" + ", ".join(f"c{n} {kind}" for n, kind in enumerate(kinds)) + ")")
    with db.session() as session:
        rows = session.rows(
            "select format_type(atttypid, atttypmod) from pg_attribute where attrelid = 'public.t'::regclass "
            "and attnum > 0 order by attnum"
        )
    assert [type_name(column.type, column.typmod) for column in table(db, "t").columns] == [name for (name,) in rows]
