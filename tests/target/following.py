"""A clone of empty tables, ready to follow its source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.copied import record_copied
from harness.database import OWNER, Database
from harness.mirrored import Mirrored, mirrored
from tests.target.load import TABLES
from tidemark.clock import Lsn
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.identity import Identity, locate
from tidemark.schema.fingerprint import Fingerprint
from tidemark.target.follow import FollowOptions


@dataclass
class Cloned:
    """A source, a target with the same empty tables, and a log from there on."""

    source: Database
    target: Database
    mirror: Mirrored
    identity: Identity

    def options(self, dsn: Dsn | None = None) -> FollowOptions:
        return FollowOptions(self.identity, dsn or self.target.dsn(OWNER), "c", self.mirror.options.folder)

    def position(self) -> Lsn:
        return Lsn.parse(self.source.admin("select pg_current_wal_insert_lsn()::text")[0][0])


def cloned_tables(source: Database, target: Database, tmp_path: Path) -> Cloned:
    """Begin a clone of tables that both databases have."""
    mirror = mirrored(source, tmp_path, *TABLES)
    with source.session() as session:
        identity = locate(session, source.dsn(), may_replicate=True).identity
        definitions = [Fingerprint.of(each, []) for each in read_catalog(session).tables if each.name in TABLES]
    record_copied(target, "c", identity, definitions)
    return Cloned(source, target, mirror, identity)
