"""Where the source listens, and how a connection to it is made: hosts, ports and sslmode, as libpq reads them."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tidemark.errors import InvalidValue
from tidemark.postgres.dsn import Dsn
from tidemark.serve.wire import Opening, request_packet

_SOCKET_FOLDERS = ("/var/run/postgresql", "/tmp")  # noqa: S108 - where libpq finds the server
_VERIFIED = ("verify-ca", "verify-full")
MODES = ("disable", "allow", "prefer", "require", *_VERIFIED)


@dataclass(frozen=True, slots=True)
class Address:
    """A host, or the directory of a Unix-domain socket, and a port."""

    host: str
    name: str
    port: int

    @property
    def is_local(self) -> bool:
        """Whether this is a Unix-domain socket."""
        return self.host.startswith(("/", "@"))

    def __str__(self) -> str:
        return f"{self.host}/.s.PGSQL.{self.port}" if self.is_local else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Upstream:
    """The source as sessions of clients reach it: user, password and database come from each client."""

    addresses: tuple[Address, ...]
    sslmode: str
    context: ssl.SSLContext | None
    timeout_s: float

    async def connect(self) -> tuple[socket.socket, ssl.SSLContext | None, str]:
        """Connect to the first address that accepts; return the socket, and the TLS to begin with a host name."""
        problems = list[str]()
        for address in self.addresses:
            try:
                async with asyncio.timeout(self.timeout_s):
                    connected = await self._connect(address)
            except (OSError, ssl.SSLError, TimeoutError) as error:
                problems.append(f"{address}: {getattr(error, 'strerror', None) or str(error) or 'timeout'}")
            else:
                return connected
        raise ConnectionError("; ".join(problems))

    async def _connect(self, address: Address) -> tuple[socket.socket, ssl.SSLContext | None, str]:
        loop = asyncio.get_running_loop()
        connected = await _open(loop, address)
        try:
            if address.is_local or self.context is None:
                return connected, None, ""
            await loop.sock_sendall(connected, request_packet(Opening.TLS))
            answer = await loop.sock_recv(connected, 1)
            if answer == b"S":
                return connected, self.context, address.name
        except BaseException:
            connected.close()
            raise
        if answer != b"N" or self.sslmode != "prefer":
            connected.close()
            raise ConnectionError("the source does not offer TLS, and its sslmode requires it")
        return connected, None, ""


async def _open(loop: asyncio.AbstractEventLoop, address: Address) -> socket.socket:
    if address.is_local:
        return await _connected(loop, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), str(address))
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    for at, (family, kind, protocol, _, target) in enumerate(found):
        try:
            connected = await _connected(loop, socket.socket(family, kind, protocol), target)
        except OSError:
            if at == len(found) - 1:
                raise
        else:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return connected
    raise ConnectionError(f"no address of host {address.host}")


async def _connected(loop: asyncio.AbstractEventLoop, made: socket.socket, target: object) -> socket.socket:
    made.setblocking(False)
    try:
        await loop.sock_connect(made, target)  # type: ignore[arg-type]
    except BaseException:
        made.close()
        raise
    return made


def upstream_of(source: Dsn) -> Upstream:
    """Read where the source is from its connection string, with libpq's defaults and environment."""
    options = _options(source)
    hosts, ports = options.get("host", "").split(","), options.get("port", "5432").split(",")
    numeric = options["hostaddr"].split(",") if options.get("hostaddr") else hosts
    if len(ports) not in (1, len(numeric)):
        raise InvalidValue(f"{len(ports)} ports for {len(numeric)} hosts in --source")
    addresses = tuple(_address(at, hosts, numeric, ports) for at in range(len(numeric)))
    mode = options.get("sslmode", "prefer")
    if mode not in MODES:
        raise InvalidValue(f"invalid sslmode in --source: {mode!r}", f"Use one of {', '.join(MODES)}.")
    timeout_s = float(options.get("connect_timeout") or 0) or 10.0
    return Upstream(addresses, mode, None if mode in ("disable", "allow") else _context(mode, options), timeout_s)


def _address(at: int, hosts: list[str], numeric: list[str], ports: list[str]) -> Address:
    """Return one of the addresses; its name is that which a certificate must have."""
    name = (hosts[at] if at < len(hosts) else "") or numeric[at]
    return Address(numeric[at] or _default_host(), name, int(ports[at % len(ports)] or 5432))


def _options(source: Dsn) -> Mapping[str, str]:
    """Return the values of libpq's keywords: of the string, its service file, the environment, and the defaults."""
    given = {key: str(value) for key, value in conninfo_to_dict(source.reveal()).items()}
    if "service" in given:
        return _of_service(source)
    defaults = {each.keyword.decode(): each.val.decode() for each in psycopg.pq.Conninfo.get_defaults() if each.val}
    return {**defaults, **given}


def _of_service(source: Dsn) -> Mapping[str, str]:
    """Return the same of a string that names a service: libpq resolves one only when it begins a connection."""
    begun = psycopg.pq.PGconn.connect_start(source.reveal().encode())
    try:
        message = begun.error_message.decode(errors="replace").strip()
        if begun.status == psycopg.pq.ConnStatus.BAD and "service" in message:
            raise InvalidValue(
                f"--source: {message}", "Define the service in ~/.pg_service.conf, or in the file of PGSERVICEFILE."
            )
        return {each.keyword.decode(): each.val.decode() for each in begun.info if each.val}
    finally:
        begun.finish()


def _context(mode: str, options: Mapping[str, str]) -> ssl.SSLContext:
    """Return the context of the connection to the source; certificates are verified as libpq does in this mode."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = mode == "verify-full"
    root = options.get("sslrootcert", "")
    if root == "system":
        context.check_hostname = True
        context.load_default_certs()
    else:
        file = Path(root or "~/.postgresql/root.crt").expanduser()
        is_verified = mode in _VERIFIED or (mode == "require" and file.exists())
        context.verify_mode = ssl.CERT_REQUIRED if is_verified else ssl.CERT_NONE
        if is_verified:
            context.load_verify_locations(file)
    if certificate := options.get("sslcert"):
        context.load_cert_chain(certificate, options.get("sslkey"), options.get("sslpassword"))
    return context


def _default_host() -> str:
    """Return the first directory in which libpq would find the socket, or localhost."""
    return next((folder for folder in _SOCKET_FOLDERS if os.access(folder, os.X_OK)), "localhost")
