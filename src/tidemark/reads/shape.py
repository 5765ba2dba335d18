"""The columns of a table within a Spark plan: named by attnum inside, and by their own names only at both ends.

`v3` is the value of attnum 3 and `t3` its text fallback, so that no name needs quoting, and the names of two columns
may differ only in case.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tidemark.lake.changes import ChangeFile
from tidemark.lake.columns import CHANGE_TYPE, COMMIT_VERSION, ORDINAL, TRUNCATE, UNCHANGED
from tidemark.lake.rows import DELETED, PREIMAGE

META = {
    CHANGE_TYPE: "kind",
    COMMIT_VERSION: "commit",
    ORDINAL: "ordinal",
    UNCHANGED: "unchanged",
    TRUNCATE: "truncates",
}
MANY = 2_000_000
REMOVALS = (DELETED, PREIMAGE)
ITS = "its_"  # the prefix of key cells of another row
COPY_AGAIN = "Run `tidemark resync LAKE TABLE`, which copies the table again."


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """A column for readers. With `fallback`, `<name>~text` has PostgreSQL's text of what its type cannot hold."""

    name: str
    attnum: int
    fallback: bool = False

    @property
    def cells(self) -> tuple[str, ...]:
        """The names of the column inside a plan."""
        return (f"v{self.attnum}", f"t{self.attnum}") if self.fallback else (f"v{self.attnum}",)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the column outside, in the order of `cells`."""
        return (self.name, f"{self.name}~text") if self.fallback else (self.name,)


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns in order, and the attnums of the key; without a key the table is a multiset."""

    columns: tuple[ShownColumn, ...]
    key: tuple[int, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of all columns."""
        return tuple(cell for column in self.columns for cell in column.cells)

    @property
    def names(self) -> tuple[str, ...]:
        """The outside names of all cells."""
        return tuple(name for column in self.columns for name in column.names)

    @property
    def key_cells(self) -> tuple[str, ...]:
        """The cells of the key, including text fallbacks: 'infinity' is a valid key that only its text identifies."""
        return tuple(cell for column in self.of(self.key) for cell in column.cells)

    @property
    def not_in_key(self) -> tuple[ShownColumn, ...]:
        """The columns that are not part of the key."""
        return tuple(column for column in self.columns if column.attnum not in self.key)

    def of(self, attnums: Iterable[int]) -> tuple[ShownColumn, ...]:
        """Return the columns with these attnums, in the order of the attnums."""
        by_attnum = {column.attnum: column for column in self.columns}
        return tuple(by_attnum[attnum] for attnum in attnums)


@dataclass(frozen=True, slots=True)
class ChangeFacts:
    """The possible kinds of changes, from file statistics.

    `unchanged` means unchanged TOAST values, and `many` too many changes for a broadcast join. If uncertain,
    `only_inserts` is false, and `truncates`, `unchanged` and `preimages` are true.
    """

    only_inserts: bool
    truncates: bool
    unchanged: bool
    preimages: bool
    many: bool = False


@dataclass(frozen=True, slots=True)
class Base:
    """The folded rows that a read starts with, by cells.

    For a table without a key, a version whose end is visible but whose begin is not counts as -1 (`taken_away`). It is
    not known which of several equal rows a change removed, so such a version cancels another equal row.
    """

    rows: DataFrame
    taken_away: DataFrame | None = None


def same_key(shape: Shape, of: str = "", other: str = ITS) -> Column:
    """Return whether the keys of two rows are equal, whose cells have these prefixes."""
    with_fallback = {cell for column in shape.of(shape.key) if column.fallback for cell in column.cells}
    pairs = {cell: (F.col(f"{of}{cell}"), F.col(f"{other}{cell}")) for cell in shape.key_cells}
    return reduce(and_, (a.eqNullSafe(b) if cell in with_fallback else a == b for cell, (a, b) in pairs.items()))


def facts_of(files: tuple[ChangeFile, ...]) -> ChangeFacts:
    """Combine the statistics of these files."""
    return ChangeFacts(
        only_inserts=all(file.only_inserts for file in files),
        truncates=any(file.truncates for file in files),
        unchanged=any(file.unchanged for file in files),
        preimages=any(file.preimages for file in files),
        many=sum(file.rows for file in files) > MANY,
    )


def both(one: ChangeFacts, other: ChangeFacts) -> ChangeFacts:
    """Combine the facts of two sets of changes."""
    return ChangeFacts(
        only_inserts=one.only_inserts and other.only_inserts,
        truncates=one.truncates or other.truncates,
        unchanged=one.unchanged or other.unchanged,
        preimages=one.preimages or other.preimages,
        many=one.many or other.many,
    )
