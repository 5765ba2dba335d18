"""The directory of a clone is never used for another one that a target relies on, and is removed at the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.database import OWNER, Database, create_database
from tests.conftest import NEWEST
from tests.target.clones import publishing_role
from tidemark.clock import Lsn
from tidemark.errors import NotTheSameSource, ObjectExists
from tidemark.log.disk import Disk
from tidemark.log.mirror import NAME, LogMirror, write_mirror
from tidemark.postgres.identity import locate
from tidemark.postgres.names import MirrorNames
from tidemark.target.clone import Clone
from tidemark.target.options import CloneOptions
from tidemark.target.state import ClonePhase

pytestmark = [pytest.mark.full, NEWEST]
SLOTS = "select count(*) from pg_replication_slots where database = current_database()"


@pytest.fixture
def options(db: Database, target: Database, tmp_path: Path) -> Iterator[CloneOptions]:
    db.run("create table keyed (id int primary key, v text)")
    pg_bin = db.server.install.home / "bin"
    with publishing_role(db) as role:
        yield CloneOptions(db.dsn(role), target.dsn(OWNER), MirrorNames(db.name), tmp_path / "state", pg_bin=pg_bin)


def test_the_log_of_a_clone_is_not_used_for_another_target_until_it_is_complete_and_is_removed_then(
    db: Database, target: Database, options: CloneOptions
) -> None:
    following = replace(options, follows=True, once=True)
    Clone(following, lambda: None).run()
    second = create_database(db.server)
    try:
        other = replace(options, target=second.dsn(OWNER))
        with pytest.raises(ObjectExists, match=r"is the directory of another clone into .*") as caught:
            Clone(other, lambda: None).run()
        assert "`--name`" in caught.value.hint
        assert "`--state`" in caught.value.hint
        assert second.admin("select to_regnamespace('tidemark')") == [(None,)]
        db.run("insert into keyed values (1, 'later')")
        assert Clone(options, lambda: None).run().phase is ClonePhase.COMPLETE
        assert target.run("select id from keyed") == [(1,)]
        assert not options.folder.exists()
        Clone(replace(other, follows=True, once=True), lambda: None).run()
        assert Clone(options, lambda: None).run().phase is ClonePhase.COMPLETE
        assert db.admin(SLOTS) == [(1,)], "the slot of the other clone"
        assert Clone(other, lambda: None).run().phase is ClonePhase.COMPLETE
        assert second.run("select id from keyed") == [(1,)]
    finally:
        second.drop()


def test_a_clone_that_was_dropped_at_its_target_can_be_begun_again(
    db: Database, target: Database, options: CloneOptions
) -> None:
    following = replace(options, follows=True, once=True)
    Clone(following, lambda: None).run()
    target.admin("drop schema tidemark cascade", "drop table keyed")
    db.run("insert into keyed values (1, 'later')")
    assert Clone(options, lambda: None).run().phase is ClonePhase.COMPLETE
    assert target.run("select id from keyed") == [(1,)]


@pytest.mark.quick
def test_a_slot_and_a_log_of_another_clone_are_refused_before_anything_is_created(
    db: Database, target: Database, options: CloneOptions
) -> None:
    db.admin(f"select pg_create_logical_replication_slot('{options.names.slot}', 'pgoutput')")
    with pytest.raises(ObjectExists, match=r"is not its log") as caught:
        Clone(options, lambda: None).run()
    assert "`--state`" in caught.value.hint
    with db.session() as session:
        source = locate(session, db.dsn(), may_replicate=True).identity
    another = replace(source, system_identifier=1)
    for identity, name, kind in ((another, options.names.mirror, NotTheSameSource), (source, "other", ObjectExists)):
        options.log.mkdir(parents=True, exist_ok=True)
        write_mirror(options.log, Disk(), LogMirror(identity, name, Lsn(16)))
        with pytest.raises(kind) as refused:
            Clone(options, lambda: None).run()
        assert "Use another `--name`" in refused.value.hint
    assert db.admin("select count(*) from pg_publication") == [(0,)]
    assert target.admin("select to_regnamespace('tidemark')") == [(None,)]
    assert (options.log / NAME).exists()
