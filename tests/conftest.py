"""Real servers for tests: one for each version in a run, a database for each test, private ones for special needs."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from xdist.scheduler import LoadScopeScheduling

from harness.class_archive import java_options
from harness.database import Database, add_roles, create_database
from harness.memory import memory_folder
from harness.postgres import Install, Server, installs, start_server
from tidemark.spark import SparkOptions, spark_session

pytest_plugins = ("tests.tiers", "tests.costs")

Start = Callable[..., Server]

# For every JVM of a run. These tables are small and the plans many: what the second compiler gives it takes for itself.
os.environ.setdefault("JDK_JAVA_OPTIONS", java_options())

# Files of tests, servers among them, are kept in memory where there is enough. On ext4, the creation of files soon
# after the removal of others takes a tenth of the time of all tests.
if "TMPDIR" not in os.environ and (in_memory := memory_folder()):
    os.environ["TMPDIR"] = tempfile.tempdir = in_memory

# Nothing here multiplies matrices: the threads that NumPy would start for it spin for a while in every process.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Plans are run as they are, neither compiled whole nor planned again while they run: for few rows that costs less.
PLAIN = {"spark.sql.adaptive.enabled": "false", "spark.sql.codegen.wholeStage": "false"}
INTERPRETED = {**PLAIN, "spark.sql.codegen.factoryMode": "NO_CODEGEN"}

NEWEST = pytest.mark.parametrize("install", [list(installs().values())[-1]], indirect=True, ids=["newest"])

_SYSTEM = [each for each in installs().values() if each.home == each.root]  # those of PyPI are built without TLS
WITH_TLS = pytest.mark.parametrize(
    "install",
    [
        pytest.param(each, marks=pytest.mark.skipif(not _SYSTEM, reason="no PostgreSQL with TLS"))
        for each in [*_SYSTEM, None][:1]
    ],
    indirect=True,
    ids=["with-tls"],
)

# Where tests use Spark: these workers run them, each with a JVM.
SPARK = (
    *(f"tests/{name}/" for name in ("differential", "mirror", "pipeline", "spark", "sql_parity")),
    *(
        f"tests/{name}.py"
        for name in (
            *("cli/test_lake_commands", "cli/test_sync", "lake/test_files"),
            *("documentation/test_runbooks", "documentation/test_transcripts"),
            *("reads/test_digests", "reads/test_visible", "schema/test_display", "values/test_hashes"),
            *("target/test_copying", "target/test_copy_faults", "serve/test_clients", "serve/test_mirror_routing"),
            *("daemon/test_run", "monitoring/test_endpoint"),
        )
    ),
)
SPARK_WORKERS = ("gw0", "gw1")

WARMING = pytest.StashKey[subprocess.Popen[bytes]]()


class SparkTogether(LoadScopeScheduling):  # type: ignore[misc]
    """Modules that use Spark go to two workers, the largest first; all other tests go wherever there is time."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0] if nodeid.startswith(SPARK) else nodeid

    def _assign_work_unit(self, node: Any) -> None:
        scope = next((each for each in self.workqueue if each.startswith(SPARK) is _has_spark(node)), None)
        if scope is not None:
            self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: Any) -> None:
        if _has_spark(node) or not all(scope.startswith(SPARK) for scope in self.workqueue):
            super()._reschedule(node)
        elif not node.shutting_down:
            node.shutdown()


def _has_spark(node: Any) -> bool:
    return node.gateway.id in SPARK_WORKERS


def pytest_configure(config: pytest.Config) -> None:
    """Compile the kernels once, while the workers start: each of them would compile its own otherwise."""
    if config.getoption("numprocesses", None):  # the process that starts the workers, and not a worker
        config.stash[WARMING] = subprocess.Popen([sys.executable, "-m", "harness.warming"])


def pytest_unconfigure(config: pytest.Config) -> None:
    """End that, if the tests took no longer."""
    warming = config.stash.get(WARMING, None)
    if warming is not None:
        warming.kill()
        warming.wait()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test that uses Spark in a module that is not listed: every worker would start a JVM for it."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and not item.nodeid.startswith(SPARK):
            raise pytest.UsageError(f"{item.nodeid} uses Spark: add its module to SPARK in tests/conftest.py")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SparkTogether:
    """Which worker runs what."""
    return SparkTogether(config, log)


def quick_only(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Parameters of a test of which some are in the quick tier and the others in the full tier."""
    return [pytest.param(each, marks=() if each in quick else pytest.mark.full) for each in values]


def installs_from(major: int, *, oldest: bool = False) -> Any:
    """A fixture: every PostgreSQL at hand from this version on, in turn.

    In the quick tier tests run on the newest version, and on the `oldest` where catalogs or SQL differ.
    """
    found = [each for each in installs().values() if each.major >= major]
    params = quick_only(found, found[-1], *found[: int(oldest)])

    @pytest.fixture(scope="session", name="install", params=params, ids=lambda each: f"pg{each.major}")
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


@pytest.fixture(scope="module")
def server(install: Install, running: dict[Install, Server]) -> Server:
    """The run's own server of this version, with logical decoding on.

    Not of the session's scope: modules define `install` each for itself, and pytest would give all of them the server
    of the first one that asked.
    """
    if install not in running:
        running[install] = start_server(install)
        add_roles(running[install])
    return running[install]


@pytest.fixture
def db(server: Server, install: Install) -> Iterator[Database]:
    """An empty database, owned by an application, to be mirrored by a role with few rights."""
    assert server.install == install
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
    command = [sys.executable, "-W", "ignore", "-m", "tests.pipeline.apply.child", "serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port.isdigit(), "the server did not start"
        yield f"sc://127.0.0.1:{port}"
        process.stdin.close()


@pytest.fixture(scope="session")
def spark(short: bool) -> Iterator[SparkSession]:
    """The run's one Spark session, which takes seconds to start."""
    conf = {"spark.ui.enabled": "false", **(PLAIN if short else {})}
    session = spark_session(SparkOptions(master="local[3]", conf=conf))
    yield session
    session.stop()
