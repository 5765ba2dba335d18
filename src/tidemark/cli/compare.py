"""`tidemark compare`: compare the tables of a mirror with their source, and list the rows that differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidemark.cli.options import DurationType, json_option, lake_argument, source_option
from tidemark.cli.printing import observed
from tidemark.cli.spark import spark_options, started
from tidemark.errors import ExitCode
from tidemark.mirror.compare.narrowing import Difference
from tidemark.postgres.dsn import Dsn

if TYPE_CHECKING:
    from tidemark.clock import Boundary
    from tidemark.lake.polls import Poll
    from tidemark.mirror.compare.comparison import Compared, Comparison
    from tidemark.mirror.compare.narrowing import Differing

_DIFFERENCES = {
    Difference.MISSING: "missing in the mirror",
    Difference.EXTRA: "only in the mirror",
    Difference.OTHER: "different values",
}


@click.command()
@lake_argument
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@source_option(required=True)
@click.option("--sample", type=click.FloatRange(0.01, 100), default=100, show_default=True, metavar="PERCENT",
              help="Compare a sample of the rows, the same on both sides.")  # fmt: skip
@click.option("--parallel", type=click.IntRange(1, 64), default=2, show_default=True, metavar="N",
              help="Compare N tables at a time, with one connection each.")  # fmt: skip
@click.option("--timeout", "timeout_s", type=DurationType(), default="1h", show_default=True,
              help="Cancel a statement on the source after this time.")  # fmt: skip
@click.option("--wait", "wait_s", type=DurationType(),
              help="Wait this long for the snapshot.  [default: 10s; 5min if polled]")  # fmt: skip
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, metavar="N",
              help="Print at most N differing rows per table.")  # fmt: skip
@click.option("--values", is_flag=True, help="Print the values of differing rows on both sides.")
@json_option("Print one JSON object per table.")
@spark_options
def compare(
    lake: Path, tables: tuple[str, ...], source: Dsn, sample: float, parallel: int, timeout_s: float,
    wait_s: float | None, limit: int, values: bool, as_json: bool, master: str | None, remote: str | None,
    conf: tuple[str, ...],
) -> ExitCode:  # fmt: skip
    """Compare TABLEs of LAKE with their source, row by row.

    Without TABLE, all tables are compared. PostgreSQL and Spark each compute the row count and a digest of all rows, in
    one snapshot of the source. If these differ, ranges of the key are compared until the differing rows are found.
    Tables are locked as by SELECT while they are read. A table with inheriting tables is compared twice: with their
    rows, and without.

    A polled mirror is compared in the snapshot of the next poll if `tidemark sync` runs, otherwise of the last poll.

    The exit code is 12 if a table differs, and 11 if one could not be compared.
    """
    from tidemark.lake.lake import Lake

    Lake.open(lake)
    session = started(master, remote, conf)
    from tidemark.mirror.compare.comparison import CompareOptions, Comparison, Verdict  # deferred: they import Spark
    from tidemark.mirror.compare.digest import WHOLE
    from tidemark.mirror.mirror import open_mirror

    mirror = open_mirror(lake, session)
    options = CompareOptions(max(1, round(sample / 100 * WHOLE)), parallel, timeout_s, wait_s, limit, values)
    comparison = Comparison(mirror, source, options)
    verdicts: set[Verdict] = set()
    for done in comparison.run(tables):
        if not verdicts and not as_json and comparison.boundary is not None:
            click.echo(_where(comparison.boundary, comparison.observed))
        verdicts.add(done.verdict)
        for line in [json.dumps(_plain(done, comparison, values))] if as_json else _lines(done, values):
            click.echo(line)
    if Verdict.DIFFERENT in verdicts:
        return ExitCode.DIFFERENT
    return ExitCode.NOT_ANSWERABLE if Verdict.NOT_COMPARED in verdicts else ExitCode.OK


def _where(boundary: Boundary, poll: Poll | None) -> str:
    if poll is not None:
        return f"compared at {boundary.lsn}, {observed(poll)}"
    count = len(boundary.excluded)
    hidden = f", without {count} commit{'s' * (count > 1)} not visible to the snapshot" if count else ""
    return f"compared at {boundary.lsn}{hidden}"


def _plain(done: Compared, comparison: Comparison, values: bool) -> dict[str, Any]:
    found, boundary = done.found, comparison.boundary
    return {
        "table": done.table,
        "only": done.only,
        "verdict": done.verdict.value,
        "lsn": str(boundary.lsn) if boundary is not None else None,
        "excluded": [str(lsn) for lsn in sorted(boundary.excluded)] if boundary is not None else [],
        "observed": comparison.observed is not None,
        "seconds": round(done.seconds, 3),
        "source": {"rows": done.source.rows, "digest": str(done.source)} if done.source is not None else None,
        "mirror": {"rows": done.mirror.rows, "digest": str(done.mirror)} if done.mirror is not None else None,
        "reason": done.reason or None,
        "differing": [_plain_row(row, values) for row in found.differing] if found is not None else [],
        "more": found.more if found is not None else False,
    }


def _plain_row(row: Differing, values: bool) -> dict[str, Any]:
    rows = {"source": list(row.source), "mirror": list(row.mirror)} if values else {}
    return {"difference": row.how.value, "key": row.key, **rows}


def _lines(done: Compared, values: bool) -> list[str]:
    name = f"{done.table} (without inheriting tables)" if done.only else done.table
    if done.source is None or done.mirror is None:
        return [f"{done.verdict.value:<12}  {name}: {done.reason}"]
    first = f"{done.verdict.value:<12}  {name}  {done.source.rows:,} rows  {done.source}  {done.seconds:.1f} s"
    if done.found is None:
        return [first]
    lines = [f"{first}\n{'':<12}  mirror: {done.mirror.rows:,} rows  {done.mirror}"]
    for row in done.found.differing:
        lines.append(f"    {_DIFFERENCES[row.how]:<22} {row.key if row.key is not None else '(no key)'}")
        if values:
            lines += [f"        source  {text}" for text in row.source]
            lines += [f"        mirror  {text}" for text in row.mirror]
    return [*lines, "    … more rows differ (raise --limit)"] if done.found.more else lines
