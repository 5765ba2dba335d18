"""A table as both engines read it for a comparison: its columns, its key, and the size of the sample."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tidemark.mirror.compare.digest import WHOLE
from tidemark.reads.canonical import ComparedColumn
from tidemark.schema.fingerprint import Fingerprint


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """A table to compare; `sample` of ten thousand rows are read.

    These are the rows whose hash of `located` modulo ten thousand is below `sample`. With `children`, the rows of
    tables that inherit from it are included; then no key identifies rows.
    """

    fingerprint: Fingerprint
    columns: tuple[ComparedColumn, ...]
    key: tuple[ComparedColumn, ...]
    sample: int = WHOLE
    children: bool = False

    @property
    def by_value(self) -> ComparedColumn | None:
        """The key if it is one integer, which is then the position of a row; None otherwise."""
        (only,) = self.key if len(self.key) == 1 else (None,)
        return only if only is not None and pa.types.is_integer(only.type) and only.text_name is None else None

    @property
    def located(self) -> tuple[ComparedColumn, ...]:
        """The columns whose hash is the position of a row if `by_value` is None: the key, or all columns."""
        return self.key or self.columns
