"""TLS on both sides of the server, and channel binding."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import psycopg
import pytest

from harness.database import OWNER, Database, create_database
from tests.conftest import WITH_TLS, Start
from tests.serve.serving import Serving, serving
from tests.serve.test_limits import received, report_of
from tidemark.errors import InvalidValue
from tidemark.serve.server import listening_tls
from tidemark.serve.wire import Opening, request_packet, startup_packet

pytestmark = pytest.mark.quick


def create_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for localhost, and its key."""
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
            "-keyout",
            folder / "key",
            "-out",
            folder / "cert",
        ],
        check=True,
        capture_output=True,
    )
    return folder / "cert", folder / "key"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return create_certificate(tmp_path_factory.mktemp("tls"))


def test_clients_connect_with_tls(db: Database, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    with serving(db, tls=listening_tls(str(cert), str(key))) as running:
        dsn = running.dsn(sslrootcert=str(cert)).replace("host=127.0.0.1", "host=localhost hostaddr=127.0.0.1")
        for options in (
            "sslmode=require",
            "sslmode=verify-full",
            "sslmode=verify-full sslnegotiation=direct",
            "sslmode=disable",
        ):
            with psycopg.connect(f"{dsn} {options}") as connection:
                assert connection.pgconn.ssl_in_use is ("disable" not in options)
                assert connection.execute(
                    "select sum(n), max(repeat('x', 200000)) from generate_series(1, 9) n"
                ).fetchone() == (45, "x" * 200_000)
        with pytest.raises(psycopg.OperationalError, match="does not match"):
            psycopg.connect(running.dsn(sslrootcert=str(cert), sslmode="verify-full"))


def test_without_a_certificate_tls_is_declined(served: Serving) -> None:
    with pytest.raises(psycopg.OperationalError, match="does not support SSL"):
        psycopg.connect(served.dsn(sslmode="require"))
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        for request in (Opening.GSS, Opening.TLS):
            connection.sendall(request_packet(request))
            assert connection.recv(1) == b"N"
        connection.sendall(b"\0\0\0\7")
        assert connection.recv(1) == b"E"


def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="cannot read the certificate"):
        listening_tls(str(tmp_path / "none"), None)
    with pytest.raises(InvalidValue, match="without --tls-cert"):
        listening_tls(None, "key")


@WITH_TLS
def test_the_source_is_reached_with_tls(start: Start, certificate: tuple[Path, Path], tmp_path: Path) -> None:
    private = start()
    for file in certificate:
        private.put(file, f"server.{file.name}")
    private.restart(settings={"ssl": True, "ssl_cert_file": "server.cert", "ssl_key_file": "server.key"})
    database = create_database(private)
    same, other = (listening_tls(*map(str, each)) for each in (certificate, create_certificate(tmp_path)))
    source = f"host=localhost hostaddr=127.0.0.1 port={private.port} dbname={database.name}"
    verified = f"{source} sslmode=verify-full sslrootcert={certificate[0]}"

    def admits(options: str) -> bool:
        """Whether a session is admitted, and encrypted to the source."""
        query = "select ssl from pg_stat_ssl where pid = pg_backend_pid()"
        try:
            with psycopg.connect(f"{running.dsn(OWNER)} {options}") as connection:
                return connection.execute(query).fetchone() == (True,)
        except psycopg.OperationalError as error:
            assert "channel binding" in str(error)  # noqa: PT017
            return False

    with serving(database, source=f"{source} sslmode=require") as running:
        assert admits("sslmode=disable")
    with serving(database, source=verified, tls=same) as running:
        assert admits("sslmode=require channel_binding=require")  # of the one certificate of both
    with serving(database, source=verified, tls=other) as running:
        assert not admits("sslmode=require")
        assert admits("sslmode=require channel_binding=disable")
    with serving(database, source=verified.replace("host=localhost ", "")) as running:
        report = report_of(received(running.port, startup_packet({"user": OWNER})))
        assert (report["C"], "CERTIFICATE_VERIFY_FAILED" in report["M"]) == ("57P03", True)
