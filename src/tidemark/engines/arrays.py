"""The columns of a bottom as array parameters, in PostgreSQL's text format.

Of the settings of a session only array_nulls affects it: a statement is split only where it is on.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.errors import EngineRefused, InvalidValue
from tidemark.split import ir
from tidemark.split.plan import Output, PlanPart
from tidemark.values.output import array_text


def array_parameters(part: PlanPart, rows: pa.Table) -> list[bytes]:
    """Return the array of each output; `rows` has the bottom's columns in order.

    Raise EngineRefused for values that are not of the types of the bottom.
    """
    try:
        columns = {column.name: rows.column(at) for at, column in enumerate(part.bottom.columns)}
        return [_array(_scaled(output, columns)) for output in part.outputs]
    except (pa.ArrowException, InvalidValue, IndexError) as error:
        raise EngineRefused("values of other types than the bottom has", "Run the statement at the source.") from error


def _array(values: pa.Array) -> bytes:
    """Return the text of an array with these elements."""
    offsets = pa.array([0, len(values)], pa.int32())
    cells = array_text(pa.ListArray.from_arrays(offsets, values))
    return cells.buffer[int(cells.offsets[0]) : int(cells.offsets[0]) + int(cells.lengths[0])].tobytes()


def _scaled(output: Output, columns: dict[str, pa.ChunkedArray]) -> pa.Array:
    """Return the values; numerics have the digits after the point that PostgreSQL would print."""
    values = in_one(columns[output.column.name])
    if pa.types.is_large_string(values.type):
        values = values.cast(pa.string())
    if not pa.types.is_decimal(values.type) or output.scale is None:
        return values
    if isinstance(output.scale, int):
        return _with_scale(values, output.scale)
    scales = in_one(columns[output.scale.name])
    texts = pa.nulls(len(values), pa.string())
    for scale in pc.unique(scales).drop_null().to_pylist():
        chosen = pc.equal(scales, scale)
        found = _with_scale(pc.if_else(chosen, values, None), scale)
        texts = pc.if_else(chosen, found.cast(pa.string()), texts)
    if pc.sum(pc.is_valid(values)).as_py() != pc.sum(pc.is_valid(texts)).as_py():
        raise EngineRefused("a numeric without a display scale", "Run the statement at the source.")
    return texts


def _with_scale(values: pa.Array, scale: int) -> pa.Array:
    if not 0 <= scale <= ir.MOST_DIGITS:  # pyarrow does not survive such a cast
        raise EngineRefused(f"a numeric with {scale} digits after the point", "Run the statement at the source.")
    try:
        return values.cast(pa.decimal128(ir.MOST_DIGITS, scale))
    except pa.ArrowInvalid as error:
        raise EngineRefused(
            "a numeric has more digits than its display scale, or than a DECIMAL holds",
            "Run the statement at the source.",
        ) from error


def in_one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array."""
    if isinstance(column, pa.Array):
        return column
    found = column.combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found
