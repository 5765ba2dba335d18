"""PostgreSQL's parse tree, as libpg_query returns it.

A node is read through `reading`, which has the list of its fields that are set: when the block ends and a set field
was not read, the statement is refused. So no field, such as the negation of an operator, can be overlooked.

The top of a statement is a copy of its tree in which parts were replaced. `sql_of` prints it, and requires that the
text is parsed to the same tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import postgast
from postgast import PgQueryError, pg_query_pb2

from tidemark.errors import Unproven

Node: TypeAlias = Any  # a message of pg_query_pb2; its fields have no types for mypy

PLACES = frozenset(
    {"location", "stmt_location", "stmt_len", "rexpr_list_start", "rexpr_list_end", "list_start", "list_end"}
)


class Fields:
    """The fields of a node that are set, and which of them have been read."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.left = {field.name for field, _ in node.ListFields()} - PLACES

    def __getitem__(self, name: str) -> Any:
        """Read a field: None for a node that is not set, otherwise the value; nodes without their wrapper."""
        self.left.discard(name)
        value = getattr(self.node, name)
        field = self.node.DESCRIPTOR.fields_by_name[name]
        if field.message_type is None:
            return value
        if field.is_repeated:
            return [unwrapped(each) for each in value]
        return unwrapped(value) if self.node.HasField(name) else None

    def enum(self, name: str) -> str:
        """Read a field with an enumerated value, as its name."""
        number = self[name]
        label: str = self.node.DESCRIPTOR.fields_by_name[name].enum_type.values_by_number[number].name
        return label

    def is_plain_distinct(self) -> bool:
        """Whether the SELECT has DISTINCT without ON."""
        clause = self.node.distinct_clause
        return len(clause) > 0 and all(each.WhichOneof("node") is None for each in clause)

    def is_distinct(self) -> bool:
        """Read the DISTINCT of a SELECT; DISTINCT ON is refused."""
        clause = self.node.distinct_clause
        self.left.discard("distinct_clause")
        if any(each.WhichOneof("node") is not None for each in clause):
            raise Unproven("DISTINCT ON")
        return len(clause) > 0

    def require_read(self) -> None:
        """Refuse the statement if a field that is set was not read."""
        if self.left:
            raise Unproven(f"{kind_of(self.node)} with {', '.join(sorted(self.left))}")


@contextmanager
def reading(node: Node) -> Iterator[Fields]:
    """Read a node; all of its fields that are set must have been read when the block ends."""
    fields = Fields(node)
    yield fields
    fields.require_read()


def unwrapped(node: Node) -> Node:
    """Return the node inside a `Node`, or the node itself."""
    if isinstance(node, pg_query_pb2.Node):
        which = node.WhichOneof("node")
        if which is None:
            raise Unproven("an empty node")
        return getattr(node, which)
    return node


def wrapped(node: Node) -> Node:
    """Return a node as a `Node`, for a field of any node."""
    if isinstance(node, pg_query_pb2.Node):
        return node
    name = next(field.name for field in pg_query_pb2.Node.DESCRIPTOR.fields if field.message_type is node.DESCRIPTOR)
    return pg_query_pb2.Node(**{name: node})


def kind_of(node: Node) -> str:
    """Return the name of a node's class, such as A_Expr."""
    name: str = node.DESCRIPTOR.name
    return name


def parsed(statement: str) -> Node:
    """Return the tree of one statement."""
    try:
        tree = postgast.parse(statement)
    except PgQueryError as error:
        raise Unproven("the statement is not valid in PostgreSQL's grammar") from error
    if len(tree.stmts) != 1:
        raise Unproven("not one statement")
    return unwrapped(tree.stmts[0].stmt)


def sql_of(select: Node) -> str:
    """Return the text of a SELECT; it is parsed to the same tree."""
    tree = pg_query_pb2.ParseResult(version=180004)
    tree.stmts.add().stmt.CopyFrom(wrapped(select))
    try:
        text: str = postgast.deparse(tree)
        again = postgast.parse(text)
    except PgQueryError as error:
        raise Unproven("the statement cannot be printed") from error
    if len(again.stmts) != 1 or key(unwrapped(again.stmts[0].stmt)) != key(select):
        raise Unproven("the statement cannot be printed exactly")
    return text


def expression_sql(node: Node) -> str:
    """Return the text of an expression, in parentheses unless it is simple."""
    select = pg_query_pb2.SelectStmt(limit_option="LIMIT_OPTION_DEFAULT", op="SETOP_NONE")
    select.target_list.add().res_target.val.CopyFrom(wrapped(node))
    return sql_of(select).removeprefix("SELECT ")


def key(node: Node) -> bytes:
    """Return the bytes of a tree without positions in the text: equal for equal trees."""
    copy = type(node)()
    copy.CopyFrom(node)
    _forget_places(copy)
    serialized: bytes = copy.SerializeToString(deterministic=True)
    return serialized


def _forget_places(node: Node) -> None:
    for field, value in node.ListFields():
        if field.name in PLACES:
            node.ClearField(field.name)
        elif field.message_type is not None:
            for each in value if field.is_repeated else (value,):
                _forget_places(each)


def children(node: Node) -> Iterator[Node]:
    """Yield the nodes directly inside a node."""
    for field, value in node.ListFields():
        if field.message_type is not None:
            for each in value if field.is_repeated else (value,):
                if not isinstance(each, pg_query_pb2.Node) or each.WhichOneof("node") is not None:
                    yield unwrapped(each)


def walk(node: Node, inside: Callable[[Node], bool] = lambda _: True) -> Iterator[Node]:
    """Yield a node and all nodes below it, but nothing below a node that `inside` rejects."""
    yield node
    if inside(node):
        for each in children(node):
            yield from walk(each, inside)


def replaced(node: Node, change: Callable[[Node], Node | None]) -> Node:
    """Return a copy of a tree: where `change` returns a node, it stands in place of the original and all below it."""
    found = change(node)
    if found is not None:
        return found
    copy = type(node)()
    copy.CopyFrom(node)
    for field, value in node.ListFields():
        if field.message_type is None:
            continue
        if field.is_repeated:
            items = [_replaced_item(each, change) for each in value]
            copy.ClearField(field.name)
            getattr(copy, field.name).extend(items)
        else:
            getattr(copy, field.name).CopyFrom(_replaced_item(value, change))
    return copy


def _replaced_item(node: Node, change: Callable[[Node], Node | None]) -> Node:
    if isinstance(node, pg_query_pb2.Node):
        return wrapped(replaced(unwrapped(node), change)) if node.WhichOneof("node") is not None else node
    return replaced(node, change)


def strings(nodes: list[Node]) -> tuple[str, ...]:
    """Return the parts of a name."""
    if any(kind_of(each) != "String" for each in nodes):
        raise Unproven("a name with other parts than words")
    return tuple(each.sval for each in nodes)


def column_ref(*parts: str) -> Node:
    """Return a reference to a column."""
    node = pg_query_pb2.ColumnRef()
    for part in parts:
        node.fields.add().string.sval = part
    return node


def from_sql(expression: str) -> Node:
    """Return the tree of an expression that this package wrote."""
    return unwrapped(postgast.parse(f"select {expression}").stmts[0].stmt.select_stmt.target_list[0].res_target.val)
