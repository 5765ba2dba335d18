"""`tidemark status TARGET`: the clones at a target, as lines and as JSON."""

from __future__ import annotations

from typing import Any

from tidemark.postgres.requirements import Mode
from tidemark.target.state import ClonePhase, CloneSummary
from tidemark.units import format_size

_PHASES = {
    ClonePhase.DEFINITIONS: "definitions are created",
    ClonePhase.COPY: "tables are copied",
    ClonePhase.INDEXES: "keys and indexes are created",
    ClonePhase.FOLLOW: "changes are applied",
    ClonePhase.COMPLETION: "foreign keys and triggers are created",
    ClonePhase.COMPLETE: "the clone no longer follows its source",
}


def clone_lines(clone: CloneSummary) -> list[str]:
    """Return a clone as lines."""
    copied = [table for table in clone.tables if table[1]]
    lag, rows = lag_bytes(clone), sum(table[2] for table in clone.tables)
    values = [
        ("Clone", f"{clone.name} of database {clone.database}"),
        ("Mode", "logical decoding" if clone.mode is Mode.LOGICAL else "polling: each table is as of the last poll"),
        ("Phase", f"{clone.phase.value}: {_PHASES[clone.phase]}"),
        ("Process", "running" if clone.is_written else "not running"),
        *([("Received LSN", str(clone.received_lsn))] if clone.received_lsn is not None else []),
        ("Applied LSN", f"{clone.applied_lsn or 'none'}" + (f", {format_size(lag)} behind" if lag else "")),
        ("Changed at", clone.changed_at.isoformat(" ", "seconds")),
        ("Tables", f"{len(copied)} of {len(clone.tables)} copied, {rows:,} rows"),
    ]
    lines = [f"{name + ':':<14} {value}" for name, value in values]
    left = [name for name, is_copied, _ in clone.tables if not is_copied]
    return [*lines, *([f"{'Not copied:':<14} {', '.join(left)}"] if left else [])]


def clone_json(clone: CloneSummary) -> dict[str, Any]:
    """Return a clone as plain values."""
    return {
        "clone": clone.name,
        "database": clone.database,
        "mode": clone.mode.value,
        "phase": clone.phase.value,
        "running": clone.is_written,
        "received_lsn": str(clone.received_lsn) if clone.received_lsn is not None else None,
        "applied_lsn": str(clone.applied_lsn) if clone.applied_lsn is not None else None,
        "lag_bytes": lag_bytes(clone),
        "changed_at": clone.changed_at.isoformat(),
        "tables": [{"name": name, "copied": copied, "rows": rows} for name, copied, rows in clone.tables],
    }


def lag_bytes(clone: CloneSummary) -> int | None:
    """Return how much is received and not applied; None if that is not known."""
    if clone.received_lsn is None or clone.applied_lsn is None:
        return None
    return max(0, clone.received_lsn - clone.applied_lsn)
