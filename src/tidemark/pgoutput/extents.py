"""Read assembled transactions as batches of changes, decoded or only located, one window of messages at a time.

Each extent is decoded on its own: the assembled rows contain its transaction and the ordinal of its first change.
Memory is therefore bounded by one window, regardless of the size of a transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tidemark.pgoutput.changes import (
    ChangeBatch,
    Limits,
    LocatedChanges,
    Scope,
    Sequence,
    Transactions,
    Undecodable,
    decode_changes,
    locate_changes,
)
from tidemark.pgoutput.frames import HEAD, TRUNCATE, Window, windows
from tidemark.pgoutput.messages import Reader, read_relation
from tidemark.pgoutput.rows import Assembled, Rows
from tidemark.pgoutput.scan import Messages, scan
from tidemark.values.kernels import Bytes, Longs
from tidemark.values.types import Types


@dataclass(frozen=True, slots=True)
class ExtentInputs:
    """The inputs for reading extents: the bytes of each place, the relations in force, and the limits of a batch."""

    buffers: Mapping[int, Bytes]
    scope: Scope
    limits: Limits


def decode_assembled(assembled: Assembled, reading: ExtentInputs, types: Types) -> Iterator[ChangeBatch | Undecodable]:
    """Decode the changes of transactions in commit order, after the Relation messages outside of any transaction."""
    describe(assembled.standing, reading.buffers, reading.scope)
    for sequence in _in_commit_order(assembled, reading):
        yield from decode_changes(sequence, reading.scope, types)


def locate_assembled(assembled: Assembled, reading: ExtentInputs) -> Iterator[LocatedChanges]:
    """Locate the changes of transactions in commit order, after the Relation messages outside of any transaction."""
    describe(assembled.standing, reading.buffers, reading.scope)
    for sequence in _in_commit_order(assembled, reading):
        yield from locate_changes(sequence, reading.scope)


def _in_commit_order(assembled: Assembled, reading: ExtentInputs) -> Iterator[Sequence]:
    for part in _runs(assembled):
        streamed = bool(part.commits["streamed"][0])
        yield from _sequences(part, reading, streamed)
        if streamed:
            reading.scope.commit(int(part.commits["xid"][0]))


def describe(relations: Rows, buffers: Mapping[int, Bytes], scope: Scope) -> None:
    """Put these Relation messages into force, each from its own position."""
    for place, _, start, end, _, streamed in relations.tolist():
        reader = Reader(buffers[place], start + HEAD, end - start - HEAD)
        reader.bytes(4 if streamed else 0)
        scope.describe(read_relation(reader), (place, start), None)


def _runs(assembled: Assembled) -> Iterator[Assembled]:
    """Split into runs of consecutive plain transactions and single streamed transactions."""
    streamed = assembled.commits["streamed"] != 0
    borders = np.flatnonzero(streamed | np.concatenate([[True], streamed])[: len(streamed)])
    for first, last in pairwise([*borders.tolist(), len(streamed)]):
        yield assembled.some(first, last)


def _sequences(part: Assembled, reading: ExtentInputs, streamed: bool) -> Iterator[Sequence]:
    extents = part.extents
    owner = np.repeat(np.arange(len(part.commits)), part.commits["extents"])
    transactions = Transactions.of(part.commits)
    borders = np.flatnonzero(np.diff(extents["place"].astype(np.int64), prepend=-1))
    for first, last in pairwise([*borders.tolist(), len(extents)]):
        there = extents[first:last]
        place = int(there["place"][0])
        buffer, counting = reading.buffers[place], _Counting(there["ordinal"].astype(np.int64))
        limits = reading.limits
        starts, ends = there["start"].astype(np.int64), there["end"].astype(np.int64)
        for window in windows(buffer, starts, ends, limits.rows, limits.bytes):
            messages = scan(buffer, window.starts, window.lengths, streamed)
            ordinals = counting.ordinals(window, _counted(messages))
            chosen = _kept(messages, part.aborted) if len(part.aborted) else slice(None)
            yield Sequence(
                messages.some(chosen),
                transactions,
                owner[first:last][window.piece][chosen],
                ordinals[chosen],
                place,
                int(part.commits["xid"][0]) if streamed else None,
            )


class _Counting:
    """Computes ordinals from the ordinal of each extent's first change; an extent may continue in the next window."""

    def __init__(self, first: Longs) -> None:
        self._next = first.copy()

    def ordinals(self, window: Window, counted: Any) -> Longs:
        before = np.cumsum(counted) - counted
        begins = np.flatnonzero(np.diff(window.piece, prepend=-1))
        sizes = np.diff(np.append(begins, len(counted)))
        ordinals: Longs = before + np.repeat(self._next[window.piece[begins]] - before[begins], sizes)
        last = int(window.piece[-1])
        self._next[last] = ordinals[-1] + int(counted[-1])
        return ordinals


def _counted(messages: Messages) -> Any:
    return messages.changes | (messages.letters == TRUNCATE)


def _kept(messages: Messages, aborted: Rows) -> Any:
    """Exclude changes of aborted subtransactions; their Relation messages remain in force."""
    return ~(np.isin(messages.xids, aborted) & _counted(messages))
