"""The names that are visible in a query block, and what they refer to."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemark.errors import Unproven
from tidemark.split import ir
from tidemark.split.typed import Typed

Columns = list[tuple[str, Typed]]
# Every table has these columns, which are visible as its own are, but are not read.
SYSTEM_COLUMNS = frozenset({"tableoid", "ctid", "xmin", "cmin", "xmax", "cmax"})


@dataclass(slots=True)
class Source:
    """What FROM has: a relation, the columns that are visible without the name of a table, and those by table.

    A table with the name of its schema can be named with it as well: `qualified` has its schema. `unread` has the names
    of the columns by table that are visible, and are not read: a statement that names one is refused. `literals` has
    the positions of the results of a query that are literals without a type: a UNION around the query gives them one.
    """

    relation: ir.Relation
    visible: Columns
    tables: dict[str, Columns]
    qualified: dict[str, str] = field(default_factory=dict)
    unread: dict[str, frozenset[str]] = field(default_factory=dict)
    literals: frozenset[int] = frozenset()

    def joined(self, other: Source, relation: ir.Relation) -> Source:
        """Return both sources, with this relation."""
        if set(self.tables) & set(other.tables):
            raise Unproven("a table name that is used twice")
        qualified = {**self.qualified, **other.qualified}
        tables, unread = {**self.tables, **other.tables}, {**self.unread, **other.unread}
        return Source(relation, self.visible + other.visible, tables, qualified, unread)

    def hides(self, name: str) -> bool:
        """Whether a name may be that of a column that is not read."""
        return name in SYSTEM_COLUMNS or any(name in names for names in self.unread.values())

    def names(self) -> frozenset[str]:
        """Return the names that are visible without the name of a table."""
        return frozenset(name for name, _ in self.visible).union(*self.unread.values())


@dataclass(slots=True)
class NameScope:
    """The names of a block and, for a subquery, those of the block around it."""

    source: Source
    outer: NameScope | None = None
    uses_outer: bool = False

    def column(self, parts: tuple[str, ...]) -> Typed:
        """Return the column with this name; raise Unproven if there is none, or more than one."""
        found = self.found(parts)
        if found is None:
            raise Unproven(f"the name {'.'.join(parts)} is no column of a mirrored table")
        return found

    def found(self, parts: tuple[str, ...]) -> Typed | None:
        """Return the column with this name, None if there is none; raise Unproven if it is not known which it is."""
        found = self._own(parts)
        if found is not None or self.outer is None:
            return found
        self.uses_outer = True
        return self.outer.found(parts)

    def _own(self, parts: tuple[str, ...]) -> Typed | None:
        columns = self.source.visible if len(parts) == 1 else self._of_table(parts[:-1])
        if columns is not None and self.source.hides(parts[-1]):
            raise Unproven(f"the name {parts[-1]}, which may be that of a column that is not read")
        found = [value for name, value in columns or () if name == parts[-1]]
        if len(found) > 1:
            raise Unproven(f"the name {parts[-1]} is ambiguous")
        if not found and columns is not None and len(parts) > 1:
            raise Unproven(f"the column {'.'.join(parts)} does not exist")
        if not found and len(parts) == 1 and parts[0] in self.source.tables:
            raise Unproven("a whole row as a value")
        return found[0] if found else None

    def _of_table(self, parts: tuple[str, ...]) -> Columns | None:
        if len(parts) > 2:
            raise Unproven("a column with the name of a database")
        if len(parts) == 2 and self.source.qualified.get(parts[1]) != parts[0]:
            return None
        return self.source.tables.get(parts[-1])

    def starred(self, parts: tuple[str, ...]) -> Columns:
        """Return the columns of `*` or `table.*`."""
        if any(self.source.unread.values()):
            raise Unproven("* of a table with a column that is not read")
        columns = self.source.visible if not parts else self._of_table(parts)
        if columns is None:
            raise Unproven("* of a table around the subquery")
        return columns
