"""Row history: every version of one row, identified by its key.

A version begins with an insert, an update or the initial copy, and ends at the next change of its key or a TRUNCATE. An
update that changes the key ends the row under the old key and begins it under the new one. Only the changes of the
requested key are collected from Spark, and those of the keys that the row had before, if an update that changed the key
has unchanged TOAST values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import reduce
from operator import and_, or_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as spark_types

from tidemark.clock import Lsn
from tidemark.errors import InvalidValue, MalformedValue
from tidemark.lake.columns import OURS, TEXT_SUFFIX, free_name
from tidemark.lake.identities import numbers_of
from tidemark.lake.rows import DELETED, INSERTED, POSTIMAGE, PREIMAGE, TRUNCATED
from tidemark.quoting import in_quotes
from tidemark.reads.changes import celled, literal
from tidemark.reads.equalities import Equalities, Literal, LiteralKind
from tidemark.reads.shape import REMOVALS, Shape, ShownColumn
from tidemark.reads.shown import missing_value, shape_of, shown_names
from tidemark.reads.unchanged import (
    RowValues,
    by_row,
    in_order,
    is_unchanged,
    keys_from_preimages_here,
    may_be_unchanged,
)
from tidemark.schema.fingerprint import Fingerprint
from tidemark.spark.types import spark_type
from tidemark.values.cells import DecodedColumn
from tidemark.values.kernels import Flags, Longs
from tidemark.values.output import column_strings
from tidemark.values.types import Types, decoding_of

Value = object
COPIED, BEFORE = "copy", "before"
STEP = ("kind", "commit", "time", "ordinal", "xid", "unchanged", "truncates")  # after the cells, ordered as `OURS`
AT_FIRST = -1  # the ordinal of a row that is older than all changes

# The columns of a version after those of the table: the commits that began and ended it.
HISTORY = pa.schema(
    [
        pa.field("_begin_lsn", pa.int64()),
        pa.field("_begin_timestamp", pa.timestamp("us", "UTC")),
        pa.field("_begin_xid", pa.int64()),
        pa.field("_begin_type", pa.string()),
        pa.field("_end_lsn", pa.int64()),
        pa.field("_end_timestamp", pa.timestamp("us", "UTC")),
        pa.field("_end_xid", pa.int64()),
        pa.field("_end_type", pa.string()),
    ]
)
_TYPES = {
    **{kind: kind for kind in (INSERTED, DELETED, TRUNCATED, COPIED, BEFORE)},
    **dict.fromkeys((PREIMAGE, POSTIMAGE), "update"),
}
_NAMED = "as PostgreSQL prints it, with TimeZone UTC and DateStyle ISO"


@dataclass(frozen=True, slots=True)
class HistoryStart:
    """Where the retained history begins: the rows of the table at `lsn`, and the begin type of these rows.

    `read` reads the rows that satisfy equalities, and perhaps others; None if there are no rows.
    """

    lsn: Lsn
    kind: str
    read: Callable[[Equalities], DataFrame] | None


class RowHistory:
    """One row of a table: the columns of the table as readers see them, and the key of the row."""

    def __init__(self, table: Fingerprint, types: Types, key: Value) -> None:
        name = table.qualified
        if not table.key:
            raise InvalidValue(
                f"{name} has no primary key or replica identity index, and its rows cannot be identified",
                f"Run ALTER TABLE {name} ADD PRIMARY KEY (…) on the source.",
            )
        columns = list(shown_names(table.columns, types.version_num))
        self._names = {column.attnum: shown for column, shown in columns}
        self._types = {column.attnum: decoding_of(column.type.oid, column.typmod, types).arrow for column, _ in columns}
        by_attnum = {column.attnum: column for column in table.columns}
        values = _values(key, [by_attnum[attnum].name for attnum in table.key], name)
        self._table, self._version_num = table, types.version_num
        self._key: dict[str, pa.Array] = {}
        for attnum, text in zip(table.key, values, strict=True):
            column = by_attnum[attnum]
            try:
                found = missing_value(text, column, types)
            except MalformedValue as error:
                kind = column.type.name.removeprefix("pg_catalog.")
                raise InvalidValue(
                    f"invalid value for column {column.name} of {name}, type {kind}: {text!r}",
                    f"Write the value {_NAMED}.",
                ) from error
            assert found is not None  # noqa: S101
            self._key[f"v{attnum}"] = found.array
            self._key[f"t{attnum}"] = found.fallback if found.fallback is not None else pa.nulls(1, pa.string())

    @property
    def equalities(self) -> Equalities:
        """The key as equalities, with which a read selects the bucket of the row.

        Only integers and texts without quotes and backslashes are included.
        """
        found: dict[str, Literal] = {}
        for attnum in self._table.key:
            value = self._key[f"v{attnum}"][0].as_py() if self._is_plain(attnum) else None
            if isinstance(value, int):
                found[self._names[attnum].lower()] = Literal(LiteralKind.INTEGER, str(value))
            elif isinstance(value, str) and not {"'", "\\"} & set(value):
                found[self._names[attnum].lower()] = Literal(LiteralKind.STRING, in_quotes(value, "'"))
        return found

    def versions(self, spark: SparkSession, first: HistoryStart, changes: DataFrame) -> DataFrame:
        """Return every version of the row since `first`."""
        start = first.read(self.equalities) if first.read is not None else None
        frames = [changes, *([start] if start is not None else [])]
        asked = [attnum for attnum in self._table.key if self._key[f"t{attnum}"].null_count == 0]
        there = {name for frame in frames for name in frame.columns}
        shape = shape_of(self._table, self._version_num, there, asked)
        schema = self._schema(shape)
        key = pa.table([self._key[cell].cast(schema.field(cell).type) for cell in shape.key_cells], shape.key_cells)
        since = celled(changes, shape, dict(zip(OURS.names, STEP, strict=True))).where(
            F.col("commit") > first.lsn.value
        )
        steps, keys = _Changes(since, shape, schema).of(key)
        if start is not None and first.read is not None:
            if len(keys) > 1:
                start = first.read({})  # rows with earlier keys, whose values it may have, are in other buckets
            rows = celled(start, shape, {}).where(_is_one_of(keys, shape, ()))
            steps = pa.concat_tables([_steps(rows, schema, first), steps])
        found = row_versions(steps, key, shape)
        taken = set(HISTORY.names)
        names = [free_name(c.name, c.attnum, taken) + suffix for c in shape.columns for suffix in _suffixes(c)]
        found = found.rename_columns([*names, *HISTORY.names])
        fields = [spark_types.StructField(field.name, spark_type(field.type)) for field in found.schema]
        return spark.createDataFrame(found, spark_types.StructType(fields))

    def _is_plain(self, attnum: int) -> bool:
        kind = self._types[attnum]
        return bool(pa.types.is_signed_integer(kind) or pa.types.is_string(kind))

    def _schema(self, shape: Shape) -> pa.Schema:
        fields = []
        for column in shape.columns:
            kinds = (self._types[column.attnum], pa.string())
            fields += [pa.field(cell, kind) for cell, kind in zip(column.cells, kinds, strict=False)]
        return pa.schema([*fields, *(pa.field(name, ours.type) for name, ours in zip(STEP, OURS, strict=True))])


def row_versions(steps: pa.Table, key: pa.Table, shape: Shape) -> pa.Table:
    """Return all versions of the row with a key, oldest first: its cells and the columns of `HISTORY`.

    `steps` has the cells and the columns `STEP`, in any order of rows. A row that is older than all changes is a step
    with the ordinal `AT_FIRST`.
    """
    steps = keys_from_preimages_here(steps, shape)
    keys = pa.concat_tables([steps.select(list(shape.key_cells)), key])
    numbers = numbers_of(keys, shape.key_cells, zeros_apart=False)
    numbers, requested = numbers[:-1], numbers[-1]
    begins, ends = _intervals(steps, numbers == requested)
    large = {column.attnum: column.cells for column in shape.not_in_key}
    values = RowValues(steps, numbers, by_row(steps, numbers), large)
    cells = values.taken(shape.cells, begins)
    commits = (*_commits(steps, pa.array(begins)), *_commits(steps, pa.array(ends, mask=ends < 0)))
    return pa.table([*cells.columns, *commits], names=[*shape.cells, *HISTORY.names])


def _intervals(steps: pa.Table, of_key: Flags) -> tuple[Longs, Longs]:
    """Return the steps that begin and end each version of the row with a key; -1 if the version has not ended."""
    truncates = pc.equal(steps["kind"], TRUNCATED).to_numpy()
    removes = pc.is_in(steps["kind"], value_set=pa.array(REMOVALS)).to_numpy()
    order = in_order(steps)
    order = order[(of_key | truncates)[order]]
    is_row = ~(removes | truncates)[order]
    return order[is_row], np.append(order[1:], -1)[: len(order)][is_row]


def _commits(steps: pa.Table, at: pa.Array) -> list[pa.Array]:
    """Return the LSN, time, transaction ID and type of steps; null where there is no step."""
    types = [None if kind is None else _TYPES[kind] for kind in steps["kind"].take(at).to_pylist()]
    return [*(steps[name].take(at) for name in ("commit", "time", "xid")), pa.array(types, pa.string())]


@dataclass(frozen=True, slots=True)
class _Changes:
    """The changes of a table, of which only those of a few keys are collected."""

    rows: DataFrame
    shape: Shape
    schema: pa.Schema

    def of(self, key: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Return the steps of the versions of a key, and all keys whose rows at the beginning these may require."""
        found, keys, settled = self._with_keys(key), key, set[tuple[int, int]]()
        while True:
            updates = _with_unchanged(found) - settled
            if updates:
                settled |= updates
                found = _distinct([found, self._old_rows(updates)])
            new = _earlier_keys(found, keys, self.shape)
            if not len(new):
                return found, keys
            found, keys = _distinct([found, self._with_keys(new)]), pa.concat_tables([keys, new])

    def _with_keys(self, keys: pa.Table) -> pa.Table:
        large, _ = may_be_unchanged(self.rows, self.shape)
        wanted = _is_one_of(keys, self.shape, large) | F.col("truncates").isNotNull()
        return self._collected(self.rows.where(wanted))

    def _old_rows(self, positions: Iterable[tuple[int, int]]) -> pa.Table:
        """Return the old rows of the updates at these positions, where the stream sent them."""
        places = self.rows.sparkSession.createDataFrame(sorted(positions), "commit long, ordinal long")
        old = self.rows.where(F.col("kind") == PREIMAGE)
        return self._collected(old.join(F.broadcast(places), ["commit", "ordinal"], "left_semi"))

    def _collected(self, rows: DataFrame) -> pa.Table:
        return rows.select(*self.schema.names).toArrow().cast(self.schema)


def _values(key: Value, names: Sequence[str], table: str) -> list[str]:
    """Return the texts of a key that is one value, several values in the key's order, or a mapping by column."""
    columns = f"the key of {table} is ({', '.join(names)})"
    if isinstance(key, Mapping):
        if set(key) != set(names):
            given = ", ".join(map(str, key)) or "no column"
            raise InvalidValue(f"{columns}, but {given} was given", "Give a value for each column of the key.")
        values = [key[name] for name in names]
    else:
        values = list(key) if isinstance(key, list | tuple) else [key]
    if len(values) != len(names):
        raise InvalidValue(
            f"{columns}, but {len(values)} value{'s were' if len(values) != 1 else ' was'} given",
            "Give a value for each column of the key, in this order.",
        )
    return [_text(value) for value in values]


def _text(value: Value) -> str:
    """Return a value as PostgreSQL prints it."""
    if value is None:
        raise InvalidValue("a key cannot be null", f"Write the value {_NAMED}.")
    if isinstance(value, Decimal):
        return f"{value:f}"
    kind = _arrow_type(value)
    if kind is None:
        return str(value)
    text: str = column_strings(DecodedColumn(pa.array([value], kind)))[0].as_py()
    return text


def _arrow_type(value: Value) -> pa.DataType | None:
    """Return the type of a Python value whose own text is not PostgreSQL's."""
    if isinstance(value, datetime):
        return pa.timestamp("us", None if value.tzinfo is None else "UTC")
    kinds = {bool: pa.bool_(), bytes: pa.binary(), bytearray: pa.binary(), date: pa.date32()}
    return next((arrow for kind, arrow in kinds.items() if isinstance(value, kind)), None)


def _suffixes(column: ShownColumn) -> tuple[str, ...]:
    return ("", TEXT_SUFFIX) if column.fallback else ("",)


def _steps(rows: DataFrame, schema: pa.Schema, first: HistoryStart) -> pa.Table:
    """Return the rows that the table had at the beginning, as steps."""
    found = rows.toArrow()
    values = {"kind": first.kind, "commit": first.lsn.value, "ordinal": AT_FIRST}
    for name in STEP:
        found = found.append_column(name, pa.array([values.get(name)] * len(found), schema.field(name).type))
    return found.cast(schema)


def _is_one_of(keys: pa.Table, shape: Shape, large: Sequence[ShownColumn]) -> Column:
    """Return the condition that a row has one of these keys; an unchanged TOAST value matches any key."""
    return reduce(or_, (_is_key(keys.slice(at, 1), shape, large) for at in range(len(keys))))


def _is_key(key: pa.Table, shape: Shape, large: Sequence[ShownColumn]) -> Column:
    conditions = []
    for column in shape.of(shape.key):
        same = [F.col(cell).eqNullSafe(literal(key[cell][0], key[cell].type)) for cell in column.cells]
        whole = reduce(and_, same)
        conditions.append(whole | is_unchanged(column) if column in large else whole)
    return reduce(and_, conditions)


def _positions(steps: pa.Table) -> list[tuple[int, int]]:
    """Return the position of each step; an update and its preimage have the same position."""
    return list(zip(steps["commit"].to_pylist(), steps["ordinal"].to_pylist(), strict=True))


def _with_unchanged(steps: pa.Table) -> set[tuple[int, int]]:
    """Return the positions of the updates with unchanged TOAST values."""
    return set(_positions(steps.filter(steps["unchanged"].is_valid())))


def _earlier_keys(steps: pa.Table, keys: pa.Table, shape: Shape) -> pa.Table:
    """Return the other keys that rows with these keys had before updates with unchanged TOAST values."""
    steps = keys_from_preimages_here(steps, shape)
    theirs = steps.select(list(shape.key_cells))
    numbers = numbers_of(pa.concat_tables([theirs, keys]), shape.key_cells, zeros_apart=False).tolist()
    known, kinds, positions = set(numbers[len(steps) :]), steps["kind"].to_pylist(), _positions(steps)
    unchanged = _with_unchanged(steps)
    moves = {
        position
        for position, kind, number in zip(positions, kinds, numbers[: len(steps)], strict=True)
        if kind == POSTIMAGE and number in known and position in unchanged
    }
    new = {
        numbers[at]: at
        for at, (position, kind) in enumerate(zip(positions, kinds, strict=True))
        if kind == PREIMAGE and position in moves and numbers[at] not in known
    }
    return theirs.take(pa.array(list(new.values()), pa.int64()))


def _distinct(parts: Sequence[pa.Table]) -> pa.Table:
    """Return the steps without duplicates: a position and a kind identify a step."""
    steps = pa.concat_tables(parts)
    seen = {
        (*position, kind): at
        for at, (position, kind) in enumerate(zip(_positions(steps), steps["kind"].to_pylist(), strict=True))
    }
    return steps.take(pa.array(sorted(seen.values()), pa.int64()))
