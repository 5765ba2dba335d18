"""Each operation that the local engine computes gives PostgreSQL's value, or is refused; never another value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from harness.database import Database
from harness.local import database
from harness.printed import printed
from tests.conftest import NEWEST
from tests.engines.operations import OPERATIONS, Operation, name_of
from tidemark.engines.duckdb import LocalEngine
from tidemark.engines.duckdb_sql import arrow_type
from tidemark.errors import EngineRefused
from tidemark.postgres.session import Session
from tidemark.reads.local import LocalRows
from tidemark.reads.shown import Shown
from tidemark.split import ir
from tidemark.values.cells import Cells, DecodedColumn
from tidemark.values.types import Types, decoding_of

pytestmark = pytest.mark.quick

TABLE = 4711
OIDS = {
    ir.Kind.BOOL: 16,
    ir.Kind.INT2: 21,
    ir.Kind.INT4: 23,
    ir.Kind.INT8: 20,
    ir.Kind.FLOAT4: 700,
    ir.Kind.FLOAT8: 701,
    ir.Kind.TEXT: 25,
    ir.Kind.BINARY: 17,
    ir.Kind.DATE: 1082,
    ir.Kind.TIMESTAMP: 1114,
    ir.Kind.TIMESTAMPTZ: 1184,
}


def decoded(type_: ir.DataType, texts: Sequence[str | None]) -> pa.Array:
    """The values as the lake has them."""
    raw = [b"" if text is None else text.encode() for text in texts]
    lengths = np.array([-1 if text is None else len(each) for text, each in zip(texts, raw, strict=True)], np.int32)
    offsets = np.cumsum([0, *map(len, raw[:-1])]).astype(np.int64)
    cells = Cells(np.frombuffer(b"".join(raw) + b" ", np.uint8), offsets, lengths)
    typmod = (type_.precision << 16 | type_.scale) + 4 if type_.kind is ir.Kind.DECIMAL else -1
    oid = 1700 if type_.kind is ir.Kind.DECIMAL else OIDS[type_.kind]
    array = decoding_of(oid, typmod, Types()).decode(cells, False).array
    assert array.type == arrow_type(type_)
    return array


def by_duckdb(operation: Operation, rows: list[tuple[str | None, ...]]) -> list[str | None]:
    expr = operation.expr()
    names = "abc"[: len(operation.types)]
    columns = [
        Shown(name, name, n, arrow_type(type_), False, None)
        for n, (name, type_) in enumerate(zip(names, operation.types, strict=True), 1)
    ]
    arrays = {f"v{n}": decoded(type_, [row[n - 1] for row in rows]) for n, type_ in enumerate(operation.types, 1)}
    bound = pa.table({**arrays, "n": pa.array(range(len(rows)), pa.int32())})
    columns.append(Shown("n", "n", 9, pa.int32(), False, None))
    query = f"SELECT {', '.join(arrays)}, n AS v9 FROM operands"
    local = LocalRows(tuple(columns), query, {"operands": bound})
    number = ir.TypedColumn("n", ir.INT4)
    scanned = [
        (n, ir.TypedColumn(name, type_)) for n, (name, type_) in enumerate(zip(names, operation.types, strict=True), 1)
    ]
    scan = ir.Scan(TABLE, (*scanned, (9, number)))
    result = ir.TypedColumn("result", expr.type)
    bottom = ir.Bottom(ir.Project(scan, ((number, number), (result, expr))), (number, result))
    found = LocalEngine(database(), {TABLE: local}.__getitem__).run(bottom, 1 << 20).sort_by("n")
    return printed(DecodedColumn(found["result"].combine_chunks()))


def by_postgres(session: Session, operation: Operation, rows: list[tuple[str | None, ...]]) -> list[str | None]:
    names = "abc"[: len(operation.types)]
    arrays = ", ".join("%s::text[]" for _ in names)
    typed = ", ".join(
        f"{name}_text::{name_of(type_)} as {name}" for name, type_ in zip(names, operation.types, strict=True)
    )
    shown = operation.sql.replace("%", "%%")  # which psycopg takes for a placeholder
    query = (
        f"select ({shown})::text from (select {typed}, n from unnest({arrays}) with ordinality"
        f" u ({', '.join(f'{name}_text' for name in names)}, n)) v order by n"
    )
    values = [[row[n] for row in rows] for n in range(len(names))]
    texts = [text for (text,) in session.connection.execute(query.encode(), values).fetchall()]
    if operation.expr().type == ir.BOOL:  # a cast to text prints the word, output the letter
        return [None if text is None else text[0] for text in texts]
    return texts


def require_same(session: Session, operation: Operation, rows: list[tuple[str | None, ...]]) -> tuple[int, int]:
    """Compare the results for these rows; return how many are equal, and how many are refused.

    Where an error occurs in either, the rows are halved until it is known which one causes it.
    """
    try:
        found = by_duckdb(operation, rows)
    except EngineRefused:
        return _halved(session, operation, rows) if len(rows) > 1 else (0, 1)
    try:
        with session.connection.transaction():
            wanted = by_postgres(session, operation, rows)
    except psycopg.DataError:
        if len(rows) == 1:
            raise
        return _halved(session, operation, rows)
    different = [each for each in zip(rows, found, wanted, strict=True) if each[1] != each[2]]
    assert not different, (operation.sql, [name_of(each) for each in operation.types], different[:3])
    return len(rows), 0


def _halved(session: Session, operation: Operation, rows: list[tuple[str | None, ...]]) -> tuple[int, int]:
    half = len(rows) // 2
    one, other = (require_same(session, operation, part) for part in (rows[:half], rows[half:]))
    return one[0] + other[0], one[1] + other[1]


@NEWEST
def test_every_operation_gives_postgresqls_value_or_is_refused(db: Database, short: bool) -> None:
    failures, equal, refused = [], 0, 0
    with db.session() as session:
        for operation in OPERATIONS[:: 11 if short else 1]:
            try:
                found = require_same(session, operation, operation.rows)
            except (AssertionError, psycopg.Error) as error:
                failures.append(f"{operation.sql} {[name_of(each) for each in operation.types]}: {error}")
            else:
                equal, refused = equal + found[0], refused + found[1]
                failures += [] if found[0] else [f"{operation.sql} is always refused"]
    assert not failures, "\n".join(failures)
    assert refused < equal / 10
