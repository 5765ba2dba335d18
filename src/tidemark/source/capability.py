"""Whether a source can be mirrored by logical decoding or only by polling, and why, in one line.

It goes by what can be had: a version and a server that decode, a right, a slot, a sender, and in the end a replication
connection that was really made. What may be otherwise in a moment is no reason: a connection that is lost or gets no
answer raises, so that a mirror is never the lesser one because of a hiccup.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum

from tidemark.errors import AuthenticationRefused, NotPermitted, SourceBusy, UnsupportedServer
from tidemark.source.dsn import Dsn
from tidemark.source.facts import OLDEST, Facts, read_facts
from tidemark.source.identity import locate
from tidemark.source.names import MirrorNames
from tidemark.source.rights import replication_grant
from tidemark.source.session import Session
from tidemark.source.slot import PLUGIN, Slot, read_slot

SENDER_WAIT_S = 1.0


class Mode(Enum):
    """How a source is mirrored."""

    LOGICAL = "logical"
    POLL = "poll"


@dataclass(frozen=True, slots=True)
class Choice:
    """A mode, and one line for a person that says why."""

    mode: Mode
    why: str


def choose_mode(session: Session, dsn: Dsn, names: MirrorNames) -> Choice:
    """Look at the source, and try a replication connection where nothing speaks against it.

    A publication that is missing does not count: the owner can be asked for it.
    """
    facts = _settled(session)
    slot = read_slot(session, names.slot)
    ours = slot if slot is not None and (slot.plugin, slot.database) == (PLUGIN, facts.database) else None
    against = lacking(facts, ours)
    if against is None and (ours is None or ours.active_pid is None):  # a slot that is streamed from is proof enough
        against = _refused(session, dsn)
    mode = Mode.LOGICAL if against is None else Mode.POLL
    return Choice(mode, " ".join((against or _speaks_for(facts)).split()))


def _settled(session: Session) -> Facts:
    """The facts; a sender whose client has gone is counted for a moment yet, so a full house is looked at again."""
    deadline = time.monotonic() + SENDER_WAIT_S
    facts = read_facts(session)
    while 0 < facts.senders_max <= facts.senders_used and time.monotonic() < deadline:
        time.sleep(0.05)
        facts = read_facts(session)
    return facts


def lacking(facts: Facts, ours: Slot | None) -> str | None:
    """The first thing that logical decoding needs and is not there, as far as SQL can see; `ours` is the mirror's slot.

    A mirror that has its slot is logical already: if all senders are in use it has to wait, and SourceBusy is raised.
    """
    role = facts.role
    if facts.major < OLDEST:
        return f"PostgreSQL {facts.version}: logical mirroring needs version {OLDEST} or later"
    if facts.pooled:
        return "a connection pooler answers: logical decoding needs the host and port of PostgreSQL itself"
    if facts.in_recovery:
        return _on_a_standby(facts)
    if not facts.decodes:
        switch = f" (turn on {facts.switch_off})" if facts.switch_off else ""
        return f"wal_level is {facts.wal_level}: logical decoding needs logical{switch}"
    if not role.may_replicate:
        grant = replication_grant(role.name, facts.replication_group)
        return f"role {role.name} may not open replication connections ({grant})"
    if ours is None and facts.slots_used >= facts.slots_max:
        return _used_up("replication slot", "max_replication_slots", facts.slots_max)
    streams = ours is not None and ours.active_pid is not None
    if facts.senders_used >= facts.senders_max and not streams:
        return _no_sender(facts, ours)
    return None


def _on_a_standby(facts: Facts) -> str:
    """We do not mirror from one, even where it decodes.

    From 17 on our slot asks for failover, which a standby refuses (`slot.py`); a copy whose slot has to wait needs an
    insert position, which a standby does not have (`sync/snapshots.py`).
    """
    if facts.major < 16:
        return f"a standby of PostgreSQL {facts.major}, which cannot decode: logical mirroring needs the primary"
    return "a standby: logical mirroring is supported from the primary only"


def _no_sender(facts: Facts, ours: Slot | None) -> str:
    why = _used_up("WAL sender", "max_wal_senders", facts.senders_max)
    if ours is not None and facts.senders_max > 0:
        raise SourceBusy(f"slot {ours.name} cannot be streamed from: {why}", "again later, or raise max_wal_senders")
    return why


def _used_up(what: str, setting: str, most: int) -> str:
    if most == 0:
        return f"{setting} is 0: logical decoding needs a {what}"
    return f"no {what} is free: {setting} is {most}, and all are in use"


def _refused(session: Session, dsn: Dsn) -> str | None:
    """Why no replication connection is to be had, or None. Where no connection at all is to be had, that is raised."""
    try:
        locate(session, dsn, may_replicate=True)
    except (AuthenticationRefused, NotPermitted, UnsupportedServer) as refused:
        why = f"no replication connection can be made: {refused.message}"
    else:
        return None
    Session.open(dsn, "capability").close()
    return why


def _speaks_for(facts: Facts) -> str:
    level = "logical" if facts.wal_level == "logical" else f"{facts.wal_level} and turns logical with the first slot"
    return f"wal_level is {level}, and role {facts.role.name} may replicate"
