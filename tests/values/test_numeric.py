"""numeric(p, s) from binary, at the borders of what 64 and 128 bits hold; psycopg writes what is read here."""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import Context, Decimal

import numpy as np
import pytest
from psycopg.types.numeric import DecimalBinaryDumper

from tidemark.errors import MalformedValue
from tidemark.values.cells import Cells
from tidemark.values.numeric import decimal

pytestmark = pytest.mark.quick

SHAPES = [
    (p, s) for p in (1, 4, 5, 12, 15, 16, 17, 18, 19, 20, 37, 38) for s in sorted({0, min(2, p), p // 2, p - 1, p})
]
EXACT = Context(prec=80)
DUMPER = DecimalBinaryDumper(Decimal)


def cells_of(values: Sequence[Decimal]) -> Cells:
    """The values as the server sends them, side by side."""
    sent = [bytes(DUMPER.dump(value) or b"") for value in values]
    lengths = np.array([len(each) for each in sent], np.int32)
    offsets = np.cumsum(lengths, dtype=np.int64) - lengths
    return Cells(np.frombuffer(b"".join(sent), np.uint8), offsets, lengths)


@pytest.mark.parametrize(("precision", "scale"), SHAPES)
def test_every_size_of_value(precision: int, scale: int) -> None:
    """The greatest, the least, one digit at every place, and some at random."""
    chance = random.Random(precision * 100 + scale)  # noqa: S311
    whole = [0, 1, 10**precision - 1, *(10**n for n in range(precision)), *(10**n - 1 for n in range(precision))]
    whole += [chance.randrange(10 ** chance.randrange(1, precision + 1)) for _ in range(300)]
    values = [EXACT.scaleb(Decimal(sign * each), -scale) for each in whole for sign in (1, -1)]
    assert decimal(cells_of(values), True, precision, scale).array.to_pylist() == values


@pytest.mark.parametrize(("precision", "scale"), SHAPES)
def test_what_does_not_fit_is_refused(precision: int, scale: int) -> None:
    """One above the greatest, one digit behind the last, and far more than any of it; each behind a good value."""
    beyond = [10**precision, 10**precision * 10**19, 10**precision * 10**40]
    bad = [EXACT.scaleb(Decimal(each), -scale) for each in beyond]
    bad += [EXACT.scaleb(Decimal(1), -scale - behind) for behind in (1, 4, 17, 40)]
    for value in bad:
        for each in (value, -value):
            with pytest.raises(MalformedValue, match=rf"numeric\({precision},{scale}\)"):
                decimal(cells_of([Decimal(0), each]), True, precision, scale)
