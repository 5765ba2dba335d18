"""`tidemark expire`: delete data that is older than the retention period."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidemark.cli.options import DurationType, LsnType, ValueType, lake_argument
from tidemark.clock import Lsn
from tidemark.errors import ExitCode, InvalidValue
from tidemark.lake.sync_records import Retention, retention_of
from tidemark.units import format_size, parse_keep

if TYPE_CHECKING:
    from tidemark.pipeline.expire.expiry import Expired


class RetentionType(ValueType[Retention]):
    """A duration, or `forever`."""

    name = "keep"

    def parse(self, value: Any) -> Retention:
        """Parse a retention period."""
        return value if isinstance(value, Retention) else Retention(parse_keep(value))


@click.command()
@lake_argument
@click.option("--keep", type=RetentionType(), metavar="DURATION|forever",
              help="Retention period.  [default: that of sync, or 7d]")  # fmt: skip
@click.option("--before", type=LsnType(), metavar="LSN", help="Delete data older than this LSN, instead of --keep.")
@click.option("--grace", "grace_s", type=DurationType(), metavar="DURATION", default="1h", show_default=True,
              help="Keep deleted files for readers without a lease.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and delete nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def expire(
    lake: Path, keep: Retention | None, before: Lsn | None, grace_s: float, dry_run: bool, as_json: bool
) -> ExitCode:
    """Delete data older than the retention period.

    Data that an open reader or an unfinished copy needs is kept, and these are listed. `--keep forever` deletes only
    files that no read needs. Starts no JVM, and can run while other commands use LAKE.
    """
    if keep is not None and before is not None:
        raise InvalidValue("--keep and --before exclude each other", "Use only one of `--keep` and `--before`.")
    from tidemark.pipeline.expire.expiry import ExpireOptions, expire_lake  # deferred: it imports Delta

    if before is not None:
        options = ExpireOptions(None, before, grace_s)
    else:
        options = ExpireOptions.of(keep or retention_of(lake), grace_s)
    done = expire_lake(lake, options, dry_run=dry_run)
    if as_json:
        click.echo(json.dumps(_plain(done, dry_run=dry_run), indent=2))
        return ExitCode.OK
    verb = "would delete" if dry_run else "deleted"
    for removal in done.removals:
        files = f"{removal.files:,} file{'s' * (removal.files != 1)}, {format_size(removal.size_bytes)}"
        click.echo(f"{removal.what}: {verb} {files}")
    for what, lsn in [
        *((f"reader: {lease}", lease.lsn) for lease in done.leases),
        *((f"copy that has not ended, at {copy}", copy) for copy in done.copies),
    ]:
        click.echo(f"{what}{', keeps older data from being deleted' if lsn < done.wanted else ''}")
    click.echo(f"retained LSN: {done.retained}{' (dry run)' if dry_run else ''}")
    return ExitCode.OK


def _plain(done: Expired, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "retained_lsn": str(done.retained),
        "requested_lsn": str(done.wanted),
        "deleted": [
            {"what": removal.what, "files": removal.files, "bytes": removal.size_bytes} for removal in done.removals
        ],
        "readers": [lease.plain() for lease in done.leases],
        "copies": [str(copy) for copy in done.copies],
    }
