"""Requirements on a mirror's publications and slot, and on the transactions that its copies wait for."""

from __future__ import annotations

from collections.abc import Iterator

from psycopg import sql

from tidemark.errors import PublicationDiffers, SlotInvalidated, SlotRecreated
from tidemark.postgres.blockers import ending
from tidemark.postgres.publication import Published, WantedPublication, differences, repair_statements
from tidemark.postgres.quoted import statement
from tidemark.postgres.requirements.requirement import BOTH, LOGICAL, NEITHER, POLLS, Fix, Requirement, size
from tidemark.postgres.requirements.state import SourceState, why_not_ours
from tidemark.postgres.requirements.tables import counted
from tidemark.postgres.slot import Slot, SlotHealth

LONG_S = 1.0


def object_requirements(state: SourceState) -> Iterator[Requirement]:
    """Yield the requirements in the order in which a user would fix them."""
    yield from _publications(state)
    yield slot_requirement(state.slot, state.names.slot, state.facts.database)
    if state.writers is not None:
        yield _running_transactions(state)


def _publications(state: SourceState) -> Iterator[Requirement]:
    if not state.chosen.tables:
        exists = any(found is not None for _, found in state.publications)
        missing = "" if exists else f"publication {state.names.publication} does not exist, and "
        yield Requirement(
            "publication",
            LOGICAL,
            holds=False,
            found=f"{missing}there is no table to publish",
            remedy="Create a table.",
            consequence="`tidemark sync` polls until there is a table",
            kind=PublicationDiffers,
        )
    for want, found in state.publications:
        wrong = differences(want, found)
        if wrong:
            yield _published_otherwise(state, want, found, "; ".join(wrong))
        elif want.tables:
            publishes = f"publication {want.name} publishes {counted(want.tables)}"
            yield Requirement("publication", LOGICAL, holds=True, found=publishes)


def _published_otherwise(
    state: SourceState, want: WantedPublication, found: Published | None, wrong: str
) -> Requirement:
    may_create = state.facts.role.creates_in_database
    allowed = (may_create if found is None else found.owned) and all(table.owned for table in want.tables)
    whole = "update" in want.operations
    purpose = "to stream changes" if whole else "to stream inserts into tables without a replica identity"
    return Requirement(
        "publication",
        LOGICAL,
        holds=False,
        found=wrong,
        fixes=tuple(Fix(each.as_string(None), purpose, allowed) for each in repair_statements(want, found)),
        consequence=f"changes of these tables are not streamed, and {POLLS}",
        kind=PublicationDiffers,
    )


def slot_requirement(slot: Slot | None, name: str, database: str) -> Requirement:
    """Require that the slot is absent, or valid and Tidemark's. A mirror with an invalidated slot does not poll."""
    if slot is None:
        return Requirement("slot", LOGICAL, holds=True, found=f"slot {name} does not exist yet; the mirror creates it")
    if (reason := why_not_ours(slot, database)) is not None:
        return Requirement(
            "slot",
            LOGICAL,
            holds=False,
            found=f"slot {name} was not created by Tidemark: it {reason}",
            remedy="Choose another name with --name, or drop the slot if it is not used.",
            consequence=f"the mirror cannot create its slot under this name, and {POLLS}",
            kind=SlotRecreated,
        )
    if slot.health is SlotHealth.LOST or slot.invalidation_reason:
        cause = slot.invalidation_reason or "WAL that it needs was removed"
        return Requirement(
            "slot",
            BOTH,
            holds=False,
            found=f"slot {name} was invalidated by the server ({cause})",
            remedy="Run `tidemark resync LAKE --all`, which copies all tables again; if the lake of this slot is gone, "
            f"drop it: {statement('select pg_drop_replication_slot({});', sql.Literal(name))}",
            consequence="changes since then cannot be streamed; all tables of the mirror must be copied again",
            kind=SlotInvalidated,
        )
    retained = f" and retains {size(slot.retained_bytes / 2**20)} of WAL" if slot.retained_bytes is not None else ""
    used = f"is in use by pid {slot.active_pid}" if slot.active_pid else "is not in use"
    if slot.health is SlotHealth.UNRESERVED:
        return Requirement(
            "slot",
            NEITHER,
            holds=False,
            found=f"slot {name} {used}{retained}, which is more than max_slot_wal_keep_size",
            remedy="Start the mirror, or set max_slot_wal_keep_size to -1.",
            consequence="the next checkpoint invalidates the slot, and all tables of the mirror must be copied again "
            "(`tidemark resync LAKE --all`)",
            advice=True,
        )
    return Requirement("slot", LOGICAL, holds=True, found=f"slot {name} {used}{retained}")


def _running_transactions(state: SourceState) -> Requirement:
    name, writers = "running transactions", state.writers
    if not writers:
        found = f"none that has been writing for more than {LONG_S:g} s"
        return Requirement(name, NEITHER, holds=True, found=found)
    return Requirement(
        name,
        NEITHER,
        holds=False,
        found=f"writing for more than {LONG_S:g} s: " + "; ".join(map(str, writers)),
        fixes=tuple(Fix(ending(writer).partition(";")[0], "to end it", allowed=False) for writer in writers),
        consequence="the slot and the copies wait until these transactions end; "
        "a prepared transaction ends only with COMMIT PREPARED or ROLLBACK PREPARED",
        advice=True,
    )
