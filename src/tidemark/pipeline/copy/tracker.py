"""Where each table of a sync is between being wanted and being live. Pure.

    wanted      it can only begin by a copy, or someone asked for one; a table that failed is wanted again after a pause
    in flight   a round copies it by its snapshot
    copied      all its parts are there, and wait until the lake takes them

Who is in none of these is live, or not to be copied. `pick` takes what is wanted and due in flight; its round makes it
copied, or failed; the lake's writer takes it, or has it fail because the table has changed.

    A table is in flight or copied once at a time: what one copy spoils cannot be taken by another.
    What a copy holds begins at its base, and every change that the base does not see is applied after it. The base is
    told to the lake with the generation and kept as long as that is read, so nothing can arrive too late to be skipped.
    Nothing here is durable. A crash in any of these leaves files that nobody knows, a table as it was, and what is
    asked for still asked for: it is wanted again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from tidemark.lake.generation import Generation

LEAST_PAUSE_S, MOST_PAUSE_S = 1.0, 60.0
UNREADABLE_S = 3600.0  # the pause where only a change at the source helps


class Phase(Enum):
    """Where a table is."""

    WANTED = "wanted"
    IN_FLIGHT = "in flight"
    COPIED = "copied"


@dataclass(frozen=True, slots=True)
class _State:
    phase: Phase
    due: float = 0.0
    pause_s: float = 0.0
    asked_meanwhile: bool = False
    generation: Generation | None = None


class Tracker:
    """All tables that are not at rest."""

    def __init__(self) -> None:
        self._states: dict[int, _State] = {}

    def pick(self, wanted: Iterable[int], now: float) -> frozenset[int]:
        """Of the tables that are wanted now, those that are due; they are in flight from here on."""
        states = {oid: self._states.get(oid, _State(Phase.WANTED)) for oid in wanted}
        picked = {oid: state for oid, state in states.items() if state.phase is Phase.WANTED and now >= state.due}
        self._states |= {oid: _State(Phase.IN_FLIGHT, pause_s=state.pause_s) for oid, state in picked.items()}
        return frozenset(picked)

    def copied(self, generation: Generation) -> None:
        """All parts of a table that was in flight are there."""
        state = self._in(generation.fingerprint.oid, Phase.IN_FLIGHT)
        self._states[generation.fingerprint.oid] = replace(state, phase=Phase.COPIED, generation=generation)

    def waiting(self) -> tuple[Generation, ...]:
        """What the lake is to take."""
        return tuple(state.generation for state in self._states.values() if state.generation is not None)

    def taken(self, oid: int) -> None:
        """The lake has it: it is at rest."""
        self._in(oid, Phase.COPIED)
        del self._states[oid]

    def failed(self, oid: int, now: float, *, unreadable: bool = False) -> float:
        """Its copy is over and starts over after a pause, longer each time; how long."""
        state = self._in(oid, Phase.IN_FLIGHT, Phase.COPIED)
        pause = min(MOST_PAUSE_S, 2 * state.pause_s or LEAST_PAUSE_S)
        if unreadable and not state.asked_meanwhile:
            pause = UNREADABLE_S
        self._states[oid] = _State(Phase.WANTED, now + pause, pause)
        return pause

    def dropped(self, oid: int) -> None:
        """Its copy is over and not needed: it is at rest."""
        self._in(oid, Phase.IN_FLIGHT, Phase.COPIED)
        del self._states[oid]

    def hasten(self, oid: int) -> None:
        """Someone asks for a copy: a table that failed is due now, and one whose copy fails later is due soon."""
        state = self._states.get(oid)
        if state is not None and state.phase is Phase.WANTED:
            del self._states[oid]
        elif state is not None:
            self._states[oid] = replace(state, asked_meanwhile=True)

    def busy(self) -> frozenset[int]:
        """The tables in flight or copied."""
        return frozenset(oid for oid, state in self._states.items() if state.phase is not Phase.WANTED)

    def _in(self, oid: int, *phases: Phase) -> _State:
        state = self._states.get(oid)
        if state is None or state.phase not in phases:
            raise RuntimeError(f"table {oid} is {state.phase.value if state else 'at rest'}")
        return state
