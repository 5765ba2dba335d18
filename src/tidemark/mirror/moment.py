"""The mirror at one boundary: the rows that are read there stay the same, however far the mirror advances."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from types import TracebackType
from typing import Any, Literal, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tidemark.clock import Boundary, Lsn, Snapshot
from tidemark.errors import InvalidValue, NotAnswerable, Unproven
from tidemark.lake.columns import COMMIT_VERSION
from tidemark.lake.leases import Lease
from tidemark.lake.polls import Poll, read_polls
from tidemark.lake.registers import read_retained
from tidemark.mirror.dialect import answer, result_frame
from tidemark.mirror.failures import explaining
from tidemark.mirror.html import moment_html
from tidemark.mirror.open_lake import OpenLake, Passed
from tidemark.mirror.positions import NOW, Position, parse_position
from tidemark.mirror.present import open_for_statements
from tidemark.mirror.row_history import BEFORE, COPIED, HistoryStart, RowHistory
from tidemark.mirror.sql import bind
from tidemark.mirror.times import position_of
from tidemark.reads.difference import difference
from tidemark.reads.equalities import Equalities
from tidemark.reads.local import LocalReader, LocalRows, together_here
from tidemark.reads.names import find, names_at, oids_of, parsed
from tidemark.reads.planning import TablePlanner
from tidemark.reads.reading import TableReader
from tidemark.reads.shown import is_alike, shape_of, shown_names
from tidemark.reads.snapshot import LakeView
from tidemark.reads.text import Key, chosen, guarded, read_as_text, require_found, text_columns, typed
from tidemark.reads.union import shared_equalities, together
from tidemark.reads.visible import seen
from tidemark.schema.catalog_snapshot import CatalogSnapshot
from tidemark.schema.fingerprint import Effect, Fingerprint, compare
from tidemark.schema.history import Span, TableEventKind, TableHistory
from tidemark.schema.reasons import being_altered
from tidemark.schema.table import Column
from tidemark.spark import require_pinned
from tidemark.values.types import Types

_KINDS = {True: "partitions", False: "inheritance children"}
_OF_PARTITIONS = "Read it for each partition; `tidemark tables LAKE` lists them."
TextColumns = tuple[tuple[str, ...], ...]
_LATER = "Use a later LSN, or a later snapshot with its LSN; or retry the command."


class Moment:
    """The mirror at one position; `Mirror.at` returns one.

    Every table and query of it is read at that position. Use it with `with`, or call `close`: until then, and for as
    long as a DataFrame of it is referenced, `tidemark expire` removes nothing that it may need.

        with mirror.at("16/B374D848") as moment:
            moment.table("orders").show()
    """

    def __init__(
        self,
        opened: OpenLake,
        at: Callable[[Position], Moment],  # returns another moment of the same mirror
        boundary: Boundary,
        lease: Lease,
        view: LakeView,
        catalog: CatalogSnapshot | None = None,
        passed: Passed | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        self.boundary, self._catalog, self._passed, self._snapshot = boundary, catalog, passed, snapshot
        self._opened, self._at, self._lease = opened, at, lease
        self._behind = view.cycle.behind if catalog is None else {}
        self._closing = weakref.finalize(self, lease.close)
        self._frames: dict[tuple[tuple[str, str], bool, tuple[str, ...]], DataFrame] = {}
        known, defined = opened.lake.known_tables(), catalog is not None
        self._histories, self._types = known.histories, known.types
        self._planner = TablePlanner(opened.view, known.types, boundary, lease, view, defined=defined)
        self._local = LocalReader(self._planner)
        if (boundary.excluded or snapshot is not None) and self.observed is not None:
            raise NotAnswerable(
                f"the mirror was polled at {boundary.lsn} and has only {self.observed}, not other snapshots",
                "Use an LSN or a time.",
            )

    def close(self) -> None:
        """Release the files that the moment needs: `tidemark expire` may remove them."""
        self._closing()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Moment at {self.boundary} of <Mirror of {self._opened}>>"

    def _repr_html_(self) -> str:
        """The position, its time and the tables, for notebooks."""
        tables = [(f"{schema}.{name}", self._described(history)) for (schema, name), history in self._names.items()]
        return moment_html(self._opened.lake, self.boundary, self.time, sorted(tables))

    def _described(self, history: TableHistory) -> str:
        """Return the columns of a table, or the reason why it cannot be read."""
        try:
            columns = self._clear(history).fingerprint.columns
        except NotAnswerable as error:
            return error.message
        return ", ".join(f"{column.name} {column.type.name.removeprefix('pg_catalog.')}" for column in columns)

    @cached_property
    def _reading(self) -> TableReader:
        """The reader of tables with Spark."""
        return TableReader(self._opened.spark, self._planner)

    @cached_property
    def _names(self) -> Mapping[tuple[str, str], TableHistory]:
        """Every table by its name at this position."""
        return names_at(self._histories.values(), self.lsn)

    @property
    def lsn(self) -> Lsn:
        """The position."""
        return self.boundary.lsn

    @cached_property
    def time(self) -> datetime | None:
        """The time of the last commit at or before the position, or of the poll; None if it is not known."""
        committed = self._opened.committed(self.lsn)
        return committed.time if committed is not None else None

    @cached_property
    def observed(self) -> Poll | None:
        """The poll whose rows are read here; None where the mirror uses logical decoding."""
        polled = any(event.observed for history in self._histories.values() for event in history.events)
        return read_polls(self._opened.lake.path).at(self.lsn) if polled else None

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables at this position, as schema.table; `Mirror.tables` has more about each."""
        return tuple(sorted(f"{schema}.{name}" for schema, name in self._names))

    @property
    def _unclear(self) -> frozenset[int]:
        """The live tables that cannot be read at this boundary; they may be readable at a later one."""
        followed = {oid: history for oid, history in self._histories.items() if history.live}
        return frozenset(oid for oid, history in followed.items() if not self._is_clear(history))

    def _oids(self, tables: Iterable[str]) -> set[int]:
        """Return the OIDs of tables and of all tables below them."""
        return oids_of(tables, self._histories, self.lsn)

    def _span(self, history: TableHistory) -> Span:
        """Return the span of a table at this position; raise NotAnswerable if its definition is not known here."""
        upto = self._behind.get(history.fingerprint.oid)
        if upto is not None and self.lsn > upto:
            why = being_altered(history.fingerprint, upto)
            raise NotAnswerable(
                f"table {history.name} cannot be read at {self.lsn}: {why.text}",
                f"Use an LSN up to {upto}, or name all tables in `mirror.at(tables=…)`. {why.fix}",
            )
        return history.at(self.lsn)

    def table(self, name: str, *, only: bool = False, text: str | Iterable[str] = ()) -> DataFrame:
        """The rows of a table, with those of its partitions and of the tables that inherit from it.

            moment.table("crm.customers").where("country = 'DE'").show()
            moment.table("orders", text=["due"])

        `only` means what ONLY means in PostgreSQL: the table's own rows. `text` are columns to read as PostgreSQL's
        text: a column with a value that Spark's type cannot hold, such as `infinity`, can be read in no other way.
        The schema has the PostgreSQL type of each column, also of one read as text:

            moment.table("orders").schema["due"].metadata["postgres"]  # oid, typmod, type
        """
        self._require_usable()
        key, wanted = parsed(name), text_columns(text)
        return self._remembering(self._table(key, wanted=wanted, only=only))

    def _leaves(self, name: str | None = None) -> tuple[TableHistory, ...]:
        """Return the mirrored tables that contain the rows of a table, or all that are not dropped."""
        if name is None:
            followed = (each for each in self._histories.values() if each.last.kind is not TableEventKind.DROPPED)
            return tuple(sorted((each for each in followed if not each.is_union), key=lambda each: each.path))
        mirrored = self._tree(find(self._names, parsed(name)), whole=False)
        return tuple(each for each in mirrored if not each.is_union)

    def _is_parent(self, history: TableHistory) -> bool:
        """Return whether tables inherit from it at this position; False if its definition is not known."""
        return not history.is_union and self._is_clear(history) and bool(self._span(history).fingerprint.children)

    def _members(self, history: TableHistory) -> tuple[Fingerprint, ...]:
        """Return the definitions of the tables whose rows a read of this table includes."""
        return tuple(self._span(each).fingerprint for each in self._tree(history) if not each.is_union)

    def _exact(self, history: TableHistory, *, only: bool) -> tuple[Fingerprint, DataFrame]:
        """Return the definition of a table and its rows, with the columns of the text fallback."""
        self._require_usable()
        return self._span(history).fingerprint, self._remembering(self._frame(history, {}, only=only))

    @property
    def spark(self) -> SparkSession:
        """The Spark session of all DataFrames."""
        return self._opened.spark

    def defined_table(
        self, oid: int, name: str, columns: AbstractSet[tuple[int, str, int, int]]
    ) -> tuple[DataFrame, Mapping[int, str]]:
        """The rows of a table by its OID, if its columns here are these: attnum, name, OID of the type, typmod.

        Returns the names of the columns by attnum as well.
        """
        self._require_usable()
        found = self._required(oid, name, columns)
        names = {column.attnum: shown for column, shown in shown_names(found.columns, self._opened.lake.version_num)}
        return self._kept((found.schema, found.name), {}, (), only=True), names

    def defined_rows(self, oid: int, name: str, columns: AbstractSet[tuple[int, str, int, int]]) -> LocalRows:
        """The same rows, as a query for the local engine."""
        self._required(oid, name, columns)
        return self.local_rows(oid, only=True)

    def _required(self, oid: int, name: str, columns: AbstractSet[tuple[int, str, int, int]]) -> Fingerprint:
        """Return the definition of a table here; raise Unproven if it is another one."""
        history = self._histories.get(oid)
        if history is None:
            raise Unproven(f"the table {name} is not mirrored")
        found = self._span(history).fingerprint
        there = {(each.attnum, each.name, each.type.oid, each.typmod) for each in found.columns}
        if found.children or there != columns:
            raise Unproven(f"the table {name} is defined differently at this position")
        return found

    def _in_postgres_dialect(self, statement: str) -> DataFrame:
        """Return the result of a statement that is split between Spark and a session at the source."""
        try:
            with open_for_statements(self._opened) as session:
                return result_frame(answer(statement, (), self, session), self._opened.spark)
        except Unproven as error:
            message = f"the statement is not proven to be answered exactly: {error.message}"
            raise Unproven(message, "Run the statement at the source, or use Spark's dialect.") from error

    def sql(
        self, statement: str, *, text: str | Iterable[str] = (), dialect: Literal["spark", "postgres"] = "spark"
    ) -> DataFrame:
        """The result of a query in Spark's SQL, every table of it at this position.

            moment.sql("select status, count(*) from orders group by status").show()
            moment.sql("select * from orders", text=["orders.due"])

        Tables are named schema.table, or table for one in public; ONLY is PostgreSQL's. `text` are columns to read as
        PostgreSQL's text, as in `table`; in the statement itself, `select /*+ TEXT(orders.due) */ …` does the same.

        With `dialect="postgres"` the statement is one of PostgreSQL, and its result is exactly PostgreSQL's: Spark
        computes what is proven equal, and a session at the source finishes it. It is refused if that is not proven.
        """
        self._require_usable()
        if dialect == "postgres":
            return self._in_postgres_dialect(statement)
        bound = bind(statement, list(self._names))
        wanted = (*text_columns(text), *bound.as_text)
        frames: dict[str, Any] = {}
        found: set[tuple[str, ...]] = set()
        for placeholder, key in bound.tables.items():
            columns = list(self._columns_of(key)) if wanted else []
            of_table = chosen(wanted, key, columns)
            found |= of_table.keys()
            frames[placeholder] = self._kept(
                key, bound.lookups[placeholder], tuple(sorted(set(of_table.values()))), only=placeholder in bound.only
            )
        require_found(wanted, found, "the tables of the query")
        with explaining(bound):
            frame = self._opened.spark.sql(bound.text, **frames)
        vars(frame)["_tidemark_statement"] = bound
        return self._remembering(frame)

    def changes(
        self, table: str, from_: Position | None = None, *, only: bool = False, text: str | Iterable[str] = ()
    ) -> DataFrame:
        """The changes of a table committed after `from_`, up to and including this position.

            mirror.at("today").changes("orders", "yesterday").orderBy("_commit_version", "_ordinal").show()

        Without `from_`, all changes that the lake has. Besides the columns of the table at this position:
        `_change_type` (insert, update_preimage, update_postimage, delete, truncate), `_commit_version` (the commit LSN,
        as a number), `_commit_timestamp`, `_ordinal`, `_xid`. A large value that PostgreSQL did not send because it did
        not change is null, and `_unchanged` lists its column by attnum. For a table from which others inherit, `only`
        is required: these are the changes of its own rows. `text` are columns to read as PostgreSQL's text.
        """
        self._require_usable()
        key, wanted = parsed(table), text_columns(text)
        history = find(self._names, key)
        if history.is_union:
            raise NotAnswerable(f"{table} is partitioned and has no changes of its own", _OF_PARTITIONS)
        span = self._span(history)
        if (why := self._redefined(history, span)) is not None:
            raise NotAnswerable(f"{table} {why}", _LATER)
        retained = read_retained(self._opened.lake.path)
        begun_empty = not (span.copied or span.emptied) and span.base == history.spans()[0].base
        earliest = max(retained, Lsn.ZERO if begun_empty else span.base.lsn)
        since = Boundary(earliest) if from_ is None else self._boundary_of(from_)
        if since.lsn > self.lsn:
            raise NotAnswerable(
                f"changes of {table} can be read up to {self.lsn}, which is before {since.lsn}",
                "Read them from an earlier position on, or up to a later one.",
            )
        spans = [
            each for each in history.spans() if each.begin <= self.lsn and (each.end is None or each.end > since.lsn)
        ]
        _require_alone(table, spans, "changes", only=only)
        if since.floor < earliest:
            raise NotAnswerable(
                f"changes of {table} after {since.floor} are not complete: they are kept from {earliest} on",
                f"Read the changes from {earliest} on.",
            )
        rows = self._reading.changes(history, span)
        if since.floor < (retained := read_retained(self._opened.lake.path)):  # it may have advanced in the meantime
            raise NotAnswerable(f"changes of {table} are kept from {retained} on", "Retry the command.")
        rows = seen(rows, since, self.boundary, None)
        return self._remembering(self._typed(guarded(self._with_text(rows, key, wanted), key), key))

    def _boundary_of(self, when: Position) -> Boundary:
        """Return the boundary of a position, without a check that it can be read."""
        if isinstance(when, Boundary):
            return when
        if isinstance(when, str) and parse_position(when, datetime.now(UTC)) == NOW:
            with self._at(NOW) as now:
                return now.boundary
        return Boundary(position_of(when, self._opened.view()))

    def history(self, table: str, key: object, *, only: bool = False, text: str | Iterable[str] = ()) -> DataFrame:
        """Every version of one row up to this position, oldest first.

            moment.history("orders", 17).show()
            moment.history("lines", (17, 3))
            moment.history("lines", {"order_id": 17, "line": 3})

        `key` is the value of the primary key or replica identity: one value, several in the key's order, or a mapping
        by column. Each version has the columns of the table at this position and the commits that began and ended it:
        `_begin_lsn`, `_begin_timestamp`, `_begin_xid`, `_begin_type`, and the same with `_end`. LSNs are numbers, as in
        the lake: `Lsn(row["_begin_lsn"])`. The type `copy` is a row that the initial copy found, `before` one that is
        older than the retained history. A value that Spark's type cannot hold is null, with PostgreSQL's text in
        `<column>~text`; `text` are columns to read as text altogether. For a table from which others inherit, `only` is
        required.
        """
        self._require_usable()
        wanted = text_columns(text)
        name = parsed(table)
        history = find(self._names, name)
        if history.is_union:
            raise NotAnswerable(f"{table} is partitioned and has no row history of its own", _OF_PARTITIONS)
        span = self._span(history)
        _require_alone(table, [span], "row history", only=only)
        if (why := self._hindrance(history, span)) is not None:
            raise NotAnswerable(f"{table} {why}", _LATER)
        versions = self._versions(history, span, key)
        return self._remembering(self._typed(self._with_text(versions, name, wanted), name))

    def _versions(self, history: TableHistory, span: Span, key: object) -> DataFrame:
        types = Types(self._types, self._opened.lake.version_num)
        row = RowHistory(span.fingerprint, types, key)
        retained = read_retained(self._opened.lake.path)
        if not span.copied and retained <= span.base.floor:
            first = HistoryStart(span.base.floor, BEFORE, None)
            return row.versions(self._opened.spark, first, self._reading.changes(history, span))
        lsn = max(span.base.lsn, retained)
        with self._at(Boundary(lsn, frozenset(each for each in self.boundary.excluded if each <= lsn))) as early:
            kind = COPIED if span.copied and lsn == span.base.lsn else BEFORE
            first = HistoryStart(lsn, kind, partial(early._reading.table, history, span))
            return row.versions(self._opened.spark, first, self._reading.changes(history, span))

    def diff(self, table: str, from_: Position, *, only: bool = False, text: str | Iterable[str] = ()) -> DataFrame:
        """The net difference of a table between `from_` and this position.

            mirror.at("today").diff("orders", "yesterday").show()

        `_change_type` is insert, delete, and for a table with a key update_preimage and update_postimage, in the order
        of the key. Rows that were changed in between and are equal at both positions are left out. A value that Spark's
        type cannot hold is null, with PostgreSQL's text in `<column>~text`; `text` are columns to read as text
        altogether. The rows of child tables are included, unless `only`; with children there are no updates, because
        no key identifies rows.
        """
        self._require_usable()
        key, wanted = parsed(table), text_columns(text)
        early = self._at(from_)
        if early.lsn > self.lsn:
            raise InvalidValue(f"{early.lsn} is after {self.lsn}", "Give the earlier position first.")
        history = find(self._names, key)
        span, there = self._span(history), history.at(early.lsn)
        if not is_alike(there.fingerprint, span.fingerprint):
            since = history.alike_since(span, is_alike)
            raise NotAnswerable(
                f"{table} was altered between {early.lsn} and {since}", f"Compare positions from {since} on."
            )
        rows = early._frame(history, {}, only=only), self._frame(history, {}, only=only)
        inherited = not history.is_union and not only and (span.fingerprint.children or there.fingerprint.children)
        alone = not history.is_union and not inherited
        changes = None
        if alone and span.base == there.base and not (self.boundary.excluded or early.boundary.excluded):
            changes = self._reading.changes(history, span).where(F.col(COMMIT_VERSION) > early.lsn.value)
        names = {column for frame in rows for column in frame.columns}
        keyed = replace(span.fingerprint, key=()) if inherited else span.fingerprint
        shape = shape_of(keyed, self._opened.lake.version_num, names)
        found = self._with_text(difference(*rows, changes, shape), key, wanted)
        return self._remembering(self._typed(found, key), early)

    def _require_usable(self) -> None:
        """Raise if the lease has expired, or if an option of the Spark session can now change a result."""
        self._lease.require_in_force()
        require_pinned(self._opened.spark)

    def _remembering(self, frame: DataFrame, *others: Moment) -> DataFrame:
        vars(frame)["_tidemark_moment"] = self, *others
        return frame

    def _kept(self, key: Key, equalities: Equalities, columns: tuple[str, ...], *, only: bool) -> DataFrame:
        """Return a table that is planned once for all queries of this moment, unless equalities restrict its keys."""
        wanted = tuple((column,) for column in columns)
        if equalities:
            return self._table(key, equalities, wanted, only=only)
        if (key, only, columns) not in self._frames:
            self._frames[key, only, columns] = self._table(key, wanted=wanted, only=only)
        return self._frames[key, only, columns]

    def _table(
        self, key: Key, equalities: Equalities | None = None, wanted: TextColumns = (), *, only: bool
    ) -> DataFrame:
        rows = self._frame(find(self._names, key), equalities or {}, only=only)
        return self._typed(guarded(self._with_text(rows, key, wanted), key), key)

    def _with_text(self, rows: DataFrame, key: Key, wanted: TextColumns) -> DataFrame:
        """Return the rows with these columns as PostgreSQL's text."""
        if not wanted:
            return rows
        found = chosen(wanted, key, list(self._columns_of(key)))
        require_found(wanted, found, ".".join(key))
        return read_as_text(rows, found.values())

    def _typed(self, rows: DataFrame, key: Key) -> DataFrame:
        """Return the rows with the PostgreSQL types of a table's columns in their metadata."""
        return typed(rows, self._columns_of(key))

    def _columns_of(self, key: Key) -> dict[str, Column]:
        """Return the columns of a table, by their names for readers."""
        columns = self._span(find(self._names, key)).fingerprint.columns
        return {name: column for column, name in shown_names(columns, self._opened.lake.version_num)}

    def _frame(self, history: TableHistory, equalities: Equalities, *, only: bool) -> DataFrame:
        """Return the rows of a table and, unless `only`, of all tables below it, with the table's own columns."""
        span, spark, version_num = self._clear(history), self._opened.spark, self._opened.lake.version_num
        holding = self._holding(history, span, only=only)
        if holding is None:
            return self._reading.table(history, span, equalities)
        root = span.fingerprint
        parts = []
        for each in holding:
            part = self._span(each)
            its = shared_equalities(equalities, root, part.fingerprint, version_num)
            parts.append((part.fingerprint, self._reading.table(each, part, its)))
        return together(spark, root, parts, version_num)

    def local_rows(self, table: str | int, *, only: bool = False) -> LocalRows:
        """The same rows as those of `table`, as a query for the local engine; `table` is a name or an OID.

        Raises EngineRefused if the local engine cannot read them exactly.
        """
        self._lease.require_in_force()
        history = self._histories[table] if isinstance(table, int) else find(self._names, parsed(table))
        span, types = self._clear(history), Types(self._types, self._opened.lake.version_num)
        holding = self._holding(history, span, only=only)
        if holding is None:
            return self._local.table(history, span)
        parts = [(part.fingerprint, self._local.table(each, part)) for each in holding for part in [self._span(each)]]
        return together_here(span.fingerprint, parts, types)

    def _holding(self, history: TableHistory, span: Span, *, only: bool) -> list[TableHistory] | None:
        """Return the tables that hold the rows of a table; None if only it does, or only its own are wanted."""
        if not history.is_union and (only or not span.fingerprint.children):
            return None
        return [] if only else [each for each in self._tree(history) if not each.is_union]

    def _clear(self, history: TableHistory) -> Span:
        """Return the definition and base of a table at this boundary; raise NotAnswerable if they are not known."""
        span = self._span(history)
        if (why := self._hindrance(history, span)) is not None:
            raise NotAnswerable(f"{span.fingerprint.qualified} {why}", _LATER)
        return span

    def _is_clear(self, history: TableHistory) -> bool:
        try:
            self._clear(history)
        except NotAnswerable:
            return False
        return True

    def _hindrance(self, history: TableHistory, span: Span) -> str | None:
        """Return why a table that can be read at this position cannot be read at this boundary, or None."""
        hidden = sorted(lsn for lsn in self.boundary.excluded if span.base.sees(lsn))
        if hidden and not history.is_union:
            return f"was copied at {span.base.lsn}, with the commit at {hidden[0]}, which is not visible here"
        if span.emptied and span.base.lsn in self.boundary.excluded:
            return f"was truncated at {span.base.lsn}, which is not visible here"
        return self._redefined(history, span)

    def _redefined(self, history: TableHistory, span: Span) -> str | None:
        """Return why the table here may differ from the table at this position, or None.

        Only differences that the log does not record are checked: polls, copies and definitions.
        """
        # A poll does not record commits, so no commit can be excluded from its rows.
        excluded = self.boundary.excluded
        if excluded and (polled := sorted(lsn for lsn in excluded if lsn <= self._opened.polled_upto(self.lsn))):
            return f"was polled with the commit at {polled[0]}, which is not visible here"
        if self._snapshot is not None and span.snapshot is not None and not self._snapshot.covers(span.snapshot):
            return f"was copied or altered up to {span.begin}, and the snapshot may be older than that"
        if self._catalog is not None:
            there = (self._catalog.roots if history.is_union else self._catalog.tables).get(span.fingerprint.oid)
            same = (
                there == span.fingerprint
                if history.is_union
                else compare(span.fingerprint, there).effect is Effect.SAME
            )
            if not same:
                return "was altered or removed from the publication, and the mirror has not read the new definition yet"
        elif span.begin > self.boundary.floor and (history.is_union or span.begin > span.base.lsn):
            return f"was altered up to {span.begin}, and it is not known whether that is visible here"
        return None

    def _tree(self, root: TableHistory, *, whole: bool = True) -> list[TableHistory]:
        """Return a table and every mirrored table below it at this position, each once even if it has several parents.

        With `whole`, raise if a table below is not mirrored or cannot be read, because its rows would be missing.
        """
        found = {root.fingerprint.oid: root}
        for history in (reached := [root]):
            try:
                children = self._clear(history).fingerprint.children
            except NotAnswerable as error:
                if history is root and (whole or root.is_union):
                    raise
                if whole:
                    raise self._incomplete(root, error.message, error.hint) from error
                continue
            for child in children:
                below = self._histories.get(child.oid)
                if below is None and whole:
                    what = f"{child.name} (oid {child.oid}), one of its {_KINDS[root.is_union]}, is not mirrored"
                    raise self._incomplete(root, what, f"Mirror {child.name}, unless it is foreign or unlogged.")
                if below is not None and child.oid not in found:
                    found[child.oid] = below
                    reached.append(below)
        return list(found.values())

    def _incomplete(self, root: TableHistory, why: str, hint: str) -> NotAnswerable:
        table = root.at(self.lsn).fingerprint
        name = table.qualified
        own = "Or read the other partitions by their names." if root.is_union else f"Or read ONLY {name}."
        return NotAnswerable(f"{name} cannot be read at {self.lsn}: {why}", f"{hint} {own}")


def _require_alone(name: str, spans: Iterable[Span], what: str, *, only: bool) -> None:
    """Refuse changes and row history, which are stored per table, for a table with children unless `only` is set."""
    children = sorted({child.name for span in spans for child in span.fingerprint.children})
    if children and not only:
        raise NotAnswerable(
            f"{', '.join(children)} inherit{'s' * (len(children) == 1)} from {name}: its {what} must be read alone",
            f"Use `--only`, or `only=True` in Python, for {name} itself, and the name of {children[0]} for its own.",
        )
