"""A generation of a table that came by a copy, before the lake has it."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.clock import Boundary, Snapshot
from tidemark.lake.columns import StoredColumn
from tidemark.lake.files import DataFile
from tidemark.schema.fingerprint import Fingerprint


@dataclass(frozen=True, slots=True)
class Generation:
    """What a table held at `base`, as files that lie among its versions already; as it was defined there.

    `snapshot` is the one it was copied by.
    """

    fingerprint: Fingerprint
    base: Boundary
    snapshot: Snapshot
    columns: tuple[StoredColumn, ...]
    files: tuple[DataFile, ...]

    @property
    def name(self) -> str:
        """As people call the table."""
        return f"{self.fingerprint.schema}.{self.fingerprint.name}"
