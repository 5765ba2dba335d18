"""The applier of a stream to a lake, which is created if it does not exist."""

from __future__ import annotations

from pyspark.sql import SparkSession

from tidemark.errors import LakeMissing, LogDamaged, NotAnswerable
from tidemark.lake.lake import Lake
from tidemark.lake.registers import read_seen
from tidemark.log.disk import Disk
from tidemark.log.mirror import LogMirror, read_mirror
from tidemark.pipeline.apply.applier import StreamApplier
from tidemark.pipeline.apply.options import ApplyOptions
from tidemark.pipeline.sinks.lake_sink import LakeSink
from tidemark.postgres.session import Session
from tidemark.spark import require_pinned


def lake_applier(options: ApplyOptions, spark: SparkSession) -> StreamApplier:
    """Open the applier of a lake, whose write lock it holds until it is closed."""
    require_pinned(spark)
    return StreamApplier(options, spark, LakeSink(_opened(options)))


def _opened(options: ApplyOptions) -> Lake:
    """Open the lake, or create it, for which the source must be reachable."""
    mirror = read_mirror(options.log, Disk())
    if mirror is None or mirror.start is None:
        raise LakeMissing(f"{options.log} is not a Tidemark log", f"Run `tidemark receive SOURCE --log {options.log}`.")
    try:
        version_num = Lake.open(options.lake).version_num
    except LakeMissing:
        with Session.open(options.source, "apply") as session:
            version_num = session.version_num
    lake = _lake(options, mirror, version_num)
    lake.create()
    if read_seen(options.lake) is not None:
        raise NotAnswerable(
            f"{options.lake} was written by polling, and a log cannot be applied to it",
            f"Run `tidemark sync SOURCE {options.lake}`, which changes the mirror to logical decoding.",
        )
    if not lake.is_continued_by(mirror.identity, mirror.start):
        raise LogDamaged(
            f"the log at {options.log} starts at {mirror.start}, after the applied LSN of the lake "
            f"({lake.cycle().applied_lsn}): the changes in between are missing",
            f"Use the log that this lake was made from. If it is lost, run "
            f"`tidemark resync {options.lake} --all` and `tidemark sync SOURCE {options.lake}`.",
        )
    return lake


def _lake(options: ApplyOptions, mirror: LogMirror, version_num: int) -> Lake:
    identity = mirror.identity
    return Lake(
        options.lake,
        options.names.mirror,
        identity.system_identifier,
        identity.database_oid,
        identity.database,
        version_num,
        options.log,
    )
