"""`tidemark serve`: relay PostgreSQL clients to the source."""

from __future__ import annotations

import asyncio
import signal
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import click

from tidemark.addresses import ListenAddress
from tidemark.cli.options import AddressType, DurationType, lake_argument, source_option
from tidemark.cli.spark import spark_options
from tidemark.errors import ExitCode, InvalidValue
from tidemark.monitoring.endpoint import MonitoringEndpoint
from tidemark.monitoring.server_metrics import ServerMetrics
from tidemark.postgres.dsn import Dsn
from tidemark.serve.conversation import EngineKind, Setup
from tidemark.serve.engine_client import EngineClient
from tidemark.serve.mirror_router import MirrorRouter
from tidemark.serve.relay import ClientLimits
from tidemark.serve.routing import SourceOnly
from tidemark.serve.server import Server, listening_tls
from tidemark.serve.session_settings import DEFAULT_COST, Prefer, Route, ServeSettings
from tidemark.serve.upstream import upstream_of

_FILE = click.Path(exists=True, dir_okay=False)


@click.command()
@lake_argument
@source_option(required=True)
@click.option("--listen", type=AddressType(), default="127.0.0.1:6432", show_default=True, metavar="HOST:PORT",
              help="Accept clients at this address.")  # fmt: skip
@click.option("--metrics", "monitored", type=AddressType(), metavar="HOST:PORT",
              help="Serve /metrics, /health and /ready at this address, without TLS.")  # fmt: skip
@click.option("--tls-cert", type=_FILE, help="Offer TLS with the certificate chain in this PEM file.")
@click.option("--tls-key", type=_FILE, help="Read the key of the certificate from this PEM file.")
@click.option("--route", type=click.Choice([each.value for each in Route]), default="source", show_default=True,
              help="Answer statements by this route by default; source starts no engine.")  # fmt: skip
@click.option("--engine", type=click.Choice([each.value for each in EngineKind]), default="spark", show_default=True,
              help="Compute with this engine; duckdb needs the extra tidemark[duckdb].")  # fmt: skip
@click.option("--cost", type=click.FloatRange(0), default=DEFAULT_COST, show_default=True,
              help="Leave statements below this cost of the planner to the source.")  # fmt: skip
@click.option("--prefer", type=click.Choice([each.value for each in Prefer]), default="speed", show_default=True,
              help="Take the faster route, or relieve the source.")  # fmt: skip
@click.option("--max-statements", type=click.IntRange(1, 64), default=4, show_default=True,
              help="Compute at most this many statements at a time.")  # fmt: skip
@click.option("--max-rows", type=click.IntRange(1, 10_000_000), default=100_000, show_default=True,
              help="Leave statements to the source that need more rows of the engine.")  # fmt: skip
@click.option("--max-connections", type=click.IntRange(1, 100_000), default=500, show_default=True,
              help="Refuse more clients than this.")  # fmt: skip
@click.option("--authentication-timeout", "authentication_s", type=DurationType(), default="60s", show_default=True,
              help="Close connections that are not authenticated in this time.")  # fmt: skip
@spark_options
def serve(
    lake: Path, source: Dsn, listen: ListenAddress, monitored: ListenAddress | None, tls_cert: str | None,
    tls_key: str | None, route: str, engine: str, cost: float, prefer: str, max_statements: int, max_rows: int,
    max_connections: int, authentication_s: float, master: str | None, remote: str | None, conf: tuple[str, ...],
) -> ExitCode:  # fmt: skip
    """Serve PostgreSQL clients from SOURCE, and from LAKE by choice.

    Clients connect with the database, user and password of the source, which authenticates them. The rules of its
    pg_hba.conf apply to the address of this server. LAKE is the mirror of the source, which `tidemark sync` updates.

    A statement is answered by the mirror if the answer is exactly that of PostgreSQL, at the snapshot of the session,
    and otherwise relayed. Sessions set tidemark.route, .at, .cost, .prefer, .wait and .notice; SHOW tidemark.last and
    EXPLAIN (TIDEMARK) report the route of a statement, and the reason.
    """
    require_lake(lake)
    limits = ClientLimits(max_connections, authentication_s)
    defaults = ServeSettings(Route(route), "", cost, False, Prefer(prefer))
    client: EngineClient | None = None
    if defaults.route is not Route.SOURCE:
        if engine == EngineKind.DUCKDB.value and find_spec("duckdb") is None:
            raise InvalidValue("the package duckdb is not installed", "Run `pip install 'tidemark[duckdb]'`.")
        if wrong := [each for each in conf if not all(each.partition("=")[:2])]:
            raise InvalidValue(f"invalid option of Spark: --conf {wrong[0]}", "Use `--conf KEY=VALUE`.")
        options = tuple((key, value) for key, _, value in (each.partition("=") for each in conf))
        client = EngineClient(
            Setup(str(lake), EngineKind(engine), source.reveal(), master, remote, options, max_statements, max_rows)
        )
    with ExitStack() as held:
        metrics: ServerMetrics | None = None
        if monitored is not None:
            metrics = ServerMetrics() if client is None else ServerMetrics(lambda: client.is_open)
            held.enter_context(MonitoringEndpoint(monitored, metrics))
        router = SourceOnly() if client is None else MirrorRouter(client, defaults, metrics)
        server = Server(listen, upstream_of(source), router, limits, listening_tls(tls_cert, tls_key))
        if metrics is not None:
            metrics.count(lambda: server.connections)
        return asyncio.run(_served(server, client))


def require_lake(lake: Path) -> None:
    """Require a lake, without the libraries that read one."""
    if not (lake / "_tidemark.json").exists():
        raise InvalidValue(
            f"{lake} is not a Tidemark lake (no _tidemark.json)", "Create one with `tidemark sync SOURCE LAKE`."
        )


async def _served(server: Server, engine: EngineClient | None) -> ExitCode:
    """Serve until SIGINT or SIGTERM."""
    loop = asyncio.get_running_loop()
    received: asyncio.Future[ExitCode] = loop.create_future()

    def stop(code: ExitCode) -> None:
        if not received.done():
            received.set_result(code)

    loop.add_signal_handler(signal.SIGINT, stop, ExitCode.INTERRUPTED)
    loop.add_signal_handler(signal.SIGTERM, stop, ExitCode.OK)
    computing = loop.create_task(engine.run()) if engine is not None else None
    try:
        async with server:
            return await received
    finally:
        if computing is not None:
            computing.cancel()
            await asyncio.wait([computing])
