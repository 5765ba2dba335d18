r"""Blocks: what segments and indexes consist of, each with a checksum over all of it and over where it belongs.

    4 bytes   TMk1
    uint32    CRC-32 of the file's number, the block's offset, the rest of this header and the payload
    uint32    kind
    uint32    length of the payload
    uint64    how far the segment was durable when this block was written
    uint64    position: every commit at or below it lies in the log up to and including this block
    uint64    a full transaction id of the source near those in this block; 0 where none is known

Little-endian. The third line from below is what tells damage from a torn tail: a block that says "durable up to here"
proves that all before that place was once whole.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from tidemark.values.kernels import Bytes

MAGIC = b"TMk1"
_HEADER = struct.Struct("<4sIIIQQQ")
_PLACE = struct.Struct("<QQ")
HEADER_BYTES = _HEADER.size


class Kind(IntEnum):
    """What a block holds."""

    HEAD = 1  # the first block of a segment
    SESSION = 2  # a new connection: whatever was open is sent again
    MESSAGES = 3  # frames; none where only the position moved
    INDEX = 4  # rows of the commit index
    SYNCED = 5  # nothing: the segment was synced


@dataclass(frozen=True, slots=True)
class Block:
    """One block, whole and checked. `offset` is its header's, `start` and `end` are its payload's."""

    kind: Kind
    offset: int
    end: int
    synced: int
    position: int
    xid: int

    @property
    def start(self) -> int:
        """Where the payload begins."""
        return self.offset + HEADER_BYTES


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a block says besides its payload."""

    synced: int
    position: int
    xid: int


def packed(kind: Kind, number: int, offset: int, stamp: Stamp, payload: bytes | memoryview) -> bytes:
    """The header for this payload, at this place of the file with this number."""
    rest = _HEADER.pack(MAGIC, 0, kind, len(payload), stamp.synced, stamp.position, stamp.xid)[8:]
    return MAGIC + struct.pack("<I", _checksum(number, offset, rest, payload)) + rest


def _checksum(number: int, offset: int, rest: bytes | memoryview, payload: bytes | memoryview) -> int:
    return zlib.crc32(payload, zlib.crc32(rest, zlib.crc32(_PLACE.pack(number, offset))))


def block_at(data: memoryview, number: int, offset: int, base: int = 0) -> Block | None:
    """The block that begins at `offset` of the file, if a whole and sound one does; data[0] is the file's `base`."""
    at = offset - base
    if len(data) - at < HEADER_BYTES:
        return None
    magic, checksum, kind, length, synced, position, xid = _HEADER.unpack_from(data, at)
    end = at + HEADER_BYTES + length
    if magic != MAGIC or end > len(data) or kind not in Kind.__members__.values():
        return None
    if checksum != _checksum(number, offset, data[at + 8 : at + HEADER_BYTES], data[at + HEADER_BYTES : end]):
        return None
    return Block(Kind(kind), offset, base + end, synced, position, xid)


def blocks(data: memoryview, number: int, start: int = 0, base: int = 0) -> Iterator[Block]:
    """The blocks that follow each other from `start` on, up to the first that is not sound."""
    block = block_at(data, number, start, base)
    while block is not None:
        yield block
        block = block_at(data, number, block.end, base)


def stray_blocks(data: memoryview, number: int, start: int) -> Iterator[Block]:
    """Sound blocks anywhere at or after `start`, after something that is none."""
    whole = bytes(data[start:])
    at = whole.find(MAGIC)
    while at >= 0:
        block = block_at(data, number, start + at)
        if block is not None:
            yield block
        at = whole.find(MAGIC, at + 1)


def view(buffer: Bytes) -> memoryview:
    """An array of bytes as what the functions above take."""
    return memoryview(buffer)  # type: ignore[arg-type]
