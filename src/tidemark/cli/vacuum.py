"""`tidemark vacuum`: what is older than the window goes."""

from __future__ import annotations

from pathlib import Path

import click

from tidemark.cli.options import DurationType, LsnType
from tidemark.clock import Lsn
from tidemark.errors import ExitCode, InvalidValue


@click.command()
@click.argument("lake", type=click.Path(path_type=Path))
@click.option("--keep", "keep_s", type=DurationType(), help="How much of the past can be read.  [default: 7d]")
@click.option("--before", type=LsnType(), help="Instead: the oldest LSN that can be read.")
@click.option("--grace", "grace_s", type=DurationType(), default="1h", show_default=True,
              help="How long files stay after they were let go, for readers that hold no lease.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
def vacuum(lake: Path, keep_s: float | None, before: Lsn | None, grace_s: float, dry_run: bool) -> ExitCode:
    """Let go of what no read in the window needs. Starts no JVM, and may run beside everything else.

    A read that is open keeps what it needs, and is named.
    """
    if keep_s is not None and before is not None:
        raise InvalidValue("both --keep and --before", "one of them")
    from tidemark.vacuum.vacuum import VacuumOptions  # not before: it brings Delta
    from tidemark.vacuum.vacuum import vacuum as run

    default = VacuumOptions().keep_s if before is None else None
    options = VacuumOptions(keep_s if keep_s is not None else default, before, grace_s)
    done = run(lake.absolute(), options, dry_run=dry_run)
    for removal in done.removals:
        verb = "would go" if dry_run else "gone"
        click.echo(f"{removal.what}: {removal.files:,} files, {removal.size_bytes:,} bytes {verb}")
    for lease in done.leases:
        held = " holds the window back" if lease.lsn < done.wanted else " reads"
        click.echo(f"{lease}{held}")
    click.echo(f"the past can be read from {done.retained} on")
    return ExitCode.OK
