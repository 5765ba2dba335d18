"""Reading one table at one boundary: its folded versions, later changes and the tail of the log, as one DataFrame.

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
from pyspark.sql import DataFrame, SparkSession

from tidemark.clock import Boundary, Lsn
from tidemark.errors import LogTrimmed, NotAnswerable
from tidemark.lake.changes import ChangeFiles
from tidemark.lake.columns import layout_of
from tidemark.lake.leases import Lease
from tidemark.lake.registers import read_retained
from tidemark.lake.versions import Versions, held, read_versions
from tidemark.log.mapped import descriptions
from tidemark.log.slices import SlicePlan, plan
from tidemark.reads.changes import file_changes, no_changes
from tidemark.reads.contents import contents
from tidemark.reads.equalities import Equalities
from tidemark.reads.few import Few, are_few, merged_here, read_here
from tidemark.reads.overlay import overlaid
from tidemark.reads.places import Places, places_of
from tidemark.reads.shape import ChangeFacts, both, facts_of
from tidemark.reads.shown import ShownTable, shown_table
from tidemark.reads.snapshot import LakeView
from tidemark.reads.tail import TailWork, tail_here, tail_of
from tidemark.reads.versions import base_of, chosen, files_with, key_said
from tidemark.reads.visible import seen, seen_here
from tidemark.schema.history import Span, TableEventKind, TableHistory
from tidemark.schema.relation import columns_of, fitting
from tidemark.schema.table import PgType
from tidemark.values.types import Types

SLICE_BYTES = 16 << 20
_GAPS = (TableEventKind.GAP, TableEventKind.RESTARTED)
_ATTEMPTS = 3
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class _Found:
    """A table at one time: its columns for readers, its files, the boundary of its versions, and the tail."""

    shown: ShownTable
    files: ChangeFiles
    folded: Versions | None
    since: Boundary
    tail: tuple[TailWork, SlicePlan] | None


@dataclass(slots=True)
class _Looked:
    """A table, its changes if they are few, and the places of the rows that they make obsolete, once these are found.

    The places are None if they cannot be found, or if rows are filtered by the boundary.
    """

    found: _Found
    few: Few | None
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


class TableReader:
    """Reads tables at one boundary. `view` returns the lake and the log in their current state.

    `first` is the view with which the boundary was accepted, before the histories of tables were read. `defined` means
    that the definitions at the boundary are established by other means than the schema LSN. `lease` is None if the
    caller holds the files by other means, and there is no log.
    """

    def __init__(
        self,
        spark: SparkSession,
        view: Callable[[], LakeView],
        types: Mapping[int, PgType],
        boundary: Boundary,
        lease: Lease | None,
        first: LakeView,
        *,
        defined: bool = False,
    ) -> None:
        self._spark, self._view, self._types = spark, view, types
        self._boundary, self._lease, self._first, self._defined = boundary, lease, first, defined
        self._looked: dict[int, _Looked] = {}

    def table(self, history: TableHistory, span: Span, equalities: Equalities) -> DataFrame:
        """Return the table's rows, not `guarded`; rows that do not satisfy the equalities may be left out."""
        return _again(lambda: self._table(history, span, equalities), self._looked.clear)

    def changes(self, history: TableHistory, span: Span) -> DataFrame:
        """Return all changes after the base of the span, not `guarded`."""
        return _again(lambda: self._changes(history, span), self._looked.clear)

    def _table(self, history: TableHistory, span: Span, equalities: Equalities) -> DataFrame:
        looked = self._kept(history, span)
        found, few = looked.found, looked.few
        shape = found.shown.shape
        base = places = None
        if found.folded is not None:
            files = found.folded.files
            key = key_said(found.folded, found.shown, equalities)
            if few is not None and key is not None:
                few = few.for_key(shape, [value for _, value in key])
                files = files if few.incomplete is not None else files_with(key, found.folded)
            else:
                places = looked.places(self._boundary)
            placed = places is not None
            base = base_of(self._spark, found.shown, found.folded, self._boundary, files, placed=placed)
        if base is not None and few is not None:
            return overlaid(base.rows, few, shape, places).toDF(*shape.names)
        rows, facts = self._all_changes(found)
        return contents(rows, shape, facts, base)

    def _kept(self, history: TableHistory, span: Span) -> _Looked:
        """Return the files of a table, which are read once, because the lease protects them."""
        oid = span.fingerprint.oid
        if oid not in self._looked:
            view = self._view()
            found = self._found(view, history, span, versions=True)
            few = self._few(found) if found.folded is not None else None
            self._require_whole(view, history)
            self._looked[oid] = _Looked(found, few)
        return self._looked[oid]

    def _changes(self, history: TableHistory, span: Span) -> DataFrame:
        view = self._view()
        found = self._found(view, history, span, versions=False)
        rows, _ = self._all_changes(found)
        self._require_whole(view, history)
        return rows

    def _found(self, view: LakeView, history: TableHistory, span: Span, *, versions: bool) -> _Found:
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
        return _Found(shown, files, folded, since, tail)

    def _require_whole(self, view: LakeView, history: TableHistory) -> None:
        """Reject a read below the retained LSN, and a read above a gap: changes that could not be decoded or matched.

        A gap is recorded before the files without these changes are committed, so a check after reading the files finds
        it.
        """
        view.require(self._boundary, defined=self._defined)
        if self._boundary.lsn <= self._first.cycle.applied_lsn and not self._first.is_begun_again():
            return  # gaps up to the applied LSN were recorded before the histories were read
        later = view.lake.tables()[history.fingerprint.oid].events[len(history.events) :]
        gap = next((each for each in later if each.kind in _GAPS and each.after < self._boundary.lsn), None)
        if gap is not None:
            raise NotAnswerable(
                f"{history.name} cannot be read at {self._boundary.lsn}: {gap.reason}", "Use another position."
            )

    def _all_changes(self, found: _Found) -> tuple[DataFrame, ChangeFacts]:
        """Return the changes after the folded versions, and their possible kinds."""
        spark, boundary = self._spark, self._boundary
        chosen = found.files.between(found.since, boundary)
        rows = file_changes(spark, found.shown, chosen, found.files.stored)
        rows = None if rows is None else seen(rows, found.since, boundary, chosen)
        facts = facts_of(chosen)
        tail = tail_of(spark, *found.tail) if found.tail is not None else None
        if tail is not None:
            later = seen(tail.rows, found.since, boundary, None)
            rows = later if rows is None else rows.unionByName(later)
            facts = both(facts, tail.facts)
        return rows if rows is not None else no_changes(spark, found.shown), facts

    def _few(self, found: _Found) -> Few | None:
        """Return the same changes merged in this process, if they are few and the table has a key."""
        chosen = found.files.between(found.since, self._boundary)
        if not found.shown.key or not are_few(chosen):
            return None
        tail = tail_here(*found.tail) if found.tail is not None else None
        if found.tail is not None and tail is None:
            return None
        rows = read_here(found.shown, chosen, found.files.stored)
        rows = rows if tail is None else pa.concat_tables([rows, tail])
        return merged_here(seen_here(rows, found.since, self._boundary), found.shown.shape)

    def _tail(
        self, view: LakeView, history: TableHistory, shown: ShownTable, files: ChangeFiles, after: Lsn
    ) -> tuple[TailWork, SlicePlan] | None:
        """Return the plan for reading the log above an LSN, if the read needs it."""
        if self._boundary.lsn <= after or view.reader is None:
            return None
        if self._lease is not None:
            self._lease.needs_tail(after)
        types = Types(self._types, view.lake.version_num)
        planned = plan(view.reader, after, self._boundary.lsn, 1 << 62, SLICE_BYTES)
        if shown.oid not in planned.tables:
            return None
        every = [event.fingerprint for event in reversed(history.events)]
        recent, sent = every[: 1 + _told_above(history, after)], set(descriptions(planned.sent, view.lake.log))
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


def _told_above(history: TableHistory, lsn: Lsn) -> int:
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


def _again(read: Callable[[], Answer], forget: Callable[[], None]) -> Answer:
    """Retry a read whose part of the log was trimmed in the meantime: the lake contains these changes then."""
    for _ in range(_ATTEMPTS):
        with suppress(LogTrimmed):
            return read()
        forget()
    return read()
