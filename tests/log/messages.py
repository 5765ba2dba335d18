"""pgoutput messages as a server sends them, made by hand: small transactions in great number."""

from __future__ import annotations

import struct

from tidemark.pgoutput.frames import framed
from tidemark.values.kernels import Bytes

OID = 1


def relation(xid: int | None = None, name: str = "t", oid: int = OID) -> bytes:
    """A table of one column, int4, described inside the streamed transaction `xid` or outside of any."""
    body = struct.pack("!I", oid) + b"s\0" + name.encode() + b"\0d\0\1\1id\0" + struct.pack("!Ii", 23, -1)
    return b"R" + (struct.pack("!I", xid) if xid else b"") + body


def insert(value: int, xid: int | None = None) -> bytes:
    """A row of that table."""
    prefix = b"I" + (struct.pack("!I", xid) if xid else b"")
    return prefix + struct.pack("!I", OID) + b"N\0\1b\0\0\0\4" + struct.pack("!i", value)


def change(letter: str, oid: int, xid: int | None = None) -> bytes:
    """An insert, update or delete of a row of the table `oid`."""
    prefix = letter.encode() + (struct.pack("!I", xid) if xid else b"")
    return prefix + struct.pack("!I", oid) + (b"K" if letter == "D" else b"N") + b"\0\1b\0\0\0\4" + bytes(4)


def truncate(*oids: int, xid: int | None = None) -> bytes:
    """A TRUNCATE of these tables."""
    prefix = b"T" + (struct.pack("!I", xid) if xid else b"")
    return prefix + struct.pack("!IB", len(oids), 0) + struct.pack(f"!{len(oids)}I", *oids)


def begin(xid: int, lsn: int) -> bytes:
    """The transaction whose commit LSN will be `lsn`."""
    return b"B" + struct.pack("!QqI", lsn - 8, lsn, xid)


def commit(lsn: int) -> bytes:
    """Its end."""
    return b"C\0" + struct.pack("!QQq", lsn - 8, lsn, lsn)


def plain(xid: int, lsn: int, *values: int, described: bool = False) -> list[bytes]:
    """A plain transaction that inserts these values."""
    return [begin(xid, lsn), *([relation()] if described else []), *map(insert, values), commit(lsn)]


def block(xid: int, *values: int, first: bool = False, subxid: int | None = None) -> list[bytes]:
    """A block of a streamed transaction; its first one describes the table."""
    described = [relation(xid)] if first else []
    rows = [insert(value, subxid or xid) for value in values]
    return [b"S" + struct.pack("!IB", xid, first), *described, *rows, b"E"]


def stream_commit(xid: int, lsn: int) -> bytes:
    """The end of a streamed transaction."""
    return b"c" + struct.pack("!I", xid) + b"\0" + struct.pack("!QQq", lsn - 8, lsn, lsn)


def stream_abort(xid: int, subxid: int | None = None) -> bytes:
    """The end of a streamed transaction that never was, or of a part of it."""
    return b"A" + struct.pack("!II", xid, subxid or xid)


def frames(*messages: bytes) -> Bytes:
    """Messages side by side."""
    return framed(messages)
