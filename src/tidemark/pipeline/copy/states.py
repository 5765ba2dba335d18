"""The state of each table of a sync from the need for a copy until it is live. Pure.

    wanted      it can begin only by a copy, or a copy was requested; a failed table is wanted again after a pause
    in flight   it is being copied, in a snapshot
    copied      all its parts are complete, and wait until the sink adopts them

A table in none of these states is at rest: it is live, or is not to be copied. `pick` puts the wanted tables that are
due in flight; the end of the copy makes them copied, or failed; the sink adopts a copied table, or it fails because the
table has changed.

A table has at most one copy in flight or copied, so a copy that became invalid cannot be accepted as a later one.

The rows of a copy begin at its base, and every change that is not visible at the base is applied after it. The base is
recorded with the copy and kept as long as its rows are read, so a change that is part of the copy is skipped however
late it arrives.

Nothing here is durable. A crash in any state leaves files that belong to no table, the table as it was, and requests
that are not fulfilled: the table is wanted again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from tidemark.pipeline.sinks.sink import TableCopy
from tidemark.restarts import next_pause_s

LEAST_PAUSE_S, MOST_PAUSE_S = 1.0, 60.0
UNREADABLE_S = 3600.0  # the pause if only a change at the source can help


class CopyPhase(Enum):
    """The state of a table."""

    WANTED = "wanted"
    IN_FLIGHT = "in flight"
    COPIED = "copied"


@dataclass(frozen=True, slots=True)
class _State:
    phase: CopyPhase
    due: float = 0.0
    pause_s: float = 0.0
    asked_meanwhile: bool = False
    copy: TableCopy | None = None


class CopyStates:
    """All tables that are not at rest."""

    def __init__(self) -> None:
        self._states: dict[int, _State] = {}

    def pick(self, wanted: Iterable[int], now: float) -> frozenset[int]:
        """Put those of the wanted tables that are due in flight, and return them."""
        states = {oid: self._states.get(oid, _State(CopyPhase.WANTED)) for oid in wanted}
        picked = {oid: state for oid, state in states.items() if state.phase is CopyPhase.WANTED and now >= state.due}
        self._states |= {oid: _State(CopyPhase.IN_FLIGHT, pause_s=state.pause_s) for oid, state in picked.items()}
        return frozenset(picked)

    def copied(self, copy: TableCopy) -> None:
        """Record that all parts of a table in flight are complete."""
        state = self._in(copy.fingerprint.oid, CopyPhase.IN_FLIGHT)
        self._states[copy.fingerprint.oid] = replace(state, phase=CopyPhase.COPIED, copy=copy)

    def waiting(self) -> tuple[TableCopy, ...]:
        """The copies that the sink has not adopted yet."""
        return tuple(state.copy for state in self._states.values() if state.copy is not None)

    def taken(self, oid: int) -> None:
        """Record that the sink adopted the copy: the table is at rest."""
        self._in(oid, CopyPhase.COPIED)
        del self._states[oid]

    def failed(self, oid: int, now: float, *, unreadable: bool = False) -> float:
        """Record that the copy failed; return the pause before the next attempt, in seconds.

        The pause doubles with each failure, up to a minute. It is an hour if the table is `unreadable`, unless another
        copy was requested meanwhile.
        """
        state = self._in(oid, CopyPhase.IN_FLIGHT, CopyPhase.COPIED)
        pause = next_pause_s(state.pause_s, LEAST_PAUSE_S, MOST_PAUSE_S)
        if unreadable and not state.asked_meanwhile:
            pause = UNREADABLE_S
        self._states[oid] = _State(CopyPhase.WANTED, now + pause, pause)
        return pause

    def dropped(self, oid: int) -> None:
        """Record that the copy ended and is not needed: the table is at rest."""
        self._in(oid, CopyPhase.IN_FLIGHT, CopyPhase.COPIED)
        del self._states[oid]

    def hasten(self, oid: int) -> None:
        """Handle a request for a copy: a failed table is due now, and one whose present copy fails is due soon."""
        state = self._states.get(oid)
        if state is not None and state.phase is CopyPhase.WANTED:
            del self._states[oid]
        elif state is not None:
            self._states[oid] = replace(state, asked_meanwhile=True)

    def busy(self) -> frozenset[int]:
        """The tables in flight or copied."""
        return frozenset(oid for oid, state in self._states.items() if state.phase is not CopyPhase.WANTED)

    def _in(self, oid: int, *phases: CopyPhase) -> _State:
        state = self._states.get(oid)
        if state is None or state.phase not in phases:
            raise RuntimeError(f"table {oid} is {state.phase.value if state else 'at rest'}")
        return state
