"""The check that the executors and the driver share their directories, before the first job."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator, Sequence
from functools import partial

from pyspark.sql import SparkSession

from tidemark.errors import FolderNotShared
from tidemark.lake.shared import SharedFolder, forget_replies
from tidemark.spark import in_tasks, runs_here


def require_reach(spark: SparkSession, lake: SharedFolder, *others: SharedFolder) -> None:
    """Refuse executors that cannot read these directories of the driver, or whose files in the lake it cannot read.

    The check runs in as many tasks as can run at a time. An executor that joins later is checked by its first task.
    """
    if runs_here(spark):
        return
    for results in in_tasks(spark, partial(_answer, lake, others)):
        answer = pickle.loads(results)  # noqa: S301 - ours
        if isinstance(answer, FolderNotShared):
            raise answer
        lake.take_reply(*answer)
    forget_replies(lake)


def _answer(lake: SharedFolder, others: Sequence[SharedFolder]) -> Iterator[bytes]:
    try:
        for folder in others:
            folder.verified()
        yield pickle.dumps((lake.reply(), socket.gethostname()))
    except FolderNotShared as error:
        yield pickle.dumps(error)
