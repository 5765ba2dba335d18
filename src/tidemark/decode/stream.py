"""A pgoutput stream as it was received, to the changes of committed transactions in commit order.

Plain transactions come whole, between Begin and Commit. Streamed ones come in blocks, interleaved with others, and
count from their Stream Commit on; until then only where their messages lie is kept. What a subtransaction did that was
aborted is left out. Nothing is given of a transaction whose commit has not been seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tidemark.clock import Lsn
from tidemark.decode.cells import Bytes, Longs
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
    ORIGIN,
    STREAM_ABORT,
    STREAM_COMMIT,
    STREAM_START,
    STREAM_STOP,
    TRUNCATE,
    Messages,
    scan,
)
from tidemark.schema.table import PgType

BEGIN_LENGTH, COMMIT_LENGTH = 21, 26


@dataclass(frozen=True, slots=True)
class Said:
    """A logical message, and the transaction it belongs to if it is transactional."""

    message: LogicalMessage
    transaction: Transaction | None


@dataclass(slots=True)
class _Open:
    """A streamed transaction that has not ended: its blocks, and its subtransactions that were aborted."""

    blocks: list[Messages] = field(default_factory=list)
    aborted: set[int] = field(default_factory=set)


class StreamDecoder:
    """Feed it buffers of whole messages in the order of their arrival.

    Buffers are referred to, not copied, until the transactions in them have ended: give it a memory map and memory
    stays bounded by a batch and by what it takes to say where the messages of open transactions lie.
    """

    def __init__(self, types: Mapping[int, PgType], limits: Limits | None = None, protocol: int = 4) -> None:
        self.scope = Scope()
        self._types = types
        self._limits = limits or Limits()
        self._protocol = protocol
        self._open: dict[int, _Open] = {}
        self._stream: int | None = None
        self._plain: list[Messages] = []

    def feed(self, buffer: Bytes, starts: Longs, lengths: Longs) -> Iterator[ChangeBatch | Said]:
        """Take the next messages; yield what was committed by them, in commit order."""
        messages, _ = scan(buffer, starts, lengths, self._stream is not None)
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

    def end(self) -> None:
        """Forget what has not been committed: the connection was lost and the source will send it again."""
        for xid in self._open:
            self.scope.abort(xid)
        self._open.clear()
        self._plain.clear()
        self._stream = None

    def _keep(self, part: Messages) -> None:
        if len(part):
            (self._plain if self._stream is None else self._open[self._stream].blocks).append(part)

    def _turn(self, letter: int, messages: Messages, at: int) -> Iterator[ChangeBatch | Said]:
        if letter == COMMIT:
            yield from self._plain_transactions()
        elif self._plain and letter != STREAM_STOP:
            yield from self._between(messages, at)
        if letter == STREAM_START:
            self._start(messages, at)
        elif letter == STREAM_STOP:
            self._stream = None
        elif letter == STREAM_COMMIT:
            yield from self._commit(messages, at)
        elif letter == STREAM_ABORT:
            self._abort(messages, at)

    def _between(self, messages: Messages, at: int) -> Iterator[Said]:
        """Only messages outside of any transaction may stand before a stream block."""
        for part in self._plain:
            if ((part.letters != MESSAGE) & (part.letters != ORIGIN)).any():
                bad_message("a stream block inside a transaction", messages.buffer, int(messages.starts[at]))
            yield from self._said(part, None)
        self._plain.clear()

    def _start(self, messages: Messages, at: int) -> None:
        xid, first = int(messages.xids[at]), int(messages.buffer[messages.starts[at] + 5])
        if first > 1 or (first == 1) == (xid in self._open):
            bad_message(f"a stream block of {xid} out of order", messages.buffer, int(messages.starts[at]))
        self._open.setdefault(xid, _Open())
        self._stream = xid

    def _ending(self, messages: Messages, at: int) -> tuple[Reader, int]:
        xid = int(messages.xids[at])
        if xid not in self._open:
            bad_message(f"the end of {xid}, which was not streamed,", messages.buffer, int(messages.starts[at]))
        return Reader(messages.buffer, int(messages.starts[at]), int(messages.lengths[at])), xid

    def _abort(self, messages: Messages, at: int) -> None:
        reader, xid = self._ending(messages, at)
        abort = read_stream_abort(reader, self._protocol)
        if abort.subxid == xid:
            del self._open[xid]
            self.scope.abort(xid)
        else:
            self._open[xid].aborted.add(abort.subxid)

    def _commit(self, messages: Messages, at: int) -> Iterator[ChangeBatch | Said]:
        reader, xid = self._ending(messages, at)
        transaction = read_commit(reader, reader.take("I"))
        streamed = self._open.pop(xid)
        aborted = np.array(sorted(streamed.aborted), np.int64)
        ordinal = 0
        for block in streamed.blocks:
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
        begin = [part for part in opening if (part.letters == BEGIN).any()]
        if len(begin) != 1:
            bad_message("a transaction without its Begin", last.buffer, int(last.starts[first_commit]))
        transactions = _table(begin[0].some(begin[0].letters == BEGIN), last.some([first_commit]))
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
            yield Said(message, transaction if message.transactional else None)


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
