"""A whole mirror that runs beside a test, and PostgreSQL as its judge while an application goes on writing.

The judge is a snapshot at an exact position: what tables hold there is read by PostgreSQL, and later the mirror, asked
for that position, must give the same rows.
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
from harness.lake import Noted, by_postgres, read, read_table, require_rows, spread
from tidemark.clock import Lsn
from tidemark.lake.requests import ask_for_resync
from tidemark.pipeline.fold.folder import Folded, Folder
from tidemark.pipeline.mirroring import Mirroring, MirroringOptions
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.slot import exact_snapshot
from tidemark.receive.client import ReceiveClient


@dataclass
class Synced:
    """A database and the mirror that runs."""

    database: Database
    options: MirroringOptions
    spark: SparkSession
    mirroring: Mirroring
    said: list[str] = field(default_factory=list)
    notes: list[Noted] = field(default_factory=list)

    def until(self, condition: Callable[[], Any], limit_s: float = 300) -> Any:
        """Let it run until something holds; what that is."""
        deadline = time.monotonic() + limit_s
        while not (found := condition()):
            assert time.monotonic() < deadline, f"it did not come about; it said {self.said}"
            self.mirroring.writer.look()
            self.mirroring.step()
        return found

    def copy_all(self) -> None:
        """Until every table is copied."""
        self.until(lambda: self.mirroring.settled and not self.mirroring.copies)

    def catch_up(self, lsn: Lsn | None = None) -> Lsn:
        """Until everything up to a position, or committed so far, can be read."""
        upto = lsn or self.mirroring.position()
        self.mirroring.step()
        self.mirroring.writer.catch_up(upto)
        return upto

    def until_known(self, lsn: Lsn) -> None:
        """Have everything up to a position received, and the definitions there known, with nothing of it applied."""
        writer = self.mirroring.writer
        with ReceiveClient(self.options.log_folder) as client:
            client.wait(lsn, 60)
        while writer.tables.known < lsn:
            writer.look()
        writer.tell()

    def note(self, *tables: str) -> Lsn:
        """Write down what tables hold. Nobody else may be writing."""
        self.notes.append(Noted(self.mirroring.position(), {t: by_postgres(self.database, t) for t in tables}))
        return self.notes[-1].lsn

    def note_exact(self, *tables: str) -> Lsn:
        """Write down what tables hold at an exact position, whoever is writing."""
        with (
            self.database.session() as session,
            exact_snapshot(self.database.dsn(), 60) as snapshot,
            session.transaction(snapshot_id=snapshot.shared.name),
        ):
            held = {table: read_table(session, table) for table in tables}
        self.notes.append(Noted(snapshot.lsn, held))
        return snapshot.lsn

    def require_noted(self) -> int:
        """The mirror gives what was noted, at the noted positions; how many tables were noted there."""
        self.catch_up(max(noted.lsn for noted in self.notes))
        return self.require_noted_here()

    def require_noted_here(self) -> int:
        """The same without going any further."""
        mirror = tidemark.open(self.options.lake, self.spark)
        for noted in spread(self.notes):
            with mirror.at(noted.lsn) as moment:
                for table, (columns, rows) in noted.tables.items():
                    require_rows(read(moment, table), columns, rows, f"{table} at {noted.lsn}")
        return sum(len(noted.tables) for noted in self.notes)

    def fold(self) -> list[Folded]:
        """Fold every table that has something to fold; for a mirror that does not fold by itself."""
        with Folder(self.options.lake, self.spark) as folder:
            return [folder.fold(table) for table in folder.foldable()]

    def resync(self, *tables: str) -> None:
        """Have tables copied again, to the end; one that is truncated meanwhile begins there."""
        names = {f"{each.fingerprint.name}": oid for oid, each in self.mirroring.writer.tables.histories.items()}
        before = len(self.said)
        ask_for_resync(self.options.lake, [names[table] for table in tables])

        def begun(table: str) -> bool:
            said = "".join(self.said[before:])
            return f"table public.{table}: copied" in said or f"table public.{table}: readable from" in said

        self.until(lambda: all(map(begun, tables)))

    def require_equal(self, *tables: str) -> None:
        """What tables hold now is what the mirror gives. Nobody else may be writing."""
        self.notes = []
        self.note(*tables)
        self.require_noted()


def publish(database: Database, *tables: str, inserts: str | None = None) -> MirrorNames:
    """Have tables published to a mirror, and one of which only inserts are."""
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
    """Mirror tables, published if they are not, until the context ends."""
    names = publish(database, *tables) if tables else MirrorNames(database.name)
    chosen = MirroringOptions(database.dsn(MIRROR), folder / "lake", names, **options)
    said: list[str] = []
    with Mirroring(chosen, spark, said.append) as mirroring:
        yield Synced(database, chosen, spark, mirroring, said)
