"""Conversion of a stream's texts to UTF-8 if the server cannot convert all of them.

A database may contain a character without an equivalent in UTF-8, such as the byte 0x81 in WIN1252. The server cannot
send it, and the slot cannot pass the change. The stream is then requested unconverted, in pgoutput's text format and
without streamed transactions, and the server converts texts over a second session. A text without an equivalent gets a
first byte that never occurs in UTF-8, so that decoding refuses it, which affects only its table.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from tidemark.errors import UntranslatableText
from tidemark.pgoutput.frames import HEAD, framed
from tidemark.postgres.session import Session
from tidemark.values.kernels import Bytes

NOT_UTF8 = b"\xff"
_CONVERT = """
    select convert_from(stored, getdatabaseencoding())
    from unnest(%s::bytea[]) with ordinality given(stored, at) order by at"""
_NAMES, _VALUES, _RAW = "name", "value", "raw"
_TYPE_AND_OID = 5

Piece = tuple[str, bytes]


class Conversion:
    """Converts blocks of one stream; used by the writer thread."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._last_refused = time.monotonic()

    def frames(self, frames: Bytes) -> Bytes:
        """The same messages with their texts in UTF-8."""
        messages = [list(pieces(message)) for message in _messages(frames.tobytes())]
        texts = {text for message in messages for kind, text in message if kind is not _RAW and not text.isascii()}
        converted = dict(self._converted(sorted(texts)))
        return framed(b"".join(_joined(message, converted)) for message in messages)

    def idle_s(self) -> float:
        """The time since the last text without an equivalent, or since the start."""
        return time.monotonic() - self._last_refused

    def _converted(self, texts: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Each text and its conversion; a text that cannot be converted is found by bisection."""
        if not texts:
            return
        try:
            rows = self._session.rows(_CONVERT, [texts])
        except UntranslatableText:
            if len(texts) == 1:
                self._last_refused = time.monotonic()
                yield texts[0], NOT_UTF8 + texts[0]
                return
            middle = len(texts) // 2
            yield from self._converted(texts[:middle])
            yield from self._converted(texts[middle:])
            return
        yield from ((text, row[0].encode()) for text, row in zip(texts, rows, strict=True))


def pieces(message: bytes) -> Iterator[Piece]:
    """Split a message of pgoutput's protocol 1 into raw bytes, names and values.

    A message that cannot be split is returned raw: the log checks every message and refuses invalid ones.
    """
    try:
        yield from list(_SPLIT.get(message[:1], _unchanged)(message))
    except (struct.error, ValueError):
        yield _RAW, message


def _unchanged(message: bytes) -> Iterator[Piece]:
    yield _RAW, message


def _change(message: bytes) -> Iterator[Piece]:
    """Split an Insert, Update or Delete message: the OID, then tuples, each after its type byte."""
    yield _RAW, message[:_TYPE_AND_OID]
    at = _TYPE_AND_OID
    while at < len(message):
        (columns,) = struct.unpack_from("!H", message, at + 1)
        yield _RAW, message[at : at + 3]
        at += 3
        for _ in range(columns):
            if message[at : at + 1] in (b"n", b"u"):
                yield _RAW, message[at : at + 1]
                at += 1
                continue
            (length,) = struct.unpack_from("!i", message, at + 1)
            if message[at : at + 1] != b"t" or not 0 <= length <= len(message) - at - 5:
                raise ValueError("not a text value")
            yield _RAW, b"t"
            yield _VALUES, message[at + 5 : at + 5 + length]
            at += 5 + length


def _relation(message: bytes) -> Iterator[Piece]:
    yield _RAW, message[:_TYPE_AND_OID]
    at = _TYPE_AND_OID
    for _ in range(2):
        yield _NAMES, (name := _name(message, at))
        at += len(name) + 1
    _, columns = struct.unpack_from("!BH", message, at)
    yield _RAW, message[at : at + 3]
    at += 3
    for _ in range(columns):
        yield _RAW, message[at : at + 1]
        yield _NAMES, (name := _name(message, at + 1))
        at += len(name) + 2
        yield _RAW, message[at : at + 8]
        at += 8
    yield _RAW, message[at:]


def _type(message: bytes) -> Iterator[Piece]:
    schema = _name(message, _TYPE_AND_OID)
    at = _TYPE_AND_OID + len(schema) + 1
    name = _name(message, at)
    yield from (
        (_RAW, message[:_TYPE_AND_OID]),
        (_NAMES, schema),
        (_NAMES, name),
        (_RAW, message[at + len(name) + 1 :]),
    )


def _after(size: int, message: bytes) -> Iterator[Piece]:
    """Split an Origin or Message message: a name after `size` bytes."""
    name = _name(message, size)
    yield from ((_RAW, message[:size]), (_NAMES, name), (_RAW, message[size + len(name) + 1 :]))


_SPLIT: Mapping[bytes, Callable[[bytes], Iterator[Piece]]] = {
    b"I": _change,
    b"U": _change,
    b"D": _change,
    b"R": _relation,
    b"Y": _type,
    b"O": lambda message: _after(9, message),
    b"M": lambda message: _after(10, message),
}


def _name(message: bytes, at: int) -> bytes:
    return message[at : message.index(b"\0", at)]


def _messages(frames: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(frames):
        length = int.from_bytes(frames[at : at + HEAD], "little")
        yield frames[at + HEAD : at + HEAD + length]
        at += HEAD + length


def _joined(message: Iterable[Piece], converted: dict[bytes, bytes]) -> Iterator[bytes]:
    for kind, text in message:
        if kind is _RAW:
            yield text
            continue
        text = converted.get(text, text)
        yield len(text).to_bytes(4, "big") + text if kind is _VALUES else text + b"\0"
