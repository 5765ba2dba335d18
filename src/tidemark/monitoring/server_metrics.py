"""Prometheus metrics of `tidemark serve`: clients, statements by route, and how long statements waited and computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector

from tidemark.errors import InvalidValue

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
Described: TypeAlias = tuple[str, tuple[str, ...], str]  # name without prefix, labels, meaning
CONNECTIONS: Described = ("server_connections", (), "Clients that have sent a startup packet.")
STATEMENTS: Described = (
    "server_statement_duration_seconds",
    ("route",),
    "From the client's last message to the end of the answer; `route` is `mirror`, `source` or `refused`.",
)
GATE: Described = (
    "server_gate_wait_seconds",
    (),
    "How long statements waited until the mirror had their snapshot; those that gave up are not counted.",
)
ENGINE: Described = ("server_engine_seconds", (), "How long the engine computed for an answer.")


class ServerMetrics:
    """The metrics of one server. `is_open` returns whether its engine is ready, if it has one."""

    def __init__(self, is_open: Callable[[], bool] = lambda: True) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._is_open = is_open
        name, _, help_ = CONNECTIONS
        self._connections = Gauge(f"tidemark_{name}", help_, registry=self.registry)
        self._statements, self._gate, self._engine = map(self._histogram, (STATEMENTS, GATE, ENGINE))

    def _histogram(self, described: Described) -> Histogram:
        name, labels, help_ = described
        return Histogram(f"tidemark_{name}", help_, labels, buckets=_SECONDS, registry=self.registry)

    def count(self, connections: Callable[[], int]) -> None:
        """Set what returns the number of clients."""
        self._connections.set_function(connections)

    def finished(self, route: str, seconds: float) -> None:
        """A statement has its answer."""
        self._statements.labels(route).observe(seconds)

    def waited(self, seconds: float) -> None:
        """A statement has waited for the mirror, which has its snapshot now."""
        self._gate.observe(seconds)

    def computed(self, seconds: float) -> None:
        """The engine has computed an answer."""
        self._engine.observe(seconds)

    def failures(self) -> list[str]:
        """Return nothing: the server restarts its engine itself."""
        return []

    def problems(self, limits: Mapping[str, str]) -> list[str]:
        """Return whether the engine is missing; the source answers then."""
        if limits:
            raise InvalidValue(f"unknown parameter: {min(limits)}", "Monitor the lag of the mirror at its `sync`.")
        return [] if self._is_open() else ["the engine is not ready: the source answers every statement"]
