"""Which description of a table applies to a change.

A Relation message is in force from its position in the stream. A Relation message inside a streamed transaction is in
force only within that transaction until it commits, and then for all transactions unless a later message replaced it.
If the transaction aborts, the message is discarded.
"""

from __future__ import annotations

from typing import TypeAlias

from tidemark.schema.relation import Relation

Place: TypeAlias = tuple[int, int]  # position of a message; later messages compare greater


class Scope:
    """Relations by oid: those in force for all transactions, overridden by those of each open streamed transaction."""

    def __init__(self) -> None:
        self._all: dict[int, tuple[Place, Relation]] = {}
        self._streamed: dict[int, dict[int, tuple[Place, Relation]]] = {}

    def describe(self, relation: Relation, place: Place, stream: int | None) -> None:
        """Register a Relation message from inside the streamed transaction `stream`, or from outside if None."""
        target = self._all if stream is None else self._streamed.setdefault(stream, {})
        target[relation.oid] = (place, relation)

    def find(self, oid: int, stream: int | None) -> Relation | None:
        """Return the description in force for a change, or None."""
        described = self._streamed.get(stream, {}).get(oid) if stream is not None else None
        described = described or self._all.get(oid)
        return described[1] if described else None

    def commit(self, stream: int) -> None:
        """Put the relations of the streamed transaction into force for all, except where a later description exists."""
        for oid, described in self._streamed.pop(stream, {}).items():
            self._all[oid] = max(described, self._all.get(oid, described), key=lambda known: known[0])
