"""Having the source publish what is to be mirrored: before the first copy, and whenever a table appears that is meant.

What our role may do is done. What it may not do is for the owner: without it nothing begins, but a mirror that runs
goes on with what it has, and says what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tidemark.errors import NotPermitted, Retry, SourceError, policy_of
from tidemark.setup import Plan, carry_out, read_plan, script
from tidemark.source.dsn import Dsn
from tidemark.source.names import MirrorNames
from tidemark.source.selection import Selection
from tidemark.source.session import Session

INTERVAL_S = 10.0
_MISSING = "some tables are not mirrored until their owner runs:"


@dataclass(frozen=True, slots=True)
class Meant:
    """Which tables of which source, for which mirror."""

    source: Dsn
    names: MirrorNames
    selection: Selection


def publish(meant: Meant, tell: Callable[[str], None], *, begun: bool) -> None:
    """Have everything in place. What is missing is refused, or only said where the mirror has begun already."""
    if not begun:
        require_published(meant, tell, strict=True)
    elif (left := _carried_out(meant, tell)).steps:
        tell(f"{_MISSING}\n{script(left)}")


def require_published(meant: Meant, tell: Callable[[str], None], *, strict: bool = False) -> None:
    """Have everything in place, and refuse if something is missing: strictly, also a choice of no table."""
    left = _carried_out(meant, tell, strict=strict)
    if left.steps:
        raise NotPermitted(
            f"the source must be prepared first, and the role has no privilege to do so:\n{script(left)}",
            "Run the SQL above as the owner; `tidemark setup SOURCE --print` prints it.",
        )


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


def _carried_out(meant: Meant, tell: Callable[[str], None], *, strict: bool = False) -> Plan:
    """Do what is allowed; what is left. A table that was chosen may be gone by now, unless it is the first time."""
    with Session.open(meant.source, "setup") as session:
        plan = read_plan(session, meant.names, meant.selection, None, strict=strict)
        done = carry_out(session, plan.steps)
        for step in done:
            tell(f"ran at the source: {step.statement}")
        return read_plan(session, meant.names, meant.selection, None, strict=strict) if done else plan
