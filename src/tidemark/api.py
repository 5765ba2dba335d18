"""The commands as Python functions: `tidemark.status`, `compare`, `doctor` and `expire`.

Parameters are named like the options of the command. A function returns what its command prints.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.clock import Lsn
from tidemark.errors import InvalidValue
from tidemark.lake.paths import local_path
from tidemark.lake.sync_records import Retention, retention_of
from tidemark.mirror.positions import Duration, seconds_of
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.schema.selection import Pattern, Selection
from tidemark.units import parse_keep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.lake.status import LakeStatus
    from tidemark.mirror.compare.comparison import Compared
    from tidemark.pipeline.expire.expiry import Expired
    from tidemark.postgres.doctor import Report


def status(lake: str | Path) -> LakeStatus:
    """The state of a mirror: its watermarks, its tables and the processes that use it.

        for table in tidemark.status("/data/lake").tables:
            print(table.name, table.state, table.reason)

    Starts no JVM and does not connect to the source.
    """
    from tidemark.lake.status import status_of

    return status_of(local_path(lake))


def doctor(
    source: str | Dsn, *, name: str | None = None, table: str | Iterable[str] = (), exclude: str | Iterable[str] = ()
) -> Report:
    """Check that a database can be mirrored. Nothing is created or changed.

        report = tidemark.doctor("postgresql://app@db/shop")
        for check in report.checks:
            print(check.status.value, check.requirement.name, check.found)

    `table` and `exclude` are patterns such as `"sales.*"`, as for `tidemark sync`.
    """
    from tidemark.postgres.doctor import examine

    selection = Selection(_patterns(table), _patterns(exclude))
    return examine(_dsn(source), MirrorNames(name) if name is not None else None, selection)


def expire(
    lake: str | Path,
    *,
    keep: Duration | None = None,
    before: str | Lsn | None = None,
    grace: Duration = "1h",
    dry_run: bool = False,
) -> Expired:
    """Delete history that is older than the retention, and return what was deleted.

        tidemark.expire("/data/lake", keep="7d")

    `keep` is how much history can be read: seconds, a timedelta, or a text such as `"7d"`; `"forever"` deletes only
    files that no read needs. The default is the retention of the last `sync`, or 7 days. Instead of it, `before` is the
    oldest LSN that can be read. Files stay on disk for `grace` after they are no longer needed. With `dry_run` nothing
    is deleted. Starts no JVM.
    """
    from tidemark.pipeline.expire.expiry import ExpireOptions, expire_lake

    if keep is not None and before is not None:
        raise InvalidValue("keep and before cannot be given together", "Give one of them.")
    path, grace_s = local_path(lake), seconds_of(grace)
    if before is not None:
        options = ExpireOptions(None, Lsn.parse(before) if isinstance(before, str) else before, grace_s)
    elif keep is not None:
        options = ExpireOptions.of(Retention(parse_keep(keep) if isinstance(keep, str) else seconds_of(keep)), grace_s)
    else:
        options = ExpireOptions.of(retention_of(path), grace_s)
    return expire_lake(path, options, dry_run=dry_run)


def compare(
    lake: str | Path,
    tables: str | Iterable[str] = (),
    *,
    source: str | Dsn,
    sample: float = 100,
    parallel: int = 2,
    timeout: Duration = "1h",
    wait: Duration | None = None,
    limit: int = 100,
    values: bool = False,
    spark: SparkSession | None = None,
) -> list[Compared]:
    """Compare tables of a mirror with the source, in one snapshot.

        differing = [t for t in tidemark.compare("/data/lake", source=dsn) if t.verdict.value != "equal"]

    `tables` are names; by default all tables are compared. `sample` is the percentage of rows, `parallel` the number of
    tables at a time, `timeout` the limit of one statement on the source, `wait` the limit for the snapshot to be
    received, `limit` the number of differing rows that are reported for each table, and `values` whether their values
    are reported.
    """
    from tidemark.mirror.compare.comparison import CompareOptions, Comparison
    from tidemark.mirror.compare.digest import WHOLE
    from tidemark.mirror.mirror import open_mirror

    names = [tables] if isinstance(tables, str) else list(tables)
    options = CompareOptions(
        max(1, round(sample / 100 * WHOLE)),
        parallel,
        seconds_of(timeout),
        None if wait is None else seconds_of(wait),
        limit,
        values,
    )
    with open_mirror(lake, spark) as mirror:
        return list(Comparison(mirror, _dsn(source), options).run(names))


def _dsn(source: str | Dsn) -> Dsn:
    return Dsn(source) if isinstance(source, str) else source


def _patterns(patterns: str | Iterable[str]) -> tuple[Pattern, ...]:
    return tuple(Pattern(each) for each in ([patterns] if isinstance(patterns, str) else patterns))
