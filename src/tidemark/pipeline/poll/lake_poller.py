"""The poller of a lake, which is created if it does not exist."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from tidemark.errors import LakeMissing
from tidemark.lake.lake import Lake
from tidemark.pipeline.poll.options import LOG, PollOptions
from tidemark.pipeline.poll.poller import Poller
from tidemark.pipeline.poll.snapshot_session import open_poll_snapshot
from tidemark.pipeline.sinks.lake_sink import LakeSink
from tidemark.spark import require_pinned


def lake_poller(options: PollOptions, spark: SparkSession, stopping: Callable[[], bool] = lambda: False) -> Poller:
    """Open the poller of a lake, whose write lock it holds until it is closed."""
    require_pinned(spark)
    return Poller(options, spark, LakeSink(_opened(options)), stopping)


def _opened(options: PollOptions) -> Lake:
    """Open the lake; the first run creates it."""
    try:
        return Lake.open(options.lake)
    except LakeMissing:
        with open_poll_snapshot(options.source) as seen:
            identity = seen.identity
            lake = Lake(
                options.lake,
                options.names.mirror,
                identity.system_identifier,
                identity.database_oid,
                identity.database,
                seen.version_num,
                options.lake / LOG,
            )
        lake.create()
        return lake
