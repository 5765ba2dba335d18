"""The documented table of types is the one in the code."""

from pathlib import Path

import pytest

from tidemark.decode.types import TYPES, decimal_limits

DOCUMENT = Path(__file__).parents[2] / "docs" / "types.md"


def test_the_document_has_a_row_for_each_type() -> None:
    rows = [line.strip("|").split("|") for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")][1:]
    documented = [tuple(cell.strip() for cell in row[:4]) for row in rows]
    assert documented == [(row.name, str(row.arrow), row.spark, row.delta) for row in TYPES]


@pytest.mark.parametrize(
    ("precision", "scale", "limits"),
    [
        (10, 2, (10, 2)),
        (38, 38, (38, 38)),
        (1, 0, (1, 0)),
        (39, 0, None),
        (3, 5, None),
        (3, -2, None),
        (1000, 500, None),
    ],
)
def test_a_decimal_is_had_where_it_can_hold_every_value(
    precision: int, scale: int, limits: tuple[int, int] | None
) -> None:
    assert decimal_limits((precision << 16 | scale & 0x7FF) + 4) == limits
    assert decimal_limits(-1) is None
