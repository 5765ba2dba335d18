"""Comparison of the tables of two servers, in one snapshot of each, by digests that each server computes itself.

Values are compared as text under the settings that a session pins: numeric 1.0 and 1.00 differ, an enum is compared by
its label and a `regclass` by the name of the table. Definitions are compared only as far as rows depend on them: which
tables and columns exist, which tables are partitioned, and which inherit from which. Types are not compared.

A table without a key is compared as a multiset of rows. A table is compared without the tables that inherit from it,
which are compared as tables of their own.

`compare_servers` reads in two snapshots that the caller holds. For servers that do not change, `open_snapshots` takes
them. For a clone that follows its source, the caller takes both at one LSN.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from tidemark.clock import Snapshot
from tidemark.errors import InvalidValue, NotAnswerable, TidemarkError
from tidemark.mirror.compare.digest import WHOLE, LocatedDigest
from tidemark.mirror.compare.narrowing import Difference, Differing, FoundDifferences, Verdict, narrowed
from tidemark.mirror.compare.server_side import ComparedTable, ServerSide, reading
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.identity import is_same_database
from tidemark.postgres.requirements import Mode, require
from tidemark.postgres.requirements.reading import version_of
from tidemark.postgres.session import Session, Timeouts
from tidemark.postgres.shared import SharedSnapshot
from tidemark.postgres.sqlstate import Endpoint
from tidemark.reads.digests import RowDigest
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.selection import Pattern
from tidemark.schema.table import Persistence, RelationKind, Table
from tidemark.target.compare.catalogs import (
    ServerTables,
    compared_columns,
    definition_differences,
    paired,
    require_same_texts,
)
from tidemark.target.compare.sequence_values import ComparedSequence, read_sequences

_UNLOGGED = "an unlogged table, whose changes are not in the WAL: it is copied again when the clone is completed"


@dataclass(frozen=True, slots=True)
class ServerCompareOptions:
    """Options of a comparison: `sample` of ten thousand rows are compared, `limit` differences reported per table.

    With `follows`, the target is a clone that follows the source: unlogged tables cannot be compared.
    """

    sample: int = WHOLE
    parallel: int = 2
    timeout_s: float = 3600.0
    limit: int = 100
    values: bool = False
    sequences: bool = False
    follows: bool = False

    @property
    def timeouts(self) -> Timeouts:
        """The timeouts of all sessions of the comparison."""
        return Timeouts(statement_s=self.timeout_s, idle_in_transaction_s=0)


@dataclass(frozen=True, slots=True)
class ComparedObject:
    """A table or sequence: how its definition and its rows differ, or the reason why it was not compared.

    The digests are of the columns that both servers have.
    """

    name: str
    verdict: Verdict
    seconds: float
    source: RowDigest | None = None
    target: RowDigest | None = None
    definition: tuple[str, ...] = ()
    found: FoundDifferences | None = None
    reason: str = ""
    kind: str = "table"


@contextmanager
def open_snapshots(source: Dsn, target: Dsn, timeout_s: float) -> Iterator[tuple[SharedSnapshot, SharedSnapshot]]:
    """Take a snapshot of each server and hold both; refuse if both are the same database."""
    timeouts = Timeouts(statement_s=timeout_s, idle_in_transaction_s=0)
    with ExitStack() as held:
        one, other = (
            held.enter_context(Session.open(dsn, "compare", timeouts, server=server))
            for dsn, server in ((source, Endpoint.SOURCE), (target, Endpoint.TARGET))
        )
        for session in (one, other):
            require([version_of(session)], Mode.POLL)
        if is_same_database(one, other):
            raise InvalidValue(
                f"the source and the target are the same database, {target}",
                "Name another database or another server as TARGET.",
            )
        yield _shared(source, one), _shared(target, other)


def _shared(dsn: Dsn, session: Session) -> SharedSnapshot:
    session.begin()
    (text,) = session.row("select pg_current_snapshot()::text")
    return SharedSnapshot.of(dsn, session, Snapshot.parse(text))


def compare_servers(
    source: SharedSnapshot,
    target: SharedSnapshot,
    tables: Sequence[Pattern] = (),
    options: ServerCompareOptions | None = None,
) -> Iterator[ComparedObject]:
    """Compare the tables that match a pattern, or all; yield each result when it is complete, in the order of names."""
    options = options or ServerCompareOptions()
    comparison = _TableComparison.of(source, target, options)
    pairs = paired(comparison.there, comparison.here, tables)
    with ThreadPoolExecutor(options.parallel) as working, ThreadPoolExecutor(options.parallel) as digesting:
        futures = [working.submit(comparison.compared, *pair, digesting) for pair in pairs]
        try:
            for future in futures:
                if (result := future.result()) is not None:
                    yield result
        finally:
            working.shutdown(cancel_futures=True)
    if options.sequences:
        yield from _sequences(source, target, tables, options.timeouts)


@dataclass(frozen=True, slots=True)
class _TableComparison:
    """Both snapshots and the tables in them."""

    source: SharedSnapshot
    target: SharedSnapshot
    options: ServerCompareOptions
    there: ServerTables
    here: ServerTables

    @classmethod
    def of(cls, source: SharedSnapshot, target: SharedSnapshot, options: ServerCompareOptions) -> _TableComparison:
        sides = []
        for snapshot in (source, target):
            with snapshot.session("compare", options.timeouts) as session:
                sides.append(ServerTables.read(session))
        require_same_texts(*sides)
        return cls(source, target, options, *sides)

    def compared(self, one: Table | None, other: Table | None, digesting: ThreadPoolExecutor) -> ComparedObject | None:
        """Compare a table; return None for a partitioned table that is equal, because its partitions have the rows."""
        begin = time.monotonic()
        if one is None or other is None:
            (table,) = (each for each in (one, other) if each is not None)
            definition: tuple[str, ...] = (f"exists only at {self.here.server if one is None else self.there.server}",)
            return ComparedObject(table.qualified, Verdict.DIFFERENT, 0.0, definition=definition)
        definition = tuple(definition_differences(self.there, self.here, one, other))
        if RelationKind.PARTITIONED in (one.kind, other.kind):
            different = ComparedObject(one.qualified, Verdict.DIFFERENT, 0.0, definition=definition)
            return different if definition else None
        try:
            if self.options.follows and one.persistence is Persistence.UNLOGGED:
                raise NotAnswerable(_UNLOGGED)
            done = self._contents(one, other, digesting)
        except TidemarkError as error:
            done = ComparedObject(one.qualified, Verdict.NOT_COMPARED, 0.0, reason=str(error))
        verdict = Verdict.DIFFERENT if definition else done.verdict
        return replace(done, verdict=verdict, definition=definition, seconds=time.monotonic() - begin)

    def _contents(self, one: Table, other: Table, digesting: ThreadPoolExecutor) -> ComparedObject:
        """Compare the rows of a table by digest, and find those that differ."""
        self.there.require_readable(one)
        self.here.require_readable(other)
        columns, key = compared_columns(one, other)
        source, target = (
            ComparedTable(Fingerprint.of(table, ()), columns, key, self.options.sample) for table in (one, other)
        )
        running = digesting.submit(self._whole, self.target, target)
        try:
            totals = self._whole(self.source, source), running.result()
        finally:
            running.exception()
        digests = totals[0].digest, totals[1].digest
        if digests[0] == digests[1]:
            return ComparedObject(one.qualified, Verdict.EQUAL, 0.0, *digests)
        with self._reading(self.source, source) as there, self._reading(self.target, target) as here:
            found = narrowed(there, here, totals, self.options.limit, values=self.options.values)
            found = replace(found, differing=tuple(_with_columns(found.differing, there, here)))
        return ComparedObject(one.qualified, Verdict.DIFFERENT, 0.0, *digests, found=found)

    def _whole(self, snapshot: SharedSnapshot, table: ComparedTable) -> LocatedDigest:
        with self._reading(snapshot, table) as side:
            return side.whole()

    @contextmanager
    def _reading(self, snapshot: SharedSnapshot, table: ComparedTable) -> Iterator[ServerSide]:
        with reading(snapshot, self.options.timeouts, table.fingerprint) as session:
            yield ServerSide(session, table)


def _with_columns(differing: Sequence[Differing], there: ServerSide, here: ServerSide) -> Iterator[Differing]:
    """Yield the differences, each with the columns that differ if both servers have a row of the key."""
    keys = [row.key for row in differing if row.how is Difference.OTHER and row.key is not None]
    ours, theirs = (side.column_hashes(keys) if keys else {} for side in (there, here))
    names = [column.name for column in there.table.columns]
    for row in differing:
        both = zip(names, ours.get(row.key, ()), theirs.get(row.key, ()), strict=False)
        yield replace(row, columns=tuple(name for name, one, other in both if one != other))


def _sequences(
    source: SharedSnapshot, target: SharedSnapshot, patterns: Sequence[Pattern], timeouts: Timeouts
) -> Iterator[ComparedObject]:
    """Compare the last values of all sequences. These are the current ones, not those of the snapshots."""
    sides = []
    for snapshot in (source, target):
        with snapshot.session("compare", timeouts) as session:
            sides.append(read_sequences(session, patterns))
    there, here = sides
    for name in sorted(there.keys() | here.keys()):
        one, other = there.get(name), here.get(name)
        yield _compared_sequence(".".join(name), one, other)


def _compared_sequence(name: str, one: ComparedSequence | None, other: ComparedSequence | None) -> ComparedObject:
    equal = ComparedObject(name, Verdict.EQUAL, 0.0, kind="sequence")
    if one is None or other is None:
        only = Endpoint.TARGET if one is None else Endpoint.SOURCE
        return replace(equal, verdict=Verdict.DIFFERENT, definition=(f"exists only at {only}",))
    if reason := one.reason or other.reason:
        return replace(equal, verdict=Verdict.NOT_COMPARED, reason=reason)
    if one != other:
        definition = (f"{one} at the source; {other} at the target",)
        return replace(equal, verdict=Verdict.DIFFERENT, definition=definition)
    return equal
