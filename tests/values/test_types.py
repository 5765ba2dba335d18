"""The documented table of types is the one in the code."""

from pathlib import Path

import pytest

from harness.database import Database
from harness.recorded import types_of
from tidemark.pgoutput.binary import decoded_from_binary
from tidemark.values.types import TYPES, Types, decimal_limits, decoding_of

pytestmark = pytest.mark.quick

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "types.md"


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


EVERY_KIND = (
    "create type mood as enum ('glad', 'sad')",
    "create domain short as text check (length(value) < 5)",
    "create domain many as int[]",
    "create type pair as (a int, b text)",
    "create type span as range (subtype = int4)",
    "create domain moods as mood",
    """create table k (a int, b int[], c mood, d mood[], e short, f short[], g many, h many[], i pair, j pair[], k span,
                       l int2vector, m oidvector, n inet, o inet[], p money, q moods, r moods[], s int4range[], t xml,
                       u "char", v name[], w jsonb, x bit(3), y tsvector, z regclass)""",
)


def test_what_may_come_in_binary_is_known_without_arrow(db: Database) -> None:
    db.run(*EVERY_KIND)
    known = types_of(db)
    kinds = {oid: decoded_from_binary(oid, known) for oid in known}
    assert kinds == {oid: decoding_of(oid, -1, Types(known)).binary for oid in known}
    assert set(kinds.values()) == {True, False}
    built_in = [oid for row in TYPES for oid in (row.oid, row.array_oid)]
    assert all(decoded_from_binary(oid, {}) for oid in built_in)
    assert not decoded_from_binary(max(known), {}), "what nobody knows is not asked for in binary"
