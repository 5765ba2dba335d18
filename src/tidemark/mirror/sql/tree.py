"""The second search for tables: sqlglot's tree of the masked text, its tables, and the names that a WITH defines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError

from tidemark.errors import InvalidValue
from tidemark.mirror.sql.references import Reference
from tidemark.mirror.sql.tokens import refuse


def parse(sql: str, masked: str) -> exp.Expr:
    """Return sqlglot's tree of the masked text; raise InvalidValue if it is not a query."""
    hint = "Rewrite this part of the query: its tables cannot be identified."
    try:
        trees = sqlglot.parse(masked, dialect="spark")
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        line, column = int(first.get("line") or 1), int(first.get("col") or 0)
        near = sql.split("\n")[line - 1][max(column - 30, 0) : column]
        what = f"syntax error after {near!r}: {first.get('description')} (line {line}, column {column})"
        raise InvalidValue(what, hint) from error
    except Exception as error:  # such as IndexError on `map(1,)`: the tables were not found either
        raise InvalidValue(f"the query cannot be parsed: {type(error).__name__}: {error}", hint) from error
    if len(trees) != 1 or not isinstance(trees[0], (exp.Query, exp.Values)):
        raise InvalidValue("the statement is not a query", "A mirror is read-only: write SELECT, WITH or VALUES.")
    return trees[0]


def agreed(sql: str, references: Sequence[Reference], tree: exp.Expr) -> dict[int, exp.Table]:
    """Return the parser's node of each reference; raise if the scan and the parser found different ones."""
    nodes: dict[int, exp.Table] = {}
    for node in tree.find_all(exp.Table):
        if isinstance(node.this, exp.Identifier):
            nodes[min((part.meta.get("start", -1) for part in node.parts), default=-1)] = node
    scanned = {reference.start: len(reference.parts) for reference in references}
    parsed = {start: len(node.parts) for start, node in nodes.items()}
    differing = sorted(start for start, _ in scanned.items() ^ parsed.items())
    if differing:
        at = max(differing[0], 0)
        word = sql[at : at + 30].split("\n")[0]
        refuse(
            sql,
            at,
            f"cannot determine whether this is a table: {word}",
            "Write names in backticks, or rewrite this part.",
        )
    return nodes


def is_cte(reference: Reference, node: exp.Table, names: Mapping[int, str]) -> bool:
    """Return whether a WITH defines the name: earlier in the same WITH, in its own body if recursive, or outside."""
    wanted = reference.parts[0].name.lower()
    return len(reference.parts) == 1 and any(wanted == name for name in _ctes_in_scope(node, names))


def _ctes_in_scope(node: exp.Expr, names: Mapping[int, str]) -> Iterator[str]:
    inner: exp.Expr = node
    inside: exp.Expr | None = None
    while (outer := inner.parent) is not None:
        if isinstance(outer, exp.With):
            inside = inner
        else:
            with_ = outer.args.get("with_") or outer.args.get("with")
            if isinstance(with_, exp.With):
                yield from _visible(with_, inside if inner is with_ else None, names)
        inner = outer


def _visible(with_: exp.With, inside: exp.Expr | None, names: Mapping[int, str]) -> Iterator[str]:
    """Yield the names that a WITH defines for its body, or for one of its own members."""
    for cte in with_.expressions:
        if cte is inside and not with_.args.get("recursive"):
            return
        yield names.get(cte.args["alias"].this.meta.get("start", -1), "").lower()
        if cte is inside:
            return
