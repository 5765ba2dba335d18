"""The schema LSNs of a mirror: up to which LSN the definition of each table is known. Pure.

The schema LSN of the mirror is the position that `latest` reads. It waits for a table for `GRACE`, so that a short DDL
statement fails no read; after that it passes the table, which is then behind and can be read up to its own schema LSN.
No schema LSN ever decreases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidemark.clock import Lsn

GRACE = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Uncertain:
    """A table whose definition is known up to `lsn` and not above, since a time by the source's clock."""

    lsn: Lsn
    since: datetime | None = None

    def is_recent(self, now: datetime) -> bool:
        """Whether the schema LSN of the mirror waits for the table. It does not if an earlier writer passed it."""
        return self.since is not None and now - self.since < GRACE


class SchemaLsns:
    """The schema LSN of the mirror, and those of the tables that are behind it."""

    def __init__(self, mirror: Lsn, behind: Mapping[int, Lsn]) -> None:
        self.mirror = self._confirmed = mirror
        self.behind = dict(behind)
        self._uncertain = {oid: Uncertain(lsn) for oid, lsn in behind.items()}

    def of(self, oid: int) -> Lsn:
        """The LSN up to which the definition of a table is known."""
        return self._uncertain[oid].lsn if oid in self._uncertain else self._confirmed

    @property
    def complete(self) -> Lsn:
        """The LSN up to which the definitions of all tables are known."""
        return min([self.mirror, *self.behind.values()])

    def advance(self, upto: Lsn, uncertain: Iterable[int], now: datetime, is_live: Callable[[int], bool]) -> None:
        """Advance the schema LSNs of all tables to an LSN, except those whose definitions are uncertain there."""
        new = Uncertain(self._confirmed, now)
        self._uncertain = {oid: self._uncertain.get(oid, new) for oid in uncertain}
        self._confirmed = max(self._confirmed, upto)
        recent = [table.lsn for oid, table in self._uncertain.items() if table.is_recent(now) and is_live(oid)]
        self.mirror = max(self.mirror, min([self._confirmed, *recent]))
        self.behind = {oid: table.lsn for oid, table in self._uncertain.items() if table.lsn < self.mirror}
