"""A handle: one boundary, and everything that it gives stands there, however far the mirror has moved on."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
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
from tidemark.query.statement import Equalities, bind
from tidemark.query.union import named, together
from tidemark.schema.fingerprint import Effect, Fingerprint, compare
from tidemark.source.look import Look

if TYPE_CHECKING:
    from tidemark.query.mirror import Mirror

_LATER = "a later snapshot, and the LSN that was read in the statement that took it"


class Moment:
    """One boundary. Every table and every query given by it stands there.

    Until it is closed, or forgotten, nothing is removed that it may need. DataFrames that it gives remember it; what is
    derived from them does not. `safe` is how far the mirror had applied everything before; `look` is what the session
    saw whose view this is, if it looked for us.
    """

    def __init__(
        self,
        mirror: Mirror,
        boundary: Boundary,
        lease: Lease,
        safe: Lsn,
        look: Look | None = None,
        passed: Passed | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        self.boundary, self.look, self.passed, self._snapshot = boundary, look, passed, snapshot
        self._mirror, self._lease = mirror, lease
        self._closing = weakref.finalize(self, lease.close)
        self._frames: dict[tuple[str, str], DataFrame] = {}
        self._histories = mirror.lake.tables()
        self._names = names_at(self._histories.values(), boundary.lsn)
        types, defined = types_of(self._histories.values()), look is not None
        self._reading = Reading(mirror.spark, mirror.view, types, boundary, lease, safe, defined=defined)
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

    def table(self, name: str) -> DataFrame:
        """The rows of a table there."""
        return self._remembering(self._table(parsed(name)))

    def leaves(self, name: str | None = None) -> tuple[TableHistory, ...]:
        """The tables that hold the rows of one, or all that are followed: of partitioned ones their partitions."""
        if name is None:
            followed = (each for each in self._histories.values() if each.last.kind is not Kind.DROPPED)
            return tuple(sorted((each for each in followed if not each.is_union), key=lambda each: each.path))
        return tuple(self._leaves(find(self._names, parsed(name))))

    def exact(self, history: TableHistory) -> tuple[Fingerprint, DataFrame]:
        """A table as it is defined there, and its rows, with the texts of values without a twin beside them."""
        return history.at(self.lsn).fingerprint, self._remembering(self._frame(history, {}))

    def sql(self, statement: str) -> DataFrame:
        """The answer to a query in Spark's SQL, every table of it as it was there."""
        bound = bind(statement, list(self._names))
        frames: dict[str, Any] = {
            placeholder: self._kept(key, bound.lookups[placeholder]) for placeholder, key in bound.tables.items()
        }
        return self._remembering(self._mirror.spark.sql(bound.text, **frames))

    def changes(self, name: str, start: str | Lsn) -> DataFrame:
        """What was changed in a table by the commits from `start` up to here, in order of commit and ordinal.

        Columns are the table's as it is here. A value that was not sent because it did not change is null, and
        `_unchanged` names its column by attnum.
        """
        history = find(self._names, parsed(name))
        if history.is_union:
            raise NotAnswerable(f"{name} has no changes of its own", "the changes of its partitions")
        span = history.at(self.lsn)
        if (why := self._redefined(history, span)) is not None:
            raise NotAnswerable(f"{name} {why}", _LATER)
        first = Lsn.parse(start) if isinstance(start, str) else start
        if first < span.base.lsn and (span.copied or span.base != history.spans()[0].base):
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

    def history(self, name: str, key: object) -> DataFrame:
        """Every version of one row that the mirror knows up to here, oldest first, with its interval of positions.

        `key` is a value, or several in the key's order or by their columns' names. Columns are the table's as it is
        here; a value without a twin is null, with its text beside it. What was there when the table was copied began
        as `copy`, what was there where the window begins as `before`: when and by whom is not known then.
        """
        history = find(self._names, parsed(name))
        if history.is_union:
            raise NotAnswerable(f"{name} has no history of its own", "the history of its partitions")
        span = history.at(self.lsn)
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

    def diff(self, name: str, start: str | Lsn | datetime | Boundary) -> DataFrame:
        """What became of a table since `start`: rows that are here and were not there, and the reverse.

        `_change_type` is Delta's: with a key also update_preimage and update_postimage, in the key's order. What was
        changed and is as it was is left out. A value without a twin is null, with its text beside it.
        """
        early = self._mirror.at(start)
        if early.lsn > self.lsn:
            raise InvalidValue(f"{early.lsn} lies above {self.lsn}", "the earlier position first")
        history = find(self._names, parsed(name))
        span, there = history.at(self.lsn), history.at(early.lsn)
        if not is_alike(there.fingerprint, span.fingerprint):
            since = history.alike_since(span, is_alike)
            raise NotAnswerable(f"{name} was altered between {early.lsn} and {since}", f"a diff from {since} on")
        rows = early._frame(history, {}), self._frame(history, {})
        changes = None
        if span.base == there.base and not history.is_union and not (self.boundary.excluded or early.boundary.excluded):
            changes = self._reading.changes(history, span).where(F.col(COMMIT_VERSION) > early.lsn.value)
        names = {column for frame in rows for column in frame.columns}
        shape = shape_of(span.fingerprint, self._mirror.lake.version_num, names)
        return self._remembering(difference(*rows, changes, shape), early)

    def _remembering(self, frame: DataFrame, *others: Moment) -> DataFrame:
        vars(frame)["_tidemark_moment"] = self, *others
        return frame

    def _kept(self, key: tuple[str, str], equalities: Equalities) -> DataFrame:
        """The same for every query of this handle: it is planned once. What asks for one key is planned for that."""
        if equalities:
            return self._table(key, equalities)
        if key not in self._frames:
            self._frames[key] = self._table(key)
        return self._frames[key]

    def _table(self, key: tuple[str, str], equalities: Equalities | None = None) -> DataFrame:
        return guarded(self._frame(find(self._names, key), equalities or {}))

    def _frame(self, history: TableHistory, equalities: Equalities) -> DataFrame:
        span = history.at(self.lsn)
        name = f"{span.fingerprint.schema}.{span.fingerprint.name}"
        if (why := self._hindrance(history, span)) is not None:
            raise NotAnswerable(f"{name} {why}", _LATER)
        if history.is_union:
            return self._union(name, span.fingerprint, equalities)
        return self._reading.table(history, span, equalities)

    def _is_clear(self, history: TableHistory) -> bool:
        try:
            return self._hindrance(history, history.at(self.lsn)) is None
        except NotAnswerable:
            return False

    def _hindrance(self, history: TableHistory, span: Span) -> str | None:
        """Why a table that can be read at this position cannot be at this boundary."""
        hidden = sorted(lsn for lsn in self.boundary.excluded if span.base.sees(lsn))
        if hidden and not history.is_union:
            return f"began at {span.base.lsn} with what was committed at {hidden[0]}, which this boundary does not see"
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

    def _leaves(self, history: TableHistory) -> Iterator[TableHistory]:
        if not history.is_union:
            yield history
            return
        for oid in history.at(self.lsn).fingerprint.partitions:
            if oid in self._histories:
                yield from self._leaves(self._histories[oid])

    def _union(self, name: str, root: Fingerprint, equalities: Equalities) -> DataFrame:
        """The tables that a partitioned one consists of here. If one is not mirrored, nobody knows what that is."""
        version_num = self._mirror.lake.version_num
        frames = []
        for oid in root.partitions:
            history = self._histories.get(oid)
            if history is None:
                raise NotAnswerable(
                    f"{name} cannot be read at {self.lsn}: one of its partitions (oid {oid}) is not mirrored",
                    "tidemark sync, without excluding it; or the other partitions by their names",
                )
            part = history.at(self.lsn).fingerprint
            alike = named(part, version_num) == named(root, version_num)
            frames.append((part, self._frame(history, equalities if alike else {})))
        return together(self._mirror.spark, root, frames, version_num)
