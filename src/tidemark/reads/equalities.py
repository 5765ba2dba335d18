"""The literals that columns of a table must be equal to, so that only buckets with these keys are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a literal is by its own looks, before Spark compares it with a column."""

    INTEGER = "integer"
    DECIMAL = "decimal"
    STRING = "string"
    DATE = "date"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Literal:
    """A literal as Spark's SQL spells it: `-5`, `1.50`, `'a'`, `DATE '2026-01-31'`.

    A string has no escapes in it, so its value is what stands between the quotes. An integer fits into 64 bits. A date
    or a timestamp looks like one, and may still be none, such as the 30th of February.
    """

    kind: Kind
    text: str


# What every row that can be part of the answer fulfils: columns in lower case, and the literals that they are equal to.
# The caller, which has the columns, must check two things. A name that is not a column of the table is no condition on
# it: in a subquery it may be a column of the query around it. And a literal of another type than the column is none
# either, because Spark may cast the column: both '5' and '05' fulfil `name = 5`. So an integer may be used with
# integral columns only, a string with strings, a date with dates, a timestamp with timestamps. A decimal is rounded if
# the scales of both sides do not fit into 38 digits.
Equalities = Mapping[str, Literal]
