"""`tidemark compare`: compare the tables of a mirror with their source, or those of two servers, row by row."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from tidemark.cli.differences import boundary_line, lake_json, lake_lines, server_json, server_lines, servers_line
from tidemark.cli.options import DurationType, LakeOrDsnType, is_connection_string, json_option, source_option
from tidemark.cli.spark import spark_options, started
from tidemark.errors import ExitCode, InvalidValue
from tidemark.mirror.compare.digest import WHOLE
from tidemark.mirror.compare.narrowing import Verdict
from tidemark.postgres.dsn import Dsn
from tidemark.schema.selection import Pattern

if TYPE_CHECKING:
    from tidemark.mirror.compare.comparison import Comparison
    from tidemark.target.compare.servers import ServerCompareOptions

_LAKE_ONLY = ("source", "master", "remote", "conf")
_SERVERS_ONLY = ("sequences",)
WAIT_S = 10.0
_FORMS = "Use `tidemark compare LAKE --source SOURCE` for a lake, `tidemark compare SOURCE TARGET` for two servers."


@click.command()
@click.argument("compared", metavar="LAKE|SOURCE", type=LakeOrDsnType())
@click.argument("names", metavar="[TARGET] [TABLE]...", nargs=-1)
@source_option(purpose="; required with LAKE")
@click.option("--sample", type=click.FloatRange(0.01, 100), default=100, show_default=True, metavar="PERCENT",
              help="Compare a sample of the rows, the same on both sides.")  # fmt: skip
@click.option("--parallel", type=click.IntRange(1, 64), default=2, show_default=True, metavar="N",
              help="Compare N tables at a time, with one connection each.")  # fmt: skip
@click.option("--timeout", "timeout_s", type=DurationType(), default="1h", show_default=True,
              help="Cancel a statement on a server after this time.")  # fmt: skip
@click.option("--wait", "wait_s", type=DurationType(),
              help="Wait this long for the snapshot.  [default: 10s; 5min if LAKE is polled]")  # fmt: skip
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, metavar="N",
              help="Print at most N differing rows per table.")  # fmt: skip
@click.option("--values", is_flag=True, help="Print the values of differing rows on both sides.")
@click.option("--sequences", is_flag=True, help="With TARGET, compare the last values of sequences as well.")
@json_option("Print one JSON object per table.")
@spark_options
@click.pass_context
def compare(
    context: click.Context, compared: Path | Dsn, names: tuple[str, ...], source: Dsn | None, sample: float,
    parallel: int, timeout_s: float, wait_s: float | None, limit: int, values: bool, sequences: bool, as_json: bool,
    master: str | None, remote: str | None, conf: tuple[str, ...],
) -> ExitCode:  # fmt: skip
    """Compare a lake with its source, or two servers, row by row.

    `tidemark compare LAKE --source SOURCE` compares a lake, `tidemark compare SOURCE TARGET` two servers. Without
    TABLE, all tables are compared. Both sides compute the row count and a digest of all rows themselves, each in one
    snapshot. If these differ, ranges of the key are compared until the differing rows are found. Tables are locked as
    by SELECT while they are read.

    A table of LAKE with inheriting tables is compared twice: with their rows, and without. A polled mirror is compared
    in the snapshot of the next poll if `tidemark sync` runs, otherwise of the last poll.

    If TARGET is a clone that follows SOURCE, both are compared at one LSN while applications write to SOURCE, and
    unlogged tables are not compared. Other servers must not be written to during the comparison. TABLE can be a pattern
    such as sales.*. Values are compared as PostgreSQL prints them: numeric 1.0 and 1.00 differ, enums are compared by
    label, regclass by name. A table or column that only one server has is a difference. Types, indexes and constraints
    are not compared, nor are views, materialized views and foreign tables.

    The exit code is 12 if a table differs, and 11 if one could not be compared.
    """
    size = max(1, round(sample / 100 * WHOLE))
    if isinstance(compared, Dsn):
        _refuse(context, _LAKE_ONLY, "applies to a lake, not to two servers")
        from tidemark.target.compare.servers import ServerCompareOptions

        options = ServerCompareOptions(size, parallel, timeout_s, limit, values, sequences)
        return _compare_servers(compared, names, options, WAIT_S if wait_s is None else wait_s, as_json)
    _refuse(context, _SERVERS_ONLY, "applies to two servers, not to a lake")
    if any(map(is_connection_string, names)):
        raise InvalidValue(f"{compared} is a directory, and another argument is a connection string", _FORMS)
    if source is None:
        raise click.MissingParameter(None, context, param_hint="'--source'", param_type="option")
    from tidemark.lake.lake import Lake

    Lake.open(compared)
    session = started(master, remote, conf)
    from tidemark.mirror.compare.comparison import CompareOptions, Comparison  # deferred: they import Spark
    from tidemark.mirror.mirror import open_mirror

    lake_options = CompareOptions(size, parallel, timeout_s, wait_s, limit, values)
    return _compare_lake(Comparison(open_mirror(compared, session), source, lake_options), names, values, as_json)


def _refuse(context: click.Context, options: Iterable[str], why: str) -> None:
    """Refuse options on the command line that belong to the other form of the command."""
    for param in context.command.params:
        if param.name in options and context.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{param.opts[0]} {why}", context)


def _compare_lake(comparison: Comparison, names: tuple[str, ...], values: bool, as_json: bool) -> ExitCode:
    verdicts: set[Verdict] = set()
    for done in comparison.run(names):
        if not verdicts and not as_json and comparison.boundary is not None:
            click.echo(boundary_line(comparison.boundary, comparison.observed))
        verdicts.add(done.verdict)
        for line in [json.dumps(lake_json(done, comparison, values))] if as_json else lake_lines(done, values):
            click.echo(line)
    return _exit_code(verdicts)


def _compare_servers(
    source: Dsn, names: tuple[str, ...], options: ServerCompareOptions, wait_s: float, as_json: bool
) -> ExitCode:
    if not names or not is_connection_string(names[0]):
        given = f"{names[0]!r} is not a connection string" if names else "it is missing"
        raise InvalidValue(f"the first argument is a connection string, so TARGET must be one too, and {given}", _FORMS)
    from tidemark.target.compare.aligned import compared_snapshots
    from tidemark.target.compare.servers import compare_servers

    target, patterns = Dsn(names[0]), [Pattern(name) for name in names[1:]]
    verdicts: set[Verdict] = set()
    with compared_snapshots(source, target, options.timeout_s, wait_s) as taken:
        options = replace(options, follows=taken.lsn is not None)
        if options.follows and options.sequences:
            raise InvalidValue(
                "the target follows the source, and its sequences are set when the clone is completed",
                "Compare without `--sequences`.",
            )
        if not as_json:
            click.echo(servers_line(source, target, taken))
        for done in compare_servers(taken.source, taken.target, patterns, options):
            verdicts.add(done.verdict)
            for line in (
                [json.dumps(server_json(done, taken.lsn, options.values))]
                if as_json
                else server_lines(done, options.values)
            ):
                click.echo(line)
    return _exit_code(verdicts)


def _exit_code(verdicts: set[Verdict]) -> ExitCode:
    if Verdict.DIFFERENT in verdicts:
        return ExitCode.DIFFERENT
    return ExitCode.NOT_ANSWERABLE if Verdict.NOT_COMPARED in verdicts else ExitCode.OK
