"""One list of requirements: doctor, setup, mode selection and receive agree on real servers in many configurations."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from harness.database import MIRROR, Database, create_database
from harness.pgbouncer import find_pgbouncer, pooled
from tests.conftest import Start, installs_from
from tidemark.clock import Lsn
from tidemark.errors import (
    NotPermitted,
    PublicationDiffers,
    SlotRecreated,
    SourceBusy,
    SourceError,
    UnsupportedServer,
)
from tidemark.postgres.capability import Choice, choose_mode
from tidemark.postgres.doctor import Report, Status, examine
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.requirements import Mode, SourceState, requirements_of
from tidemark.postgres.requirements.reading import read_state
from tidemark.postgres.session import Session
from tidemark.postgres.setup import SetupPlan, read_plan
from tidemark.postgres.slot import read_slot
from tidemark.receive.checks import check_slot_alive, check_source
from tidemark.schema.selection import Selection

pytestmark = pytest.mark.quick
install = installs_from(0)

EVERYTHING = Selection()
NOT_BY_SQL = {"replication connection", "running transactions"}  # what setup does not check


@dataclass(frozen=True)
class Agreed:
    """What all four have found."""

    report: Report
    plan: SetupPlan
    refused: SourceError | None

    @property
    def warned(self) -> set[str]:
        """The checks that doctor does not pass, but for what is so on every server of these tests."""
        names = {each.requirement.name for each in self.report.checks if each.status is not Status.PASS}
        return names - {"retained WAL", "pg_read_all_stats"}

    def is_(self, mode: Mode | None, *warned: str, refused: type[SourceError] | None = None) -> None:
        """Require a mode, the checks that did not pass, and the error with which receive refuses to start."""
        assert (self.report.mode, self.warned) == (mode, set(warned))
        assert (type(self.refused) if self.refused is not None else None) is refused


def agreed(dsn: Dsn, names: MirrorNames) -> Agreed:
    """Ask all four, and require that they agree."""
    report = examine(dsn, names)
    with Session.open(dsn, "test") as session:
        chosen = chosen_mode(session, dsn, names)
        plan = read_plan(session, names, EVERYTHING, None)
        refused = refusal_of_receive(session, dsn, names)
    if isinstance(chosen, Choice):
        assert (report.mode, report.reason) == (chosen.mode, chosen.why)
    else:
        assert report.mode is None
        assert chosen.message in report.reason
    unmet = {check.requirement.name for check in report.checks if check.status is not Status.PASS}
    assert unmet - NOT_BY_SQL == {each.name for each in plan.unmet} - NOT_BY_SQL
    fixes = "\n".join(check.fix for check in report.checks)
    assert all(str(step) in fixes for step in plan.steps), "setup has no SQL that doctor does not print"
    assert bool(plan.blocking) <= (report.mode is not Mode.LOGICAL)
    if refused is not None:
        assert report.mode is not Mode.LOGICAL
        assert any(refused.message in check.found for check in report.checks if check.status is not Status.PASS)
    return Agreed(report, plan, refused)


def chosen_mode(session: Session, dsn: Dsn, names: MirrorNames) -> Choice | SourceError:
    try:
        return choose_mode(session, dsn, names, EVERYTHING)
    except SourceError as error:
        return error


def refusal_of_receive(session: Session, dsn: Dsn, names: MirrorNames) -> SourceError | None:
    try:
        check_source(session, dsn, names, None, Lsn.ZERO)
        if read_slot(session, names.slot) is not None:
            check_slot_alive(session, names)
    except SourceError as error:
        return error
    return None


def prepared(db: Database) -> Database:
    """A database with two tables that has everything."""
    db.run("create table t (a int primary key)", "create table u (a int primary key)")
    run_setup(db)
    return db


def run_setup(db: Database) -> None:
    """Run the SQL of setup as a superuser."""
    with db.session() as session:
        steps = read_plan(session, db.names, EVERYTHING, None).steps
    db.admin(*(step.statement for step in steps if not step.restart))


def test_privileges(db: Database) -> None:
    prepared(db)
    dsn = db.dsn()
    agreed(dsn, db.names).is_(Mode.LOGICAL)
    db.run(f"revoke select on u from {MIRROR}")
    one = agreed(dsn, db.names)
    one.is_(Mode.LOGICAL, "SELECT privilege")
    assert [step.statement for step in one.plan.steps] == [f'grant select on table "public"."u" to "{MIRROR}"']
    db.run(f"revoke select on t from {MIRROR}")
    agreed(dsn, db.names).is_(None, "SELECT privilege")
    run_setup(db)
    db.run("alter table u enable row level security")
    agreed(dsn, db.names).is_(Mode.LOGICAL, "row security")
    db.run("alter table u disable row level security")
    db.admin(f"alter role {MIRROR} noreplication")
    try:
        agreed(dsn, db.names).is_(Mode.POLL, "replication privilege", refused=NotPermitted)
        db.admin("create role rds_replication", f"grant rds_replication to {MIRROR}")
        agreed(dsn, db.names).is_(Mode.POLL, "replication connection", refused=NotPermitted)
        db.admin("drop role rds_replication", "revoke execute on function pg_control_system() from public")
        agreed(dsn, db.names).is_(None, "replication privilege", "control data", refused=NotPermitted)
        db.admin(f"alter role {MIRROR} replication")
        agreed(dsn, db.names).is_(Mode.LOGICAL, "control data")
    finally:
        db.admin(f"alter role {MIRROR} replication", "drop role if exists rds_replication")


def test_publications_and_slots(db: Database) -> None:
    dsn, name = db.dsn(), db.names.publication
    agreed(dsn, db.names).is_(Mode.POLL, "publication", refused=PublicationDiffers)
    prepared(db)
    for spoil, refused in (
        (f"drop publication {name}", PublicationDiffers),
        (f"alter publication {name} set (publish = 'insert, update, truncate')", PublicationDiffers),
        (f"alter publication {name} drop table u", None),
        ("create table without_key (a int)", None),
    ):
        (db.run if "without_key" in spoil else db.admin)(spoil)
        found = agreed(dsn, db.names)
        identity = ["replica identity"] if "without_key" in spoil else []
        found.is_(Mode.POLL, "publication", *identity, refused=refused)
        run_setup(db)
        agreed(dsn, db.names).is_(Mode.LOGICAL, *identity)
    db.run("drop table without_key")
    run_setup(db)
    slot = db.names.slot
    for create, mode, refused_slot in (
        (f"pg_create_physical_replication_slot('{slot}')", Mode.POLL, SlotRecreated),
        (f"pg_create_logical_replication_slot('{slot}', 'pgoutput', false, true)", Mode.POLL, SlotRecreated),
        (f"pg_create_logical_replication_slot('{slot}', 'pgoutput')", Mode.LOGICAL, None),
    ):
        db.admin(f"select {create}")
        warned = ["slot"] if refused_slot else []
        agreed(dsn, db.names).is_(mode, *warned, refused=refused_slot)
        db.admin(f"select pg_drop_replication_slot('{slot}')")


@pytest.mark.skipif(find_pgbouncer() is None, reason="PgBouncer is not installed and cannot be unpacked")
def test_a_pooler(db: Database) -> None:
    prepared(db)
    with pooled(db) as conninfo:
        agreed(Dsn(conninfo), db.names).is_(Mode.POLL, "direct connection", refused=UnsupportedServer)


def test_a_minor_release_whose_stream_is_incomplete_is_polled(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Setup prepares it for its upgrade, and doctor reports what polling misses."""
    prepared(db)
    with db.session() as session:
        major, minor = session.version_num // 10000, session.version_num % 10000
    monkeypatch.setattr("tidemark.postgres.requirements.server._COMPLETE_FROM", {major: minor + 1})
    dsn = db.dsn()
    agreed(dsn, db.names).is_(Mode.POLL, "version", refused=UnsupportedServer)
    db.run(f"revoke select on t, u from {MIRROR}")
    agreed(dsn, db.names).is_(None, "version", "SELECT privilege", refused=UnsupportedServer)


def test_a_server_that_is_too_old_is_not_read(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.postgres.requirements.server.OLDEST", 99)
    report = examine(db.dsn(), db.names)
    assert (report.mode, [check.requirement.name for check in report.checks]) == (None, ["version"])
    with db.session() as session, pytest.raises(UnsupportedServer, match="supports version 99 and later"):
        read_plan(session, db.names, EVERYTHING, None)


def test_settings_of_the_server(start: Start) -> None:
    server = start(wal_level="replica", max_replication_slots=1, max_wal_senders=1)
    db = prepared(create_database(server))
    dsn, few = db.dsn(), ["max_replication_slots", "max_wal_senders"]
    low = agreed(dsn, db.names)
    low.is_(Mode.POLL, "wal_level", *few, refused=UnsupportedServer)
    assert [step.statement for step in low.plan.steps] == ["alter system set wal_level = logical"]
    server.restart(settings={"wal_level": "logical"})
    agreed(dsn, db.names).is_(Mode.LOGICAL, *few)
    db.admin("select pg_create_physical_replication_slot('theirs')")
    used = agreed(dsn, db.names)
    used.is_(Mode.POLL, *few, refused=SourceBusy)
    assert [step.statement for step in used.plan.steps] == ["alter system set max_replication_slots = 3"]
    db.admin("select pg_drop_replication_slot('theirs')")
    server.restart(settings={"max_replication_slots": 2, "max_wal_senders": 4})
    agreed(dsn, db.names).is_(Mode.LOGICAL)
    standby = server.standby()
    try:
        there = Database(standby, db.name)
        agreed(there.dsn(), db.names).is_(Mode.POLL, "primary", refused=UnsupportedServer)
    finally:
        standby.remove()


def test_every_requirement_that_does_not_hold_states_a_consequence_and_a_fix_or_remedy(db: Database) -> None:
    """On the state of a source that misses everything, which no real one does."""
    db.run("create table hidden (a int)", f"revoke all on hidden from {MIRROR}")
    with db.session() as session:
        state = read_state(session, db.names, EVERYTHING)
    for unmet in (each for each in requirements_of(missing_everything(state)) if not each.holds):
        assert unmet.consequence, unmet.name
        assert unmet.fixes or unmet.remedy, unmet.name
        error = unmet.error()
        assert error.hint.endswith("."), error.hint
        assert error.hint[0].isupper(), error.hint
        assert not error.message.endswith("."), error.message


def missing_everything(state: SourceState) -> SourceState:
    facts = replace(
        state.facts, version_num=130000, encoding="SQL_ASCII", in_recovery=True, pooled=True, encrypted=False,
        local=False, wal_level="replica", wal_level_pending=True, slots_max=0, senders_max=0, slot_wal_keep_mb=-1,
        idle_slot_timeout_s=60,
        role=replace(
            state.facts.role, replication=False, may_log_in=False, connects=False, sees_all_activity=False,
            emits_messages=False, reads_control_data=False,
        ),
    )  # fmt: skip
    return replace(state, facts=facts, role=facts.role)
