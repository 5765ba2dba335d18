"""`tidemark doctor`: what a source lacks, a line for each thing."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click

from tidemark.cli.options import name_option, selection_options, source_argument
from tidemark.doctor import Check, Report, Status, examine
from tidemark.errors import ExitCode
from tidemark.source.dsn import Dsn
from tidemark.source.names import MirrorNames
from tidemark.source.selection import Pattern, Selection

_COLOURS = {Status.PASS: "green", Status.WARN: "yellow", Status.FAIL: "red"}


@click.command()
@source_argument
@name_option
@selection_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(
    source: Dsn, names: MirrorNames | None, take: tuple[Pattern, ...], leave: tuple[Pattern, ...], as_json: bool
) -> ExitCode:
    """Look at SOURCE and say what stands in the way of mirroring it.

    SOURCE is a libpq connection string or URI, as for psql. Every line passes, warns or fails; those that do not pass
    say what mends them and what happens if they are left. Nothing is created or changed.
    """
    report = examine(source, names, Selection(take, leave))
    if as_json:
        click.echo(json.dumps(report.as_json(), ensure_ascii=False, indent=2))
    else:
        for line in _lines(report):
            click.echo(line)
    return ExitCode.CHECKS_FAILED if report.verdict is Status.FAIL else ExitCode.OK


def _lines(report: Report) -> Iterator[str]:
    width = max(len(check.name) for check in report.checks)
    for check in report.checks:
        status = click.style(check.status.value, fg=_COLOURS[check.status], bold=check.status is not Status.PASS)
        yield f"{status}  {check.name:<{width}}  {check.finding}"
        yield from _remedy(check, indent=" " * (width + 8))
    counts = [sum(check.status is status for check in report.checks) for status in Status]
    yield f"{counts[0]} pass, {counts[1]} warn, {counts[2]} fail"


def _remedy(check: Check, indent: str) -> Iterator[str]:
    if check.otherwise:
        yield f"{indent}if left: {check.otherwise}"
    for line in check.mend.splitlines():
        yield f"{indent}  {line}"
