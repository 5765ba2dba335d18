"""Real servers for tests: one for each version in a run, a database for each test, private ones for special needs."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession
from xdist.scheduler import LoadScopeScheduling

from harness.database import Database, add_roles, create_database
from harness.postgres import Install, Server, installs, start_server
from tidemark.spark import SparkOptions, spark_session

Start = Callable[..., Server]

# For every JVM of a run. These tables are small and the plans many: what the second compiler gives it takes for itself.
os.environ.setdefault(
    "JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC -XX:-UsePerfData"
)

# How long an example takes says nothing of what it is right for: a machine may stall at any time.
settings.register_profile("tidemark", deadline=None)
settings.load_profile("tidemark")

NEWEST = pytest.mark.parametrize("install", [list(installs().values())[-1]], indirect=True, ids=["newest"])

# Tests that use Spark, in two halves that take about as long: each has a worker and a JVM.
SPARK = {
    "spark": ("tests/apply/", "tests/compare/", "tests/fold/", "tests/query/", "tests/spark/"),
    "spark too": ("tests/poll/", "tests/sync/", "tests/cli/test_lake_commands.py", "tests/cli/test_sync.py"),
}


class SparkTogether(LoadScopeScheduling):  # type: ignore[misc]
    """Tests that use Spark stay together, so that one JVM serves many; the others go wherever there is time."""

    def _split_scope(self, nodeid: str) -> str:
        return next((half for half, folders in SPARK.items() if nodeid.startswith(folders)), nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SparkTogether:
    """Which worker runs what."""
    return SparkTogether(config, log)


def installs_from(major: int) -> Any:
    """A fixture: every PostgreSQL at hand from this version on, in turn."""
    found = [each for each in installs().values() if each.major >= major]

    @pytest.fixture(scope="session", name="install", params=found, ids=lambda each: f"pg{each.major}")
    def install(request: pytest.FixtureRequest) -> Install:
        assert isinstance(request.param, Install)
        return request.param

    return install


install = installs_from(0)


@pytest.fixture(scope="session")
def running() -> Iterator[dict[Install, Server]]:
    """The servers started so far: they run to the end, in whatever order tests ask for their versions."""
    servers: dict[Install, Server] = {}
    yield servers
    for server in servers.values():
        server.remove()


@pytest.fixture(scope="session")
def server(install: Install, running: dict[Install, Server]) -> Server:
    """The run's own server of this version, with logical decoding on."""
    if install not in running:
        running[install] = start_server(install)
        add_roles(running[install])
    return running[install]


@pytest.fixture
def db(server: Server) -> Iterator[Database]:
    """An empty database, owned by an application, to be mirrored by a role with few rights."""
    database = create_database(server)
    yield database
    database.drop()


@pytest.fixture
def start(install: Install) -> Iterator[Start]:
    """Starts private servers with the settings a test asks for, and removes them."""
    started: list[Server] = []

    def start(own_identity: bool = False, **settings: str | int | bool) -> Server:
        server = start_server(install, settings, own_identity=own_identity)
        started.append(server)
        add_roles(server)
        return server

    yield start
    for server in started:
        server.remove()


@pytest.fixture(scope="session")
def connect() -> Iterator[str]:
    """Where a Spark Connect server listens, with Python workers that have our packages."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.apply.child", "serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port.isdigit(), "the server did not start"
        yield f"sc://127.0.0.1:{port}"
        process.stdin.close()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The run's one Spark session, which takes seconds to start."""
    session = spark_session(SparkOptions(master="local[3]", conf={"spark.ui.enabled": "false"}))
    yield session
    session.stop()
