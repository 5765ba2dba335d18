"""FROM and WHERE of a block, after the analysis, and what the analysis of subqueries needs of that of blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from tidemark.split import ir
from tidemark.split.context import Context
from tidemark.split.expressions import Expressions
from tidemark.split.nodes import Node
from tidemark.split.scope import NameScope, Source


@dataclass(slots=True)
class Core:
    """FROM and WHERE of a block: what its expressions mean, and the conditions that could not be proven, with why."""

    source: Source
    scope: NameScope
    expressions: Expressions
    leftover: list[Node] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    @property
    def relation(self) -> ir.Relation:
        """The rows, with the joins that subqueries in expressions needed."""
        return self.source.relation


class Analyzer(Protocol):
    """Analyzes blocks in one context."""

    @property
    def context(self) -> Context:
        """The context."""

    def inside(self, outer: NameScope | None) -> Analyzer:
        """Return the analyzer of a subquery, which may name the columns around it."""

    def core(self, from_: list[Node], where: Node | None) -> Core:
        """Analyze FROM and WHERE."""

    def whole(self, select: Node) -> Source:
        """Return a query that is proven completely."""
