"""Edits of columns that are qualified with a schema, when their table gets an alias."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from tidemark.mirror.sql.catalog import NameCatalog, TableKey
from tidemark.mirror.sql.references import Reference
from tidemark.mirror.sql.refusal import refuse
from tidemark.mirror.sql.tokens import comments, token_end
from tidemark.schema.display import backticked, spark_name

Edit = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class Mentions:
    """Columns written `schema.table.column`, whose qualifier is replaced by the alias that their table gets.

    A table that has an alias in the query cannot be qualified like this, and such a column is left to Spark. If the
    added alias could mean another relation, the column is refused.
    """

    sql: str
    references: Sequence[Reference]
    bound: Mapping[int, TableKey]
    nodes: Mapping[int, exp.Table]
    names: Mapping[int, str]
    catalog: NameCatalog

    def edits(self) -> Iterator[Edit]:
        """Yield an edit for each column that is qualified with a table that gets an alias."""
        roots = {id(node.root()): node.root() for node in self.nodes.values()}
        for tree in roots.values():
            for column in tree.find_all(exp.Column):
                starts = sorted(part.meta["start"] for part in column.parts if "start" in part.meta)
                if len(starts) >= 2 and len(column.parts) >= 3:
                    yield from self._edit(column, starts[0], starts[1])

    def _edit(self, column: exp.Column, first: int, second: int) -> Iterator[Edit]:
        schema, table = self.names.get(first, ""), self.names.get(second, "")
        key = next((group[0] for group in self.catalog.candidates(schema, table) if len(group) == 1), None)
        scope, others = column.parent_select, 0
        while key is not None and scope is not None:
            inside = [reference for reference in self._sources(scope) if self._is_bare(reference, key)]
            others += sum(name == table.lower() for name in self._other_names(scope, inside))
            if inside and others:
                hint = f"Give {spark_name(key)} an alias, and qualify the column with it."
                refuse(self.sql, first, f"{schema}.{table} is ambiguous: another relation is named {table}", hint)
            if inside:
                end = token_end(self.sql, second)
                yield first, end, backticked(inside[0].known_as) + comments(self.sql, first, end)
                return
            scope = scope.parent_select

    def _is_bare(self, reference: Reference, key: TableKey) -> bool:
        return reference.alias is None and self.bound.get(reference.start) == key

    def _sources(self, scope: exp.Expr) -> list[Reference]:
        return [reference for reference in self.references if self.nodes[reference.start].parent_select is scope]

    def _other_names(self, scope: exp.Expr, inside: Sequence[Reference]) -> Iterator[str]:
        """Yield the names of the relations of a SELECT, without those in `inside`."""
        yield from (reference.known_as.lower() for reference in self._sources(scope) if reference not in inside)
        for alias in scope.find_all(exp.TableAlias):
            is_source = not isinstance(alias.parent, (exp.CTE, exp.Table)) and alias.parent_select is scope
            if is_source and alias.this is not None:
                yield self.names.get(alias.this.meta.get("start", -1), "").lower()
