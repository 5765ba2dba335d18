"""The mapping from the columns of a relation in the stream to stored columns. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemark.lake.columns import StoredColumn, arranged, wanted_columns
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.relation import Relation, columns_of
from tidemark.values.types import Types


@dataclass(frozen=True, slots=True)
class Layout:
    """The path of the changes of a relation with one description, and the stored column for each of its columns."""

    oid: int
    path: str
    columns: tuple[StoredColumn, ...]


def layout_of(
    relation: Relation, fingerprint: Fingerprint, path: str, stored: Sequence[StoredColumn], types: Types
) -> Layout:
    """Return the layout of a relation's changes, which reuses the columns that are already stored."""
    columns = columns_of(relation, fingerprint) or ()
    kept: Mapping[int, StoredColumn] = arranged(stored, wanted_columns(columns, types))
    return Layout(relation.oid, path, tuple(kept[column.attnum] for column in columns))
