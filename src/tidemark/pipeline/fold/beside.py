"""Folding beside the one who applies, in a thread of the same process: it leaves half of Spark, and stops with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from pyspark.sql import SparkSession

from tidemark.pipeline.fold.folder import Foldable, Folded, Folder
from tidemark.pipeline.fold.policy import Rhythm, fold_line
from tidemark.spark import what_failed

INTERVAL_S, RETRY_S = 1.0, 30.0
PATIENCE = 20  # times as long as it takes to look at all tables
POOL = "fold"


class FoldingBeside:
    """Folds what is due, from here to `close`."""

    def __init__(
        self,
        lake: Path,
        spark: SparkSession,
        tell: Callable[[str], None],
        folded: Callable[[Folded, float], None] | None = None,
    ) -> None:
        self._lake, self._spark, self._tell = lake, spark, tell
        self._folded = folded or (lambda done, seconds: tell(fold_line(done.name, done.upto, done.changes, seconds)))
        self._stopping = threading.Event()
        self._rhythm = Rhythm()
        self._thread = threading.Thread(target=self._run, name="fold", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it, when the fold that runs has ended."""
        self._stopping.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()

    def _run(self) -> None:
        """What fails is said and tried again: the lake reads as before."""
        context, tasks = getattr(self._spark, "_sc", None), None  # Spark Connect has none, and its own scheduling
        if context is not None:
            context.setLocalProperty("spark.scheduler.pool", POOL)
            tasks = max(1, context.defaultParallelism // 2)
        pause_s = INTERVAL_S
        while not self._stopping.wait(pause_s):
            try:
                with Folder(self._lake, self._spark, tasks) as folder:
                    begin = time.monotonic()
                    tables = folder.foldable()
                    pause_s = max(INTERVAL_S, PATIENCE * (time.monotonic() - begin))
                    self._fold_due(folder, tables)
            except Exception as error:  # noqa: BLE001 - a thread that died without a word would fold nothing any more
                self._report(f"folding failed: {what_failed(error)}")
                self._stopping.wait(RETRY_S)

    def _fold_due(self, folder: Folder, tables: Sequence[Foldable]) -> None:
        for table in tables:
            if self._stopping.is_set() or not self._rhythm.due(table.name, table.burden, time.monotonic()):
                continue
            begin = time.monotonic()
            try:
                folded = folder.fold(table)
                self._folded(folded, time.monotonic() - begin)
            except Exception as error:  # noqa: BLE001 - whatever it is: the others are folded, and this one later
                self._report(f"table {table.name}: folding failed: {what_failed(error)}")
            finally:
                self._rhythm.folded(table.name, begin, time.monotonic())

    def _report(self, failure: str) -> None:
        """Report a failure, unless it is of a fold that was cut off at the end."""
        if not self._stopping.is_set():
            self._tell(failure)
