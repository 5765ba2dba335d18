"""Differences between the target and what the changes of a batch expect there, and how they are reported. Pure.

The stream does not always have what the source has for such a row: values that it did not send again, the row under
the key of a row that blocks another one, the number of equal rows of a table without a key. So the rows in `unknown`
are read from the source, in a snapshot that is exactly as of the end of the batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tidemark.target.tables import TargetTable

SHOWN = 5
Name = tuple[str, ...]  # the texts of a key, or the text of a whole row


@dataclass(frozen=True, slots=True)
class TableRepair:
    """The rows of a table that were repaired, with how often: those that it lacked, and those that did not fit.

    `key` has the names of the columns of the key.
    """

    table: str
    key: Name
    missing: Counter[Name]
    extra: Counter[Name]

    @property
    def rows(self) -> int:
        """How many rows were repaired."""
        return self.missing.total() + self.extra.total()

    def named(self, most: int) -> tuple[list[str], list[str]]:
        """Name at most so many rows that were missing, and that did not fit."""
        return [shown(each) for each in list(self.missing)[:most]], [shown(each) for each in list(self.extra)[:most]]

    def __str__(self) -> str:
        rows = f"{self.rows:,} {'row' if self.rows == 1 else 'rows'}"
        parts = [
            f"{how} {self._subject} {listed(found)}"
            for how, found in (
                ("the target lacked", self.missing),
                ("the target had rows that do not fit:", self.extra),
            )
            if found
        ]
        return f"table {self.table}: repaired {rows}: {'; '.join(parts)}"

    def unfit(self) -> str:
        """What does not fit, as the end of a message."""
        lacks = "has no row with" if self.key else "has too few"
        parts = [f"{self.table} {lacks} {self._subject} {listed(self.missing)}"] if self.missing else []
        parts += [f"{self.table} has rows that do not fit: {self._subject} {listed(self.extra)}"] if self.extra else []
        return "; ".join(parts)

    @property
    def _subject(self) -> str:
        return f"({', '.join(self.key)}) =" if self.key else "rows"


@dataclass(slots=True)
class TableDifferences:
    """What a batch has found in one table. The rows in `unknown` are read from the source."""

    table: TargetTable
    missing: Counter[Name] = field(default_factory=Counter)
    extra: Counter[Name] = field(default_factory=Counter)
    unknown: set[Name] = field(default_factory=set)

    def add_unfit(self, operation: str, count: int, origin: Name, after: Name) -> None:
        """Add a change of a row of which the target has none or several."""
        if origin not in self.unknown:  # otherwise it is missing because this batch has not put it in
            if count:
                self.extra[origin] += count - 1
            else:
                self.missing[origin] = 1
        if operation != "d":
            self.unknown.add(after)

    def add_short(self, contents: Iterable[tuple[str, int]]) -> None:
        """Add contents of which the target has fewer rows than are to be deleted."""
        for content, fewer in contents:
            self.missing[(content,)] += fewer
            self.unknown.add((content,))

    def add_extra(self, names: Iterable[Name]) -> None:
        """Add rows that the target had, and the source had not, or not with these values."""
        self.extra.update(name for name in names if name not in self.unknown)


class Differences:
    """What a batch has found in all tables."""

    def __init__(self) -> None:
        self._tables: dict[TargetTable, TableDifferences] = {}

    def of(self, table: TargetTable) -> TableDifferences:
        """The differences of a table, to be added to."""
        return self._tables.setdefault(table, TableDifferences(table))

    def __iter__(self) -> Iterator[TableDifferences]:
        return iter(self._tables.values())

    def repairs(self) -> list[TableRepair]:
        """The tables with rows that were repaired."""
        return [
            TableRepair(
                each.table.label,
                tuple(each.table.columns[at].name for at in each.table.key),
                each.missing,
                each.extra,
            )
            for each in self
            if each.missing or each.extra
        ]


def listed(names: Iterable[Name]) -> str:
    """Some of these rows, for messages."""
    found = list(names)
    return ", ".join(map(shown, found[:SHOWN])) + (" and others" if len(found) > SHOWN else "")


def shown(name: Name) -> str:
    """A key, as `(3, x)`; the text of a whole row is one already."""
    text = ", ".join(name)
    return text if len(name) == 1 and text.startswith("(") and text.endswith(")") else f"({text})"
