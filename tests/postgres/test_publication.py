"""Publications: explicit, minimal, ours alone, and harmless to the application."""

from collections.abc import Iterable

import pytest
from psycopg import sql

from harness.database import OWNER, Database
from tidemark.errors import InvalidValue, NotOurs, NotPermitted, PublicationDiffers
from tidemark.postgres import publication
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.names import MirrorNames, require_ours
from tidemark.postgres.publication import (
    Published,
    WantedPublication,
    differences,
    read_publication,
    repair_statements,
)
from tidemark.postgres.session import Session

pytestmark = pytest.mark.quick

TABLES = (
    "create table keyed (id int primary key, a int)",
    "create table keyless (a int)",
    "create table root (a int primary key) partition by range (a)",
    "create table leaf partition of root for values from (0) to (10)",
)


def wants(session: Session, names: MirrorNames) -> tuple[WantedPublication, ...]:
    with session.transaction():
        tables = [table for table in read_catalog(session).tables if table.streams]
    return publication.wanted(names, tables, session.version_num)


def verify(session: Session, wants: Iterable[WantedPublication]) -> None:
    """Refuse a publication that is not in the required state."""
    wrong = [line for want in wants for line in differences(want, read_publication(session, want.name))]
    if wrong:
        raise PublicationDiffers("; ".join(wrong), publication.PRINT_SETUP)


def bring_about(session: Session, wants: Iterable[WantedPublication]) -> None:
    """Create and alter the publications in one transaction, and verify the result."""
    everything = tuple(wants)
    with session.transaction(read_only=False):
        for want in everything:
            for statement in repair_statements(want, read_publication(session, want.name)):
                session.execute(statement, f"publication {want.name}")
        verify(session, everything)


def published(session: Session, name: str) -> Published:
    found = read_publication(session, name)
    assert found is not None
    return found


def test_the_owner_brings_both_about_and_the_mirror_verifies_them(db: Database) -> None:
    db.run(*TABLES)
    with db.session(OWNER) as owner, db.session() as mirror:
        bring_about(owner, wants(owner, db.names))
        verify(mirror, wants(mirror, db.names))
        listed = mirror.rows("select pubname, tablename from pg_publication_tables order by 1, 2")
    assert listed == [
        (db.names.publication, "keyed"),
        (db.names.publication, "leaf"),
        (db.names.inserts_publication, "keyless"),
    ]


def test_the_applications_updates_go_on_working_in_both(db: Database) -> None:
    db.run(*TABLES, "insert into keyless values (1)", "insert into keyed values (1, 1)")
    with db.session(OWNER) as owner:
        bring_about(owner, wants(owner, db.names))
    db.run("update keyless set a = 2", "delete from keyless", "update keyed set a = 2", "delete from keyed")


def test_a_role_without_the_right_changes_nothing_and_is_told_so(db: Database) -> None:
    db.run(*TABLES)
    with db.session() as mirror:
        with pytest.raises(NotPermitted) as caught:
            bring_about(mirror, wants(mirror, db.names))
        assert "tidemark setup SOURCE --print" in caught.value.hint
        with pytest.raises(PublicationDiffers, match="does not exist"):
            verify(mirror, wants(mirror, db.names))


BROKEN = {
    "a table too few": "alter publication {} drop table keyed",
    "a table too many": "alter publication {} add table keyless",
    "no updates": "alter publication {} set (publish = 'insert, delete, truncate')",
    "by the root": "alter publication {} set (publish_via_partition_root = true)",
    "a column list": "alter publication {} set table keyed (id), leaf",
    "a row filter": "alter publication {} set table keyed where (id > 5), leaf",
    "a whole schema": "drop publication {0}; create publication {0} for tables in schema public",
    "a row filter by the root": "alter publication {0} set (publish_via_partition_root = true); "
    "alter publication {0} set table root where (a > 5)",
    "all tables": "drop publication {0}; create publication {0} for all tables",
    "no generated columns": "alter publication {} set (publish_generated_columns = none)",
}


def broken(major: int) -> dict[str, str]:
    """What can be wrong on this version: lists, filters and schemas came with 15, generated columns with 18."""
    since = {
        "a column list": 15,
        "a row filter": 15,
        "a row filter by the root": 15,
        "a whole schema": 15,
        "no generated columns": 18,
    }
    return {name: statement for name, statement in BROKEN.items() if since.get(name, 0) <= major}


def test_whatever_is_wrong_with_it_is_named_and_mended(db: Database, subtests: pytest.Subtests) -> None:
    db.run(*TABLES)
    with db.session(OWNER) as owner:
        wanted = wants(owner, db.names)
        for name, statement in broken(db.server.install.major).items():
            with subtests.test(name):
                bring_about(owner, wanted)
                db.admin(*statement.format(db.names.publication).split("; "))
                assert_named_and_mended(db, owner, wanted[0])


def assert_named_and_mended(db: Database, owner: Session, want: WantedPublication) -> None:
    assert differences(want, published(owner, want.name))
    with pytest.raises(PublicationDiffers, match=want.name):
        verify(owner, [want])
    for statement in repair_statements(want, published(owner, want.name)):
        db.admin(statement.as_string(None))
    db.admin(f"alter publication {want.name} owner to {OWNER}")
    assert differences(want, published(owner, want.name)) == ()
    assert repair_statements(want, published(owner, want.name)) == ()


def test_mending_is_minimal(db: Database) -> None:
    db.run(*TABLES)
    with db.session(OWNER) as owner:
        bring_about(owner, wants(owner, db.names))
        db.run("create table more (id int primary key)")
        wanted = wants(owner, db.names)
        (statement,) = repair_statements(wanted[0], published(owner, wanted[0].name))
        assert statement.as_string(None) == f'alter publication "{db.names.publication}" add table only "public"."more"'


def test_a_publication_with_nothing_left_to_publish_goes(db: Database) -> None:
    db.run(*TABLES)
    with db.session(OWNER) as owner:
        bring_about(owner, wants(owner, db.names))
        db.run("drop table keyless")
        bring_about(owner, wants(owner, db.names))
        assert read_publication(owner, db.names.inserts_publication) is None


def test_a_parent_is_published_without_its_inheritance_children(db: Database) -> None:
    db.run("create table parent (a int primary key)", "create table child (primary key (a)) inherits (parent)")
    with db.session(OWNER) as owner:
        wanted = wants(owner, db.names)
        bring_about(
            owner, [WantedPublication(wanted[0].name, wanted[0].tables[1:], wanted[0].operations, wanted[0].generated)]
        )
        assert len(published(owner, db.names.publication).tables) == 1


def test_names_that_bite_are_quoted(db: Database) -> None:
    db.run('create schema "a.b"', 'create table "a.b"."c""; drop table x" (id int primary key)')
    with db.session(OWNER) as owner:
        bring_about(owner, wants(owner, db.names))
        assert owner.row("select tablename from pg_publication_tables") == ('c"; drop table x',)


def test_mirrors_names_cannot_run_into_each_other() -> None:
    for name in ("main_inserts", "snapshot_1", "Main", ""):
        with pytest.raises(InvalidValue, match="invalid mirror name"):
            MirrorNames(name)
    for database in ("shop", "Shop-2", "ü" * 60, "x_inserts", "snapshot_x"):
        assert MirrorNames.of_database(database).slot.startswith("tidemark_")


def test_nothing_without_our_prefix_is_touched(db: Database) -> None:
    db.run("create table t (id int primary key)", "create publication theirs for table t")
    with db.session(OWNER) as owner:
        with pytest.raises(NotOurs, match="'theirs' was not created by Tidemark"):
            publication.drop_statement("theirs")
        with pytest.raises(NotOurs):
            repair_statements(WantedPublication("theirs", wants(owner, db.names)[0].tables, ("insert",), False), None)
        owner.execute(publication.drop_statement("tidemark_not_there"), "dropping a publication that does not exist")
        assert owner.row("select count(*) from pg_publication where pubname = 'theirs'") == (1,)
    with pytest.raises(NotOurs):
        require_ours("tidemark_")


def test_a_failure_in_the_middle_leaves_nothing_half_done(db: Database) -> None:
    db.run(*TABLES)
    db.admin("create table public.zz_theirs (id int)", "grant select on zz_theirs to app")
    with db.session(OWNER) as owner:
        with pytest.raises(NotPermitted, match="zz_theirs"):
            bring_about(owner, wants(owner, db.names))
        assert owner.row("select count(*) from pg_publication") == (0,), "the first of the two is not left behind"
        owner.execute(sql.SQL("select 1").format(), "the session is still good")
