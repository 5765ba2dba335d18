"""The state at the end of the log: everything that is required to append to it, and how each block changes it.

The writer and recovery use the same `take`, so recovery after a crash arrives at the same state as the writer had.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from tidemark.clock import Lsn
from tidemark.errors import MalformedMessage
from tidemark.log.index import widened
from tidemark.log.segment import FRAMES_AT, Head
from tidemark.pgoutput.assembly import Assembler, Where
from tidemark.pgoutput.frames import HEAD, framed
from tidemark.pgoutput.rows import RELATIONS, Assembled, Rows
from tidemark.values.kernels import Bytes, read_only

_Key = tuple[int, int]


@dataclass(slots=True)
class LogTail:
    """The state at the end of the log, which contains every commit at or below `position`.

    `in_force` has the location of the last Relation message of each table, by OID. `approve` is called with every new
    Relation message before its block takes effect, and raises an error to refuse it.
    """

    number: int
    position: int
    last_commit: int = 0
    assembler: Assembler = field(default_factory=Assembler)
    in_force: dict[int, _Key] = field(default_factory=dict)
    approve: Callable[[bytes], None] | None = None
    blocks: int = 0
    _messages: dict[_Key, bytes] = field(default_factory=dict)

    @classmethod
    def from_head(cls, number: int, position: int, head: Head) -> LogTail:
        """The state at the start of a segment."""
        tail = cls(number, position, head.last_commit, Assembler.resumed(head.state, head.opened))
        frames = read_only(np.frombuffer(head.frames, np.uint8))
        for place, _, start, end, *_ in _keyed(Assembler().feed(frames, Where(number, 0, FRAMES_AT)).standing):
            tail._messages[place, start] = head.frames[start - FRAMES_AT + HEAD : end - FRAMES_AT]
        tail.in_force = {oid: (place, start) for place, _, start, _, oid, _ in _keyed(head.opened.standing)}
        return tail

    def next_head(self, previous_bytes: int) -> Head:
        """Advance to the next segment and return its head, to which Relation messages are moved in order of arrival."""
        opened = [relation for transaction in self.assembler.opened() for relation in transaction.relations]
        keys = sorted({*self.in_force.values(), *((place, start) for place, _, start, *_ in opened)})
        moved, frames = dict[_Key, tuple[int, int]](), bytearray()
        for key in keys:
            frame = framed([self._messages[key]]).tobytes()
            moved[key] = (FRAMES_AT + len(frames), FRAMES_AT + len(frames) + len(frame))
            frames += frame
        number = self.number + 1
        for transaction in self.assembler.opened():
            transaction.relations = [
                (number, 0, *moved[place, start], oid, 0) for place, _, start, _, oid, _ in transaction.relations
            ]
        self.in_force = {oid: (number, moved[key][0]) for oid, key in self.in_force.items()}
        self._messages = {(number, moved[key][0]): self._messages[key] for key in keys}
        self.number, self.blocks = number, 0
        state, rows = self.assembler.held()
        opened_rows = replace(rows, standing=self.standing())
        return Head(self.last_commit, previous_bytes, tuple(state), bytes(frames), opened_rows)

    def standing(self) -> Rows:
        """The locations of the Relation messages in force, as index rows."""
        ends = {key: key[1] + HEAD + len(self._messages[key]) for key in self.in_force.values()}
        rows = [(key[0], 0, key[1], ends[key], oid, 0) for oid, key in sorted(self.in_force.items(), key=_by_place)]
        return np.array(rows, RELATIONS)

    def begin_session(self, approve: Callable[[bytes], None] | None = None) -> None:
        """Discard open transactions: over a new connection, the source resends them and all Relation messages."""
        self.approve = approve
        self.assembler.forget()
        self._keep_messages()

    def take(self, frames: Bytes, where: Where, position: int, xid: int, endpos: int) -> tuple[Assembled, int]:
        """Process the next frames and the position reported after them.

        Returns the rows of new commits, and the size of the frames to write: frames of a commit above `endpos`, and all
        frames after them, are left out.
        """
        self.blocks += 1
        rows, end = self.assembler.feed_until(frames, where, endpos)
        self._describe(rows, frames, where)
        rows = self._without_known(rows)
        if len(rows):
            _require_above(self.position, int(rows.commits["lsn"][0]))
            rows = replace(rows, commits=widened(rows.commits, xid))
            self.last_commit = int(rows.commits["lsn"][-1])
        self.position = max(self.position, self.last_commit, position if end == len(frames) else 0)
        return rows, end

    def _without_known(self, rows: Assembled) -> Assembled:
        """Drop commits that are already in the log: after a crash, the source resends transactions.

        Their Relation messages are kept as standing rows, because the source does not resend them in this session.
        """
        lsns = rows.commits["lsn"]
        for at in np.flatnonzero(lsns[1:] <= lsns[:-1])[:1].tolist():
            _require_above(int(lsns[at]), int(lsns[at + 1]))
        known = int(np.searchsorted(lsns, np.uint64(self.last_commit), side="right"))
        if not known:
            return rows
        described = np.concatenate([rows.standing, rows.some(0, known).relations])
        return replace(rows.some(known, len(lsns)), standing=described)

    def _describe(self, rows: Assembled, frames: Bytes, where: Where) -> None:
        """Store new Relation messages, and update which of them are in force."""
        effective = [*_keyed(rows.relations), *_keyed(rows.standing)]
        opened = [key for transaction in self.assembler.opened() for key in transaction.relations]
        for place, block, start, end, _, streamed in (*effective, *opened):
            if (place, block) == (where.place, where.block) and (place, start) not in self._messages:
                raw = frames[start - where.offset + HEAD : end - where.offset].tobytes()
                message = raw[:1] + raw[5:] if streamed else raw
                if self.approve is not None:
                    self.approve(message)
                self._messages[place, start] = message
        if effective:
            for place, _, start, _, oid, _ in effective:
                self.in_force[oid] = max((place, start), self.in_force.get(oid, (0, 0)))
            self._keep_messages()

    def _keep_messages(self) -> None:
        opened = (relation for transaction in self.assembler.opened() for relation in transaction.relations)
        needed = {*self.in_force.values(), *((place, start) for place, _, start, *_ in opened)}
        self._messages = {key: raw for key, raw in self._messages.items() if key in needed}


def _require_above(position: int, lsn: int) -> None:
    if lsn <= position:
        raise MalformedMessage(
            f"the source sent a commit at {Lsn(lsn)} after it had reported {Lsn(position)} as sent",
            "Report the error as a bug. The log is not damaged.",
        )


def _by_place(item: tuple[int, _Key]) -> _Key:
    return item[1]


def _keyed(rows: Rows) -> list[tuple[int, int, int, int, int, int]]:
    return rows.tolist()  # type: ignore[no-any-return]
