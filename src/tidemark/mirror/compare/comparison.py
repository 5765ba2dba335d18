"""Comparison of tables of a mirror with the source: by digests, in one snapshot, computed in parallel on both sides."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.errors import PySparkException

from tidemark.clock import Boundary
from tidemark.errors import InvalidValue, TidemarkError
from tidemark.lake.columns import TEXT_SUFFIX
from tidemark.lake.polls import Poll
from tidemark.mirror.compare.digest import WHOLE
from tidemark.mirror.compare.mirror_side import MirrorSide
from tidemark.mirror.compare.narrowing import FoundDifferences, Verdict, narrowed
from tidemark.mirror.compare.polled import PolledSnapshot
from tidemark.mirror.compare.server_side import ComparedTable, ServerSide
from tidemark.mirror.compare.source_snapshot import SourceSnapshot, StreamedSnapshot
from tidemark.mirror.failures import explained
from tidemark.mirror.mirror import Mirror
from tidemark.mirror.moment import Moment
from tidemark.postgres.dsn import Dsn
from tidemark.reads.canonical import ComparedColumn
from tidemark.reads.digests import RowDigest
from tidemark.reads.shown import shown_names
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.history import TableHistory, types_of
from tidemark.values.types import Types, decoding_of


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """Options of a comparison: `sample` of ten thousand rows are compared, `limit` differences reported per table.

    If `wait_s` is None, the wait for the snapshot has a default limit, which is longer for a polled mirror.
    """

    sample: int = WHOLE
    parallel: int = 2
    timeout_s: float = 3600.0
    wait_s: float | None = None
    limit: int = 100
    values: bool = False


@dataclass(frozen=True, slots=True)
class Compared:
    """One table: the digests of both sides and the differences, or the reason why it was not compared.

    A table from which others inherit is compared twice: with their rows, and `only` its own rows.
    """

    table: str
    verdict: Verdict
    seconds: float
    source: RowDigest | None = None
    mirror: RowDigest | None = None
    found: FoundDifferences | None = None
    reason: str = ""
    only: bool = False


@dataclass(frozen=True, slots=True)
class _Subject:
    """A table to compare, alone or with the rows of its children, and whether it has children."""

    history: TableHistory
    children: bool = False
    is_parent: bool = False

    @property
    def name(self) -> str:
        return self.history.fingerprint.qualified

    @property
    def only(self) -> bool:
        return self.is_parent and not self.children


class Comparison:
    """A comparison of tables in one snapshot of the source.

    `boundary`, and for a polled mirror the poll `observed`, are set before `run` yields the first table.
    """

    def __init__(self, mirror: Mirror, source: Dsn, options: CompareOptions) -> None:
        self._mirror, self._options = mirror, options
        kind = StreamedSnapshot if mirror._opened.last_poll is None else PolledSnapshot
        self._held: SourceSnapshot = kind(source, mirror, options.timeout_s)
        self.boundary: Boundary | None = None
        self.observed: Poll | None = None

    def run(self, names: Sequence[str] = ()) -> Iterator[Compared]:
        """Compare these tables, or all of them; yield each result when it is complete, in the order of the tables."""
        with self._held as held:
            held.tables = names or None
            moment = held.moment(self._options.wait_s)
            self.boundary, self.observed = moment.boundary, moment.observed
            with moment, ThreadPoolExecutor(self._options.parallel) as tables, ThreadPoolExecutor() as sides:
                futures = [tables.submit(self._compared, moment, each, sides) for each in _chosen(moment, names)]
                try:
                    for future in futures:
                        yield future.result()
                finally:
                    tables.shutdown(cancel_futures=True)

    def _compared(self, moment: Moment, subject: _Subject, sides: ThreadPoolExecutor) -> Compared:
        begin, name, only = time.monotonic(), subject.name, subject.only
        try:
            fingerprint, frame = moment._exact(subject.history, only=not subject.children)
            members = moment._members(subject.history) if subject.children else (fingerprint,)
            table = self._table(fingerprint, frame.columns, children=subject.children)
            here = MirrorSide(frame, table)
            digesting = sides.submit(here.whole)
            with self._there(members, table) as there:
                source = there.whole()
            mirror = digesting.result()
            digests = source.digest, mirror.digest
            if source.digest == mirror.digest:
                return Compared(name, Verdict.EQUAL, time.monotonic() - begin, *digests, only=only)
            with self._there(members, table) as there:
                found = narrowed(there, here, (source, mirror), self._options.limit, values=self._options.values)
            return Compared(name, Verdict.DIFFERENT, time.monotonic() - begin, *digests, found, only=only)
        except TidemarkError as error:
            return Compared(name, Verdict.NOT_COMPARED, time.monotonic() - begin, reason=str(error), only=only)
        except PySparkException as error:
            reason = explained(error).message
            return Compared(name, Verdict.NOT_COMPARED, time.monotonic() - begin, reason=reason, only=only)

    @contextmanager
    def _there(self, members: Sequence[Fingerprint], table: ComparedTable) -> Iterator[ServerSide]:
        with self._held.seeing(*members) as session:
            yield ServerSide(session, table)

    def _table(self, fingerprint: Fingerprint, there: Sequence[str], *, children: bool) -> ComparedTable:
        lake = self._mirror._opened.lake
        types = Types(types_of(lake.tables().values()), lake.version_num)
        columns = {
            column.attnum: ComparedColumn(
                column.name,
                name,
                decoding_of(column.type.oid, column.typmod, types).arrow,
                name + TEXT_SUFFIX if name + TEXT_SUFFIX in there else None,
            )
            for column, name in shown_names(fingerprint.columns, lake.version_num)
        }
        key = () if children else tuple(columns[attnum] for attnum in fingerprint.key)
        return ComparedTable(fingerprint, tuple(columns.values()), key, self._options.sample, children)


def _chosen(moment: Moment, names: Sequence[str]) -> Iterator[_Subject]:
    """Yield the tables with rows of their own: partitions in place of their root, parents with and without children."""
    leaves = [leaf for name in names for leaf in moment._leaves(name)] if names else moment._leaves()
    if not leaves:
        raise InvalidValue("no table to compare", "Run `tidemark status LAKE`, which lists the tables.")
    for leaf in {leaf.fingerprint.oid: leaf for leaf in leaves}.values():
        is_parent = moment._is_parent(leaf)
        if is_parent:
            yield _Subject(leaf, children=True, is_parent=True)
        yield _Subject(leaf, is_parent=is_parent)
