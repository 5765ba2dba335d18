"""A busy database, mirrored from the middle of its work on: at exact positions every table is what PostgreSQL has.

Tables are added and copied anew under load, and folded and compacted in some turns; in the others reads find what is
not folded.
`make sync-parity` is the same for longer.
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
from tests.pipeline.sync.load import create, writing
from tidemark.pipeline.fold import change_files

pytestmark = [pytest.mark.quick, pytest.mark.spark]

COMPARISONS = int(os.environ.get("COMPARISONS", "210"))  # over all versions
install = installs_from(15)
NOTES, UNFOLDED_EVERY = 4, 4
TABLES = ("orders", "items", "bag_of_events", "late", "later")


@pytest.mark.full
def test_under_load_every_table_is_exact_at_every_position(
    start: Start, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_files, "MANY", 4)
    monkeypatch.setattr(change_files, "GROWTH", 1)
    db = create_database(start(max_prepared_transactions=20))
    create(db, *TABLES)
    with writing(db, *TABLES) as done, syncing(db, tmp_path, spark, *TABLES[:3], folds=False) as synced:
        synced.copy_all()
        compared, there, turn = 0, list(TABLES[:3]), 0
        wanted = -(-COMPARISONS // sum(major >= 15 for major in installs()))
        while compared < wanted:
            if len(there) < len(TABLES):
                add(synced, TABLES[len(there)])
                there.append(TABLES[len(there)])
            else:
                synced.resync(there[turn % len(there)])
            for _ in range(NOTES):
                synced.note_exact(*there)
                later = done[0] + 10
                while done[0] < later:
                    synced.replication.step()
            if turn % UNFOLDED_EVERY:
                synced.catch_up()
                synced.fold()
            compared += synced.require_noted()
            synced.notes = synced.notes[-1:]
            turn += 1


def add(synced: Synced, table: str) -> None:
    """Publish one more table, and have it copied."""
    synced.database.admin(f"alter publication {synced.options.names.publication} add table {table}")
    synced.until(lambda: any(f"public.{table}: copied" in each for each in synced.said))
