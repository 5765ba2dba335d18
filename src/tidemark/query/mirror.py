"""The mirror as one reads it: `tidemark.open(lake).at(lsn).table("public.orders")`.

A handle stands at one boundary, and all it gives stands there, however far the mirror has moved on. Handles know
nothing of each other. What they give are ordinary DataFrames, on a Spark session of one's own or on one that is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tidemark.clock import Boundary, Lsn
from tidemark.decode.types import Types
from tidemark.errors import InvalidValue, LogTrimmed, NotAnswerable
from tidemark.lake.columns import COMMIT_VERSION
from tidemark.lake.history import Span, TableHistory
from tidemark.lake.lake import Lake
from tidemark.lake.layout import columns_of, fitting, layout_of
from tidemark.lake.registers import read_times
from tidemark.log.mapped import descriptions
from tidemark.log.slices import plan
from tidemark.query.changes import file_changes, guarded, no_changes, seen
from tidemark.query.contents import Facts, contents
from tidemark.query.names import find, names_at, parsed
from tidemark.query.shown import ShownTable, shown_table
from tidemark.query.snapshot import ChangeFiles, LakeView, both, facts_of, log_reader
from tidemark.query.statement import bind
from tidemark.query.tail import Tail, TailWork, tail_of
from tidemark.query.times import lsn_at
from tidemark.schema.table import PgType
from tidemark.spark import SparkOptions, require_pinned, spark_session

LATEST = "latest"
SLICE_BYTES = 16 << 20
_ATTEMPTS = 3


class Mirror:
    """A lake that can be read."""

    def __init__(self, lake: Path, spark: SparkSession) -> None:
        require_pinned(spark)
        self.lake = Lake.open(lake)
        self.spark = spark
        self._reader = log_reader(self.lake)

    def at(self, when: str | Lsn | datetime | Boundary = LATEST) -> Moment:
        """A handle at a position: an LSN, a time, a Boundary, or the latest at which all is known."""
        view = self.view()
        boundary = when if isinstance(when, Boundary) else Boundary(self._lsn(when, view))
        view.require(boundary)
        return Moment(self, boundary)

    def table(self, name: str) -> DataFrame:
        """A table as it was latest."""
        return self.at().table(name)

    def sql(self, statement: str) -> DataFrame:
        """A query, every table as it was latest."""
        return self.at().sql(statement)

    def changes(self, name: str, start: str | Lsn, end: str | Lsn = LATEST) -> DataFrame:
        """What was changed in a table by commits from `start` to `end`, both included."""
        moment = self.at(end)
        return moment.changes(name, start)

    def view(self) -> LakeView:
        """The lake and the log as they are now."""
        return LakeView(self.lake, self._reader)

    def _lsn(self, when: str | Lsn | datetime, view: LakeView) -> Lsn:
        if isinstance(when, Lsn):
            return when
        if isinstance(when, datetime):
            return self._lsn_at(when, view)
        if when == LATEST:
            return view.answerable
        if "/" in when:
            return Lsn.parse(when)
        try:
            return self._lsn_at(datetime.fromisoformat(when), view)
        except ValueError as error:
            raise InvalidValue(f"not a position: {when!r}", "latest, an LSN such as 16/B374D848, or a time") from error

    def _lsn_at(self, time: datetime, view: LakeView) -> Lsn:
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        if view.reader is None:
            raise NotAnswerable(f"the log at {self.lake.log} cannot be reached, and it knows the times", "an LSN")
        times = read_times(self.lake.path)["source_time"].drop_null()
        return lsn_at(time, view.reader.commits(), view.answerable, times[-1].as_py() if len(times) else None)


class Moment:
    """One boundary. Every table and every query given by it stands there."""

    def __init__(self, mirror: Mirror, boundary: Boundary) -> None:
        self.boundary = boundary
        self._mirror = mirror
        self._histories = mirror.lake.tables()
        self._names = names_at(self._histories.values(), boundary.lsn)

    @property
    def lsn(self) -> Lsn:
        """Where it stands."""
        return self.boundary.lsn

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables there were, as schema.table."""
        return tuple(sorted(f"{schema}.{name}" for schema, name in self._names))

    def table(self, name: str) -> DataFrame:
        """The rows of a table there."""
        return self._table(parsed(name))

    def sql(self, statement: str) -> DataFrame:
        """The answer to a query in Spark's SQL, every table of it as it was there."""
        bound = bind(statement, list(self._names))
        frames: dict[str, Any] = {placeholder: self._table(key) for placeholder, key in bound.tables.items()}
        return self._mirror.spark.sql(bound.text, **frames)

    def changes(self, name: str, start: str | Lsn) -> DataFrame:
        """What was changed in a table by the commits from `start` up to here, in order of commit and ordinal.

        Columns are the table's as it is here. A value that was not sent because it did not change is null, and
        `_unchanged` names its column by attnum.
        """
        history = find(self._names, parsed(name))
        span = history.at(self.lsn)
        first = Lsn.parse(start) if isinstance(start, str) else start
        if first < span.base.lsn and span.base != history.spans()[0].base:
            raise NotAnswerable(
                f"{name} was begun anew at {span.base.lsn}: what changed between {first} and there is not known whole",
                f"changes from {span.base.lsn} on",
            )
        rows, shown, _ = self._changes(history, span)
        rows = rows.where(F.col(COMMIT_VERSION) >= first.value)
        return guarded(rows, shown)

    def _table(self, key: tuple[str, str]) -> DataFrame:
        history = find(self._names, key)
        span = history.at(self.lsn)
        hidden = sorted(lsn for lsn in self.boundary.excluded if span.base.sees(lsn))
        if hidden:
            raise NotAnswerable(
                f"{'.'.join(key)} began at {span.base.lsn} with what was committed at {hidden[0]}, "
                "which this boundary does not see",
                "a later snapshot",
            )
        rows, shown, facts = self._changes(history, span)
        return guarded(contents(rows, shown.shape, facts), shown)

    def _changes(self, history: TableHistory, span: Span) -> tuple[DataFrame, ShownTable, Facts]:
        """All changes since the table began that this boundary sees, and what they may be like.

        What was in the log's tail a moment ago may be gone from there by now: then the lake has it.
        """
        for _ in range(_ATTEMPTS):
            with suppress(LogTrimmed):
                return self._changes_now(history, span)
        return self._changes_now(history, span)

    def _changes_now(self, history: TableHistory, span: Span) -> tuple[DataFrame, ShownTable, Facts]:
        spark, boundary = self._mirror.spark, self.boundary
        view = self._mirror.view()
        files = view.changes(history.path)
        types = Types(_types(self._histories), view.lake.version_num)
        shown = shown_table(history, span.fingerprint, files.stored, types)
        chosen = files.between(span.base, boundary)
        rows = file_changes(spark, shown, chosen)
        rows = None if rows is None else seen(rows, span.base, boundary, chosen)
        facts = facts_of(chosen)
        tail = self._tail(history, shown, files, types, view)
        if tail is not None:
            later = seen(tail.rows, span.base, boundary, None)
            rows = later if rows is None else rows.unionByName(later)
            facts = both(facts, tail.facts)
        return rows if rows is not None else no_changes(spark, shown), shown, facts

    def _tail(
        self, history: TableHistory, shown: ShownTable, files: ChangeFiles, types: Types, view: LakeView
    ) -> Tail | None:
        if self.lsn <= files.applied or view.reader is None:
            return None
        planned = plan(view.reader, files.applied, self.lsn, 1 << 62, SLICE_BYTES)
        fingerprints = [event.fingerprint for event in reversed(history.events)]
        relations = {}
        for relation in descriptions(planned.relations, view.lake.log):
            fingerprint = fitting(relation, fingerprints)
            if fingerprint is not None and columns_of(relation, fingerprint) is not None:
                layout = layout_of(relation, fingerprint, history.path, files.stored, types)
                relations[relation] = layout.columns
            elif relation.oid == shown.oid:
                raise NotAnswerable(
                    f"{history.path} was altered in what is not applied yet", "again when it is applied"
                )
        return tail_of(self._mirror.spark, TailWork(view.lake.log, types, shown, relations), planned)


def open_mirror(lake: str | Path, spark: SparkSession | None = None, options: SparkOptions | None = None) -> Mirror:
    """Open a lake for reading, on this Spark session, on the active one, or on a new one with these options."""
    return Mirror(Path(lake), spark if spark is not None else spark_session(options))


def _types(histories: Mapping[int, TableHistory]) -> dict[int, PgType]:
    fingerprints = (event.fingerprint for history in histories.values() for event in history.events)
    return {column.type.oid: column.type for each in fingerprints for column in each.columns}
