"""What the analysis of one statement shares: the session, the constants, names of columns, scalar subqueries, CTEs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tidemark.errors import Unproven
from tidemark.split import ir
from tidemark.split.constants import Constants
from tidemark.split.facts import FIRST_USER_OID, ResolvedRelation, SessionFacts
from tidemark.split.nodes import Node
from tidemark.split.parse import Name
from tidemark.split.scope import Columns, Source
from tidemark.split.typed import Typed
from tidemark.split.types import SqlType, stored

_READABLE = frozenset({"r"})


@dataclass(slots=True)
class Shared:
    """The parts of a context that all blocks of a statement write."""

    facts: SessionFacts
    constants: Constants
    columns: int = 0
    blocks: int = 0
    scalars: list[Node] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Context:
    """The shared parts, and the CTEs that a block can name."""

    shared: Shared
    ctes: Mapping[str, Node] = field(default_factory=dict)  # CommonTableExpr by name, in the order of definition

    @property
    def facts(self) -> SessionFacts:
        """The session."""
        return self.shared.facts

    @property
    def constants(self) -> Constants:
        """The constants."""
        return self.shared.constants

    def column(self, type_: ir.DataType) -> ir.TypedColumn:
        """Return a new column with a name of its own."""
        self.shared.columns += 1
        return ir.TypedColumn(f"_c{self.shared.columns}", type_)

    def block(self) -> str:
        """Return a new name for a derived table of the top."""
        self.shared.blocks += 1
        return f"_t{self.shared.blocks}"

    def with_ctes(self, clause: Node | None) -> Context:
        """Return the context inside of a WITH."""
        if clause is None:
            return self
        if clause.recursive:
            raise Unproven("WITH RECURSIVE")
        found = dict(self.ctes)
        for each in clause.ctes:
            name = each.common_table_expr.ctename
            if name in found:  # `before` relies on the order of the names
                raise Unproven(f"the name {name} for another WITH query around it")
            found[name] = each.common_table_expr
        return replace(self, ctes=found)

    def before(self, cte: str) -> Context:
        """Return the context of the query of a CTE: it can name those defined before it."""
        names = list(self.ctes)
        return replace(self, ctes={name: self.ctes[name] for name in names[: names.index(cte)]})

    def relation(self, name: Name) -> ResolvedRelation:
        """Return a mirrored table by its name; raise Unproven if its rows here may not be those of the lake."""
        found = self.facts.relations[name]
        if found is None:
            raise Unproven(f"the table {'.'.join(name)} does not exist")
        if found.oid < FIRST_USER_OID:
            raise Unproven(f"{found.name} is a table of the system")
        if found.kind not in _READABLE or found.persistence != "p":
            raise Unproven(f"{found.name} is not an ordinary table")
        if found.security:
            raise Unproven(f"the table {found.name} has row-level security")
        if found.rewritten:
            raise Unproven(f"the table {found.name} was truncated or rewritten after the snapshot")
        if found.rules or found.children:
            raise Unproven(f"the table {found.name} has rules or children")
        return found

    def table(self, name: Name, alias: str, names: list[str]) -> Source:
        """Return the scan of a table; `names` rename its first columns."""
        relation = self.relation(name)
        scanned: list[tuple[int, ir.TypedColumn]] = []
        columns: Columns = []
        unread = set[str]()
        for at, column in enumerate(relation.columns):
            type_ = SqlType(column.type, column.typmod, column.collation)
            data = stored(type_)
            name_here = names[at] if at < len(names) else column.name
            if data is None or (column.generated and column.generated != "s"):
                unread.add(name_here)
                continue
            found = self.column(data)
            scanned.append((column.attnum, found))
            scale = type_.limits[1] if type_.limits else None
            columns.append((name_here, Typed(found, type_, scale)))
        if len(names) > len(relation.columns):
            raise Unproven("an alias with more names than columns")
        qualified = {alias: relation.schema} if alias == relation.name and not names else {}
        scan = ir.Scan(relation.oid, tuple(scanned))
        return Source(scan, columns, {alias: columns}, qualified, {alias: frozenset(unread)})
