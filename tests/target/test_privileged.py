"""Objects that need a superuser, and owners: what is named before, left out, or created by a superuser."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.target import hostile
from tests.target.schema_pairs import PAIRS, Pair, pair_fixture
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session
from tidemark.target.archive import DumpArchive, dump_schema
from tidemark.target.definitions import restore_stage
from tidemark.target.needs import may_set_owners, missing_at_target
from tidemark.target.stages import CloneStage

pytestmark = pytest.mark.full

pair = pair_fixture(*PAIRS)


def admin_dsn(pair: Pair) -> Dsn:
    return Dsn(pair.target.server.dsn("postgres", pair.target.name))


def dumped_by_superuser(pair: Pair, folder: Path) -> DumpArchive:
    pair.source.admin(hostile.PRIVILEGED)
    return dump_schema(pair.programs, Dsn(pair.source.server.dsn("postgres", pair.source.name)), None, folder)


def test_a_superuser_restores_every_object_with_its_owner(pair: Pair, tmp_path: Path) -> None:
    pair.fill()
    archive = dumped_by_superuser(pair, tmp_path)
    with Session.open(admin_dsn(pair), "test") as session:
        missing = missing_at_target(session, archive)
        missing.require()
        assert missing.superuser == ()
        assert may_set_owners(session, archive)
    for stage in CloneStage:
        for jobs in (1, 3):
            restore_stage(pair.programs, admin_dsn(pair), archive, stage, jobs, keep_owners=True)
    assert pair.statements(pair.target) == pair.expected()


def test_owners_that_an_interrupted_restore_did_not_set_are_set(pair: Pair, tmp_path: Path) -> None:
    pair.fill()
    archive = dumped_by_superuser(pair, tmp_path)
    for stage in CloneStage:
        restore_stage(pair.programs, admin_dsn(pair), archive, stage)
    assert pair.statements(pair.target) != pair.expected()
    for stage in CloneStage:
        restore_stage(pair.programs, admin_dsn(pair), archive, stage, keep_owners=True)
    assert pair.statements(pair.target) == pair.expected()


def test_what_needs_a_superuser_is_named_and_can_be_left_out(pair: Pair, tmp_path: Path) -> None:
    archive = dumped_by_superuser(pair, tmp_path)
    with pair.target.session("app") as session:
        missing = missing_at_target(session, archive)
        assert not may_set_owners(session, archive)
    missing.require()
    named = {f"{entry.kind} {entry.rest.split()[1]}" for entry in missing.superuser}
    assert named == {
        *("EVENT TRIGGER Odd.event", "COMMENT EVENT", "FOREIGN DATA WRAPPER nothing", "SERVER elsewhere"),
        *("USER MAPPING USER", "FOREIGN TABLE remote", "SHELL TYPE opaque", "FUNCTION opaque_in(cstring)"),
        *("FUNCTION opaque_out(guard.opaque)", "TYPE opaque", "CAST CAST", "OPERATOR FAMILY ints"),
        *("OPERATOR CLASS ints", "ACCESS METHOD heap2", "ACL FUNCTION"),
    }
    for stage in CloneStage:
        restore_stage(
            pair.programs, pair.to_dsn, archive, stage, without={entry.dump_id for entry in missing.superuser}
        )
    assert pair.target.run("select count(*) from guard.owned_by_app") == [(0,)]
    assert pair.target.admin("select proname from pg_proc where pronamespace = 'guard'::regnamespace") == [
        ("check_ddl",)
    ]


def test_owners_are_kept_by_a_role_that_may_set_them(pair: Pair, tmp_path: Path) -> None:
    pair.source.run("create schema s", "create table s.t (id int)")
    with pair.target.session("app") as session:
        assert may_set_owners(session, pair.dump(tmp_path))
        pair.source.admin("alter table s.t owner to reader")
        archive = dumped(pair, tmp_path)
        assert archive.owners == ("app", "reader")
        assert not may_set_owners(session, archive)
    with Session.open(admin_dsn(pair), "test") as session:
        assert may_set_owners(session, archive)


def dumped(pair: Pair, folder: Path) -> DumpArchive:
    return dump_schema(pair.programs, Dsn(pair.source.server.dsn("postgres", pair.source.name)), None, folder)
