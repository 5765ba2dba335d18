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
        self._all: dict[int, Relation] = dict(relations or {})
        self._streamed: dict[int, dict[int, Relation]] = {}

    def describe(self, relation: Relation, stream: int | None) -> None:
        """Take a Relation message, inside the streamed transaction `stream` or outside of any."""
        target = self._all if stream is None else self._streamed.setdefault(stream, {})
        target[relation.oid] = relation

    def find(self, oid: int, stream: int | None) -> Relation | None:
        """The description in force for a change, or None."""
        if stream is not None and oid in self._streamed.get(stream, {}):
            return self._streamed[stream][oid]
        return self._all.get(oid)

    def commit(self, stream: int) -> None:
        """What the streamed transaction described counts for all from now on."""
        self._all.update(self._streamed.pop(stream, {}))

    def abort(self, stream: int) -> None:
        """What the streamed transaction described never was."""
        self._streamed.pop(stream, None)
