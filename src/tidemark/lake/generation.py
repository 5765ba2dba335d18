"""The result of a copy of a table, before it is committed to the lake."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.clock import Boundary, Snapshot
from tidemark.lake.columns import StoredColumn
from tidemark.lake.files import DataFile
from tidemark.schema.fingerprint import Fingerprint


@dataclass(frozen=True, slots=True)
class Generation:
    """The rows of a table at `base`, as files that are already in the directory of its versions but not committed.

    `fingerprint` is the table's definition at `base`, and `snapshot` the snapshot that the copy used.
    """

    fingerprint: Fingerprint
    base: Boundary
    snapshot: Snapshot
    columns: tuple[StoredColumn, ...]
    files: tuple[DataFile, ...]

    @property
    def name(self) -> str:
        """The name of the table for messages."""
        return f"{self.fingerprint.schema}.{self.fingerprint.name}"
