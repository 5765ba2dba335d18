"""What must be so before a stream is started, and what is wrong when it is not: each thing told apart.

A source that is not the mirror's own, a slot that is gone, lost, another one or moved by someone else, a publication
that lacks something: going on would miss changes without a word. So every connection is checked, also the hundredth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.clock import Lsn, Xid8
from tidemark.decode.binary import decoded_from_binary
from tidemark.errors import (
    RESYNC_ALL,
    NotPermitted,
    ObjectInUse,
    PublicationDiffers,
    SlotAhead,
    SlotInvalidated,
    SlotMissing,
    SlotRecreated,
    UnsupportedServer,
)
from tidemark.schema.table import Column, PgType
from tidemark.source.catalog import read_catalog
from tidemark.source.dsn import Dsn
from tidemark.source.facts import OLDEST, Facts, read_facts
from tidemark.source.identity import Identity, check_same, locate
from tidemark.source.names import MirrorNames
from tidemark.source.publication import (
    ALL_OPERATIONS,
    INSERT_OPERATIONS,
    Published,
    may_have_left_out,
    read_marks,
    read_publication,
)
from tidemark.source.rights import replication_grant
from tidemark.source.session import Session
from tidemark.source.slot import PLUGIN, Slot, SlotHealth, read_slot


@dataclass(frozen=True, slots=True)
class Source:
    """A source that was found fit."""

    identity: Identity
    publications: tuple[str, ...]
    marks: Mapping[str, str]
    types: Mapping[int, PgType]
    all_binary: bool
    xid: Xid8


def check_source(session: Session, dsn: Dsn, names: MirrorNames, known: Identity | None, position: Lsn) -> Source:
    """Look at everything but the slot. `known` is whose mirror this is, `position` how far it has come."""
    facts = read_facts(session)
    _check_server(facts)
    located = locate(session, dsn, may_replicate=True)
    if known is not None:
        check_same(known, located, position)
    publications = check_publications(session, names)
    columns = _columns(session, publications)
    types = {column.type.oid: column.type for column in columns}
    all_binary = all(decoded_from_binary(oid, types) for oid in types)
    marks = read_marks(session, publications)
    return Source(located.identity, publications, marks, types, all_binary, read_xid(session))


def _check_server(facts: Facts) -> None:
    if facts.pooled:
        raise UnsupportedServer("there is a pooler between us and the server", "PostgreSQL's own host and port")
    if facts.major < OLDEST:
        raise UnsupportedServer(f"the server is PostgreSQL {facts.version}", f"version {OLDEST} or later")
    if not facts.role.may_replicate:
        raise NotPermitted(
            f"role {facts.role.name} has no REPLICATION right",
            replication_grant(facts.role.name, facts.replication_group),
        )
    if not facts.decodes:
        raise UnsupportedServer(f"wal_level is {facts.wal_level}", "wal_level = logical, and a restart of the server")


def check_publications(session: Session, names: MirrorNames) -> tuple[str, ...]:
    """The mirror's publications, none of which leaves out what it should send."""
    operations = {names.publication: ALL_OPERATIONS, names.inserts_publication: INSERT_OPERATIONS}
    found = {name: read_publication(session, name) for name in operations}
    there = tuple(name for name, published in found.items() if published is not None)
    if not there:
        raise PublicationDiffers(
            f"publication {names.publication} does not exist", "tidemark setup, which says what the owner is to run"
        )
    wrong = [
        f"{name} {what}"
        for name, published in found.items()
        if published is not None
        for what in _left_out(published, operations[name], session.version_num)
    ]
    if wrong:
        raise PublicationDiffers("; ".join(wrong), "tidemark setup --print, which gives the SQL for the owner")
    return there


def check_marks(session: Session, names: MirrorNames, known: Mapping[str, str]) -> Mapping[str, str]:
    """Refuse publications that were altered since they were `known`, also if they are as they must be again.

    Another owner is no reason to stop: that leaves nothing out. Nor is a table that is not published any more.
    """
    present = read_marks(session, names.all_publications)
    altered = sorted(key for key, mark in known.items() if may_have_left_out(mark, present.get(key, mark)))
    gone = sorted(key for key in known if key not in present and " " not in key)
    if altered or gone:
        raise PublicationDiffers(
            f"publication {', '.join(altered + gone)} was altered, or dropped and created again, since it was last "
            "checked: changes that it left out meanwhile were never sent",
            f"{RESYNC_ALL}. If you are certain that it left nothing out: --accept-altered-publication",
        )
    return present


def _left_out(published: Published, operations: tuple[str, ...], version_num: int) -> list[str]:
    missing = [operation for operation in operations if operation not in published.operations]
    wrong = [f"does not publish {', '.join(missing)}"] if missing else []
    wrong += ["publishes leaves as their root"] if published.via_root else []
    wrong += ["has column lists or row filters"] if published.filtered else []
    wrong += ["publishes all tables or whole schemas, not a list"] if published.all_tables or published.schemas else []
    if version_num >= 180000 and not published.generated:
        wrong += ["does not publish stored generated columns"]
    return wrong


def _columns(session: Session, publications: tuple[str, ...]) -> list[Column]:
    published = {oid for name in publications if (found := read_publication(session, name)) for oid in found.tables}
    with session.transaction():
        tables = [table for table in read_catalog(session).tables if table.oid in published]
    return [column for table in tables for column in table.columns]


def read_xid(session: Session) -> Xid8:
    """A full transaction id of the present."""
    return Xid8.parse(session.row("select pg_snapshot_xmax(pg_current_snapshot())::text")[0])


def check_slot(session: Session, names: MirrorNames, position: Lsn | None) -> Slot:
    """The mirror's slot, free, and fit to go on from `position`, or from its own where we hold nothing yet."""
    slot = check_slot_alive(session, names)
    if position is not None:
        _check_position(slot, position)
    if slot.active_pid is not None:
        raise ObjectInUse(
            f"slot {names.slot} is in use by the server process {slot.active_pid}",
            f"stop whoever that is; pg_stat_activity knows, and pg_terminate_backend({slot.active_pid}) ends it",
        )
    return slot


def check_not_moved(session: Session, names: MirrorNames, position: Lsn) -> None:
    """The same once more when the slot is ours: until then anybody could have moved it."""
    _check_position(check_slot_alive(session, names), position)


def check_slot_alive(session: Session, names: MirrorNames) -> Slot:
    """The mirror's slot, there and as we created it."""
    slot = read_slot(session, names.slot)
    if slot is None:
        raise SlotMissing(f"slot {names.slot} does not exist any more", RESYNC_ALL)
    if slot.health is SlotHealth.LOST or slot.invalidation_reason is not None:
        why = slot.invalidation_reason or "its WAL was removed (max_slot_wal_keep_size)"
        raise SlotInvalidated(f"slot {names.slot} was invalidated by the server: {why}", RESYNC_ALL)
    _check_kind(slot, session)
    return slot


def _check_kind(slot: Slot, session: Session) -> None:
    (database,) = session.row("select current_database()")
    if (slot.plugin, slot.database, slot.temporary, slot.two_phase) != (PLUGIN, database, False, False):
        kind = f"plugin {slot.plugin}, database {slot.database}, temporary {slot.temporary}, two-phase {slot.two_phase}"
        raise SlotRecreated(f"slot {slot.name} is not the one we created: {kind}", RESYNC_ALL)


def _check_position(slot: Slot, position: Lsn) -> None:
    """A slot only ever moves forward, and only to where we confirmed; after a crash of the server it may lie behind."""
    if slot.confirmed_flush is None or slot.restart is None or slot.restart > position:
        raise SlotRecreated(
            f"slot {slot.name} starts at {slot.restart}, and we hold only what lies up to {position}: it was dropped "
            "and created again, or moved far ahead",
            RESYNC_ALL,
        )
    if slot.confirmed_flush > position:
        raise SlotAhead(
            f"slot {slot.name} was moved to {slot.confirmed_flush} by someone else; we hold all up to {position}",
            RESYNC_ALL,
        )
