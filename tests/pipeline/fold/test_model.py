"""Histories of the model through a lake that is folded and vacuumed on the way: as of every commit of the window.

Many histories are the rows of one table, told apart by its first column. Their commits have positions of their own, so
one boundary hides other commits of each. Where they are truncated they commit together.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from pyspark.sql import SparkSession

import tidemark
from tests.mirror.model import (
    PLANS,
    History,
    Identity,
    Intent,
    Op,
    Row,
    closed,
    insert_history,
    keyed_history,
    multiset_history,
    rows_after,
    said,
)
from tests.mirror.wire import OID, TYPES, decoded
from tidemark.clock import Boundary, Lsn
from tidemark.errors import NotAnswerable
from tidemark.lake.changes import change_writer
from tidemark.lake.columns import COMMIT_VERSION, stored_columns
from tidemark.lake.commits import ChangeTable
from tidemark.lake.lake import Lake
from tidemark.lake.paths import CHANGES
from tidemark.lake.registers import Cycle, Cycles, Tables, read_retained
from tidemark.pipeline.expire.expiry import ExpireOptions, expire_lake
from tidemark.pipeline.fold.compactor import Compactor
from tidemark.reads import few, places
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.history import TableEvent, TableEventKind, table_path
from tidemark.schema.table import Column, Generated, Persistence, PgType

pytestmark = [pytest.mark.quick, pytest.mark.spark]

BASE = Lsn(1)
WIDE = 200  # more than there are histories
KEYED = "sub int, id int, large string, other string, number int"
MULTISET = "sub int, x double, s string"
TRUNCATES = frozenset({2})
QUICK = ((Identity.DEFAULT, False),)
MAKERS = {
    Identity.DEFAULT: keyed_history,
    Identity.FULL: keyed_history,
    Identity.MULTISET: multiset_history,
    Identity.NOTHING: insert_history,
}


@dataclass(frozen=True)
class Many:
    """Histories in one table. Together, they commit at the same positions; else each at its own."""

    histories: tuple[History, ...]
    identity: Identity
    together: bool

    @property
    def keyed(self) -> bool:
        return self.identity in (Identity.DEFAULT, Identity.FULL)

    @property
    def ddl(self) -> str:
        return KEYED if self.keyed else MULTISET

    @property
    def length(self) -> int:
        return max(map(len, self.histories))

    def number(self, commit: int, sub: int) -> int:
        return commit * WIDE + (WIDE - 1 if self.together else sub)

    def lsn(self, commit: int, sub: int = WIDE - 1) -> Lsn:
        return Lsn((self.number(commit, sub) + 1) * 1000)

    def rows(self) -> pa.Table:
        """Every change as the decoder gives it."""
        sent = list(self._together() if self.together else self._apart())
        letter = {Identity.DEFAULT: "d", Identity.NOTHING: "n"}.get(self.identity, "f")
        return decoded(sent, self.ddl, letter, 2 if self.keyed else 0)

    def _apart(self) -> Iterator[tuple[object, ...]]:
        for sub, history in enumerate(self.histories):
            for commit, ops in enumerate(history):
                for ordinal, op in enumerate(ops):
                    yield from self._said(op, sub, commit, ordinal)

    def _together(self) -> Iterator[tuple[object, ...]]:
        """What comes before the truncate of any history comes before the one truncate of all."""
        for commit in range(self.length):
            for sub, history in enumerate(self.histories):
                after = 0
                for ordinal, op in enumerate(history[commit] if commit < len(history) else ()):
                    after += 1_000_000 * op.is_truncate
                    if not op.is_truncate:
                        yield from self._said(op, sub, commit, after + sub * 100 + ordinal)
            if commit in TRUNCATES:
                nulls = [None] * len(self.ddl.split(", "))
                yield (*nulls, "truncate", self.number(commit, 0), 500_000, None, 1)

    def _said(self, op: Op, sub: int, commit: int, ordinal: int) -> Iterator[tuple[object, ...]]:
        for change in said(op, self.identity):
            yield (sub, *change.row, change.kind, self.number(commit, sub), ordinal, change.marks, None)

    def hidden(self, end: int, chance: random.Random, above: int) -> list[frozenset[int]]:
        """For each history commits up to `end`, and after `above`, that can be hidden from a reader."""
        if self.together:
            everything = [
                [op for ops in each for op in ops] for each in zip_longest(*self._tagged(), fillvalue=list[Op]())
            ]
            some = frozenset({chance.randint(above + 1, end)}) if end > above and chance.random() < 0.5 else frozenset()
            found = frozenset(n for n in closed(everything, some, self.keyed) if n <= end)
            return [found] * len(self.histories)
        all_hidden = []
        for history in self.histories:
            last = min(end, len(history) - 1)
            some = frozenset({chance.randint(above + 1, last)}) if last > above else frozenset()
            all_hidden.append(frozenset(n for n in closed(history, some, self.keyed) if n <= end))
        return all_hidden

    def _tagged(self) -> Iterator[list[list[Op]]]:
        """Histories whose rows nobody takes for another's."""
        for sub, history in enumerate(self.histories):
            yield [[Op(_tagged(op.old, sub), _tagged(op.new, sub)) for op in ops] for ops in history]


def _tagged(row: Row | None, sub: int) -> Row | None:
    return None if row is None else (f"{sub} {row[0]}", *row[1:])


def many(identity: Identity, truncated: bool, count: int) -> Many:
    histories: list[History] = []
    plans = PLANS.filter(lambda plan: len(plan) > max(TRUNCATES)) if truncated else PLANS

    @settings(max_examples=count, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(plans)
    def collect(plan: list[list[Intent]]) -> None:
        histories.append(MAKERS[identity](plan, TRUNCATES if truncated else frozenset()))

    collect()
    return Many(tuple(histories), identity, truncated)


class MadeLake:
    """A lake with one table, written cycle by cycle without a server."""

    def __init__(self, folder: Path, table: Many) -> None:
        self.table, self.rows = table, table.rows()
        self.lake = Lake(folder / "lake", "model", 1, 1, "model", 180000, folder / "no log")
        self.lake.create()
        columns = [part.split() for part in table.ddl.split(", ")]
        made = tuple(
            Column(n + 1, name, PgType(TYPES[kind][0], kind, "b"), -1, False, Generated.NO, None, None, 1)
            for n, (name, kind) in enumerate(columns)
        )
        key = (1, 2) if table.keyed else ()
        fingerprint = Fingerprint(OID, "public", "t", 1, Persistence.PERMANENT, key, made, None, None, (), ())
        Tables(self.lake.path).append([TableEvent(TableEventKind.BEGUN, fingerprint, table_path(OID), BASE, BASE)])
        self.cycles = Cycles(self.lake.path)
        self.changes = ChangeTable.create(self.lake.path / table_path(OID) / CHANGES, stored_columns(self.rows.schema))
        self.applied = BASE

    def apply(self, upto: Lsn) -> None:
        commit = pc.field(COMMIT_VERSION)
        some = self.rows.filter((commit > self.applied.value) & (commit <= upto.value))
        if len(some):
            writer = change_writer(self.changes.folder, some.schema)
            writer.write(some)
            self.changes.append([writer.close()], upto)
        self.cycles.record(Cycle(upto, upto))
        self.applied = upto

    def fold(self, spark: SparkSession) -> None:
        with Compactor(self.lake.path, spark) as compactor:
            for table in compactor.foldable():
                compactor.fold(table)

    def expire(self, number: int) -> None:
        """Let go of everything before a commit."""
        done = expire_lake(self.lake.path, ExpireOptions(keep_s=None, before=self.table.lsn(number), grace_s=0))
        assert done.retained == self.table.lsn(number)

    def require(self, spark: SparkSession, first: int, last: int, chance: random.Random, *, short: bool) -> None:
        """As of every commit from `first` on, with some hidden that came later; not before it, if that is gone.

        The short form reads as of every other commit.
        """
        mirror, table = tidemark.open(self.lake.path, spark), self.table
        if read_retained(self.lake.path) > Lsn.ZERO:
            for below in (Boundary(table.lsn(first - 1)), Boundary(table.lsn(last), frozenset({table.lsn(first)}))):
                with pytest.raises(NotAnswerable, match=f"the history is kept from {table.lsn(first)} on"):
                    mirror.at(below)
        for end in range(last, first - 1, -2 if short else -1):
            nothing = [frozenset[int]()] * len(table.histories)
            for hidden in (table.hidden(end, chance, first), *([nothing] if end in (first, last) else [])):
                excluded = frozenset(table.lsn(n, sub) for sub, some in enumerate(hidden) for n in some)
                found: dict[int, Counter[str]] = defaultdict(Counter)
                for row in mirror.at(Boundary(table.lsn(end), excluded)).table("public.t").collect():
                    found[row[0]][repr(tuple(row[1:]))] += 1
                for sub, history in enumerate(table.histories):
                    visible = frozenset(range(min(end + 1, len(history)))) - hidden[sub]
                    assert found[sub] == rows_after(history, visible, table.keyed), (end, hidden[sub], history)


@pytest.mark.parametrize(
    ("identity", "truncated"),
    [
        pytest.param(each, truncated, marks=() if (each, truncated) in QUICK else pytest.mark.full)
        for truncated, identities in (
            (False, list(Identity)),
            (True, [i for i in Identity if i is not Identity.NOTHING]),
        )
        for each in identities
    ],
    ids=lambda value: value.value if isinstance(value, Identity) else "truncated" if value else "",
)
def test_every_reader_sees_the_models_rows_wherever_the_table_is_folded_to(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    identity: Identity,
    truncated: bool,
    short: bool,
) -> None:
    """What is not folded is merged by the reader, and once by Spark, as where it is much.

    The rows that it replaces are left out by their places, or in a table that is truncated by their keys.
    """
    if not truncated:
        monkeypatch.setattr(places, "WORTH_ROWS", 1)
    table, chance = many(identity, truncated, 8 if short else 25), random.Random(0)  # noqa: S311 - it is to be the same every time
    made = MadeLake(tmp_path, table)
    first, second, last = 1, 3, table.length - 1
    made.apply(table.lsn(first))
    made.fold(spark)
    made.apply(table.lsn(second))
    made.require(spark, 0, second, chance, short=short)
    made.fold(spark)
    made.expire(first)
    made.apply(table.lsn(last))
    with monkeypatch.context() as patch:
        patch.setattr(few, "ROWS", 0)
        made.require(spark, first, last, chance, short=short)
    made.fold(spark)
    made.expire(second)
    made.require(spark, second, last, chance, short=short)
