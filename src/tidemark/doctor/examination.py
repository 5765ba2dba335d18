"""Looking at a source: one session, one transaction, and a report. Creates nothing, changes nothing, starts no JVM."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tidemark.doctor.check import Check, Seen, Status
from tidemark.doctor.objects import LONG_S, object_checks
from tidemark.doctor.server import server_checks
from tidemark.doctor.tables import table_checks
from tidemark.errors import SourceError
from tidemark.source.blockers import lasting_writers
from tidemark.source.catalog import read_catalog
from tidemark.source.dsn import Dsn
from tidemark.source.facts import Facts, read_facts
from tidemark.source.identity import Identity, locate
from tidemark.source.names import MirrorNames
from tidemark.source.publication import read_publication, wanted
from tidemark.source.selection import Selection, choose
from tidemark.source.session import Session
from tidemark.source.slot import read_slot


@dataclass(frozen=True, slots=True)
class Report:
    """All lines, and what they come to."""

    source: str
    identity: Identity | None
    checks: tuple[Check, ...]

    @property
    def verdict(self) -> Status:
        """The worst of the lines."""
        statuses = {check.status for check in self.checks}
        return next((s for s in (Status.FAIL, Status.WARN) if s in statuses), Status.PASS)

    def as_json(self) -> dict[str, Any]:
        """The report as plain values; the words are the same as on a terminal."""
        return {
            "source": self.source,
            "identity": None if self.identity is None else str(self.identity),
            "verdict": self.verdict.value,
            "checks": [
                {
                    "name": c.name,
                    "status": c.status.value,
                    "finding": c.finding,
                    "mend": c.mend,
                    "otherwise": c.otherwise,
                }
                for c in self.checks
            ],
        }


def examine(dsn: Dsn, names: MirrorNames | None, selection: Selection) -> Report:
    """Look at everything, for a mirror of this name or of the database's."""
    with Session.open(dsn, "doctor") as session:
        with session.transaction():
            facts = read_facts(session)
            names = names or MirrorNames.of_database(facts.database)
            chosen = choose(read_catalog(session), selection)
            wants = wanted(names, chosen.tables, facts.version_num)
            seen = Seen(
                facts=facts,
                names=names,
                chosen=chosen,
                publications=tuple((want, read_publication(session, want.name)) for want in wants),
                slot=read_slot(session, names.slot),
                writers=(),
            )
        seen = replace(seen, writers=lasting_writers(session, LONG_S))
        identity, connected = _identify(session, dsn, facts)
    return Report(str(dsn), identity, (*connected, *server_checks(seen), *table_checks(seen), *object_checks(seen)))


def _identify(session: Session, dsn: Dsn, facts: Facts) -> tuple[Identity | None, tuple[Check, ...]]:
    """Who the server is. Where the role has the right, this opens the replication connection that a mirror needs."""
    replicates = facts.role.may_replicate and not facts.pooled
    try:
        identity = locate(session, dsn, may_replicate=replicates).identity
    except SourceError as error:
        refused = Check(
            "replication connection",
            Status.FAIL,
            error.message,
            f"-- {error.hint}",
            "the role has the right to replicate and still no replication connection can be made",
        )
        return None, (refused,)
    line = Check("replication connection", Status.PASS, str(identity))
    return identity, (line,) if replicates else (Check("identity", Status.PASS, str(identity)),)
