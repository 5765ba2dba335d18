"""Which description of a table a change goes by.

A Relation message counts from its place in the stream on. One that is sent inside a streamed transaction counts inside
that transaction only, until it commits: then it counts for all. If it aborts it never was.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.decode.messages import Relation


class Scope:
    """Relations by oid: those that count for all, and those of each open streamed transaction over them."""

    def __init__(self, relations: Mapping[int, Relation] | None = None) -> None:
        self._all: dict[int, tuple[int, Relation]] = {oid: (0, known) for oid, known in (relations or {}).items()}
        self._streamed: dict[int, dict[int, tuple[int, Relation]]] = {}
        self._met = 0

    def describe(self, relation: Relation, stream: int | None) -> None:
        """Take a Relation message, inside the streamed transaction `stream` or outside of any."""
        target = self._all if stream is None else self._streamed.setdefault(stream, {})
        self._met += 1
        target[relation.oid] = (self._met, relation)

    def find(self, oid: int, stream: int | None) -> Relation | None:
        """The description in force for a change, or None."""
        described = self._streamed.get(stream, {}).get(oid) if stream is not None else None
        described = described or self._all.get(oid)
        return described[1] if described else None

    def commit(self, stream: int) -> None:
        """What the streamed transaction described counts for all from now on, unless a later description does."""
        for oid, described in self._streamed.pop(stream, {}).items():
            self._all[oid] = max(described, self._all.get(oid, described), key=lambda known: known[0])

    def abort(self, stream: int) -> None:
        """What the streamed transaction described never was."""
        self._streamed.pop(stream, None)
