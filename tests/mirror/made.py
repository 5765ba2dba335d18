"""Histories of the model in a lake that is written without a server: many histories are the rows of one table.

They are told apart by its first column. Their commits have positions of their own, so one boundary hides other commits
of each. Where they are truncated they commit together.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import HealthCheck, Phase, given, settings

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
    said,
)
from tests.mirror.wire import OID, TYPES, decoded
from tidemark.clock import Lsn
from tidemark.lake.changes import change_writer
from tidemark.lake.columns import COMMIT_VERSION, StoredColumn, stored_columns
from tidemark.lake.commits import ChangeTable
from tidemark.lake.files import DataFile, FileWriter
from tidemark.lake.key_index import KeyIndexWriter
from tidemark.lake.lake import Lake
from tidemark.lake.paths import CHANGES, VERSIONS
from tidemark.lake.registers import Cycle, Cycles, Tables
from tidemark.lake.versions import VersionTable, prefix, version_schema
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.history import TableEvent, TableEventKind, table_path
from tidemark.schema.table import Column, Generated, Persistence, PgType
from tidemark.values.hashes import buckets_of

BASE = Lsn(1)
WIDE = 200  # more than there are histories
KEYED = "sub int, id int, large string, other string, number int"
MULTISET = "sub int, x double, s string"
TRUNCATES = frozenset({2})
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

    def versions(self, upto: Lsn) -> Iterator[tuple[int, Row, Lsn, Lsn | None]]:
        """Every version of a row up to a position, by the model's own replay: the nth removal ends the nth addition."""
        for sub, history in enumerate(self.histories):
            living: dict[str, deque[tuple[Row, Lsn]]] = defaultdict(deque)
            for commit, ops in enumerate(history):
                lsn = self.lsn(commit, WIDE - 1 if self.together else sub)
                if lsn > upto:
                    break
                for op in ops:
                    gone = list(living) if op.is_truncate else [self._name(op.old)] if op.old is not None else []
                    for name in gone:
                        ends = len(living[name]) if op.is_truncate else 1
                        for row, begin in (living[name].popleft() for _ in range(ends)):
                            if begin < lsn:
                                yield sub, row, begin, lsn
                    if op.new is not None:
                        living[self._name(op.new)].append((op.new, lsn))
            yield from ((sub, row, begin, None) for rows in living.values() for row, begin in rows)

    def _name(self, row: Row) -> str:
        return repr(row[0] if self.keyed else row)

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

    def fold_here(self, buckets: int) -> None:
        """Write the versions up to here as the model has them, in this process."""
        stored = tuple(column for column in stored_columns(self.rows.schema) if not column.text)
        folder = self.lake.path / table_path(OID) / VERSIONS
        table = VersionTable.create(folder, stored)
        adds = list(self._written(folder, stored, buckets))
        table.rewrite(adds, stored, self.applied, BASE)

    def _written(self, folder: Path, stored: tuple[StoredColumn, ...], buckets: int) -> Iterator[DataFile]:
        rows = pa.Table.from_pylist(
            [
                dict(zip(version_schema(stored).names, (sub, *row, begin.value, end and end.value), strict=True))
                for sub, row, begin, end in self.table.versions(self.applied)
            ],
            version_schema(stored),
        )
        key = [rows[column.name].combine_chunks() for column in stored[: 2 if self.table.keyed else None]]
        where = buckets_of(key, buckets)
        for bucket in range(buckets):
            for live in (True, False):
                some = rows.filter(pa.array(where == bucket)).filter(pc.field("_end_lsn").is_null() == live)
                if len(some):
                    index = KeyIndexWriter(stored[:2]) if live and self.table.keyed else None
                    writer = FileWriter(folder, prefix(bucket, buckets, live=live), index=index)
                    writer.write(some)
                    yield writer.close()
