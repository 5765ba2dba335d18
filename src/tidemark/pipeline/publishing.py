"""Having the source publish what is to be mirrored: before the first copy, and whenever a table appears that is meant.

What our role may do is done. What it may not do is for the owner: without it nothing begins, but a mirror that runs
goes on with what it has, and says what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidemark.errors import NotPermitted, PublicationDiffers, Retry, SourceError, policy_of
from tidemark.lake.unmirrored import write_unmirrored
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.selection import Selection, choose
from tidemark.postgres.session import Session
from tidemark.postgres.setup import Plan, read_plan, run_fixes, script
from tidemark.postgres.unmirrored import read_unmirrored

INTERVAL_S = 10.0
RECORD_S = 60.0
_MISSING = "some tables cannot be mirrored until the owner of the database has run:"


@dataclass(frozen=True, slots=True)
class Meant:
    """Which tables of which source, for which mirror."""

    source: Dsn
    names: MirrorNames
    selection: Selection


def publish(meant: Meant, tell: Callable[[str], None], *, begun: bool) -> None:
    """Run what our role may run. What logical decoding still requires is refused, unless the mirror has begun."""
    if not begun:
        require_published(meant, tell, strict=True)
    elif (left := _carried_out(meant, tell)).steps:
        tell(f"{_MISSING}\n{script(left)}")


def require_published(meant: Meant, tell: Callable[[str], None], *, strict: bool = False) -> None:
    """Run what our role may run, and refuse if logical decoding requires more: strictly, also a choice of no table."""
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
    """The same, again and again while a mirror runs."""

    def __init__(self, meant: Meant, tell: Callable[[str], None]) -> None:
        self._meant, self._tell = meant, tell
        self._next = time.monotonic() + INTERVAL_S
        self._said = ""

    def step(self) -> None:
        """Look, if it is time. A source that cannot be reached is looked at later."""
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
    """Records in the lake, once a minute, what is selected and not mirrored."""

    def __init__(self, meant: Meant, lake: Path) -> None:
        self._meant, self._lake = meant, lake
        self._next = time.monotonic()

    def step(self) -> None:
        """Read and record it, if it is time. A source that cannot be reached is read later."""
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
        write_unmirrored(self._lake, found)


def _carried_out(meant: Meant, tell: Callable[[str], None], *, strict: bool = False) -> Plan:
    """Do what is allowed; what is left. A table that was chosen may be gone by now, unless it is the first time."""
    with Session.open(meant.source, "setup") as session:
        plan = read_plan(session, meant.names, meant.selection, None, strict=strict)
        done = run_fixes(session, plan.steps)
        for step in done:
            tell(f"executed at the source: {step.statement}")
        return read_plan(session, meant.names, meant.selection, None, strict=strict) if done else plan
