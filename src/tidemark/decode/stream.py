"""A pgoutput stream as it was received, to the changes of committed transactions in commit order.

Plain transactions come whole, between Begin and Commit. Streamed ones come in blocks, interleaved with others, and
count from their Stream Commit on; until then only where their messages lie is kept. What a subtransaction did that was
aborted is left out. Nothing is given of a transaction whose commit has not been seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np

from tidemark.clock import Lsn
from tidemark.decode.cells import Bytes, Longs, read_only
from tidemark.decode.changes import ChangeBatch, Limits, Sequence, Transactions, decode_changes
from tidemark.decode.failure import bad_message
from tidemark.decode.messages import (
    LogicalMessage,
    Reader,
    Transaction,
    read_commit,
    read_message,
    read_stream_abort,
)
from tidemark.decode.relations import Scope
from tidemark.decode.scan import (
    BEGIN,
    COMMIT,
    MESSAGE,
    STREAM_ABORT,
    STREAM_COMMIT,
    STREAM_START,
    STREAM_STOP,
    TRUNCATE,
    Messages,
    scan,
)
from tidemark.decode.types import Types

BEGIN_LENGTH, COMMIT_LENGTH = 21, 26

Place: TypeAlias = tuple[Bytes, Longs, Longs]  # messages by the buffer they lie in, their starts and their lengths


@dataclass(frozen=True, slots=True)
class Said:
    """A logical message, and the transaction it belongs to if it is transactional.

    In a streamed transaction a message carries the transaction's own xid, not its subtransaction's. So one that was
    rolled back to a savepoint cannot be told from one that was not: such a message is not `certain`.
    """

    message: LogicalMessage
    transaction: Transaction | None
    certain: bool = True


@dataclass(slots=True)
class _Open:
    """A streamed transaction that has not ended: where its blocks lie, and its subtransactions that were aborted."""

    blocks: list[Place] = field(default_factory=list)
    aborted: set[int] = field(default_factory=set)


class StreamDecoder:
    """Feed it buffers of whole messages in the order of their arrival.

    Buffers are referred to, not copied, until the transactions in them have ended: give it a memory map and memory
    stays bounded by a batch and by what it takes to say where the messages of open transactions lie.
    """

    def __init__(self, types: Types, limits: Limits | None = None, protocol: int = 4) -> None:
        self.scope = Scope()
        self._types = types
        self._limits = limits or Limits()
        self._protocol = protocol
        self._open: dict[int, _Open] = {}
        self._stream: int | None = None
        self._plain: list[Messages] = []

    def feed(self, buffer: Bytes, starts: Longs, lengths: Longs) -> Iterator[ChangeBatch | Said]:
        """Take the next messages; yield what was committed by them, in commit order. To be consumed to its end."""
        messages, _ = scan(read_only(buffer), starts, lengths, self._stream is not None)
        letters = messages.letters
        turns = np.flatnonzero(
            (letters == STREAM_START)
            | (letters == STREAM_STOP)
            | (letters == STREAM_COMMIT)
            | (letters == STREAM_ABORT)
            | (letters == COMMIT) & _last_of_run(letters)
        )
        done = 0
        for at in turns.tolist():
            letter = int(letters[at])
            through = at + 1 if letter == COMMIT else at
            self._keep(messages.some(slice(done, through)))
            done = at + 1
            yield from self._turn(letter, messages, at)
        self._keep(messages.some(slice(done, len(messages))))
        if not any((part.letters == BEGIN).any() for part in self._plain):
            yield from self._between()

    def end(self) -> None:
        """Forget what has not been committed: the connection was lost and the source will send it again."""
        for xid in self._open:
            self.scope.abort(xid)
        self._open.clear()
        self._plain.clear()
        self._stream = None

    def _keep(self, part: Messages) -> None:
        if len(part) and self._stream is None:
            self._plain.append(part)
        elif len(part) and self._stream is not None:
            self._open[self._stream].blocks.append((part.buffer, part.starts, part.lengths))

    def _turn(self, letter: int, messages: Messages, at: int) -> Iterator[ChangeBatch | Said]:
        if letter == COMMIT:
            yield from self._plain_transactions()
        elif letter != STREAM_STOP:
            yield from self._between()
        if letter == STREAM_START:
            self._start(messages, at)
        elif letter == STREAM_STOP:
            self._stream = None
        elif letter == STREAM_COMMIT:
            yield from self._commit(messages, at)
        elif letter == STREAM_ABORT:
            self._abort(messages, at)

    def _between(self) -> Iterator[ChangeBatch | Said]:
        """What stands outside of any transaction: messages that belong to none, and descriptions of tables."""
        parts, self._plain = self._plain, []
        for part in parts:
            inside = np.flatnonzero(_counted(part) | (part.letters == BEGIN) | (part.letters == COMMIT))
            if len(inside):
                bad_message("a transaction that is cut off", part.buffer, int(part.starts[inside[0]]))
            # It has no changes, so that none needs a transaction: this reads and remembers the descriptions.
            nobody = Transactions(np.zeros(1, np.int64), np.zeros(1, np.uint64), np.zeros(1, np.int64))
            places = np.zeros(len(part), np.int64)
            yield from decode_changes(Sequence(part, nobody, places, places), self.scope, self._types, self._limits)
            yield from self._said(part, None)

    def _start(self, messages: Messages, at: int) -> None:
        xid, first = int(messages.xids[at]), int(messages.buffer[messages.starts[at] + 5])
        if first > 1 or (first == 1) == (xid in self._open):
            bad_message(f"a stream block of {xid} out of order", messages.buffer, int(messages.starts[at]))
        self._open.setdefault(xid, _Open())
        self._stream = xid

    def _abort(self, messages: Messages, at: int) -> None:
        """PostgreSQL 18 also reports the abort of what it knew to be aborted and therefore never streamed."""
        reader = Reader(messages.buffer, int(messages.starts[at]), int(messages.lengths[at]))
        abort = read_stream_abort(reader, self._protocol)
        if abort.subxid == abort.xid:
            self._open.pop(abort.xid, None)
            self.scope.abort(abort.xid)
        elif abort.xid in self._open:
            self._open[abort.xid].aborted.add(abort.subxid)

    def _commit(self, messages: Messages, at: int) -> Iterator[ChangeBatch | Said]:
        xid = int(messages.xids[at])
        if xid not in self._open:
            bad_message(f"the end of {xid}, which was not streamed,", messages.buffer, int(messages.starts[at]))
        reader = Reader(messages.buffer, int(messages.starts[at]), int(messages.lengths[at]))
        transaction = read_commit(reader, reader.take("I"))
        streamed = self._open.pop(xid)
        aborted = np.array(sorted(streamed.aborted), np.int64)
        ordinal = 0
        for place in _joined(streamed.blocks):
            block, _ = scan(*place, True)
            dropped = np.isin(block.xids, aborted) if len(aborted) else np.zeros(len(block), np.bool_)
            kept = block.some(~dropped | ~(_counted(block) | (block.letters == MESSAGE)))
            counted = _counted(kept)
            ordinals = ordinal + np.cumsum(counted) - counted
            ordinal += int(counted.sum())
            owner = np.zeros(len(kept), np.int64)
            sequence = Sequence(kept, Transactions.of(transaction), owner, ordinals, stream=xid)
            yield from decode_changes(sequence, self.scope, self._types, self._limits)
            yield from self._said(kept, transaction)
        self.scope.commit(xid)

    def _plain_transactions(self) -> Iterator[ChangeBatch | Said]:
        parts, self._plain = self._plain, []
        yield from self._whole(parts[0]) if len(parts) == 1 else self._cut(parts)

    def _cut(self, parts: list[Messages]) -> Iterator[ChangeBatch | Said]:
        """A transaction whose messages lie in several buffers: its Commit, which is in the last, tells who it is."""
        *before, last = parts
        first_commit = int(np.flatnonzero(last.letters == COMMIT)[0])
        opening = [*before, last.some(slice(0, first_commit + 1))]
        begun = np.concatenate([part.letters == BEGIN for part in opening])
        counted = np.concatenate([_counted(part) for part in opening])
        if begun.sum() != 1 or counted[: int(np.argmax(begun))].any():
            bad_message("a transaction without its one Begin", last.buffer, int(last.starts[first_commit]))
        (begin,) = (part for part in opening if (part.letters == BEGIN).any())
        transactions = _table(begin.some(begin.letters == BEGIN), last.some([first_commit]))
        ordinal = 0
        for part in opening:
            counted = _counted(part)
            ordinals = ordinal + np.cumsum(counted) - counted
            ordinal += int(counted.sum())
            sequence = Sequence(part, transactions, np.zeros(len(part), np.int64), ordinals)
            yield from decode_changes(sequence, self.scope, self._types, self._limits)
            yield from self._said(part, _transaction(transactions, 0))
        rest = last.some(slice(first_commit + 1, len(last)))
        if len(rest):
            yield from self._whole(rest)

    def _whole(self, part: Messages) -> Iterator[ChangeBatch | Said]:
        """Transactions that lie whole in one buffer."""
        begins, commits = part.letters == BEGIN, part.letters == COMMIT
        begun, ended = np.cumsum(begins), np.cumsum(commits)
        inside = begun - ended + commits
        counted = _counted(part)
        wrong = (inside < 0) | (inside > 1) | (counted & (inside != 1)) | (commits & (inside != 1))
        if wrong.any() or begun[-1] != ended[-1]:
            at = int(np.flatnonzero(wrong)[0]) if wrong.any() else len(part) - 1
            bad_message("a message outside of its transaction", part.buffer, int(part.starts[at]))
        transactions = _table(part.some(begins), part.some(commits))
        owner = np.maximum(begun - 1, 0)
        running = np.cumsum(counted) - counted
        ordinals = running - running[np.flatnonzero(begins)][owner]
        sequence = Sequence(part, transactions, owner, ordinals)
        yield from decode_changes(sequence, self.scope, self._types, self._limits)
        yield from self._said(part, None, transactions, np.where(inside == 1, owner, -1))

    def _said(
        self,
        part: Messages,
        transaction: Transaction | None,
        transactions: Transactions | None = None,
        owner: Longs | None = None,
    ) -> Iterator[Said]:
        for at in np.flatnonzero(part.letters == MESSAGE).tolist():
            reader = Reader(part.buffer, int(part.starts[at]), int(part.lengths[at]))
            reader.bytes(int(part.bodies[at] - part.starts[at] - 1))
            message = read_message(reader)
            if transactions is not None and owner is not None:
                transaction = _transaction(transactions, int(owner[at])) if owner[at] >= 0 else None
            certain = not message.transactional or part.xids[at] == 0
            yield Said(message, transaction if message.transactional else None, certain)


def _joined(blocks: list[Place]) -> Iterator[Place]:
    """Blocks that lie in one buffer as one."""
    for _, group in groupby(blocks, key=lambda block: id(block[0])):
        buffers, starts, lengths = zip(*group, strict=True)
        yield buffers[0], np.concatenate(starts), np.concatenate(lengths)


def _counted(messages: Messages) -> Any:
    return messages.changes | (messages.letters == TRUNCATE)


def _last_of_run(letters: Bytes) -> Any:
    """Commits after which no other commit comes before the next stream block: the rest are done together with them."""
    breaks = (letters == STREAM_START) | (letters == STREAM_COMMIT) | (letters == STREAM_ABORT)
    run = np.cumsum(breaks)
    last = np.zeros(len(letters), np.bool_)
    commits = np.flatnonzero(letters == COMMIT)
    if len(commits):
        following = np.append(run[commits[1:]], -1)
        last[commits[following != run[commits]]] = True
    return last


def _table(begins: Messages, commits: Messages) -> Transactions:
    """Begin and Commit messages, pair by pair, as transactions."""
    for messages, length in ((begins, BEGIN_LENGTH), (commits, COMMIT_LENGTH)):
        wrong = np.flatnonzero(messages.lengths != length)
        if len(wrong):
            bad_message("a Begin or Commit of another length", messages.buffer, int(messages.starts[wrong[0]]))
    flagged = np.flatnonzero(commits.buffer[commits.starts + 1])
    if len(flagged):
        bad_message("a commit with unknown flags", commits.buffer, int(commits.starts[flagged[0]]))
    strangers = np.flatnonzero(_numbers(begins, 1, ">u8") != _numbers(commits, 2, ">u8"))
    if len(strangers):
        bad_message("the Commit of another Begin", commits.buffer, int(commits.starts[strangers[0]]))
    xids = _numbers(begins, 17, ">u4").astype(np.int64)
    return Transactions(
        xids, _numbers(commits, 10, ">u8").astype(np.uint64), _numbers(commits, 18, ">i8").astype(np.int64)
    )


def _numbers(messages: Messages, at: int, form: str) -> Any:
    """The number at one place of each message."""
    width = np.dtype(form).itemsize
    places = messages.starts[:, None] + np.arange(at, at + width)
    return np.ascontiguousarray(messages.buffer[places]).view(form).ravel()


def _transaction(transactions: Transactions, at: int) -> Transaction:
    lsn = Lsn(int(transactions.commit_lsns[at]))
    return Transaction(int(transactions.xids[at]), lsn, int(transactions.commit_micros[at]))
