"""`tidemark doctor`: which mode `tidemark sync` will use, and every requirement of a source, and of a target."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import click

from tidemark.cli.options import DsnType, name_option, selection_options, source_argument
from tidemark.errors import ExitCode
from tidemark.postgres.doctor import Check, Report, Status, examine
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.schema.selection import Pattern, Selection
from tidemark.target.rights import TargetReport, examine_target

_COLOURS = {Status.PASS: "green", Status.WARN: "yellow", Status.FAIL: "red"}


@click.command(short_help="Check whether SOURCE can be mirrored, and in which mode.")
@source_argument
@click.argument("target", type=DsnType(), required=False)
@name_option
@selection_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(
    source: Dsn,
    target: Dsn | None,
    names: MirrorNames | None,
    take: tuple[Pattern, ...],
    leave: tuple[Pattern, ...],
    as_json: bool,
) -> ExitCode:
    """Check whether SOURCE can be mirrored, and in which mode.

    SOURCE is a libpq connection string or URI, as for psql. Each check passes, warns or fails; a check that does not
    pass prints its consequence and the SQL that fixes it. The last line is the mode that `tidemark sync` will use for a
    new lake. The exit code is 3 if neither logical decoding nor polling works. Nothing is created or changed.

    With TARGET, another PostgreSQL database, the requirements of a clone of SOURCE into it are checked as well. What
    its role may do is tried in transactions that are rolled back. The exit code is also 3 if one of them fails.
    """
    selection = Selection(take, leave)
    report = examine(source, names, selection)
    there = examine_target(source, target, selection, report.mode) if target is not None else None
    if as_json:
        plain = {**report.as_json(), "target": there.as_json() if there is not None else None}
        click.echo(json.dumps(plain, ensure_ascii=False, indent=2))
    else:
        for line in (*_lines(report), *(_target_lines(there) if there is not None else ())):
            click.echo(line)
    failed = report.mode is None or (there is not None and there.failed is not None)
    return ExitCode.CHECKS_FAILED if failed else ExitCode.OK


def _lines(report: Report) -> Iterator[str]:
    yield from _check_lines(report.checks)
    if report.mode is None:
        yield f"`tidemark sync` cannot mirror this source: {report.reason}"
    else:
        yield f"`tidemark sync` will use mode {report.mode.value}: {report.reason}"


def _target_lines(report: TargetReport) -> Iterator[str]:
    yield f"\ntarget {report.target}"
    yield from _check_lines(report.checks)
    if report.failed is None:
        yield "the source can be cloned into this target"
    else:
        yield f"the source cannot be cloned into this target: {report.failed.found}"


def _check_lines(checks: Sequence[Check]) -> Iterator[str]:
    width = max(len(check.requirement.name) for check in checks)
    for check in checks:
        status = click.style(check.status.value, fg=_COLOURS[check.status], bold=check.status is not Status.PASS)
        yield f"{status}  {check.requirement.name:<{width}}  {check.found}"
        if check.status is not Status.PASS:
            yield from _advice(check, indent=" " * (width + 8))
    counts = [sum(check.status is status for check in checks) for status in Status]
    yield f"{counts[0]} pass, {counts[1]} warn, {counts[2]} fail"


def _advice(check: Check, indent: str) -> Iterator[str]:
    if check.requirement.consequence:
        yield f"{indent}consequence: {check.requirement.consequence}"
    for line in check.fix.splitlines():
        yield f"{indent}  {line}"
