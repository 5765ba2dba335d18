"""What PostgreSQL computes over rows that come from below, whose order is another one than that of its own scan.

Most results do not depend on the order of rows. These do, and are refused: sums of floats; one value of several that
are equal but print differently, such as 1.0 and 1.00, as the value of a group, MIN, MAX or DISTINCT; and functions of a
window, such as `lag`, that treat rows differently which its ORDER BY does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidemark.errors import Unproven
from tidemark.split.expressions import Expressions
from tidemark.split.facts import SessionFacts
from tidemark.split.nodes import Node, key, kind_of, strings, unwrapped, walk
from tidemark.split.typed import Typed
from tidemark.split.types import (
    BOOL,
    BPCHAR,
    BYTEA,
    DATE,
    INTEGERS,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    VARCHAR,
)

_COUNTS = frozenset({"count", "bool_and", "bool_or", "every", "bit_and", "bit_or", "bit_xor"})
_SUMS = frozenset({"sum", "avg", "stddev", "stddev_pop", "stddev_samp", "variance", "var_pop", "var_samp"})
_EXTREMES = frozenset({"min", "max"})
_OF_PEERS = frozenset({"rank", "dense_rank", "percent_rank", "cume_dist"})  # the same for rows that are equal in order
_FRAME_OF_ROWS = 4  # FRAMEOPTION_ROWS
_PRINTED_ALIKE = frozenset({*INTEGERS, BOOL, DATE, TIMESTAMP, TIMESTAMPTZ, UUID, BYTEA})  # equal values print equally


@dataclass(frozen=True, slots=True)
class Unordered:
    """Checks one block. `type_of` returns the type of an expression that is not proven below.

    `unique` are the keys of expressions that no two rows share, None if there are no such expressions.
    """

    facts: SessionFacts
    expressions: Expressions | None
    type_of: Callable[[Node], int]
    unique: frozenset[bytes] | None = None

    def require_aggregates(self, nodes: list[Node], *, windows_only: bool = False) -> None:
        """Raise Unproven if an aggregate in these expressions may depend on the order of rows."""
        for node in (each for output in nodes for each in walk(output, _outside_subqueries)):
            if kind_of(node) != "FuncCall" or (windows_only and not node.HasField("over")):
                continue
            name = strings([each.string for each in node.funcname])
            kinds = self.facts.functions[name].kinds  # `rank` is a window function and an aggregate
            is_aggregate = "a" in kinds and not (node.HasField("over") and "w" in kinds)
            if is_aggregate:
                self._require_aggregate(name[-1], node)
            if node.HasField("over"):
                self._require_window(name[-1], node.over, is_aggregate=is_aggregate)

    def _require_window(self, name: str, window: Node, *, is_aggregate: bool) -> None:
        """Refuse a function that depends on the order of the rows that ORDER BY leaves open."""
        has_frame = bool(window.name or window.refname or window.frame_options & _FRAME_OF_ROWS)
        if name in _OF_PEERS or (is_aggregate and not has_frame):
            return
        ordered = [unwrapped(each.sort_by.node) for each in window.order_clause]
        named = {key(each) for each in (*ordered, *map(unwrapped, window.partition_clause))}
        if self.unique is None or window.name or window.refname or not self.unique <= named:
            raise Unproven(f"{name} over a window, which may depend on the order of rows")

    def _require_aggregate(self, name: str, node: Node) -> None:
        args = [unwrapped(each) for each in node.args]
        if name in _COUNTS:
            return
        if name in _SUMS and len(args) == 1 and not node.agg_distinct:
            if self._oid(args[0]) not in (*INTEGERS, NUMERIC):
                raise Unproven(f"the aggregate {name} of this type, which may depend on the order of rows")
        elif name in (_SUMS | _EXTREMES) and len(args) == 1:
            self.require_alike(args[0])
        else:
            raise Unproven(f"the aggregate {name}, which may depend on the order of rows")

    def require_alike(self, node: Node) -> None:
        """Raise Unproven if equal values of an expression may differ in what PostgreSQL prints."""
        if kind_of(node) == "A_Const":
            return
        if any(kind_of(each) in ("SubLink", "CollateClause") for each in walk(node)):
            raise Unproven("groups by a subquery or with COLLATE")
        if self.expressions is not None:
            if self.expressions.constants.is_known(node):
                return
            value = self._typed(node)
            if value is not None:
                self.expressions.operators.require_groupable(value)
                return
        oid = self.type_of(node)
        if oid in _PRINTED_ALIKE or (oid in (TEXT, VARCHAR) and self._deterministic()):
            return
        raise Unproven("values that may be equal and print differently, of which the order of rows chooses one")

    def _oid(self, node: Node) -> int:
        if any(kind_of(each) == "SubLink" for each in walk(node)):
            raise Unproven("an aggregate of a subquery")
        value = self._typed(node)
        return self.type_of(node) if value is None else value.oid

    def _typed(self, node: Node) -> Typed | None:
        if self.expressions is None:
            return None
        try:
            return self.expressions.value(node)
        except Unproven:
            return None

    def _deterministic(self) -> bool:
        return all(each.deterministic for each in self.facts.collations.values())


def require_one_form(columns: list[list[Typed]]) -> None:
    """Raise Unproven if equal values of the parts of a UNION or another set operation may print differently."""
    for values in columns:
        forms = {(each.oid, each.scale) for each in values}
        if len(forms) > 1 and {NUMERIC, BPCHAR} & {oid for oid, _ in forms}:
            raise Unproven("a set operation of numerics with different digits after the point")


def _outside_subqueries(node: Node) -> bool:
    return kind_of(node) != "SubLink"
