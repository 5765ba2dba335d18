"""Checks of what a mirror creates, and of who would make it wait: pure functions from what was seen to lines."""

from __future__ import annotations

from collections.abc import Iterator

from psycopg import sql

from tidemark.doctor.check import Check, Seen, Status
from tidemark.doctor.tables import count
from tidemark.source.blockers import ending
from tidemark.source.publication import differences, mending
from tidemark.source.quoted import statement
from tidemark.source.slot import PLUGIN, Slot, SlotHealth

LONG_S = 1.0


def object_checks(seen: Seen) -> Iterator[Check]:
    """In the order in which a person would mend things."""
    yield from _publications(seen)
    yield from _slot(seen)
    yield from _blockers(seen)


def _publications(seen: Seen) -> Iterator[Check]:
    for want, found in seen.publications:
        wrong = differences(want, found)
        if wrong:
            yield Check(
                "publication",
                Status.FAIL,
                "; ".join(wrong),
                "\n".join(mend.as_string(None) + ";" for mend in mending(want, found)),
                "changes of the tables concerned are not sent",
            )
        elif want.tables:
            yield Check("publication", Status.PASS, f"{want.name} publishes {count(want.tables)}")


def _slot(seen: Seen) -> Iterator[Check]:
    slot = seen.slot
    if slot is None:
        yield Check("slot", Status.PASS, f"{seen.names.slot} is not there yet; the mirror creates it")
    elif reason := _unusable(slot, seen.facts.database):
        yield Check(
            "slot",
            Status.FAIL,
            f"{slot.name} is there and {reason}",
            "-- another --name, or drop that slot if nobody needs it",
            "the mirror cannot use it and cannot create its own under this name",
        )
    elif slot.health is SlotHealth.LOST or slot.invalidation_reason:
        yield Check(
            "slot",
            Status.FAIL,
            f"{slot.name} is invalidated ({slot.invalidation_reason or 'WAL it needs was removed'})",
            statement("select pg_drop_replication_slot({});", sql.Literal(slot.name)),
            "the changes since it was lost cannot be had any more: tidemark resync LAKE --all starts the mirror over",
        )
    elif slot.health is SlotHealth.UNRESERVED:
        yield Check(
            "slot",
            Status.FAIL,
            f"{slot.name} holds more WAL than max_slot_wal_keep_size and goes at the next checkpoint",
            "alter system set max_slot_wal_keep_size = -1; select pg_reload_conf(); -- and start the mirror",
            "the slot is invalidated, and the mirror must be started over (tidemark resync LAKE --all)",
        )
    else:
        held = f", holding {slot.retained_bytes / 2**20:.0f} MB of WAL" if slot.retained_bytes is not None else ""
        used = f"used by pid {slot.active_pid}" if slot.active_pid else "not in use"
        yield Check("slot", Status.PASS, f"{slot.name} is {used}{held}")


def _unusable(slot: Slot, database: str) -> str | None:
    if slot.plugin is None:
        return "is a physical slot"
    if slot.database != database:
        return f"belongs to database {slot.database!r}"
    if slot.plugin != PLUGIN:
        return f"uses the plugin {slot.plugin}, not {PLUGIN}"
    if slot.temporary:
        return "is temporary"
    return "decodes prepared transactions ahead of their commit" if slot.two_phase else None


def _blockers(seen: Seen) -> Iterator[Check]:
    if not seen.writers:
        yield Check("running transactions", Status.PASS, f"none that has been writing for more than {LONG_S:g} s")
        return
    yield Check(
        "running transactions",
        Status.WARN,
        f"writing for more than {LONG_S:g} s: " + "; ".join(map(str, seen.writers)),
        "\n".join(ending(writer) for writer in seen.writers),
        "a copy cannot start before they have ended; a prepared transaction never ends by itself",
    )
