"""A record of the progress of a copy into another PostgreSQL, in two tables of schema `tidemark` at the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidemark.errors import TargetError
from tidemark.pipeline.copy.parts import Part
from tidemark.postgres.session import Session
from tidemark.schema.fingerprint import Fingerprint

TABLES = """
    create schema if not exists tidemark;
    create table if not exists tidemark.tables (oid oid primary key, run text not null, parts int not null);
    create table if not exists tidemark.parts
        (oid oid references tidemark.tables on delete cascade, first bigint, rows bigint, primary key (oid, first))
"""


@dataclass(frozen=True)
class Recorder:
    """The record of one process. A part is refused if another process has begun its table since."""

    run: str = "run"

    def is_begun(self, session: Session, table: Fingerprint) -> bool:
        return bool(_rows(session, "select from tidemark.tables where oid = %s", table.oid))

    def begin(self, session: Session, table: Fingerprint, parts: int) -> None:
        _rows(session, "delete from tidemark.tables where oid = %s returning oid", table.oid)
        _rows(session, "insert into tidemark.tables values (%s, %s, %s) returning oid", table.oid, self.run, parts)

    def add(self, session: Session, table: Fingerprint, part: Part, rows: int) -> None:
        ours = "select from tidemark.tables where oid = %s and run = %s for share"
        if not _rows(session, ours, table.oid, self.run):
            raise TargetError(f"another process copies {table.name}")
        _rows(session, "insert into tidemark.parts values (%s, %s, %s) returning oid", table.oid, part.first, rows)

    def rows(self, session: Session, table: Fingerprint, part: Part) -> int | None:
        recorded = "select rows from tidemark.parts join tidemark.tables using (oid) where oid = %s and first = %s"
        found = _rows(session, f"{recorded} and run = %s", table.oid, part.first, self.run)
        return found[0][0] if found else None

    def unfinished(self, session: Session) -> set[int]:
        """The tables that have begun and lack parts."""
        query = (
            "select t.oid from tidemark.tables t left join tidemark.parts p using (oid) "
            "group by t.oid, t.parts having count(p.oid) < t.parts"
        )
        return {oid for (oid,) in _rows(session, query)}


def _rows(session: Session, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
    return session.connection.execute(query.encode(), parameters).fetchall()
