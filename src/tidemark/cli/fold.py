"""`tidemark fold`: changes into versions, so that reads are plain scans."""

from __future__ import annotations

from pathlib import Path

import click

from tidemark.cli.spark import spark_options, started
from tidemark.errors import ExitCode, InvalidValue


@click.command()
@click.argument("lake", type=click.Path(path_type=Path))
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Also what it does not pay to fold yet.")
@click.option("--dry-run", is_flag=True, help="Only say what would be folded.")
@spark_options
def fold(
    lake: Path, tables: tuple[str, ...], everything: bool, dry_run: bool,
    master: str | None, remote: str | None, conf: tuple[str, ...],
) -> ExitCode:  # fmt: skip
    """Fold the changes of TABLEs of LAKE into their versions; by default of every table where it pays.

    Readers see the same before, during and after. It may run beside `tidemark apply`, which folds by itself unless told
    otherwise.
    """
    from tidemark.lake.lake import Lake

    opened = Lake.open(lake.absolute())
    known = {f"{each.fingerprint.schema}.{each.fingerprint.name}" for each in opened.tables().values()}
    wanted = {name if "." in name else f"public.{name}" for name in tables}
    if strange := sorted(wanted - known):
        raise InvalidValue(f"there is no table {strange[0]} in this lake", ", ".join(sorted(known)) or "tidemark apply")
    session = started(master, remote, conf)
    from tidemark.apply.reach import require_reach  # not before: these bring Spark
    from tidemark.fold.folder import Folder
    from tidemark.lake.shared import shared_folder

    require_reach(session, shared_folder(opened.path))
    with Folder(opened.path, session) as folder:
        found = folder.foldable()
        for name in sorted(wanted - {table.name for table in found}):
            click.echo(f"{name}  has nothing to fold, or cannot be read up to the present")
        for table in found:
            if wanted and table.name not in wanted:
                continue
            burden = table.burden
            costs = f"{burden.changed_rows:,} changes in {burden.changed_bytes:,} bytes"
            costs += f", about {burden.rewritten_bytes:,.0f} bytes to rewrite"
            if not (wanted or everything or burden.pays):
                click.echo(f"{table.name}  left: it does not pay yet  ({costs})")
            elif dry_run:
                click.echo(f"{table.name}  would be folded to {table.upto}  ({costs})")
            else:
                done = folder.fold(table)
                size = f"{done.buckets} of {done.of_buckets} buckets, {done.size_bytes:,} bytes written"
                click.echo(f"{table.name}  folded to {done.upto}  ({costs}; {size})")
    return ExitCode.OK
