"""The local engine: its relations and aggregates, its limits, and what it is closed to."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.local import database
from tidemark.engines.duckdb import LocalDatabase, LocalEngine
from tidemark.engines.duckdb_sql import arrow_type
from tidemark.errors import EngineRefused, LakeDamaged
from tidemark.reads.local import LocalRows
from tidemark.reads.shown import Shown
from tidemark.split import ir
from tidemark.split.ir import INT4, INT8, TEXT, Aggregate, AggregateCall, JoinKind, Op, TypedColumn

pytestmark = pytest.mark.quick

DOUBLE = ir.DataType(ir.Kind.FLOAT8)
WIDE = ir.decimal(38, 0)
LEFT: dict[str, list[object]] = {"id": [1, 2, 3, None], "name": ["a", "b", "b", None]}
RIGHT: dict[str, list[object]] = {"id": [2, 3, 3, None], "name": ["x", "y", "z", "n"]}
A, B, C, D = TypedColumn("a", INT4), TypedColumn("b", TEXT), TypedColumn("c", INT4), TypedColumn("d", TEXT)
L, R = (ir.Scan(oid, ((1, one), (2, other))) for oid, one, other in ((1, A, B), (2, C, D)))
SAME = ir.Call(Op.EQ, (A, C), ir.BOOL)


def rows(values: Mapping[str, Sequence[object]], *types: ir.DataType) -> LocalRows:
    kinds = [arrow_type(type_) for type_ in types]
    shown = tuple(
        Shown(name, name, n, kind, False, None) for n, (name, kind) in enumerate(zip(values, kinds, strict=True), 1)
    )
    name = f"given_{abs(hash(repr((values, types))))}"
    arrays = {
        f"v{n}": pa.array(each, kind) for n, (each, kind) in enumerate(zip(values.values(), kinds, strict=True), 1)
    }
    return LocalRows(shown, f"SELECT * FROM {name}", {name: pa.table(arrays)})


def run(relation: ir.Relation, *columns: TypedColumn, most_rows: int = 1000) -> list[tuple[object, ...]]:
    tables = {1: rows(LEFT, INT4, TEXT), 2: rows(RIGHT, INT4, TEXT)}
    found = LocalEngine(database(), tables.__getitem__).run(ir.Bottom(relation, columns), most_rows)
    assert [field.type for field in found.schema] == [arrow_type(column.type) for column in columns]
    values: list[tuple[object, ...]] = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
    return sorted(values, key=repr)


JOINED: dict[JoinKind, list[tuple[object, ...]]] = {
    JoinKind.INNER: [(2, 2), (3, 3), (3, 3)],
    JoinKind.LEFT: [(1, None), (2, 2), (3, 3), (3, 3), (None, None)],
    JoinKind.RIGHT: [(2, 2), (3, 3), (3, 3), (None, None)],
    JoinKind.FULL: [(1, None), (2, 2), (3, 3), (3, 3), (None, None), (None, None)],
    JoinKind.SEMI: [(2,), (3,)],
    JoinKind.ANTI: [(1,), (None,)],
}


@pytest.mark.parametrize("kind", JOINED)
def test_a_join_returns_the_rows_that_it_means(kind: JoinKind) -> None:
    columns = (A,) if kind in (JoinKind.SEMI, JoinKind.ANTI) else (A, C)
    assert run(ir.Join(kind, L, R, SAME), *columns) == sorted(JOINED[kind], key=repr)


def test_a_join_without_a_condition_is_of_all_rows() -> None:
    assert len(run(ir.Join(JoinKind.INNER, L, R, None), A, C)) == 16
    less = ir.Call(Op.LT, (A, C), ir.BOOL)
    assert run(ir.Join(JoinKind.ANTI, L, R, less), A) == [(3,), (None,)]


def test_exists_looks_at_the_row_around_it() -> None:
    exists = ir.Exists(R, SAME)
    assert run(ir.Filter(L, exists), A) == [(2,), (3,)]
    assert run(ir.Filter(L, ir.Call(Op.NOT, (exists,), ir.BOOL)), A) == [(1,), (None,)]


def test_groups_have_null_as_a_value_and_aggregates_ignore_it() -> None:
    names = [TypedColumn(f"r{n}", INT8) for n in range(4)]
    large = ir.Call(Op.GT, (A, ir.Constant(2, INT4)), ir.BOOL)
    calls = (
        AggregateCall(Aggregate.COUNT_ROWS, None, INT8),
        AggregateCall(Aggregate.COUNT, A, INT8, large),
        AggregateCall(Aggregate.COUNT_DISTINCT, B, INT8),
        AggregateCall(Aggregate.SUM, ir.Call(Op.CAST, (A,), INT8), INT8),
    )
    key = TypedColumn("k", TEXT)
    grouped = ir.Group(L, ((key, B),), tuple(zip(names, calls, strict=True)))
    assert run(grouped, key, *names) == [("a", 1, 0, 1, 1), ("b", 2, 1, 1, 5), (None, 1, 0, 0, None)]
    nobody = ir.Filter(L, ir.Constant(False, ir.BOOL))
    assert run(ir.Group(nobody, (), grouped.aggregates), *names) == [(0, 0, 0, None)]
    constant = ir.Group(L, ((TypedColumn("one", INT4), ir.Constant(1, INT4)),), ((names[0], calls[0]),))
    assert run(constant, TypedColumn("one", INT4), names[0]) == [(1, 4)]


def test_unions_distinct_rows_and_a_row_without_columns() -> None:
    x = TypedColumn("x", TEXT)
    union = ir.Union((x,), ((L, (B,)), (R, (D,))))
    assert len(run(union, x)) == 8
    assert len(run(ir.Distinct(union), x)) == 7
    assert run(ir.Project(ir.OneRow(), ((x, ir.Constant("it's \\ ; --", TEXT)),)), x) == [("it's \\ ; --",)]
    rows_alone = ir.Join(JoinKind.INNER, ir.Scan(1, ()), ir.Scan(2, ()), None)
    assert run(
        ir.Group(rows_alone, (), ((TypedColumn("n", INT8), AggregateCall(Aggregate.COUNT_ROWS, None, INT8)),)),
        TypedColumn("n", INT8),
    ) == [(16,)]


@pytest.mark.parametrize("values", [["9" * 38, "1"], ["-" + "9" * 38, "-1"]], ids=["above", "below"])
def test_a_sum_of_more_than_38_digits_fails(values: list[str]) -> None:
    given = rows({"n": [Decimal(each) for each in values]}, WIDE)
    n, total = TypedColumn("n", WIDE), TypedColumn("t", WIDE)
    scan = ir.Scan(1, ((1, n),))
    summed = ir.Group(scan, (), ((total, AggregateCall(Aggregate.SUM, n, WIDE)),))
    with pytest.raises(EngineRefused, match="exactly"):
        LocalEngine(database(), lambda _: given).run(ir.Bottom(summed, (total,)))
    assert LocalEngine(database(), lambda _: given).run(ir.Bottom(scan, (n,))).num_rows == 2


def test_what_is_not_proven_is_refused() -> None:
    given = rows({"f": [0.5], "t": ["a"]}, DOUBLE, TEXT)
    f, t = TypedColumn("f", DOUBLE), TypedColumn("t", TEXT)
    scan = ir.Scan(1, ((1, f), (2, t)))
    refused: list[ir.Relation] = [
        ir.Group(scan, (), ((TypedColumn("x", DOUBLE), AggregateCall(Aggregate.SUM, f, DOUBLE)),)),
        ir.Project(scan, ((TypedColumn("x", DOUBLE), ir.Call(Op.ADD, (f, f), DOUBLE)),)),
        ir.Project(scan, ((TypedColumn("x", INT4), ir.Call(Op.CAST, (t,), INT4)),)),
        ir.Project(scan, ((TypedColumn("x", INT4), ir.Scalar(0, INT4)),)),
        ir.Project(scan, ((TypedColumn("x", ir.BOOL), ir.Call(Op.LIKE, (t, ir.Constant("a\\%", TEXT)), ir.BOOL)),)),
        ir.Project(ir.Scan(1, ((1, TypedColumn("x", TEXT)),)), ()),
    ]
    for relation in refused:
        with pytest.raises(EngineRefused):
            LocalEngine(database(), lambda _: given).run(ir.Bottom(relation, (TypedColumn("x", INT4),)))


@pytest.mark.parametrize(
    "condition",
    [
        "a + CAST(1 AS INTEGER) > CAST(0 AS INTEGER)",
        "CAST(1 AS INTEGER) - b < CAST(5 AS INTEGER)",
        "a * CAST(2 AS INTEGER) = CAST(10 AS INTEGER)",
        "CAST(a AS SMALLINT) = CAST(5 AS SMALLINT)",
        "(a + a) IS NULL",
        "(a + a) IS NOT NULL",
        "a + a = a + a",
        "a + CAST(2000000000 AS INTEGER) + CAST(-2000000000 AS INTEGER) > CAST(0 AS INTEGER)",
    ],
)
@pytest.mark.parametrize("is_file", [False, True])
def test_no_rule_of_the_optimizer_removes_an_overflow(tmp_path: Path, condition: str, is_file: bool) -> None:
    values = pa.table(
        {"a": pa.array([2**31 - 1, 2**31 - 1], pa.int32()), "b": pa.array([-(2**31) + 1] * 2, pa.int32())}
    )
    pq.write_table(values, tmp_path / "given.parquet")
    query = f"SELECT * FROM read_parquet('{tmp_path / 'given.parquet'}')" if is_file else "SELECT * FROM numbers_given"
    with database().session() as session:
        session.hold(LocalRows((), query, {} if is_file else {"numbers_given": values}))
        with pytest.raises(EngineRefused):
            session.run(f"SELECT count(*) FROM ({query}) WHERE {condition}", pa.schema([("n", pa.int64())]))


@pytest.mark.parametrize("unit", ["day", "month", "quarter", "year"])
def test_a_truncated_null_differs_from_no_time(unit: str) -> None:
    times = pa.table({"t": pa.array([None, datetime(2020, 3, 4, 5)], pa.timestamp("us"))})
    with database().session() as session:
        session.hold(LocalRows((), "SELECT * FROM times_given", {"times_given": times}))
        for condition in ("<> TIMESTAMP '2019-12-30 01:00:00'", "= TIMESTAMP '2019-12-30 01:00:00'"):
            query = f"SELECT t FROM times_given WHERE (date_trunc('{unit}', t) {condition}) IS NULL"
            assert session.run(query, times.schema).to_pydict() == {"t": [None]}


def test_more_rows_than_the_limit_are_refused() -> None:
    assert len(run(L, A, most_rows=4)) == 4
    with pytest.raises(EngineRefused, match="more than 3 rows"):
        run(L, A, most_rows=3)


def test_a_statement_is_cancelled_from_another_thread() -> None:
    numbers = rows({"n": list(range(100_000))}, INT4)
    one, other = (ir.Scan(1, ((1, TypedColumn(name, INT4)),)) for name in ("x", "y"))
    pairs = ir.Join(
        JoinKind.INNER, one, other, ir.Call(Op.LT, (TypedColumn("x", INT4), TypedColumn("y", INT4)), ir.BOOL)
    )
    counted = ir.Group(pairs, (), ((TypedColumn("n", INT8), AggregateCall(Aggregate.COUNT_ROWS, None, INT8)),))
    engine = LocalEngine(database(), lambda _: numbers)
    timer = threading.Timer(0.3, engine.cancel)
    timer.start()
    with pytest.raises(EngineRefused, match="cancelled"):
        engine.run(ir.Bottom(counted, (TypedColumn("n", INT8),)))
    timer.join()
    with pytest.raises(EngineRefused, match="cancelled"):
        engine.run(ir.Bottom(ir.OneRow(), ()))


def test_a_statement_that_needs_more_memory_than_there_may_be_is_refused(tmp_path: Path) -> None:
    small = LocalDatabase(tmp_path, threads=1, memory_bytes=16 << 20)
    with small.session() as session, pytest.raises(EngineRefused, match="memory"):
        session.run("SELECT count(DISTINCT hash(n)) FROM range(20_000_000) AS r (n)", pa.schema([("n", pa.int64())]))
    small.close()


CLOSED = [
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM glob('/etc/*')",
    "COPY (SELECT 1) TO '/tmp/written.csv'",
    "ATTACH '/tmp/other.db'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "SET memory_limit = '100GB'",
    "SELECT * FROM local_variable",
]


@pytest.mark.parametrize("statement", CLOSED)
def test_a_database_is_closed_to_the_outside(tmp_path: Path, statement: str) -> None:
    local_variable = pa.table({"secret": ["secret"]})
    lake = LocalDatabase(tmp_path / "lake", threads=1)
    with lake.session() as session, pytest.raises((EngineRefused, LakeDamaged)) as caught:
        session.run(statement, local_variable.schema)
    assert statement not in str(caught.value)
    lake.close()


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT CAST('very secret' AS INTEGER)",
        "SELECT CAST(CASE WHEN n = 2999999 THEN 'very secret' ELSE '1' END AS INTEGER) FROM range(3000000) AS r (n)",
    ],
    ids=["at once", "after many rows"],
)
def test_an_error_has_no_value_of_the_statement(statement: str) -> None:
    with database().session() as session, pytest.raises(EngineRefused) as caught:
        session.run(statement, pa.schema([("n", pa.int32())]))
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
