"""Limits and refusals: of connections, of malformed messages, of memory, and when the source is down."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import time
from pathlib import Path

import psycopg
import pytest

from harness.database import OWNER, PASSWORD, Database, create_database
from tests.conftest import Start
from tests.serve.raw import Raw, error_of
from tests.serve.serving import Serving, serving
from tidemark.addresses import ListenAddress
from tidemark.errors import InvalidValue
from tidemark.postgres.dsn import Dsn
from tidemark.serve import messages
from tidemark.serve.legs import READ_BYTES, WRITE_LIMIT, Pause
from tidemark.serve.messages import read_report
from tidemark.serve.relay import ClientLimits, ClientRelay
from tidemark.serve.routing import SourceOnly
from tidemark.serve.server import Server
from tidemark.serve.upstream import upstream_of
from tidemark.serve.wire import Opening, frames, request_packet, startup_packet

pytestmark = pytest.mark.quick


def received(port: int, *sent: bytes) -> bytes:
    """Everything that the server answers to bytes, up to its end."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        found = b""
        try:
            for each in sent:
                connection.sendall(each)
            while piece := connection.recv(65536):
                found += piece
        except ConnectionResetError:
            pass
        return found


def report_of(data: bytes) -> dict[str, str]:
    ((_, body),) = frames(data)
    return dict(read_report(body))


def test_a_client_too_many_gets_the_error_of_postgresql(db: Database) -> None:
    with serving(db, limits=ClientLimits(connections=2)) as running:
        clients = [psycopg.connect(running.dsn()) for _ in range(2)]
        with pytest.raises(psycopg.OperationalError, match="sorry, too many clients already"):
            psycopg.connect(running.dsn())
        report = report_of(received(running.port, startup_packet({"user": OWNER})))
        assert (report["C"], report["V"]) == ("53300", "FATAL")
        clients.pop().close()
        while running.server.connections > 1:
            time.sleep(0.01)
        psycopg.connect(running.dsn()).close()
        clients.pop().close()


def test_a_wrong_password_is_the_error_of_the_source(db: Database, served: Serving) -> None:
    def message(dsn: str) -> str:
        with pytest.raises(psycopg.OperationalError) as raised:
            psycopg.connect(dsn.replace(PASSWORD, "wrong"))
        return str(raised.value).rpartition("failed: ")[2]

    assert message(served.dsn()) == message(db.dsn(OWNER).reveal())
    assert 'password authentication failed for user "app"' in message(served.dsn())


def test_passwords_are_relayed_as_scram(db: Database, served: Serving) -> None:
    with psycopg.connect(served.dsn(require_auth="scram-sha-256")) as connection:
        assert connection.execute("select current_user").fetchone() == (OWNER,)


def test_a_source_that_requires_no_password_admits_only_local_clients(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(db) as running:
        Raw(running.port, db.name).close()
        monkeypatch.setattr(ClientRelay, "is_local_client", property(lambda _: False))
        report = report_of(received(running.port, startup_packet({"user": "postgres", "database": db.name})))
        assert report["C"] == "28000"
        assert "without a password" in report["M"]
        psycopg.connect(running.dsn()).close()  # with a password


def test_a_source_that_is_down_is_named(db: Database, start: Start) -> None:
    private = start()
    database = create_database(private)
    with serving(database) as running:
        client = Raw(running.port, database.name)
        client.send(messages.query(b"select pg_sleep(100)"))
        private.stop("fast")
        found = client.until_ready()
        assert error_of(found) == "57P01"
        client.close()
        report = report_of(received(running.port, startup_packet({"user": OWNER})))
        assert report["C"] == "57P03"
        assert f"127.0.0.1:{private.port}" in report["M"]
        private.start()
        Raw(running.port, database.name).close()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\7",
        b"\xff" * 100,
        startup_packet({"user": "postgres"}) + b"Q\0\0\0\5x",
        request_packet(Opening.TLS) + b"\0\0\0\10",
        request_packet(Opening.GSS) * 3,
    ],
)
def test_a_malformed_start_is_refused(served: Serving, sent: bytes) -> None:
    assert b"08P01" in received(served.port, sent)


def test_a_malformed_message_ends_its_session_only(db: Database, served: Serving) -> None:
    other = Raw(served.port, db.name)
    for sent in (b"?\0\0\0\5x", b"Q\0\0\0\3", b"Q\xff\xff\xff\xff"):
        client = Raw(served.port, db.name)
        assert error_of(client.ask(sent)) == "08P01"
        client.close()
    chance = random.Random(26)  # noqa: S311
    for _ in range(10):
        client = Raw(served.port, db.name)
        valid = messages.query(b"select 1")
        noise = bytearray(valid * 3)
        noise[chance.randrange(len(noise))] ^= 1 << chance.randrange(8)
        client.send(bytes(noise), messages.TERMINATE)
        client.socket.shutdown(socket.SHUT_WR)  # a length that is too large waits for more
        client.until_ready(9)
        client.close()
    assert other.ask(messages.query(b"select 1"))
    other.close()


def test_a_client_that_sends_nothing_is_disconnected(db: Database) -> None:
    with serving(db, limits=ClientLimits(authentication_s=0.2)) as running:
        assert received(running.port) == b""


def test_a_client_that_does_not_read_costs_bounded_memory(db: Database, served: Serving) -> None:
    client = Raw(served.port, db.name)
    client.send(messages.query(b"select repeat('x', 1000) from generate_series(1, 60000)"))
    (relay,) = served.server._relays
    assert relay.source is not None
    deadline = time.monotonic() + 120
    while not relay.source._pauses and time.monotonic() < deadline:
        time.sleep(0.01)
    assert relay.source._pauses is Pause.WRITING
    assert 0 < relay.client.transport.get_write_buffer_size() < WRITE_LIMIT + 2 * READ_BYTES
    rows = client.until_ready()
    assert len(rows) == 60_000 + 3
    client.close()


def test_the_address_of_the_source_is_read_as_libpq_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", "7777")
    monkeypatch.delenv("PGSSLMODE", raising=False)
    found = upstream_of(Dsn("host=a,b user=x sslmode=disable"))
    assert [str(each) for each in found.addresses] == ["a:7777", "b:7777"]
    assert str(upstream_of(Dsn("postgresql://h:1/db")).addresses[0]) == "h:1"
    assert upstream_of(Dsn("host=/tmp port=5")).addresses[0].is_local
    with pytest.raises(InvalidValue):
        upstream_of(Dsn("host=a,b port=1,2,3"))


def test_a_service_names_the_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "services"
    file.write_text("[shop]\nhost=127.0.0.1\nport=1\nsslmode=disable\n")
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    found = upstream_of(Dsn("service=shop dbname=x"))
    assert [str(each) for each in found.addresses] == ["127.0.0.1:1"]
    assert found.sslmode == "disable"
    assert str(upstream_of(Dsn("service=shop port=2")).addresses[0]) == "127.0.0.1:2"
    with pytest.raises(InvalidValue, match='definition of service "shoe" not found'):
        upstream_of(Dsn("service=shoe"))


@pytest.mark.parametrize("text", ["6432", ":6432", "localhost:", "localhost:x", "localhost:65536"])
def test_an_address_to_listen_on_has_a_host_and_a_port(text: str) -> None:
    with pytest.raises(InvalidValue):
        ListenAddress.parse(text)
    assert str(ListenAddress.parse("[::1]:1")) == "[::1]:1"


EVERY_ADDRESS = "0.0.0.0"  # noqa: S104


@pytest.mark.parametrize(
    ("host", "tls", "warned"), [(EVERY_ADDRESS, False, 1), (EVERY_ADDRESS, True, 0), ("127.0.0.1", False, 0)]
)
def test_an_address_of_other_machines_without_tls_is_warned_about(
    host: str, tls: bool, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def listen() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if tls else None
        async with Server(ListenAddress(host, 0), upstream_of(Dsn("host=127.0.0.1")), SourceOnly(), tls=context):
            pass

    asyncio.run(listen())
    assert sum("without TLS: set --tls-cert" in message for message in caplog.messages) == warned
