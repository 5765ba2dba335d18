"""Fingerprints: each kind of DDL on a real server, and what it means for the mirror."""

import pytest

from harness.database import Database
from tidemark.postgres.catalog import read_catalog
from tidemark.schema.fingerprint import Effect, Fingerprint, FingerprintComparison, compare
from tidemark.target.programs import stores_column_versions

pytestmark = pytest.mark.quick

START = (
    "create type mood as enum ('sad', 'ok', 'happy')",
    "create type pair as (x int, y int)",
    "create domain code as varchar(8)",
    "create table t (id int primary key, a int, b text, v varchar(10), n numeric(10,2), m mood, p pair, c code)",
    "insert into t select i, i, 'b', 'v', 1, 'sad', row(1,2)::pair, 'c' from generate_series(1, 10) i",
)

SAME = {
    "nothing": (),
    "inserts and updates": ("update t set a = a + 1", "insert into t (id) values (99)"),
    "truncate": ("truncate t",),
    "vacuum full": ("vacuum full t",),
    "cluster": ("cluster t using t_pkey",),
    "its key rebuilt beside it": ("reindex table concurrently t",),
    "a key dropped and put back, that names the rows in the stream": (
        "alter table t drop constraint t_pkey",
        "alter table t add primary key (id)",
    ),
    "an index": ("create index on t (a)",),
    "a default for later rows": ("alter table t alter a set default 5",),
    "not null": ("alter table t alter a set not null",),
    "statistics": ("alter table t alter a set statistics 7",),
    "a check": ("alter table t add check (a > -1)",),
    "rights": ("grant select on t to public",),
    "storage": ("alter table t set (fillfactor = 50)",),
}

METADATA = {
    "a column": ("alter table t add z int",),
    "a column with a constant default": ("alter table t add z int default 7",),
    "a column dropped": ("alter table t drop b",),
    "a column dropped and added again": ("alter table t drop b", "alter table t add b text"),
    "a column renamed": ("alter table t rename b to bb",),
    "two names swapped": ("alter table t rename b to x", "alter table t rename v to b", "alter table t rename x to v"),
    "the table renamed": ("alter table t rename to u",),
    "the table moved": ("create schema s", "alter table t set schema s"),
    "varchar made longer": ("alter table t alter v type varchar(20)",),
    "varchar to text": ("alter table t alter v type text",),
    "numeric made wider": ("alter table t alter n type numeric(14,2)",),
    "its whole rows sent": ("alter table t replica identity full",),
    "an enum label added": ("alter type mood add value 'wild' before 'ok'",),
}

RESYNC = {
    "int to bigint": ("alter table t alter a type bigint",),
    "another type with the same text": ("alter table t alter a type text",),
    "a volatile default": ("alter table t add z float8 default random()",),
    "a stored generated column": ("alter table t add z int generated always as (a * 2) stored",),
    "the same type by USING": ("alter table t alter a type int using a * 100",),
    "the same type by USING, then vacuum full": ("alter table t alter a type int using a * 100", "vacuum full t"),
    "numeric with fewer digits": ("alter table t alter n type numeric(10,1)",),
    "an enum label renamed": ("alter type mood rename value 'sad' to 'blue'",),
    "a composite attribute added": ("alter type pair add attribute z int",),
    "a composite attribute replaced": ("alter type pair drop attribute x", "alter type pair add attribute z int"),
    "the key moved": (
        "alter table t drop constraint t_pkey",
        "alter table t alter a set not null",
        "alter table t add primary key (a)",
    ),
    "the key gone and back while whole rows were sent": (
        "alter table t drop constraint t_pkey",
        "alter table t replica identity full",
        "alter table t add primary key (id)",
    ),
    "unlogged": ("alter table t set unlogged",),
    "a column dropped and the rest rewritten": ("alter table t drop b", "vacuum full t"),
}


def prints(db: Database) -> dict[int, Fingerprint]:
    with db.session() as session, session.transaction():
        return {table.oid: Fingerprint.of(table, db.names.all_publications) for table in read_catalog(session).tables}


def change(db: Database, statements: tuple[str, ...]) -> FingerprintComparison:
    db.run(*START)
    ((oid, before),) = prints(db).items()
    db.run(*statements)
    return compare(before, prints(db)[oid])


@pytest.mark.parametrize("name", SAME)
def test_what_leaves_every_value_as_it_was_is_the_same(db: Database, name: str) -> None:
    assert change(db, SAME[name]) == FingerprintComparison(Effect.SAME)


@pytest.mark.parametrize("name", METADATA)
def test_what_leaves_the_rows_untouched_is_metadata(db: Database, name: str) -> None:
    found = change(db, METADATA[name])
    assert found.effect is Effect.METADATA
    assert found.reasons


@pytest.mark.parametrize("name", RESYNC)
def test_what_may_have_changed_stored_values_is_a_resync(db: Database, name: str) -> None:
    found = change(db, RESYNC[name])
    assert found.effect is Effect.RESYNC
    assert found.reasons


CANCELLED = {
    "an enum label renamed and back": (
        "alter type mood rename value 'sad' to 'blue'",
        "insert into t (id, m) values (99, 'blue')",
        "alter type mood rename value 'blue' to 'sad'",
    ),
    "a composite attribute added and dropped": (
        "alter type pair add attribute z int",
        "insert into t (id, p) values (99, row(1, 2, 3)::pair)",
        "alter type pair drop attribute z",
    ),
}


@pytest.mark.parametrize("name", CANCELLED)
def test_a_change_of_a_type_that_was_taken_back_is_a_resync(db: Database, name: str) -> None:
    """What was written in between was streamed with the other text."""
    assert change(db, CANCELLED[name]).effect is Effect.RESYNC


ABSENT = {
    "dropped from the publication and added again": (
        "alter publication {} drop table t",
        "update t set a = -1",
        "alter publication {} add table t",
    ),
    "operations left out for a while": (
        "alter publication {} set (publish = 'insert')",
        "update t set a = -1",
        "alter publication {} set (publish = 'insert, update, delete, truncate')",
    ),
    "unlogged for a while": (
        "alter publication {} drop table t",
        "alter table t set unlogged",
        "update t set a = -1",
        "alter table t set logged",
        "alter publication {} add table t",
    ),
}


@pytest.mark.parametrize("name", ABSENT)
def test_a_table_that_was_out_of_its_publication_is_a_resync(db: Database, name: str) -> None:
    db.run(*START, f"create publication {db.names.publication} for table t")
    ((oid, before),) = prints(db).items()
    assert compare(before, prints(db)[oid]).effect is Effect.SAME
    db.run(*(statement.format(db.names.publication) for statement in ABSENT[name]))
    found = compare(before, prints(db)[oid])
    assert found.effect is Effect.RESYNC
    assert "it was not published for some time, or the publication was altered" in found.reasons


def test_another_table_in_the_publication_is_no_reason(db: Database) -> None:
    db.run(*START, f"create publication {db.names.publication} for table t")
    ((oid, before),) = prints(db).items()
    db.run("create table u (a int)", f"alter publication {db.names.publication} add table u")
    assert compare(before, prints(db)[oid]) == FingerprintComparison(Effect.SAME)


def test_inheritance_is_noticed(db: Database) -> None:
    db.run("create table parent (a int)", "create table child (a int)")
    before = {p.name: p for p in prints(db).values()}
    db.run("alter table child inherit parent")
    after = {p.name: p for p in prints(db).values()}
    assert compare(before["child"], after["child"]).reasons == ("its parent tables changed",)
    inherited = compare(before["parent"], after["parent"])
    assert inherited == FingerprintComparison(Effect.METADATA, ("its child tables changed",))
    db.run("alter table child rename to other")
    renamed = {p.name: p for p in prints(db).values()}
    assert compare(after["parent"], renamed["parent"]).effect is Effect.SAME


def test_renaming_what_a_generated_column_uses_is_only_a_rename(db: Database) -> None:
    db.run("create table t (a int, g int generated always as (a * 2) stored)")
    ((oid, before),) = prints(db).items()
    db.run("alter table t rename a to b")
    assert compare(before, prints(db)[oid]).effect is Effect.METADATA


def test_the_catalogue_is_read_without_waiting_for_anyones_lock(db: Database) -> None:
    db.run(
        "create table root (a int) partition by range (a)",
        "create table leaf partition of root for values from (0) to (9)",
        "create table g (a int, b int generated always as (a * 2) stored)",
    )
    with db.connect() as owner:
        owner.execute("begin; lock table leaf, g, root in access exclusive mode")
        assert len(prints(db)) == 3


def test_rights_do_not_change_a_fingerprint(db: Database) -> None:
    db.run(*START)
    before = prints(db)
    db.run("grant select on t to public", "alter table t alter b set not null")
    ((_, old),), ((_, new),) = before.items(), prints(db).items()
    assert compare(old, new) == FingerprintComparison(Effect.SAME)


def test_a_new_column_carries_the_value_that_old_rows_have(db: Database) -> None:
    db.run(*START, "alter table t add z int default 7", "alter table t alter z set default 8")
    ((_, found),) = prints(db).items()
    assert (found.columns[-1].name, found.columns[-1].missing) == ("z", "7")


def test_a_missing_value_written_out_by_a_rewrite_is_on_the_safe_side(db: Database) -> None:
    """VACUUM FULL clears it and touches the column, just as ALTER TYPE USING would: told apart by nothing."""
    db.run(*START, "alter table t add z int default 7")
    ((oid, before),) = prints(db).items()
    db.run("vacuum full t")
    after = prints(db)[oid]
    assert (before.columns[-1].missing, after.columns[-1].missing) == ("7", None)
    assert compare(before, after).effect is Effect.RESYNC


def test_tables_that_swap_names_are_each_new_under_the_other_name(db: Database) -> None:
    db.run("create table t (a int)", "create table t_new (a int)")
    before = {p.name: p for p in prints(db).values()}
    db.run("alter table t rename to t_old", "alter table t_new rename to t")
    after = {p.name: p for p in prints(db).values()}
    assert compare(before["t"], after["t"]).effect is Effect.NEW
    assert compare(before["t"], after["t_old"]).effect is Effect.METADATA


def test_dropped_and_created_again_is_new_and_gone_is_gone(db: Database) -> None:
    db.run("create table t (a int)")
    (before,) = prints(db).values()
    db.run("drop table t", "create table t (a int)")
    (after,) = prints(db).values()
    assert compare(before, after).effect is Effect.NEW
    assert compare(before, None).effect is Effect.DROPPED
    assert compare(None, after).effect is Effect.NEW
    assert compare(None, None).effect is Effect.SAME


def test_attach_and_detach_are_membership_only(db: Database) -> None:
    db.run("create table root (a int) partition by range (a)", "create table leaf (a int)")
    before = {p.name: p for p in prints(db).values()}
    db.run("alter table root attach partition leaf for values from (0) to (9)")
    attached = {p.name: p for p in prints(db).values()}
    assert compare(before["leaf"], attached["leaf"]).reasons == ("its partitioned table or partition bound changed",)
    db.run("alter table root detach partition leaf")
    detached = {p.name: p for p in prints(db).values()}
    assert compare(attached["leaf"], detached["leaf"]).effect is Effect.METADATA
    assert compare(before["leaf"], detached["leaf"]).effect is Effect.SAME


def test_the_fingerprint_is_the_snapshots_not_the_presents(db: Database) -> None:
    db.run("create table t (a int)", "insert into t values (1)")
    with db.session() as session, session.transaction():
        (before,) = read_catalog(session).tables
        db.run("truncate t")
        (still,) = read_catalog(session).tables
        now = session.row("select pg_relation_filenode('public.t')")[0]
    assert before.filenode == still.filenode != now


def test_the_reason_names_the_column(db: Database) -> None:
    found = change(db, ("alter table t alter a type bigint",))
    assert "column 'a' changed its type from pg_catalog.int4 to pg_catalog.int8" in found.reasons
    with db.session() as session:  # such a server gives all columns behind the altered one another version
        altered = "a, b, v, n, m, p, c" if stores_column_versions(session) else "a"
    assert f"the table was rewritten and altered: {altered}" in found.reasons
