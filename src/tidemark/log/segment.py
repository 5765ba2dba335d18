"""Segments: their file names, and their head, the first block, which makes earlier segments unnecessary for a restart.

The payload of the head: uint64 the last commit LSN before it, uint64 the size of the previous segment, four int64 of
the assembler's state, uint32 the size of the following frames; then the frames (the Relation messages that are in force
or belong to open transactions, in order of arrival), then the open transactions as index rows, whose `standing` rows
list the frames that are in force.
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
FRAMES_AT = HEADER_BYTES + _HEAD.size  # the offset of the first frame of a segment


@dataclass(frozen=True, slots=True)
class Head:
    """The state of the log at the start of a segment."""

    last_commit: int
    previous_bytes: int
    state: tuple[int, ...]
    frames: bytes
    opened: Assembled

    def packed(self) -> bytes:
        """The payload of the head block."""
        numbers = _HEAD.pack(self.last_commit, self.previous_bytes, *self.state, len(self.frames))
        return numbers + self.frames + IndexPart(self.opened, 0).packed()


def unpacked_head(payload: bytes, what: str) -> Head:
    """Parse the payload of a head block, whose checksum was valid."""
    last_commit, previous_bytes, *state, size = _HEAD.unpack_from(payload)
    frames, opened = payload[_HEAD.size : _HEAD.size + size], payload[_HEAD.size + size :]
    return Head(last_commit, previous_bytes, tuple(state), frames, unpacked(opened, what).rows)


def segment_path(folder: Path, number: int) -> Path:
    """The path of a segment."""
    return folder / f"{number:012d}{SEGMENT}"


def index_path(folder: Path, number: int) -> Path:
    """The path of the index of a segment."""
    return folder / f"{number:012d}{INDEX}"


def numbers(names: list[str], suffix: str) -> list[int]:
    """The numbers of the segments or indexes among these file names, ascending."""
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return sorted(int(stem) for stem in stems if stem.isdecimal())
