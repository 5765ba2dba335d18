"""The table events of a table, and the definition and generation that they give for a read at an LSN. Pure.

    waiting      published, and not readable yet, for `reason`
    started      readable from `lsn` on: it was empty there, and commits in `excluded` came later
    truncated    readable from `lsn` on: a TRUNCATE committed there, and the changes of that commit count
    copied       readable from `lsn` on: its rows are in the generation of its versions with that base
    altered      has the definition `fingerprint` from `lsn` on, the previous one up to `after`; unknown in between
    gap          readable up to `after` and not above, for `reason`, until it starts again
    restarted    like gap, because the whole mirror was restarted
    dropped      dropped at some position above `after`
    redefined    its definition changed in a way that does not affect readers
    partitioned  a partitioned table: from `lsn` on the union of its partitions, the children in `fingerprint`

Reads above the schema LSN are rejected elsewhere, for all tables alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

from tidemark.clock import Boundary, Lsn, Snapshot
from tidemark.errors import NotAnswerable, TidemarkError
from tidemark.schema.display import sql_name
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.reasons import resync_command
from tidemark.schema.table import Child, PgType


class TableEventKind(Enum):
    """The kind of a table event."""

    WAITING = "waiting"
    BEGUN = "started"
    EMPTIED = "truncated"
    COPIED = "copied"
    ALTERED = "altered"
    GAP = "gap"
    RESTARTED = "restarted"
    DROPPED = "dropped"
    SEEN = "redefined"
    UNION = "partitioned"


TABLES_FOLDER = "tables"
_BEGINNING = frozenset({TableEventKind.BEGUN, TableEventKind.EMPTIED, TableEventKind.COPIED, TableEventKind.UNION})
_STOPPING = frozenset({TableEventKind.GAP, TableEventKind.RESTARTED, TableEventKind.DROPPED})
_STATUS = "Run `tidemark status LAKE`, which shows the state of each table."
_ENDING = _BEGINNING | _STOPPING | {TableEventKind.ALTERED}


@dataclass(frozen=True, slots=True)
class TableEvent:
    """A table event. `excluded` are commits at or below `lsn` whose changes are not part of the rows at the start.

    `reason` is why the table cannot be read above `after`, and `fix` the SQL statement or command that helps.
    `snapshot` is that of the catalog snapshot or copy; the log does not contain every commit that it sees. `observed`
    is true if polls, not the stream, supply the changes from `lsn` on.
    """

    kind: TableEventKind
    fingerprint: Fingerprint
    path: str
    after: Lsn
    lsn: Lsn
    excluded: frozenset[Lsn] = frozenset()
    reason: str = ""
    snapshot: Snapshot | None = None
    observed: bool = False
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """A range of LSNs, both ends included, in which a table is readable with one definition.

    Every change that is not visible at `base` came after the initial rows: those of a copy if `copied`, otherwise none.
    A table that is `emptied` starts with a commit that truncated it, and its earlier rows are unknown. `snapshot` is
    that of the catalog snapshot or copy that established the definition. If `observed`, only the states at polls are
    available.
    """

    begin: Lsn
    end: Lsn | None
    fingerprint: Fingerprint
    base: Boundary
    copied: bool = False
    snapshot: Snapshot | None = None
    observed: bool = False
    emptied: bool = False

    def holds(self, lsn: Lsn) -> bool:
        """Return whether the span contains an LSN."""
        return self.begin <= lsn and (self.end is None or lsn <= self.end)


@dataclass(frozen=True)
class TableHistory:
    """The events of one table, in order."""

    events: tuple[TableEvent, ...]

    @property
    def last(self) -> TableEvent:
        """The last event."""
        return self.events[-1]

    @property
    def fingerprint(self) -> Fingerprint:
        """The last definition."""
        return self.last.fingerprint

    @property
    def name(self) -> str:
        """The last `schema.table`, for messages."""
        return self.fingerprint.qualified

    @property
    def is_union(self) -> bool:
        """Whether it is a partitioned table, which has no rows of its own."""
        return any(event.kind is TableEventKind.UNION for event in self.events)

    @property
    def path(self) -> str:
        """The table's path in the lake."""
        return self.last.path

    @property
    def reason(self) -> str:
        """The last reason that was recorded, or an empty string."""
        return next((event.reason for event in reversed(self.events) if event.reason), "")

    @property
    def fix(self) -> str:
        """The fix that belongs to `reason`, with the current name of the table."""
        event = next((event for event in reversed(self.events) if event.reason), None)
        if event is None:
            return ""
        fix = event.fix.replace(sql_name(event.fingerprint), sql_name(self.fingerprint))
        return fix.replace(resync_command(event.fingerprint), resync_command(self.fingerprint))

    @property
    def live(self) -> bool:
        """Whether the table is readable up to the present."""
        lasting = (event.kind for event in reversed(self.events) if event.kind in _BEGINNING | _STOPPING)
        return next(lasting, TableEventKind.GAP) not in _STOPPING

    def upto(self, lsn: Lsn) -> TableHistory | None:
        """Return the history up to an LSN, or None if the table has no event up to there."""
        events = tuple(event for event in self.events if event.lsn <= lsn)
        return TableHistory(events) if events else None

    @property
    def restarted(self) -> TableEvent | None:
        """The restart of the mirror, if the table has not started again since."""
        lasting = (
            event for event in reversed(self.events) if event.kind in _BEGINNING | _STOPPING - {TableEventKind.GAP}
        )
        last = next(lasting, None)
        return last if last is not None and last.kind is TableEventKind.RESTARTED else None

    @property
    def in_gap(self) -> bool:
        """Whether the table has a gap and has not started again since."""
        lasting = (event.kind for event in reversed(self.events) if event.kind in _BEGINNING | _STOPPING)
        return next(lasting, None) is TableEventKind.GAP

    def spans(self) -> tuple[Span, ...]:
        """Return the ranges in which the table is readable, in order."""
        return self._spans

    @cached_property
    def _spans(self) -> tuple[Span, ...]:
        """The spans. An event that ends a span ends all earlier ones too, so the lowest of these ends holds."""
        begun: list[tuple[int, Span]] = []
        is_open = False
        for number, event in enumerate(self.events):
            if event.kind in _BEGINNING:
                base, copied = Boundary(event.lsn, event.excluded), event.kind is TableEventKind.COPIED
                span = Span(event.lsn, None, event.fingerprint, base, copied, event.snapshot, event.observed)
                begun.append((number, replace(span, emptied=event.kind is TableEventKind.EMPTIED)))
                is_open = True
            elif event.kind is TableEventKind.ALTERED and is_open:
                altered = replace(begun[-1][1], begin=event.lsn, fingerprint=event.fingerprint)
                begun.append((number, replace(altered, snapshot=event.snapshot, observed=event.observed)))
            elif event.kind in _STOPPING:
                is_open = False
        return tuple(reversed(list(self._ended(begun))))

    def _ended(self, begun: Sequence[tuple[int, Span]]) -> Iterator[Span]:
        """Return the spans with their ends, the last one first, without those that end before they begin."""
        end, checked = None, len(self.events)
        for number, span in reversed(begun):
            afters = [each.after for each in self.events[number + 1 : checked] if each.kind in _ENDING]
            end = min([*afters, *([end] if end is not None else [])], default=None)
            checked = number + 1
            if end is None or span.begin <= end:
                yield replace(span, end=end)

    def span_at(self, lsn: Lsn) -> Span | None:
        """Return the span that contains an LSN, or None."""
        return next((span for span in reversed(self._spans) if span.holds(lsn)), None)

    def at(self, lsn: Lsn) -> Span:
        """Return the span that contains an LSN. Raises NotAnswerable with the reason and the readable ranges."""
        found = self.span_at(lsn)
        if found is not None:
            return found
        hint = " ".join(part for part in ("" if self.live else self.fix, _where(self._spans)) if part) or _STATUS
        raise NotAnswerable(f"table {self.name} cannot be read at {lsn}: {self._why(lsn)}", hint)

    def alike_since(self, span: Span, alike: Callable[[Fingerprint, Fingerprint], bool]) -> Lsn:
        """Return the first LSN from which on the table's definition was always like that of the span."""
        since = span.begin
        for each in reversed([each for each in self.spans() if each.begin < span.begin]):
            if not alike(each.fingerprint, span.fingerprint):
                break
            since = each.begin
        return since

    def missing(self, attnum: int) -> str | None:
        """Return the value of a column in rows older than the column, as it was when the column was first recorded.

        A later rewrite may store the value in the rows, after which the source's catalog no longer contains it.
        """
        columns = (column for event in self.events for column in event.fingerprint.columns)
        return next((column.missing for column in columns if column.attnum == attnum), None)

    def _why(self, lsn: Lsn) -> str:
        later = [event for event in self.events if event.after <= lsn and event.reason]
        return later[-1].reason if later else "the table was not mirrored yet"


def table_path(oid: int) -> str:
    """Return the path of a table, relative to the lake."""
    return f"{TABLES_FOLDER}/{oid}"


def tables_unreadable(errors: Iterable[tuple[TableHistory, TidemarkError]]) -> TidemarkError | None:
    """Combine the errors of all unreadable tables into one, with the class and hint of the first."""
    found = list(errors)
    if not found:
        return None
    first = found[0][1]
    messages = (f"table {each.name} cannot be read: {error.message}" for each, error in found)
    return type(first)("; ".join(messages), first.hint)


def of_events(events: Iterable[TableEvent]) -> dict[int, TableHistory]:
    """Group events into histories by table OID."""
    found: dict[int, list[TableEvent]] = {}
    for event in events:
        found.setdefault(event.fingerprint.oid, []).append(event)
    return {oid: TableHistory(tuple(each)) for oid, each in found.items()}


def needed_events(events: Sequence[TableEvent], retained: Lsn) -> Sequence[TableEvent]:
    """Return the events of a table that reads at or above an LSN need; the last one is always among them.

    Where a table begins, all its earlier ranges end. So the events before its last beginning below `retained` are not
    needed, unless one of their ranges ends at `retained` or above. Of successive reasons for waiting, the last counts.
    """
    first, highest = 0, Lsn.ZERO
    for number, event in enumerate(events):
        highest = max(highest, event.lsn)
        if event.kind in _BEGINNING and highest <= retained and event.after < retained:
            first = number
    kept = events[first:]
    laters = [*kept[1:], None]
    return [event for event, later in zip(kept, laters, strict=True) if not _waits_on(event, later, retained)]


def _waits_on(event: TableEvent, later: TableEvent | None, retained: Lsn) -> bool:
    """Whether a table that waits has another reason for it at an LSN."""
    if later is None or event.kind is not TableEventKind.WAITING:
        return False
    return later.kind is TableEventKind.WAITING and later.after <= retained and later.lsn <= retained


def descendants(history: TableHistory, histories: Mapping[int, TableHistory]) -> Iterator[Child]:
    """Return all tables below one by their last definitions, each once."""
    below, seen = list(history.fingerprint.children), set[int]()
    while below:
        child = below.pop()
        if child.oid not in seen:
            seen.add(child.oid)
            yield child
            below += histories[child.oid].fingerprint.children if child.oid in histories else ()


def types_of(histories: Iterable[TableHistory]) -> dict[int, PgType]:
    """Return every type that a column of these tables has or had, by OID."""
    fingerprints = (event.fingerprint for history in histories for event in history.events)
    return {column.type.oid: column.type for each in fingerprints for column in each.columns}


def _where(spans: Sequence[Span]) -> str:
    if not spans:
        return ""
    ranges = [f"from {span.begin} on" if span.end is None else f"from {span.begin} to {span.end}" for span in spans]
    return f"Read the table at an LSN {' or '.join(ranges)}."
