"""The options of the applier of the stream."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidemark.errors import InvalidValue
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames

CYCLE_BYTES, CYCLE_S = 64 << 20, 10.0


@dataclass(frozen=True, slots=True)
class ApplyOptions:
    """The log, the lake, and all limits in seconds and bytes.

    A few large cycles are faster than many small ones, because each cycle costs a Spark job and one commit per table,
    however small it is. But changes become visible only when their cycle ends, so cycles become smaller if they take
    longer than `cycle_s`; a cycle has at least one whole transaction. A slice is the part of a cycle that one task
    reads.
    """

    source: Dsn
    log: Path
    lake: Path
    names: MirrorNames
    cycle_bytes: int = CYCLE_BYTES
    cycle_s: float = CYCLE_S
    slice_bytes: int = 16 << 20
    catalog_interval_s: float = 1.0
    idle_interval_s: float = 2.0

    def __post_init__(self) -> None:
        for name in ("cycle_bytes", "cycle_s", "slice_bytes", "catalog_interval_s", "idle_interval_s"):
            if getattr(self, name) <= 0:
                raise InvalidValue(f"invalid {name}: {getattr(self, name)}", "Use a value greater than 0.")
        for name in ("log", "lake"):
            if not getattr(self, name).is_absolute():
                raise InvalidValue(f"{getattr(self, name)} is not an absolute path", "Use a path that starts with /.")
