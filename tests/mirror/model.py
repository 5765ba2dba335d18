"""A table in plain Python: histories of row operations, what they leave, and what PostgreSQL's stream says of them.

A `History` is a list of commits, each a list of operations on rows with their values in full. The replay of its visible
commits is the truth; `said` is what the stream sends under each replica identity. Neither knows how an answer is found.
Hidden commits are conflict-closed: whoever touches a row after a hidden commit touched it is hidden too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from hypothesis import strategies as st

Value: TypeAlias = int | float | str | None
Row: TypeAlias = tuple[Value, ...]
KEYS = 4
THIRD = 9
LARGE = "L"
CONTENTS: tuple[Row, ...] = tuple((x, s) for x in (0.0, -0.0, float("nan"), 1.5, None) for s in ("a", None))


class Identity(Enum):
    DEFAULT = "default"
    FULL = "full, with a key"
    MULTISET = "full, without a key"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Op:
    """An insert has no old row, a delete no new one, a truncate neither."""

    old: Row | None
    new: Row | None

    @property
    def is_truncate(self) -> bool:
        return self.old is None and self.new is None


@dataclass(frozen=True)
class Change:
    kind: str
    row: Row
    marks: str | None = None


History: TypeAlias = list[list[Op]]
Intent: TypeAlias = tuple[str, int, int, int]

INTENTS = st.tuples(
    st.sampled_from(["insert", "insert", "update", "update", "move", "move", "delete", "swap"]),
    st.integers(0, KEYS - 1),
    st.integers(0, KEYS - 1),
    st.integers(0, 15),
)
PLANS = st.lists(st.lists(INTENTS, min_size=1, max_size=4), min_size=2, max_size=7)


def keyed_history(plan: list[list[Intent]], truncates: frozenset[int] = frozenset()) -> History:
    """Rows are (key, large, other, number). A commit in `truncates` truncates before its second operation."""
    rows: dict[Value, Row] = {}
    fresh = iter(range(1_000_000))
    history: History = []
    for number, intents in enumerate(plan):
        ops: list[Op] = []
        for place, intent in enumerate(intents):
            if number in truncates and place == min(1, len(intents) - 1):
                ops.append(Op(None, None))
                rows.clear()
            ops.extend(_keyed_ops(rows, intent, fresh))
        history.append(ops)
    return history


def _keyed_ops(rows: dict[Value, Row], intent: Intent, fresh: Iterator[int]) -> Iterator[Op]:
    kind, a, b, mask = intent
    if kind == "swap" and a != b and a in rows and b in rows:
        for old, new in ((a, THIRD), (b, a), (THIRD, b)):
            yield _do(rows, rows[old], _changed(rows[old], new, mask, fresh))
    elif kind == "insert" and a not in rows:
        yield _do(rows, None, _changed((a, None, None, None), a, 15, fresh))
    elif kind == "delete" and a in rows:
        yield _do(rows, rows[a], None)
    elif kind == "move" and a in rows and b not in rows:
        yield _do(rows, rows[a], _changed(rows[a], b, mask, fresh))
    elif a in rows:
        yield _do(rows, rows[a], _changed(rows[a], a, mask, fresh))


def _changed(row: Row, key: int, mask: int, fresh: Iterator[int]) -> Row:
    """Bits 1 and 2 give the two texts new values, never seen twice; every third is null, every second large."""
    number = next(fresh)
    text = None if number % 3 == 2 else f"{LARGE if number % 2 else 's'}{number}"
    return (key, text if mask & 1 else row[1], f"{LARGE}o{number}" if mask & 2 else row[2], number)


def _do(rows: dict[Value, Row], old: Row | None, new: Row | None) -> Op:
    if old is not None:
        del rows[old[0]]
    if new is not None:
        rows[new[0]] = new
    return Op(old, new)


def multiset_history(plan: list[list[Intent]], truncates: frozenset[int] = frozenset()) -> History:
    """Rows are contents out of a few, so that there are many equal ones."""
    counts: Counter[int] = Counter()
    history: History = []
    for number, intents in enumerate(plan):
        ops = [Op(None, None)] if number in truncates else []
        if ops:
            counts.clear()
        for kind, a, b, mask in intents:
            one, two = (a * 2 + mask) % len(CONTENTS), (b * 2 + mask) % len(CONTENTS)
            removes = counts[one] > 0 and kind != "insert"
            adds = kind != "delete"
            counts[one] -= removes
            target = two if removes else one
            counts[target] += adds
            if removes or adds:
                ops.append(Op(CONTENTS[one] if removes else None, CONTENTS[target] if adds else None))
        history.append(ops)
    return history


def insert_history(plan: list[list[Intent]], truncates: frozenset[int] = frozenset()) -> History:
    """What a table without any identity may do."""
    return [[op for op in ops if op.old is None] for ops in multiset_history(plan, truncates)]


def closed(history: History, hidden: Iterable[int], keyed: bool) -> frozenset[int]:
    """`hidden` and every later commit that touches what a hidden one touched; a truncate touches everything."""
    touched: set[str] = set()
    everything = False
    all_hidden: set[int] = set()
    for number, ops in enumerate(history):
        truncates = any(op.is_truncate for op in ops)
        mine = {repr(row[0] if keyed else row) for op in ops for row in (op.old, op.new) if row is not None}
        if number in hidden or everything or mine & touched or (truncates and all_hidden):
            all_hidden.add(number)
            touched |= mine
            everything |= truncates
    return frozenset(all_hidden)


def rows_after(history: History, visible: Iterable[int], keyed: bool) -> Counter[str]:
    """The rows, as text that tells every value from every other, after the visible commits."""
    by_key: dict[Value, Row] = {}
    counts: Counter[str] = Counter()
    for op in (op for number in sorted(visible) for op in history[number]):
        if op.is_truncate:
            by_key.clear()
            counts.clear()
        if keyed:
            _do(by_key, op.old, op.new)
        else:
            counts.subtract([repr(op.old)] if op.old is not None else [])
            counts.update([repr(op.new)] if op.new is not None else [])
    return Counter(map(repr, by_key.values())) if keyed else +counts


def said(op: Op, identity: Identity) -> list[Change]:
    """The stream's words for one operation: at most an old row and a new one."""
    if op.new is None and op.old is None:
        return [Change("truncate", ())]
    if op.old is None:
        assert op.new is not None
        return [Change("insert", op.new)]
    if op.new is None:
        return [Change("delete", _old(op.old, identity))]
    marks = None if identity is Identity.MULTISET else _marks(op.old, op.new)
    after = Change("update_postimage", op.new if marks is None else _without(op.new, marks), marks)
    if identity is Identity.DEFAULT and op.old[0] == op.new[0]:
        return [after]
    return [Change("update_preimage", _old(op.old, identity)), after]


def _old(row: Row, identity: Identity) -> Row:
    return (row[0], *(None for _ in row[1:])) if identity is Identity.DEFAULT else row


def _marks(old: Row, new: Row) -> str | None:
    """A model row's place n is attnum n + 2: attnum 1 tells one case from another."""
    same = [n for n, value in enumerate(new) if n and value == old[n] and str(value).startswith(LARGE)]
    return "," + "".join(f"{n + 2}," for n in same) if same else None


def _without(row: Row, marks: str) -> Row:
    return tuple(None if f",{n + 2}," in marks else value for n, value in enumerate(row))
