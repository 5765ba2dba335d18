"""A position in PostgreSQL's write-ahead log, and the unit of Tidemark's clock.

The clock is the *commit LSN*: the position just past a transaction's COMMIT record (`end_lsn` in pgoutput's Commit
message), strictly increasing in the order of delivery. The start of the record cannot be used: with `≤`, a read at
insert position L would show a commit whose record starts at L and is not written yet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from tidemark.errors import InvalidValue

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})", re.ASCII)
_END = 1 << 64


@dataclass(frozen=True, slots=True, order=True)
class Lsn:
    """A 64-bit WAL position, printed and ordered as PostgreSQL's `pg_lsn`: `Lsn.parse("16/B374D848")`."""

    value: int
    ZERO: ClassVar[Lsn]

    def __post_init__(self) -> None:
        if type(self.value) is not int or not 0 <= self.value < _END:
            raise InvalidValue(f"invalid LSN: {self.value!r}", "Use an integer from 0 to 2^64 - 1.")

    @classmethod
    def parse(cls, text: str) -> Lsn:
        """Parse PostgreSQL's text form, two hexadecimal numbers separated by a slash."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise InvalidValue(f"invalid LSN: {text!r}", "Use two hexadecimal numbers, such as 16/B374D848.")
        return cls(int(match[1], 16) << 32 | int(match[2], 16))

    def __str__(self) -> str:
        return f"{self.value >> 32:X}/{self.value & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({self})"

    def __sub__(self, other: Lsn) -> int:
        """The distance in bytes; negative if `other` is greater."""
        if not isinstance(other, Lsn):
            return NotImplemented
        return self.value - other.value

    def before(self) -> Lsn:
        """The next lower LSN."""
        return Lsn(self.value - 1)


Lsn.ZERO = Lsn(0)
