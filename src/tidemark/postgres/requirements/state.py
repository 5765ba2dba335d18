"""The input of the requirements as one value: the server, the mirror's role, the tables and Tidemark's objects."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.errors import Blocker
from tidemark.postgres.facts import Role, ServerFacts
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.publication import Published, WantedPublication
from tidemark.postgres.slot import PLUGIN, Slot
from tidemark.postgres.unmirrored import Unmirrored
from tidemark.schema.selection import SelectedTables

_NO_TABLES = SelectedTables((), ())


@dataclass(frozen=True, slots=True)
class SourceState:
    """The state of a source as read in one session.

    `role` is the role that the mirror connects as, None if it does not exist yet. `chosen` contains the tables with
    that role's privileges, `unmirrored` the relations that are selected and not mirrored. `facts` are those of the
    connected role, which determine what it may run itself. Only doctor reads `writers` and `unmirrored`; otherwise
    they are None and empty.
    """

    facts: ServerFacts
    names: MirrorNames
    role_name: str
    role: Role | None
    slot: Slot | None
    chosen: SelectedTables = _NO_TABLES
    unmirrored: tuple[Unmirrored, ...] = ()
    publications: tuple[tuple[WantedPublication, Published | None], ...] = ()
    public_connects: bool = True
    database_owned: bool = False
    writers: tuple[Blocker, ...] | None = None

    @property
    def own_slot(self) -> Slot | None:
        """The mirror's slot, unless the slot of that name was not created by Tidemark."""
        return self.slot if self.slot is not None and why_not_ours(self.slot, self.facts.database) is None else None


def why_not_ours(slot: Slot, database: str) -> str | None:
    """Return how a slot differs from those that Tidemark creates, or None."""
    if slot.plugin is None:
        return "is a physical slot"
    if slot.database != database:
        return f"belongs to database {slot.database!r}"
    if slot.plugin != PLUGIN:
        return f"uses the output plugin {slot.plugin} instead of {PLUGIN}"
    if slot.temporary:
        return "is temporary"
    return "decodes prepared transactions (two_phase)" if slot.two_phase else None
