"""Binary or text format: checks that a binary stream contains only types that are decoded from binary.

Tables can be altered during a stream. pgoutput sends the Relation message of a table before its rows, so a column that
must be sent as text is detected before any of its values is in the log. The stream is then restarted: as text, or in
binary again if the current catalog shows that the type is decoded from binary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tidemark.errors import NotAllBinary
from tidemark.pgoutput.binary import decoded_from_binary
from tidemark.pgoutput.messages import Reader, read_relation
from tidemark.schema.table import PgType


@dataclass(frozen=True, slots=True)
class Formats:
    """The types in the catalog when the connection was opened; `met` are the type OIDs that ended earlier streams."""

    types: Mapping[int, PgType]
    met: set[int]

    def all_binary(self) -> bool:
        """Whether all types that ended earlier streams are decoded from binary now."""
        return all(decoded_from_binary(oid, self.types) for oid in self.met)

    def approve(self, message: bytes) -> None:
        """Check a Relation message; raise NotAllBinary, which restarts the stream, for a type that requires text."""
        relation = read_relation(Reader(np.frombuffer(message, np.uint8), 0, len(message)))
        for column in relation.columns:
            if not decoded_from_binary(column.type_oid, self.types):
                self.met.add(column.type_oid)
                raise NotAllBinary(
                    f"column {column.name} of {relation.schema}.{relation.name} has a type (oid {column.type_oid}) "
                    "that is new or is decoded from text only",
                    "No action is required: the receiver restarts the stream with the current types.",
                )
