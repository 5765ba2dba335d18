"""Invented statements have the same answers on PostgreSQL and on the mirror. `make sql-differential` asks for more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from harness.postgres import Server
from tests.conftest import INTERPRETED, NEWEST
from tests.differential.kinds import FEW_KINDS, KINDS
from tests.differential.run import BUCKET_BYTES, Findings, World, compare
from tests.differential.tables import APPLIED, COPIED, FOLDED
from tests.mirror.conftest import set_in
from tidemark.pipeline.fold import layout
from tidemark.reads import places

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]


@pytest.fixture
def plain(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    monkeypatch.setattr(layout, "BUCKET_BYTES", BUCKET_BYTES)
    monkeypatch.setattr(places, "WORTH_ROWS", 1)
    with set_in(spark, {**INTERPRETED, "spark.sql.shuffle.partitions": "1"}):
        yield spark


def require_none(findings: Findings) -> None:
    assert not findings.rejected, findings.rejected[0]
    assert not findings.differences, "\n".join(map(str, findings.differences[:3]))


def test_some_statements_have_the_same_answers(server: Server, plain: SparkSession) -> None:
    findings = Findings()
    world = World(
        seed=1, alone=3, together=24, kinds=FEW_KINDS, columns=13, most_rows=60, phases=(COPIED, APPLIED, FOLDED)
    )
    compare(server, plain, world, findings)
    require_none(findings)


@pytest.mark.full
def test_thousands_of_statements_have_the_same_answers(server: Server, spark: SparkSession) -> None:
    findings = Findings()
    compare(server, spark, World(seed=2, alone=150, together=150, kinds=KINDS), findings)
    require_none(findings)
