"""Real servers for tests: one for each version in a run, a database for each test, private ones for special needs."""

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from harness.database import Database, add_roles, create_database
from harness.postgres import Install, Server, installs, start_server
from tidemark.spark import SparkOptions, spark_session

Start = Callable[..., Server]


@pytest.fixture(scope="session", params=installs().values(), ids=lambda install: f"pg{install.major}")
def install(request: pytest.FixtureRequest) -> Install:
    """Every PostgreSQL at hand, in turn."""
    assert isinstance(request.param, Install)
    return request.param


@pytest.fixture(scope="session")
def server(install: Install) -> Iterator[Server]:
    """The run's own server of this version, with logical decoding on."""
    server = start_server(install)
    add_roles(server)
    yield server
    server.remove()


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
def spark() -> Iterator[SparkSession]:
    """The run's one Spark session, which takes seconds to start."""
    session = spark_session(SparkOptions(master="local[2]", conf={"spark.ui.enabled": "false"}))
    yield session
    session.stop()
