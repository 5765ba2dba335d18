"""Full transaction ids. The stream speaks in 32 bits, which wrap; snapshots speak in 64, which never do.

    xid8 = epoch · 2^32 + xid        xid 0, 1 and 2 are reserved in every epoch and never name a transaction

Two transactions that can meet lie less than 2^31 apart: PostgreSQL stops giving out ids before that. So a 32-bit id
is widened to the one full id within 2^31 of a full id known to be near it, behind or ahead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from tidemark.errors import InvalidValue

_WRAP = 1 << 32
_HALF = 1 << 31
_END = 1 << 64
_TEXT = re.compile(r"[0-9]{1,20}", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Xid8:
    """A 64-bit transaction id, ordered, printed as `xid8` prints it."""

    value: int
    FIRST_NORMAL: ClassVar[int] = 3

    def __post_init__(self) -> None:
        if type(self.value) is not int or not 0 <= self.value < _END:
            raise InvalidValue(f"invalid transaction ID: {self.value!r}", "Use an integer from 0 to 2^64 - 1.")

    @classmethod
    def parse(cls, text: str) -> Xid8:
        """Read the decimal that PostgreSQL prints."""
        if _TEXT.fullmatch(text) is None:
            raise InvalidValue(f"invalid transaction ID: {text!r}", "Use a decimal number, such as 1995.")
        return cls(int(text))

    @property
    def epoch(self) -> int:
        """How often the 32-bit counter had wrapped."""
        return self.value >> 32

    @property
    def xid(self) -> int:
        """The 32 bits that the stream and `xmin` carry."""
        return self.value & (_WRAP - 1)

    def __str__(self) -> str:
        return str(self.value)

    def __repr__(self) -> str:
        return f"Xid8({self.value})"

    def widen(self, xid: int) -> Xid8:
        """The full id of `xid`, a 32-bit id of a transaction less than 2^31 away from this one on either side."""
        if type(xid) is not int or not self.FIRST_NORMAL <= xid < _WRAP:
            raise InvalidValue(f"invalid 32-bit transaction ID: {xid!r}", "Use an integer from 3 to 2^32 - 1.")
        ahead = (xid - self.xid) % _WRAP
        if ahead == _HALF:
            raise InvalidValue(f"ambiguous transaction ID: {xid} is 2^31 away from {self}")
        full = self.value + ahead - (_WRAP if ahead > _HALF else 0)
        if not 0 <= full < _END:
            raise InvalidValue(f"transaction ID out of range: {xid} near {self}")
        return Xid8(full)
