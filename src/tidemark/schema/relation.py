"""The description of a table in a Relation message, and the definition that it fits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.schema.fingerprint import Fingerprint
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
