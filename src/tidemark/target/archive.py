"""An archive with the schema of the source, dumped by pg_dump in the snapshot in which rows are copied.

The directory of an archive has two files: `schema.dump`, which pg_restore reads, and `schema.json` with its entries and
what the source's catalog has about them. The second is written last, so a directory without it has no archive. Rows and
large objects are not in the archive; publications and subscriptions are not cloned.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tidemark.errors import DumpFailed, UnsupportedArchive
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session, Timeouts
from tidemark.schema.selection import STATE_SCHEMA
from tidemark.storage import open_storage
from tidemark.target.dependents import LeftOut, read_left_out
from tidemark.target.objects import Facts, Roles, needs_superuser, read_facts, read_roles
from tidemark.target.programs import Programs, connection_of
from tidemark.target.stages import CATALOGS, CloneStage, Entry, Section, closure, dump_ids, entries, stage_of

_ENTRIES = "schema.json"
_PATIENT = Timeouts(statement_s=600, idle_in_transaction_s=0)
_LOCK_WAIT_S = 60
_OPTIONS = (
    *("--format=custom", "--section=pre-data", "--section=post-data", "-B"),
    *("--no-publications", "--no-subscriptions", "--no-tablespaces", f"--lock-wait-timeout={_LOCK_WAIT_S}s"),
)  # -B leaves out large objects: the long form of the option depends on the version


@dataclass(frozen=True)
class DumpArchive:
    """A dumped schema. `facts` are those of the entries that are objects, by identifier.

    `left_out` are entries that a selection of tables leaves out although pg_dump dumped them, such as foreign keys to
    tables that are not selected; `relations_left_out` are all tables, views and sequences that are left out.
    """

    folder: Path
    entries: tuple[Entry, ...]
    facts: Mapping[int, Facts]
    roles: Roles
    extensions: Mapping[str, str]
    left_out: tuple[Entry, ...] = ()
    relations_left_out: tuple[str, ...] = ()

    @property
    def dump(self) -> Path:
        """The file that pg_restore reads."""
        return self.folder / "schema.dump"

    @cached_property
    def by_id(self) -> Mapping[int, Entry]:
        """The entries by identifier."""
        return {entry.dump_id: entry for entry in self.entries}

    @cached_property
    def stages(self) -> Mapping[int, CloneStage]:
        """The stage of each entry, by identifier."""
        unique = {entry.oid for entry in self.entries if (f := self.facts.get(entry.dump_id)) and f.unique}
        return {entry.dump_id: stage_of(entry, self.by_id, unique) for entry in self.entries}

    @property
    def owners(self) -> tuple[str, ...]:
        """The owners of the objects at the source."""
        return tuple(sorted({facts.owner for facts in self.facts.values() if facts.owner}))

    @property
    def sequences(self) -> frozenset[int]:
        """The OIDs, at the source, of all sequences."""
        return frozenset(entry.oid for entry in self.entries if entry.kind == "SEQUENCE")

    @property
    def superuser(self) -> tuple[Entry, ...]:
        """The entries that only a superuser can create, and those that depend on them."""
        start = {each.dump_id for each in self.entries if needs_superuser(each, self.facts.get(each.dump_id))}
        found = closure(self.entries, start)
        servers = [f" SERVER {each.rest}" for each in self.entries if each.kind == "SERVER" and each.dump_id in found]
        return tuple(
            entry
            for entry in self.entries
            if entry.dump_id in found or (entry.kind == "USER MAPPING" and _is_of(entry, servers))
        )

    def identities(self, tables: Collection[int]) -> list[str]:
        """Return the identities of tables and materialized views with these OIDs at the source."""
        return [
            self.facts[entry.dump_id].identity
            for entry in self.entries
            if entry.oid in tables and entry.catalog == CATALOGS["TABLE"]
        ]

    def table_of(self, entry: Entry) -> int | None:
        """Return the OID, at the source, of the table that an index, a constraint or its comment belongs to."""
        facts = self.facts.get(entry.dump_id)
        if facts is not None or entry.kind not in ("COMMENT", "SECURITY LABEL"):
            return facts.table if facts else None
        tables = {facts.table for dump_id in entry.depends if (facts := self.facts.get(dump_id))}
        return tables.pop() if len(tables) == 1 else None


def dump_schema(
    programs: Programs,
    source: Dsn,
    snapshot_id: str | None,
    folder: Path,
    tables: Collection[int] | None = None,
) -> DumpArchive:
    """Dump the schema of the source into a directory; `tables` are the OIDs of the selected tables, or None for all.

    With a selection, schemas, types, functions and extensions are dumped as well, and objects that depend on a table
    that is not selected are left out. pg_dump takes an ACCESS SHARE lock on the dumped tables only.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # user mappings may contain passwords
    open_storage(folder).delete(_ENTRIES)
    with Session.open(source, "schema", _PATIENT) as session, session.transaction(snapshot_id=snapshot_id):
        left_out = read_left_out(session, tables)
        encoding = ["--encoding=UTF8"] if session.has_encoding else []
        (is_target,) = session.row("select to_regclass('tidemark.clones') is not null")
        own = [f"--exclude-schema={STATE_SCHEMA}"] if is_target else []
        options = [*encoding, *own, *_excluded(left_out)]
        _run_pg_dump(programs, source, snapshot_id, folder / "schema.dump", options)
        listed = _listed(programs, folder / "schema.dump")
        gone = closure(listed, {each.dump_id for each in listed if (each.catalog, each.oid) in left_out.objects})
        kept = tuple(entry for entry in listed if entry.dump_id not in gone)
        archive = DumpArchive(
            folder,
            kept,
            read_facts(session, kept),
            read_roles(session, kept),
            dict(session.rows("select extname, extversion from pg_extension")),
            tuple(entry for entry in listed if entry.dump_id in gone),
            tuple(f"{schema}.{name}" for schema, name in left_out.relations),
        )
    _ = archive.stages  # an entry of an unknown kind is found now
    return written(archive)


def written(archive: DumpArchive) -> DumpArchive:
    """Write the entries of an archive into its directory, which completes it."""
    open_storage(archive.folder).write(_ENTRIES, json.dumps(_plain(archive)).encode())
    return archive


def without_new(later: DumpArchive, earlier: DumpArchive) -> DumpArchive:
    """Leave out what a later dump has and an earlier one has not, and what depends on that, up to stage LAST. Pure.

    What is created last may be new, but not if it depends on another new object, such as a new table.
    """
    known = {_identity(earlier, entry) for entry in earlier.entries}
    new = {entry.dump_id for entry in later.entries if _identity(later, entry) not in known}
    start = {dump_id for dump_id in new if later.stages[dump_id] is not CloneStage.LAST}
    gone = closure(later.entries, start) & new
    left_out = tuple(entry for entry in later.entries if entry.dump_id in gone)
    kept = tuple(entry for entry in later.entries if entry.dump_id not in gone)
    return replace(later, entries=kept, left_out=(*later.left_out, *left_out))


def _identity(archive: DumpArchive, entry: Entry) -> tuple[str, str]:
    facts = archive.facts.get(entry.dump_id)
    return (facts.type, facts.identity) if facts is not None else (entry.kind, entry.rest)


def open_archive(folder: Path) -> DumpArchive:
    """Open an archive that `dump_schema` completed."""
    data = open_storage(folder).read(_ENTRIES)
    if data is None:
        raise UnsupportedArchive(f"{folder} has no archive", "Run the command again to dump the schema.")
    plain = json.loads(data)
    return DumpArchive(
        folder,
        tuple(map(_entry, plain["entries"])),
        {int(dump_id): Facts(**facts) for dump_id, facts in plain["facts"].items()},
        Roles(**{name: tuple(names) for name, names in plain["roles"].items()}),
        plain["extensions"],
        tuple(map(_entry, plain["left_out"])),
        tuple(plain["relations_left_out"]),
    )


def _is_of(mapping: Entry, servers: Iterable[str]) -> bool:
    """Whether a user mapping, whose dependencies pg_dump omits, is that of one of these servers."""
    return any(mapping.rest.endswith(server.replace(" - ", " ", 1)) for server in servers)


def _plain(archive: DumpArchive) -> dict[str, Any]:
    return {
        "entries": [_values(entry) | {"section": entry.section.value} for entry in archive.entries],
        "facts": {dump_id: _values(facts) for dump_id, facts in archive.facts.items()},
        "roles": asdict(archive.roles),
        "extensions": archive.extensions,
        "left_out": [_values(entry) | {"section": entry.section.value} for entry in archive.left_out],
        "relations_left_out": archive.relations_left_out,
    }


def _values(value: Entry | Facts) -> dict[str, Any]:
    """Return the fields of a value; `asdict` would copy each of them, which takes seconds for a large schema."""
    return {name: getattr(value, name) for name in value.__slots__}


def _entry(plain: dict[str, Any]) -> Entry:
    return Entry(**plain | {"depends": tuple(plain["depends"]), "section": Section(plain["section"])})


def _excluded(left_out: LeftOut) -> list[str]:
    return [f"--exclude-table={pattern}" for pattern in left_out.patterns()]


def _run_pg_dump(programs: Programs, source: Dsn, snapshot_id: str | None, file: Path, options: list[str]) -> None:
    conninfo, environment = connection_of(source, "tidemark schema")
    snapshot = [f"--snapshot={snapshot_id}"] if snapshot_id is not None else []
    command: list[str | Path] = [
        programs.pg_dump,
        *_OPTIONS,
        *snapshot,
        *options,
        f"--file={file}",
        f"--dbname={conninfo}",
    ]
    ended = subprocess.run(command, env=environment, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    if ended.returncode != 0:
        raise DumpFailed(
            f"pg_dump of {source} failed: {source.redact(first_error(ended.stderr))}",
            "Resolve what pg_dump reports, such as a missing SELECT privilege on a table, and retry the command.",
        )


def first_error(stderr: bytes) -> str:
    """Return the first error that a program printed, with its details, on one line."""
    lines = stderr.decode(errors="replace").split("\n")
    starts = [number for number, line in enumerate(lines) if ": error: " in line or ": fatal: " in line]
    if not starts:
        return " ".join(" ".join(lines).split()) or "it ended without a message"
    end = next((n for n in range(starts[0] + 1, len(lines)) if lines[n].startswith("pg_")), len(lines))
    return " ".join(" ".join(lines[starts[0] : end]).split())


def _listed(programs: Programs, file: Path) -> tuple[Entry, ...]:
    """Return the entries of an archive with their sections; those of the database itself are not restored."""
    found = entries(_list(programs, file, "--verbose"))
    before = dump_ids(_list(programs, file, "--section=pre-data"))
    after = dump_ids(_list(programs, file, "--section=post-data"))
    restored = before | after
    return tuple(
        entry if entry.dump_id in before else replace(entry, section=Section.POST_DATA)
        for entry in found
        if entry.dump_id in restored
    )


def _list(programs: Programs, file: Path, option: str) -> str:
    ended = subprocess.run([programs.pg_restore, "--list", option, file], capture_output=True, check=False)
    if ended.returncode != 0:
        raise UnsupportedArchive(
            f"pg_restore {programs.version} cannot read {file}: {first_error(ended.stderr)}",
            "Pass the directory of the programs that dumped the schema with --pg-bin.",
        )
    return ended.stdout.decode(errors="surrogateescape")
