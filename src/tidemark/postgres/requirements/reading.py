"""Read the state of a source: the only place that reads the input of the requirements."""

from __future__ import annotations

import time

from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.facts import ServerFacts, read_facts, read_role
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.publication import read_publication, wanted
from tidemark.postgres.requirements.requirement import Mode, Requirement, require
from tidemark.postgres.requirements.server import version_requirement
from tidemark.postgres.requirements.state import SourceState
from tidemark.postgres.session import Session
from tidemark.postgres.slot import read_slot
from tidemark.schema.selection import Selection, choose

SENDER_WAIT_S = 1.0

_PUBLIC_CONNECTS = "select has_database_privilege('public', current_database(), 'CONNECT')"
_DATABASE_OWNED = "select pg_has_role(datdba, 'USAGE') from pg_database where datname = current_database()"


def read_state(
    session: Session,
    names: MirrorNames | None,
    selection: Selection,
    role: str | None = None,
    *,
    strict: bool = True,
) -> SourceState:
    """Read the state for a mirror that connects as `role`, by default the role of this session.

    If `strict`, every pattern of the selection must match a table. For an existing mirror this is not required, and a
    publication whose last table is gone remains, because the stream would end without it. A version that can only be
    polled is read, too: all requirements together decide the mode.
    """
    require([version_of(session)], Mode.POLL)
    facts = _settled_facts(session)
    role = role or facts.role.name
    names = names or MirrorNames.of_database(facts.database)
    with session.transaction():
        chosen = choose(read_catalog(session, role), selection, strict=strict)
        wants = [want for want in wanted(names, chosen.tables, facts.version_num) if want.tables or strict]
        return SourceState(
            facts=facts,
            names=names,
            role_name=role,
            role=facts.role if role == facts.role.name else read_role(session, role),
            slot=read_slot(session, names.slot),
            chosen=chosen,
            publications=tuple((want, read_publication(session, want.name)) for want in wants),
            public_connects=session.row(_PUBLIC_CONNECTS)[0],
            database_owned=session.row(_DATABASE_OWNED)[0],
        )


def read_server(session: Session, names: MirrorNames) -> SourceState:
    """Read the state without tables and publications, for the checks at every connection of the receiver."""
    require([version_of(session)], Mode.LOGICAL)
    facts = _settled_facts(session)
    return SourceState(facts, names, facts.role.name, facts.role, read_slot(session, names.slot))


def version_of(session: Session) -> Requirement:
    """Return the version requirement, which is checked first: later queries need the oldest supported version."""
    major = session.version_num // 10000
    return version_requirement(major, session.connection.info.parameter_status("server_version") or str(major))


def _settled_facts(session: Session) -> ServerFacts:
    """Read the facts; while all WAL senders are in use, retry briefly, because one without a client ends soon."""
    deadline = time.monotonic() + SENDER_WAIT_S
    facts = read_facts(session)
    while 0 < facts.senders_max <= facts.senders_used and time.monotonic() < deadline:
        time.sleep(0.05)
        facts = read_facts(session)
    return facts
