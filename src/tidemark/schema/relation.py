"""The description of a table in a Relation message, and the definition that it fits. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tidemark.schema.fingerprint import Effect, Fingerprint, compare
from tidemark.schema.table import Column, Generated


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column of a Relation message. The message has no attnum; the fingerprint supplies it."""

    name: str
    type_oid: int
    typmod: int
    key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as described by a Relation message."""

    oid: int
    schema: str
    name: str
    replica_identity: str
    columns: tuple[RelationColumn, ...]


def columns_of(relation: Relation, fingerprint: Fingerprint) -> tuple[Column, ...] | None:
    """Return the table's column for each column of a relation, or None if the relation does not match the definition.

    A Relation message has no attnums, but lists columns in their order. It matches a fingerprint if the columns agree
    in name, type and type modifier; only generated columns may be absent. It must also mark the same replica identity
    columns, because an UPDATE or DELETE may contain no others.
    """
    names = {column.name for column in relation.columns}
    sent = tuple(c for c in fingerprint.columns if c.generated is Generated.NO or c.name in names)
    looks = [(column.name, column.type.oid, column.typmod) for column in sent]
    described = [(column.name, column.type_oid, column.typmod) for column in relation.columns]
    same = looks == described and relation.oid == fingerprint.oid
    return sent if same and _marked(relation) == _marks(sent, fingerprint) else None


def _marked(relation: Relation) -> list[str] | None:
    """Return the replica identity columns of a relation, or None if the whole row is the identity."""
    return None if relation.replica_identity == "f" else [column.name for column in relation.columns if column.key]


def _marks(columns: Sequence[Column], fingerprint: Fingerprint) -> list[str] | None:
    """Return the replica identity columns of a definition, in the same form."""
    marked = fingerprint.marked
    return None if marked is None else [column.name for column in columns if column.attnum in marked]


def fitting(relation: Relation, fingerprints: Sequence[Fingerprint]) -> Fingerprint | None:
    """Return the first fingerprint that the relation matches."""
    return next((each for each in fingerprints if columns_of(relation, each) is not None), None)


def are_certain(
    relations: Sequence[Relation] | None, earlier: Iterable[Fingerprint], seen: Sequence[Fingerprint]
) -> bool:
    """Whether changes were made under the definition that their description matches.

    `relations` describe the changes, or are None if that is not known. `seen` are the definitions in catalog snapshots
    in sequence, `earlier` those before them.

    A description lists columns in the order of their attnums, and an attnum is never reused. So between two catalog
    snapshots, a description that matches the earlier definition belongs to it while none of its columns is dropped,
    and one that matches the later definition belongs to it if no other column was added in between: then the new
    attnums follow the highest previous one. This must hold for each two snapshots in sequence. Nor may a description
    match two definitions with different attnums, or the key have changed in between.
    """
    steps = list(pairwise(seen))
    if any(compare(*step).effect is Effect.RESYNC for step in steps):
        return False
    if any(_matches_several(relation, seen) for relation in relations or ()):
        return False
    highest = max((column.attnum for each in earlier for column in each.columns), default=0)
    for old, new in steps:
        before, after = ({column.attnum for column in each.columns} for each in (old, new))
        highest = max(highest, *before, 0)
        added = sorted(attnum for attnum in after if attnum > highest)
        skipped = added != list(range(highest + 1, highest + 1 + len(added)))
        if (not before <= after and _may_match(relations, old)) or (skipped and _may_match(relations, new)):
            return False
    return True


def _may_match(relations: Sequence[Relation] | None, definition: Fingerprint) -> bool:
    return relations is None or any(fitting(relation, [definition]) for relation in relations)


def _matches_several(relation: Relation, definitions: Iterable[Fingerprint]) -> bool:
    """Whether a relation matches definitions in which its columns have different attnums."""
    found = [columns for each in definitions if (columns := columns_of(relation, each)) is not None]
    return len({tuple(column.attnum for column in columns) for columns in found}) > 1
