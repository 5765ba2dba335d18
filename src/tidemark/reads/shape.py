"""A table's columns as a plan has them: by attnum inside, and by their names only at both ends.

`v3` is the value of attnum 3 and `t3` PostgreSQL's text beside it, so no name needs quoting and two names may differ in
case alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tidemark.lake.changes import ChangeFile
from tidemark.lake.columns import CHANGE_TYPE, COMMIT_VERSION, ORDINAL, TRUNCATE, UNCHANGED
from tidemark.lake.rows import DELETED, PREIMAGE

META = {
    CHANGE_TYPE: "kind",
    COMMIT_VERSION: "commit",
    ORDINAL: "ordinal",
    UNCHANGED: "marks",
    TRUNCATE: "truncates",
}
MANY = 2_000_000
REMOVALS = (DELETED, PREIMAGE)
RANK_OLD, RANK_LOAN, RANK_OTHER = 0, 1, 2  # the order of rows that share a position
NEVER_SENT = "the value of an unchanged TOAST column is missing from all earlier changes"
COPY_AGAIN = "Run `tidemark resync LAKE TABLE`, which copies the table again."


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """A column as readers see it; if `exact`, `<name>~text` beside it holds what its type cannot."""

    name: str
    attnum: int
    exact: bool = False

    @property
    def cells(self) -> tuple[str, ...]:
        """What the column is called in here."""
        return (f"v{self.attnum}", f"t{self.attnum}") if self.exact else (f"v{self.attnum}",)

    @property
    def names(self) -> tuple[str, ...]:
        """What the column is called outside, in the order of `cells`."""
        return (self.name, f"{self.name}~text") if self.exact else (self.name,)


@dataclass(frozen=True, slots=True)
class Shape:
    """The shown columns in order, and the key's attnums; without a key the table is a multiset."""

    columns: tuple[ShownColumn, ...]
    key: tuple[int, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        """Every column's cells."""
        return tuple(cell for column in self.columns for cell in column.cells)

    @property
    def names(self) -> tuple[str, ...]:
        """Every cell's name outside."""
        return tuple(name for column in self.columns for name in column.names)

    @property
    def key_cells(self) -> tuple[str, ...]:
        """The key's cells: 'infinity' is a key too, and only its text tells it."""
        return tuple(cell for column in self.of(self.key) for cell in column.cells)

    def of(self, attnums: Iterable[int]) -> tuple[ShownColumn, ...]:
        """The columns with these attnums, in their order."""
        by_attnum = {column.attnum: column for column in self.columns}
        return tuple(by_attnum[attnum] for attnum in attnums)


@dataclass(frozen=True, slots=True)
class Facts:
    """What file statistics tell about the changes: True where unsure; `many` if more than a broadcast should have."""

    only_inserts: bool
    truncates: bool
    marks: bool
    preimages: bool
    many: bool = False


@dataclass(frozen=True, slots=True)
class Base:
    """Rows that a read begins with, by cells. Without a key, equal rows that have ended for it and not begun take away.

    Which of equal rows a change removed, nobody knows: so one whose end a boundary sees and whose begin it does not
    stands for another one.
    """

    rows: DataFrame
    taken_away: DataFrame | None = None


def is_marked(column: ShownColumn) -> Column:
    """Whether a change did not send the column's value, which is large and did not change."""
    return F.coalesce(F.col("marks").contains(f",{column.attnum},"), F.lit(False))


def facts_of(files: tuple[ChangeFile, ...]) -> Facts:
    """What the statistics of these files tell together."""
    return Facts(
        only_inserts=all(file.only_inserts for file in files),
        truncates=any(file.truncates for file in files),
        marks=any(file.marks for file in files),
        preimages=any(file.preimages for file in files),
        many=sum(file.rows for file in files) > MANY,
    )


def both(one: Facts, other: Facts) -> Facts:
    """What holds of two sets of changes taken together."""
    return Facts(
        only_inserts=one.only_inserts and other.only_inserts,
        truncates=one.truncates or other.truncates,
        marks=one.marks or other.marks,
        preimages=one.preimages or other.preimages,
        many=one.many or other.many,
    )
