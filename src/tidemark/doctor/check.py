"""What a check is: one line about one thing, made from what was seen of a source."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tidemark.errors import Blocker
from tidemark.source.facts import Facts
from tidemark.source.names import MirrorNames
from tidemark.source.publication import Published, Wanted
from tidemark.source.selection import Chosen
from tidemark.source.slot import Slot


class Status(Enum):
    """How a check came out. `warn` leaves the mirror exact and says what it costs; `fail` means it cannot be had."""

    PASS = "pass"  # noqa: S105
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One line: what was looked at, what was found, what mends it, and what happens if it is left."""

    name: str
    status: Status
    finding: str
    mend: str = ""
    otherwise: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything that the checks look at, read in one transaction."""

    facts: Facts
    names: MirrorNames
    chosen: Chosen
    publications: tuple[tuple[Wanted, Published | None], ...]
    slot: Slot | None
    writers: tuple[Blocker, ...]
