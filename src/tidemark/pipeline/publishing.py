"""What a pipeline does at the source at intervals: it publishes selected tables, and reads the slot.

Tables are published before the first copy, and whenever a selected table appears.

Statements that the role may run are executed. The others must be run by the owner: without them a mirror does not
start, but a running one continues with the tables it has, and logs what is missing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from tidemark.errors import NotPermitted, PublicationDiffers, Retry, SourceError, policy_of
from tidemark.lake.pipeline_state import MISSING, SlotUse
from tidemark.lake.sync_records import record_unmirrored
from tidemark.logs import fields
from tidemark.pipeline.plan import PipelineOptions
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.session import Session
from tidemark.postgres.setup import SetupPlan, read_plan, run_fixes, script
from tidemark.postgres.slot import read_slot
from tidemark.postgres.unmirrored import read_unmirrored
from tidemark.schema.selection import Selection, choose

INTERVAL_S = 10.0
RECORD_S = 60.0
_LOGGER = logging.getLogger("tidemark.pipeline")


class Publishing(Protocol):
    """What is published: the selected tables of a source, by the publications of a mirror."""

    @property
    def source(self) -> Dsn:
        """The source."""

    @property
    def names(self) -> MirrorNames:
        """The names of the publications."""

    @property
    def selection(self) -> Selection:
        """The selected tables."""


def publish(options: PipelineOptions, *, begun: bool) -> None:
    """Run the statements that the role may run. A mirror that has not begun is refused if others are required."""
    if not begun:
        require_published(options, strict=True)
    elif (left := _run_permitted(options)).steps:
        _warn_missing(script(left))


def require_published(options: Publishing, *, strict: bool = False) -> None:
    """Run the statements that the role may run, and raise an error if logical decoding requires others.

    With `strict`, a pattern that matches no table is an error too.
    """
    left = _run_permitted(options, strict=strict)
    if left.blocking:
        first = left.blocking[0]
        if first.kind not in (NotPermitted, PublicationDiffers):
            raise first.error()
        raise NotPermitted(
            f"the source does not meet the requirements of logical decoding:\n{script(left)}",
            "Have the owner of the database run the SQL above, or poll the source with `--mode poll`.",
        )
    if left.steps:
        _warn_missing(script(left))


class Publisher:
    """Publishes at regular intervals while a pipeline runs."""

    def __init__(self, options: PipelineOptions) -> None:
        self._options = options
        self._next = time.monotonic() + INTERVAL_S
        self._missing = ""

    def step(self) -> None:
        """Publish if it is time. If the source cannot be reached, it is retried later."""
        if time.monotonic() < self._next:
            return
        try:
            left = _run_permitted(self._options)
        except SourceError as error:
            if policy_of(error).retry is Retry.NEVER and not isinstance(error, NotPermitted):
                raise
        else:
            missing = script(left) if left.steps else ""
            if missing != self._missing and missing:
                _warn_missing(missing)
            self._missing = missing
        self._next = time.monotonic() + INTERVAL_S


class UnmirroredRecord:
    """Records in the lake, once a minute, which selected objects are not mirrored."""

    def __init__(self, options: PipelineOptions) -> None:
        self._options = options
        self._next = time.monotonic()

    def step(self) -> None:
        """Read and record them, if it is time. If the source cannot be read, it is retried later."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + RECORD_S
        selection = self._options.selection
        try:
            with Session.open(self._options.source, "sync") as session, session.transaction():
                chosen = choose(read_catalog(session), selection, strict=False)
                found = read_unmirrored(session, selection, chosen)
        except SourceError:
            return
        record_unmirrored(self._options.lake, found)


class SlotWatch:
    """Reads the replication slot at regular intervals, and passes on how it is used."""

    def __init__(self, options: PipelineOptions, use: Callable[[SlotUse], None]) -> None:
        self._options, self._use = options, use
        self._next = time.monotonic()
        self._failure = ""

    def step(self) -> None:
        """Read the slot, if it is time. If the source cannot be read, that is logged once, and retried later.

        It uses a new connection each time: those that are open do not show that a certificate has expired.
        """
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + INTERVAL_S
        try:
            with Session.open(self._options.source, "sync") as session:
                slot = read_slot(session, self._options.names.slot)
        except SourceError as error:
            failure = " ".join(error.message.split())
            if failure != self._failure:
                _LOGGER.warning("cannot read the replication slot: %s", failure)
            self._failure = failure
            return
        self._failure = ""
        if slot is None:
            self._use(SlotUse(self._options.names.slot, False, MISSING, None, None))
        else:
            health, is_active = slot.health, slot.active_pid is not None
            status = health.value if health is not None else None
            self._use(SlotUse(slot.name, is_active, status, slot.retained_bytes, slot.invalidation_reason))


def _run_permitted(options: Publishing, *, strict: bool = False) -> SetupPlan:
    """Run the statements that the role may run; return the plan of those that are left.

    Unless it is `strict`, a selected table may have been dropped meanwhile.
    """
    with Session.open(options.source, "setup") as session:
        plan = read_plan(session, options.names, options.selection, None, strict=strict)
        done = run_fixes(session, plan.steps)
        for step in done:
            _LOGGER.info("executed at the source: %s", step.statement, extra=fields(statement=step.statement))
        return read_plan(session, options.names, options.selection, None, strict=strict) if done else plan


def _warn_missing(statements: str) -> None:
    _LOGGER.warning(
        "some tables cannot be mirrored until the owner of the database has run:\n%s",
        statements, extra=fields(statements=statements),
    )  # fmt: skip
