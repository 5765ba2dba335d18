"""A clone whose tables are there already: it is recorded at the target, and ready to follow its source."""

from __future__ import annotations

from collections.abc import Iterable

from harness.database import OWNER, Database
from tidemark.clock import Boundary, Lsn
from tidemark.postgres.identity import Identity
from tidemark.schema.fingerprint import Fingerprint
from tidemark.target.state import ClonePhase, CloneRecord


def record_copied(target: Database, name: str, source: Identity, tables: Iterable[Fingerprint]) -> None:
    """Record a clone of these tables, with all changes of the stream still to be applied."""
    with target.session(OWNER) as session:
        record = CloneRecord(session, name)
        record.create()
        record.begin(source)
        for each in tables:
            record.add_table(each)
            record.set_copied(each.oid, Boundary(Lsn.ZERO), 0)
        record.set_phase(ClonePhase.FOLLOW)
