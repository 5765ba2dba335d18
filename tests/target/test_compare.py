"""Two servers compared: rows by content, differences by key, and refusals instead of guesses."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from psycopg import sql

from harness.database import MIRROR, OWNER, Database, create_database
from harness.pgbouncer import find_pgbouncer, pooled
from harness.postgres import Server
from harness.standby import standby_of, wait_for
from tests.conftest import Start
from tests.mirror.compare.edges import VALUES, split
from tests.target.pairs import Pair, differing
from tidemark import errors
from tidemark.mirror.compare import narrowing
from tidemark.mirror.compare.narrowing import Difference, Verdict
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.shared import SharedSnapshot
from tidemark.reads.canonical import ComparedColumn, source_row
from tidemark.target.compare.servers import compare_servers, open_snapshots

pytestmark = pytest.mark.full

EQUAL, DIFFERENT, NOT_COMPARED = Verdict.EQUAL, Verdict.DIFFERENT, Verdict.NOT_COMPARED
MISSING, EXTRA, OTHER = Difference.MISSING, Difference.EXTRA, Difference.OTHER
HIDDEN = f'"public"."hidden" to "{MIRROR}'
MOODS = (
    "create type mood as enum ('sad', 'so so')",
    "create domain share as float8",
    "create type two as (a int, b text)",
)


@pytest.fixture
def pair(db: Database, server: Server) -> Iterator[Pair]:
    target = create_database(server)
    yield Pair(db, target)
    target.drop()


def test_every_value_of_every_type_is_equal_to_itself(pair: Pair) -> None:
    pair.target.run("create type mood as enum ('so so')", "alter type mood add value 'sad' before 'so so'")
    pair.source.run(MOODS[0])
    pair.both(*MOODS[1:])
    values = {
        **VALUES, "mood": "'sad', 'so so'", "mood[]": "'{sad,\"so so\"}'", "share": "0.1, 'NaN'",
        "two": "row(1,'a b')::two", "two[]": "array[row(1,null)::two]", "regclass": "'pg_class', 'mood_table'",
    }  # fmt: skip
    columns = [f"c{number} {kind}" for number, kind in enumerate(values)]
    pair.target.run("create table moved ()")  # so that OIDs differ
    pair.both("create table mood_table ()", f"create table every (id int primary key, {', '.join(columns)})")
    texts = [(name, text) for name, (_, listed) in enumerate(values.items()) for text in split(listed)]
    kinds = list(values)
    for database in (pair.source, pair.target):
        with database.connect() as connection:
            for number, (name, text) in enumerate(texts):
                connection.execute(
                    f"insert into every (id, c{name}) values ({number}, cast({text} as {kinds[name]}))".encode()
                )
    done = pair.compared("every", values=True)["public.every"]
    assert done.verdict is EQUAL, done
    assert done.source == done.target
    assert done.source is not None
    assert done.source.rows == len(texts)


def test_every_char_has_the_text_that_postgresql_prints_from_version_15_on(db: Database) -> None:
    db.run('create table bytes (c "char")', 'insert into bytes select n::"char" from generate_series(-128, 127) n')
    canonical = source_row([ComparedColumn("c", "c", pa.binary(1), None)])
    with db.connect() as connection:
        query = sql.SQL("select count(*), count(*) filter (where {} = row(c)::text) from bytes").format(canonical)
        assert connection.execute(query).fetchone() == (256, 256)


CHANGES = {
    "float8": ("0", "'-0'"),
    "float4": ("'NaN'", "'inf'"),
    "numeric": ("1.0", "1.00"),
    "char(3)": ("'a'", "'b'"),
    "text": ("'a'", "'a '"),
    "varchar": ("''", "null"),
    "json": ("'{\"a\":1}'", "'{\"a\": 1}'"),
    "bytea": ("'\\x00'", "'\\x0000'"),
    "int[]": ("'{1}'", "'{1,NULL}'"),
    "two": ("row(1,'a')::two", "row(1,null)::two"),
    "mood": ("'sad'", "'so so'"),
    "timestamptz": ("'infinity'", "'-infinity'"),
    "timestamp": ("'2024-01-01'", "'2024-01-01 00:00:00.000001'"),
    "regclass": ("'pg_class'", "'pg_type'"),
    "interval": ("'1 day'", "'24 hours'"),
}


def test_a_value_that_reads_otherwise_is_a_difference_in_its_column(pair: Pair) -> None:
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(CHANGES))
    pair.both(*MOODS, f"create table t (id int primary key, {columns})")
    for number, (kind, texts) in enumerate(CHANGES.items()):
        for database, text in zip((pair.source, pair.target), texts, strict=True):
            database.run(f"insert into t (id, c{number}) values ({number}, cast({text} as {kind}))")
    done = pair.compared()["public.t"]
    assert differing(done) == [
        (OTHER, f"({number})", (f"c{number}",)) for number in sorted(range(len(CHANGES)), key=str)
    ]


def test_equal_texts_of_two_types_are_equal(pair: Pair) -> None:
    pair.source.run("create table t (id int primary key, a json, b char(3), c int, d numeric(5,2))")
    pair.target.run("create table t (d numeric, c bigint, b text, a jsonb, id bigint primary key)")
    pair.both("insert into t (id, a, b, c, d) values (1, '{\"a\": 1}', 'a  ', 7, 1.50)")
    assert pair.compared()["public.t"].verdict is EQUAL
    pair.source.run("update t set a = '{\"a\":1}'")
    assert differing(pair.compared()["public.t"]) == [(OTHER, "(1)", ("a",))]


@pytest.mark.parametrize("few", [10_000, 3])
@pytest.mark.parametrize(
    ("key", "made", "named"),
    [
        ("bigint", "n", "({})"),
        ("text", "'k ' || n", '("k {}")'),
        ("float8", "n / 10.0", None),
        ("uuid", "('00000000-0000-0000-0000-' || lpad((n + 500)::text, 12, '0'))::uuid", None),
    ],
)
def test_a_missing_an_extra_and_a_changed_row_are_named_by_key(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, key: str, made: str, named: str | None, few: int
) -> None:
    monkeypatch.setattr(narrowing, "FEW", few)
    pair.both(
        f"create table t (id {key} primary key, v text, w int)",
        f"insert into t select {made}, 'v' || n, n from generate_series(-500, 500) n",
    )
    pair.target.run("delete from t where w = 7", "update t set v = 'other' where w = 8")
    pair.source.run("delete from t where w = -9")
    done = pair.compared()["public.t"]
    names = dict(pair.source.run("select w, row(id)::text from t"))
    found = {how: (text, columns) for how, text, columns in differing(done)}
    assert set(found) == {MISSING, EXTRA, OTHER}
    assert found[MISSING] == (names[7], ())
    assert found[OTHER] == (names[8], ("v",))
    assert found[EXTRA] == (pair.target.run("select row(id)::text from t where w = -9")[0][0], ())
    assert named is None or found[EXTRA][0] == named.format(-9)
    assert done.source is not None
    assert done.target is not None
    assert (done.source.rows, done.target.rows) == (1000, 1000)


def test_ranges_do_not_depend_on_collations(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrowing, "FEW", 3)
    other = "pg_c_utf8" if pair.source.server.install.major >= 17 else "ucs_basic"
    if pair.target.admin("select count(*) > 9 from pg_collation where collprovider = 'i'") == [(True,)]:
        pair.target.run("create collation odd (provider = icu, locale = 'und-u-ks-level1', deterministic = false)")
        other = "odd"
    pair.source.run('create table t (id text collate "C" primary key, v int)')
    pair.target.run(f'create table t (id text collate "{other}" primary key, v int)')
    pair.both("insert into t select chr(65 + n % 50) || 'ä_' || n, n from generate_series(1, 500) n")
    assert pair.compared()["public.t"].verdict is EQUAL
    pair.target.run("update t set v = 0 where v = 60", "update t set id = lower(id) where v = 57")
    found = {(how, key) for how, key, _ in differing(pair.compared()["public.t"])}
    assert found == {(OTHER, "(Kä_60)"), (MISSING, "(Hä_57)"), (EXTRA, "(hä_57)")}


def test_composite_keys_and_keys_that_only_one_server_has(pair: Pair) -> None:
    pair.both(
        "create table t (a text, b int, v int, primary key (b, a))", "insert into t values ('x', 1, 1), ('y', 2, 2)"
    )
    pair.source.run("create table k (id int primary key, v int)")
    pair.target.run("create table k (id int, v int)")
    pair.both("insert into k values (1, 1)")
    pair.target.run("update t set v = 3 where a = 'y'", "insert into k values (1, 1), (null, 5)")
    done = pair.compared(values=True)
    assert differing(done["public.t"]) == [(OTHER, "(2,y)", ("v",))]
    assert differing(done["public.k"]) == [(EXTRA, "()", ()), (EXTRA, "(1)", ())]
    assert done["public.k"].found is not None
    assert done["public.k"].found.differing[0].other == ("(,5)",)


def test_tables_without_a_key_are_multisets(pair: Pair) -> None:
    pair.both("create table bag (v int, w text)", "insert into bag values (1, 'a'), (1, 'a'), (2, null), (2, '')")
    assert pair.compared()["public.bag"].verdict is EQUAL
    pair.target.run("insert into bag values (1, 'a')", "delete from bag where v = 2 and w is null")
    done = pair.compared(values=True)["public.bag"]
    assert done.found is not None
    rows = [(row.how, row.source, row.other) for row in done.found.differing]
    assert rows == [(EXTRA, (), ("(1,a)",)), (MISSING, ("(2,)",), ())]


def test_tables_without_rows_or_columns(pair: Pair) -> None:
    pair.both("create table none (id int primary key)", "create table bare ()")
    assert {done.verdict for done in pair.compared().values()} == {EQUAL}
    pair.source.run("insert into none values (1)", "insert into bare default values")
    done = pair.compared()
    assert differing(done["public.none"]) == [(MISSING, "(1)", ())]
    assert differing(done["public.bare"]) == [(MISSING, None, ())]


def test_at_most_the_limit_of_differences_is_listed(pair: Pair) -> None:
    pair.both("create table t (id int primary key)")
    pair.source.run("insert into t select generate_series(1, 50)")
    found = pair.compared(limit=5)["public.t"].found
    assert found is not None
    assert (len(found.differing), found.more) == (5, True)


def test_tables_and_columns_of_one_server_are_differences(pair: Pair) -> None:
    pair.source.run("create table gone (a int)", "create table t (id int primary key, a int, b int)")
    pair.target.run(
        "create schema new", "create table new.more (a int)", "create table t (b int, id int primary key, c int)"
    )
    pair.both("insert into t (id, b) values (1, 1)")
    done = pair.compared()
    assert {name: (each.verdict, each.definition) for name, each in done.items()} == {
        "new.more": (DIFFERENT, ("exists only at the target",)),
        "public.gone": (DIFFERENT, ("exists only at the source",)),
        "public.t": (DIFFERENT, ("column a exists only at the source", "column c exists only at the target")),
    }
    assert done["public.t"].found is None
    pair.target.run("update t set b = 2")
    assert differing(pair.compared("t")["public.t"]) == [(OTHER, "(1)", ("b",))]


def test_generated_columns_are_compared(pair: Pair) -> None:
    kinds = ["stored", "virtual"] if pair.source.server.install.major >= 18 else ["stored"]
    for number, kind in enumerate(kinds):
        pair.source.run(f"create table g{number} (a int primary key, b int generated always as (a * 2) {kind})")
        pair.target.run(f"create table g{number} (a int primary key, b int generated always as (a * 3) {kind})")
        pair.both(f"insert into g{number} values (0), (1)")
        assert differing(pair.compared()[f"public.g{number}"]) == [(OTHER, "(1)", ("b",))]


def test_partitions_and_inheriting_tables_are_tables_of_their_own(pair: Pair) -> None:
    pair.both(
        "create table p (id int primary key, v int) partition by range (id)",
        "create table p1 partition of p for values from (0) to (10)",
        "create table p2 partition of p for values from (10) to (20)",
        "create table top (id int primary key)",
        "create table under (v int) inherits (top)",
        "insert into p values (1, 1), (11, 1)",
        "insert into top values (1)",
        "insert into under values (2, 2)",
    )
    assert {name: done.verdict for name, done in pair.compared().items()} == dict.fromkeys(
        ("public.p1", "public.p2", "public.top", "public.under"), EQUAL
    )
    pair.target.run(
        "update p set v = 2 where id = 11", "insert into under values (3, 3)", "alter table under no inherit top"
    )
    done = pair.compared()
    assert differing(done["public.p2"]) == [(OTHER, "(11)", ("v",))]
    assert done["public.top"].verdict is EQUAL
    assert done["public.under"].definition == ("its parents are public.top at the source, none at the target",)
    assert differing(done["public.under"]) == [(EXTRA, None, ())]
    pair.target.run("alter table p detach partition p1", "drop table p2", "drop table p", "create table p (id int)")
    done = pair.compared("p")
    assert done["public.p"].definition == (
        "a partitioned table at the source, a table at the target",
        "column v exists only at the source",
    )
    assert done["public.p2"].definition == ("exists only at the source",)


def test_odd_names_and_patterns(pair: Pair) -> None:
    pair.both(
        'create schema "S.1"', 'create table "S.1"."Odd ""name"" %s {}" ("a b" int primary key, "ä""%" text)',
        'insert into "S.1"."Odd ""name"" %s {}" values (1, \'x\')', "create table plain (a int)",
    )  # fmt: skip
    name = 'S.1.Odd "name" %s {}'
    assert pair.compared().keys() == {name, "public.plain"}
    pair.target.run('update "S.1"."Odd ""name"" %s {}" set "ä""%" = null')
    done = pair.compared('"S.1".*')
    assert done.keys() == {name}
    assert differing(done[name]) == [(OTHER, "(1)", ('ä"%',))]
    with pytest.raises(errors.InvalidValue, match="neither the source nor the target has a table that matches 'other'"):
        pair.compared("plain", "other")


def test_no_tables_are_an_error_and_not_equal(pair: Pair) -> None:
    with pytest.raises(errors.InvalidValue, match="no table to compare"):
        pair.compared()


def test_the_state_of_a_clone_is_not_compared(pair: Pair) -> None:
    pair.both("create table t (a int)")
    pair.target.run("create schema tidemark", "create table tidemark.tables (a int)")
    assert pair.compared().keys() == {"public.t"}


def test_a_table_that_may_not_be_read_is_named_with_the_grant(pair: Pair) -> None:
    pair.both("create table t (a int)", "create table hidden (a int)", "create schema s", "create table s.t (a int)")
    pair.target.run(f"revoke all on hidden from {MIRROR}", f"revoke all on schema s from {MIRROR}")
    done = pair.compared()
    assert done["public.t"].verdict is EQUAL
    assert (done["public.hidden"].verdict, done["public.hidden"].reason) == (
        NOT_COMPARED,
        f'role {MIRROR} may not read public.hidden at the target\nHint: Run `grant select on table {HIDDEN}"`.',
    )
    assert f'grant usage on schema "s" to "{MIRROR}"' in done["s.t"].reason
    pair.source.run(f"revoke all on hidden from {MIRROR}")
    assert f"role {MIRROR} may not read public.hidden\n" in pair.compared("hidden")["public.hidden"].reason


def test_row_security_that_hides_rows_prevents_the_comparison(pair: Pair) -> None:
    pair.both("create table t (a int)", "insert into t values (1)")
    pair.target.run("alter table t enable row level security")
    done = pair.compared()["public.t"]
    assert done.verdict is NOT_COMPARED
    assert f'Run `alter role "{MIRROR}" bypassrls`.' in done.reason
    assert pair.compared(user=OWNER)["public.t"].verdict is EQUAL, "the owner is exempt"


def test_a_sample_is_the_same_on_both_servers(pair: Pair) -> None:
    pair.both("create table t (id int primary key)", "insert into t select generate_series(1, 1000)")
    done = pair.compared(sample=1000)["public.t"]
    assert done.verdict is EQUAL
    assert done.source is not None
    assert 0 < done.source.rows < 300


def test_both_sides_are_read_in_their_snapshots(pair: Pair) -> None:
    pair.both("create table t (id int primary key)", "create table gone (a int)", "insert into t values (1)")
    with open_snapshots(pair.source.dsn(), pair.target.dsn(), 60) as snapshots:
        pair.source.run("insert into t values (2)")
        pair.target.run("delete from t", "truncate gone")
        done = {each.name: each for each in compare_servers(*snapshots)}
    assert done["public.t"].verdict is EQUAL
    assert done["public.gone"].verdict is NOT_COMPARED
    assert "table public.gone at the target was truncated or rewritten after the snapshot" in done["public.gone"].reason
    assert differing(pair.compared("t")["public.t"]) == [(MISSING, "(1)", ()), (MISSING, "(2)", ())]


def test_snapshots_of_other_processes_are_compared(pair: Pair) -> None:
    """As for a clone that follows: another process holds the target's snapshot, and hands over its name."""
    pair.both("create table t (id int primary key)", "insert into t values (1)")
    with open_snapshots(pair.source.dsn(), pair.target.dsn(), 60) as (source, target):
        named = SharedSnapshot(pair.target.dsn(), None, target.name, target.server)
        pair.target.run("delete from t")
        assert [each.verdict for each in compare_servers(source, named)] == [EQUAL]


def test_sequences_are_compared_if_requested(pair: Pair) -> None:
    pair.both(
        "create table t (id serial primary key)", "create sequence same", "create sequence hidden",
        f"grant select on all sequences in schema public to {MIRROR}", f"revoke all on sequence hidden from {MIRROR}",
    )  # fmt: skip
    pair.source.run("select nextval('t_id_seq')", "create sequence alone")
    done = pair.compared(sequences=True)
    assert {name: (each.verdict, each.definition) for name, each in done.items() if each.kind == "sequence"} == {
        "public.hidden": (NOT_COMPARED, ()),
        "public.alone": (DIFFERENT, ("exists only at the source",)),
        "public.same": (EQUAL, ()),
        "public.t_id_seq": (
            DIFFERENT,
            ("last_value 1, is_called true at the source; last_value 1, is_called false at the target",),
        ),
    }
    assert f'grant select on sequence "public"."hidden" to "{MIRROR}"' in done["public.hidden"].reason
    assert pair.compared().keys() == {"public.t"}


def test_the_same_database_twice_is_refused(pair: Pair) -> None:
    pair.both("create table t (a int)")
    with (
        pytest.raises(errors.InvalidValue, match="are the same database"),
        open_snapshots(pair.source.dsn(), pair.source.dsn(OWNER), 60),
    ):
        pass


@pytest.mark.full
def test_a_standby_is_another_server(start: Start) -> None:
    primary = create_database(start())
    primary.run("create table t (id int primary key)", "insert into t values (1)")
    with standby_of(primary) as standby:
        wait_for(standby, primary)
        for pair in (Pair(primary, standby), Pair(standby, primary)):
            assert pair.compared()["public.t"].verdict is EQUAL


def test_an_unreachable_target_is_named(pair: Pair) -> None:
    with (
        pytest.raises(errors.SourceUnreachable, match="cannot connect to the target, host="),
        open_snapshots(pair.source.dsn(), Dsn("host=127.0.0.1 port=1 user=x"), 60),
    ):
        pass


@pytest.mark.skipif(find_pgbouncer() is None, reason="no PgBouncer here and none to be unpacked")
def test_a_pooler_between_does_not_change_the_result(pair: Pair) -> None:
    pair.both("create table t (id int primary key, r regclass)", "insert into t values (1, 't')")
    pair.target.admin(f"alter role {MIRROR} in database {pair.target.name} set search_path = public")
    with pooled(pair.target) as through, open_snapshots(pair.source.dsn(), Dsn(through), 60) as snapshots:
        assert [each.verdict for each in compare_servers(*snapshots)] == [EQUAL]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_databases_with_other_encodings(db: Database, server: Server, encoding: str) -> None:
    pair = Pair(create_database(server, encoding), db)
    try:
        pair.both("create table tä (id text primary key, v text)", "insert into tä values ('ü', 'ö')")
        assert pair.compared()["public.tä"].verdict is EQUAL
        pair.target.run("update tä set v = 'Ö'")
        assert differing(pair.compared()["public.tä"]) == [(OTHER, "(ü)", ("v",))]
        if encoding == "SQL_ASCII":
            pair.source.run("insert into tä values (e'\\xff', e'\\xfe')")
            assert differing(pair.compared()["public.tä"])[0] == (MISSING, "(\\xff)", ())
    finally:
        pair.source.drop()
