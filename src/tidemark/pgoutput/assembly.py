"""Assign messages to committed transactions, before any value is decoded.

A plain transaction arrives whole, between Begin and Commit. A streamed transaction arrives in blocks that are
interleaved with others and takes effect at its Stream Commit; the decoder skips the changes of its aborted
subtransactions. Until a transaction commits, the assembler stores only its extents, not its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tidemark.pgoutput.events import NO_END, NOBODY, STATE, FrameEventKind, classify
from tidemark.pgoutput.frames import HEAD, TWO_PHASE, framed
from tidemark.pgoutput.messages import refuse_two_phase
from tidemark.pgoutput.rows import ABORTED, COMMITS, EXTENTS, RELATIONS, Assembled
from tidemark.values.failure import bad_message
from tidemark.values.kernels import OK, Bytes, Longs

EVENTS = 4_096  # maximum number of events that one call of the kernel returns


@dataclass(frozen=True, slots=True)
class Where:
    """The location of a buffer: its place, the block within the place, and the offset at which the buffer begins."""

    place: int
    block: int = 0
    offset: int = 0


@dataclass(slots=True)
class Open:
    """A transaction that has neither committed nor aborted."""

    extents: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    aborted: set[int] = field(default_factory=set)
    relations: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    changes: int = 0


class Assembler:
    """Assembles transactions from regions of whole frames, which must be fed in the order of their arrival."""

    def __init__(self) -> None:
        self.streamed: dict[int, Open] = {}
        self._plain = Open()
        self._state = np.zeros(len(STATE), np.int64)
        self._events = np.empty((EVENTS, 7), np.int64)

    @staticmethod
    def compile() -> None:
        """Compile what `feed` needs, or load it from the cache, so that the first block does not wait for it."""
        classify(framed(()), 0, 0, NO_END, np.zeros(len(STATE), np.int64), np.empty((0, 7), np.int64))

    def feed(self, buffer: Bytes, where: Where) -> Assembled:
        """Process the frames of a buffer and return the transactions that they commit, in commit order."""
        assembled, _ = self.feed_until(buffer, where, NO_END)
        return assembled

    def feed_until(self, buffer: Bytes, where: Where, endpos: int) -> tuple[Assembled, int]:
        """Like `feed`, but stop before the first commit above `endpos`; also return the offset of the next frame."""
        out, at, end = _Output(where), 0, len(buffer)
        while at < end:
            count, at, bad, beyond = classify(buffer, at, end, endpos, self._state, self._events)
            self._take(out, buffer, self._events[:count])
            if bad != OK:
                _refuse(buffer, int(bad))
            if beyond:
                return out.assembled(), int(at)
        return out.assembled(), end

    def held(self) -> tuple[list[int], Assembled]:
        """Return the open transactions as serializable values, from which `resumed` builds an equal assembler."""
        out = _Output(Where(0))
        for xid, transaction in ((0, self._plain), *self.streamed.items()):
            out.commit(transaction, xid, 0, transaction.changes, streamed=transaction is not self._plain)
        return self._state.tolist(), out.assembled()

    @classmethod
    def resumed(cls, state: Sequence[int], transactions: Assembled) -> Assembler:
        """Build an assembler from the values that `held` returned."""
        assembler = cls()
        assembler._state[:] = state
        for at, (_, xid, changes, *_, streamed) in enumerate(transactions.commits.tolist()):
            rows = transactions.some(at, at + 1)
            transaction = Open(rows.extents.tolist(), set(rows.aborted.tolist()), rows.relations.tolist(), changes)
            if streamed:
                assembler.streamed[xid] = transaction
            else:
                assembler._plain = transaction
        return assembler

    def forget(self) -> None:
        """Discard all open transactions: the connection was lost and the source will send them again."""
        self.streamed.clear()
        self._plain = Open()
        self._state[:] = 0

    def opened(self) -> tuple[Open, ...]:
        """Return the transactions that have begun and not ended."""
        return self._plain, *self.streamed.values()

    @property
    def oldest_place(self) -> int | None:
        """The first place that contains frames of an open transaction, or None."""
        return min((transaction.extents[0][0] for transaction in self.opened() if transaction.extents), default=None)

    def _take(self, out: _Output, buffer: Bytes, events: Longs) -> None:
        done = 0
        for at in (*np.flatnonzero(events[:, 0] != FrameEventKind.COMMIT).tolist(), len(events)):
            self._commit_plain(out, events[done:at])
            if at < len(events):
                self._one(out, buffer, *events[at].tolist())
            done = at + 1

    def _commit_plain(self, out: _Output, events: Longs) -> None:
        """Process consecutive plain commits; the first transaction may have begun in an earlier buffer."""
        if not len(events):
            return
        if self._plain.extents or self._plain.relations:
            _, start, end, _, xid, lsn, micros = events[0].tolist()
            self._plain.extents.append((*out.stretch(start, end), self._plain.changes))
            out.commit(self._plain, xid, lsn, micros, streamed=False)
            self._plain, events = Open(), events[1:]
        out.commits(events)

    def _one(
        self, out: _Output, buffer: Bytes, kind: int, start: int, end: int, changes: int, xid: int, lsn: int, more: int
    ) -> None:
        if kind == FrameEventKind.EXTENT or kind == FrameEventKind.STREAM_STOP:
            owner = self.streamed[xid] if xid >= 0 else self._plain
            if end > start:
                owner.extents.append((*out.stretch(start, end), owner.changes))
            owner.changes += changes
        elif kind == FrameEventKind.STREAM_START:
            if (more == 1) == (xid in self.streamed):
                bad_message(f"stream block of transaction {xid} out of order", buffer, start)
            self.streamed.setdefault(xid, Open())
        elif kind == FrameEventKind.STREAM_COMMIT:
            if xid not in self.streamed:
                bad_message(f"end of transaction {xid}, which was not streamed,", buffer, start)
            out.commit(self.streamed.pop(xid), xid, lsn, more, streamed=True)
        elif kind == FrameEventKind.STREAM_ABORT:
            self._abort(xid, more)
        else:
            self._describe(out, start, end, xid, more)

    def _abort(self, xid: int, subxid: int) -> None:
        """Ignore an unknown xid: PostgreSQL 18 also reports an abort that it detected before streaming anything."""
        if subxid == xid:
            self.streamed.pop(xid, None)
        elif xid in self.streamed:
            self.streamed[xid].aborted.add(subxid)

    def _describe(self, out: _Output, start: int, end: int, xid: int, oid: int) -> None:
        if xid == NOBODY:
            out.standing.append((*out.stretch(start, end), oid, 0))
        elif xid >= 0:
            self.streamed[xid].relations.append((*out.stretch(start, end), oid, 1))
        else:
            self._plain.relations.append((*out.stretch(start, end), oid, 0))


class _Output:
    """Collects the results of one call of `feed_until`."""

    def __init__(self, where: Where) -> None:
        self.standing: list[tuple[int, int, int, int, int, int]] = []
        self._where = where
        self._parts: list[Assembled] = []

    def stretch(self, start: int, end: int) -> tuple[int, int, int, int]:
        """Return the location of a range of the buffer as (place, block, start, end)."""
        return self._where.place, self._where.block, self._where.offset + start, self._where.offset + end

    def commits(self, events: Longs) -> None:
        """Add plain transactions that are complete in this buffer and contain no Relation message."""
        commits, extents = np.zeros(len(events), COMMITS), np.zeros(len(events), EXTENTS)
        for name, column in (("xid", 4), ("lsn", 5), ("micros", 6)):
            commits[name] = events[:, column]
        commits["extents"] = 1
        extents["place"], extents["block"] = self._where.place, self._where.block
        extents["start"], extents["end"] = self._where.offset + events[:, 1], self._where.offset + events[:, 2]
        self._parts.append(Assembled(commits=commits, extents=extents))

    def commit(self, done: Open, xid: int, lsn: int, micros: int, *, streamed: bool) -> None:
        """Add one transaction of any kind."""
        aborted = sorted(done.aborted)
        counts = (len(done.extents), len(aborted), len(done.relations))
        self._parts.append(
            Assembled(
                commits=np.array([(lsn, xid, micros, *counts, streamed)], COMMITS),
                extents=np.array(done.extents, EXTENTS),
                aborted=np.array(aborted, ABORTED),
                relations=np.array(done.relations, RELATIONS),
            )
        )

    def assembled(self) -> Assembled:
        """Return everything that was added."""
        return Assembled.joined([*self._parts, Assembled(standing=np.array(self.standing, RELATIONS))])


def _refuse(buffer: Bytes, at: int) -> None:
    letter = int(buffer[at + HEAD]) if at + HEAD < len(buffer) else 0
    if letter in TWO_PHASE:
        refuse_two_phase(letter, at + HEAD)
    bad_message("message unknown, too short, too long or out of order", buffer, at)
