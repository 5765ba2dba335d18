"""Frames: messages side by side in a buffer, as the log holds them.

A frame is a length, int32 little-endian, and so many bytes. Nothing says where a message in the middle begins but the
lengths before it, so every look at frames starts at the beginning of one and walks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidemark.values.failure import bad_message
from tidemark.values.kernels import OK, Bytes, Longs, kernel, read_only

HEAD = 4


@dataclass(frozen=True, slots=True)
class Window:
    """Some messages of a region: where each lies, and which of the region's pieces it belongs to."""

    starts: Longs
    lengths: Longs
    piece: Longs


def framed(messages: Iterable[bytes]) -> Bytes:
    """Messages as frames."""
    parts = [part for message in messages for part in (len(message).to_bytes(HEAD, "little"), message)]
    return read_only(np.frombuffer(b"".join(parts), np.uint8))


def windows(buffer: Bytes, starts: Longs, ends: Longs, most: int, most_bytes: int) -> Iterator[Window]:
    """Walk the frames of these pieces of a buffer, so many messages and bytes at a time; a larger one comes alone."""
    piece, at = 0, int(starts[0]) if len(starts) else 0
    places = np.empty((3, min(most, int((ends - starts).sum()) // (HEAD + 1) + 1)), np.int64)
    while piece < len(starts):
        found, piece, at, bad = _walk(buffer, starts, ends, piece, at, most_bytes, places)
        if bad != OK:
            bad_message("truncated or empty frame", buffer, int(bad))
        if found:
            yield Window(*(row.copy() for row in places[:, :found]))


@kernel
def frame_length(buffer: Bytes, at: int, end: int) -> Any:
    """The length of the frame's message, or -1 where no whole frame with something in it lies before `end`."""
    if end - at < HEAD:
        return np.int64(-1)
    length = (
        np.int64(buffer[at])
        | np.int64(buffer[at + 1]) << 8
        | np.int64(buffer[at + 2]) << 16
        | np.int64(buffer[at + 3]) << 24
    )
    if length < 1 or length > end - at - HEAD:
        return np.int64(-1)
    return length


@kernel
def _walk(buffer: Bytes, starts: Longs, ends: Longs, piece: int, at: int, most_bytes: int, places: Longs) -> Any:
    """Fill `places`; how many, and where to go on."""
    found, size = 0, 0
    while piece < len(starts):
        if at >= ends[piece]:
            piece += 1
            if piece < len(starts):
                at = starts[piece]
            continue
        length = frame_length(buffer, at, ends[piece])
        if length < 0:
            return found, piece, at, at
        if found == places.shape[1] or (found and size + length > most_bytes):
            break
        places[0, found], places[1, found], places[2, found] = at + HEAD, length, piece
        found += 1
        size += length
        at += HEAD + length
    return found, piece, at, OK
