"""What became of a table, and what that means for a reader at an LSN. Pure.

    waiting      published, and not readable yet: why
    started      readable from `lsn` on: it held nothing there, and `base` says which changes came after it
    truncated    readable from `lsn` on: a TRUNCATE committed there, and that commit's changes count
    copied       readable from `lsn` on: its rows there are in the generation of its versions that is based there
    altered      as `fingerprint` from `lsn` on; as before up to `after`; in between it is not known which
    gap          readable up to `after` and not above, until it starts again: why
    restarted    readable up to `after` and not above, because the whole mirror was restarted, until it starts again
    dropped      gone since some position above `after`
    redefined    defined otherwise, in a way that no reader notices
    partitioned  a partitioned table: from `lsn` on the union of its partitions, the children in `fingerprint`

A reader above the position up to which the schema is known at all asks too early; that is not a table's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from tidemark.clock import Boundary, Lsn, Snapshot
from tidemark.errors import NotAnswerable, TidemarkError
from tidemark.lake.reasons import resync_command
from tidemark.schema.display import sql_name
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import PgType


class Kind(Enum):
    """What happened."""

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


_BEGINNING = frozenset({Kind.BEGUN, Kind.EMPTIED, Kind.COPIED, Kind.UNION})
_STOPPING = frozenset({Kind.GAP, Kind.RESTARTED, Kind.DROPPED})
_STATUS = "Run `tidemark status LAKE`, which shows the state of each table."
_ENDING = _BEGINNING | _STOPPING | {Kind.ALTERED}


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a table. `excluded` are commits at or below `lsn` that a beginning does not hold.

    `reason` is why the table cannot be read above `after`, and `fix` the SQL statement or command that helps.
    `snapshot` is the one in which a definition was seen, or rows were copied: what it saw is not all in the log. What
    is `observed` from there on was seen by polls, and not told by the stream.
    """

    kind: Kind
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
    """Positions from one to another, both included, at which a table can be read, and as what.

    Every change that `base` does not see came after what it began with: rows that were `copied`, or nothing. A table
    that was `emptied` begins with a commit that truncated it: what it held before is not known. `snapshot` is the one
    in which it was seen to be so. What is `observed` is known only as polls saw it, at their positions.
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
        """Whether the position lies in it."""
        return self.begin <= lsn and (self.end is None or lsn <= self.end)


@dataclass(frozen=True, slots=True)
class TableHistory:
    """All that happened to one table, in order."""

    events: tuple[Event, ...]

    @property
    def last(self) -> Event:
        """What happened last."""
        return self.events[-1]

    @property
    def fingerprint(self) -> Fingerprint:
        """The table as it was last seen."""
        return self.last.fingerprint

    @property
    def name(self) -> str:
        """`schema.table`, as it was last seen; for people."""
        return f"{self.fingerprint.schema}.{self.fingerprint.name}"

    @property
    def is_union(self) -> bool:
        """Whether it is a partitioned table, which has no rows of its own."""
        return any(event.kind is Kind.UNION for event in self.events)

    @property
    def path(self) -> str:
        """Where it lies in the lake."""
        return self.last.path

    @property
    def reason(self) -> str:
        """The reason that was given last for what it is, if one ever was."""
        return next((event.reason for event in reversed(self.events) if event.reason), "")

    @property
    def fix(self) -> str:
        """What helps against that reason, with the name that the table has now."""
        event = next((event for event in reversed(self.events) if event.reason), None)
        if event is None:
            return ""
        fix = event.fix.replace(sql_name(event.fingerprint), sql_name(self.fingerprint))
        return fix.replace(resync_command(event.fingerprint), resync_command(self.fingerprint))

    @property
    def live(self) -> bool:
        """Whether it can be read up to the present."""
        lasting = (event.kind for event in reversed(self.events) if event.kind in _BEGINNING | _STOPPING)
        return next(lasting, Kind.GAP) not in _STOPPING

    def upto(self, lsn: Lsn) -> TableHistory | None:
        """What is known of it at a position; None if it was not seen yet."""
        events = tuple(event for event in self.events if event.lsn <= lsn)
        return TableHistory(events) if events else None

    @property
    def restarted(self) -> Event | None:
        """How the mirror was started over, if this table has not begun again since."""
        lasting = (event for event in reversed(self.events) if event.kind in _BEGINNING | _STOPPING - {Kind.GAP})
        last = next(lasting, None)
        return last if last is not None and last.kind is Kind.RESTARTED else None

    @property
    def in_gap(self) -> bool:
        """Whether it has a gap, and has not been begun anew since."""
        lasting = (event.kind for event in reversed(self.events) if event.kind in _BEGINNING | _STOPPING)
        return next(lasting, None) is Kind.GAP

    def spans(self) -> tuple[Span, ...]:
        """Where it can be read, in order."""
        spans: list[Span] = []
        for event in self.events:
            open_one = bool(spans) and spans[-1].end is None
            if event.kind in _ENDING:
                spans = [_closed(span, event.after) for span in spans]
            if event.kind in _BEGINNING:
                base, copied = Boundary(event.lsn, event.excluded), event.kind is Kind.COPIED
                span = Span(event.lsn, None, event.fingerprint, base, copied, event.snapshot, event.observed)
                spans.append(replace(span, emptied=event.kind is Kind.EMPTIED))
            elif event.kind is Kind.ALTERED and open_one:
                last, seen = spans[-1], event.snapshot
                altered = replace(last, begin=event.lsn, end=None, fingerprint=event.fingerprint)
                spans.append(replace(altered, snapshot=seen, observed=event.observed))
        return tuple(span for span in spans if span.end is None or span.begin <= span.end)

    def at(self, lsn: Lsn) -> Span:
        """The table as it was at a position. Refused, with the reason and where it can be read, if that is unknown."""
        spans = self.spans()
        found = next((span for span in reversed(spans) if span.holds(lsn)), None)
        if found is not None:
            return found
        hint = " ".join(part for part in ("" if self.live else self.fix, _where(spans)) if part) or _STATUS
        raise NotAnswerable(f"table {self.name} cannot be read at {lsn}: {self._why(lsn)}", hint)

    def alike_since(self, span: Span, alike: Callable[[Fingerprint, Fingerprint], bool]) -> Lsn:
        """The first position from which on a table was always like it is in a span."""
        since = span.begin
        for each in reversed([each for each in self.spans() if each.begin < span.begin]):
            if not alike(each.fingerprint, span.fingerprint):
                break
            since = each.begin
        return since

    def missing(self, attnum: int) -> str | None:
        """What rows from before a column was added read as there: its value when the column was first seen.

        Later a rewrite may have written it into the rows; then the catalogue does not say it any more.
        """
        columns = (column for event in self.events for column in event.fingerprint.columns)
        return next((column.missing for column in columns if column.attnum == attnum), None)

    def _why(self, lsn: Lsn) -> str:
        later = [event for event in self.events if event.after <= lsn and event.reason]
        return later[-1].reason if later else "the table was not mirrored yet"


def tables_unreadable(errors: Iterable[tuple[TableHistory, TidemarkError]]) -> TidemarkError | None:
    """One error for all tables that cannot be read: of the class and with the hint of the first."""
    found = list(errors)
    if not found:
        return None
    first = found[0][1]
    messages = (f"table {each.name} cannot be read: {error.message}" for each, error in found)
    return type(first)("; ".join(messages), first.hint)


def of_events(events: Iterable[Event]) -> dict[int, TableHistory]:
    """Histories by table."""
    found: dict[int, list[Event]] = {}
    for event in events:
        found.setdefault(event.fingerprint.oid, []).append(event)
    return {oid: TableHistory(tuple(each)) for oid, each in found.items()}


def types_of(histories: Iterable[TableHistory]) -> dict[int, PgType]:
    """Every type that a table has or had, by oid."""
    fingerprints = (event.fingerprint for history in histories for event in history.events)
    return {column.type.oid: column.type for each in fingerprints for column in each.columns}


def _closed(span: Span, end: Lsn) -> Span:
    """A span that reaches no further than this: also one whose place another has taken."""
    return span if span.end is not None and span.end <= end else replace(span, end=end)


def _where(spans: Sequence[Span]) -> str:
    if not spans:
        return ""
    ranges = [f"from {span.begin} on" if span.end is None else f"from {span.begin} to {span.end}" for span in spans]
    return f"Read the table at an LSN {' or '.join(ranges)}."
