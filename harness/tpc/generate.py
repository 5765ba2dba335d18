"""Data of TPC-H and TPC-DS, made by DuckDB's extensions of these names, and loaded into a database by COPY."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import duckdb
import psycopg

CHUNK_BYTES = 1 << 20
CALLS = {"tpch": "dbgen", "tpcds": "dsdgen"}


@contextmanager
def generated(benchmark: str, scale: float) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB in memory that has the tables of `tpch` or `tpcds` at a scale factor; 0 for empty ones."""
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as duck:
        duck.execute(f"load '{_extension(benchmark)}'")
        duck.execute(f"call {CALLS[benchmark]}(sf={scale:g})")
        yield duck


def queries(benchmark: str) -> dict[int, str]:
    """The texts of the queries as DuckDB's extension has them, by number."""
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as duck:
        duck.execute(f"load '{_extension(benchmark)}'")
        rows = duck.execute(f"select query_nr, query from {benchmark}_queries()").fetchall()
    return {int(number): str(text).strip().rstrip(";") for number, text in rows}


def load(connection: psycopg.Connection[object], benchmark: str, scale: float, types: Mapping[str, str]) -> None:
    """Fill tables that exist: `types` has, by name of a table, the list of its columns."""
    with generated(benchmark, scale) as duck, tempfile.TemporaryDirectory() as folder:
        for table, columns in types.items():
            path = Path(folder) / f"{table}.csv"
            duck.execute(f"copy (select {columns} from {table}) to '{path}' (format csv, header false)")
            copy = f"copy {table} ({columns}) from stdin (format csv)"
            with path.open("rb") as file, connection.cursor() as cursor, cursor.copy(copy.encode()) as rows:
                while chunk := file.read(CHUNK_BYTES):
                    rows.write(chunk)
            path.unlink()
        connection.commit()


def _extension(name: str) -> Path:
    spec = find_spec(f"duckdb_extension_{name}")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "extensions" / f"v{duckdb.__version__}" / f"{name}.duckdb_extension"
