r"""Blocks, of which segments and indexes consist, each with a checksum over its contents and its location.

    4 bytes   TMk1
    uint32    CRC-32 of the file's number, the block's offset, the rest of this header and the payload
    uint32    kind
    uint32    length of the payload
    uint64    synced: the size of the segment that was durable when this block was written
    uint64    position: every commit at or below it is in the log up to and including this block
    uint64    a full transaction ID of the source near those in this block, or 0 if unknown

Little-endian. `synced` distinguishes damage from a torn tail: it proves that everything before that offset of the
segment was once complete on disk.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from tidemark.values.kernels import Bytes

MAGIC = b"TMk1"
_HEADER = struct.Struct("<4sIIIQQQ")
_PLACE = struct.Struct("<QQ")
HEADER_BYTES = _HEADER.size
_UNCHECKED = 8  # bytes at its beginning that the checksum does not include


class BlockKind(IntEnum):
    """The contents of a block."""

    HEAD = 1  # the first block of a segment
    SESSION = 2  # a new connection: the source resends transactions that were open
    MESSAGES = 3  # frames; none if only the position has advanced
    INDEX = 4  # rows of the commit index
    SYNCED = 5  # no payload: the segment was synced


_KINDS = {kind.value: kind for kind in BlockKind}


class Block(NamedTuple):
    """One complete block with a valid checksum; its header is at `offset`, its payload from `start` to `end`."""

    kind: BlockKind
    offset: int
    end: int
    synced: int
    position: int
    xid: int

    @property
    def start(self) -> int:
        """The offset of the payload."""
        return self.offset + HEADER_BYTES


@dataclass(frozen=True, slots=True)
class BlockStamp:
    """The fields of a block header that the writer sets."""

    synced: int
    position: int
    xid: int


def packed(kind: BlockKind, number: int, offset: int, stamp: BlockStamp, payload: bytes | memoryview) -> bytes:
    """The header of a block with this payload, at this offset of the file with this number."""
    rest = _HEADER.pack(MAGIC, 0, kind, len(payload), stamp.synced, stamp.position, stamp.xid)[_UNCHECKED:]
    return MAGIC + struct.pack("<I", _checksum(number, offset, rest, payload)) + rest


def _checksum(number: int, offset: int, *parts: bytes | memoryview) -> int:
    found = zlib.crc32(_PLACE.pack(number, offset))
    for part in parts:
        found = zlib.crc32(part, found)
    return found


def block_at(data: memoryview, number: int, offset: int, base: int = 0) -> Block | None:
    """The block at `offset` of the file, or None if it is incomplete or invalid; `data` starts at offset `base`."""
    at = offset - base
    if len(data) - at < HEADER_BYTES:
        return None
    magic, checksum, kind, length, synced, position, xid = _HEADER.unpack_from(data, at)
    end = at + HEADER_BYTES + length
    if magic != MAGIC or end > len(data) or kind not in _KINDS:
        return None
    if checksum != _checksum(number, offset, data[at + _UNCHECKED : end]):
        return None
    return Block(_KINDS[kind], offset, base + end, synced, position, xid)


def blocks(data: memoryview, number: int, start: int = 0, base: int = 0) -> Iterator[Block]:
    """The consecutive blocks from `start` on, up to the first incomplete or invalid one."""
    block = block_at(data, number, start, base)
    while block is not None:
        yield block
        block = block_at(data, number, block.end, base)


def stray_blocks(data: memoryview, number: int, start: int) -> Iterator[Block]:
    """Valid blocks at any offset at or after `start`, also behind bytes that are not a valid block."""
    whole = bytes(data[start:])
    at = whole.find(MAGIC)
    while at >= 0:
        block = block_at(data, number, start + at)
        if block is not None:
            yield block
        at = whole.find(MAGIC, at + 1)


def view(buffer: Bytes) -> memoryview:
    """An array of bytes as a memoryview, which the functions above require."""
    return memoryview(buffer)  # type: ignore[arg-type]
