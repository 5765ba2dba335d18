"""How a relation of the stream is written: which of its columns goes to which stored column. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemark.lake.columns import StoredColumn, arranged, wanted_columns
from tidemark.pgoutput.messages import Relation
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import Column, Generated
from tidemark.values.types import Types


@dataclass(frozen=True, slots=True)
class Layout:
    """For one relation as it was described once: where its changes lie, and a stored column for each of its own."""

    oid: int
    path: str
    columns: tuple[StoredColumn, ...]


def columns_of(relation: Relation, fingerprint: Fingerprint) -> tuple[Column, ...] | None:
    """The table's column for each of the relation's, or None if it was described as another table than this.

    A Relation message has no attnums, but lists its columns in their order. It fits a fingerprint if they are those of
    the table, name by name with type and modifier; only what is generated may have been left out. And those are marked
    by which this table's rows are named: an UPDATE or DELETE may have been sent without the others.
    """
    names = {column.name for column in relation.columns}
    sent = tuple(c for c in fingerprint.columns if c.generated is Generated.NO or c.name in names)
    looks = [(column.name, column.type.oid, column.typmod) for column in sent]
    said = [(column.name, column.type_oid, column.typmod) for column in relation.columns]
    same = looks == said and relation.oid == fingerprint.oid
    return sent if same and _marked(relation) == _marks(sent, fingerprint) else None


def _marked(relation: Relation) -> list[str] | None:
    """The columns that are marked; None where all are because the whole row is sent."""
    return None if relation.replica_identity == "f" else [column.name for column in relation.columns if column.key]


def _marks(columns: Sequence[Column], fingerprint: Fingerprint) -> list[str] | None:
    """The same as a definition has it."""
    marked = fingerprint.marked
    return None if marked is None else [column.name for column in columns if column.attnum in marked]


def fitting(relation: Relation, fingerprints: Sequence[Fingerprint]) -> Fingerprint | None:
    """The first of these that the relation fits."""
    return next((each for each in fingerprints if columns_of(relation, each) is not None), None)


def layout_of(
    relation: Relation, fingerprint: Fingerprint, path: str, stored: Sequence[StoredColumn], types: Types
) -> Layout:
    """How this relation's changes are written, given what is stored already."""
    columns = columns_of(relation, fingerprint) or ()
    kept: Mapping[int, StoredColumn] = arranged(stored, wanted_columns(columns, types))
    return Layout(relation.oid, path, tuple(kept[column.attnum] for column in columns))
