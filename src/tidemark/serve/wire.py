"""Frames and startup packets of PostgreSQL's protocol 3: pure, with bounded lengths.

A frame is a type byte, the length of the rest in 4 bytes, and a body. A startup packet has no type byte. What is
malformed raises `MalformedMessage` with its offset; it is never forwarded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from types import MappingProxyType
from typing import NoReturn

from tidemark.errors import MalformedMessage

HEADER = Struct("!BI")
HEADER_BYTES = HEADER.size
_INT16, _INT32 = Struct("!H"), Struct("!I")

# PostgreSQL's own limits: of a startup packet, of a token of authentication, and of messages (1 GB, or 10,000 bytes).
STARTUP_LIMIT, TOKEN_LIMIT = 10_000, 65_535
_LARGE, _SMALL = 0x3FFFFFFE, 10_000

TLS_HANDSHAKE = 0x16  # the first byte of a TLS connection
KEY_LIMIT = 256


class ClientKind:
    """The types of messages from the client."""

    BIND, CLOSE, COPY_DATA, COPY_DONE, COPY_FAIL = b"BCdcf"
    DESCRIBE, EXECUTE, FLUSH, FUNCTION_CALL, PARSE = b"DEHFP"
    PASSWORD, QUERY, SYNC, TERMINATE = b"pQSX"


class SourceKind:
    """The types of messages from the source."""

    AUTHENTICATION, KEY_DATA, PARAMETER_STATUS, READY, ERROR, NOTICE, NOTIFICATION, NEGOTIATE = b"RKSZENAv"
    PARSE_COMPLETE, BIND_COMPLETE, CLOSE_COMPLETE, NO_DATA, SUSPENDED, EMPTY_QUERY = b"123nsI"
    ROW_DESCRIPTION, PARAMETER_DESCRIPTION, DATA_ROW, COMPLETE, COPY_IN = b"TtDCG"


CLIENT_LIMITS: Mapping[int, int] = MappingProxyType(
    {
        **dict.fromkeys(b"BdfFPQ", _LARGE),
        **dict.fromkeys(b"CcDEHSX", _SMALL),
        ClientKind.PASSWORD: TOKEN_LIMIT,
    }
)


class Opening(Enum):
    """What a connection begins with."""

    TLS = 80877103
    GSS = 80877104
    CANCEL = 80877102
    SESSION = 3 << 16


@dataclass(frozen=True, slots=True)
class StartupPacket:
    """The first packet of a connection: `raw` is forwarded as it is."""

    opening: Opening
    raw: bytes
    parameters: Mapping[str, str]

    @property
    def is_replication(self) -> bool:
        """Whether the client speaks the replication protocol."""
        return self.parameters.get("replication", "false").lower() not in ("false", "off", "no", "0", "f", "n", "")

    @property
    def cancel_key(self) -> bytes:
        """The process id and the secret key of a cancel request, as one value."""
        return self.raw[8:]


def read_startup(data: bytes) -> StartupPacket | None:
    """Return the packet that the data begins with; None if the rest has not been received."""
    if len(data) < 4:
        return None
    (size,) = _INT32.unpack_from(data)
    if not 8 <= size <= STARTUP_LIMIT:
        raise MalformedMessage(f"invalid length of startup packet: {size}", offset=0)
    if len(data) < size:
        return None
    raw = data[:size]
    (code,) = _INT32.unpack_from(raw, 4)
    if code in (Opening.TLS.value, Opening.GSS.value):
        if size != 8:
            raise MalformedMessage(f"invalid length of an encryption request: {size}", offset=0)
        return StartupPacket(Opening(code), raw, {})
    if code == Opening.CANCEL.value:
        if not 16 <= size <= 12 + KEY_LIMIT:
            raise MalformedMessage(f"invalid length of a cancel request: {size}", offset=0)
        return StartupPacket(Opening.CANCEL, raw, {})
    if code >> 16 != 3:
        raise MalformedMessage(f"unsupported frontend protocol {code >> 16}.{code & 0xFFFF}", offset=4)
    return StartupPacket(Opening.SESSION, raw, _parameters(raw))


def _parameters(raw: bytes) -> Mapping[str, str]:
    if raw[-1:] != b"\0" or (len(raw) > 9 and raw[-2:] != b"\0\0"):
        raise MalformedMessage("the startup packet does not end with a zero byte", offset=len(raw) - 1)
    words = raw[8:-2].split(b"\0") if len(raw) > 9 else []
    if len(words) % 2:
        raise MalformedMessage("a parameter of the startup packet has no value", offset=8)
    texts = [word.decode("utf-8", "surrogateescape") for word in words]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def startup_packet(parameters: Mapping[str, str], version: int = Opening.SESSION.value) -> bytes:
    """Build the packet that starts a session."""
    body = b"".join(f"{name}\0{value}\0".encode() for name, value in parameters.items()) + b"\0"
    return _INT32.pack(8 + len(body)) + _INT32.pack(version) + body


def request_packet(opening: Opening, key: bytes = b"") -> bytes:
    """Build a request for encryption, or for a cancel with a key."""
    return _INT32.pack(8 + len(key)) + _INT32.pack(opening.value) + key


def frame(kind: int, body: bytes = b"") -> bytes:
    """Build a frame."""
    return HEADER.pack(kind, 4 + len(body)) + body


def frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Return the type and body of every frame in data that consists of whole frames."""
    at = 0
    while at < len(data):
        if len(data) - at < HEADER_BYTES:
            raise MalformedMessage("a frame ends within its header", offset=at)
        kind, size = HEADER.unpack_from(data, at)
        after = at + 1 + size
        if size < 4 or after > len(data):
            raise MalformedMessage(f"invalid length of a frame: {size}", offset=at)
        yield kind, data[at + HEADER_BYTES : after]
        at = after


class Body:
    """Reads the fields of a body in order; a field that is not complete raises."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def byte(self) -> int:
        """One byte."""
        return self.take(1)[0]

    def int16(self) -> int:
        """An unsigned integer of 2 bytes."""
        return int(_INT16.unpack(self.take(2))[0])

    def int32(self) -> int:
        """An unsigned integer of 4 bytes."""
        return int(_INT32.unpack(self.take(4))[0])

    def text(self) -> bytes:
        """A string that ends with a zero byte."""
        end = self._data.find(b"\0", self._at)
        if end < 0:
            self._fail("a string has no end")
        found = self._data[self._at : end]
        self._at = end + 1
        return found

    def value(self) -> bytes | None:
        """A value after its length; None is NULL."""
        size = self.int32()
        return None if size == 0xFFFFFFFF else self.take(size)

    def take(self, size: int) -> bytes:
        """This many bytes."""
        found = self._data[self._at : self._at + size]
        if len(found) < size:
            self._fail(f"{size} bytes expected, {len(found)} left")
        self._at += size
        return found

    def rest(self) -> bytes:
        """All that is left."""
        return self.take(len(self._data) - self._at)

    def end(self) -> None:
        """Require that nothing is left."""
        if self._at != len(self._data):
            self._fail(f"{len(self._data) - self._at} bytes too many")

    def _fail(self, reason: str) -> NoReturn:
        raise MalformedMessage(f"malformed message: {reason}", offset=self._at)
