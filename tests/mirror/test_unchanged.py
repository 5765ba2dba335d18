"""Unchanged TOAST values: both forms of the rule find the values that a plain model of a table holds.

A history is a list of operations on rows with two key columns, one of them large, two large columns and a number. The
model holds all values; what the stream would send of each operation is the input of the forms. The first operations may
be folded, one large column may be added on the way and the other one dropped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from tidemark.lake.columns import OURS
from tidemark.mirror.row_history import AT_FIRST, COPIED, STEP, row_versions
from tidemark.pipeline.fold.merge import BEGIN, EVENTS, Merging, merge
from tidemark.reads.contents import contents
from tidemark.reads.few import merged_here
from tidemark.reads.shape import META, Base, ChangeFacts, Shape, ShownColumn
from tidemark.reads.unchanged import LOST, _carries, _carrying, by_row, keys_from_preimages_here, sources_of

pytestmark = pytest.mark.quick

NAMES = {"sub": 1, "a": 2, "b": 3, "big": 4, "other": 5, "n": 6}
KINDS = {
    "sub": pa.int64(),
    "a": pa.int64(),
    "b": pa.string(),
    "big": pa.string(),
    "other": pa.string(),
    "n": pa.int64(),
}
DDL = "sub bigint, a bigint, b string, big string, other string, n bigint"
CHANGE = pa.schema([*KINDS.items(), *((name, OURS.field(name).type) for name in META)])
CHANGE_DDL = f"{DDL}, _change_type string, _commit_version bigint, _ordinal bigint, _unchanged string, _truncate int"
MISSING = "the value of rows that are older than the column"
KEY = ("sub", "a", "b")
AT_TRUNCATE = 1000
UNSURE = ChangeFacts(only_inserts=False, truncates=True, unchanged=True, preimages=True)

Row = dict[str, Any]
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["update", "move", "move", "update", "move", "delete", "update", "move", "truncate"]),
        st.integers(0, 2),
        st.integers(1, 3),
        st.sampled_from([0, 4, 1, 2, 3, 8, 9]),
    ),
    min_size=6,
    max_size=20,
)


def shape_of(*, dropped: bool) -> Shape:
    columns = tuple(ShownColumn(name, attnum) for name, attnum in NAMES.items() if not (dropped and name == "other"))
    return Shape(columns, tuple(NAMES[name] for name in KEY))


def is_large(value: Any) -> bool:
    return str(value).startswith("L")


@dataclass
class Case:
    """The rows of a table after each operation, and the changes since `folded`. `full` is the replica identity."""

    sub: int
    full: bool
    folded: int
    added: int
    dropped: int | None
    rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    base: list[Row] = field(default_factory=list)
    changes: list[Row] = field(default_factory=list)
    at: int = 0

    @property
    def shape(self) -> Shape:
        return shape_of(dropped=self.dropped is not None)

    @property
    def truncates(self) -> bool:
        return any(change["_change_type"] == "truncate" for change in self.changes)

    def play(self, operations: list[tuple[str, int, int, int]]) -> Case:
        for self.at, (kind, a, to, mask) in enumerate(operations):
            if self.at == self.folded:
                self.base = list(self.rows.values())
            key = next((key for key in self.rows if key[1] == a), None)
            if kind == "truncate":
                self.rows.clear()
                self._send("truncate", {})
            elif key is None:
                self._insert((self.sub, a, "Lkey" if mask & 8 else "key"))
            elif kind == "delete":
                self._send("delete", self._old(self.rows.pop(key)))
            elif kind == "move" and not any(other[1] == (a + to) % 4 for other in self.rows):
                self._update(
                    key, (self.sub, (a + to) % 4, {"Lkey": "key", "key": "Lkey"}[key[2]] if mask & 8 else key[2]), mask
                )
            else:
                self._update(key, key, mask)
        if self.at < self.folded:
            self.base = list(self.rows.values())
        return self

    def _insert(self, key: tuple[Any, ...]) -> None:
        row = {**dict(zip(KEY, key, strict=True)), **self._values(15), "n": self.at}
        self.rows[key] = row
        self._send("insert", row)

    def _update(self, key: tuple[Any, ...], to: tuple[Any, ...], mask: int) -> None:
        old = self.rows.pop(key)
        new = {**old, **dict(zip(KEY, to, strict=True)), **self._values(mask), "n": self.at}
        self.rows[to] = new
        unsent = (
            []
            if self.full
            else [name for name in ("b", *self._large()) if new[name] is old[name] and is_large(new[name])]
        )
        if self.full or key != to or is_large(key[2]):
            self._send("update_preimage", self._old(old))
        text = f",{','.join(str(NAMES[name]) for name in unsent)}," if unsent else None
        self._send("update_postimage", {**new, **dict.fromkeys(unsent)}, text)

    def _large(self) -> list[str]:
        """The large columns that the table has now."""
        there = {"big": self.at >= self.added, "other": self.dropped is None or self.at < self.dropped}
        return [name for name, is_there in there.items() if is_there]

    def _values(self, mask: int) -> Row:
        """New values: large, small or null, none of them twice."""
        made = {}
        for place, name in enumerate(self._large()):
            if mask >> place & 1:
                made[name] = [f"L{name} {self.at}", f"small {name} {self.at}", None, f"L{name} {self.at}"][self.at % 4]
        return made if "big" in self._large() else {"big": MISSING, **made}

    def _old(self, row: Row) -> Row:
        return row if self.full else {name: row[name] for name in KEY}

    def _send(self, kind: str, row: Row, unchanged: str | None = None) -> None:
        if self.at >= self.folded:
            ours = {"_change_type": kind, "_commit_version": self.at // 3 + 1, "_ordinal": self.at}
            self.changes.append(
                {**row, **ours, "_unchanged": unchanged, "_truncate": 0 if kind == "truncate" else None}
            )

    def expected(self) -> Counter[str]:
        return Counter(repr(tuple(row.get(name) for name in self.shape.names)) for row in self.rows.values())


@st.composite
def cases(draw: st.DrawFn, sub: int = 0) -> Case:
    operations = draw(OPERATIONS)
    some = st.integers(0, len(operations))
    dropped = draw(st.none() | some)
    return Case(sub, draw(st.integers(0, 3)) == 3, draw(some), draw(st.just(0) | some), dropped).play(operations)


def printed(rows: list[Row], shape: Shape) -> Counter[str]:
    return Counter(repr(tuple(row[cell] for cell in shape.cells)) for row in rows)


def celled(rows: list[Row], shape: Shape) -> pa.Table:
    names = list(shape.names)
    return pa.Table.from_pylist(rows, pa.schema([(name, KINDS[name]) for name in names])).rename_columns(shape.cells)


# --- in this process ----------------------------------------------------------------------------------------------


def merged(case: Case) -> list[Row]:
    """The rows of a short query: few changes over folded rows."""
    shape, base = case.shape, celled(case.base, case.shape).to_pylist()
    few = merged_here(pa.Table.from_pylist(case.changes, CHANGE), shape)
    assert few is not None
    touched = {tuple(row.values()) for row in few.touched.to_pylist()}
    by_key = {tuple(row[cell] for cell in shape.key_cells): row for row in base}
    left = [] if few.truncated else [row for key, row in by_key.items() if key not in touched]
    return [*left, *few.rows.to_pylist(), *(_completed(row, by_key, shape) for row in _rows(few.incomplete))]


def _rows(table: pa.Table | None) -> list[Row]:
    rows: list[Row] = [] if table is None else table.to_pylist()
    return rows


def _completed(row: Row, by_key: Mapping[tuple[Any, ...], Row], shape: Shape) -> Row:
    folded = by_key[tuple(row[f"its_{cell}"] for cell in shape.key_cells)]
    large = [cell for cell in shape.cells if row.get(f"folded{cell[1:]}")]
    return {**row, **{cell: folded[cell] for cell in large}}


def steps_of(case: Case) -> pa.Table:
    """The folded rows and the changes, as the steps of a row history."""
    columns = {**dict(zip(OURS.names, STEP, strict=True)), **dict(zip(case.shape.names, case.shape.cells, strict=True))}
    first = {"_change_type": COPIED, "_commit_version": 0, "_ordinal": AT_FIRST}
    rows = [*({**row, **first} for row in case.base), *case.changes]
    schema = pa.schema([*((name, KINDS[name]) for name in case.shape.names), *OURS])
    return pa.Table.from_pylist(rows[::-1], schema).rename_columns([columns[name] for name in schema.names])


def living(case: Case) -> list[Row]:
    """The last versions in the history of each row."""
    steps, found = steps_of(case), []
    for a in range(4):
        for b in ("key", "Lkey"):
            key = pa.table({"v1": [case.sub], "v2": [a], "v3": [b]})
            found += [row for row in row_versions(steps, key, case.shape).to_pylist() if row["_end_lsn"] is None]
    return found


def folded(case: Case) -> list[Row]:
    """The live rows of a fold with one bucket."""
    shape, steps = case.shape, keys_from_preimages_here(steps_of(case), case.shape)
    truncates = tuple(
        (row["_commit_version"], row["_ordinal"]) for row in case.changes if row["_change_type"] == "truncate"
    )
    unsent = {column.attnum: column.cells for column in shape.not_in_key}
    is_change = [kind not in (COPIED, "truncate") for kind in steps["kind"].to_pylist()]
    changes = steps.filter(pa.array(is_change, pa.bool_())).select([*shape.cells, *EVENTS.names])
    texts = pc.replace_substring(changes["unchanged"], f",{NAMES['b']},", ",")  # as Spark leaves them
    changes = changes.set_column(changes.column_names.index("unchanged"), "unchanged", texts)
    live = celled(case.base, shape)
    live = live.append_column(BEGIN, pa.array([0] * len(live), pa.int64()))
    return _rows(merge(Merging(shape.cells, shape.key_cells, unsent, truncates), live, changes).live)


@given(cases())
def test_short_queries_row_histories_and_folds_find_the_values_of_the_model(case: Case) -> None:
    for form in (merged, living, folded):
        assert printed(form(case), case.shape) == case.expected(), form.__name__


@pytest.mark.parametrize(
    ("removal", "source"), [("delete", LOST), ("update_preimage", LOST), ("truncate", ~2), ("insert", 1)]
)
def test_a_row_that_was_removed_provides_no_value(removal: str, source: int) -> None:
    """The last update has no row before it, unless a new one was inserted; after a TRUNCATE, it is an older row."""
    steps = pa.table(
        {
            "commit": [1, 2, 3],
            "ordinal": [1, 1, 1],
            "kind": ["insert", removal, "update_postimage"],
            "unchanged": [None, None, ",4,"],
        }
    )
    keys = np.array([1, 0 if removal == "truncate" else 1, 1])
    assert sources_of(steps, keys, by_row(steps, keys), [4])[4].tolist()[2] == source


# --- in Spark -----------------------------------------------------------------------------------------------------


def many(count: int) -> list[Case]:
    found: list[Case] = []

    @settings(max_examples=count, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(st.data())
    def collect(data: st.DataObject) -> None:
        found.append(data.draw(cases(len(found))))

    collect()
    return found


def placed(case: Case) -> Iterator[Row]:
    """The changes at positions of their own, but for the last TRUNCATE, which has the same position in all cases."""
    last = max((n for n, row in enumerate(case.changes) if row["_change_type"] == "truncate"), default=-1)
    for n, row in enumerate(case.changes):
        if row["_change_type"] != "truncate":
            commit = row["_commit_version"] + (AT_TRUNCATE if n > last else 0)
            yield {**row, "_commit_version": commit, "_ordinal": case.sub * 100 + row["_ordinal"]}


def answers(spark: SparkSession, some: list[Case], *, truncated: bool, dropped: bool) -> DataFrame:
    """The rows of cases that are parts of one table, told apart by its first column."""
    rows = [row for case in some for row in placed(case)]
    if truncated:
        rows.append({"_change_type": "truncate", "_commit_version": AT_TRUNCATE, "_ordinal": 0, "_truncate": 0})
    changes = spark.createDataFrame(pa.Table.from_pylist(rows, CHANGE), CHANGE_DDL)
    shape = shape_of(dropped=dropped)
    base = spark.createDataFrame(celled([row for case in some for row in case.base], shape))
    found = contents(changes, shape, UNSURE, Base(base))
    return found if not dropped else found.selectExpr("sub", "a", "b", "big", "null as other", "n")


@pytest.mark.full
@pytest.mark.spark
def test_spark_finds_the_values_of_the_model(interpreted: SparkSession) -> None:
    found: dict[int, Counter[str]] = {}
    every, frames = many(300), []
    for truncated, dropped in product((False, True), repeat=2):
        some = [case for case in every if (case.truncates, case.dropped is not None) == (truncated, dropped)]
        frames += [answers(interpreted, some, truncated=truncated, dropped=dropped)] if some else []
    by_sub = {case.sub: case for case in every}
    for row in reduce(DataFrame.unionAll, frames).collect():
        found.setdefault(row["sub"], Counter())[repr(tuple(row[name] for name in by_sub[row["sub"]].shape.names))] += 1
    for case in every:
        assert found.get(case.sub, Counter()) == case.expected(), case


def test_a_carried_row_has_the_values_that_its_step_sent_and_no_others() -> None:
    """The insert sent columns 4 and 5, the update column 5 again; the row is then moved with both unchanged."""
    steps = pa.table(
        {
            "commit": [1, 2, 3, 3],
            "ordinal": [1, 1, 1, 1],
            "kind": ["insert", "update_postimage", "update_preimage", "update_postimage"],
            "number": [1, 1, 1, 2],
            "unchanged": [None, ",4,", None, ",4,5,"],
        }
    )
    found = [(row["from_commit"], row["unchanged"]) for row in _carries(steps, (4, 5)).to_pylist()]
    assert found == [(1, ",5,"), (2, ",4,")]


def test_a_task_that_finds_carried_rows_needs_no_tidemark(tmp_path: Path) -> None:
    """The update moves key 1 to key 2, and the value is the one that the insert sent."""
    steps = pa.table(
        {
            "commit": [1, 2, 2],
            "ordinal": [1, 1, 1],
            "kind": ["insert", "update_preimage", "update_postimage"],
            "number": [1, 1, 2],
            "unchanged": [None, None, ",4,"],
        }
    )
    (tmp_path / "task").write_bytes(cloudpickle.dumps((_carrying((4, 5)), steps.to_batches())))  # type: ignore[no-untyped-call]
    program = """
import pickle, sys
sys.modules["tidemark"] = None
task, batches = pickle.load(open(sys.argv[1], "rb"))
print([batch.to_pylist() for batch in task(iter(batches))])
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", program, str(tmp_path / "task")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    carried = {"commit": 2, "ordinal": 1, "from_commit": 1, "from_ordinal": 1, "number": 1, "unchanged": ",5,"}
    assert eval(done.stdout) == [[carried]]  # noqa: S307 - what was printed above
