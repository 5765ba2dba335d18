"""`tidemark.sync`: mirrors a database into a lake, from Python as from the command line.

    import tidemark
    tidemark.sync("host=db dbname=shop", "/data/lake", table=["public.*"], once=True)

`sync` plans (`plan_sync`: replication mode, names, checks that need no Spark) and runs (`run_sync`: publish, copy,
follow or poll, fold). It reports its progress as typed events.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.clock import Lsn
from tidemark.errors import InvalidValue, Stopped, TidemarkError
from tidemark.lake.lake import Lake
from tidemark.lake.paths import local_path, require_plain
from tidemark.lake.requests import read_restart
from tidemark.pipeline.apply.options import CYCLE_BYTES, CYCLE_S
from tidemark.pipeline.events import (
    Copies,
    CycleApplied,
    Emit,
    Message,
    ModeSelected,
    PollApplied,
    State,
    StateChanged,
    SyncEnded,
    SyncEvent,
    SyncProgress,
    TableCopy,
    TableFolded,
)
from tidemark.pipeline.publishing import Meant, Publishing, UnmirroredRecord, publish
from tidemark.postgres.capability import Choice, Mode, choose_mode
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.session import Session
from tidemark.receive.options import BUDGET_BYTES, WAL_LIMIT_BYTES, WalPolicy
from tidemark.schema.selection import Pattern, Selection
from tidemark.units import parse_duration, parse_size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.pipeline.copy.progress import CopyProgress
    from tidemark.pipeline.mirroring import Mirroring, MirroringOptions

AUTO, CURRENT = "auto", "current"
SHORTEST_INTERVAL_S = 5.0
PROGRESS_S = 0.2
RATE_S = 10.0  # the interval over which changes per second are averaged
Stopping = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """The source, the lake, the selected tables, and all limits in bytes and seconds. `mode` is None for auto."""

    source: Dsn
    lake: Path
    names: MirrorNames | None = None
    selection: Selection = field(default_factory=Selection)
    log: Path | None = None
    mode: Mode | None = None
    endpos: Lsn | None = None
    once: bool = False
    folds: bool = True
    interval_s: float = 10.0
    reconcile_every: int = 1
    budget_bytes: int = BUDGET_BYTES
    wal_limit_bytes: int = WAL_LIMIT_BYTES
    wal_policy: WalPolicy = WalPolicy.WARN
    accept_altered_publication: bool = False
    cycle_bytes: int = CYCLE_BYTES
    cycle_s: float = CYCLE_S
    copy_parallelism: int | None = None

    @property
    def has_end(self) -> bool:
        """Whether the sync ends without being stopped."""
        return self.once or self.endpos is not None

    def mirroring(self, names: MirrorNames) -> MirroringOptions:
        """The options of the parts: receive, apply, copy and fold."""
        from tidemark.pipeline.mirroring import MirroringOptions  # here, because it imports Spark

        return MirroringOptions(
            self.source,
            self.lake,
            names,
            self.log,
            endpos=self.endpos,
            folds=self.folds,
            tasks=self.copy_parallelism,
            budget_bytes=self.budget_bytes,
            wal_limit_bytes=self.wal_limit_bytes,
            wal_policy=self.wal_policy,
            accept_altered_publication=self.accept_altered_publication,
            cycle_bytes=self.cycle_bytes,
            cycle_s=self.cycle_s,
        )


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """Options that were checked against the source and the lake. If `polled`, the sync begins with polls."""

    options: SyncOptions
    choice: Choice
    meant: Meant
    polled: bool

    def describe(self) -> str:
        """The plan as text: mode, SQL at the source, tables with their parts and sizes. Changes nothing."""
        from tidemark.pipeline.outlook import outlook

        lake = self.options.lake
        lines = [f"-- Mode {self.choice.mode.value}: {self.choice.why}"]
        if read_restart(lake) is not None:
            lines.append(f"-- {lake} restarts: a new slot is created, and every table is copied again.")
        if self.polled and self.choice.mode is Mode.LOGICAL:
            lines.append(f"-- {lake} is polled once more, then follows the stream; only new tables are copied.")
        return "\n".join([*lines, outlook(self.meant, polled=self.choice.mode is Mode.POLL)])


def sync(
    source: str | Dsn,
    lake: str | Path,
    *,
    name: str | None = None,
    table: Iterable[str] = (),
    exclude: Iterable[str] = (),
    log: str | Path | None = None,
    mode: str = AUTO,
    endpos: str | Lsn | None = None,
    once: bool = False,
    fold: bool = True,
    interval: str | float = 10.0,
    reconcile_every: int = 1,
    budget: str | int = BUDGET_BYTES,
    wal_limit: str | int = WAL_LIMIT_BYTES,
    wal_policy: str = WalPolicy.WARN.value,
    accept_altered_publication: bool = False,
    cycle: str | int = CYCLE_BYTES,
    cycle_time: str | float = CYCLE_S,
    copy_parallelism: int | None = None,
    spark: SparkSession | None = None,
    on_event: Emit = lambda _: None,
    stopping: Stopping = lambda: False,
) -> SyncEnded:
    """Mirror the tables of `source` into `lake`: publish, copy, and follow until the end or until `stopping()`.

    The parameters are the options of `tidemark sync`; sizes and durations are numbers of bytes and seconds, or text
    such as "512MB" and "30s". Without `once` or `endpos` it runs until `stopping()` is true. `on_event` is called
    with every event, also from other threads. Without `spark` the active session is used, or a new one.

        ended = tidemark.sync("host=db dbname=shop", "/data/lake", once=True)
        print(ended.lsn)
    """
    options = SyncOptions(
        source if isinstance(source, Dsn) else Dsn(source),
        local_path(lake),
        MirrorNames(name) if name is not None else None,
        Selection(tuple(map(Pattern, table)), tuple(map(Pattern, exclude))),
        local_path(log) if log is not None else None,
        _mode(mode),
        Lsn.parse(endpos) if isinstance(endpos, str) and endpos != CURRENT else _lsn(endpos),
        once or endpos == CURRENT,
        fold,
        parse_duration(interval),
        reconcile_every,
        parse_size(budget),
        parse_size(wal_limit),
        _wal_policy(wal_policy),
        accept_altered_publication,
        parse_size(cycle),
        parse_duration(cycle_time),
        copy_parallelism,
    )
    return run_sync(plan_sync(options), lambda: spark or _default_session(), on_event, stopping)


def plan_sync(options: SyncOptions) -> SyncPlan:
    """Check the options and select the mode. Connects to the source; changes nothing, and needs no Spark."""
    require_plain(options.lake)
    for path in (options.lake, *([options.log] if options.log is not None else [])):
        _require_writable(path)
    names = options.names
    if names is None:
        with Session.open(options.source, "sync") as session:
            names = MirrorNames.of_database(session.row("select current_database()")[0])
    present = _mode_of(options.lake)
    meant = Meant(options.source, names, options.selection)
    choice = _choice(options, present, meant)
    polled = Mode.POLL in (choice.mode, present)
    if polled and options.endpos is not None:
        reason = choice.why if choice.mode is Mode.POLL else f"{options.lake} was created by polling"
        raise InvalidValue(f"--endpos {options.endpos} needs mode logical: {reason}", "Use `--once`.")
    if polled and options.interval_s < SHORTEST_INTERVAL_S:
        raise InvalidValue(
            f"polling interval too short: {options.interval_s:g} s",
            f"Use `--interval {SHORTEST_INTERVAL_S:g}s` or more.",
        )
    return SyncPlan(options, choice, meant, polled)


def run_sync(plan: SyncPlan, spark: Callable[[], SparkSession], emit: Emit, stopping: Stopping) -> SyncEnded:
    """Run a plan to its end, or until `stopping()`; return its last event, with the position at which it ended."""
    from tidemark.pipeline.mirroring import Mirroring, require_log
    from tidemark.pipeline.poll.run import PollRunOptions, run_polls  # here, because these import Spark
    from tidemark.pipeline.restart import RestartOptions, start_over

    options, meant = plan.options, plan.meant
    report = Reporter(emit)

    def tell(text: str) -> None:
        report.emit(Message(text))

    report.emit(ModeSelected(plan.choice.mode, plan.choice.why))
    report.enter(State.STARTING)
    mirroring_options = options.mirroring(meant.names)
    restart = RestartOptions(mirroring_options.receive, options.lake)
    if not plan.polled:
        publish(meant, tell, begun=Lake.exists(options.lake))
        start_over(restart, tell, stopping)
        require_log(options.lake, mirroring_options.log_folder)
    session = spark()
    if stopping():
        raise Stopped("stopped before replication started")
    if plan.polled:
        report.enter(State.POLLING)
        polls = PollRunOptions(
            options.interval_s,
            options.reconcile_every,
            options.once,
            options.folds,
            mirroring_options.log_folder,
            options.mode,
            options.copy_parallelism,
        )
        polled = run_polls(meant, options.lake, polls, session, stopping, report.emit, report.polls)
        if polled is not None:
            complete = not stopping()
            ended = report.ended(SyncEnded(complete, polled.lsn, None))
            if complete and polled.failure is not None:
                raise polled.failure
            return ended
    until = CURRENT if options.once and options.endpos is None else options.endpos
    failure: TidemarkError | None = None
    while True:
        with Mirroring(mirroring_options, session, tell, stopping, report.emit) as mirroring:
            complete = follow(mirroring, meant, until, stopping, report)
            lag = mirroring.lag
            restarts = mirroring.restart_is_asked_for and not stopping()
            if complete and not restarts:
                failure = _failure(mirroring.require_copied)
            elif not restarts:
                report.enter(State.STOPPING)
        if not restarts:
            break
        start_over(restart, tell, stopping)
    ended = report.ended(SyncEnded(complete, lag.applied_lsn, lag.lag_bytes))
    if failure is not None:
        raise failure
    return ended


def follow(
    mirroring: Mirroring, meant: Meant, until: Lsn | str | None, stopping: Stopping, report: Reporter | None = None
) -> bool:
    """Run a pipeline until everything up to `until` can be read; True then, False if it stops or restarts before.

    It does not wait for tables that cannot be copied.
    """
    report = report or Reporter(lambda _: None)
    publishing = Publishing(meant, lambda text: report.emit(Message(text)))
    unmirrored = UnmirroredRecord(meant, mirroring.lake)
    while not stopping() and not mirroring.restart_is_asked_for:
        applied = mirroring.step()
        publishing.step()
        unmirrored.step()
        if applied is not None:
            report.emit(
                CycleApplied(applied.upto, applied.transactions, applied.changes, applied.tables, applied.size_bytes)
            )
        report.stream(mirroring)
        if applied is None:
            mirroring.rest()
        if until is None or mirroring.copies > len(mirroring.unable):
            continue
        if until == CURRENT and mirroring.settled:
            until = mirroring.position()
        if isinstance(until, Lsn) and mirroring.reached(until):
            report.stream(mirroring, now=True)
            return True
    mirroring.writer.tell()
    return False


class Reporter:
    """Forwards events, and adds those about state and progress."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._state: State | None = None
        self._next = 0.0
        self._begin = time.monotonic()
        self._changes: deque[tuple[float, int]] = deque()
        self._fold: tuple[TableFolded, float] | None = None

    def emit(self, event: SyncEvent) -> None:
        """Forward an event."""
        if isinstance(event, TableFolded):
            self._fold = event, time.monotonic()
        elif isinstance(event, (CycleApplied, PollApplied)):
            self._changes.append((time.monotonic(), event.changes))
        self._emit(event)

    def enter(self, state: State) -> None:
        """Change the state."""
        if state is not self._state:
            self._state = state
            self._emit(StateChanged(state))

    def ended(self, ended: SyncEnded) -> SyncEnded:
        """Report the end."""
        self._emit(ended)
        return ended

    def stream(self, mirroring: Mirroring, *, now: bool = False) -> None:
        """Report the progress of a mirror that follows the stream."""
        if not now and time.monotonic() < self._next:
            return
        lag = mirroring.lag
        if lag.applied_lsn == Lsn.ZERO:  # the first cycle has not been applied yet
            return
        if mirroring.copies > len(mirroring.unable):
            self.enter(State.COPYING)
        elif mirroring.settled or self._state is not State.STARTING:  # otherwise tables may still need a copy
            self.enter(State.FOLLOWING)
        self._progress(mirroring.progress, lag.applied_lsn, lag.received_lsn, lag.source_lsn, lag.lag_bytes, lag.lag_s)

    def polls(self, lsn: Lsn, progress: CopyProgress) -> None:
        """Report the progress of a mirror that polls."""
        self._progress(progress, lsn, None, None, None, None)

    def _progress(
        self,
        progress: CopyProgress,
        applied: Lsn,
        received: Lsn | None,
        source: Lsn | None,
        lag_bytes: int | None,
        lag_s: float | None,
    ) -> None:
        now = time.monotonic()
        self._next = now + PROGRESS_S
        fold, folded_at = self._fold or (None, now)
        self._emit(
            SyncProgress(
                self._state or State.STARTING,
                applied,
                received,
                source,
                lag_bytes,
                lag_s,
                self._rate(now),
                _copies(progress),
                fold,
                now - folded_at if fold is not None else None,
            )
        )

    def _rate(self, now: float) -> float:
        while self._changes and self._changes[0][0] < now - RATE_S:
            self._changes.popleft()
        return sum(changes for _, changes in list(self._changes)) / max(1.0, min(RATE_S, now - self._begin))


def _copies(progress: CopyProgress) -> Copies:
    total = progress.total()
    tables = tuple(
        TableCopy(table.name, table.state, table.size_bytes, table.copied_bytes, table.rows)
        for table in progress.tables()
    )
    return Copies(
        total.tables,
        total.done,
        total.size_bytes,
        total.copied_bytes,
        total.rows,
        total.rate,
        total.left_s,
        tables,
    )


def _choice(options: SyncOptions, present: Mode | None, meant: Meant) -> Choice:
    """The mode: as requested, as the lake has it, or as the source supports it. Logical mode is never changed."""
    if present is Mode.LOGICAL:
        if options.mode is Mode.POLL:
            raise InvalidValue(
                f"{options.lake} follows the stream, and cannot be polled",
                "Use another directory for a mirror that polls, or `--mode logical`.",
            )
        return Choice(present, f"{options.lake} follows the stream")
    if options.mode is not None:
        return Choice(options.mode, "as requested by --mode")
    with Session.open(options.source, "sync") as session:
        return choose_mode(session, meant.source, meant.names, meant.selection, strict=present is None)


def _mode_of(lake: Path) -> Mode | None:
    """The mode in which a lake was last written; None if it is empty."""
    if not Lake.exists(lake):
        return None
    from tidemark.lake.registers import read_cycle, read_seen  # here, because they import Delta

    opened = Lake.open(lake)
    if read_seen(lake) is not None:
        return Mode.POLL
    return Mode.LOGICAL if read_cycle(lake).safe > Lsn.ZERO or opened.log.exists() else None


def _require_writable(path: Path) -> None:
    present = next(part for part in (path, *path.parents) if part.exists())
    if not os.access(present, os.W_OK | os.X_OK):
        raise InvalidValue(
            f"cannot write to {present}: permission denied",
            f"Grant write access to {present}, or use another directory.",
        )


def _failure(check: Callable[[], None]) -> TidemarkError | None:
    try:
        check()
    except TidemarkError as error:
        return error
    return None


def _default_session() -> SparkSession:
    from tidemark.spark import spark_session

    return spark_session()


def _lsn(endpos: str | Lsn | None) -> Lsn | None:
    return endpos if isinstance(endpos, Lsn) else None


def _mode(text: str) -> Mode | None:
    modes = {AUTO: None, **{mode.value: mode for mode in Mode}}
    if text not in modes:
        raise InvalidValue(f"invalid mode: {text!r}", f"Use one of {', '.join(modes)}.")
    return modes[text]


def _wal_policy(text: str) -> WalPolicy:
    policies = {policy.value: policy for policy in WalPolicy}
    if text not in policies:
        raise InvalidValue(f"invalid WAL policy: {text!r}", f"Use one of {', '.join(policies)}.")
    return policies[text]
