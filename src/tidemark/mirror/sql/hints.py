"""The TEXT hint: `select /*+ TEXT(orders.due) */ * from orders` reads a column as PostgreSQL's text of its values.

The hint is replaced by spaces, so that all offsets in the text stay the same. Spark's own hints are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.mirror.sql.tokens import Token, hints, refuse

TEXT = "TEXT"


def without_text_hints(sql: str) -> tuple[str, tuple[tuple[str, ...], ...]]:
    """Return the statement without its TEXT hints, and the parts of each name in them."""
    columns: list[tuple[str, ...]] = []
    for hint in hints(sql):
        left = len(hint) - 2
        at = 1
        while at < len(hint) - 1:
            end = _end(hint, at)
            if hint[at].text.upper() == TEXT:
                columns += _names(sql, hint[at:end])
                comma = end if hint[end].text == "," else at - 1 if hint[at - 1].text == "," else None
                sql = _blanked(sql, hint[at].start, hint[end - 1].end)
                sql = sql if comma is None else _blanked(sql, hint[comma].start, hint[comma].end)
                left -= end - at + (comma is not None)
            at = end + (hint[end].text == ",")
        sql = sql if left > 0 else _blanked(sql, hint[0].start, hint[-1].end)
    return sql, tuple(columns)


def _end(hint: Sequence[Token], at: int) -> int:
    """Return the end of the hint that begins here: after its name, or after its parentheses."""
    if hint[at + 1].text != "(":
        return at + 1
    return next((n + 1 for n in range(at, len(hint) - 1) if hint[n].text == ")"), len(hint) - 1)


def _names(sql: str, hint: Sequence[Token]) -> list[tuple[str, ...]]:
    """Return the names in `TEXT(a, t.b, s.t.c)`, each as its parts."""
    inside = hint[2:-1]
    names: list[tuple[str, ...]] = []
    parts: list[str] = []
    for n, token in enumerate([*inside, Token("symbol", hint[-1].start, hint[-1].end, ",", "")]):
        if n % 2 == 0 and token.is_name:
            parts.append(token.name)
        elif n % 2 == 1 and token.text == ",":
            names.append(tuple(parts))
            parts = []
        elif n % 2 == 0 or token.text != ".":
            refuse(sql, hint[0].start, "invalid TEXT hint", "Write `/*+ TEXT(orders.due) */`.")
    return names


def _blanked(sql: str, start: int, end: int) -> str:
    return sql[:start] + "".join("\n" if char == "\n" else " " for char in sql[start:end]) + sql[end:]
