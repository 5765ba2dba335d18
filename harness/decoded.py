"""The transactions that PostgreSQL committed, in commit order: from a separate logical slot, read with SQL.

Only the part of pgoutput that the reference needs is decoded here: the commit LSN of each transaction, and the first
column of its inserts. Tidemark's own decoder is not used to verify Tidemark.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from harness.database import Database
from tidemark.clock import Lsn


@dataclass(frozen=True)
class Commit:
    """A committed transaction: its 32-bit xid, its commit LSN, and the text of the first column of its inserts."""

    xid: int
    lsn: Lsn
    inserted: tuple[str, ...]


@dataclass(frozen=True)
class Witness:
    """A slot and a publication of all tables, created by the superuser and unknown to Tidemark."""

    database: Database
    slot: str

    def commits(self) -> list[Commit]:
        """Every transaction committed since the witness was created, in commit order.

        A slot shows what is flushed, and an asynchronous commit is visible before it is flushed. A synchronous commit
        after it flushes both; without that, the list might be incomplete up to the position of a snapshot just taken.
        """
        flush = "select pg_logical_emit_message(true, 'witness', 'everything before this is flushed')"
        query = (
            f"select data from pg_logical_slot_peek_binary_changes('{self.slot}', null, null, "
            "'proto_version', '1', 'publication_names', 'witness')"
        )
        return list(_commits(row[0] for row in self.database.admin(flush, query)))


def call_witness(database: Database) -> Witness:
    """Create the witness; it has everything that is committed from now on."""
    slot = f"witness_{database.name}"
    database.admin(
        "create publication witness for all tables with (publish = 'insert')",
        f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')",
    )
    return Witness(database, slot)


def _commits(messages: Iterable[bytes]) -> Iterator[Commit]:
    xid, inserted = 0, list[str]()
    for message in messages:
        match message[:1]:
            case b"B":
                (xid,) = struct.unpack_from("!I", message, 17)
                inserted = []
            case b"I":
                (length,) = struct.unpack_from("!I", message, 9)
                inserted.append(message[13 : 13 + length].decode())
            case b"C":
                (end,) = struct.unpack_from("!Q", message, 10)
                yield Commit(xid, Lsn(end), tuple(inserted))
