"""Slices of the log: committed transactions cut into pieces of about the same size, each to be read alone.

A slice may begin and end inside a transaction: its rows say whose frames they are and which ordinal comes first, and
`standing` which descriptions of tables were in force there. So any number of readers can share a transaction of any
size, and none holds more of it than its windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tidemark.clock import Lsn
from tidemark.log.reader import LogReader
from tidemark.pgoutput.rows import RELATIONS, Assembled, Rows, joined_rows
from tidemark.values.kernels import Longs


@dataclass(frozen=True, slots=True)
class Slice:
    """Pieces to be decoded one after the other, and how many bytes of frames they are."""

    parts: tuple[Assembled, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Whole transactions, sliced: all with a commit in (after, upto], of which `last` is the last.

    `relations` are where the tables are described that these may have changed, `sent` those of them inside of these.
    """

    after: Lsn
    upto: Lsn
    last: Lsn
    slices: tuple[Slice, ...]
    relations: Rows
    sent: Rows
    transactions: int
    size_bytes: int


def plan(reader: LogReader, after: Lsn, upto: Lsn, cycle_bytes: int, slice_bytes: int) -> Plan:
    """As many whole transactions above `after` as make up `cycle_bytes`, at least one, up to `upto` at most."""
    parts: list[Assembled] = []
    size, reached = 0, upto
    for part in reader.transactions(after, upto):
        sizes = transaction_bytes(part)
        fits = int(np.searchsorted(size + np.cumsum(sizes), cycle_bytes, "left")) + 1
        taken = part if fits >= len(part) else _first(part, fits)
        parts.append(taken)
        size += int(sizes[: len(taken)].sum())
        if size >= cycle_bytes:
            last = Lsn(int(taken.commits["lsn"][-1]))
            reached = last if reader.count(last, upto) else upto
            break
    sent = joined_rows([part.relations for part in parts], RELATIONS)
    relations = joined_rows([*(latest(part.standing) for part in parts), sent], RELATIONS)
    sliced = tuple(_grouped([piece for part in parts for piece in cut(part, slice_bytes)], slice_bytes))
    last = Lsn(int(parts[-1].commits["lsn"][-1])) if parts else after
    return Plan(after, reached, last, sliced, relations, sent, sum(map(len, parts)), size)


def transaction_bytes(part: Assembled) -> Longs:
    """How many bytes of frames each transaction has."""
    ends = np.concatenate([[0], np.cumsum(_sizes(part))])
    borders = np.concatenate([[0], np.cumsum(part.commits["extents"], dtype=np.int64)])
    counted: Longs = np.diff(ends[borders])
    return counted


def cut(part: Assembled, slice_bytes: int) -> Iterator[Assembled]:
    """The same in pieces of at most about so many bytes; an extent is never cut."""
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
    """What is in force at a piece's first frame; what its own transaction described counts most.

    Where a streamed transaction described a table once, that counts for all of it, wherever the description lies now.
    """
    place, start = part.relations["place"], part.relations["start"]
    earlier = (place < first["place"]) | ((place == first["place"]) & (start < first["start"]))
    if part.commits["streamed"][begin]:
        oids, times = np.unique(part.relations["oid"][described == begin], return_counts=True)
        earlier |= np.isin(part.relations["oid"], oids[times == 1])
    own = part.relations[(described == begin) & earlier]
    others = joined_rows([part.standing, part.relations[described < begin]], RELATIONS)
    return latest(joined_rows([in_order(others), in_order(own)], RELATIONS))


def _not_to_cut(part: Assembled, described: Longs) -> list[int]:
    """Streamed transactions that described a table more than once and went on in another segment.

    Its head holds those descriptions then, and no longer says between which changes they came.
    """
    found = []
    for at in np.flatnonzero(part.commits["streamed"]).tolist():
        own = part.relations[described == at]
        if (own["streamed"] == 0).any() and len(np.unique(own["oid"])) < len(own):
            found.append(at)
    return found


def in_order(relations: Rows) -> Rows:
    """By where they lie."""
    return relations[np.lexsort((relations["start"], relations["place"]))]


def latest(relations: Rows) -> Rows:
    """Of several descriptions of a table the last."""
    _, backwards = np.unique(relations["oid"][::-1], return_index=True)
    return relations[np.sort(len(relations) - 1 - backwards)]


def _grouped(pieces: Sequence[Assembled], slice_bytes: int) -> Iterator[Slice]:
    """Small pieces together."""
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
