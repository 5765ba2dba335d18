"""A cluster of Spark's own whose executors do not see a folder: nothing is begun there, and what they see works."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.find_spark_home import _find_spark_home

from harness.database import MIRROR, Database
from harness.outside import path_of
from harness.syncing import publish
from tests.conftest import NEWEST
from tidemark.errors import ExitCode
from tidemark.lake.status import status_of

pytestmark = [pytest.mark.full, NEWEST]

CLASSES = "org.apache.spark.deploy"
LIMIT_S = 300


@dataclass(frozen=True)
class Cluster:
    """Where its master listens, and the folder that is another one for its workers."""

    master: str
    hidden: Path


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and a worker of their own, the worker with an empty file system in the place of a folder."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("a mount namespace is needed to hide a folder, and unshare -m is not permitted here")
    folder = tmp_path_factory.mktemp("cluster")
    hidden = folder / "hidden"
    hidden.mkdir()
    home, port = _find_spark_home(), free_port()
    environment = {**os.environ, "SPARK_HOME": home, "PYSPARK_PYTHON": sys.executable}
    run, address = f"{home}/bin/spark-class", f"spark://127.0.0.1:{port}"
    master = [run, f"{CLASSES}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    options = f"--host 127.0.0.1 --webui-port 0 -c 2 -m 1g -d {folder / 'work'} {address}"
    hiding = f"mount -t tmpfs none {hidden} && exec {run} {CLASSES}.worker.Worker {options}"
    with ExitStack() as ending, (folder / "log").open("w") as log:
        for command in (master, [unshare, "-m", "sh", "-c", hiding]):
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            ending.callback(process.wait)
            ending.callback(process.terminate)
        deadline = time.monotonic() + LIMIT_S
        while "Successfully registered with master" not in (folder / "log").read_text():
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.2)
        yield Cluster(address, hidden)


def sync(cluster: Cluster, db: Database, lake: Path, *options: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-W", "ignore", "-c", "from tidemark.cli.main import main; main()"]
    where = [
        "--master",
        cluster.master,
        "--conf",
        "spark.executor.memory=512m",
        "--conf",
        "spark.driver.host=127.0.0.1",
    ]
    command = [*program, "sync", db.dsn(MIRROR).reveal(), str(lake), "--name", db.names.mirror, "--once", *where]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment
    )


def test_executors_that_do_not_see_the_lake_or_the_log_are_refused_before_anything_is_committed(
    db: Database, cluster: Cluster, tmp_path: Path
) -> None:
    db.run(
        "create table t (id int primary key, v text)", "insert into t select n, 'row' from generate_series(1, 1000) n"
    )
    publish(db, "t")
    lake = cluster.hidden / "lake"
    refused = sync(cluster, db, lake)
    assert refused.returncode == ExitCode.SPARK, refused.stderr
    assert f"the executor on {socket.gethostname()} cannot read the driver's directory {lake}" in refused.stderr
    assert "Mount the directory at the same path on every executor" in refused.stderr
    assert not (lake / "tables").exists()
    assert status_of(lake).tables == ()
    assert not db.admin(f"select from pg_replication_slots where slot_name = '{db.names.slot}'")
    log = cluster.hidden / "log"
    refused = sync(cluster, db, tmp_path / "lake", "--log", str(log))
    assert refused.returncode == ExitCode.SPARK, refused.stderr
    assert f"cannot read the driver's directory {log}" in refused.stderr
    assert not db.admin(f"select from pg_replication_slots where slot_name = '{db.names.slot}'")
    done = sync(cluster, db, tmp_path / "seen")
    assert done.returncode == ExitCode.OK, done.stderr
    versions = DeltaTable(tmp_path / "seen" / path_of(tmp_path / "seen", "t") / "versions")
    assert versions.to_pyarrow_table().num_rows == 1000
