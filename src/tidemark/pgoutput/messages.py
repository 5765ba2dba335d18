r"""pgoutput messages other than row changes, which are too numerous to be objects. Protocol versions 1 to 4.

    B Begin          int64 start of the commit record, int64 commit time, int32 xid
    C Commit         int8 0, int64 start of the commit record, int64 its end: the commit LSN, int64 commit time
    O Origin         int64 LSN, name\0
    R Relation       int32 oid, schema\0, name\0, int8 replica identity, int16 columns, each: int8 key, name\0,
                     int32 type, int32 modifier
    Y Type           int32 oid, schema\0, name\0
    T Truncate       int32 relations, int8 options (1 CASCADE, 2 RESTART IDENTITY), int32 oids
    M Message        written with pg_logical_emit_message: ignored
    S Stream Start   int32 xid, int8 first
    E Stream Stop
    c Stream Commit  int32 xid, then as Commit
    A Stream Abort   int32 xid, int32 subtransaction's xid, in version 4 also int64 LSN and int64 time
    I, U, D          changes: see `scan`
    b P K r p        two-phase decoding: not enabled, rejected

Between Stream Start and Stream Stop every message except Origin has the int32 xid of its (sub)transaction after its
letter.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NoReturn

from tidemark.clock import Lsn
from tidemark.errors import UnsupportedMessage
from tidemark.schema.relation import Relation, RelationColumn
from tidemark.values.failure import bad_message
from tidemark.values.kernels import Bytes

MOST_COLUMNS = 1600  # MaxHeapAttributeNumber


@dataclass(frozen=True, slots=True)
class Truncate:
    """A TRUNCATE of one or more tables."""

    relations: tuple[int, ...]
    cascade: bool
    restart_identity: bool


class Reader:
    """Reads the fields of one message in order; raises an error with the offset if it is too short or too long."""

    def __init__(self, buffer: Bytes, start: int, length: int) -> None:
        self._buffer = buffer
        self._start = start
        self._raw = buffer[start : start + length].tobytes()
        self._at = 1

    def take(self, form: str) -> int:
        """Read one number in the given struct format."""
        size = struct.calcsize("!" + form)
        if self._at + size > len(self._raw):
            self.fail("message too short")
        (value,) = struct.unpack_from("!" + form, self._raw, self._at)
        self._at += size
        return int(value)

    def string(self) -> str:
        r"""Read a NUL-terminated string; non-UTF-8 bytes (possible in SQL_ASCII) become escapes such as `\xff`."""
        end = self._raw.find(b"\0", self._at)
        if end < 0:
            self.fail("unterminated string")
        raw, self._at = self._raw[self._at : end], end + 1
        return raw.decode(errors="backslashreplace")

    def bytes(self, size: int) -> bytes:
        """Read `size` bytes."""
        if size > len(self._raw) - self._at:
            self.fail("message too short")
        self._at += size
        return self._raw[self._at - size : self._at]

    def end(self) -> None:
        """Check that no bytes remain."""
        if self._at != len(self._raw):
            self.fail("message too long")

    def fail(self, what: str) -> NoReturn:
        """Raise an error with the message's offset."""
        bad_message(what, self._buffer, self._start)


def read_relation(reader: Reader) -> Relation:
    """Read a Relation message, after its xid if it has one."""
    oid, schema, name, identity = reader.take("I"), reader.string(), reader.string(), chr(reader.take("B"))
    if identity not in "dnfi":
        reader.fail("relation with an unknown replica identity")
    columns, count = [], reader.take("H")
    if count > MOST_COLUMNS:
        reader.fail(f"relation with {count} columns, more than a table can have,")
    for _ in range(count):
        key = reader.take("B")
        if key > 1:
            reader.fail("column with unknown flags")
        columns.append(RelationColumn(reader.string(), reader.take("I"), reader.take("i"), bool(key)))
    reader.end()
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns))


def read_origin(reader: Reader) -> tuple[Lsn, str]:
    """Read an Origin message: the node from which this server replicated the transaction. It never has an xid."""
    read = Lsn(reader.take("Q")), reader.string()
    reader.end()
    return read


def read_type(reader: Reader) -> tuple[int, str, str]:
    """Read a Type message: oid, schema and name."""
    read = reader.take("I"), reader.string() or "pg_catalog", reader.string()
    reader.end()
    return read


def read_truncate(reader: Reader) -> Truncate:
    """Read a Truncate message, after its xid if it has one."""
    count, options = reader.take("I"), reader.take("B")
    if options > 3:
        reader.fail("TRUNCATE with unknown options")
    raw = reader.bytes(4 * count)
    reader.end()
    return Truncate(tuple(dict.fromkeys(struct.unpack(f"!{count}I", raw))), bool(options & 1), bool(options & 2))


def refuse_two_phase(letter: int, offset: int) -> NoReturn:
    """Reject a two-phase message: decoding is off, so that a prepared transaction arrives whole when it commits."""
    raise UnsupportedMessage(
        f"message of two-phase decoding ({chr(letter)}) at offset {offset}",
        "Create the slot without the option two_phase.",
        offset,
    )
