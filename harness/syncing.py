"""A complete mirror that runs during a test, with PostgreSQL as the reference while an application writes.

The reference is a snapshot at an exact LSN: PostgreSQL reads the tables there, and later the mirror must return the
same rows at that LSN.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import tidemark
from harness.database import MIRROR, Database
from harness.lake import Noted, by_postgres, read_table, require_read, spread
from harness.logs import logged
from tidemark.clock import Lsn
from tidemark.lake.requests import request_resync
from tidemark.pipeline.fold.compactor import Compactor, Folded
from tidemark.pipeline.logical import LogicalReplication
from tidemark.pipeline.plan import PipelineOptions
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.slot import exact_snapshot
from tidemark.receive.client import ReceiveClient


@dataclass
class Synced:
    """A database and its running mirror."""

    database: Database
    options: PipelineOptions
    spark: SparkSession
    replication: LogicalReplication
    said: list[str] = field(default_factory=list)
    notes: list[Noted] = field(default_factory=list)

    def until(self, condition: Callable[[], Any], limit_s: float = 300) -> Any:
        """Run the mirror until a condition is true; return its value."""
        deadline = time.monotonic() + limit_s
        while not (found := condition()):
            assert time.monotonic() < deadline, f"it did not come about; it said {self.said}"
            self.replication.applier.read_catalog()
            self.replication.step()
        return found

    def copy_all(self) -> None:
        """Run the mirror until every table is copied."""
        self.until(lambda: self.replication.settled and not self.replication.copies)

    def catch_up(self, lsn: Lsn | None = None) -> Lsn:
        """Apply everything up to an LSN, by default everything committed so far; return the LSN."""
        upto = lsn or self.replication.position()
        self.replication.step()
        self.replication.applier.catch_up(upto)
        return upto

    def until_known(self, lsn: Lsn) -> None:
        """Wait until an LSN is received, and advance the schema LSN to it, without applying anything."""
        applier = self.replication.applier
        with ReceiveClient(self.options.log_folder) as client:
            client.wait(lsn, 60)
        while applier.tables.lsns.mirror < lsn:
            applier.read_catalog()
        applier.record_progress()

    def note(self, *tables: str) -> Lsn:
        """Record the contents of tables; no other session may write meanwhile."""
        self.notes.append(Noted(self.replication.position(), {t: by_postgres(self.database, t) for t in tables}))
        return self.notes[-1].lsn

    def note_exact(self, *tables: str) -> Lsn:
        """Record the contents of tables at an exact LSN; other sessions may write meanwhile."""
        with (
            self.database.session() as session,
            exact_snapshot(self.database.dsn(), 60) as snapshot,
            session.transaction(snapshot_id=snapshot.shared.name),
        ):
            held = {table: read_table(session, table) for table in tables}
        self.notes.append(Noted(snapshot.lsn, held))
        return snapshot.lsn

    def require_noted(self) -> int:
        """Require that the mirror returns the recorded rows at the recorded LSNs; return the number of tables."""
        self.catch_up(max(noted.lsn for noted in self.notes))
        return self.require_noted_here()

    def require_noted_here(self) -> int:
        """Check the recorded rows without applying more changes."""
        mirror = tidemark.open(self.options.lake, self.spark)
        for noted in spread(self.notes):
            with mirror.at(noted.lsn) as moment:
                for table, (columns, rows) in noted.tables.items():
                    require_read(moment, table, columns, rows)
        return sum(len(noted.tables) for noted in self.notes)

    def fold(self) -> list[Folded]:
        """Do the work of a fold job, for a mirror that runs without: fold every table with changes, and compact."""
        with Compactor(self.options.lake, self.spark) as compactor:
            folded = [compactor.fold(table) for table in compactor.foldable()]
            for table in compactor.compactable():
                compactor.compact(table)
            return folded

    def resync(self, *tables: str) -> None:
        """Copy tables again and wait for that; a table that is truncated meanwhile is readable from there on."""
        names = {f"{each.fingerprint.name}": oid for oid, each in self.replication.applier.tables.histories.items()}
        before = len(self.said)
        request_resync(self.options.lake, [names[table] for table in tables])

        def begun(table: str) -> bool:
            said = "".join(self.said[before:])
            return f"table public.{table}: copied" in said or f"table public.{table}: readable from" in said

        self.until(lambda: all(map(begun, tables)))

    def require_equal(self, *tables: str) -> None:
        """Require that the mirror returns the present contents of tables; no other session may write meanwhile."""
        self.notes = []
        self.note(*tables)
        self.require_noted()


def publish(database: Database, *tables: str, inserts: str | None = None) -> MirrorNames:
    """Create the publication of a mirror, and a second one for a table of which only inserts are published."""
    names = MirrorNames(database.name)
    generated = ", publish_generated_columns = stored" if database.server.install.major >= 18 else ""
    database.admin(
        f"create publication {names.publication} for table {', '.join(tables)} "
        f"with (publish = 'insert, update, delete, truncate'{generated})"
    )
    if inserts is not None:
        database.admin(
            f"create publication {names.inserts_publication} for table {inserts} "
            f"with (publish = 'insert, truncate'{generated})"
        )
    return names


@contextmanager
def syncing(database: Database, folder: Path, spark: SparkSession, *tables: str, **options: Any) -> Iterator[Synced]:
    """Run a mirror until the context ends; `tables`, if given, are published first."""
    names = publish(database, *tables) if tables else MirrorNames(database.name)
    chosen = PipelineOptions(database.dsn(MIRROR), folder / "lake", names, **options)
    with logged() as said, LogicalReplication(chosen, spark, lambda event: said.append(str(event))) as replication:
        yield Synced(database, chosen, spark, replication, said)
