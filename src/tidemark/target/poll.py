"""Polls a source into a target: all tables as of one snapshot of the source, in one transaction of the target.

Rows that may have changed since the last poll are read by their `xmin` and staged; rows that are gone are found by
digests of the keys, which both servers compute. The changes found must explain every difference between the digests.
The watermark and the digests are recorded in the transaction that writes the rows: so after a crash of any process or
server the target is as the last poll left it, and the next poll continues from there.

Before a table is written, the digest of its keys, or of its rows if it has no key, must be the one that the last poll
left: another one means that another application has inserted or deleted rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from psycopg import sql

from tidemark.clock import Lsn
from tidemark.errors import ObjectMissing, TargetDiffers
from tidemark.logs import fields
from tidemark.pipeline.copy.parts import Part, parts_of
from tidemark.pipeline.copy.reading import PartQuery, pages_of
from tidemark.pipeline.poll.digests import Among, Digests, Text, digests_of, read_digests
from tidemark.pipeline.poll.horizon import Horizon
from tidemark.pipeline.poll.reconcile import DifferingRanges, SourceTable
from tidemark.pipeline.poll.snapshot_session import PollSnapshot, open_poll_snapshot
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session, Timeouts
from tidemark.postgres.sqlstate import Endpoint, translated
from tidemark.reads.digests import RowDigest
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.selection import Selection
from tidemark.schema.table import Table
from tidemark.spark import TasksStopped
from tidemark.storage.fail_points import CloneFailPoint, fail_point
from tidemark.target.columns import CarriedTable, CopyServer, carried_columns, read_server, require_encodings
from tidemark.target.compare.catalogs import ServerTables, compared_columns, require_same_texts
from tidemark.target.copying import has_own_rows
from tidemark.target.differences import listed
from tidemark.target.merging import RESTORE, MergedCounts, StagedCounts, merge_contents, merge_rows
from tidemark.target.obstacles import require_direct, require_no_obstacles
from tidemark.target.pipe import SourceSide, pipe_query
from tidemark.target.poll_statements import DELETED, INSERTED, UPDATED, PollStage, key_texts
from tidemark.target.script import Script
from tidemark.target.source_tables import SourceWatch, read_selected, require_unaltered
from tidemark.target.state import ClonedTable, CloneRecord, CloneState, PollWatermark
from tidemark.target.tables import FoundTable, TargetTable, read_tables, target_table

_READING = Timeouts(statement_s=0, idle_in_transaction_s=0)
_WRITING = Timeouts(lock_s=60.0, statement_s=0, idle_in_transaction_s=0)
_NOTHING = RowDigest()
_LOGGER = logging.getLogger("tidemark.target")


@dataclass(frozen=True, slots=True)
class TargetPollOptions:
    """The source, the target, the name of the clone there, the selected tables, and the number of parallel reads."""

    source: Dsn
    target: Dsn
    name: str
    selection: Selection
    jobs: int = 4


@dataclass(frozen=True, slots=True)
class TargetPolled:
    """The position of the source that a poll has read, the number of tables, and the rows that it has written."""

    lsn: Lsn
    tables: int
    merged: MergedCounts


@dataclass(frozen=True, slots=True)
class _Pair:
    """A table of the source as the snapshot shows it, how it is carried, and the table of that name at the target."""

    carried: CarriedTable
    target: TargetTable
    parts: tuple[Part, ...]
    text: Text
    state: ClonedTable

    @property
    def fingerprint(self) -> Fingerprint:
        return self.carried.fingerprint

    @property
    def label(self) -> str:
        return self.carried.label

    @property
    def whole_part(self) -> Part:
        return Part(self.fingerprint.oid, 0, None, sum(part.size_bytes for part in self.parts))

    @property
    def key_names(self) -> list[str]:
        return [self.target.columns[at].name for at in self.target.key]

    def is_as_left(self, own: RowDigest) -> bool:
        """Whether the table at the target is as the last poll left it, or has as many rows as the copy left."""
        left = self.state.digest
        return own == left if left is not None else own.rows == self.state.rows


@dataclass(frozen=True, slots=True)
class _TargetRows:
    """Hashes that a query returns at the target."""

    session: Session
    label: str
    hashes: sql.Composed

    def digests(self, bits: int, among: Among) -> Digests:
        return digests_of([read_digests(self.session, self.label, self.hashes, bits, among)])

    def digest(self) -> RowDigest:
        return self.digests(0, None).whole()


class TargetPoller:
    """Polls by one session at the target, which has the lock of the clone; a lost session is replaced."""

    def __init__(self, options: TargetPollOptions, stopping: Callable[[], bool] = lambda: False) -> None:
        self._options, self._stopping = options, stopping
        self._watch = SourceWatch(options.selection)
        self._opened: tuple[Session, CloneRecord] | None = None
        self._last: PollSnapshot | None = None

    def step(self) -> TargetPolled | None:
        """Run one poll; return None if nothing became visible at the source since the last one."""
        try:
            session, record = self._connected()
            with open_poll_snapshot(self._options.source) as seen:
                if self._last is not None and seen.is_same(self._last) and self._is_recorded(record, self._last):
                    return None
                try:
                    polled = self._polled(session, record, seen)
                except ObjectMissing:
                    seen.require_held()
                    raise
            self._last = seen
        except BaseException:
            self.close()
            raise
        return polled

    def close(self) -> None:
        """Close the session at the target."""
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None
        self._last = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()

    def _connected(self) -> tuple[Session, CloneRecord]:
        if self._opened is None:
            session = Session.open(self._options.target, "poll", _WRITING, server=Endpoint.TARGET)
            self._opened = session, CloneRecord(session, self._options.name)
            require_direct(session)
            self._opened[1].lock()
        return self._opened

    def _is_recorded(self, record: CloneRecord, last: PollSnapshot) -> bool:
        """Whether the target has the last poll: a crash can lose it, and a standby that is promoted may not have it."""
        return record.watermark == _watermark(last)

    def _polled(self, session: Session, record: CloneRecord, seen: PollSnapshot) -> TargetPolled:
        after = _watermark(seen)
        with session.transaction(read_only=False):
            state = record.existing(seen.identity)
            pairs = self._pairs(session, state, seen)
            poll = _Poll(session, seen, state, self._options.jobs, self._stopping)
            digests = poll.merged(pairs)
            seen.wait_until_durable()
            fail_point(CloneFailPoint.POLL_WRITTEN)
            record.set_polled(state.watermark, after, digests)
        fail_point(CloneFailPoint.POLL_COMMITTED)
        return TargetPolled(seen.lsn, len(pairs), poll.total)

    def _pairs(self, session: Session, state: CloneState, seen: PollSnapshot) -> list[_Pair]:
        """The tables of the clone that have rows, at both servers."""
        there, here = ServerTables.read(seen.session), ServerTables.read(session)
        require_same_texts(there, here)
        definitions = read_selected(seen.session, self._options.selection, there.catalog)
        require_unaltered(state.tables, definitions)
        self._watch.name_new(state.tables, definitions)
        servers = read_server(seen.session), read_server(session)
        require_encodings(*servers)
        wanted = {oid: definitions[oid] for oid in state.tables if has_own_rows(definitions[oid])}
        names = [(each.schema, each.name) for each in wanted.values()]
        require_no_obstacles(session, names)
        found = read_tables(session, names)
        tables = {(table.schema, table.name): table for table in here.catalog.tables}
        utf8 = seen.session.stores_utf8 and session.stores_utf8
        pairs = []
        for oid, definition in wanted.items():
            name = (definition.schema, definition.name)
            both = there.catalog.by_oid[oid], tables.get(name)
            parts = parts_of(oid, *pages_of(seen.session, oid), self._options.jobs)
            pairs.append(_paired(definition, both, found.get(name), servers, parts, state.tables[oid], utf8=utf8))
        return pairs


def _watermark(seen: PollSnapshot) -> PollWatermark:
    return PollWatermark(seen.snapshot, seen.lsn, seen.identity.timeline)


def _paired(
    definition: Fingerprint,
    tables: tuple[Table, Table | None],
    found: FoundTable | None,
    servers: tuple[CopyServer, CopyServer],
    parts: tuple[Part, ...],
    state: ClonedTable,
    *,
    utf8: bool,
) -> _Pair:
    one, other = tables
    carried = carried_columns(definition, other, *servers, with_key=True)
    assert other is not None  # noqa: S101 - or it is not carried
    target = target_table(definition, [column.name for column in carried.columns], found)
    compared = {column.name: column for column in compared_columns(one, other)[0]}
    digested = tuple(compared[target.columns[at].name] for at in target.key or target.written)
    integer = len(target.key) == 1 and pa.types.is_integer(digested[0].type)
    return _Pair(carried, target, parts, Text(digested, utf8, integer), state)


class _Poll:
    """One poll, in the open transaction of the target."""

    def __init__(
        self, session: Session, seen: PollSnapshot, state: CloneState, jobs: int, stopping: Callable[[], bool]
    ) -> None:
        self._session, self._seen, self._state = session, seen, state
        self._jobs, self._stopping = jobs, stopping
        self._script = Script(session)
        self._numbers = count(1)
        self.total = MergedCounts()

    def merged(self, pairs: list[_Pair]) -> Mapping[int, RowDigest]:
        """Write the changes of all tables; return the digests of those that are not as recorded."""
        for last in {self._watermark(pair) for pair in pairs}:
            if last is not None:
                self._seen.unfollowable(last)  # raises an error if a standby is behind the target
        digests = {}
        with ThreadPoolExecutor(1, "digest") as reading:
            sources = [
                SourceTable(pair.fingerprint, pair.parts, pair.text, self._seen.shared, self._jobs) for pair in pairs
            ]
            running = [reading.submit(source.digest) for source in sources]
            try:
                for pair, source, theirs in zip(pairs, sources, running, strict=True):
                    if self._stopping():
                        raise TasksStopped
                    self._merge(pair, source, theirs.result())
                    if theirs.result() != pair.state.digest:
                        digests[pair.fingerprint.oid] = theirs.result()
            finally:
                reading.shutdown(cancel_futures=True)
        return digests

    def _merge(self, pair: _Pair, source: SourceTable, theirs: RowDigest) -> None:
        stage = PollStage(pair.target, next(self._numbers), pair.text)
        with self._session.connection.transaction(force_rollback=True):  # no lock is kept on tables without changes
            own = self._digest(pair, stage.hashes())
        merging = _Merging(pair, stage, source, own, theirs)
        as_left = pair.is_as_left(own)
        with translated(f"applying a poll of {pair.label}", Endpoint.TARGET):
            if not as_left and not pair.carried.target_unlogged:
                raise self._difference(merging)
            if pair.target.key:  # a crash of the target empties an unlogged table: it is filled again
                self._merge_rows(merging, whole=not as_left)
            else:
                self._merge_contents(merging)

    def _merge_rows(self, merging: _Merging, *, whole: bool) -> None:
        pair, stage = merging.pair, merging.stage
        received = self._received(pair, stage, None if whole else self._condition(pair))
        if not received and merging.own == merging.theirs:
            return
        if not received and not merging.theirs.rows:
            self._delete_all(merging)
            return
        inserted = self._stage_changed(merging, received)
        if merging.own + inserted != merging.theirs:
            differing = self._stage_gone(merging, inserted)
            gone = self._digest(pair, stage.staged_hashes(DELETED))
            if merging.own + inserted - gone != merging.theirs:
                raise self._lacking(merging, differing)
        counts = self._counts(stage)
        staged = StagedCounts(counts.get(INSERTED, 0), counts.get(UPDATED, 0), 0, counts.get(DELETED, 0))
        merge_rows(self._script, stage.stage, staged, self.total)
        self._script.run()

    def _stage_changed(self, merging: _Merging, received: int) -> RowDigest:
        """Create the stage and stage the received rows that differ; return the digest of those to insert."""
        stage = merging.stage
        self._run(stage.stage.created(once=True))
        changed = self._run(stage.changed()) if received else 0
        return self._digest(merging.pair, stage.staged_hashes(INSERTED)) if changed else _NOTHING

    def _stage_gone(self, merging: _Merging, inserted: RowDigest) -> DifferingRanges:
        """Stage the deletion of rows that the source does not have; return the ranges in which keys differ."""
        pair, stage = merging.pair, merging.stage
        rows = _TargetRows(self._session, pair.label, stage.hashes(inserted=True))
        differing = merging.source.differing(rows, max(merging.theirs.rows, merging.own.rows + inserted.rows))
        self._run(stage.hashes_created())
        occupied = differing.all[1] - differing.emptied[1]
        if occupied:
            shown = (pair.text.hash_at_source(),)
            condition = pair.text.in_range(differing.bits, occupied)
            query = PartQuery(pair.fingerprint, pair.whole_part, ("h",), shown, condition)
            with self._source() as source:
                pipe_query(source, self._session, pair.carried, query, stage.hashes_copied)
        self._run(stage.gone(differing.all))
        return differing

    def _merge_contents(self, merging: _Merging) -> None:
        pair, stage, own, theirs = merging.pair, merging.stage, merging.own, merging.theirs
        if own == theirs:
            return
        if not theirs.rows:
            self._delete_all(merging)
            return
        rows = _TargetRows(self._session, pair.label, stage.hashes())
        ranges = merging.source.differing(rows, max(theirs.rows, own.rows)).all
        if not self._received(pair, stage, pair.text.in_range(*ranges)):
            self._run(stage.received_created())
        self._run(stage.stage.created(once=True))
        self._run(stage.contents(ranges))
        new, gone = (self._digest(pair, stage.staged_hashes(each)) for each in (INSERTED, DELETED))
        if own + new - gone != theirs:
            raise _unexplained(pair, theirs)
        merge_contents(self._script, stage.stage, gone.rows, new.rows, self.total)
        self._script.run()

    def _delete_all(self, merging: _Merging) -> None:
        """Delete all rows. A TRUNCATE would also empty the table for readers with an earlier snapshot."""
        self.total.deleted += self._run(merging.stage.deleted_all())

    def _watermark(self, pair: _Pair) -> PollWatermark | None:
        return self._state.watermark or pair.state.watermark

    def _condition(self, pair: _Pair) -> sql.Composed | None:
        """The condition for rows that may have changed; None if that is not known."""
        last = self._watermark(pair)
        why = self._seen.unfollowable(last) if last is not None else "it was not polled before"
        if last is None or why is not None:
            _LOGGER.info("table %s: reading all rows: %s", pair.label, why, extra=fields(table=pair.label, reason=why))
            return None
        horizon = Horizon.between(last.snapshot, self._seen.snapshot)
        return horizon.condition() if horizon is not None else None

    def _received(self, pair: _Pair, stage: PollStage, condition: sql.Composed | None) -> int:
        """Receive the rows of the source that meet a condition; return their number, 0 if there is no table of them."""

        def into() -> sql.Composed:
            self._run(stage.received_created())
            return stage.received_copied(binary=pair.carried.binary)

        with self._source() as source:
            query = pair.carried.query(pair.whole_part, condition)
            return pipe_query(source, self._session, pair.carried, query, into)

    @contextmanager
    def _source(self) -> Iterator[SourceSide]:
        shared = self._seen.shared
        with shared.session("poll", _READING) as session:
            yield SourceSide(session, shared.dsn)

    def _digest(self, pair: _Pair, hashes: sql.Composed) -> RowDigest:
        return _TargetRows(self._session, pair.label, hashes).digest()

    def _counts(self, stage: PollStage) -> dict[str, int]:
        return dict(self._session.connection.execute(stage.operations()).fetchall())

    def _run(self, statement: sql.Composed) -> int:
        return self._session.connection.execute(statement).rowcount

    def _difference(self, merging: _Merging) -> TargetDiffers:
        """Return the error for a table that is not as it was left; with the keys that only one server has."""
        pair, left = merging.pair, merging.pair.state.rows
        found = f"{merging.own.rows:,} rows" if merging.own.rows != left else "other rows"
        message = f"table {pair.label} at the target has {found}, and the last poll or the copy left {left:,}"
        if not pair.target.key:
            return TargetDiffers(message, RESTORE)
        inserted = self._stage_changed(merging, self._received(pair, merging.stage, self._condition(pair)))
        missed = self._missed(merging, self._stage_gone(merging, inserted))
        more = self._session.connection.execute(merging.stage.deleted_keys()).fetchall()
        names = ", ".join(pair.key_names)
        message += f"; it has no row with ({names}) = {listed(missed)}" if missed else ""
        message += f"; the source has no row with ({names}) = {listed(more)}" if more else ""
        return TargetDiffers(message, RESTORE)

    def _lacking(self, merging: _Merging, differing: DifferingRanges) -> TargetDiffers:
        """Return the error for rows that the source has not changed and the target does not have."""
        pair, missed = merging.pair, self._missed(merging, differing)
        if not missed:
            return _unexplained(pair, merging.theirs)
        return TargetDiffers(
            f"table {pair.label} at the target has no row with ({', '.join(pair.key_names)}) = {listed(missed)}, "
            "and the source did not change it since the last poll",
            RESTORE,
        )

    def _missed(self, merging: _Merging, differing: DifferingRanges) -> list[tuple[Any, ...]]:
        """The keys of some rows that the source has not changed and the target does not have."""
        pair = merging.pair
        found = self._session.connection.execute(merging.stage.missed(differing.all)).fetchall()
        if not found:
            return []
        query = sql.SQL("select {} from only {} where {} limit 6").format(
            sql.SQL(", ").join(key_texts(pair.key_names)),
            pair.carried.name,
            pair.text.of_hashes([each for (each,) in found]),
        )
        with self._source() as source, translated(f"reading {pair.label}"):
            return source.session.connection.execute(query).fetchall()


@dataclass(frozen=True, slots=True)
class _Merging:
    """A table that is merged: its digests at the target and at the source."""

    pair: _Pair
    stage: PollStage
    source: SourceTable
    own: RowDigest
    theirs: RowDigest


def _unexplained(pair: _Pair, theirs: RowDigest) -> TargetDiffers:
    return TargetDiffers(
        f"table {pair.label} at the target would not have the {theirs.rows:,} rows of the source after this poll",
        RESTORE,
    )
