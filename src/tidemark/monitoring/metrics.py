"""Prometheus metrics of the pipelines in this process, with the label `lake`.

Counters and durations come from the events of a pipeline. Everything else is read from the lake with a request,
as `tidemark status` does, at most every few seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tidemark.clock import Lsn
from tidemark.errors import InvalidValue, TidemarkError
from tidemark.lake.health import HealthLimits, is_silent, lag_s, problems_of
from tidemark.lake.leases import oldest
from tidemark.lake.pipeline_state import PipelineState, State
from tidemark.lake.status import READABLE, LakeStatus, TableStatus, status_of
from tidemark.pipeline.events import (
    CopyFailed,
    CycleApplied,
    HistoryExpired,
    PollApplied,
    SyncEvent,
    TableCopied,
    TableFolded,
)
from tidemark.units import parse_duration, parse_size

STATUS_S = 5.0  # a status that is not older is used again
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
Described: TypeAlias = tuple[str, tuple[str, ...], str]  # name without prefix, labels beside `lake`, meaning
COUNTERS: tuple[Described, ...] = (
    ("applied_transactions", (), "Transactions of the stream that were applied."),
    ("applied_changes", (), "Changes that cycles or polls applied."),
    ("applied_bytes", (), "Bytes of the log that were applied."),
    ("copied_rows", ("table",), "Rows that copies of a table wrote."),
    ("copy_failures", ("table",), "Copies of a table that failed and are retried."),
    ("folded_changes", ("table",), "Changes of a table that were folded."),
    ("expired_bytes", (), "Bytes of files that were deleted."),
)
STAGES: Described = (
    "stage_duration_seconds",
    ("stage",),
    "Duration of a cycle of apply, a poll, the copy or fold of a table, or a run of expire.",
)
GAUGES: tuple[Described, ...] = (
    ("state", ("state",), "1 for the state of the pipeline, as in tidemark status, 0 for all others."),
    ("state_since_timestamp_seconds", (), "Time at which the pipeline entered its state."),
    ("reported_timestamp_seconds", (), "Time of the pipeline's last report."),
    ("lag_seconds", (), "Age of the oldest commit that is not applied, or of the last poll."),
    ("lag_bytes", (), "Distance from the applied LSN to the position of the source."),
    ("applied_lsn_bytes", (), "Every commit up to this LSN is in the lake."),
    ("received_lsn_bytes", (), "The receiver has read everything up to this LSN."),
    ("retained_lsn_bytes", (), "The oldest LSN that can be read; 0 if all can."),
    ("slot_active", (), "1 if the replication slot is in use."),
    ("slot_retained_bytes", (), "WAL that the source retains for the replication slot."),
    ("slot_wal_status", ("wal_status",), "1 for the wal_status of the replication slot."),
    ("last_error_timestamp_seconds", (), "Time of the last error or warning."),
    ("copies_remaining", (), "Tables whose copy is not complete."),
    ("copies_copied_bytes", (), "Bytes of pages that the copies in progress have read."),
    ("copies_size_bytes", (), "Bytes of pages that the copies in progress are to read."),
    ("disk_bytes", ("part",), "Disk use of current rows, history, the log, and files that no table lists."),
    ("disk_expected_bytes", (), "Forecast of disk use for the time when the history covers the retention."),
    ("disk_free_bytes", (), "Free space of the file system of the lake or the log, whichever has less."),
    ("leases", (), "Readers that have a lease."),
    ("oldest_lease_timestamp_seconds", (), "Time at which the oldest lease was taken."),
    ("table_readable", ("table",), "1 if the table can be read up to the applied LSN."),
    ("table_rows", ("table",), "Current rows, where they are known without a scan."),
    ("table_bytes", ("table", "part"), "Size of the files of changes and of versions."),
    ("table_files", ("table", "part"), "Number of the files of changes and of versions."),
    ("table_folded_lsn_bytes", ("table",), "Changes up to this LSN are folded."),
)


class CachedStatus:
    """The status of a lake, read again after some seconds; None if it cannot be read, and then `error` is why."""

    def __init__(self, lake: Path) -> None:
        self.lake = lake
        self._guard = threading.Lock()
        self.error = ""
        self._found: LakeStatus | None = None
        self._read_at = float("-inf")

    def __call__(self) -> LakeStatus | None:
        """Return the status."""
        with self._guard:
            if time.monotonic() >= self._read_at + STATUS_S:
                try:
                    self._found, self.error = status_of(self.lake), ""
                except TidemarkError as error:
                    self._found, self.error = None, error.message
                self._read_at = time.monotonic()
            return self._found


class Metrics:
    """The metrics of this process: add each pipeline, and pass its events on."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.statuses: dict[str, CachedStatus] = {}

        self._counters = {
            name: Counter(f"tidemark_{name}", help_, ("lake", *labels), registry=self.registry)
            for name, labels, help_ in COUNTERS
        }
        name, labels, help_ = STAGES
        labels = ("lake", *labels)
        self._seconds = Histogram(f"tidemark_{name}", help_, labels, buckets=_SECONDS, registry=self.registry)
        self.registry.register(_LakeCollector(self.statuses))

    def of(self, lake: Path) -> Callable[[SyncEvent], None]:
        """Add a lake; return what takes the events of its pipeline, from any thread."""
        name = str(lake)
        self.statuses[name] = CachedStatus(lake)
        return lambda event: self._take(name, event)

    def failures(self) -> list[str]:
        """Return the pipelines that no longer report, so that a restart may help."""
        found = [(lake, read()) for lake, read in list(self.statuses.items())]
        return [f"{lake}: no report for a long time" for lake, status in found if status and is_silent(status)]

    def problems(self, limits: Mapping[str, str]) -> list[str]:
        """Return why mirrors are not well; `max_lag` and `max_bytes` are the limits of `tidemark status --check`."""
        problems, parsed = [], _limits(limits)
        for lake, read in list(self.statuses.items()):
            status = read()
            found = [read.error] if status is None else problems_of(status, parsed)
            if status is not None and status.pipeline is not None and not status.pipeline.state.is_ready:
                found.append(status.pipeline.state.value)
            problems += [f"{lake}: {problem}" for problem in dict.fromkeys(found)]
        return problems

    def _take(self, lake: str, event: SyncEvent) -> None:
        if isinstance(event, CycleApplied):
            self._counters["applied_transactions"].labels(lake).inc(event.transactions)
            self._counters["applied_changes"].labels(lake).inc(event.changes)
            self._counters["applied_bytes"].labels(lake).inc(event.size_bytes)
            self._took(lake, "apply", event.seconds)
        elif isinstance(event, PollApplied):
            self._counters["applied_changes"].labels(lake).inc(event.changes)
            self._took(lake, "poll", event.seconds)
        elif isinstance(event, TableCopied):
            self._counters["copied_rows"].labels(lake, event.table).inc(event.rows)
            self._took(lake, "copy", event.seconds)
        elif isinstance(event, CopyFailed):
            self._counters["copy_failures"].labels(lake, event.table).inc()
        elif isinstance(event, TableFolded):
            self._counters["folded_changes"].labels(lake, event.table).inc(event.changes)
            self._took(lake, "fold", event.seconds)
        elif isinstance(event, HistoryExpired):
            self._counters["expired_bytes"].labels(lake).inc(event.size_bytes)
            self._took(lake, "expire", event.seconds)

    def _took(self, lake: str, stage: str, seconds: float) -> None:
        self._seconds.labels(lake, stage).observe(seconds)


class _LakeCollector(Collector):
    def __init__(self, statuses: dict[str, CachedStatus]) -> None:
        self._statuses = statuses

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values: registration reads no lake."""
        return [_info(), *_gauges().values()]

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of all lakes."""
        info, found = _info(), _gauges()
        for lake, read in list(self._statuses.items()):
            status = read()
            if status is not None:
                info.add_metric((lake,), {"mirror": status.mirror, "database": status.database})
                _add_lake(found, lake, status)
                for table in status.tables:
                    _add_table(found, lake, table)
        yield from (info, *found.values())


def _info() -> InfoMetricFamily:
    return InfoMetricFamily("tidemark_mirror", "Names of the mirror and its database.", labels=("lake",))


def _gauges() -> dict[str, GaugeMetricFamily]:
    """Return the metrics that are read from lakes, by name without prefix."""
    return {
        name: GaugeMetricFamily(f"tidemark_{name}", help_, labels=("lake", *labels)) for name, labels, help_ in GAUGES
    }


def _add_lake(found: dict[str, GaugeMetricFamily], lake: str, status: LakeStatus) -> None:
    def add(name: str, value: float | Lsn | None, *labels: str) -> None:
        if value is not None:
            number = value.value if isinstance(value, Lsn) else value
            found[name].add_metric((lake, *labels), number)

    add("lag_seconds", lag_s(status))
    add("applied_lsn_bytes", status.applied_lsn)
    add("received_lsn_bytes", status.received_lsn)
    add("retained_lsn_bytes", status.retained_lsn)
    disk = status.disk
    parts = {"current": disk.current_bytes, "history": disk.history_bytes, "log": disk.log_bytes}
    for part, size in {**parts, "unlisted": disk.unlisted_bytes}.items():
        add("disk_bytes", size, part)
    add("disk_expected_bytes", disk.expected_bytes)
    add("disk_free_bytes", disk.free_bytes)
    add("leases", len(status.readers))
    add("oldest_lease_timestamp_seconds", oldest(status.readers) if status.readers else None)
    if status.pipeline is not None:
        _add_pipeline(add, status.pipeline)


def _add_pipeline(add: Callable[..., None], pipeline: PipelineState) -> None:
    for state in State:
        add("state", float(state is pipeline.state), state.value)
    add("state_since_timestamp_seconds", pipeline.since.timestamp())
    add("reported_timestamp_seconds", pipeline.reported_at.timestamp())
    add("lag_bytes", pipeline.lag_bytes)
    if pipeline.last_error is not None:
        add("last_error_timestamp_seconds", pipeline.last_error.time.timestamp())
    copies = pipeline.copies
    add("copies_remaining", 0 if copies is None else copies.tables_total - copies.tables_copied)
    add("copies_copied_bytes", 0 if copies is None else copies.copied_bytes)
    add("copies_size_bytes", 0 if copies is None else copies.size_bytes)
    if pipeline.slot is not None:
        add("slot_active", float(pipeline.slot.is_active))
        add("slot_retained_bytes", pipeline.slot.retained_bytes)
        add("slot_wal_status", 1.0, pipeline.slot.wal_status or "unknown")


def _add_table(found: dict[str, GaugeMetricFamily], lake: str, table: TableStatus) -> None:
    if table.state == "dropped":
        return
    labels = (lake, table.name)
    found["table_readable"].add_metric(labels, float(table.state == READABLE and not table.reason))
    if table.rows is not None:
        found["table_rows"].add_metric(labels, table.rows)
    if table.folded_lsn is not None:
        found["table_folded_lsn_bytes"].add_metric(labels, table.folded_lsn.value)
    for part, files, size in (
        ("changes", table.change_files, table.change_bytes),
        ("versions", table.version_files, table.version_bytes),
    ):
        found["table_files"].add_metric((*labels, part), files)
        found["table_bytes"].add_metric((*labels, part), size)


def _limits(given: Mapping[str, str]) -> HealthLimits:
    if unknown := given.keys() - {"max_lag", "max_bytes"}:
        raise InvalidValue(f"unknown parameter: {min(unknown)}", "Use max_lag or max_bytes.")
    lag, size = given.get("max_lag"), given.get("max_bytes")
    return HealthLimits(None if lag is None else parse_duration(lag), None if size is None else parse_size(size))
