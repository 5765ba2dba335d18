"""Whether the executors reach what the driver does, asked before the first job of a writer."""

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
    """Refuse executors that do not see these folders as the driver does, and write to the lake where it sees it.

    As many tasks as can run at a time are sent out. An executor that joins later is asked by its first task.
    """
    if runs_here(spark):
        return
    for told in in_tasks(spark, partial(_answer, lake, others)):
        answer = pickle.loads(told)  # noqa: S301 - ours
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
