"""Digests (`reads.digests`) and the canonical text of a row (`reads.canonical`), as Spark computes them."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]
from pyspark.sql.types import ArrayType, DataType, DoubleType, LongType

from tidemark.quoting import backticked
from tidemark.reads.canonical import ComparedColumn
from tidemark.reads.digests import MD5_DIGITS
from tidemark.reads.text import postgres_text
from tidemark.spark.types import spark_type
from tidemark.values.hashes import text_hashes

_QUOTED_IN_ROWS = r'\A\z|["\\(),\s]'  # not $, which matches before a last U+0085 or U+2028 in Java


def mirror_row(columns: Iterable[ComparedColumn]) -> Column:
    """Return the Spark expression for the text of these columns."""
    cells = (F.coalesce(_doubled(_mirror_value(column), _QUOTED_IN_ROWS), F.lit("")) for column in columns)
    return F.concat(F.lit("("), F.concat_ws(",", *cells), F.lit(")"))


def spark_sums(hashed: Column) -> tuple[Column, Column, Column]:
    """Return the Spark aggregates of a digest."""
    return F.count(F.lit(1)), F.sum(F.shiftright(hashed, 32)), F.sum(F.shiftright(F.shiftleft(hashed, 32), 32))


def spark_md5(text: Column) -> Column:
    """Return the Spark expression for the md5 hash of a text."""
    return F.conv(F.left(F.md5(text.cast("binary")), F.lit(MD5_DIGITS)), 16, 10).cast("long")


def spark_hashed_text(text: Column, *, utf8: bool) -> Column:
    """Return the Spark expression for the text that the source hashes."""
    return text if utf8 else F.lower(F.hex(text))


def spark_text_hash(hashed_text: Column) -> Column:
    """Return the Spark expression for the hash of `spark_hashed_text`.

    The UDF is created here and not at import, when it is not known whether the session is a remote one.
    """
    hashed: Column = arrow_udf(_text_hash, LongType())(hashed_text)
    return hashed


def _text_hash(texts: pa.Array) -> pa.Array:
    return pa.array(text_hashes(texts))


def _mirror_value(column: ComparedColumn) -> Column:
    value = F.col(backticked(column.name))
    text = postgres_text(value, spark_type(column.type), _mirror_bits)
    return text if column.text_name is None else F.coalesce(F.col(backticked(column.text_name)), text)


def _mirror_bits(value: Column, kind: DataType) -> Column:
    if isinstance(kind, ArrayType):
        inner = kind.elementType
        return F.transform(value, lambda each: _mirror_bits(each, inner))
    where, how, digits = (
        ("java.lang.Double", "doubleToLongBits", 16)
        if isinstance(kind, DoubleType)
        else ("java.lang.Float", "floatToIntBits", 8)
    )
    bits = F.hex(F.reflect(F.lit(where), F.lit(how), value).cast("long"))
    return F.when(F.isnan(value), "nan").when(
        value.isNotNull(), F.lower(F.lpad(F.right(bits, F.lit(digits)), digits, "0"))
    )


def _doubled(text: Column, quoted_if: str) -> Column:
    """Quote a value as in the text of a row: in double quotes if necessary, with special characters doubled."""
    inside = F.regexp_replace(text, r'(["\\])', "$1$1")
    return F.when(text.rlike(quoted_if), F.concat(F.lit('"'), inside, F.lit('"'))).otherwise(text)
