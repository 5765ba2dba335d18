"""The HTTP endpoint of a process: `/metrics` for Prometheus, `/health` and `/ready` for supervisors.

`/health` fails if a restart of the process may help, `/ready` as long as the process cannot serve what it is for.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from socketserver import ThreadingMixIn
from types import TracebackType
from typing import Any, Protocol, Self
from urllib.parse import parse_qsl
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from tidemark.addresses import ListenAddress
from tidemark.errors import InvalidValue
from tidemark.logs import fields

Start = Callable[[str, list[tuple[str, str]]], Any]
_LOGGER = logging.getLogger("tidemark.monitoring")
_REQUEST_S = 10.0  # for a client that sends nothing


class Monitored(Protocol):
    """What a process shows at its endpoint."""

    @property
    def registry(self) -> CollectorRegistry:
        """The metrics."""

    def failures(self) -> list[str]:
        """Return what a restart of the process may resolve."""

    def problems(self, limits: Mapping[str, str]) -> list[str]:
        """Return why the process is not ready; raise InvalidValue if a limit is not known."""


class MonitoringEndpoint:
    """Answers requests in threads of its own while the context lasts."""

    def __init__(self, listen: ListenAddress, monitored: Monitored) -> None:
        self._monitored = monitored
        self._metrics = make_wsgi_app(monitored.registry, disable_compression=True)
        family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        handled = type("_Server", (_Server,), {"address_family": family})
        try:
            self._server = handled((listen.host, listen.port), _Handler)
        except OSError as error:
            raise InvalidValue(f"cannot listen on {listen}: {error.strerror or error}") from error
        self._server.set_app(self._answer)
        self.listen = ListenAddress(listen.host, self._server.server_port)
        self._thread = threading.Thread(target=self._server.serve_forever, name="monitoring", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        _LOGGER.info("metrics at http://%s/metrics", self.listen, extra=fields(listen=str(self.listen)))
        if not self.listen.is_loopback:
            _LOGGER.warning("metrics are sent without TLS, to every client of %s", self.listen)
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, environment: dict[str, Any], start: Start) -> Iterable[bytes]:
        path, method = environment["PATH_INFO"], environment["REQUEST_METHOD"]
        if method not in ("GET", "HEAD"):
            return _text(start, "405 Method Not Allowed", ["only GET"])
        if path == "/metrics":
            answered: Iterable[bytes] = self._metrics(environment, start)
            return answered
        if path == "/health":
            return _verdict(start, self._monitored.failures())
        if path == "/ready":
            limits = dict(parse_qsl(environment.get("QUERY_STRING", ""), keep_blank_values=True))
            try:
                return _verdict(start, self._monitored.problems(limits))
            except InvalidValue as error:
                return _text(start, "400 Bad Request", [f"{error.message}. {error.hint}"])
        return _text(start, "404 Not Found", ["use /metrics, /health or /ready"])


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        """Ignore clients that close the connection."""


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_S

    def log_message(self, *_: object) -> None:
        """Log no requests."""


def _verdict(start: Start, problems: list[str]) -> list[bytes]:
    return _text(start, "503 Service Unavailable", problems) if problems else _text(start, "200 OK", ["ok"])


def _text(start: Start, status: str, lines: list[str]) -> list[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8")])
    return ["".join(f"{line}\n" for line in lines).encode()]
