"""The fold job of a pipeline: a thread that uses half of the tasks of Spark, and stops with the process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from pyspark.sql import SparkSession

from tidemark.errors import TidemarkError
from tidemark.lake.catalog import PacedCatalog
from tidemark.logs import fields
from tidemark.pipeline.background import BackgroundJob
from tidemark.pipeline.fold.compactor import Compactor, Foldable, Folded
from tidemark.pipeline.fold.policy import Rhythm, fold_line
from tidemark.spark import what_failed

INTERVAL_S, RETRY_S, COMPACT_S = 1.0, 30.0, 60.0
PATIENCE = 20  # the pause is this many times as long as a check of all tables
POOL = "fold"
_LOGGER = logging.getLogger("tidemark.pipeline")


def log_fold(folded: Folded, seconds: float) -> None:
    """Log the result of a fold."""
    line = fold_line(folded.name, folded.upto, folded.changes, seconds)
    extra = fields(table=folded.name, lsn=folded.upto, changes=folded.changes, seconds=round(seconds, 3))
    _LOGGER.info("%s", line, extra=extra)


class BackgroundFold(BackgroundJob):
    """Folds the tables that are due, until `close`; `folded` is called with each result and its seconds."""

    def __init__(self, lake: Path, spark: SparkSession, folded: Callable[[Folded, float], None] = log_fold) -> None:
        super().__init__("fold")
        self._lake, self._spark, self._folded = lake, spark, folded
        self._rhythm = Rhythm()
        self._catalog, self._is_listed = PacedCatalog(lake), True
        self._thread.start()

    def _run(self) -> None:
        """Fold in a loop. A failure is reported and retried; it does not affect reads."""
        context, tasks = getattr(self._spark, "_sc", None), None  # Spark Connect has none, and schedules itself
        if context is not None:
            context.setLocalProperty("spark.scheduler.pool", POOL)
            tasks = max(1, context.defaultParallelism // 2)
        pause_s, compact_at = INTERVAL_S, time.monotonic()
        while not self._rest(pause_s):
            try:
                with Compactor(self._lake, self._spark, tasks, publishes=False) as compactor:
                    begin = time.monotonic()
                    tables = compactor.foldable()
                    pause_s = max(INTERVAL_S, PATIENCE * (time.monotonic() - begin))
                    self._fold_due(compactor, tables)
                    self._is_listed = self._is_listed and not compactor.has_folded
                    if begin >= compact_at:
                        self._compact(compactor)
                        compact_at = time.monotonic() + COMPACT_S
                if self._catalog.is_due:
                    self._list()
            except Exception as error:  # noqa: BLE001 - without its thread, nothing would be folded
                self._warn(f"folding failed: {what_failed(error)}", None)
                self._stopping.wait(RETRY_S)
        with suppress(TidemarkError, OSError):  # the next process updates the catalog when it starts
            self._list()

    def _list(self) -> None:
        """Update the catalog if a table was folded, so that its readers find the result."""
        if not self._is_listed:
            self._catalog.update()
            self._is_listed = True

    def _fold_due(self, compactor: Compactor, tables: Sequence[Foldable]) -> None:
        self._rhythm.keep({table.name for table in tables})
        for table in tables:
            if self._is_interrupted or not self._rhythm.due(table.name, table.burden, time.monotonic()):
                continue
            begin = time.monotonic()
            try:
                folded = compactor.fold(table)
                self._folded(folded, time.monotonic() - begin)
            except Exception as error:  # noqa: BLE001 - the others are folded now, and this one later
                self._warn(f"table {table.name}: folding failed: {what_failed(error)}", table.name)
            finally:
                self._rhythm.folded(table.name, begin, time.monotonic())

    def _compact(self, compactor: Compactor) -> None:
        for table in compactor.compactable():
            if self._is_interrupted:
                return
            try:
                compactor.compact(table)
            except Exception as error:  # noqa: BLE001 - the others are compacted now, and this one later
                self._warn(f"table {table.name}: compaction failed: {what_failed(error)}", table.name)

    def _warn(self, failure: str, table: str | None) -> None:
        """Log a failure, unless `close` interrupted the fold."""
        if not self._stopping.is_set():
            _LOGGER.warning("%s", failure, extra=fields(table=table))
