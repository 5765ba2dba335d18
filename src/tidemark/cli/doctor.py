"""`tidemark doctor`: which mode `tidemark sync` will use, and every requirement of a source with its result."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click

from tidemark.cli.options import name_option, selection_options, source_argument
from tidemark.errors import ExitCode
from tidemark.postgres.doctor import Check, Report, Status, examine
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.schema.selection import Pattern, Selection

_COLOURS = {Status.PASS: "green", Status.WARN: "yellow", Status.FAIL: "red"}


@click.command(short_help="Check whether SOURCE can be mirrored, and in which mode.")
@source_argument
@name_option
@selection_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(
    source: Dsn, names: MirrorNames | None, take: tuple[Pattern, ...], leave: tuple[Pattern, ...], as_json: bool
) -> ExitCode:
    """Check whether SOURCE can be mirrored, and in which mode.

    SOURCE is a libpq connection string or URI, as for psql. Each check passes, warns or fails; a check that does not
    pass prints its consequence and the SQL that fixes it. The last line is the mode that `tidemark sync` will use for a
    new lake. The exit code is 3 if neither logical decoding nor polling works. Nothing is created or changed.
    """
    report = examine(source, names, Selection(take, leave))
    if as_json:
        click.echo(json.dumps(report.as_json(), ensure_ascii=False, indent=2))
    else:
        for line in _lines(report):
            click.echo(line)
    return ExitCode.CHECKS_FAILED if report.mode is None else ExitCode.OK


def _lines(report: Report) -> Iterator[str]:
    width = max(len(check.requirement.name) for check in report.checks)
    for check in report.checks:
        status = click.style(check.status.value, fg=_COLOURS[check.status], bold=check.status is not Status.PASS)
        yield f"{status}  {check.requirement.name:<{width}}  {check.found}"
        if check.status is not Status.PASS:
            yield from _advice(check, indent=" " * (width + 8))
    counts = [sum(check.status is status for check in report.checks) for status in Status]
    yield f"{counts[0]} pass, {counts[1]} warn, {counts[2]} fail"
    if report.mode is None:
        yield f"`tidemark sync` cannot mirror this source: {report.reason}"
    else:
        yield f"`tidemark sync` will use mode {report.mode.value}: {report.reason}"


def _advice(check: Check, indent: str) -> Iterator[str]:
    if check.requirement.consequence:
        yield f"{indent}consequence: {check.requirement.consequence}"
    for line in check.fix.splitlines():
        yield f"{indent}  {line}"
