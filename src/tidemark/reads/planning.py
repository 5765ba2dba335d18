"""Planning the read of a table at one boundary for any engine: its folded versions, later changes and the log's tail.

The three are read upstream first and the retained LSN last. Data that moves downstream in the meantime is therefore not
missed, and a read of expired data is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from tidemark.clock import Boundary, Lsn
from tidemark.errors import LogTrimmed, NotAnswerable
from tidemark.lake.changes import ChangeFile, ChangeFiles
from tidemark.lake.columns import layout_of
from tidemark.lake.leases import Lease
from tidemark.lake.registers import read_retained
from tidemark.lake.versions import VersionFile, Versions, held, read_versions
from tidemark.log.mapped import descriptions
from tidemark.log.slices import SlicePlan, plan
from tidemark.reads.equalities import Equalities
from tidemark.reads.few import Few, MergeLimits, are_few, merged_here, read_here, short_limits
from tidemark.reads.places import Places, places_of
from tidemark.reads.shown import ShownTable, shown_table
from tidemark.reads.snapshot import LakeView
from tidemark.reads.tail import TailWork, tail_here
from tidemark.reads.versions import chosen, files_with, key_of_equalities
from tidemark.reads.visible import seen_here
from tidemark.schema.history import Span, TableEventKind, TableHistory
from tidemark.schema.relation import columns_of, fitting
from tidemark.schema.table import PgType
from tidemark.values.types import Types

SLICE_BYTES = 16 << 20
_GAPS = (TableEventKind.GAP, TableEventKind.RESTARTED)
_ATTEMPTS = 3
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """A table at one time: its columns for readers, its files, the boundary of its versions, and the tail."""

    shown: ShownTable
    files: ChangeFiles
    folded: Versions | None
    since: Boundary
    tail: tuple[TailWork, SlicePlan] | None

    def between(self, boundary: Boundary) -> tuple[ChangeFile, ...]:
        """Return the change files that may contain a change above the versions that is visible at the boundary."""
        return self.files.between(self.since, boundary)


@dataclass(slots=True)
class PlannedTable:
    """A table, its changes if they are few, and the places of the rows that they make obsolete, once these are found.

    The places are None if they cannot be found, or if rows are filtered by the boundary. `many` are the changes merged
    in this process although they are too many for a plan of Spark, once the local engine has merged them.
    """

    found: FoundFiles
    few: Few | None
    many: Few | None = None
    _places: Places | None = None
    _is_placed: bool = False

    def places(self, boundary: Boundary) -> Places | None:
        """Return the places."""
        folded, few = self.found.folded, self.few
        if folded is not None and few is not None and not self._is_placed:
            files = chosen(folded.files, boundary)
            if not files.asked and len(few.touched) and not few.truncated:
                self._places = places_of(few, folded, files.clean, self.found.shown)
            self._is_placed = True
        return self._places

    def of_key(self, few: Few, equalities: Equalities) -> tuple[Few, tuple[VersionFile, ...]] | None:
        """Return the changes and the files for the key that the equalities determine; None if they determine none."""
        folded, shown = self.found.folded, self.found.shown
        key = key_of_equalities(folded, shown, equalities) if folded is not None else None
        if folded is None or key is None:
            return None
        few = few.for_key(shown.shape, [value for _, value in key])
        return few, (folded.files if few.incomplete is not None else files_with(key, folded))


class TablePlanner:
    """Finds the files and changes of tables at one boundary.

    `view` returns the lake and the log in their current state. `first` is the view with which the boundary was
    accepted, before the histories of tables were read. `defined` means that the definitions at the boundary are
    established by other means than the schema LSN. `lease` is None if the caller holds the files by other means, and
    there is no log.
    """

    def __init__(
        self,
        view: Callable[[], LakeView],
        types: Mapping[int, PgType],
        boundary: Boundary,
        lease: Lease | None,
        first: LakeView,
        *,
        defined: bool = False,
    ) -> None:
        self.boundary = boundary
        self._view, self._types, self._lease, self._first, self._defined = view, types, lease, first, defined
        self._planned: dict[int, PlannedTable] = {}

    def again(self, read: Callable[[], Answer]) -> Answer:
        """Retry a read whose part of the log was trimmed in the meantime: the lake contains these changes then."""
        for _ in range(_ATTEMPTS):
            with suppress(LogTrimmed):
                return read()
            self._planned.clear()
        return read()

    def planned(self, history: TableHistory, span: Span) -> PlannedTable:
        """Return the files of a table, which are read once, because the lease protects them."""
        oid = span.fingerprint.oid
        if oid not in self._planned:
            view = self._view()
            found = self._found(view, history, span, versions=True)
            few = self._few(found) if found.folded is not None else None
            self._require_whole(view, history)
            self._planned[oid] = PlannedTable(found, few)
        return self._planned[oid]

    def unfolded(self, history: TableHistory, span: Span) -> FoundFiles:
        """Return the table with all changes after the base of the span, and without its versions."""
        view = self._view()
        found = self._found(view, history, span, versions=False)
        self._require_whole(view, history)
        return found

    def changes_here(self, found: FoundFiles, limits: MergeLimits) -> pa.Table | None:
        """Return the changes above the versions that are visible at the boundary; None if they exceed the limits."""
        files = found.between(self.boundary)
        if not are_few(files, limits):
            return None
        tail = tail_here(*found.tail, limits.tail_bytes) if found.tail is not None else None
        if found.tail is not None and tail is None:
            return None
        rows = read_here(found.shown, files, found.files.stored)
        rows = rows if tail is None else pa.concat_tables([rows, tail])
        return seen_here(rows, found.since, self.boundary)

    def _few(self, found: FoundFiles) -> Few | None:
        """Return the same changes merged in this process, if they are few and the table has a key."""
        rows = self.changes_here(found, short_limits()) if found.shown.key else None
        return merged_here(rows, found.shown.shape) if rows is not None else None

    def _found(self, view: LakeView, history: TableHistory, span: Span, *, versions: bool) -> FoundFiles:
        """Read changes before versions, so that changes folded in the meantime are in both, and not in neither."""
        files = view.changes(history.path)
        folded = read_versions(view.lake.path, history.path, span.base.lsn) if versions else None
        if versions and folded is None:
            _require_all_changes(view.lake.path, history, span)
        types = Types(self._types, view.lake.version_num)
        stored = (*files.stored, *(folded.stored if folded else ()))
        shown = shown_table(history, span.fingerprint, stored, types)
        since = held(folded, span.base)
        tail = self._tail(view, history, shown, files, max(files.applied, since.floor))
        return FoundFiles(shown, files, folded, since, tail)

    def _require_whole(self, view: LakeView, history: TableHistory) -> None:
        """Reject a read below the retained LSN, and a read above a gap: changes that could not be decoded or matched.

        A gap is recorded before the files without these changes are committed, so a check after reading the files finds
        it.
        """
        view.require(self.boundary, defined=self._defined)
        if self.boundary.lsn <= self._first.cycle.applied_lsn and not self._first.is_begun_again():
            return  # gaps up to the applied LSN were recorded before the histories were read
        later = view.lake.tables()[history.fingerprint.oid].events[len(history.events) :]
        gap = next((each for each in later if each.kind in _GAPS and each.after < self.boundary.lsn), None)
        if gap is not None:
            raise NotAnswerable(
                f"{history.name} cannot be read at {self.boundary.lsn}: {gap.reason}", "Use another position."
            )

    def _tail(
        self, view: LakeView, history: TableHistory, shown: ShownTable, files: ChangeFiles, after: Lsn
    ) -> tuple[TailWork, SlicePlan] | None:
        """Return the plan for reading the log above an LSN, if the read needs it."""
        if self.boundary.lsn <= after or view.reader is None:
            return None
        if self._lease is not None:
            self._lease.needs_tail(after)
        types = Types(self._types, view.lake.version_num)
        planned = plan(view.reader, after, self.boundary.lsn, 1 << 62, SLICE_BYTES)
        if shown.oid not in planned.tables:
            return None
        every = [event.fingerprint for event in reversed(history.events)]
        recent, sent = every[: 1 + _events_above(history, after)], set(descriptions(planned.sent, view.lake.log))
        relations = {}
        for relation in descriptions(planned.relations, view.lake.log):
            fingerprint = fitting(relation, recent if relation in sent else every)
            if fingerprint is not None and columns_of(relation, fingerprint) is not None:
                layout = layout_of(relation, fingerprint, history.path, files.stored, types)
                relations[relation] = layout.columns
            elif relation.oid == shown.oid:
                raise NotAnswerable(
                    f"{history.name} was altered, and the change is not applied yet", "Retry the command."
                )
        return TailWork(view.lake.log, types, shown, relations), planned


def _events_above(history: TableHistory, lsn: Lsn) -> int:
    """Return the number of trailing events above an LSN: the definition before them was still valid at that LSN."""
    return sum(1 for _ in takewhile(lambda event: event.lsn > lsn, reversed(history.events)))


def _require_all_changes(lake: Path, history: TableHistory, span: Span) -> None:
    """Reject a generation that a later one replaced if its initial rows are gone, or its changes may be."""
    present = read_versions(lake, history.path)
    later = present is not None and present.base > span.base.lsn and read_retained(lake) > span.base.lsn
    if span.copied or later:
        began = next(each.base.lsn for each in reversed(history.spans()))
        raise NotAnswerable(
            f"{history.name} was copied again at {began}, and its history before that is not complete",
            f"Use an LSN from {began} on.",
        )
