"""Every type through the lake: ordinary and extreme values come back from Spark as PostgreSQL prints them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness.database import Database
from harness.lake import following, lakeside
from tests.pgoutput.corpus import ARRAYS, AS_TEXT, SCALARS

pytestmark = pytest.mark.full

CORPUS = {**SCALARS, **ARRAYS, **AS_TEXT}


def test_every_type_comes_back_from_the_lake_as_postgresql_prints_it(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    columns = ", ".join(f"c{at} {kind}" for at, kind in enumerate(CORPUS))
    db.run(f"create table t (id int primary key, {columns})")
    with following(lakeside(db, tmp_path, spark, "t")) as side, db.connect() as session:
        places = ", ".join(f"%s::{kind}" for kind in CORPUS)
        for row in range(max(map(len, CORPUS.values()))):
            values = [literals[row % len(literals)] for literals in CORPUS.values()]
            session.execute(f"insert into t values ({row}, {places})".encode(), values)
        session.execute("insert into t values (-1)")
        session.commit()
        side.note("t")
        session.execute("update t set id = id + 1000 where id >= 0")
        session.commit()
        side.note("t")
        side.apply_all()
        assert side.require_noted() == 2
