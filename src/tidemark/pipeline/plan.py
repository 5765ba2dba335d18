"""The options of a pipeline, checked against the source and the lake before anything is changed. Needs no Spark.

`plan_pipeline` selects the replication mode and the names of the mirror; `PipelinePlan.describe` is the output of
`tidemark sync --dry-run`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tidemark.clock import Lsn
from tidemark.errors import InvalidValue
from tidemark.lake.controls import CURRENT
from tidemark.lake.lake import Lake
from tidemark.lake.paths import directory_or_command, local_path, require_plain
from tidemark.lake.requests import read_restart
from tidemark.lake.sync_records import KEEP_S
from tidemark.pipeline.apply.options import CYCLE_BYTES, CYCLE_S, ApplyOptions
from tidemark.postgres.capability import Choice, Mode, choose_mode
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.session import Session
from tidemark.postgres.setup import read_plan, script
from tidemark.postgres.unmirrored import read_unmirrored
from tidemark.receive.options import BUDGET_BYTES, WAL_LIMIT_BYTES, ReceiveOptions, WalPolicy
from tidemark.schema.selection import Pattern, Selection, choose
from tidemark.units import format_duration, format_size, parse_duration, parse_keep, parse_size

AUTO = "auto"
INTERVAL_S, SHORTEST_INTERVAL_S = 10.0, 5.0
SHORTEST_KEEP_S = 1.0
LOG = "_log"


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """The source, the lake, the selected tables, and all limits in bytes and seconds.

    `mode` is None for auto, `keep_s` None to keep the history forever. Without `mirror`, the plan derives the names of
    the mirror from that of the database. The log is stored in the directory of the lake unless `log` is given.
    """

    source: Dsn
    lake: Path
    mirror: MirrorNames | None = None
    selection: Selection = field(default_factory=Selection)
    log: Path | None = None
    mode: Mode | None = None
    endpos: Lsn | None = None
    once: bool = False
    folds: bool = True
    keep_s: float | None = KEEP_S
    interval_s: float = INTERVAL_S
    reconcile_every: int = 1
    budget_bytes: int = BUDGET_BYTES
    wal_limit_bytes: int = WAL_LIMIT_BYTES
    wal_policy: WalPolicy = WalPolicy.WARN
    accept_altered_publication: bool = False
    cycle_bytes: int = CYCLE_BYTES
    cycle_s: float = CYCLE_S
    copy_parallelism: int | None = None
    archive: str | None = None

    def __post_init__(self) -> None:
        if self.keep_s is not None and self.keep_s < SHORTEST_KEEP_S:
            raise InvalidValue(
                f"a retention of {format_duration(self.keep_s)} is too short",
                f"Use at least {format_duration(SHORTEST_KEEP_S)}, or `forever`.",
            )

    @classmethod
    def of(
        cls,
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
        keep: str | float | None = KEEP_S,
        interval: str | float = INTERVAL_S,
        reconcile_every: int = 1,
        budget: str | int = BUDGET_BYTES,
        wal_limit: str | int = WAL_LIMIT_BYTES,
        wal_policy: str = WalPolicy.WARN.value,
        accept_altered_publication: bool = False,
        cycle: str | int = CYCLE_BYTES,
        cycle_time: str | float = CYCLE_S,
        copy_parallelism: int | None = None,
        archive: str | Path | None = None,
    ) -> PipelineOptions:
        """Return the options with the names and values of `tidemark sync`: sizes and durations may be text."""
        return cls(
            source if isinstance(source, Dsn) else Dsn(source),
            local_path(lake),
            MirrorNames(name) if name is not None else None,
            Selection(tuple(map(Pattern, table)), tuple(map(Pattern, exclude))),
            local_path(log) if log is not None else None,
            _mode(mode),
            Lsn.parse(endpos) if isinstance(endpos, str) and endpos != CURRENT else _lsn(endpos),
            once or endpos == CURRENT,
            fold,
            parse_keep(keep) if keep is not None else None,
            parse_duration(interval),
            reconcile_every,
            parse_size(budget),
            parse_size(wal_limit),
            _wal_policy(wal_policy),
            accept_altered_publication,
            parse_size(cycle),
            parse_duration(cycle_time),
            copy_parallelism,
            directory_or_command(archive) if archive is not None else None,
        )

    @property
    def has_end(self) -> bool:
        """Whether the pipeline ends without being stopped."""
        return self.once or self.endpos is not None

    @property
    def names(self) -> MirrorNames:
        """The names of the mirror, which the options of a plan always have."""
        assert self.mirror is not None  # noqa: S101
        return self.mirror

    @property
    def log_folder(self) -> Path:
        """The directory of the log."""
        return self.log or self.lake / LOG

    @property
    def receive(self) -> ReceiveOptions:
        """The options of the receiver."""
        return ReceiveOptions(
            self.source,
            self.log_folder,
            self.names,
            endpos=self.endpos,
            budget_bytes=self.budget_bytes,
            wal_limit_bytes=self.wal_limit_bytes,
            wal_policy=self.wal_policy,
            accept_altered_publication=self.accept_altered_publication,
            archive=self.archive,
        )

    @property
    def apply(self) -> ApplyOptions:
        """The options of the writer."""
        return ApplyOptions(
            self.source,
            self.log_folder,
            self.lake,
            self.names,
            cycle_bytes=self.cycle_bytes,
            cycle_s=self.cycle_s,
        )


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """Options that were checked against the source and the lake. If `polled`, the pipeline begins with polls.

    `present` is the mode in which the lake was last written; None if it is empty.
    """

    options: PipelineOptions
    choice: Choice
    present: Mode | None

    @property
    def polled(self) -> bool:
        """Whether the pipeline begins with polls."""
        return Mode.POLL in (self.choice.mode, self.present)

    def describe(self) -> str:
        """The plan as text: mode, SQL at the source, tables with their parts and sizes. Changes nothing."""
        lake = self.options.lake
        lines = [f"-- Mode {self.choice.mode.value}: {self.choice.why}"]
        if not self.polled and read_restart(lake) is not None:
            lines.append(f"-- {lake} restarts: a new slot is created, and every table is copied again.")
        if self.choice.mode is Mode.POLL and self.present is Mode.LOGICAL:
            slot = self.options.names.slot
            lines.append(
                f"-- {lake} follows the stream: replication slot {slot} and the log with its commit times are removed, "
                "and every table is copied."
            )
        if self.polled and self.choice.mode is Mode.LOGICAL:
            lines.append(f"-- {lake} is polled once more, then follows the stream; only new tables are copied.")
        return "\n".join([*lines, *self._at_the_source()]) + "\n"

    def _at_the_source(self) -> Iterator[str]:
        """The SQL that is run at the source, and the tables."""
        options, polled = self.options, self.choice.mode is Mode.POLL
        with Session.open(options.source, "sync") as session:
            if polled:
                yield "-- Nothing is created at the source."
            else:
                yield script(read_plan(session, options.names, options.selection, None)).rstrip("\n")
                slot = options.names.slot
                yield f"-- Replication slot {slot} is created, and temporary slots while tables are copied."
            with session.transaction():
                yield from _tables(session, options.selection, polled=polled)


def plan_pipeline(options: PipelineOptions) -> PipelinePlan:
    """Check the options and select the mode. Connects to the source; changes nothing."""
    require_plain(options.lake)
    for path in (options.lake, *([options.log] if options.log is not None else [])):
        _require_writable(path)
    if options.mirror is None:
        with Session.open(options.source, "sync") as session:
            names = MirrorNames.of_database(session.row("select current_database()")[0])
        options = replace(options, mirror=names)
    present = mode_of(options.lake)
    plan = PipelinePlan(options, choice := _choice(options, present), present)
    if plan.polled and options.endpos is not None:
        reason = choice.why if choice.mode is Mode.POLL else f"{options.lake} was created by polling"
        raise InvalidValue(f"--endpos {options.endpos} needs mode logical: {reason}", "Use `--once`.")
    if plan.polled:
        require_interval(options.interval_s)
    return plan


def require_interval(interval_s: float) -> None:
    """Refuse an interval that is too short for polls."""
    if interval_s < SHORTEST_INTERVAL_S:
        raise InvalidValue(
            f"polling interval too short: {interval_s:g} s", f"Use `--interval {SHORTEST_INTERVAL_S:g}s` or more."
        )


def _tables(session: Session, selection: Selection, *, polled: bool) -> Iterator[str]:
    """A line for each selected object, and the size of all tables that are copied."""
    from tidemark.pipeline.copy.parts import parts_of
    from tidemark.pipeline.copy.reading import pages_of  # deferred: these import the decoders, which take a second
    from tidemark.pipeline.fold.layout import buckets_for

    tasks, whole = os.cpu_count() or 1, 0
    chosen = choose(read_catalog(session), selection)
    for table in chosen.tables:
        pages, page_bytes = pages_of(session, table.oid)
        size = pages * page_bytes
        parts = parts_of(table.oid, pages, page_bytes, tasks)
        copied = polled or table.identifies_rows
        how = "copied" if copied else "not copied: no replica identity"
        yield f"{table.qualified}  {format_size(size)}  {len(parts)} parts  {buckets_for(size)} buckets  {how}"
        whole += size if copied else 0
    for missing in read_unmirrored(session, selection, chosen):
        yield f"{missing.name}  {missing.kind}, not mirrored: {missing.reason}"
    yield f"{format_size(whole)} to copy"


def _choice(options: PipelineOptions, present: Mode | None) -> Choice:
    """The mode: as requested, as the lake has it, or as the source supports it. Only a request ends the stream."""
    if present is Mode.LOGICAL and options.mode is not Mode.POLL:
        return Choice(present, f"{options.lake} follows the stream")
    if options.mode is not None:
        return Choice(options.mode, "as requested by --mode")
    with Session.open(options.source, "sync") as session:
        return choose_mode(session, options.source, options.names, options.selection, strict=present is None)


def mode_of(lake: Path) -> Mode | None:
    """The mode in which a lake was last written; None if it is empty."""
    if not Lake.exists(lake):
        return None
    from tidemark.lake.registers import read_cycle, read_seen  # deferred: they import Delta

    opened = Lake.open(lake)
    if read_seen(lake) is not None:
        return Mode.POLL
    return Mode.LOGICAL if read_cycle(lake).applied_lsn > Lsn.ZERO or opened.log.exists() else None


def _require_writable(path: Path) -> None:
    present = next(part for part in (path, *path.parents) if part.exists())
    if not os.access(present, os.W_OK | os.X_OK):
        raise InvalidValue(
            f"cannot write to {present}: permission denied",
            f"Grant write access to {present}, or use another directory.",
        )


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
