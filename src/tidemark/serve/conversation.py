"""What the server and its engine process send each other about a statement, and the frames of it.

The server sends `Start`; the process requests queries in the client's session (`Ask`), which the server answers with
`Told`, and ends with `Finished` or `Refused`. The first message to the process is `Setup`. Both ends are this program,
connected by a pair of sockets that no other process has, so messages are pickled.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from struct import Struct
from typing import TypeAlias

_SIZE = Struct("!Q")


class EngineKind(Enum):
    """The engines that compute statements."""

    SPARK = "spark"
    DUCKDB = "duckdb"


@dataclass(frozen=True, slots=True)
class Setup:
    """What the process opens, and its limits."""

    lake: str
    engine: EngineKind
    source: str = field(default="", repr=False)
    master: str | None = None
    remote: str | None = None
    conf: tuple[tuple[str, str], ...] = ()
    statements: int = 4
    most_rows: int = 100_000


@dataclass(frozen=True, slots=True)
class Start:
    """A statement, and how long it may wait for the log if the source can answer. Its `repr` omits the text."""

    number: int
    statement: str = field(repr=False)
    wait_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Told:
    """What a requested query returned."""

    number: int
    text: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Cancel:
    """The answer is not wanted any longer."""

    number: int


@dataclass(frozen=True, slots=True)
class Opened:
    """The process is ready."""


@dataclass(frozen=True, slots=True)
class Arrays:
    """Array parameters in text format, with the OIDs of their types."""

    types: tuple[int, ...] = ()
    values: tuple[bytes, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Ask:
    """A query to run in the client's session: with its parameters, if `has_parameters`, and then the arrays."""

    number: int
    sql: str = field(repr=False)
    has_parameters: bool = False
    arrays: Arrays = field(default_factory=Arrays)


@dataclass(frozen=True, slots=True)
class Proven:
    """The mirror can answer the statement; the wait for its boundary begins."""

    number: int


@dataclass(frozen=True, slots=True)
class Running:
    """The engine begins to compute, at this boundary; the wait for it is over."""

    number: int
    boundary: str
    waited_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The statement that returns the result, to be run with the client's parameters and then the arrays."""

    number: int
    sql: str = field(repr=False)
    arrays: Arrays
    engine_s: float
    rows: int


class RefusedBy(Enum):
    """Why there is no answer."""

    SPLIT = "split"  # the statement is not proven
    POSITION = "position"  # the mirror has not what the session sees, or not at this position
    SETTING = "setting"  # a setting has an invalid value
    ENGINE = "engine"


@dataclass(frozen=True, slots=True)
class Refused:
    """The mirror does not answer."""

    number: int
    by: RefusedBy
    reason: str


ToEngine: TypeAlias = Setup | Start | Told | Cancel
ToServer: TypeAlias = Opened | Ask | Proven | Running | Finished | Refused


def packed(message: ToEngine | ToServer) -> bytes:
    """Return the frame of a message."""
    body = pickle.dumps(message, protocol=5)
    return _SIZE.pack(len(body)) + body


class Frames:
    """Collects received bytes, and yields the messages that are complete."""

    def __init__(self) -> None:
        self._held = bytearray()

    def take(self, data: bytes) -> Iterator[object]:
        """Yield the messages that are complete with these bytes."""
        self._held += data
        while len(self._held) >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._held)
            end = _SIZE.size + size
            if len(self._held) < end:
                return
            body = bytes(self._held[_SIZE.size : end])
            del self._held[:end]
            yield pickle.loads(body)  # noqa: S301 - from the other end, which is this program
