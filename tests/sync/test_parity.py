"""A busy database, mirrored from the middle of its work on: at exact positions every table is what PostgreSQL has.

Tables are added and copied anew under load. `make sync-parity` is the same for longer, on every version.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness.database import create_database
from harness.postgres import installs
from harness.syncing import Synced, syncing
from tests.conftest import Start, installs_from
from tests.sync.load import create, writing

pytestmark = pytest.mark.spark

LONG = "COMPARISONS" in os.environ
COMPARISONS = int(os.environ.get("COMPARISONS", "12"))
install = installs_from(15 if LONG else list(installs())[-1])
TABLES = ("orders", "items", "bag_of_events", "late", "later")


def test_under_load_every_table_is_exact_at_every_position(start: Start, spark: SparkSession, tmp_path: Path) -> None:
    db = create_database(start(max_prepared_transactions=20))
    create(db, *TABLES)
    with writing(db, *TABLES) as done, syncing(db, tmp_path, spark, *TABLES[:3]) as synced:
        synced.copy_all()
        compared, there, turn = 0, list(TABLES[:3]), 0
        while compared < COMPARISONS:
            if len(there) < len(TABLES):
                add(synced, TABLES[len(there)])
                there.append(TABLES[len(there)])
            else:
                synced.resync(there[turn % len(there)])
            for _ in range(2):
                synced.note_exact(*there)
                later = done[0] + 20
                while done[0] < later:
                    synced.mirroring.step()
            compared += synced.require_noted()
            synced.notes = synced.notes[-1:] if turn % 3 else []
            turn += 1
        assert compared >= COMPARISONS


def add(synced: Synced, table: str) -> None:
    """Publish one more table, and have it copied."""
    synced.database.admin(f"alter publication {synced.options.names.publication} add table {table}")
    synced.until(lambda: any(f"public.{table} copied" in each for each in synced.said))
