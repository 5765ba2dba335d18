"""A requirement: a property of the source, the modes that need it, what was found, and what fixes it.

This module performs no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from tidemark.errors import SourceError, UnsupportedServer
from tidemark.postgres.publication import PRINT_SETUP

# The consequence of missing logical decoding.
POLLS = "`tidemark sync` polls, which does not record the changes between two polls"
WAL_LEVEL, PRIVILEGE = "wal_level", "replication privilege"


class Mode(Enum):
    """How changes are read from a source."""

    LOGICAL = "logical"
    POLL = "poll"


LOGICAL = frozenset({Mode.LOGICAL})
POLL = frozenset({Mode.POLL})
BOTH = LOGICAL | POLL
NEITHER: frozenset[Mode] = frozenset()


@dataclass(frozen=True, slots=True)
class Fix:
    """One SQL statement, without its semicolon. If `restart` is true, it takes effect when the server is restarted."""

    statement: str
    purpose: str
    allowed: bool
    restart: bool = False

    @property
    def automatic(self) -> bool:
        """Whether `sync` and `setup` run it as the connected role."""
        return self.allowed and not self.restart

    def __str__(self) -> str:
        return f"{self.statement};{' -- then restart the server' if self.restart else ''}"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One property. Without it the `modes` do not work; a requirement of no mode concerns single tables or is advice.

    `fixes` are SQL; `remedy` is a sentence for what SQL cannot fix. `setup` runs all fixes except those of `advice`.
    """

    name: str
    modes: frozenset[Mode]
    holds: bool
    found: str
    fixes: tuple[Fix, ...] = ()
    remedy: str = ""
    consequence: str = ""
    advice: bool = False
    kind: type[SourceError] = UnsupportedServer

    @property
    def met(self) -> bool:
        """Whether it holds, or will when `sync` has run the fixes, all of which the connected role may run."""
        automatic = bool(self.fixes) and not self.remedy and all(fix.automatic for fix in self.fixes)
        return self.holds or (automatic and not self.advice)

    @property
    def line(self) -> str:
        """What was found and the command that fixes it, in one line."""
        if not self.fixes:
            return " ".join(self.found.split())
        short = len(self.fixes) == 1 and len(self.fixes[0].statement) <= 80
        command = f"run `{self.fixes[0].statement}`" if short else "`tidemark setup SOURCE --print` prints the SQL"
        return " ".join(f"{self.found} ({command})".split())

    def error(self, hint: str | None = None) -> SourceError:
        """Return the error to raise if the requirement is not met."""
        return self.kind(self.found, self._hint() if hint is None else hint)

    def _hint(self) -> str:
        if len(self.fixes) != 1:
            return self.remedy or PRINT_SETUP
        fix = self.fixes[0]
        restart = " and restart the server" if fix.restart else ""
        return f"Run `{fix.statement}`{restart}. {self.remedy}".rstrip()


@dataclass(frozen=True, slots=True)
class Choice:
    """A mode, and the reason in one line."""

    mode: Mode
    why: str


def first_unmet(requirements: Iterable[Requirement], mode: Mode) -> Requirement | None:
    """Return the first requirement of a mode that is not met, or None."""
    return next((each for each in requirements if mode in each.modes and not each.met), None)


def require(requirements: Iterable[Requirement], mode: Mode) -> None:
    """Raise the error of the first requirement of a mode that is not met."""
    unmet = first_unmet(requirements, mode)
    if unmet is not None:
        raise unmet.error()


def decide(requirements: Iterable[Requirement]) -> Choice | None:
    """Return logical decoding if its requirements are met, else polling if its requirements are, else None."""
    listed = tuple(requirements)
    against = first_unmet(listed, Mode.LOGICAL)
    if against is None:
        found = [each.found for each in listed if each.name in (WAL_LEVEL, PRIVILEGE)]
        return Choice(Mode.LOGICAL, ", and ".join(found))
    return Choice(Mode.POLL, against.line) if first_unmet(listed, Mode.POLL) is None else None


def size(megabytes: float) -> str:
    """Format a size for display."""
    return f"{megabytes:.0f} MB" if megabytes < 10240 else f"{megabytes / 1024:.0f} GB"
