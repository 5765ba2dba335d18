"""Segments: their names, and what the first block of each holds so that nothing before it is needed to go on.

The head's payload: uint64 the last commit LSN before it, uint64 the size of the segment before it, four int64 of the
assembler's state, uint32 how many bytes of frames follow; then the frames (Relation messages that are in force or of
open transactions, in the order in which they came), then the open transactions as index rows; their `standing` says
which of the frames are in force.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from tidemark.log.blocks import HEADER_BYTES
from tidemark.log.index import IndexPart, unpacked
from tidemark.pgoutput.rows import Assembled

SEGMENT, INDEX = ".segment", ".index"
_HEAD = struct.Struct("<QQ4qI")
FRAMES_AT = HEADER_BYTES + _HEAD.size  # where a segment's first frame lies


@dataclass(frozen=True, slots=True)
class Head:
    """What was known when a segment was begun."""

    last_commit: int
    previous_bytes: int
    state: tuple[int, ...]
    frames: bytes
    opened: Assembled

    def packed(self) -> bytes:
        """As a payload."""
        numbers = _HEAD.pack(self.last_commit, self.previous_bytes, *self.state, len(self.frames))
        return numbers + self.frames + IndexPart(self.opened, 0).packed()


def unpacked_head(payload: bytes, what: str) -> Head:
    """Read a payload, whose checksum was right."""
    last_commit, previous_bytes, *state, size = _HEAD.unpack_from(payload)
    frames, opened = payload[_HEAD.size : _HEAD.size + size], payload[_HEAD.size + size :]
    return Head(last_commit, previous_bytes, tuple(state), frames, unpacked(opened, what).rows)


def segment_path(folder: Path, number: int) -> Path:
    """Where a segment lies."""
    return folder / f"{number:012d}{SEGMENT}"


def index_path(folder: Path, number: int) -> Path:
    """Where its index lies."""
    return folder / f"{number:012d}{INDEX}"


def numbers(names: list[str], suffix: str) -> list[int]:
    """The numbers of the segments or indexes among these names, ascending."""
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return sorted(int(stem) for stem in stems if stem.isdecimal())
