"""A clone of the database: copied under load, followed, and compared with its source at one LSN."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from pyspark.sql import SparkSession

from demo.heading import print_heading
from harness.database import MIRROR, OWNER, Database, create_database
from tidemark.cli.main import run
from tidemark.errors import TidemarkError
from tidemark.lake.pipeline_state import State
from tidemark.pipeline.events import StateChanged, SyncEvent, TableCopied
from tidemark.postgres.names import MirrorNames
from tidemark.target.clone import Clone
from tidemark.target.options import CloneOptions

NAME = "clone"


def clone_live(database: Database, directory: Path, spark: SparkSession) -> None:
    """Clone the database into another one while pgbench writes, and compare both while the clone follows."""
    print_heading("tidemark clone: the database in another PostgreSQL, copied under load, followed, and compared")
    target = create_database(database.server)
    source, there = database.dsn(), target.dsn(OWNER)
    run(["setup", database.dsn(OWNER).reveal(), "--role", MIRROR, "--name", NAME])
    options = CloneOptions(
        source, there, MirrorNames(NAME), directory / NAME, follows=True, pg_bin=database.server.install.home / "bin"
    )
    stop, follows, failed = threading.Event(), threading.Event(), list[TidemarkError]()

    def emit(event: SyncEvent) -> None:
        if isinstance(event, TableCopied):
            print(f"  {event}", flush=True)
        elif isinstance(event, StateChanged) and event.state is State.FOLLOWING:
            follows.set()

    def clone() -> None:
        try:
            Clone(options, lambda: spark, emit).run(stop.is_set)
        except TidemarkError as error:
            failed.append(error)
            follows.set()

    begin, thread = time.monotonic(), threading.Thread(target=clone)
    thread.start()
    try:
        follows.wait()
        if not failed:
            print(f"  The clone follows after {time.monotonic() - begin:.0f} s.")
            run(["status", there.reveal()])
            run(["compare", source.reveal(), there.reveal(), "--wait", "30s"])
    finally:
        stop.set()
        thread.join()
    if failed:
        raise failed[0]
