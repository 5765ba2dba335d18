"""Slices of the log: committed transactions divided into pieces of about equal size, each read independently.

A slice may start and end inside a transaction: its rows contain the transaction and the ordinal of the first change of
each extent, and `standing` the relations that were in force there. So any number of readers can share a transaction of
any size (`_not_to_cut` has the exception), and the memory of each is bounded by its decoding window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tidemark.clock import Lsn
from tidemark.log.reader import LogReader
from tidemark.pgoutput.rows import RELATIONS, Assembled, Rows, joined_rows
from tidemark.values.kernels import Flags, Longs


@dataclass(frozen=True, slots=True)
class Slice:
    """Pieces that are decoded one after the other, and the total size of their frames."""

    parts: tuple[Assembled, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """Complete transactions, divided into slices: all with a commit in `(after, upto]`; the last commit is `last`.

    `tables` are the OIDs of the tables that they change, `relations` the locations of the Relation messages of these
    tables, `sent` all that were sent inside these transactions. So tables without changes cost nothing.
    """

    after: Lsn
    upto: Lsn
    last: Lsn
    slices: tuple[Slice, ...]
    relations: Rows
    sent: Rows
    tables: frozenset[int]
    transactions: int
    size_bytes: int


def plan(reader: LogReader, after: Lsn, upto: Lsn, cycle_bytes: int, slice_bytes: int) -> SlicePlan:
    """Plan complete transactions above `after`, up to `upto`, until they reach `cycle_bytes`; at least one, if any."""
    parts: list[Assembled] = []
    tables = set[int]()
    size, reached = 0, upto
    for part in reader.transactions(after, upto):
        sizes = transaction_bytes(part)
        fits = int(np.searchsorted(size + np.cumsum(sizes), cycle_bytes, "left")) + 1
        taken = part if fits >= len(part) else _first(part, fits)
        changed = reader.changed_tables(taken)
        tables |= changed
        standing = taken.standing[np.isin(taken.standing["oid"], np.array(sorted(changed), np.int64))]
        parts.append(replace(taken, standing=standing))
        size += int(sizes[: len(taken)].sum())
        if size >= cycle_bytes:
            last = Lsn(int(taken.commits["lsn"][-1]))
            reached = last if reader.count(last, upto) else upto
            break
    sent = joined_rows([part.relations for part in parts], RELATIONS)
    relations = joined_rows([*(latest(part.standing) for part in parts), sent], RELATIONS)
    sliced = tuple(_grouped([piece for part in parts for piece in cut(part, slice_bytes)], slice_bytes))
    last = Lsn(int(parts[-1].commits["lsn"][-1])) if parts else after
    return SlicePlan(after, reached, last, sliced, relations, sent, frozenset(tables), sum(map(len, parts)), size)


def transaction_bytes(part: Assembled) -> Longs:
    """The size of the frames of each transaction, in bytes."""
    ends = np.concatenate([[0], np.cumsum(_sizes(part))])
    borders = np.concatenate([[0], np.cumsum(part.commits["extents"], dtype=np.int64)])
    counted: Longs = np.diff(ends[borders])
    return counted


def cut(part: Assembled, slice_bytes: int) -> Iterator[Assembled]:
    """Divide transactions into pieces of about `slice_bytes`; an extent is never divided."""
    sizes = _sizes(part)
    if not len(sizes):
        return
    before = np.cumsum(sizes) - sizes
    owner = np.repeat(np.arange(len(part)), part.commits["extents"])
    described = np.repeat(np.arange(len(part)), part.commits["relations"])
    whole = np.isin(owner, _not_to_cut(part, described)) & (np.diff(owner, prepend=-1) == 0)
    borders = np.flatnonzero((np.diff(before // slice_bytes, prepend=-1) != 0) & ~whole)
    dropped = np.repeat(np.arange(len(part)), part.commits["aborted"])
    for first, last in zip(borders, [*borders[1:], len(sizes)], strict=True):
        begin, end = int(owner[first]), int(owner[last - 1]) + 1
        commits = part.commits[begin:end].copy()
        commits["extents"] = np.bincount(owner[first:last] - begin, minlength=end - begin)
        commits["relations"] = 0
        yield Assembled(
            commits=commits,
            extents=part.extents[first:last],
            aborted=part.aborted[(dropped >= begin) & (dropped < end)],
            standing=_standing(part, part.extents[first], described, begin),
        )


def _standing(part: Assembled, first: Rows, described: Longs, begin: int) -> Rows:
    """The relations in force at the first frame of a piece; those of its own transaction take precedence."""
    place, start = part.relations["place"], part.relations["start"]
    earlier = (place < first["place"]) | ((place == first["place"]) & (start < first["start"]))
    own = part.relations[(described == begin) & (earlier | _of_whole(part, described, begin)[0])]
    others = joined_rows([part.standing, part.relations[described < begin]], RELATIONS)
    return latest(joined_rows([in_order(others), in_order(own)], RELATIONS))


def _of_whole(part: Assembled, described: Longs, at: int) -> tuple[Flags, bool]:
    """Which Relation messages apply to a transaction as a whole, and whether the position of another one is not known.

    If a transaction continues in a later segment, the head of that segment has its Relation messages, and does not
    record between which changes they were sent. A message applies to the whole transaction if it is the only one for
    its table in a streamed transaction, which describes each table before it changes it, or in a plain transaction
    before which the table was not described.
    """
    own = described == at
    oids, times = np.unique(part.relations["oid"][own], return_counts=True)
    once = own & np.isin(part.relations["oid"], oids[times == 1])
    if part.commits["streamed"][at]:
        return once, bool((part.relations["streamed"][own] == 0).any()) and not once[own].all()
    moved = _moved(part, own, at)
    before = np.concatenate([part.standing["oid"], part.relations["oid"][described < at]])
    whole = moved & once & ~np.isin(part.relations["oid"], before)
    return whole, bool((moved & ~whole).any())


def _moved(part: Assembled, own: Flags, at: int) -> Flags:
    """Which of a transaction's own Relation messages are not among its extents."""
    end = int(part.commits["extents"][: at + 1].sum())
    extents = part.extents[end - int(part.commits["extents"][at]) : end]
    found = np.zeros(len(own), np.bool_)
    for number in np.flatnonzero(own).tolist():
        place, start = part.relations["place"][number], part.relations["start"][number]
        inside = (extents["place"] == place) & (extents["start"] <= start) & (start < extents["end"])
        found[number] = not inside.any()
    return found


def _not_to_cut(part: Assembled, described: Longs) -> list[int]:
    """Transactions with Relation messages of which it is not known between which changes they were sent."""
    return [at for at in np.unique(described).tolist() if _of_whole(part, described, at)[1]]


def in_order(relations: Rows) -> Rows:
    """Sort relations by location."""
    return relations[np.lexsort((relations["start"], relations["place"]))]


def latest(relations: Rows) -> Rows:
    """Keep only the last relation of each table."""
    _, backwards = np.unique(relations["oid"][::-1], return_index=True)
    return relations[np.sort(len(relations) - 1 - backwards)]


def _grouped(pieces: Sequence[Assembled], slice_bytes: int) -> Iterator[Slice]:
    """Group consecutive small pieces into slices of at most `slice_bytes`; a larger piece is a slice of its own."""
    gathered: list[Assembled] = []
    size = 0
    for piece in pieces:
        more = int(_sizes(piece).sum())
        if gathered and size + more > slice_bytes:
            yield Slice(tuple(gathered), size)
            gathered, size = [], 0
        gathered.append(piece)
        size += more
    if gathered:
        yield Slice(tuple(gathered), size)


def _sizes(part: Assembled) -> Longs:
    sizes: Longs = part.extents["end"].astype(np.int64) - part.extents["start"].astype(np.int64)
    return sizes


def _first(part: Assembled, count: int) -> Assembled:
    some = part.some(0, count)
    return Assembled(some.commits, some.extents, some.aborted, some.relations, part.standing)
