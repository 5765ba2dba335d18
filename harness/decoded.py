"""What PostgreSQL itself says was committed, in which order: a logical slot of its own, read by SQL.

Only as much of pgoutput is read here as a judge needs: which first column was inserted by which commit. The product's
own decoder is not used to judge the product.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from harness.database import Database
from tidemark.clock import Lsn


@dataclass(frozen=True)
class Insert:
    """A row that was inserted, by its first column's text, with the commit that made it visible."""

    first: str
    commit: Lsn


@dataclass(frozen=True)
class Witness:
    """A slot and a publication of all tables, made by the superuser and unknown to the product."""

    database: Database
    slot: str

    def inserts(self) -> list[Insert]:
        """Every insert that was committed since the witness was called, in commit order."""
        query = (
            f"select data from pg_logical_slot_peek_binary_changes('{self.slot}', null, null, "
            "'proto_version', '1', 'publication_names', 'witness')"
        )
        return list(_inserts(row[0] for row in self.database.admin(query)))


def call_witness(database: Database) -> Witness:
    """Start watching: everything committed from now on is seen."""
    slot = f"witness_{database.name}"
    database.admin(
        "create publication witness for all tables with (publish = 'insert')",
        f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')",
    )
    return Witness(database, slot)


def _inserts(messages: Iterator[bytes]) -> Iterator[Insert]:
    pending: list[str] = []
    for message in messages:
        if message[:1] == b"I":
            (length,) = struct.unpack_from("!I", message, 9)
            pending.append(message[13 : 13 + length].decode())
        elif message[:1] == b"C":
            (end,) = struct.unpack_from("!Q", message, 10)
            yield from (Insert(first, Lsn(end)) for first in pending)
            pending.clear()
