"""The literals to which a query compares columns of a table, so that only the buckets of these keys are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class LiteralKind(StrEnum):
    """The kind of a literal by its syntax, before Spark compares it with a column."""

    INTEGER = "integer"
    DECIMAL = "decimal"
    STRING = "string"
    DATE = "date"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Literal:
    """A literal in the syntax of Spark SQL: `-5`, `1.50`, `'a'`, `DATE '2026-01-31'`.

    A string contains no escapes, so its value is the text between the quotes. An integer fits into 64 bits. A date or
    timestamp has the right format, but can be invalid, such as February 30.
    """

    kind: LiteralKind
    text: str


# Conditions that every row of the result satisfies: column names in lower case, and the literals that they equal. The
# caller, which has the columns, must check two things. A name that is not a column of the table is not a condition on
# it: in a subquery it may be a column of the outer query. A literal of another type than the column is not a condition
# either, because Spark may cast the column: both '5' and '05' satisfy `name = 5`. Integers may therefore be used with
# integral columns only, strings with strings, dates with dates, timestamps with timestamps. A decimal is rounded if
# the scales of both sides do not fit into 38 digits.
Equalities = Mapping[str, Literal]
