"""The mirror, asked for what sessions of PostgreSQL saw under load, gives the same; and this would notice if not.

`make parity` is the same for longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import tidemark
from harness.database import create_database
from harness.mirrored import eventually
from harness.outside import path_of
from tests.conftest import NEWEST, Start
from tests.mirror.conftest import set_in
from tests.mirror.parity.run import ACCOUNT, SPARK, TABLES, by_its_lsn_alone, parity
from tests.pipeline.sync.load import ACCOUNTS
from tidemark.clock import Lsn

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]

SNAPSHOTS, FEW, ROUNDS = 300, 6, 20


@pytest.fixture(scope="module")
def small(spark: SparkSession) -> Iterator[SparkSession]:
    with set_in(spark, SPARK):
        yield spark


@pytest.mark.full
def test_under_load_the_mirror_gives_what_every_session_saw(start: Start, small: SparkSession, tmp_path: Path) -> None:
    with parity(create_database(start()), tmp_path, small) as run:
        found, said = run.compare(SNAPSHOTS), "\n".join(run.mirror.said)
    assert not (complaints := found.complaints()), "\n".join(complaints)
    assert found.snapshots >= SNAPSHOTS
    for done in (": folded ", "compacted", "vacuum", "restart", "kill"):
        assert done in said
    assert said.count(", as of ") > len(TABLES), "nothing was copied anew"


@pytest.mark.full
def test_it_notices_when_what_a_snapshot_does_not_see_is_shown(
    start: Start, small: SparkSession, tmp_path: Path
) -> None:
    with parity(create_database(start()), tmp_path, small, by_its_lsn_alone) as run:
        for _ in range(ROUNDS):
            if run.compare(2 * FEW).mismatches:
                break
    assert run.found.mismatches


@pytest.mark.full
def test_it_notices_when_one_change_was_not_applied(start: Start, small: SparkSession, tmp_path: Path) -> None:
    with parity(create_database(start()), tmp_path, small, folds=False) as run:
        db, mirror = run.database, tidemark.open(run.mirror.options.lake, small)
        assert not run.compare(FEW).mismatches
        db.run(f"insert into {ACCOUNT} (id, n) values ({ACCOUNTS + 1}, 0)")
        upto = Lsn.parse(db.admin("select pg_current_wal_insert_lsn()::text")[0][0])
        eventually(lambda: mirror._opened.view().cycle.applied_lsn >= upto, 120)
        run.mirror.stop()
        changes = DeltaTable(run.mirror.options.lake / path_of(run.mirror.options.lake, ACCOUNT) / "changes")
        assert changes.delete(f"id = {ACCOUNTS + 1}")["num_deleted_rows"] == 1
        run.mirror.start()
        found = run.compare(FEW)
        assert len(found.mismatches) >= FEW
        assert all(f"{ACCOUNT}: 1 missing" in mismatch for mismatch in found.mismatches)
