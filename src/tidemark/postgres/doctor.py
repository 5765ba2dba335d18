"""The requirements of a source as a report. Modifies nothing on the source and starts no JVM."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from tidemark.postgres.blockers import lasting_writers
from tidemark.postgres.capability import evaluate
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.identity import Identity
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.requirements import Choice, Mode, Requirement, decide, first_unmet, read_state
from tidemark.postgres.requirements.objects import LONG_S
from tidemark.postgres.requirements.reading import version_of
from tidemark.postgres.session import Session
from tidemark.postgres.unmirrored import read_unmirrored
from tidemark.schema.selection import Selection


class Status(Enum):
    """The result of a check: `warn` states a cost; `fail` is one of the reasons why no mode works."""

    PASS = "pass"  # noqa: S105
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """A requirement and its result."""

    requirement: Requirement
    status: Status

    @property
    def found(self) -> str:
        """What was found, in one line."""
        found = " ".join(self.requirement.found.split())
        return f"{found}; `tidemark sync` corrects this" if self._pending else found

    @property
    def _pending(self) -> bool:
        return self.status is Status.PASS and not self.requirement.holds

    @property
    def fix(self) -> str:
        """The SQL that fixes it, one statement per line; a remedy that is not SQL is a comment."""
        comment = [f"-- {self.requirement.remedy}"] if self.requirement.remedy else []
        return "\n".join([*map(str, self.requirement.fixes), *comment])

    def as_json(self) -> dict[str, Any]:
        """Return the check as plain values."""
        requirement, passed = self.requirement, self.status is Status.PASS
        return {
            "name": requirement.name,
            "modes": sorted(mode.value for mode in requirement.modes),
            "status": self.status.value,
            "found": self.found,
            "fix": "" if passed else self.fix,
            "consequence": "" if passed else requirement.consequence,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All checks, and the mode that `tidemark sync` will use for a new lake; None if neither mode works."""

    source: str
    identity: Identity | None
    mode: Mode | None
    reason: str
    checks: tuple[Check, ...]

    @property
    def status(self) -> Status:
        """The worst result."""
        found = {check.status for check in self.checks}
        return next((status for status in (Status.FAIL, Status.WARN) if status in found), Status.PASS)

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values, with the same texts as on a terminal."""
        return {
            "source": self.source,
            "identity": None if self.identity is None else str(self.identity),
            "mode": None if self.mode is None else self.mode.value,
            "reason": self.reason,
            "status": self.status.value,
            "checks": [check.as_json() for check in self.checks],
        }


def examine(dsn: Dsn, names: MirrorNames | None = None, selection: Selection | None = None) -> Report:
    """Check every requirement, for a mirror of this name or, by default, one named after the database."""
    with Session.open(dsn, "doctor") as session:
        version = version_of(session)
        if first_unmet([version], Mode.POLL) is not None:
            return _report(dsn, None, [version])
        selection = selection or Selection()
        state = read_state(session, names, selection)
        with session.transaction():
            unmirrored = read_unmirrored(session, selection, state.chosen)
        state = replace(state, writers=lasting_writers(session, LONG_S), unmirrored=unmirrored)
        evaluation = evaluate(session, dsn, state)
    return _report(dsn, evaluation.identity, evaluation.requirements)


def _report(dsn: Dsn, identity: Identity | None, requirements: Iterable[Requirement]) -> Report:
    listed = tuple(requirements)
    choice = decide(listed)
    checks = tuple(Check(each, _status(each, choice)) for each in listed)
    against = first_unmet(listed, Mode.POLL)
    reason = choice.why if choice is not None else against.line if against is not None else ""
    return Report(str(dsn), identity, choice.mode if choice is not None else None, reason, checks)


def _status(requirement: Requirement, choice: Choice | None) -> Status:
    if requirement.met:
        return Status.PASS
    return Status.FAIL if choice is None and requirement.modes else Status.WARN
