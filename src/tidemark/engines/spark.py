"""Spark as the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.functions import arrow_udf

from tidemark.engines import MOST_ROWS
from tidemark.engines.spark_sql import FUNCTIONS, SparkPrinter
from tidemark.errors import EngineRefused
from tidemark.split import ir

Table = tuple[DataFrame, Mapping[int, str]]  # its rows, and the names of its columns by attnum
_AT_THE_SOURCE = "Run the statement at the source."


class SparkEngine:
    """Runs bottoms in a Spark session. `table` returns a table by its OID, at the boundary of the statement."""

    def __init__(self, spark: SparkSession, table: Callable[[int], Table]) -> None:
        self._spark, self._table = spark, table
        self._tag = f"tidemark-{uuid4().hex}"

    def run(self, bottom: ir.Bottom, most_rows: int = MOST_ROWS) -> pa.Table:
        """Return the rows of a bottom; raise EngineRefused for more rows, and for every error of Spark.

        An error of Spark is not passed on: it may contain values and the text of the statement.
        """
        oids = sorted({scan.table for scan in ir.scans(bottom.relation)})
        tables = {oid: self._table(oid) for oid in oids}
        frames: dict[str, Any] = {f"t{number}": tables[oid][0] for number, oid in enumerate(oids)}
        names = {oid: (f"{{t{number}}}", tables[oid][1]) for number, oid in enumerate(oids)}
        text = SparkPrinter(names).bottom(bottom)
        self._register_named_in(text)
        self._spark.addTag(self._tag)
        try:
            rows = self._spark.sql(text, **frames).limit(most_rows + 1).toArrow()
        except (PySparkException, Py4JError, pa.ArrowException) as error:
            raise EngineRefused(f"Spark did not compute the statement: {_kind(error)}", _AT_THE_SOURCE) from error
        finally:
            self._spark.removeTag(self._tag)
        if rows.num_rows > most_rows:
            raise EngineRefused(f"more than {most_rows} rows would go up to PostgreSQL", _AT_THE_SOURCE)
        return rows

    def _register_named_in(self, text: str) -> None:
        """Register the functions that a text may call; most texts call none."""
        vectorized: Any = arrow_udf  # Spark's stubs lack the form that reads the type hints of the function
        for name, (function, returned) in FUNCTIONS.items():
            if name in text:
                self._spark.udf.register(name, vectorized(function, returned))

    def cancel(self) -> None:
        """Cancel what runs now, from another thread."""
        self._spark.interruptTag(self._tag)


def _kind(error: Exception) -> str:
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    return condition or type(error).__name__
