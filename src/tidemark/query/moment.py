"""A handle: one boundary, and everything that it gives stands there, however far the mirror has moved on."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tidemark.clock import Boundary, Lsn, Snapshot
from tidemark.decode.types import Types
from tidemark.errors import InvalidValue, NotAnswerable
from tidemark.lake.columns import COMMIT_VERSION
from tidemark.lake.history import Kind, Span, TableHistory, types_of
from tidemark.lake.leases import Lease
from tidemark.lake.polls import Poll, read_polls
from tidemark.lake.registers import read_retained
from tidemark.query.biography import Biography, First
from tidemark.query.changes import guarded
from tidemark.query.difference import difference
from tidemark.query.gate import Passed
from tidemark.query.lives import BEFORE, COPIED
from tidemark.query.names import find, names_at, parsed
from tidemark.query.reading import Reading
from tidemark.query.shown import is_alike, shape_of
from tidemark.query.snapshot import LakeView
from tidemark.query.statement import Equalities, bind
from tidemark.query.union import shared_equalities, together
from tidemark.schema.fingerprint import Effect, Fingerprint, compare
from tidemark.source.look import Look
from tidemark.spark import require_pinned

if TYPE_CHECKING:
    from tidemark.query.mirror import Mirror

_KINDS = {True: "partitions", False: "inheritance children"}
_LATER = "a later snapshot, and the LSN that was read in the statement that took it"


class Moment:
    """One boundary. Every table and every query given by it stands there.

    Until it is closed, or forgotten, nothing is removed that it may need. DataFrames that it gives remember it; what is
    derived from them does not. `look` is what the session saw whose view this is, if it looked for us; `view` is what
    the mirror had when the boundary was found answerable.
    """

    def __init__(
        self,
        mirror: Mirror,
        boundary: Boundary,
        lease: Lease,
        view: LakeView,
        look: Look | None = None,
        passed: Passed | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        self.boundary, self.look, self.passed, self._snapshot = boundary, look, passed, snapshot
        self._mirror, self._lease = mirror, lease
        self._closing = weakref.finalize(self, lease.close)
        self._frames: dict[tuple[tuple[str, str], bool], DataFrame] = {}
        self._histories = mirror.lake.tables()
        self._names = names_at(self._histories.values(), boundary.lsn)
        types, defined = types_of(self._histories.values()), look is not None
        self._reading = Reading(mirror.spark, mirror.view, types, boundary, lease, view, defined=defined)
        if (boundary.excluded or snapshot is not None) and self.observed is not None:
            raise NotAnswerable(
                f"{boundary.lsn} lies where the mirror was polled: it shows {self.observed}, and no other snapshot",
                "an LSN or a time",
            )

    def close(self) -> None:
        """Need nothing any more."""
        self._closing()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()

    @property
    def lsn(self) -> Lsn:
        """Where it stands."""
        return self.boundary.lsn

    @cached_property
    def observed(self) -> Poll | None:
        """The poll that saw what stands here; None where the stream told it, so that it is exact at any position."""
        told = any(event.observed for history in self._histories.values() for event in history.events)
        return read_polls(self._mirror.lake.path).at(self.lsn) if told else None

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables there were, as schema.table."""
        return tuple(sorted(f"{schema}.{name}" for schema, name in self._names))

    @property
    def unclear(self) -> tuple[str, ...]:
        """The tables that the mirror follows and that cannot be answered here: a later boundary may answer them."""
        followed = [history for history in self._histories.values() if history.live]
        unclear = [history.fingerprint for history in followed if not self._is_clear(history)]
        return tuple(f"{each.schema}.{each.name}" for each in unclear)

    def table(self, name: str, *, only: bool = False) -> DataFrame:
        """The rows of a table there, with those of its partitions or of the tables that inherit from it.

        `only` means what ONLY means in PostgreSQL: the table's own rows. A partitioned table has none.
        """
        self._require_usable()
        return self._remembering(self._table(parsed(name), only=only))

    def leaves(self, name: str | None = None) -> tuple[TableHistory, ...]:
        """The mirrored tables that hold the rows of one, or all that are followed."""
        if name is None:
            followed = (each for each in self._histories.values() if each.last.kind is not Kind.DROPPED)
            return tuple(sorted((each for each in followed if not each.is_union), key=lambda each: each.path))
        mirrored = self._tree(find(self._names, parsed(name)), whole=False)
        return tuple(each for each in mirrored if not each.is_union)

    def is_parent(self, history: TableHistory) -> bool:
        """Whether tables inherit from it there, as far as that is known."""
        return not history.is_union and self._is_clear(history) and bool(history.at(self.lsn).fingerprint.children)

    def members(self, history: TableHistory) -> tuple[Fingerprint, ...]:
        """The tables whose rows a reader of one sees there, as they are defined."""
        return tuple(each.at(self.lsn).fingerprint for each in self._tree(history) if not each.is_union)

    def exact(self, history: TableHistory, *, only: bool) -> tuple[Fingerprint, DataFrame]:
        """A table as it is defined there, and its rows, with the texts of values without a twin beside them."""
        self._require_usable()
        return history.at(self.lsn).fingerprint, self._remembering(self._frame(history, {}, only=only))

    def sql(self, statement: str) -> DataFrame:
        """The answer to a query in Spark's SQL, and PostgreSQL's ONLY, every table of it as it was there."""
        self._require_usable()
        bound = bind(statement, list(self._names))
        frames: dict[str, Any] = {
            placeholder: self._kept(key, bound.lookups[placeholder], only=placeholder in bound.only)
            for placeholder, key in bound.tables.items()
        }
        return self._remembering(self._mirror.spark.sql(bound.text, **frames))

    def changes(self, name: str, start: str | Lsn, *, only: bool = False) -> DataFrame:
        """What was changed in a table by the commits from `start` up to here, in order of commit and ordinal.

        Columns are the table's as it is here. A value that was not sent because it did not change is null, and
        `_unchanged` names its column by attnum. Of a table from which others inherit, these are the changes of its
        own rows; `only` must say so.
        """
        self._require_usable()
        history = find(self._names, parsed(name))
        if history.is_union:
            raise NotAnswerable(f"{name} has no changes of its own", "the changes of its partitions")
        span = history.at(self.lsn)
        if (why := self._redefined(history, span)) is not None:
            raise NotAnswerable(f"{name} {why}", _LATER)
        first = Lsn.parse(start) if isinstance(start, str) else start
        spans = [each for each in history.spans() if each.begin <= self.lsn and (each.end is None or each.end >= first)]
        _require_alone(name, spans, "changes", only=only)
        begun_empty = not (span.copied or span.emptied) and span.base == history.spans()[0].base
        if first < span.base.lsn and not begun_empty:
            raise NotAnswerable(
                f"{name} began at {span.base.lsn}: what changed between {first} and there is not known whole",
                f"changes from {span.base.lsn} on",
            )
        rows = self._reading.changes(history, span)
        if first <= (retained := read_retained(self._mirror.lake.path)) and retained > Lsn.ZERO:
            raise NotAnswerable(
                f"changes of {name} from {first} on are not kept any more", f"changes from above {retained} on"
            )
        return self._remembering(guarded(rows).where(F.col(COMMIT_VERSION) >= first.value))

    def history(self, name: str, key: object, *, only: bool = False) -> DataFrame:
        """Every version of one row that the mirror knows up to here, oldest first, with its interval of positions.

        `key` is a value, or several in the key's order or by their columns' names. Columns are the table's as it is
        here; a value without a twin is null, with its text beside it. What was there when the table was copied began
        as `copy`, what was there where the window begins as `before`: when and by whom is not known then. Keys are
        unique in one table: of a table from which others inherit, this is a row of its own; `only` must say so.
        """
        self._require_usable()
        history = find(self._names, parsed(name))
        if history.is_union:
            raise NotAnswerable(f"{name} has no history of its own", "the history of its partitions")
        span = history.at(self.lsn)
        _require_alone(name, [span], "history", only=only)
        if (why := self._hindrance(history, span)) is not None:
            raise NotAnswerable(f"{name} {why}", "a later snapshot")
        types = Types(types_of(self._histories.values()), self._mirror.lake.version_num)
        row = Biography(span.fingerprint, types, key)
        retained = read_retained(self._mirror.lake.path)
        if not span.copied and retained <= span.base.floor:
            first = First(span.base.floor, BEFORE, None)
            return row.versions(self._mirror.spark, first, self._reading.changes(history, span))
        lsn = max(span.base.lsn, retained)
        with self._mirror.at(Boundary(lsn, frozenset(each for each in self.boundary.excluded if each <= lsn))) as early:
            kind = COPIED if span.copied and lsn == span.base.lsn else BEFORE
            first = First(lsn, kind, early._reading.table(history, span, row.equalities))
            return row.versions(self._mirror.spark, first, self._reading.changes(history, span))

    def diff(self, name: str, start: str | Lsn | datetime | Boundary, *, only: bool = False) -> DataFrame:
        """What became of a table since `start`: rows that are here and were not there, and the reverse.

        `_change_type` is Delta's: with a key also update_preimage and update_postimage, in the key's order. What was
        changed and is as it was is left out. A value without a twin is null, with its text beside it. The rows of
        tables that inherit from it count, unless `only`; then no key tells rows apart, and there are no updates.
        """
        self._require_usable()
        early = self._mirror.at(start)
        if early.lsn > self.lsn:
            raise InvalidValue(f"{early.lsn} lies above {self.lsn}", "the earlier position first")
        history = find(self._names, parsed(name))
        span, there = history.at(self.lsn), history.at(early.lsn)
        if not is_alike(there.fingerprint, span.fingerprint):
            since = history.alike_since(span, is_alike)
            raise NotAnswerable(f"{name} was altered between {early.lsn} and {since}", f"a diff from {since} on")
        rows = early._frame(history, {}, only=only), self._frame(history, {}, only=only)
        inherited = not history.is_union and not only and (span.fingerprint.children or there.fingerprint.children)
        alone = not history.is_union and not inherited
        changes = None
        if alone and span.base == there.base and not (self.boundary.excluded or early.boundary.excluded):
            changes = self._reading.changes(history, span).where(F.col(COMMIT_VERSION) > early.lsn.value)
        names = {column for frame in rows for column in frame.columns}
        keyed = replace(span.fingerprint, key=()) if inherited else span.fingerprint
        shape = shape_of(keyed, self._mirror.lake.version_num, names)
        return self._remembering(difference(*rows, changes, shape), early)

    def _require_usable(self) -> None:
        """Refuse a handle whose time is over, and a session whose options have become such as change an answer."""
        self._lease.require_in_force()
        require_pinned(self._mirror.spark)

    def _remembering(self, frame: DataFrame, *others: Moment) -> DataFrame:
        vars(frame)["_tidemark_moment"] = self, *others
        return frame

    def _kept(self, key: tuple[str, str], equalities: Equalities, *, only: bool) -> DataFrame:
        """The same for every query of this handle: it is planned once. What asks for one key is planned for that."""
        if equalities:
            return self._table(key, equalities, only=only)
        if (key, only) not in self._frames:
            self._frames[key, only] = self._table(key, only=only)
        return self._frames[key, only]

    def _table(self, key: tuple[str, str], equalities: Equalities | None = None, *, only: bool) -> DataFrame:
        return guarded(self._frame(find(self._names, key), equalities or {}, only=only))

    def _frame(self, history: TableHistory, equalities: Equalities, *, only: bool) -> DataFrame:
        """The rows of a table and, unless `only`, of every table below it, under the columns of the table itself."""
        span, spark, version_num = self._clear(history), self._mirror.spark, self._mirror.lake.version_num
        if not history.is_union and (only or not span.fingerprint.children):
            return self._reading.table(history, span, equalities)
        root = span.fingerprint
        holding = [] if only else [each for each in self._tree(history) if not each.is_union]
        parts = []
        for each in holding:
            part = each.at(self.lsn)
            its = shared_equalities(equalities, root, part.fingerprint, version_num)
            parts.append((part.fingerprint, self._reading.table(each, part, its)))
        return together(spark, root, parts, version_num)

    def _clear(self, history: TableHistory) -> Span:
        """The table as it is at this boundary; refused if that is not known."""
        span = history.at(self.lsn)
        if (why := self._hindrance(history, span)) is not None:
            raise NotAnswerable(f"{span.fingerprint.schema}.{span.fingerprint.name} {why}", _LATER)
        return span

    def _is_clear(self, history: TableHistory) -> bool:
        try:
            self._clear(history)
        except NotAnswerable:
            return False
        return True

    def _hindrance(self, history: TableHistory, span: Span) -> str | None:
        """Why a table that can be read at this position cannot be at this boundary."""
        hidden = sorted(lsn for lsn in self.boundary.excluded if span.base.sees(lsn))
        if hidden and not history.is_union:
            return f"began at {span.base.lsn} with what was committed at {hidden[0]}, which this boundary does not see"
        if span.emptied and span.base.lsn in self.boundary.excluded:
            return f"began at {span.base.lsn}, when it was truncated, which this boundary does not see"
        return self._redefined(history, span)

    def _redefined(self, history: TableHistory, span: Span) -> str | None:
        """Why it is not known that a table is here as it is at this position, but for what the log tells."""
        # Polls told of no commits: nothing can be taken out of what they saw.
        polled = sorted(lsn for lsn in self.boundary.excluded if lsn <= (self._mirror.streamed_above or Lsn.ZERO))
        if polled:
            return f"was polled with what was committed at {polled[0]}, which this boundary does not see"
        if self._snapshot is not None and span.snapshot is not None and not self._snapshot.covers(span.snapshot):
            return f"was copied or altered up to {span.begin}, which this snapshot, older than its LSN, may not see"
        if self.look is not None:
            there = (self.look.roots if history.is_union else self.look.tables).get(span.fingerprint.oid)
            same = (
                there == span.fingerprint
                if history.is_union
                else compare(span.fingerprint, there).effect is Effect.SAME
            )
            if not same:
                return "was altered, or taken out of the publication, just before, and the mirror does not know yet how"
        elif span.begin > self.boundary.floor and (history.is_union or span.begin > span.base.lsn):
            return f"was altered up to {span.begin}, and it is not known whether this boundary sees that"
        return None

    def _tree(self, root: TableHistory, *, whole: bool = True) -> list[TableHistory]:
        """A table and every mirrored table below it here, each once, however many parents it has.

        The `whole` of it is refused if a table below is not mirrored or cannot be read: its rows would be missing.
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
                    raise self._incomplete(root, what, f"mirroring {child.name}, unless it is foreign or unlogged")
                if below is not None and child.oid not in found:
                    found[child.oid] = below
                    reached.append(below)
        return list(found.values())

    def _incomplete(self, root: TableHistory, why: str, hint: str) -> NotAnswerable:
        table = root.at(self.lsn).fingerprint
        name = f"{table.schema}.{table.name}"
        own = "the other partitions by their names" if root.is_union else f"ONLY {name}, for its own rows"
        return NotAnswerable(f"{name} cannot be read at {self.lsn}: {why}", f"{hint}; or {own}")


def _require_alone(name: str, spans: Iterable[Span], what: str, *, only: bool) -> None:
    """Refuse what is kept of one table at a time, for a table that others inherit from, unless `only` it is meant."""
    children = sorted({child.name for span in spans for child in span.fingerprint.children})
    if children and not only:
        raise NotAnswerable(
            f"{', '.join(children)} inherit from {name}, and the {what} of each table is kept apart"
            if len(children) > 1
            else f"{children[0]} inherits from {name}, and the {what} of each table is kept apart",
            f"only=True, or --only, for {name} itself; the {what} of {children[0]} by its own name",
        )
