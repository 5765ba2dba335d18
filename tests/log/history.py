"""A source that is a list, a life that a log leads with it, and what must be readable at every moment.

The source is a row of events as its WAL would have them; a connection is sent those of the transactions that it lacks.
What has to be in a log that reaches so far is read off the events, without the log's help. Deterministic by seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.log.messages import begin, commit, frames, insert, relation, stream_abort, stream_commit
from tests.log.messages import block as stream_block
from tidemark.clock import Lsn, Xid8
from tidemark.log.disk import Disk
from tidemark.log.reader import LogReader
from tidemark.log.recovery import open_log
from tidemark.log.writer import LogWriter
from tidemark.pgoutput.changes import ChangeBatch
from tidemark.values.types import Types

START = Lsn(50)
SEGMENT_BYTES = 1500
XID = Xid8(2**32 + 100)
_KINDS = ["plain"] * 4 + ["block"] * 4 + ["commit"] * 2 + ["abort", "position", "alter"]
Row = tuple[int, str, int]  # commit LSN, the table's name as it was described, value


@dataclass(frozen=True, slots=True)
class Event:
    """Something in the WAL. `ends` is where its transaction ends: a connection that begins there lacks nothing."""

    kind: str  # plain, block, commit, abort, subabort, position
    ends: int
    xid: int = 0
    subxid: int = 0
    values: tuple[int, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the stream, or none and the position that the source names."""

    raw: bytes
    position: int = 0


class Source:
    """Events at random: plain and streamed transactions, aborts of both sizes, positions, a table that changes."""

    def __init__(self, seed: int, events: int = 60) -> None:
        self._random = Random(seed)  # noqa: S311
        self._lsn, self._xid, self._value, self._version = START.value + 10, 10, 0, 0
        self._open: dict[int, list[int]] = {}  # streamed transactions that have not ended: where their events are
        self.events: list[Event] = []
        for _ in range(events):
            self._add(self._random.choice(_KINDS))
        for xid in list(self._open):
            self._end(xid, "commit")
        self._plain()

    @property
    def end(self) -> Lsn:
        """The last commit."""
        return Lsn(max(event.ends for event in self.events))

    def rows(self, after: Lsn, upto: Lsn) -> list[Row]:
        """What transactions that commit there inserted and did not take back, in commit order."""
        aborted = {event.subxid for event in self.events if event.kind in ("abort", "subabort")}
        changes = (event for event in self.events if event.kind in ("plain", "block"))
        kept = (event for event in changes if not {event.xid, event.subxid} & aborted and after.value < event.ends)
        rows = [(event.ends, event.name, value) for event in kept for value in event.values if event.ends <= upto.value]
        return sorted(rows, key=lambda row: row[0])

    def commits(self, upto: Lsn) -> list[int]:
        """The commit LSNs up to there."""
        return [event.ends for event in self.events if event.kind in ("plain", "commit") and event.ends <= upto.value]

    def stream(self, after: Lsn) -> list[Message]:
        """What a connection is sent that has everything up to `after`."""
        described, begun, sent = "", set[int](), list[Message]()
        for event in self.events:
            if event.ends <= after.value:
                continue
            if event.kind == "plain":
                sent += map(Message, _plain(event, event.name != described))
                described = event.name
            elif event.kind == "block":
                sent += map(Message, _block(event, event.xid not in begun))
                begun.add(event.xid)
            elif event.kind == "commit":
                sent.append(Message(stream_commit(event.xid, event.ends)))
                described = described or event.name
            elif event.kind == "position":
                sent.append(Message(b"", event.ends))
            else:
                sent.append(Message(stream_abort(event.xid, event.subxid)))
        return sent

    def _add(self, kind: str) -> None:
        if kind == "plain":
            self._plain()
        elif kind == "alter":
            self._version += 1
        elif kind == "position":
            self.events.append(Event("position", self._next()))
        elif kind == "block":
            self._block()
        elif self._open:
            self._end(self._random.choice(list(self._open)), kind)

    def _plain(self) -> None:
        self._xid += 2
        self.events.append(Event("plain", self._next(), self._xid, 0, self._values(), self._name()))

    def _block(self) -> None:
        xid = self._random.choice(list(self._open) or [0])
        if len(self._open) < 3 and (not xid or self._random.random() < 0.5):
            xid = self._xid = self._xid + 2
        at = self._open.setdefault(xid, [])
        subxid = xid + 1 if self._random.random() < 0.3 else 0
        name = self.events[at[0]].name if at else self._name()  # it goes by what it described itself
        at.append(len(self.events))
        self.events.append(Event("block", 0, xid, subxid, self._values(), name))

    def _end(self, xid: int, kind: str) -> None:
        """Its earlier events learn only now where it ends, as a server does that decodes from the WAL."""
        at = self._open.pop(xid)
        if self._random.random() < 0.5 and any(self.events[i].subxid for i in at):
            at.append(len(self.events))
            self.events.append(Event("subabort", 0, xid, xid + 1))
        end = Event(kind, self._next(), xid, xid if kind == "abort" else 0, name=self.events[at[0]].name)
        for i in at:
            old = self.events[i]
            self.events[i] = Event(old.kind, end.ends, old.xid, old.subxid, old.values, old.name)
        self.events.append(end)

    def _values(self) -> tuple[int, ...]:
        first, self._value = self._value, self._value + self._random.randint(1, 5)
        return tuple(range(first, self._value))

    def _next(self) -> int:
        self._lsn += self._random.randint(20, 40)
        return self._lsn

    def _name(self) -> str:
        return f"t{self._version}"


def _plain(event: Event, described: bool) -> Iterator[bytes]:
    yield begin(event.xid, event.ends)
    if described:
        yield relation(name=event.name)
    yield from map(insert, event.values)
    yield commit(event.ends)


def _block(event: Event, first: bool) -> Iterator[bytes]:
    start, *rest = stream_block(event.xid, *event.values, first=first, subxid=event.subxid or None)
    yield start
    if first:
        yield relation(event.xid, event.name)
    yield from rest[first:]


@dataclass(slots=True)
class Life:
    """A log's life with a source. `promises`: what was durable after how many operations; `trims` likewise."""

    source: Source
    folder: Path
    disk: Disk
    random: Random
    count: Sequence[object] = ()  # the disk's operations so far
    promises: list[tuple[int, Lsn]] = field(default_factory=list)
    trims: list[tuple[int, Lsn]] = field(default_factory=list)
    writer: LogWriter | None = None  # the one in use, until the end

    def lead(self) -> None:
        """Send everything, in blocks cut anywhere, with syncs, trims, reconnections and restarts here and there."""
        writer = self._open()
        ahead = self._connect(writer)
        while ahead:
            size = self.random.choice([1, 2, 3, 5, 9])
            some, ahead = ahead[:size], ahead[size:]
            append(writer, some)
            self._promise(writer)
            chance = self.random.random()
            if chance < 0.3:
                writer.sync()
                self._promise(writer)
            elif chance < 0.36:
                self._trim(writer)
            elif chance < 0.40:
                ahead = self._connect(writer)
            elif chance < 0.42:
                writer.close()
                writer = self._open()
                ahead = self._connect(writer)
        writer.sync()
        self._promise(writer)
        writer.close()
        self.writer = None

    def promised(self, operations: int) -> Lsn:
        """What was durable after so many operations."""
        return max((lsn for at, lsn in self.promises if at <= operations), default=Lsn.ZERO)

    def trimmed(self, operations: int) -> Lsn:
        """Up to where the lake was said to have everything, after so many operations."""
        return max((lsn for at, lsn in self.trims if at < operations), default=Lsn.ZERO)

    def _open(self) -> LogWriter:
        self.writer = None
        self.writer = open_log(self.folder, START, self.disk, SEGMENT_BYTES)
        self._promise(self.writer)
        return self.writer

    def _connect(self, writer: LogWriter) -> list[Message]:
        writer.begin_session(b"{}", XID)
        return self.source.stream(writer.durable)

    def _trim(self, writer: LogWriter) -> None:
        applied = Lsn(self.random.randint(START.value, writer.durable.value))
        self.trims.append((len(self.count), applied))
        writer.trim(applied)

    def _promise(self, writer: LogWriter) -> None:
        self.promises.append((len(self.count), writer.durable))


def append(writer: LogWriter, some: list[Message]) -> None:
    """Messages as one block; one that ends with a position names it."""
    raw = [message.raw for message in some if message.raw]
    position = max((message.position for message in some[-1:]), default=0)
    writer.append(frames(*raw), Lsn(position))


def contents(reader: LogReader, after: Lsn = Lsn.ZERO, upto: Lsn | None = None) -> list[Row]:
    """All rows that can be read, in commit order."""
    rows = []
    for batch in reader.read(after, upto or reader.received, Types()):
        assert isinstance(batch, ChangeBatch)
        keys = zip(batch.commit_lsns.tolist(), batch.ordinals.tolist(), strict=True)
        values = batch.new[0].array.to_pylist()
        rows += [(lsn, ordinal, batch.relation.name, value) for (lsn, ordinal), value in zip(keys, values, strict=True)]
    assert [row[:2] for row in rows] == sorted({row[:2] for row in rows})
    return [(lsn, name, value) for lsn, _, name, value in rows]
