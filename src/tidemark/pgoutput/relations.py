"""Which description of a table a change goes by.

A Relation message counts from its place in the stream on. One that is sent inside a streamed transaction counts inside
that transaction only, until it commits: then it counts for all, unless another came after it. If it aborts it never
was.
"""

from __future__ import annotations

from typing import TypeAlias

from tidemark.pgoutput.messages import Relation

Place: TypeAlias = tuple[int, int]  # where a message lies, such that later ones compare greater


class Scope:
    """Relations by oid: those that count for all, and those of each open streamed transaction over them."""

    def __init__(self) -> None:
        self._all: dict[int, tuple[Place, Relation]] = {}
        self._streamed: dict[int, dict[int, tuple[Place, Relation]]] = {}

    def describe(self, relation: Relation, place: Place, stream: int | None) -> None:
        """Take a Relation message, inside the streamed transaction `stream` or outside of any."""
        target = self._all if stream is None else self._streamed.setdefault(stream, {})
        target[relation.oid] = (place, relation)

    def find(self, oid: int, stream: int | None) -> Relation | None:
        """The description in force for a change, or None."""
        described = self._streamed.get(stream, {}).get(oid) if stream is not None else None
        described = described or self._all.get(oid)
        return described[1] if described else None

    def commit(self, stream: int) -> None:
        """What the streamed transaction described counts for all from now on, unless a later description does."""
        for oid, described in self._streamed.pop(stream, {}).items():
            self._all[oid] = max(described, self._all.get(oid, described), key=lambda known: known[0])
