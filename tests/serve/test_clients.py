"""Programs of other projects see through the server what they see without it, while the mirror answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness.clients import environment
from harness.database import OWNER, PASSWORD, Database
from harness.debian import unpacked
from tests.conftest import NEWEST
from tests.documentation.reference import ROOT
from tests.serve.test_mirror_routing import Routed, routed

pytestmark = [pytest.mark.full, pytest.mark.spark, NEWEST]

PROGRAMS = ("dbt-core==1.9.4", "dbt-postgres==1.9.0", "sqlalchemy==2.1.9", "psycopg[binary]==3.3.9")
CLIENTS = Path(__file__).parent / "clients"
MODELS = {
    "models/states.sql": "select state, count(*) as orders, sum(total) as total from public.orders group by state",
    "models/named.sql": "{{ config(materialized='table') }} select c.name, s.orders from public.customers c "
    "join {{ ref('states') }} s on s.orders > c.id",
    "models/schema.yml": """
models:
  - name: states
    columns: [{name: orders, tests: [not_null]}, {name: state, tests: [unique]}]
  - name: named
    columns: [{name: name, tests: [not_null]}]
""",
    "tests/no_total_is_negative.sql": "select id, total from public.orders where total < 0",
    "dbt_project.yml": "name: shop\nversion: '1.0'\nprofile: shop\nmodel-paths: [models]\ntest-paths: [tests]\n",
}


def printed(*command: str | Path, cwd: Path = ROOT) -> str:
    """What a program prints."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "DBT_SEND_ANONYMOUS_USAGE_STATS": "0",
    }
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ports(both: Routed) -> tuple[int, int]:
    return both.database.server.port, both.running.port


def test_java_programs(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    driver = unpacked("jdbc", ("libpostgresql-jdbc-java",))
    assert driver is not None, "apt-get cannot download Debian's libpostgresql-jdbc-java"
    role = f"java_{db.name}"
    iterations = "set scram_iterations = 4096"  # the least that pgjdbc accepts
    db.admin(iterations, f"create role {role} login password '{PASSWORD}' in role {OWNER}")
    try:
        with routed(db, spark, tmp_path) as both:
            jar = driver / "usr/share/java/postgresql.jar"
            direct, through = (
                printed(sys.executable, "-m", "tests.serve.clients.jdbc", jar, str(port), db.name, role, PASSWORD)
                for port in ports(both)
            )
    finally:
        db.admin(f"drop role {role}")
    reports = [line for line in through.splitlines() if line.startswith("answered by")]
    assert reports == ["answered by mirror"] * 2
    assert through.replace("answered by mirror", "answered by ") == direct


def test_sqlalchemy(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    programs = environment("clients", PROGRAMS)
    with routed(db, spark, tmp_path) as both:
        db.run(
            "alter table orders add foreign key (customer) references customers not valid",
            "create index on orders (placed)",
        )
        direct, through = (
            printed(
                programs / "python",
                CLIENTS / "reflection.py",
                *(
                    f"postgresql+{driver}://{OWNER}:{PASSWORD}@127.0.0.1:{port}/{db.name}"
                    for driver in ("psycopg", "psycopg2")
                ),
            )
            for port in ports(both)
        )
        answered = both.metrics.registry.get_sample_value(
            "tidemark_server_statement_duration_seconds_count", {"route": "mirror"}
        )
    assert through == direct
    assert answered is not None
    assert answered >= 4


def test_dbt(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    programs = environment("clients", PROGRAMS)
    with routed(db, spark, tmp_path) as both:
        found = []
        for port in ports(both):
            project = tmp_path / f"project_{port}"
            for name, text in MODELS.items():
                (project / name).parent.mkdir(parents=True, exist_ok=True)
                (project / name).write_text(text)
            (project / "profiles.yml").write_text(
                f"shop:\n  target: dev\n  outputs:\n    dev: {{type: postgres, host: 127.0.0.1, port: {port}, "
                f"user: {OWNER}, password: {PASSWORD}, dbname: {db.name}, schema: dbt, threads: 2}}\n"
            )
            for step in (["build"], ["docs", "generate"], ["run", "--full-refresh"]):
                printed(programs / "dbt", *step, "--profiles-dir", project, cwd=project)
            found.append(db.run("select * from dbt.named order by 1, 2"))
            db.run("drop schema dbt cascade")
    assert found[0] == found[1]
    assert found[0]
