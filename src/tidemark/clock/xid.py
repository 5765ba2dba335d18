"""64-bit transaction IDs: the stream has 32-bit IDs, which wrap around; snapshots have 64-bit IDs, which never do.

    xid8 = epoch · 2^32 + xid        xid 0, 1 and 2 are reserved in every epoch and never identify a transaction

Transactions that can coexist are less than 2^31 apart: PostgreSQL stops assigning IDs before that limit. So a 32-bit ID
is widened to the only full ID within 2^31, below or above, of a full ID that is known to be near.
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
    """A 64-bit transaction ID, ordered and printed as PostgreSQL's `xid8`."""

    value: int
    FIRST_NORMAL: ClassVar[int] = 3

    def __post_init__(self) -> None:
        if type(self.value) is not int or not 0 <= self.value < _END:
            raise InvalidValue(f"invalid transaction ID: {self.value!r}", "Use an integer from 0 to 2^64 - 1.")

    @classmethod
    def parse(cls, text: str) -> Xid8:
        """Parse PostgreSQL's text form, a decimal number."""
        if _TEXT.fullmatch(text) is None:
            raise InvalidValue(f"invalid transaction ID: {text!r}", "Use a decimal number, such as 1995.")
        return cls(int(text))

    @property
    def epoch(self) -> int:
        """The number of times that the 32-bit counter has wrapped around."""
        return self.value >> 32

    @property
    def xid(self) -> int:
        """The lower 32 bits, which the stream and the system column `xmin` contain."""
        return self.value & (_WRAP - 1)

    def __str__(self) -> str:
        return str(self.value)

    def __repr__(self) -> str:
        return f"Xid8({self.value})"

    def widen(self, xid: int) -> Xid8:
        """The full ID of `xid`, the 32-bit ID of a transaction less than 2^31 below or above this one."""
        if type(xid) is not int or not self.FIRST_NORMAL <= xid < _WRAP:
            raise InvalidValue(f"invalid 32-bit transaction ID: {xid!r}", "Use an integer from 3 to 2^32 - 1.")
        ahead = (xid - self.xid) % _WRAP
        if ahead == _HALF:
            raise InvalidValue(f"ambiguous transaction ID: {xid} is 2^31 away from {self}")
        full = self.value + ahead - (_WRAP if ahead > _HALF else 0)
        if not 0 <= full < _END:
            raise InvalidValue(f"transaction ID out of range: {xid} near {self}")
        return Xid8(full)
