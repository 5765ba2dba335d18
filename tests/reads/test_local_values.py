"""The values that the local engine reads: of every stored type, of columns that files lack, and converted ones."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness.local import cells, database
from tidemark.clock import Boundary, Lsn
from tidemark.errors import EngineRefused
from tidemark.lake.columns import StoredColumn
from tidemark.lake.files import FileWriter
from tidemark.lake.versions import VersionFile, Versions
from tidemark.reads.local import LocalRows, _RowsQuery
from tidemark.reads.local_sql import cell_values, literal
from tidemark.reads.shown import Shown, ShownTable
from tidemark.values.cells import DecodedColumn
from tidemark.values.output import column_strings

pytestmark = pytest.mark.quick

NAN, INF = float("nan"), float("inf")
FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)
VALUES: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False],
    pa.int16(): [0, -(2**15), 2**15 - 1],
    pa.int32(): [0, -(2**31), 2**31 - 1],
    pa.int64(): [0, -(2**63), 2**63 - 1],
    pa.float32(): [0.0, -0.0, NAN, INF, -INF, 1e-45, 3.4028234663852886e38],
    pa.float64(): [0.0, -0.0, NAN, INF, -INF, 5e-324, 1.7976931348623157e308, 0.1],
    pa.string(): ["", "a", "it's", "x\\n\t\r\n", "日本語", "\U0001f600", "%_[*]", '"', "$1 {} ;--"],
    pa.binary(): [b"", b"\0", bytes(range(256))],
    pa.date32(): [date(1, 1, 1), date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31)],
    pa.timestamp("us"): [each.replace(tzinfo=None) for each in (FIRST, datetime(1969, 12, 31, 23, 59, 59, 1), LAST)],
    pa.timestamp("us", "UTC"): [FIRST, datetime(2026, 3, 29, 1, 30, tzinfo=UTC), LAST],
    pa.decimal128(5, 2): [Decimal("999.99"), Decimal("-0.01")],
    pa.decimal128(9, 9): [Decimal("0.999999999"), Decimal("0E-9")],
    pa.decimal128(18, 0): [Decimal(10**18 - 1), Decimal(-1)],
    pa.decimal128(38, 10): [Decimal(f"{'9' * 28}.{'9' * 10}"), Decimal("-1E-10")],
}
LISTS = {pa.list_(pa.field("element", kind)): [[], [values[0], None], values] for kind, values in VALUES.items()}


def same(found: pa.ChunkedArray, wanted: pa.Array) -> bool:
    """Bit by bit, so that zeros have their signs; every NaN is the same."""
    assert found.type == wanted.type
    return [repr(value) for value in found.to_pylist()] == [repr(value) for value in wanted.to_pylist()]


@pytest.mark.parametrize("kind", [*VALUES, *LISTS], ids=str)
def test_a_value_that_files_lack_is_a_literal_of_the_same_value(kind: pa.DataType) -> None:
    array = pa.array([*(VALUES | LISTS)[kind], None], kind)
    texts = ", ".join(f"{literal(value, kind)} AS c{n}" for n, value in enumerate(array))
    schema = pa.schema([(f"c{n}", kind) for n in range(len(array))])
    with database().session() as session:
        found = session.run(f"SELECT {texts}", schema)
    assert same(pa.chunked_array([column.combine_chunks() for column in found.columns]), array)


def test_files_are_read_with_every_stored_type_and_name(tmp_path: Path) -> None:
    """Also from a directory whose name is a pattern, and with names of columns that DuckDB itself uses."""
    folder = tmp_path / "a [b]*%20'c"
    folder.mkdir()
    names = ["filename", "file_index", "v1", "_begin lsn", 'quo"ted', "Select", "rowid"]
    kinds = list(VALUES | LISTS)
    stored = tuple(
        StoredColumn(names[n] if n < len(names) else f"c{n}", len(kinds) - n, kind) for n, kind in enumerate(kinds)
    )
    rows = max(map(len, (VALUES | LISTS).values())) + 1
    arrays = [pa.array([*values, *[None] * (rows - len(values))], kind) for kind, values in (VALUES | LISTS).items()]
    files = [_written(folder, stored, arrays) for _ in range(2)]
    shown = ShownTable(
        7, tuple(Shown(each.name, each.name, each.attnum, each.type, False, None) for each in stored), ()
    )
    query = _RowsQuery(shown)._of_files(Versions(folder, tuple(files), stored, Lsn(2), Lsn(1)), files)
    found = cells(LocalRows(shown.columns, query))
    for each, array in zip(stored, arrays, strict=True):
        assert same(found[f"v{each.attnum}"], pa.concat_arrays([array, array])), each


def test_rows_are_left_out_by_their_places_in_the_files_that_have_them(tmp_path: Path) -> None:
    stored = (StoredColumn("k", 1, pa.string()), StoredColumn("k~text", 1, pa.string(), text=True))
    arrays = [pa.array(["a", "b", "c"]), pa.array([None, "x", None], pa.string())]
    files = [_written(tmp_path, stored[:count], arrays[:count]) for count in (2, 1, 2, 1)]
    shown = ShownTable(7, (Shown("k", "k", 1, pa.string(), True, None),), (1,))
    query, versions = _RowsQuery(shown), Versions(tmp_path, tuple(files), stored, Lsn(2), Lsn(1))
    places = {file.name: pa.array([n % 3, 2]).to_numpy() for n, file in enumerate(files)}
    found = cells(LocalRows(shown.columns, query._not_at(versions, files, places), query.bound))
    left = sorted((row["v1"], row["t1"] or "") for row in found.to_pylist())
    assert left == [("a", ""), ("a", ""), ("b", ""), ("b", "x"), ("b", "x")]


def test_a_value_that_has_only_its_text_fails_the_query_that_reads_it() -> None:
    shown = (Shown("d", "d", 1, pa.date32(), True, None), Shown("n", "n", 2, pa.int32(), False, None))
    bound = pa.table(
        {"v1": pa.array([None, 0], pa.date32()), "t1": ["infinity", None], "v2": pa.array([1, 2], pa.int32())}
    )
    rows = LocalRows(shown, "SELECT v1, t1, v2 FROM given", {"given": bound})
    with database().session() as session:
        session.hold(rows)
        one = session.run(f"SELECT v2 FROM ({rows.guarded()}) WHERE v2 > 0", pa.schema([("v2", pa.int32())]))
        assert sorted(one["v2"].to_pylist()) == [1, 2]
        with pytest.raises(EngineRefused):
            session.run(f"SELECT v1 FROM ({rows.guarded()})", pa.schema([("v1", pa.date32())]))
        fits = session.run(f"SELECT v1 FROM ({rows.guarded()} WHERE v2 = 2)", pa.schema([("v1", pa.date32())]))
        assert fits["v1"].to_pylist() == [date(1970, 1, 1)]


@pytest.mark.parametrize("kind", [each for each in VALUES if pa.types.is_decimal(each)], ids=str)
def test_a_decimal_that_is_read_as_text_has_postgresqls_digits(tmp_path: Path, kind: pa.DataType) -> None:
    there = StoredColumn("n", 1, kind)
    (value,) = cell_values(ShownTable(7, (Shown("n", "n", 1, pa.string(), False, None),), ()), [there])
    array = pa.array([*VALUES[kind], Decimal(0), None], kind)
    with database().session() as session:
        session.hold(LocalRows((), "", {"decimals": pa.table({"n": array})}))
        found = session.run(f"SELECT {value} FROM decimals", pa.schema([("n", pa.string())]))
    assert sorted(map(str, found["n"].to_pylist())) == sorted(
        map(str, column_strings(DecodedColumn(array)).to_pylist())
    )


def test_a_conversion_that_is_not_proven_is_refused() -> None:
    for there, kind in (
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.int32(), pa.int64()),
        (pa.string(), pa.date32()),
    ):
        with pytest.raises(EngineRefused, match="does not convert"):
            cell_values(ShownTable(7, (Shown("n", "n", 1, kind, False, None),), ()), [StoredColumn("n", 1, there)])


def _written(folder: Path, stored: tuple[StoredColumn, ...], arrays: list[pa.Array]) -> VersionFile:
    count = len(arrays[0])
    interval = {"_begin_lsn": pa.array([1] * count, pa.int64()), "_end_lsn": pa.nulls(count, pa.int64())}
    schema = pa.schema([*(each.field() for each in stored), *((name, pa.int64()) for name in interval)])
    writer = FileWriter(folder, "live-00000-of-00001")
    writer.write(pa.table([*arrays, *interval.values()], schema=schema))
    file = writer.close()
    return VersionFile(file.path, 0, 1, count, file.size_bytes, Lsn(1), Lsn(1), None)


def test_no_row_is_read_from_no_file() -> None:
    shown = ShownTable(7, (Shown("n", "n", 1, pa.decimal128(5, 2), True, None),), (1,))
    versions = Versions(Path("/nowhere"), (), (), Lsn(2), Lsn(1))
    query = _RowsQuery(shown)._visible(versions, (), Boundary(Lsn(9)))
    assert cells(LocalRows(shown.columns, query)).num_rows == 0
