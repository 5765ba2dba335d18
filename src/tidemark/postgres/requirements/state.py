"""What the requirements are evaluated on, as one value: the server, the mirror's role, the tables and our objects."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.errors import Blocker
from tidemark.postgres.facts import Facts, Role
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.publication import Published, Wanted
from tidemark.postgres.selection import Chosen
from tidemark.postgres.slot import PLUGIN, Slot
from tidemark.postgres.unmirrored import Unmirrored

_NO_TABLES = Chosen((), ())


@dataclass(frozen=True, slots=True)
class SourceState:
    """A source as one session found it.

    `role` is the role that the mirror connects as, None if it does not exist yet; `chosen` has the tables with that
    role's privileges, `unmirrored` what is selected and not mirrored. `facts` are those of the connected role, which
    decide what it may run itself. `writers` are None where they were not read.
    """

    facts: Facts
    names: MirrorNames
    role_name: str
    role: Role | None
    slot: Slot | None
    chosen: Chosen = _NO_TABLES
    unmirrored: tuple[Unmirrored, ...] = ()
    publications: tuple[tuple[Wanted, Published | None], ...] = ()
    public_connects: bool = True
    database_owned: bool = False
    writers: tuple[Blocker, ...] | None = None

    @property
    def own_slot(self) -> Slot | None:
        """The mirror's slot, unless another kind of slot has its name."""
        return self.slot if self.slot is not None and why_not_ours(self.slot, self.facts.database) is None else None


def why_not_ours(slot: Slot, database: str) -> str | None:
    """In which way a slot differs from one that Tidemark creates."""
    if slot.plugin is None:
        return "is a physical slot"
    if slot.database != database:
        return f"belongs to database {slot.database!r}"
    if slot.plugin != PLUGIN:
        return f"uses the output plugin {slot.plugin} instead of {PLUGIN}"
    if slot.temporary:
        return "is temporary"
    return "decodes prepared transactions (two_phase)" if slot.two_phase else None
