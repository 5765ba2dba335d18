"""Binary or text: watching that a binary stream carries only what is decoded from binary.

Tables are altered while we stream. pgoutput describes a table before it sends a row of it, so a column that must come
as text is noticed before any value of it is in the log: then the stream is begun anew, as text.
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
    """The types that the catalogue knew when the connection was made; `met` are those that gave trouble before."""

    types: Mapping[int, PgType]
    met: set[int]

    def all_binary(self) -> bool:
        """Whether nothing that was met before speaks against binary."""
        return all(decoded_from_binary(oid, self.types) for oid in self.met)

    def approve(self, message: bytes) -> None:
        """Look at a Relation message."""
        relation = read_relation(Reader(np.frombuffer(message, np.uint8), 0, len(message)))
        for column in relation.columns:
            if not decoded_from_binary(column.type_oid, self.types):
                self.met.add(column.type_oid)
                raise NotAllBinary(
                    f"column {column.name} of {relation.schema}.{relation.name} has a type (oid {column.type_oid}) "
                    "that is new or is decoded from text only",
                    "No action is required: the receiver restarts the stream with the current types.",
                )
