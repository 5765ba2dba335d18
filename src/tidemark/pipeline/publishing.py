"""Publishes the selected tables at the source: before the first copy, and whenever a selected table appears.

Statements that the role may run are executed. The others must be run by the owner: without them a mirror does not
start, but a running one continues with the tables it has, and reports what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidemark.errors import NotPermitted, PublicationDiffers, Retry, SourceError, policy_of
from tidemark.lake.unmirrored import record_unmirrored
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.session import Session
from tidemark.postgres.setup import SetupPlan, read_plan, run_fixes, script
from tidemark.postgres.unmirrored import read_unmirrored
from tidemark.schema.selection import Selection, choose

INTERVAL_S = 10.0
RECORD_S = 60.0
_MISSING = "some tables cannot be mirrored until the owner of the database has run:"


@dataclass(frozen=True, slots=True)
class Meant:
    """The source, the selected tables, and the names of the mirror."""

    source: Dsn
    names: MirrorNames
    selection: Selection


def publish(meant: Meant, tell: Callable[[str], None], *, begun: bool) -> None:
    """Run the statements that the role may run. A mirror that has not begun is refused if others are required."""
    if not begun:
        require_published(meant, tell, strict=True)
    elif (left := _carried_out(meant, tell)).steps:
        tell(f"{_MISSING}\n{script(left)}")


def require_published(meant: Meant, tell: Callable[[str], None], *, strict: bool = False) -> None:
    """Run the statements that the role may run, and raise an error if logical decoding requires others.

    With `strict`, a pattern that matches no table is an error too.
    """
    left = _carried_out(meant, tell, strict=strict)
    if left.blocking:
        first = left.blocking[0]
        if first.kind not in (NotPermitted, PublicationDiffers):
            raise first.error()
        raise NotPermitted(
            f"the source does not meet the requirements of logical decoding:\n{script(left)}",
            "Have the owner of the database run the SQL above, or poll the source with `tidemark sync --mode poll`.",
        )
    if left.steps:
        tell(f"{_MISSING}\n{script(left)}")


class Publishing:
    """Publishes at regular intervals while a mirror runs."""

    def __init__(self, meant: Meant, tell: Callable[[str], None]) -> None:
        self._meant, self._tell = meant, tell
        self._next = time.monotonic() + INTERVAL_S
        self._said = ""

    def step(self) -> None:
        """Publish if it is time. If the source cannot be reached, it is retried later."""
        if time.monotonic() < self._next:
            return
        try:
            left = _carried_out(self._meant, self._tell)
        except SourceError as error:
            if policy_of(error).retry is Retry.NEVER and not isinstance(error, NotPermitted):
                raise
        else:
            missing = script(left) if left.steps else ""
            if missing != self._said and missing:
                self._tell(f"{_MISSING}\n{missing}")
            self._said = missing
        self._next = time.monotonic() + INTERVAL_S


class UnmirroredRecord:
    """Records in the lake, once a minute, which selected objects are not mirrored."""

    def __init__(self, meant: Meant, lake: Path) -> None:
        self._meant, self._lake = meant, lake
        self._next = time.monotonic()

    def step(self) -> None:
        """Read and record them, if it is time. If the source cannot be read, it is retried later."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + RECORD_S
        selection = self._meant.selection
        try:
            with Session.open(self._meant.source, "sync") as session, session.transaction():
                chosen = choose(read_catalog(session), selection, strict=False)
                found = read_unmirrored(session, selection, chosen)
        except SourceError:
            return
        record_unmirrored(self._lake, found)


def _carried_out(meant: Meant, tell: Callable[[str], None], *, strict: bool = False) -> SetupPlan:
    """Run the statements that the role may run; return the plan of those that are left.

    Unless it is `strict`, a selected table may have been dropped meanwhile.
    """
    with Session.open(meant.source, "setup") as session:
        plan = read_plan(session, meant.names, meant.selection, None, strict=strict)
        done = run_fixes(session, plan.steps)
        for step in done:
            tell(f"executed at the source: {step.statement}")
        return read_plan(session, meant.names, meant.selection, None, strict=strict) if done else plan
