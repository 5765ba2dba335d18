"""A clone has every change of its tables: each is published with all operations before it is copied, and stays so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.database import OWNER, Database
from harness.mirrored import eventually
from tests.conftest import NEWEST
from tests.target.clones import clones, publishing_role
from tidemark.errors import InvalidValue, SourceAltered, Stopped, TidemarkError, UnsupportedServer
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.requirements import Mode
from tidemark.schema.selection import Pattern, Selection
from tidemark.storage.fail_points import AnyFailPoint, CloneFailPoint, attach, detach
from tidemark.target.clone import Clone, Cloned
from tidemark.target.options import CloneOptions
from tidemark.target.publishing import TablePublishing
from tidemark.target.state import ClonePhase

pytestmark = [pytest.mark.full, NEWEST]
SLOTS = "select count(*) from pg_replication_slots where database = current_database()"
PUBLISHED = """
    select pubname::text, array_agg(prrelid::regclass::text order by 1) from pg_publication p
    join pg_publication_rel r on r.prpubid = p.oid group by pubname order by 1
"""


@pytest.fixture
def options(db: Database, target: Database, tmp_path: Path) -> Iterator[CloneOptions]:
    """Options for a clone of two tables whose role may publish them."""
    db.run("create table keyed (id int primary key, v text)", "create table other (id int primary key, v text)")
    pg_bin = db.server.install.home / "bin"
    with publishing_role(db) as role:
        yield CloneOptions(db.dsn(role), target.dsn(OWNER), MirrorNames(db.name), tmp_path / "state", pg_bin=pg_bin)


def following(options: CloneOptions) -> Cloned:
    """Follow up to the present of the source."""
    return Clone(replace(options, follows=True, once=True), lambda: None).run()


@contextmanager
def observed(observe: Callable[[AnyFailPoint], None]) -> Iterator[None]:
    attach(observe)
    try:
        yield
    finally:
        detach(observe)


@pytest.mark.quick
def test_a_table_without_a_replica_identity_is_refused_before_anything_is_created(
    db: Database, target: Database, options: CloneOptions
) -> None:
    db.run("create table log (a int, b text)")
    for action in (lambda: list(Clone(options, lambda: None).describe()), Clone(options, lambda: None).run):
        with pytest.raises(UnsupportedServer, match=r"public\.log has no primary key or other replica identity"):
            action()
    assert (db.admin(PUBLISHED), db.admin(SLOTS)) == ([], [(0,)])
    assert target.admin("select to_regnamespace('tidemark')") == [(None,)]
    list(Clone(replace(options, mode=Mode.POLL), lambda: None).describe())


def test_a_table_that_is_created_while_the_slot_waits_is_published_before_it_is_copied(
    db: Database, target: Database, options: CloneOptions
) -> None:
    """The slot waits for a transaction that runs since before; the table is created meanwhile."""
    failed: list[BaseException] = []

    def write_later(point: AnyFailPoint) -> None:
        if point is CloneFailPoint.TABLE_COPIED:
            db.run("update late set v = 'updated'", "insert into late values (2, 'later') on conflict do nothing")

    def clone() -> None:
        try:
            Clone(options, lambda: None).run()
        except BaseException as error:  # noqa: BLE001 - raised by the other thread
            failed.append(error)

    with observed(write_later):
        with db.connect() as open_since_before:
            open_since_before.execute("begin")
            open_since_before.execute("insert into keyed values (1, 'open')")
            thread = threading.Thread(target=clone)
            thread.start()
            waiting = f"select count(*) from pg_replication_slots where slot_name = '{options.names.slot}'"
            eventually(lambda: failed or db.admin(waiting) == [(1,)], 60)
            db.run("create table late (id int primary key, v text)", "insert into late values (1, 'first')")
        thread.join()
    if failed:
        raise failed[0]
    assert target.run("select * from late order by 1") == [(1, "updated"), (2, "updated")]


def _commit(connection: psycopg.Connection[Any]) -> None:
    connection.execute("commit")


@pytest.mark.quick
def test_tables_are_copied_when_the_transactions_have_ended_that_may_have_written_them_before_they_were_published(
    db: Database, options: CloneOptions, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream omits what such a transaction wrote before."""
    publishing = TablePublishing(options)

    def stop() -> None:
        raise Stopped("stopped")

    with db.connect() as open_since_before:
        open_since_before.execute("begin")
        open_since_before.execute("insert into keyed values (1, 'before it was published')")
        publishing.publish()
        with db.connect() as open_since_later:
            open_since_later.execute("begin")
            open_since_later.execute("insert into keyed values (2, 'after it was published')")
            with pytest.raises(Stopped):
                publishing.wait(stop)
            publishing.wait(lambda: _commit(open_since_before))
    assert "the copy is waiting for running transactions: pid " in caplog.text


def test_another_selection_does_not_change_the_publication_of_a_clone(db: Database, options: CloneOptions) -> None:
    following(options)
    published = db.admin(PUBLISHED)
    for selection in (Selection((Pattern("keyed"),)), Selection(leave=(Pattern("other"),))):
        with pytest.raises(InvalidValue, match=r"was begun with neither `--table` nor `--exclude`") as caught:
            following(replace(options, selection=selection))
        assert "with neither `--table` nor `--exclude`" in caught.value.hint
        with pytest.raises(InvalidValue, match=r"was begun with"):
            list(Clone(replace(options, selection=selection), lambda: None).describe())
    assert db.admin(PUBLISHED) == published
    db.run("insert into other values (1, 'new')")
    assert Clone(options, lambda: None).run().phase is ClonePhase.COMPLETE


def test_a_table_that_left_its_publication_stops_the_clone_also_when_it_is_published_again(
    db: Database, options: CloneOptions
) -> None:
    following(options)
    published = db.admin(PUBLISHED)
    change = f"alter publication {options.names.publication} {{}} table only other"
    db.admin(change.format("drop"))
    db.run("insert into other values (1, 'not published')")
    with pytest.raises(SourceAltered, match=r"table public\.other was not published for some time"):
        following(options)
    db.admin(change.format("add"))
    assert db.admin(PUBLISHED) == published
    with pytest.raises(SourceAltered, match=r"table public\.other was not published for some time"):
        following(options)


def test_a_table_that_leaves_its_publication_stops_the_clone_that_follows(db: Database, options: CloneOptions) -> None:
    altered: list[list[tuple[object, ...]]] = []

    def stopping() -> bool:
        if not altered and any(each.may_follow and each.applied_lsn for each in clones(options)):
            altered.append(db.admin(f"alter publication {options.names.publication} drop table only other"))
        return False

    with pytest.raises(TidemarkError, match=r"not published for some time"):
        Clone(replace(options, follows=True), lambda: None).run(stopping)


def test_a_table_that_loses_its_replica_identity_stops_the_clone_and_is_not_published_otherwise(
    db: Database, options: CloneOptions
) -> None:
    following(options)
    published = db.admin(PUBLISHED)
    db.run("alter table keyed replica identity nothing", "insert into keyed values (-1, 'new')")
    with pytest.raises(SourceAltered, match=r"table public.keyed was altered .*replica identity"):
        following(options)
    assert db.admin(PUBLISHED) == published
