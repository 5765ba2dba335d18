"""A lake as engines other than Tidemark read it: through its catalog, with all available readers of Delta."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from tidemark.clock import Lsn
from tidemark.lake.lake import Lake
from tidemark.reads.names import parsed

Entry = dict[str, Any]


def path_of(lake: Path, table: str) -> str:
    """The path of a table in its lake, by its current or last name."""
    found = [each.path for each in Lake.open(lake).tables().values() if each.name == ".".join(parsed(table))]
    return found[-1]


def catalog_of(lake: Path) -> dict[str, Any]:
    """The contents of the lake's catalog."""
    found: dict[str, Any] = json.loads((lake / "catalog.json").read_text())
    return found


def entry_of(lake: Path, table: str) -> Entry:
    """The catalog's entry for the table of this name."""
    (entry,) = (each for each in catalog_of(lake)["tables"] if [each["schema"], each["name"]] == list(parsed(table)))
    assert isinstance(entry, dict)
    return entry


def delta_of(lake: Path, entry: Entry) -> DeltaTable:
    """The `versions` of a table at the Delta version in the catalog."""
    versions = entry["versions"]
    return DeltaTable(lake / versions["path"], version=versions["delta_version"])


def require_there(lake: Path) -> int:
    """Require that everything in the catalog exists; return the number of its tables."""
    found = catalog_of(lake)
    for entry in found["tables"]:
        if entry["versions"] is not None:
            table = delta_of(lake, entry)
            names = {column[of] for column in entry["columns"] for of in ("stored", "text")} - {None}
            rows = pa.table(table.to_pyarrow_table())
            assert {*names, "_begin_lsn", "_end_lsn"} <= set(rows.column_names)
            assert table.transaction_version("tidemark") == Lsn.parse(entry["versions"]["lsn"]).value
        if entry["changes"] is not None:
            DeltaTable(lake / entry["changes"]["path"])
    for entry in found["dropped"]:
        if entry["versions"] is not None:
            versions = lake / entry["versions"]["path"]
            assert pa.table(DeltaTable(versions).to_pyarrow_table()).num_rows == 0
            if entry["last"] is not None:
                DeltaTable(versions, version=entry["last"]["delta_version"]).to_pyarrow_table()
    return len(found["tables"])


class Filter:
    """A filter on a stored column for each engine; `text` is SQL, with `{}` for the column."""

    def __init__(self, text: str, arrow: ds.Expression, polars: pl.Expr) -> None:
        self.text, self.arrow, self.polars = text, arrow, polars


def selected(lake: Path, entry: Entry, column: str, chosen: Filter, spark: SparkSession | None) -> dict[str, list[Any]]:
    """The ids of the current rows that a filter selects, by each engine."""
    table = delta_of(lake, entry)
    folder = str(lake / entry["versions"]["path"])
    condition = f"_end_lsn is null and {chosen.text.format(_quoted(column))}"
    current = ds.field("_end_lsn").is_null()
    found: dict[str, list[Any]] = {
        "deltalake filters": table.to_pyarrow_table(filters=current & chosen.arrow)["id"].to_pylist(),
        "deltalake dataset": table.to_pyarrow_dataset().to_table(filter=current & chosen.arrow)["id"].to_pylist(),
        "deltalake SQL": _datafusion(table, condition),
        "Polars": _polars(folder, entry, pl.col("_end_lsn").is_null() & chosen.polars),
        "DuckDB on Arrow": _on_arrow(table, condition),
    }
    if find_spec("duckdb_extension_delta") is not None:
        found["DuckDB delta_scan"] = _duckdb("delta_scan($1)", f"file://{folder}", condition)
    if table.file_uris():
        found["DuckDB on Parquet"] = _duckdb("read_parquet($1)", table.file_uris(), condition)
    if spark is not None:
        rows = spark.read.parquet(*table.file_uris())
        found["Spark"] = [row[0] for row in rows.where(condition.replace('"', "`")).select("id").collect()]
    return {engine: sorted(ids) for engine, ids in found.items()}


def _quoted(name: str) -> str:
    return '"' + name + '"'


def _datafusion(table: DeltaTable, condition: str) -> list[Any]:
    reader = QueryBuilder().register("v", table).execute(f"select id from v where {condition}")
    return list(pa.table(reader.read_all())["id"].to_pylist())


def _polars(folder: str, entry: Entry, condition: pl.Expr) -> list[Any]:
    frame = pl.scan_delta(folder, version=entry["versions"]["delta_version"])
    return frame.filter(condition).select("id").collect()["id"].to_list()


def _on_arrow(table: DeltaTable, condition: str) -> list[Any]:
    with duckdb.connect() as duck:
        duck.register("versions", table.to_pyarrow_dataset())
        return [row[0] for row in duck.execute(f"select id from versions where {condition}").fetchall()]


def _duckdb(source: str, argument: Any, condition: str) -> list[Any]:
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as duck:
        if source.startswith("delta"):
            duck.execute(f"load '{_extension()}'")
        return [row[0] for row in duck.execute(f"select id from {source} where {condition}", [argument]).fetchall()]


def _extension() -> Path:
    spec = find_spec("duckdb_extension_delta")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "extensions" / f"v{duckdb.__version__}" / "delta.duckdb_extension"
