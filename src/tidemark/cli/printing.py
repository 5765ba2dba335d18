"""Printing of rows on standard output, one at a time: as a table, as CSV, as a JSON array or as JSON lines.

A result of a polled mirror comes with a note that it is as of the last poll.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidemark.quoting import in_quotes

if TYPE_CHECKING:
    from tidemark.lake.polls import Poll


Command = TypeVar("Command", bound=Callable[..., Any])
Texts = Iterable[Sequence[str | None]]
FORMATS = ("table", "csv", "json", "jsonl")
_MEASURED = 1000  # rows from which the widths of a table are computed


def format_option(command: Command) -> Command:
    """Add --format, an option of every command that prints rows."""
    text = "Print rows as a table, CSV, a JSON array, or one JSON object per line."
    return click.option("--format", "form", type=click.Choice(FORMATS), default="table", show_default=True, help=text)(
        command
    )


def print_records(records: Sequence[Mapping[str, Any]], names: Sequence[str], form: str) -> None:
    """Print rows that are in memory, as mappings from column names to values."""
    if form in ("json", "jsonl"):
        objects = ({name: record[name] for name in names} for record in records)
        print_objects((json.dumps(each, ensure_ascii=False) for each in objects), form)
        return
    numbers = [all(isinstance(record[name], int | None) for record in records) for name in names]
    print_texts(names, numbers, ([_plain(record[name]) for name in names] for record in records), form)


def _plain(value: Any) -> str | None:
    if isinstance(value, list):
        return ", ".join(" ".join(map(str, each.values())) if isinstance(each, dict) else str(each) for each in value)
    return None if value is None else str(value)


def print_objects(objects: Iterable[str], form: str) -> None:
    """Print JSON objects, each on its own line or as the elements of an array."""
    if form == "jsonl":
        for each in objects:
            click.echo(each)
        return
    before = "["
    for each in objects:
        click.echo(f"{before}{each}", nl=False)
        before = ",\n "
    click.echo("[]" if before == "[" else "]")


def print_texts(names: Sequence[str], numbers: Sequence[bool], rows: Texts, form: str) -> None:
    """Print rows whose values are texts; columns of numbers are aligned to the right."""
    if form == "table":
        _print_table(names, numbers, iter(rows))
        return
    for row in chain([names], rows):  # NULL is empty and empty text is quoted, as in PostgreSQL's COPY
        click.echo(",".join(_cell(value) for value in row))


def _print_table(names: Sequence[str], numbers: Sequence[bool], rows: Iterator[Sequence[str | None]]) -> None:
    """Print a table as psql does."""
    first = list(islice(rows, _MEASURED))
    widths = [max(len(row[at] or "") for row in [names, *first]) for at in range(len(names))]
    click.echo(" | ".join(name.center(width) for name, width in zip(names, widths, strict=True)).rstrip())
    click.echo("-+-".join("-" * width for width in widths))
    count = 0
    for row in chain(first, rows):
        cells = zip(row, widths, numbers, strict=True)
        padded = ((v or "").rjust(width) if number else (v or "").ljust(width) for v, width, number in cells)
        click.echo(" | ".join(padded).rstrip())
        count += 1
    click.echo(f"({count} row{'s' * (count != 1)})")


def _cell(value: str | None) -> str:
    if value is None:
        return ""
    if value == "" or any(char in value for char in ',"\n\r'):
        return in_quotes(value, '"')
    return value


def print_observed(poll: Poll | None) -> None:
    """Print on standard error, for a polled mirror, which poll a result is as of."""
    if poll is not None:
        click.echo(f"tidemark: {observed(poll)}", err=True)


def observed(poll: Poll) -> str:
    """Return the note as one line."""
    return f"as of {poll}" if poll.is_reconciled else f"as of {poll}; {unreconciled(poll)}"


def unreconciled(poll: Poll) -> str:
    """Return the note for a poll that did not search for deleted rows."""
    return f"rows deleted after {poll.seen.reconciled} may still be included"
