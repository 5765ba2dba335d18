"""Merges the live rows of one bucket with all its changes, in order, into live and closed rows. Pure Arrow.

With a key, a version of a row ends at the next change of its key. Without a key, equal rows cannot be distinguished:
the nth removal of a content ends its nth addition. A removal does not contain the values of columns that the table no
longer has: it ends any row that is equal in the others, because after its end all these rows read the same, and before
it all of them are live. A TRUNCATE ends all live rows.

A version that ends in the commit in which it began was never visible to another transaction, and is not stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.errors import LakeDamaged
from tidemark.lake.identities import may_be_among, numbers_of
from tidemark.lake.rows import INSERTED
from tidemark.reads.shape import COPY_AGAIN, REMOVALS
from tidemark.reads.unchanged import CARRIED, RowValues, by_row
from tidemark.values.kernels import Flags, Longs

BEGIN, END = "begin", "end"
EVENTS = pa.schema(
    [
        ("kind", pa.string()),
        ("commit", pa.int64()),
        ("ordinal", pa.int64()),
        ("unchanged", pa.string()),
    ]
)
_NEVER = np.iinfo(np.int64).max
_POSITION = np.dtype([("commit", np.int64), ("ordinal", np.int64)])


@dataclass(frozen=True, slots=True)
class Merging:
    """The parameters of a merge: all cells, those of the key, those that changes may not contain, and all truncates.

    `unchanged` of an event lists the columns that it does not contain: with a key, unchanged TOAST values; without one,
    columns that the table no longer has.
    """

    cells: tuple[str, ...]
    key: tuple[str, ...]
    unsent: Mapping[int, tuple[str, ...]]
    truncates: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class MergedVersions:
    """Live rows with `begin`, and closed rows with `begin` and `end`."""

    live: pa.Table
    closed: pa.Table


def merge(how: Merging, live: pa.Table, changes: pa.Table) -> MergedVersions:
    """Merge `live`, with the cells and `begin`, and later `changes`, with the cells and the columns of an event."""
    if how.key or changes["unchanged"].null_count == len(changes):
        return _merged(how, how.key or how.cells, live, changes)
    closed: list[pa.Table] = []
    for stage, told_apart_by, some in _stages(how, changes):
        merged = _merged(stage, told_apart_by, live, some)
        live, closed = merged.live, [*closed, merged.closed]
    return MergedVersions(live, pa.concat_tables(closed))


def _stages(how: Merging, changes: pa.Table) -> Iterator[tuple[Merging, tuple[str, ...], pa.Table]]:
    """The changes of a table without a key, in order, in runs that contain the same columns; and these columns."""
    positions, unchanged = _positions(changes), changes["unchanged"].to_pylist()
    order = np.argsort(positions, kind="stable")
    first = [place for place, at in enumerate(order) if place == 0 or unchanged[at] != unchanged[order[place - 1]]]
    for number, (begin, end) in enumerate(pairwise([*first, len(order)])):
        since = positions[order[begin]] if number else None
        until = positions[order[end]] if end < len(order) else None
        truncates = tuple(
            each
            for each in how.truncates
            if (since is None or each >= since.item()) and (until is None or each < until.item())
        )
        text = unchanged[order[begin]] or ""
        unsent = {cell for attnum, cells in how.unsent.items() if f",{attnum}," in text for cell in cells}
        told_apart_by = tuple(cell for cell in how.cells if cell not in unsent)
        yield replace(how, truncates=truncates), told_apart_by, changes.take(pa.array(order[begin:end]))


def _merged(how: Merging, told_apart_by: tuple[str, ...], live: pa.Table, changes: pa.Table) -> MergedVersions:
    touched = np.ones(len(live), bool) if how.truncates else may_be_among(live, changes, told_apart_by)
    events = pa.concat_tables([_as_events(live.filter(pa.array(touched)), how), changes.select(_names(how))])
    numbers = numbers_of(events, told_apart_by, zeros_apart=not how.key)
    epochs = _epochs(events, how.truncates)
    rows = numbers * (len(how.truncates) + 1) + epochs
    order = by_row(events, rows)
    ordered = _Ordered(events, order, rows[order], epochs[order])
    sources, ends = _keyed(ordered) if how.key else _paired(ordered)
    ends = np.where(ends == _NEVER, _truncated(ordered.epochs[sources], how.truncates), ends)
    begins = ordered.commits[sources]
    stays, ended = ends == _NEVER, (ends != _NEVER) & (ends > begins)
    values = RowValues(events, rows, order, how.unsent if how.key else {})
    new = values.taken(how.cells, order[sources[stays]]).append_column(BEGIN, pa.array(begins[stays]))
    old = values.taken(how.cells, order[sources[ended]]).append_column(BEGIN, pa.array(begins[ended]))
    untouched = live.filter(pa.array(~touched)).select([*how.cells, BEGIN])
    return MergedVersions(pa.concat_tables([untouched, new]), old.append_column(END, pa.array(ends[ended])))


class _Ordered:
    """Events in the order of row and position. Equal rows in two epochs, between truncates, have different numbers."""

    def __init__(self, events: pa.Table, order: Longs, numbers: Longs, epochs: Longs) -> None:
        self.epochs = epochs
        self.commits: Longs = events["commit"].to_numpy()[order]
        kinds = events["kind"]
        self.removes: Flags = pc.is_in(kinds, value_set=pa.array(REMOVALS)).to_numpy()[order]
        self.is_row: Flags = ~self.removes & pc.not_equal(kinds, CARRIED).to_numpy()[order]
        same = np.diff(numbers) == 0
        self.goes_on: Flags = np.append(same, False)  # the next event is of the same row
        self.starts: Longs = _starts(same)


def _starts(same: Flags) -> Longs:
    """For each event, the first event of its row."""
    first = np.insert(~same, 0, True)[: len(same) + 1]
    starts: Longs = np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))
    return starts


def _keyed(ordered: _Ordered) -> tuple[Longs, Longs]:
    """The events that are versions, and the end of each: the next event of its key."""
    ends = np.where(ordered.goes_on, np.append(ordered.commits[1:], 0)[: len(ordered.commits)], _NEVER)
    sources = np.flatnonzero(ordered.is_row)
    return sources, ends[sources]


def _paired(ordered: _Ordered) -> tuple[Longs, Longs]:
    """The events that are versions, and the end of each: the nth removal of a content ends its nth addition."""
    added, removed = np.flatnonzero(ordered.is_row), np.flatnonzero(ordered.removes)
    places = {name: _places(ordered.starts[which]) for name, which in (("added", added), ("removed", removed))}
    width = len(ordered.starts) + 1
    of_added = ordered.starts[added] * width + places["added"]
    of_removed = ordered.starts[removed] * width + places["removed"]
    at = np.searchsorted(of_added, of_removed)
    found = at < len(of_added)
    found[found] = of_added[at[found]] == of_removed[found]
    if not found.all():
        raise LakeDamaged("a row was removed more often than it was added", COPY_AGAIN)
    ends = np.full(len(added), _NEVER, np.int64)
    ends[at] = ordered.commits[removed]
    return added, ends


def _places(starts: Longs) -> Longs:
    """For each of some events, ordered by row, the number of earlier ones of its row."""
    first = np.flatnonzero(np.diff(starts, prepend=-1) != 0)
    lengths = np.diff(np.append(first, len(starts)))
    places: Longs = np.arange(len(starts)) - np.repeat(first, lengths)
    return places


def _names(how: Merging) -> list[str]:
    return [*how.cells, *EVENTS.names]


def _as_events(live: pa.Table, how: Merging) -> pa.Table:
    """Live rows as the events that created them."""
    count = len(live)
    metadata = {
        "kind": pa.repeat(pa.scalar(INSERTED), count),
        "commit": live[BEGIN],
        "ordinal": pa.repeat(pa.scalar(-1, pa.int64()), count),
        "unchanged": pa.nulls(count, pa.string()),
    }
    return pa.table({**{cell: live[cell] for cell in how.cells}, **metadata})


def _epochs(events: pa.Table, truncates: Sequence[tuple[int, int]]) -> Longs:
    """The number of truncates before each event."""
    return np.searchsorted(np.array(sorted(truncates), _POSITION), _positions(events)).astype(np.int64)


def _positions(events: pa.Table) -> npt.NDArray[np.void]:
    positions = np.empty(len(events), _POSITION)
    positions["commit"], positions["ordinal"] = events["commit"].to_numpy(), events["ordinal"].to_numpy()
    return positions


def _truncated(epochs: Longs, truncates: Sequence[tuple[int, int]]) -> Longs:
    """The commit at which each epoch ended; the last one has not ended."""
    ends = np.array([*(commit for commit, _ in sorted(truncates)), _NEVER], np.int64)
    return ends[epochs]
