"""Frames: consecutive messages in a buffer, in the format of the log.

A frame is a little-endian int32 length followed by that many bytes. Only the preceding lengths determine where a
message begins, so every scan starts at the beginning of a frame.

The first byte of each message is its kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidemark.values.failure import bad_message
from tidemark.values.kernels import OK, Bytes, Longs, kernel, le32, read_only

HEAD = 4
INSERT, UPDATE, DELETE, TRUNCATE = (ord(letter) for letter in "IUDT")
BEGIN, COMMIT, ORIGIN, RELATION, TYPE, MESSAGE = (ord(letter) for letter in "BCORYM")
STREAM_START, STREAM_STOP, STREAM_COMMIT, STREAM_ABORT = (ord(letter) for letter in "SEcA")
TWO_PHASE = b"bPKrp"


@dataclass(frozen=True, slots=True)
class Window:
    """Messages of a region: the start and length of each, and the index of the piece that contains it."""

    starts: Longs
    lengths: Longs
    piece: Longs


def framed(messages: Iterable[bytes]) -> Bytes:
    """Encode messages as frames."""
    parts = [part for message in messages for part in (len(message).to_bytes(HEAD, "little"), message)]
    return read_only(np.frombuffer(b"".join(parts), np.uint8))


def windows(buffer: Bytes, starts: Longs, ends: Longs, most: int, most_bytes: int) -> Iterator[Window]:
    """Scan the frames of these pieces in windows of limited count and bytes; a larger message is a window itself."""
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
    """Return the length of the frame's message, or -1 if no complete, nonempty frame ends at or before `end`."""
    if end - at < HEAD:
        return np.int64(-1)
    length = np.int64(le32(buffer, at))
    if length < 1 or length > end - at - HEAD:
        return np.int64(-1)
    return length


@kernel
def _walk(buffer: Bytes, starts: Longs, ends: Longs, piece: int, at: int, most_bytes: int, places: Longs) -> Any:
    """Fill `places`; return the count, the piece and offset to continue from, and the offset of a bad frame or OK."""
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
