"""The local engine: queries of DuckDB over the rows of tables at a boundary, in this process.

A database of DuckDB is in memory and holds nothing between statements. Before the first statement it is closed to the
outside: it reads no file outside the lake, writes none, loads no extension, and its settings are locked. Text of a
statement or a value of it is never part of an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidemark.engines import MOST_ROWS
from tidemark.engines.duckdb_sql import FUNCTIONS, DuckDbPrinter, duck_type, schema_of
from tidemark.errors import EngineRefused, InvalidValue, LakeDamaged
from tidemark.quoting import duckdb_text
from tidemark.reads.local import LocalRows
from tidemark.split.ir import Bottom, scans

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY_BYTES = 2 << 30
BATCH_ROWS = 100_000
_CLOSED: dict[str, str | bool | int | float | list[str]] = {
    "temp_directory": "",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "allow_persistent_secrets": False,
    "python_enable_replacements": False,
    "preserve_insertion_order": False,
}
_RETRY = "Retry the command; if the file is missing, run `tidemark resync LAKE TABLE`."
# These move constants across comparisons and know IS NULL from statistics, so that `a + 1 > 0` does not overflow, and
# `date_trunc('month', t) <> '2020-01-02'` is true for NULL. Scans skip row groups without them too.
_INEXACT = "expression_rewriter,statistics_propagation"
_CANCELLED = "the statement was cancelled"
_AT_THE_SOURCE = "Run the statement at the source."
_EXTRA = "The local engine requires DuckDB: pip install 'tidemark[duckdb]'."


class LocalDatabase:
    """A database of DuckDB that reads the files of one lake, with bounded threads and memory.

    It is shared by all statements of a process: each has a session of its own, and sessions may run in several threads.
    """

    def __init__(self, lake: Path, threads: int | None = None, memory_bytes: int = MEMORY_BYTES) -> None:
        try:
            import duckdb
        except ModuleNotFoundError as error:
            raise InvalidValue("the package duckdb is not installed", _EXTRA) from error
        count = threads if threads is not None else os.cpu_count() or 1
        config = {**_CLOSED, "threads": count, "memory_limit": f"{memory_bytes // 1024}KiB"}
        self._database = duckdb.connect(":memory:", config=config)
        folder = f"{str(lake.absolute()).rstrip('/')}/"
        self._database.execute("SET TimeZone = 'UTC'")
        self._database.execute("SET parquet_metadata_cache = true")  # files of the lake never change
        self._database.execute(f"SET disabled_optimizers = {duckdb_text(_INEXACT)}")
        self._database.execute(f"SET allowed_directories = [{duckdb_text(folder)}]")
        self._database.execute("SET enable_external_access = false")
        for name, (function, args, returned) in FUNCTIONS.items():
            types: list[Any] = [duck_type(each) for each in args]
            how: dict[str, Any] = {"type": "arrow", "null_handling": "special"}
            self._database.create_function(name, function, types, duck_type(returned), **how)
        self._database.execute("SET lock_configuration = true")

    def close(self) -> None:
        """Free the memory."""
        self._database.close()

    @contextmanager
    def session(self) -> Iterator[LocalSession]:
        """Open a session for one statement."""
        session = LocalSession(self._database.cursor())
        try:
            yield session
        finally:
            session.close()


class LocalSession:
    """A connection to the database, with the Arrow tables of one statement."""

    def __init__(self, connection: DuckDBPyConnection) -> None:
        self._connection = connection
        self._held: set[str] = set()

    def hold(self, rows: LocalRows) -> None:
        """Load the Arrow tables that the query of a table names."""
        with _errors():
            for name in rows.bound.keys() - self._held:
                self._connection.register(f"{name}_arrow", rows.bound[name])
                self._connection.execute(f"CREATE TEMP TABLE {name} AS SELECT * FROM {name}_arrow")
                self._connection.unregister(f"{name}_arrow")
                self._held.add(name)

    def run(self, query: str, schema: pa.Schema, most_rows: int | None = None) -> pa.Table:
        """Return the result of a query with this schema; EngineRefused if it has more rows, or a value does not fit."""
        found, rows = [], 0
        with _errors():
            for batch in self._connection.execute(query).to_arrow_reader(BATCH_ROWS):
                rows += len(batch)
                if most_rows is not None and rows > most_rows:
                    raise EngineRefused(f"more than {most_rows} rows would go up to PostgreSQL", _AT_THE_SOURCE)
                found.append(batch)
            result = pa.Table.from_batches(found) if found else schema.empty_table()
            return result.rename_columns(schema.names).cast(schema)

    def interrupt(self) -> None:
        """End the query that runs, from another thread."""
        self._connection.interrupt()

    def close(self) -> None:
        """Drop everything that was loaded."""
        self._connection.close()


class LocalEngine:
    """Runs the bottoms of one statement. `table` returns the rows of a table by its OID, at one boundary."""

    def __init__(self, database: LocalDatabase, table: Callable[[int], LocalRows]) -> None:
        self._database, self._table = database, table
        self._session: LocalSession | None = None
        self._is_cancelled = False

    def run(self, bottom: Bottom, most_rows: int = MOST_ROWS) -> pa.Table:
        """Return the rows of a bottom; EngineRefused for more rows, and where the result would not be exact."""
        tables = {scan.table: self._table(scan.table) for scan in scans(bottom.relation)}
        query = DuckDbPrinter(tables).bottom(bottom)
        with self._database.session() as session:
            self._session = session
            try:
                for rows in tables.values():
                    session.hold(rows)
                if self._is_cancelled:
                    raise EngineRefused(_CANCELLED, _AT_THE_SOURCE)
                return session.run(query, schema_of(bottom), most_rows)
            finally:
                self._session = None

    def cancel(self) -> None:
        """Cancel what runs now, and what would run later, from another thread."""
        self._is_cancelled = True
        if (session := self._session) is not None:
            session.interrupt()


@contextmanager
def _errors() -> Iterator[None]:
    """Raise errors of DuckDB as Tidemark's, without their text, which may contain values."""
    import duckdb

    try:
        yield
    except duckdb.InterruptException:
        raise EngineRefused(_CANCELLED, _AT_THE_SOURCE) from None
    except duckdb.OutOfMemoryException:
        raise EngineRefused("the query needs more memory than the engine may use", _AT_THE_SOURCE) from None
    except duckdb.IOException as error:
        raise LakeDamaged(f"a file of the lake cannot be read: {str(error).splitlines()[0]}", _RETRY) from None
    except (duckdb.DataError, duckdb.InvalidInputException) as error:
        raise EngineRefused(f"a value cannot be computed exactly ({type(error).__name__})", _AT_THE_SOURCE) from None
    except pa.ArrowException as error:  # also an error of DuckDB after the first rows
        raise EngineRefused(f"the result was not read completely ({type(error).__name__})", _AT_THE_SOURCE) from None
    except duckdb.Error as error:
        raise EngineRefused(f"DuckDB cannot run the query ({type(error).__name__})", _AT_THE_SOURCE) from None
    except OSError as error:  # an error after the first rows; its text may contain values
        raise EngineRefused(f"DuckDB did not end the query ({type(error).__name__})", _AT_THE_SOURCE) from None
