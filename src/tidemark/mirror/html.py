"""HTML of a mirror and of a moment, for notebooks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from tidemark.clock import Boundary, Lsn
from tidemark.lake.lake import Lake
from tidemark.lake.status import TableStatus


def mirror_html(lake: Lake, latest: Lsn, time: datetime | None, tables: Iterable[TableStatus]) -> str:
    """Return the latest position of a mirror and a list of its tables, as HTML."""
    rows = [
        (
            each.name,
            each.state,
            f"{each.rows:,}" if each.rows is not None else "",
            ", ".join(f"{column.name} {column.type}" for column in each.columns),
            " ".join(filter(None, (each.reason, each.fix))),
        )
        for each in tables
    ]
    head = f"Mirror of database {lake.database} in {lake.path}: latest {latest}{_at(time)}"
    return _document(head, ("table", "state", "rows", "columns", "reason"), rows)


def moment_html(lake: Lake, boundary: Boundary, time: datetime | None, tables: Iterable[tuple[str, str]]) -> str:
    """Return a position, its time, and the tables with their columns at that position, as HTML."""
    head = f"Mirror of database {lake.database} in {lake.path} at {boundary}{_at(time)}"
    return _document(head, ("table", "columns"), list(tables))


def _at(time: datetime | None) -> str:
    return f", {time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if time is not None else ""


def _document(head: str, names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    header = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<p>{escape(head)}</p><table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>"
