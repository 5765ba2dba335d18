"""What a running sync reports to Prometheus and to supervisors, over HTTP."""

from __future__ import annotations

import http.client
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

import tidemark
from harness.database import Database
from harness.mirrored import eventually
from harness.syncing import publish
from tests.conftest import NEWEST
from tidemark.addresses import ListenAddress
from tidemark.errors import InvalidValue
from tidemark.lake.pipeline_state import PipelineState, State, read_pipeline_state
from tidemark.lake.status import status_of
from tidemark.monitoring import metrics as of_process
from tidemark.monitoring.endpoint import MonitoringEndpoint
from tidemark.monitoring.metrics import Metrics
from tidemark.monitoring.server_metrics import ServerMetrics
from tidemark.pipeline.recording import StateRecord

pytestmark = pytest.mark.quick

ANY = ListenAddress("127.0.0.1", 0)


@contextmanager
def monitored(lake: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Metrics, str]]:
    """The metrics of a lake, and the address at which they are served."""
    monkeypatch.setattr(of_process, "STATUS_S", 0.0)
    metrics = Metrics()
    with MonitoringEndpoint(ANY, metrics) as endpoint:
        yield metrics, f"http://{endpoint.listen}"


def answer(url: str) -> tuple[int, str]:
    try:
        with urlopen(url, timeout=20) as found:  # noqa: S310  the URL is ours
            return found.status, found.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def values(url: str) -> dict[tuple[str, ...], float]:
    """The samples by their name and labels, without the lake."""
    status, text = answer(f"{url}/metrics")
    assert status == 200
    return {
        (sample.name, *(value for name, value in sorted(sample.labels.items()) if name != "lake")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.spark
@NEWEST
def test_the_metrics_of_a_sync_are_those_of_its_lake(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    db.run("create table t (id int primary key)", "insert into t select generate_series(1, 100)")
    publish(db, "t")
    with monitored(lake, monkeypatch) as (metrics, url):
        take = metrics.of(lake)
        assert answer(f"{url}/health") == (200, "ok\n")
        assert answer(f"{url}/ready") == (503, f"{lake}: {lake} is not a Tidemark lake (no _tidemark.json)\n")
        tidemark.sync(db.dsn(), lake, spark=spark, once=True, on_event=take)
        db.run("insert into t values (101)", "update t set id = 102 where id = 1")
        tidemark.sync(db.dsn(), lake, spark=spark, once=True, on_event=take)
        found, status = values(url), status_of(lake)
    assert found["tidemark_copied_rows_total", "public.t"] == 100
    assert found["tidemark_applied_changes_total",] == 3  # an update of the key is a delete and an insert
    assert found["tidemark_applied_transactions_total",] >= 2
    assert found["tidemark_stage_duration_seconds_count", "copy"] == 1
    assert found["tidemark_stage_duration_seconds_sum", "apply"] > 0
    assert found["tidemark_table_readable", "public.t"] == 1
    assert found["tidemark_applied_lsn_bytes",] == status.applied_lsn.value
    assert found["tidemark_disk_bytes", "log"] == status.disk.log_bytes
    assert found["tidemark_state", "stopped"] == 1
    assert sum(value for (name, *_), value in found.items() if name == "tidemark_state") == 1
    assert found["tidemark_slot_active",] in (0, 1)
    assert found["tidemark_mirror_info", status.database, status.mirror] == 1


@pytest.mark.spark
@NEWEST
def test_readiness_follows_the_state_and_the_lag(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    db.run("create table t (id int primary key)")
    publish(db, "t")
    tidemark.sync(db.dsn(), lake, spark=spark, once=True)
    with monitored(lake, monkeypatch) as (metrics, url), StateRecord(lake):
        metrics.of(lake)
        before = read_pipeline_state(lake)
        assert before is not None

        def ready(state: State, query: str = "") -> tuple[int, str]:
            replace(before, state=state, lag_s=30.0, lag_bytes=1000).write(lake)
            status, text = answer(f"{url}/ready{query}")
            return status, re.sub(re.escape(f"{lake}: "), "", text)

        assert ready(State.FOLLOWING) == (200, "ok\n")
        assert ready(State.FOLLOWING, "?max_lag=60s&max_bytes=1MB") == (200, "ok\n")
        assert ready(State.FOLLOWING, "?max_lag=10s") == (503, "lag 30 s, more than 10 s\n")
        assert ready(State.FOLLOWING, "?max_bytes=10B")[0] == 503
        assert ready(State.COPYING) == (503, "copying\n")
        assert ready(State.PAUSED) == (503, "paused\n")
        assert ready(State.FOLLOWING, "?max_lag=soon")[0] == 400
        assert ready(State.FOLLOWING, "?lag=1s")[0] == 400
        assert answer(f"{url}/health") == (200, "ok\n")
        silent = PipelineState(State.FOLLOWING, before.since, datetime.now(UTC) - timedelta(minutes=10))
        silent.write(lake)
        assert answer(f"{url}/health") == (503, f"{lake}: no report for a long time\n")
        assert answer(f"{url}/else")[0] == 404


def test_bad_requests_leave_the_endpoint_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monitored(tmp_path, monkeypatch) as (_, url):
        host, port = url.removeprefix("http://").split(":")
        for request in (b"", b"\0\xff\r\n\r\n", b"GET", b"GET / HTTP/9\r\n" + b"x" * 100_000):
            with socket.create_connection((host, int(port)), 10) as client:
                client.sendall(request)
        posting = http.client.HTTPConnection(host, int(port), timeout=10)
        posting.request("POST", "/metrics", b"x")
        assert posting.getresponse().status == 405
        posting.close()
        eventually(lambda: answer(f"{url}/health") == (200, "ok\n"), 20)
        with pytest.raises(InvalidValue, match="cannot listen on"):
            MonitoringEndpoint(ListenAddress(host, int(port)), Metrics())


def test_the_metrics_of_a_server_are_those_that_its_router_notes() -> None:
    is_open, clients = [False], [0]
    metrics = ServerMetrics(lambda: is_open[0])
    metrics.count(lambda: clients[0])
    with MonitoringEndpoint(ANY, metrics) as endpoint:
        url = f"http://{endpoint.listen}"
        assert answer(f"{url}/ready") == (503, "the engine is not ready: the source answers every statement\n")
        is_open[0], clients[0] = True, 7
        assert answer(f"{url}/ready") == (200, "ok\n")
        assert answer(f"{url}/ready?max_lag=1s")[0] == 400
        assert answer(f"{url}/health") == (200, "ok\n")
        for route, seconds in (("mirror", 0.5), ("mirror", 0.25), ("source", 2.0)):
            metrics.finished(route, seconds)
        metrics.waited(0.02)
        metrics.computed(0.4)
        found = values(url)
    assert found["tidemark_server_connections",] == 7
    assert found["tidemark_server_statement_duration_seconds_count", "mirror"] == 2
    assert found["tidemark_server_statement_duration_seconds_sum", "source"] == 2.0
    assert found["tidemark_server_gate_wait_seconds_bucket", "0.03"] == 1
    assert found["tidemark_server_engine_seconds_sum",] == 0.4
