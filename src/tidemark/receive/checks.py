"""Checks before every stream: the requirements of logical decoding, and that no change was missed since the last one.

A different source, a slot that was dropped, invalidated, replaced or moved, and a publication that omits changes would
each lose changes silently, so these checks precede every connection, not only the first one.

A binary stream may contain only types that are decoded from binary. Tables can be altered during a stream. pgoutput
sends the Relation message of a table before its rows, so a column that must be sent as text is detected before any of
its values is in the log. The stream is then restarted: as text, or in binary again if the current catalog shows that
the type is decoded from binary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tidemark.clock import Lsn, Xid8
from tidemark.errors import (
    RESYNC_ALL,
    NotAllBinary,
    ObjectInUse,
    PublicationDiffers,
    SlotAhead,
    SlotMissing,
    SlotRecreated,
)
from tidemark.pgoutput.binary import decoded_from_binary
from tidemark.pgoutput.messages import Reader, read_relation
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.identity import Identity, check_same, locate
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.publication import (
    ALL_OPERATIONS,
    INSERT_OPERATIONS,
    PRINT_SETUP,
    may_have_left_out,
    omissions,
    read_marks,
    read_publication,
)
from tidemark.postgres.requirements import Mode, capacity_requirements, require, server_requirements
from tidemark.postgres.requirements.objects import slot_requirement
from tidemark.postgres.requirements.reading import read_server
from tidemark.postgres.session import Session
from tidemark.postgres.slot import Slot, read_slot
from tidemark.schema.table import Column, PgType


@dataclass(frozen=True, slots=True)
class CheckedSource:
    """A source that passed the checks."""

    identity: Identity
    publications: tuple[str, ...]
    marks: Mapping[str, str]
    types: Mapping[int, PgType]
    all_binary: bool
    xid: Xid8


def check_source(
    session: Session, dsn: Dsn, names: MirrorNames, known: Identity | None, position: Lsn
) -> CheckedSource:
    """Check everything except the slot.

    `known` is the identity of the mirror's source, or None on the first start; `position` is the received LSN.
    """
    state = read_server(session, names)
    require(server_requirements(state), Mode.LOGICAL)
    if known is None:
        require(capacity_requirements(state), Mode.LOGICAL)
    located = locate(session, dsn, may_replicate=True)
    if known is not None:
        check_same(known, located, position)
    publications = check_publications(session, names)
    columns = _columns(session, publications)
    types = {column.type.oid: column.type for column in columns}
    all_binary = all(decoded_from_binary(oid, types) for oid in types)
    marks = read_marks(session, publications)
    return CheckedSource(located.identity, publications, marks, types, all_binary, read_xid(session))


def check_publications(session: Session, names: MirrorNames) -> tuple[str, ...]:
    """The names of the mirror's publications, after checking that none of them omits changes that it should send."""
    operations = {names.publication: ALL_OPERATIONS, names.inserts_publication: INSERT_OPERATIONS}
    found = {name: read_publication(session, name) for name in operations}
    there = tuple(name for name, published in found.items() if published is not None)
    if not there:
        raise PublicationDiffers(f"publication {names.publication} does not exist", PRINT_SETUP)
    generated = session.version_num >= 180000
    wrong = [
        what
        for name, published in found.items()
        if published is not None
        for what in omissions(published, operations[name], generated=generated)
    ]
    if wrong:
        raise PublicationDiffers("; ".join(wrong), PRINT_SETUP)
    return there


def check_marks(session: Session, names: MirrorNames, known: Mapping[str, str]) -> Mapping[str, str]:
    """Refuse publications that were altered since the marks `known` were read, even if they were altered back.

    A change of owner omits no changes and is accepted, and so is a table that is no longer published.
    """
    present = read_marks(session, names.all_publications)
    altered = sorted(key for key, mark in known.items() if may_have_left_out(mark, present.get(key, mark)))
    gone = sorted(key for key in known if key not in present and " " not in key)
    if altered or gone:
        raise PublicationDiffers(
            f"publication {', '.join(altered + gone)} was altered, or dropped and created again, since it was last "
            "checked; changes that it left out in between were not sent",
            f"{RESYNC_ALL.rstrip('.')}. If it left out no change, run the command with --accept-altered-publication.",
        )
    return present


def _columns(session: Session, publications: tuple[str, ...]) -> list[Column]:
    published = {oid for name in publications if (found := read_publication(session, name)) for oid in found.tables}
    with session.transaction():
        tables = [table for table in read_catalog(session).tables if table.oid in published]
    return [column for table in tables for column in table.columns]


def read_xid(session: Session) -> Xid8:
    """The next transaction ID of the source, as a full ID."""
    return Xid8.parse(session.row("select pg_snapshot_xmax(pg_current_snapshot())::text")[0])


def check_slot(session: Session, names: MirrorNames, position: Lsn | None) -> Slot:
    """The mirror's slot, after checking that it is free and, unless `position` is None, can continue from there."""
    slot = check_slot_alive(session, names)
    if position is not None:
        _check_position(slot, position)
    if slot.active_pid is not None:
        raise ObjectInUse(
            f"slot {names.slot} is in use by the server process {slot.active_pid}",
            f"Stop the client of that process, or run `select pg_terminate_backend({slot.active_pid})`.",
        )
    return slot


def check_not_moved(session: Session, names: MirrorNames, position: Lsn) -> None:
    """Check the position again after the slot was acquired: until then, another client could have moved it."""
    _check_position(check_slot_alive(session, names), position)


def check_slot_alive(session: Session, names: MirrorNames) -> Slot:
    """The mirror's slot, after checking that it exists and is valid."""
    slot = read_slot(session, names.slot)
    if slot is None:
        raise SlotMissing(f"slot {names.slot} does not exist", RESYNC_ALL)
    (database,) = session.row("select current_database()")
    requirement = slot_requirement(slot, names.slot, database)
    if Mode.LOGICAL in requirement.modes and not requirement.holds:
        raise requirement.error(RESYNC_ALL)
    return slot


def _check_position(slot: Slot, position: Lsn) -> None:
    """Check that the slot is not ahead of the log.

    A slot only advances, to positions that the receiver confirmed; after a crash of the server it may be behind them.
    """
    if slot.confirmed_flush is None or slot.restart is None or slot.restart > position:
        raise SlotRecreated(
            f"slot {slot.name} starts at {slot.restart}, and the log ends at {position}: the slot was dropped and "
            "created again, or moved ahead",
            RESYNC_ALL,
        )
    if slot.confirmed_flush > position:
        raise SlotAhead(
            f"slot {slot.name} was moved to {slot.confirmed_flush} by another client; the log ends at {position}",
            RESYNC_ALL,
        )


@dataclass(frozen=True, slots=True)
class Formats:
    """The types in the catalog when the connection was opened; `met` are the type OIDs that ended earlier streams."""

    types: Mapping[int, PgType]
    met: set[int]

    def all_binary(self) -> bool:
        """Whether all types that ended earlier streams are decoded from binary now."""
        return all(decoded_from_binary(oid, self.types) for oid in self.met)

    def approve(self, message: bytes) -> None:
        """Check a Relation message; raise NotAllBinary, which restarts the stream, for a type that requires text."""
        relation = read_relation(Reader(np.frombuffer(message, np.uint8), 0, len(message)))
        for column in relation.columns:
            if not decoded_from_binary(column.type_oid, self.types):
                self.met.add(column.type_oid)
                raise NotAllBinary(
                    f"column {column.name} of {relation.schema}.{relation.name} has a type (oid {column.type_oid}) "
                    "that is new or is decoded from text only",
                    "No action is required: the receiver restarts the stream with the current types.",
                )
