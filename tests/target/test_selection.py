"""A selection of tables is honoured exactly, and refused if a selected table cannot be created whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import quick_only
from tests.target.schema_pairs import NEWEST, Pair, pair_fixture
from tidemark.errors import DumpFailed, InvalidValue
from tidemark.postgres.catalog import read_catalog
from tidemark.schema.selection import Pattern, Selection
from tidemark.target.archive import dump_schema
from tidemark.target.dependents import LeftOut, selected_tables

pytestmark = pytest.mark.full

pair = pair_fixture((15, NEWEST))
RELATIONS = """select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
                where c.relkind in ('r', 'p', 'v', 'm', 'S') and c.oid >= 16384 order by 1, 2"""
ODD = ("a", "A", "a.b", 'a"b', "a'b", "a b", "a\nb", "a*", "a?", "a|b", "(a)", "a$", "ä", "\\d", "[a]", "a\u2028b", '"')


def chosen(pair: Pair, take: tuple[str, ...] = (), leave: tuple[str, ...] = ()) -> frozenset[int] | None:
    selection = Selection(tuple(map(Pattern, take)), tuple(map(Pattern, leave)))
    with pair.source.session("app") as session, session.transaction():
        return selected_tables(read_catalog(session), selection)


def cloned(pair: Pair, folder: Path, take: tuple[str, ...] = (), leave: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    pair.restore(pair.dump(folder, chosen(pair, take, leave)))
    return [(schema, name) for schema, name in pair.target.admin(RELATIONS)]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.mark.parametrize("excluded", quick_only(ODD, ODD[0]))
def test_an_odd_name_excludes_that_table_alone(pair: Pair, tmp_path: Path, excluded: str) -> None:
    pair.source.run(*(f"create table {quoted(name)} (id int)" for name in ODD))
    found = cloned(pair, tmp_path, leave=(quoted(excluded),))
    assert found == sorted(("public", name) for name in ODD if name != excluded)


def test_all_odd_names_are_excluded_together(pair: Pair, tmp_path: Path) -> None:
    pair.source.run('create schema "S.1"', *(f'create table "S.1".{quoted(name)} (id int)' for name in ODD))
    pair.source.run(*(f"create table {quoted(name)} (id int)" for name in ODD))
    assert cloned(pair, tmp_path, take=("public.*",)) == sorted(("public", name) for name in ODD)


def test_what_depends_on_an_excluded_table_is_left_out_and_listed(pair: Pair, tmp_path: Path) -> None:
    pair.source.run(
        "create table t (id serial primary key, note text)",
        "create table u (id int primary key, t int references t)",
        "create view v as select * from t",
        "create view w as select v.id from v join u on true",
        "create materialized view m as select * from w",
        "create index on m (id)",
        "create function f() returns setof t language sql as 'select * from t'",
        "create function g() returns int language sql as 'select 1'",
        "comment on view w is 'c'", "comment on constraint u_t_fkey on u is 'c'", "grant select on w to reader",
        "create view x as select * from u",
    )  # fmt: skip
    archive = pair.dump(tmp_path, chosen(pair, leave=("t",)))
    assert archive.relations_left_out == ("public.m", "public.t", "public.t_id_seq", "public.v", "public.w")
    assert {entry.kind for entry in archive.left_out} == {
        *("VIEW", "MATERIALIZED VIEW", "MATERIALIZED VIEW DATA", "INDEX", "SEQUENCE"),
        *("FK CONSTRAINT", "FUNCTION", "COMMENT", "ACL"),
    }
    pair.restore(archive)
    assert pair.target.admin(RELATIONS) == [("public", "u"), ("public", "x")]
    functions = "select proname from pg_proc where pronamespace = 'public'::regnamespace"
    assert pair.target.admin(functions) == [("g",)]


def test_roles_of_large_objects_are_named_with_a_selection_too(pair: Pair, tmp_path: Path) -> None:
    """All large objects are copied, when the rows of the tables are."""
    pair.source.run("create table t (id int)", "create table u (id int)", "select lo_from_bytea(50000, 'x')")
    pair.source.run("grant select on large object 50000 to reader")
    assert "reader" in pair.dump(tmp_path, chosen(pair, take=("t",))).roles.named


def test_a_partitioned_table_stands_for_its_partitions(pair: Pair, tmp_path: Path) -> None:
    pair.source.run(
        "create table p (id int primary key) partition by range (id)",
        "create table p1 partition of p for values from (0) to (10)",
        "create table p2 partition of p for values from (10) to (20)",
        "create table other (p int references p)",
    )
    assert cloned(pair, tmp_path / "1", take=("p",)) == [("public", "p"), ("public", "p1"), ("public", "p2")]
    pair.target.admin("drop table p")
    assert cloned(pair, tmp_path / "2", leave=("p2",)) == [("public", "other"), ("public", "p"), ("public", "p1")]
    with pytest.raises(InvalidValue, match=r"the selection includes public\.p1 but not"):
        pair.dump(tmp_path, chosen(pair, take=("p1",)))


@pytest.mark.parametrize(
    "statement",
    [
        "create table u () inherits (t)",
        "create table u (t t)",
        "create table u (id int default nextval('t_id_seq'))",
        "create table u (id int); create policy p on u using (exists (select from t))",
        "create table u (id int); create rule r as on insert to u do also insert into t values (1)",
        "create function f(t) returns int immutable return 1; create table u (id int check (f(null) = 1))",
    ],
)
def test_a_selected_table_that_needs_another_is_refused(pair: Pair, tmp_path: Path, statement: str) -> None:
    pair.source.run("create table t (id serial)", statement)
    with pytest.raises(InvalidValue, match=r"the selection includes public\.u but not a table"):
        pair.dump(tmp_path, chosen(pair, take=("u",)))


def test_tables_that_the_role_may_not_read_can_be_left_out(pair: Pair, tmp_path: Path) -> None:
    pair.source.admin("create table secret (id int)", "create table t (id int)", "grant select on t to app")
    with pytest.raises(DumpFailed, match="permission denied for table secret"):
        pair.dump(tmp_path)
    assert cloned(pair, tmp_path, leave=("secret",)) == [("public", "t")]


def test_the_archive_is_that_of_the_snapshot(pair: Pair, tmp_path: Path) -> None:
    pair.source.run("create table t (id int)")
    with pair.source.session("app") as session, session.transaction():
        (snapshot_id,) = session.row("select pg_export_snapshot()")
        pair.source.run("create table later (id int)")
        archive = dump_schema(pair.programs, pair.from_dsn, snapshot_id, tmp_path)
    assert [str(entry) for entry in archive.entries if entry.catalog] == ["TABLE public t app"]


def test_many_tables_fit_into_few_patterns() -> None:
    assert len(LeftOut(tables=tuple(("s", f"t{number}") for number in range(1000))).patterns()) == 7
    assert LeftOut(tables=(("S.1", 'a"b'), ("S.1", "c"))).patterns() == ['"S.1".("a""b"|"c")']


def test_the_view_of_a_schema_that_loses_its_tables_is_kept(pair: Pair, tmp_path: Path) -> None:
    pair.source.run("create schema s", "create table s.t (id int)", "create view s.v as select 1 as one")
    pair.source.run("create table u (id int)", "create sequence s.free")
    assert cloned(pair, tmp_path, take=("u",)) == [("public", "u"), ("s", "free"), ("s", "v")]
