"""`tidemark clone`: copy a database into another PostgreSQL, and follow its changes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from tidemark.cli.options import (
    DirectoryType,
    EndType,
    json_option,
    name_option,
    quiet_option,
    selection_options,
    source_argument,
    target_argument,
)
from tidemark.cli.showing import display
from tidemark.cli.signals import StopSignals
from tidemark.cli.spark import spark_options, started
from tidemark.cli.sync import interval_option, mode_option
from tidemark.clock import Lsn
from tidemark.errors import ExitCode, Stopped
from tidemark.lake.controls import CURRENT
from tidemark.pipeline.events import as_json as plain_event
from tidemark.postgres.capability import Mode
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.session import Session
from tidemark.schema.selection import Pattern, Selection


@click.command()
@source_argument
@target_argument
@click.option("--follow", "follows", is_flag=True, help="Follow the changes of SOURCE until it is stopped.")
@click.option(
    "--endpos",
    type=EndType(),
    metavar="LSN|current",
    help="End when every commit up to this LSN is applied; current is the position after the copy.",
)
@mode_option
@interval_option
@selection_options
@click.option(
    "--schema",
    type=click.Choice(["copy", "existing"]),
    default="copy",
    show_default=True,
    help="Create the schema at TARGET with pg_dump and pg_restore, or use the tables that exist.",
)
@click.option(
    "--on-difference",
    type=click.Choice(["stop", "repair"]),
    default="stop",
    show_default=True,
    help="Stop at rows of TARGET that do not fit, or repair and report them.",
)
@click.option(
    "--on-ddl",
    type=click.Choice(["carry", "stop"]),
    default="carry",
    show_default=True,
    help="Carry added, dropped, renamed and widened columns to TARGET, or stop at them.",
)
@click.option("--pg-bin", type=DirectoryType(), help="Use pg_dump and pg_restore of this directory.")
@click.option("--jobs", type=click.IntRange(1), default=4, show_default=True, help="Copy and index in N jobs.")
@click.option(
    "--state",
    "folder",
    type=DirectoryType(),
    help="Keep the log and the dumped schema in this directory.  [default: below ~/.local/state/tidemark]",
)
@click.option("--dry-run", is_flag=True, help="Check both servers, print the plan and stop.")
@name_option
@spark_options
@json_option("Print events as JSON lines on standard output.")
@quiet_option
def clone(
    source: Dsn, target: Dsn, follows: bool, endpos: Lsn | str | None, mode: Mode | None, interval_s: float,
    take: tuple[Pattern, ...], leave: tuple[Pattern, ...], schema: str, on_difference: str, on_ddl: str,
    pg_bin: Path | None, jobs: int, folder: Path | None, dry_run: bool, names: MirrorNames | None, master: str | None,
    remote: str | None, conf: tuple[str, ...], as_json: bool, quiet: bool,
) -> ExitCode:  # fmt: skip
    """Copy database SOURCE into TARGET, and follow its changes.

    SOURCE and TARGET are libpq connection strings or URIs, as for psql. Run it again after a stop or a crash: it
    resumes where it stopped. Without --follow, the clone is completed: everything that was committed when the copy
    ended is applied, then foreign keys, triggers and the values of sequences are created at TARGET, and the slot and
    the publication at SOURCE are removed.

    Without logical decoding SOURCE is polled: TARGET is then as of the last poll, and nothing is created at SOURCE.
    Without --follow, the clone is completed after one poll: stop the writes to SOURCE before.

    This process copies the rows; with --master, --remote or --conf, the tasks of a Spark session do.

    PATTERN is schema.table with * and ?, or "Quoted"."Name"; partitions and inheriting tables are included.

    Tidemark keeps its own tables at TARGET in schema tidemark. Only Tidemark may write to TARGET until the clone is
    complete.
    """
    names = names or _default_names(source)
    with StopSignals() as stopping:
        try:
            with stopping.deferred(), display(as_json=as_json, quiet=quiet, stopping=stopping, name="clone") as shown:
                from tidemark.target.clone import Clone  # deferred: these import Spark
                from tidemark.target.options import CloneOptions
                from tidemark.target.state import ClonePhase

                options = CloneOptions(
                    source,
                    target,
                    names,
                    folder or _default_folder(names),
                    Selection(take, leave),
                    follows,
                    endpos if isinstance(endpos, Lsn) else None,
                    endpos == CURRENT,
                    jobs,
                    pg_bin,
                    schema == "copy",
                    mode,
                    interval_s,
                    on_difference == "repair",
                    on_ddl == "carry",
                )
                on_spark = bool(master or remote or conf)
                clone = Clone(options, lambda: started(master, remote, conf) if on_spark else None, shown.emit)
                if dry_run:
                    for line in clone.describe():
                        click.echo(line)
                    return ExitCode.OK
                ended = clone.run(stopping)
        except Stopped as error:
            click.echo(f"tidemark: {error.message}", err=True)
            return stopping.exit_code(has_end=True)
    rows = "1 row" if ended.repaired == 1 else f"{ended.repaired:,} rows"
    repaired = f"; {rows} repaired since it was begun" if ended.repaired else ""
    line = f"clone {names.mirror}: {ended.phase.value}, at {ended.applied_lsn}{repaired}"
    click.echo(json.dumps(plain_event(ended)) if as_json else line)
    return (
        ExitCode.OK if ended.phase is ClonePhase.COMPLETE or not stopping() else stopping.exit_code(has_end=not follows)
    )


def _default_names(source: Dsn) -> MirrorNames:
    """The name of a clone: another than that of a mirror of the same database."""
    with Session.open(source, "clone") as session:
        (database,) = session.row("select current_database()")
    return MirrorNames.of_database(f"clone_{database}")


def _default_folder(names: MirrorNames) -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "tidemark" / names.mirror
