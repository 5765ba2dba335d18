"""PostgreSQL's division of numerics, where an average is needed below.

PostgreSQL rounds a quotient to a scale that depends on the operands: 16 digits after the point, less four for each
group of four digits that it expects before the point (`select_div_scale`), and at least the scales of the operands.
`Op.QUOTIENT_SCALE` is that number, `Op.QUOTIENT` the quotient with it.
"""

from __future__ import annotations

from tidemark.errors import Unproven
from tidemark.split import ir
from tidemark.split.typed import Typed, cast
from tidemark.split.types import NUMERIC, SqlType

MOST_TOTAL_SCALE = 16
MOST_SCALE = 20  # of a quotient that is computed below; one that is smaller than a ten-thousandth has more digits


def quotient(total: Typed, count: Typed) -> Typed:
    """Return an average: the quotient of an exact sum and a count, NULL for no values."""
    if total.oid == NUMERIC and not isinstance(total.scale, int):
        raise Unproven("an average below of numerics of different scales")
    scale = total.scale if isinstance(total.scale, int) else 0
    if scale > MOST_TOTAL_SCALE:
        raise Unproven(f"an average below of numerics with more than {MOST_TOTAL_SCALE} digits after the point")
    operands = (cast(total.expr, ir.decimal(ir.MOST_DIGITS, scale)), count.expr)
    digits = ir.Call(ir.Op.QUOTIENT_SCALE, operands, ir.INT4)
    return Typed(ir.Call(ir.Op.QUOTIENT, operands, ir.decimal(ir.MOST_DIGITS, MOST_SCALE)), SqlType(NUMERIC), digits)
