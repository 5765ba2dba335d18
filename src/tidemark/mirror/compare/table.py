"""A table as both engines are asked for it: its columns, which of them are the key, and how much of it is looked at."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tidemark.mirror.compare.digest import WHOLE
from tidemark.reads.canonical import ComparedColumn
from tidemark.schema.fingerprint import Fingerprint


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """`sample` of ten thousand rows are looked at: those whose key's hash leaves a remainder below it.

    With `children`, the rows of tables that inherit from it count as well; then no key tells rows apart.
    """

    fingerprint: Fingerprint
    columns: tuple[ComparedColumn, ...]
    key: tuple[ComparedColumn, ...]
    sample: int = WHOLE
    children: bool = False

    @property
    def by_value(self) -> ComparedColumn | None:
        """The key, if it is one integer: then it is the rows' position."""
        (only,) = self.key if len(self.key) == 1 else (None,)
        return only if only is not None and pa.types.is_integer(only.type) and only.text_name is None else None

    @property
    def located(self) -> tuple[ComparedColumn, ...]:
        """What else the rows' position is the hash of."""
        return self.key or self.columns
