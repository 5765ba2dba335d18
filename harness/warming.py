"""Compiles every kernel, so that a test measures none of the compilation: `warm()`, or `python -m harness.warming`."""

from __future__ import annotations

import struct

import numpy as np

from harness.decoding import StreamDecoder
from tidemark.pgoutput.frames import framed
from tidemark.pgoutput.scan import scan
from tidemark.values.cells import Cells
from tidemark.values.copy import SIGNATURE, CopyDecoder
from tidemark.values.encoding import WireFormat, copy_lines, copy_rows, data_rows, encode_column
from tidemark.values.kernels import read_only
from tidemark.values.types import BY_OID, TYPES, Decoding, Types, decoding_of

_NUMERIC_12_2 = (12 << 16 | 2) + 4


def warm() -> None:
    """Run each decoder and encoder on empty input, which compiles it or loads it from the cache."""
    nothing = Cells(read_only(np.empty(0, np.uint8)), np.empty(0, np.int64), np.empty(0, np.int32))
    for row in TYPES:
        for oid in (row.oid, row.array_oid):
            _warm_type(decoding_of(oid, -1, Types()), nothing)
    _warm_type(decoding_of(1700, _NUMERIC_12_2, Types()), nothing)
    scan(nothing.buffer, nothing.offsets, nothing.offsets, False)
    _warm_stream()
    _warm_copy()


def _warm_type(decoding: Decoding, nothing: Cells) -> None:
    for binary in (False, True):
        column = decoding.decode(nothing, binary)
    for form in WireFormat:
        cells = [encode_column(column, decoding, form)]
    decoding.parse(nothing)
    copy_rows(cells, 0)
    copy_lines(cells, 0)
    data_rows(cells, 0)


def _warm_stream() -> None:
    """Decode a table without columns and one insert into it."""
    relation = b"R" + struct.pack("!I", 1) + b"s\0t\0d" + struct.pack("!H", 0)
    messages = [b"B" + bytes(20), relation, b"I" + struct.pack("!I", 1) + b"N\0\0", b"C" + bytes(25)]
    for _ in StreamDecoder(Types()).feed(framed(messages)):
        pass


def _warm_copy() -> None:
    decoder = CopyDecoder([decoding_of(BY_OID[23].oid, -1, Types())])
    list(decoder.feed(SIGNATURE + bytes(8) + b"\0\1\0\0\0\4\0\0\0\7\xff\xff"))
    list(decoder.finish())


if __name__ == "__main__":
    warm()
