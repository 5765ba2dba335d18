"""Writes transactions to the target: each batch of them is netted, staged and merged in one transaction of the target.

The numbers of rows that a merge deletes and updates must be those of the changes: another number means that another
application has changed the target. The progress is recorded in the same transaction, so every change is applied once.

A batch that repairs the target finds every row before it is changed. Rows that do not exist once are left out, and rows
that are in the way are deleted. At the end, all of these get the state that the source has there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from psycopg import sql

from tidemark.clock import Boundary
from tidemark.errors import SourceError, TargetDiffers, TidemarkError
from tidemark.log.mapped import located
from tidemark.log.slices import SlicePlan
from tidemark.pgoutput.changes import BINARY, LocatedChanges
from tidemark.pgoutput.frames import TRUNCATE, framed, windows
from tidemark.pgoutput.scan import Format, RowCells, changed_tables, find_values, scan
from tidemark.postgres.session import Session
from tidemark.postgres.sqlstate import Endpoint, translated
from tidemark.reads.visible import numpy_sees
from tidemark.schema.relation import Relation
from tidemark.target.differences import Differences, Name, TableDifferences
from tidemark.target.merging import (
    RESTORE,
    MergedCounts,
    StagedCounts,
    as_bytes,
    copy_statement,
    merge_contents,
    merge_rows,
    merge_statements,
    require_stored,
)
from tidemark.target.net import (
    DELETED,
    INSERTED,
    NOTHING,
    NetRows,
    TableChanges,
    fill_from_old_rows,
    net_contents,
    net_rows,
)
from tidemark.target.rows import inserted_rows, staged_contents, staged_rows
from tidemark.target.script import Script
from tidemark.target.statements import StageTable, can_be_copied, contents_deleted, truncated
from tidemark.target.tables import TargetTable, unique_columns
from tidemark.values.cells import UNCHANGED
from tidemark.values.kernels import Bytes, Ints, Longs

MOST_STAGES = 64
FEW_ROWS = 500  # up to so many rows are deleted from a stage; then it is truncated
READ_TOGETHER = 1000  # rows that are read from the source at a time
_IN_THE_WAY = ("23505", "23P01")  # unique_violation, exclusion_violation
_DEFERRED = b"set constraints all deferred"
_BOTH = Format.TEXT | Format.BINARY


@dataclass(frozen=True, slots=True)
class FollowedTable:
    """A table whose changes are applied, from its base on."""

    target: TargetTable
    base: Boundary


# Reads the rows of the source, as texts, that have these keys or contents.
ReadRows = Callable[[TargetTable, Sequence[Name]], list[tuple[str | None, ...]]]


@dataclass(slots=True)
class _WaitingRows:
    """Changes of one table that are merged together."""

    table: TargetTable
    parts: list[LocatedChanges] = field(default_factory=list)


def compile_kernels() -> None:
    """Compile what a writer needs, or load it from the cache, so that the first batch does not wait for it."""
    nowhere, none = np.zeros(1, np.int64), np.empty(0, np.int64)
    buffer = framed(())
    for _ in windows(buffer, nowhere, nowhere, 1, 1):
        pass
    changed_tables(buffer, none, none, np.empty(0, np.bool_))
    messages = scan(buffer, none, none, streamed=False)
    cells = find_values(messages, 1)
    changes = TableChanges(
        buffer, messages.letters, cells.new_offsets, cells.new_lengths, cells.old_offsets, cells.old_lengths,
        np.empty(0, np.bool_),
    )  # fmt: skip
    staged_rows(changes, net_rows(changes, nowhere), nowhere, nowhere, marks=False)
    net_contents(changes)


class _Undone(Exception):
    """Rolls back a transaction that only finds differences."""


class TargetWriter:
    """Writes batches by one session at the target, in which it creates temporary tables.

    `tables` returns the table of a relation; None if its changes are not applied.
    """

    def __init__(self, session: Session, tables: Callable[[Relation], FollowedTable | None]) -> None:
        self._session, self._tables = session, tables
        self._script = Script(session)
        self._stages: dict[tuple[TargetTable, frozenset[int], frozenset[int]], StageTable] = {}
        self._deleted: Counter[StageTable] = Counter()  # rows deleted from each stage since it was truncated
        self._numbers = count(1)
        self._differences: Differences | None = None  # are collected instead of being refused
        self._naming = False  # the first of them are enough

    def write(self, plan: SlicePlan, log: Path, record: Callable[[MergedCounts], None]) -> MergedCounts:
        """Apply the transactions of a plan in one transaction; `record` records the progress in it.

        Raises TargetDiffers if the target does not have the rows that the changes expect.
        """
        stages = dict(self._stages)
        try:
            return self._write(plan, log, record)
        except BaseException as error:
            self._script.clear()
            self._stages = stages  # the others were created in the transaction, which is rolled back
            if isinstance(error, SourceError) and error.sqlstate in _IN_THE_WAY:
                raise TargetDiffers(error.message, RESTORE) from error
            raise

    def flush(self) -> None:
        """Send what was added so far, before another statement of the same transaction is sent."""
        self._script.run()

    def drop_stages(self) -> None:
        """Drop all stages; the next batches create those that they need.

        Autovacuum skips temporary tables: an old one would keep the target from reusing transaction IDs.
        """
        if self._stages:
            names = sql.SQL(", ").join(each.identifier for each in self._stages.values())
            with translated("dropping stages", Endpoint.TARGET), self._session.connection.transaction():
                self._script.add(as_bytes(sql.SQL("drop table {}").format(names)), "dropping stages")
                self._script.run()
            self._stages.clear()
            self._deleted.clear()

    def unfit(self, plan: SlicePlan, log: Path) -> Differences:
        """Find rows of the target that do not fit a plan that was refused for them. Nothing is changed.

        It stops after the first slice with such rows. If another error stops it, the rows found so far are returned:
        the plan was refused for a reason that is known.
        """
        found = self._differences = Differences()
        self._naming = True

        def undo(_: MergedCounts) -> None:
            raise _Undone

        try:
            with suppress(_Undone, TidemarkError):
                self.write(plan, log, undo)
        finally:
            self._differences, self._naming = None, False
        return found

    def repair(
        self, plan: SlicePlan, log: Path, record: Callable[[MergedCounts, Differences], None], read: ReadRows
    ) -> tuple[MergedCounts, Differences]:
        """Apply the transactions of a plan like `write`, but repair the rows that they concern and return these.

        `read` reads the source exactly as of the end of the plan. Raises TargetDiffers if a row that is in the way
        cannot be identified.
        """
        found = self._differences = Differences()

        def settle(merged: MergedCounts) -> None:
            for each in found:
                self._settle(each, read)
            record(merged, found)

        try:
            return self.write(plan, log, settle), found
        finally:
            self._differences = None

    def _write(self, plan: SlicePlan, log: Path, record: Callable[[MergedCounts], None]) -> MergedCounts:
        merged = MergedCounts()
        with translated("applying changes at the target", Endpoint.TARGET), self._session.connection.transaction():
            # A merge has the changes of one slice, segment and format: not of a whole statement.
            self._script.add(_DEFERRED, "deferring constraints")
            for each in plan.slices:
                waiting: dict[int, _WaitingRows] = {}
                for part in each.parts:
                    for changes in located(part, log):
                        self._take(changes, waiting, merged)
                self._merge_all(waiting, merged)
                self._script.run()
                if self._naming and self._differences is not None and self._differences.repairs():
                    raise _Undone
            record(merged)
            self._script.run()  # what a repair has added
        return merged

    def _take(self, changes: LocatedChanges, waiting: dict[int, _WaitingRows], merged: MergedCounts) -> None:
        """Add changes to those that wait for their merge; if the table was altered, merge those of before first."""
        earlier = waiting.get(changes.relation.oid)
        if earlier is not None and earlier.parts[-1].relation != changes.relation:
            self._merge(waiting.pop(changes.relation.oid), merged)
        followed = self._tables(changes.relation)
        if followed is None:
            return
        changes = _not_in(changes, followed.base)
        oid = changes.relation.oid
        for part in _split_at_truncates(changes):
            if part.messages.letters[0] == TRUNCATE:
                waiting.pop(oid, None)
                self._script.add(as_bytes(truncated([followed.target])), f"truncating {followed.target.label}")
                merged.truncated += 1
                continue
            for uniform in _of_one_format(part):
                there = waiting.get(oid)
                if there is not None and not _go_together(there.parts[-1], uniform):
                    self._merge(waiting.pop(oid), merged)
                waiting.setdefault(oid, _WaitingRows(followed.target)).parts.append(uniform)

    def _merge_all(self, waiting: dict[int, _WaitingRows], merged: MergedCounts) -> None:
        for oid in list(waiting):
            self._merge(waiting.pop(oid), merged)

    def _merge(self, waiting: _WaitingRows, merged: MergedCounts) -> None:
        changes = _joined(waiting.parts)
        texts = _texts(waiting.parts)
        fill_from_old_rows(changes)
        merged.changes += len(changes)
        with translated(f"applying changes of {waiting.table.label}", Endpoint.TARGET):
            if not waiting.table.key:
                self._merge_contents(waiting.table, changes, texts, merged)
            elif self._differences is not None and set(waiting.table.key) <= set(waiting.table.written):
                self._merge_differing(self._differences.of(waiting.table), changes, texts, merged)
            else:
                self._merge_rows(waiting.table, changes, texts, merged)

    def _merge_rows(
        self, table: TargetTable, changes: TableChanges, texts: frozenset[int], merged: MergedCounts
    ) -> None:
        net = net_rows(changes, np.array(table.key, np.int64))
        written = np.array(table.written, np.int64)
        apart = can_be_copied(table, texts)
        staged = (net.operations != NOTHING) & ~((net.operations == INSERTED) & apart)
        if staged.any():
            self._merge_staged(table, changes, _some(net, staged), texts, merged)
        new = net.last[net.operations == INSERTED] if apart else np.empty(0, np.int64)
        if len(new):
            rows = inserted_rows(changes, 2 * new, written)
            self._script.copy(
                copy_statement(table), rows, f"inserting into {table.label}", require_stored(table.label, len(new))
            )
            merged.inserted += len(new)

    def _merge_staged(
        self, table: TargetTable, changes: TableChanges, net: NetRows, texts: frozenset[int], merged: MergedCounts
    ) -> None:
        stage = self._staged(table, changes, net, texts)
        counts = np.bincount(net.operations, minlength=DELETED + 1).tolist()
        merge_rows(self._script, stage, StagedCounts(*counts[INSERTED:]), merged)
        self._empty(stage, len(net.operations))

    def _staged(self, table: TargetTable, changes: TableChanges, net: NetRows, texts: frozenset[int]) -> StageTable:
        last = net.last[net.last >= 0]
        unsent = (changes.new_lengths[:, last] == UNCHANGED).any(axis=1)
        marked = frozenset(at for at in table.written if unsent[at])
        stage = self._stage(table, texts, marked)
        rows = staged_rows(
            changes, net, np.array(table.key, np.int64), np.array(table.written, np.int64), marks=bool(marked)
        )
        self._script.copy(merge_statements(stage).copied, rows, f"staging changes of {table.label}")
        return stage

    def _merge_differing(
        self, found: TableDifferences, changes: TableChanges, texts: frozenset[int], merged: MergedCounts
    ) -> None:
        """Merge changes of a table that may not have the rows that they expect."""
        net = net_rows(changes, np.array(found.table.key, np.int64))
        if not (net.operations != NOTHING).any():
            return
        stage = self._staged(found.table, changes, _some(net, net.operations != NOTHING), texts)
        for operation, present, origin, after in self._rows(stage.unfit()):
            found.add_unfit(operation, present, tuple(origin), tuple(after))
        for statement in (stage.moved(), *stage.fetched()):
            self._count(statement, found.table)
        merged.deleted += self._count(stage.deleted(), found.table)
        merged.inserted += self._put_in(stage, found)
        self._empty(stage, len(net.operations))

    def _put_in(self, stage: StageTable, found: TableDifferences) -> int:
        """Put in the rows of a stage, and delete those that are in the way; return how many were put in."""
        found.add_extra(tuple(key) for (key,) in self._rows(stage.replaced()))
        for unique in unique_columns(self._session, stage.table):
            keys = [tuple(key) for (key,) in self._rows(stage.blocking(unique))]
            found.add_extra(keys)
            found.unknown.update(keys)
        return self._insert(stage)

    def _settle(self, found: TableDifferences, read: ReadRows) -> None:
        """Give the rows whose state is not known the state that they have at the source."""
        table, settled = found.table, set[Name]()
        with translated(f"repairing {table.label}"):
            while unknown := found.unknown - settled:  # a row of the source can show another one that is in its way
                names_in_order = sorted(unknown)
                for first in range(0, len(unknown), READ_TOGETHER):
                    names = names_in_order[first : first + READ_TOGETHER]
                    rows = read(table, names)
                    if table.key:
                        self._settle_rows(found, names, rows)
                    else:
                        self._settle_contents(found, names, rows)
                settled |= unknown

    def _settle_rows(self, found: TableDifferences, keys: Sequence[Name], rows: Sequence[Sequence[str | None]]) -> None:
        stage = self._stage(found.table, frozenset(found.table.written), frozenset())
        self._fill(stage.filled_with_keys(), keys)
        self._count(stage.deleted(), found.table)
        if rows:
            self._fill(stage.filled_with_rows(), rows)
        self._put_in(stage, found)
        self._empty(stage, len(keys) + len(rows))

    def _fill(self, statement: sql.Composed, rows: Sequence[Sequence[str | None]]) -> None:
        self._script.run()
        self._session.connection.execute(statement, _columns(rows))

    def _settle_contents(
        self, found: TableDifferences, contents: Sequence[Name], rows: Sequence[Sequence[str | None]]
    ) -> None:
        stage = self._stage(found.table, frozenset(found.table.written), frozenset())
        deleted = self._rows(contents_deleted(found.table, contents))
        if rows:
            self._fill(stage.filled_with_rows(), rows)
        self._insert(stage)
        found.missing += Counter(self._rows(stage.contents())) - Counter(deleted)
        self._empty(stage, len(rows))

    def _merge_contents(
        self, table: TargetTable, changes: TableChanges, texts: frozenset[int], merged: MergedCounts
    ) -> None:
        net = net_contents(changes)
        if not len(net.rows):
            return
        stage = self._stage(table, texts, frozenset())
        rows = staged_contents(changes, net, np.array(table.written, np.int64))
        self._script.copy(merge_statements(stage).copied, rows, f"staging changes of {table.label}")
        gone, new = int(-net.counts[net.counts < 0].sum()), int(net.counts[net.counts > 0].sum())
        if gone and self._differences is not None:
            self._differences.of(table).add_short(self._rows(stage.short_contents()))
            merged.deleted += self._count(stage.deleted_contents(), table)
            gone = 0
        merge_contents(self._script, stage, gone, new, merged)
        self._empty(stage, int(np.abs(net.counts).sum()))

    def _stage(self, table: TargetTable, texts: frozenset[int], marked: frozenset[int]) -> StageTable:
        """Return an empty stage for such changes; the one that was used least recently makes room for a new one."""
        shape = (table, texts, marked)
        stage = self._stages.pop(shape, None)
        if stage is None:
            if len(self._stages) >= MOST_STAGES:
                oldest = self._stages.pop(next(iter(self._stages)))
                del self._deleted[oldest]
                dropped = sql.SQL("drop table {}").format(oldest.identifier)
                self._script.add(as_bytes(dropped), f"dropping a stage of {oldest.table.label}")
            stage = StageTable(table, next(self._numbers), texts, marked)
            self._script.add(as_bytes(stage.created()), f"creating a stage of {table.label}")
        self._stages[shape] = stage
        return stage

    def _empty(self, stage: StageTable, rows: int) -> None:
        """Remove the rows of a stage. For few rows, DELETE takes a tenth of the CPU time of TRUNCATE."""
        self._deleted[stage] += rows
        few, statements = self._deleted[stage] <= FEW_ROWS, merge_statements(stage)
        if not few:
            self._deleted[stage] = 0
        self._script.add(
            statements.emptied if few else statements.truncated, f"emptying a stage of {stage.table.label}"
        )

    def _count(self, statement: sql.Composed, table: TargetTable) -> int:
        """Run a statement that repairs a table, after those that wait; return how many rows it concerned."""
        self._script.add(as_bytes(statement), f"repairing {table.label}")
        return self._script.run()

    def _insert(self, stage: StageTable) -> int:
        """Insert the rows that are new or move; return their number."""
        ((new,),) = self._rows(stage.new_counted())
        put_in = self._count(stage.inserted(), stage.table)
        require_stored(stage.table.label, new)(put_in)
        return put_in

    def _rows(self, statement: sql.Composed) -> list[Any]:
        self._script.run()
        return self._session.connection.execute(statement).fetchall()


def _columns(rows: Sequence[Sequence[str | None]]) -> list[list[str | None]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _some(net: NetRows, chosen: np.ndarray) -> NetRows:
    return NetRows(net.operations[chosen], net.origins[chosen], net.last[chosen])


def _not_in(changes: LocatedChanges, base: Boundary) -> LocatedChanges:
    """Leave out changes of commits that the base of the table contains."""
    seen = numpy_sees(base, changes.commit_lsns)
    return chosen_changes(changes, np.flatnonzero(~seen)) if seen.any() else changes


def chosen_changes(changes: LocatedChanges, chosen: np.ndarray | slice) -> LocatedChanges:
    """Return some of these changes."""
    rows = changes.rows
    old = rows.old_offsets.shape[1] > 0
    return LocatedChanges(
        changes.relation,
        changes.messages.some(chosen),
        RowCells(
            np.ascontiguousarray(rows.new_offsets[:, chosen]),
            np.ascontiguousarray(rows.new_lengths[:, chosen]),
            rows.new_formats,
            np.ascontiguousarray(rows.old_offsets[:, chosen]) if old else rows.old_offsets,
            np.ascontiguousarray(rows.old_lengths[:, chosen]) if old else rows.old_lengths,
            rows.old_formats,
            rows.old_kinds[chosen],
        ),
        changes.ordinals[chosen],
        changes.xids[chosen],
        changes.commit_lsns[chosen],
        changes.commit_micros[chosen],
        changes.truncate_options[chosen],
    )


def _split_at_truncates(changes: LocatedChanges) -> Iterator[LocatedChanges]:
    """Divide changes so that each TRUNCATE is alone."""
    cuts = np.flatnonzero(changes.messages.letters == TRUNCATE).tolist()
    if not len(changes):
        return
    if not cuts:
        yield changes
        return
    borders = sorted({0, len(changes), *cuts, *(at + 1 for at in cuts)})
    for first, last in pairwise(borders):
        yield chosen_changes(changes, slice(first, last))


def _of_one_format(changes: LocatedChanges) -> Iterator[LocatedChanges]:
    """Divide changes so that every column has one format; they differ if the stream was restarted in between."""
    if len(changes) == 1 or not (_formats(changes) == _BOTH).any():
        yield changes
        return
    middle = len(changes) // 2
    for half in (slice(middle), slice(middle, None)):
        yield from _of_one_format(_with_formats(chosen_changes(changes, half)))


def _formats(changes: LocatedChanges) -> Bytes:
    formats: Bytes = changes.rows.new_formats | changes.rows.old_formats
    return formats


def _with_formats(changes: LocatedChanges) -> LocatedChanges:
    """Return changes with the formats that occur in them."""
    rows, buffer = changes.rows, changes.messages.buffer
    new, old = (
        np.array([_format(buffer, *column) for column in zip(offsets, lengths, strict=True)], np.uint8)
        for offsets, lengths in ((rows.new_offsets, rows.new_lengths), (rows.old_offsets, rows.old_lengths))
    )
    return replace(changes, rows=replace(rows, new_formats=new, old_formats=old))


def _format(buffer: Bytes, offsets: Longs, lengths: Ints) -> int:
    letters = buffer[offsets[lengths >= 0] - 5]
    text = bool((letters != BINARY).any())
    return (Format.TEXT if text else 0) | (Format.BINARY if bool((letters == BINARY).any()) else 0)


def _go_together(before: LocatedChanges, after: LocatedChanges) -> bool:
    """Whether changes can be netted together: they are in one buffer, with one description and the same formats."""
    return (
        before.messages.buffer is after.messages.buffer
        and before.relation == after.relation
        and not ((_formats(before) | _formats(after)) == _BOTH).any()
    )


def _texts(parts: Sequence[LocatedChanges]) -> frozenset[int]:
    """The columns whose values were sent as text."""
    found = np.bitwise_or.reduce([_formats(part) for part in parts])
    return frozenset(np.flatnonzero(found & Format.TEXT).tolist())


def _joined(parts: Sequence[LocatedChanges]) -> TableChanges:
    """The changes of all parts, in arrays that may be written to."""
    sent = [part.rows.old_kinds != 0 for part in parts]
    old = any(part.any() for part in sent)
    columns = len(parts[0].relation.columns)
    nothing = RowCells.empty(columns, 0, 0)
    padded = [_with_old_rows(part.rows) if old else nothing for part in parts]
    return TableChanges(
        parts[0].messages.buffer,
        np.concatenate([part.messages.letters for part in parts]),
        np.concatenate([part.rows.new_offsets for part in parts], axis=1),
        np.concatenate([part.rows.new_lengths for part in parts], axis=1),
        np.concatenate([rows.old_offsets for rows in padded], axis=1),
        np.concatenate([rows.old_lengths for rows in padded], axis=1),
        np.concatenate(sent),
    )


def _with_old_rows(rows: RowCells) -> RowCells:
    """Return the rows with old rows, all NULL, if they were left out because no change has one."""
    columns, count = rows.new_lengths.shape
    if rows.old_offsets.shape[1] == count:
        return rows
    empty = RowCells.empty(columns, 0, count)
    return replace(rows, old_offsets=empty.old_offsets, old_lengths=empty.old_lengths)
