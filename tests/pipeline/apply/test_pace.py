"""A cycle is bounded by bytes and by time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness.database import Database
from harness.lake import Lakeside, following, lakeside
from tests.conftest import NEWEST
from tidemark.pipeline.apply.applier import Pace

pytestmark = pytest.mark.quick

MB = 1 << 20


def test_cycles_that_take_too_long_become_smaller_and_grow_again() -> None:
    pace = Pace(64 * MB, 4 * MB, 10)
    pace.took(64 * MB, 5)
    assert pace.size_bytes == 64 * MB
    pace.took(64 * MB, 40)
    assert pace.size_bytes == 16 * MB
    pace.took(1 * MB, 1)
    assert pace.size_bytes == 16 * MB, "one that the log's end cut short says nothing"
    pace.took(16 * MB, 8)
    assert pace.size_bytes == 20 * MB
    pace.took(20 * MB, 1)
    assert pace.size_bytes == 40 * MB, "twice as much at most"
    pace.took(40 * MB, 1000)
    assert pace.size_bytes == 4 * MB


def test_one_large_transaction_does_not_make_the_next_cycle_smaller_than_its_pace() -> None:
    pace = Pace(64 * MB, 4 * MB, 10)
    pace.took(1000 * MB, 50)
    assert pace.size_bytes == 64 * MB


@pytest.mark.full
@NEWEST
def test_a_backlog_is_applied_in_cycles_of_bounded_time(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run("create table t (id int primary key, v text)")
    side = lakeside(db, tmp_path, spark, "t")
    with following(side):
        for n in range(40):
            db.run(f"insert into t select {n} * 100 + i, repeat('x', 90) from generate_series(1, 100) i")
        side.note("t")
        side.mirror.catch_up()
        plenty = replace(side.options, cycle_bytes=50_000, slice_bytes=10_000, cycle_s=3600)
        bounded = replace(plenty, cycle_s=1e-6)
        first_half = _cycles(replace(side, options=bounded), half=True)
        assert first_half > 2 * _cycles(replace(side, options=plenty)) > 0
        side.apply_all()
        assert side.require_noted() == 1


def _cycles(side: Lakeside, half: bool = False) -> int:
    """How many it takes to apply the log, or about half of it."""
    with side.writing() as writer:
        writer.read_catalog()
        before, end = writer.cycle.applied_lsn, writer.reader.received
        cycles = 0
        while writer.apply() is not None:
            cycles += 1
            if half and writer.cycle.applied_lsn - before > (end - before) // 2:
                break
        return cycles
