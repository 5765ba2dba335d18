"""`tidemark compare`: whether a mirror is what its source is, table by table, and if not, where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidemark.cli.observed import observed
from tidemark.cli.options import DsnType, DurationType
from tidemark.cli.spark import spark_options, started
from tidemark.errors import ExitCode
from tidemark.source.dsn import Dsn

if TYPE_CHECKING:
    from tidemark.clock import Boundary
    from tidemark.compare.comparison import Compared, Comparison
    from tidemark.compare.narrowing import Differing
    from tidemark.lake.polls import Poll


@click.command()
@click.argument("lake", type=click.Path(path_type=Path))
@click.argument("table", nargs=-1)
@click.option("--source", type=DsnType(), envvar="TIDEMARK_SOURCE", metavar="SOURCE", required=True,
              help="The database that is mirrored; also by the variable TIDEMARK_SOURCE.")  # fmt: skip
@click.option("--sample", type=click.FloatRange(0.01, 100), default=100, show_default=True, metavar="PERCENT",
              help="How many of the rows to look at: the same on both sides, by the hash of the key.")  # fmt: skip
@click.option("--parallel", type=click.IntRange(1, 64), default=2, show_default=True,
              help="Tables at a time; each takes one process of the source.")  # fmt: skip
@click.option("--timeout", "timeout_s", type=DurationType(), default="1h", show_default=True, metavar="DURATION",
              help="How long one statement on the source may take.")  # fmt: skip
@click.option("--wait", "wait_s", type=DurationType(), metavar="DURATION",
              help="How long to wait for the snapshot: to be received, by default 10s; or, of a mirror that is "
              "polled, for the next poll, by default 5min.")  # fmt: skip
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True,
              help="How many rows that differ to name of each table.")  # fmt: skip
@click.option("--values", is_flag=True, help="Also show what rows that differ hold, on both sides.")
@click.option("--json", "as_json", is_flag=True, help="For programs: an object for each table, on a line of its own.")
@spark_options
def compare(
    lake: Path, table: tuple[str, ...], source: Dsn, sample: float, parallel: int, timeout_s: float,
    wait_s: float | None, limit: int, values: bool, as_json: bool, master: str | None, remote: str | None,
    conf: tuple[str, ...],
) -> ExitCode:  # fmt: skip
    """Prove that every TABLE in LAKE, or the whole of it, is what the source shows in one snapshot.

    PostgreSQL and Spark each count a table's rows and add up the hashes of their canonical texts. Where these differ,
    ranges of the key are compared until the rows that differ are found. A table is locked as by a SELECT, for as long
    as it is read. A table from which others inherit is compared with their rows, and alone. Ends with 12 if something
    differs, and with 11 if something could not be compared.

    A mirror that is polled is compared in the snapshot of a poll: of the next one, if `tidemark sync` runs; otherwise
    of the last one, if the source shows just that.
    """
    from tidemark.lake.lake import Lake

    Lake.open(lake.absolute())
    session = started(master, remote, conf)
    from tidemark.compare.comparison import CompareOptions, Comparison, Verdict  # not before: they bring Spark
    from tidemark.compare.digest import WHOLE
    from tidemark.query.mirror import open_mirror

    mirror = open_mirror(lake.absolute(), session)
    options = CompareOptions(max(1, round(sample / 100 * WHOLE)), parallel, timeout_s, wait_s, limit, values)
    comparison = Comparison(mirror, source, options)
    verdicts: set[Verdict] = set()
    for done in comparison.run(table):
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
        return f"at {boundary.lsn}, {observed(poll)}"
    hidden = f", but for {len(boundary.excluded)} commits that were not visible" if boundary.excluded else ""
    return f"at {boundary.lsn}{hidden}"


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
        "differing": [_plain_row(each, values) for each in found.differing] if found is not None else [],
        "more": found.more if found is not None else False,
    }


def _plain_row(each: Differing, values: bool) -> dict[str, Any]:
    rows = {"source": list(each.source), "mirror": list(each.mirror)} if values else {}
    return {"how": each.how.value, "key": each.key, **rows}


def _lines(done: Compared, values: bool) -> list[str]:
    name = f"only {done.table}" if done.only else done.table
    if done.source is None or done.mirror is None:
        return [f"{done.verdict.value:<12}  {name}: {done.reason}"]
    first = f"{done.verdict.value:<12}  {name}  {done.source.rows:,} rows  {done.source}  {done.seconds:.1f} s"
    if done.found is None:
        return [first]
    lines = [f"{first}\n{'':<12}  in the mirror {done.mirror.rows:,} rows  {done.mirror}"]
    for each in done.found.differing:
        lines.append(f"    {each.how.value:<8} {each.key if each.key is not None else 'a row without a key'}")
        if values:
            lines += [f"        source  {said}" for said in each.source]
            lines += [f"        mirror  {said}" for said in each.mirror]
    return [*lines, "    and more"] if done.found.more else lines
