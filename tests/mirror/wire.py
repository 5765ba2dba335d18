"""Change rows of the model as the stream would send them, and back through the decoder, as apply gets them."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import pyarrow as pa

from harness.decoding import StreamDecoder
from tidemark.lake.columns import StoredColumn
from tidemark.lake.rows import change_rows
from tidemark.pgoutput.changes import ChangeBatch
from tidemark.pgoutput.frames import framed
from tidemark.values.types import Types

OID = 7
TYPES = {"int": (23, pa.int32()), "double": (701, pa.float64()), "string": (25, pa.string())}
Said = tuple[object, ...]  # the columns, kind, commit, ordinal, marks, truncate


def decoded(rows: Iterable[Said], ddl: str, identity: str, keys: int) -> pa.Table:
    """The rows of `changes` that these words of the stream become; `identity` is the letter of the replica identity."""
    columns = [part.split() for part in ddl.split(", ")]
    decoder = StreamDecoder(Types())
    batches = decoder.feed(framed(list(_messages(rows, columns, identity, keys))))
    stored = [StoredColumn(name, n + 1, TYPES[kind][1]) for n, (name, kind) in enumerate(columns)]
    return pa.concat_tables([change_rows(batch, stored) for batch in batches if isinstance(batch, ChangeBatch)])


def _messages(rows: Iterable[Said], columns: Sequence[Sequence[str]], identity: str, keys: int) -> Iterator[bytes]:
    """One transaction for each commit; a change and its old row stand at the same place."""
    width = len(columns)
    ordered = sorted(rows, key=lambda row: (int(str(row[width + 1])), int(str(row[width + 2]))))
    for commit, changes in groupby(ordered, key=lambda row: int(str(row[width + 1]))):
        lsn = (commit + 1) * 1000
        yield b"B" + struct.pack("!QqI", lsn - 8, lsn, commit + 3)
        yield _relation(columns, identity, keys)
        for _, same in groupby(changes, key=lambda row: row[width + 2]):
            yield _change({str(row[width]): row for row in same}, width, identity)
        yield b"C\0" + struct.pack("!QQq", lsn - 8, lsn, lsn)


def _relation(columns: Sequence[Sequence[str]], identity: str, keys: int) -> bytes:
    said = b"R" + struct.pack("!I", OID) + b"public\0t\0" + identity.encode() + struct.pack("!H", len(columns))
    for n, (name, kind) in enumerate(columns):
        said += bytes([n < keys]) + name.encode() + b"\0" + struct.pack("!Ii", TYPES[kind][0], -1)
    return said


def _change(rows: dict[str, Said], width: int, identity: str) -> bytes:
    head, old = struct.pack("!I", OID), b"O" if identity == "f" else b"K"
    if "truncate" in rows:
        return b"T" + struct.pack("!IB", 1, 0) + head
    if "insert" in rows:
        return b"I" + head + b"N" + _tuple(rows["insert"], width)
    if "delete" in rows:
        return b"D" + head + old + _tuple(rows["delete"], width)
    before = old + _tuple(rows["update_preimage"], width) if "update_preimage" in rows else b""
    return b"U" + head + before + b"N" + _tuple(rows["update_postimage"], width)


def _tuple(row: Said, width: int) -> bytes:
    marks = str(row[width + 3] or "")
    return struct.pack("!H", width) + b"".join(
        b"u" if f",{n + 1}," in marks else _value(value) for n, value in enumerate(row[:width])
    )


def _value(value: object) -> bytes:
    if value is None:
        return b"n"
    text = str(value)
    if isinstance(value, float):
        text = "NaN" if math.isnan(value) else repr(value)
    return b"t" + struct.pack("!I", len(text.encode())) + text.encode()
