"""Clones that follow their source in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from harness.database import MIRROR, OWNER, PASSWORD, Database
from harness.mirrored import eventually
from tests.target.load import TABLES
from tests.target.schema_pairs import programs_for
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.session import Session
from tidemark.target.clone import Clone
from tidemark.target.options import CloneOptions
from tidemark.target.state import CloneSummary, read_clones


def publish(source: Database, *tables: str) -> MirrorNames:
    """Publish tables, and grant what a clone needs at the source."""
    names, major = MirrorNames(source.name), source.server.install.major
    generated = ", publish_generated_columns = stored" if major >= 18 else ""
    source.admin(
        f"create publication {names.publication} for table {', '.join(tables or TABLES)} "
        f"with (publish = 'insert, update, delete, truncate'{generated})",
        f"grant select on all sequences in schema public to {MIRROR}",
    )
    return names


def clone_options(source: Database, target: Database, folder: Path) -> CloneOptions:
    """Options for a clone whose role owns the target and nothing more. The tables are published."""
    pg_bin = programs_for(source.server.install.major, target.server.install.major).pg_dump.parent
    return CloneOptions(source.dsn(), target.dsn(OWNER), publish(source), folder, pg_bin=pg_bin)


@contextmanager
def publishing_role(source: Database) -> Iterator[str]:
    """A role that may publish the tables of the application, and read its sequences: a member of the owner."""
    role = f"publisher_{source.name}"
    source.admin(f"create role {role} login replication password '{PASSWORD}' in role {OWNER}")
    try:
        yield role
    finally:
        source.admin(f"drop owned by {role}", f"drop role {role}")


@contextmanager
def followed(options: CloneOptions) -> Iterator[None]:
    """Clone, and follow the source until the context ends. An error of the clone is raised there."""
    stop, failed = threading.Event(), list[BaseException]()

    def clone() -> None:
        try:
            Clone(replace(options, follows=True), lambda: None).run(stop.is_set)
        except BaseException as error:  # noqa: BLE001 - raised by the other thread
            failed.append(error)

    thread = threading.Thread(target=clone)
    thread.start()
    try:
        eventually(lambda: failed or any(each.is_followed and each.applied_lsn for each in clones(options)), 120)
        yield
    finally:
        stop.set()
        thread.join()
        if failed:
            raise failed[0]


def clones(options: CloneOptions) -> list[CloneSummary]:
    """The clones at the target."""
    with Session.open(options.target, "test") as session:
        return read_clones(session)
