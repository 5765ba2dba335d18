"""Choose logical decoding or polling for a source, with the reason in one line.

The requirements decide, and finally an actual replication connection. A temporary failure decides nothing: a lost or
unanswered connection raises an error, so that a mirror never polls because of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.errors import AuthenticationRefused, NotPermitted, SourceError, UnsupportedServer
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.identity import Identity, locate
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.requirements import (
    Choice,
    Mode,
    Requirement,
    SourceState,
    capacity_requirements,
    decide,
    first_unmet,
    object_requirements,
    read_state,
    require,
    server_requirements,
    table_requirements,
)
from tidemark.postgres.requirements.requirement import LOGICAL, POLLS
from tidemark.postgres.session import Session
from tidemark.schema.selection import Selection

__all__ = ["Choice", "Mode", "choose_mode", "evaluate"]

CONNECTION = "replication connection"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All requirements of a mirror of a source. `identity` is None if the role may not read it."""

    identity: Identity | None
    requirements: tuple[Requirement, ...]


def choose_mode(session: Session, dsn: Dsn, names: MirrorNames, selection: Selection, *, strict: bool = True) -> Choice:
    """Return the mode of `tidemark sync --mode auto`. If no mode works, raise the first unmet requirement's error."""
    requirements = evaluate(session, dsn, read_state(session, names, selection, strict=strict)).requirements
    choice = decide(requirements)
    if choice is None:
        require(requirements, Mode.POLL)
        raise AssertionError("neither mode works, and polling has all that it requires")
    return choice


def evaluate(session: Session, dsn: Dsn, state: SourceState) -> Evaluation:
    """Evaluate all requirements, and open a replication connection if all server requirements are met."""
    identity, server = None, (*server_requirements(state), *capacity_requirements(state))
    if first_unmet(server, Mode.LOGICAL) is None:
        identity, connection = _connected(session, dsn, state)
        server = (*server, connection)
    if identity is None and (state.role is None or state.role.reads_control_data):
        identity = locate(session, dsn, may_replicate=False).identity
    return Evaluation(identity, (*server, *table_requirements(state), *object_requirements(state)))


def _connected(session: Session, dsn: Dsn, state: SourceState) -> tuple[Identity | None, Requirement]:
    """Check whether a replication connection can be opened. If no ordinary connection can either, raise that error."""
    own = state.own_slot
    if own is not None and own.active_pid is not None:
        found = f"slot {own.name} is streamed to pid {own.active_pid}"
        return None, Requirement(CONNECTION, LOGICAL, holds=True, found=found)
    try:
        identity = locate(session, dsn, may_replicate=True).identity
    except (AuthenticationRefused, NotPermitted, UnsupportedServer) as refused:
        error: SourceError = refused
    else:
        return identity, Requirement(CONNECTION, LOGICAL, holds=True, found=f"opened to {identity}")
    Session.open(dsn, "capability").close()
    return None, Requirement(
        CONNECTION,
        LOGICAL,
        holds=False,
        found=f"no replication connection can be opened: {' '.join(error.message.split())}",
        remedy=error.hint,
        consequence=f"role {state.role_name} has the privilege to replicate, but the server refuses it; {POLLS}",
        kind=type(error),
    )
