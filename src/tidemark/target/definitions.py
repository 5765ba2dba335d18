"""Create the definitions of an archive at the target with pg_restore, one stage at a time.

Every entry is one statement or one implicit transaction, so after a crash an object exists or does not. A stage that is
run again ends the sessions of the interrupted one, reads which objects exist, and creates the others; it changes and
drops none. It must therefore have been verified once, before the first stage, that the target is empty
(`missing_at_target`). At the end, every object of the stage must exist.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from psycopg import sql

from tidemark.errors import RestoreFailed, Stopped
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session, Timeouts
from tidemark.postgres.sqlstate import Endpoint
from tidemark.target.archive import DumpArchive
from tidemark.target.objects import Existing, Facts, read_existing
from tidemark.target.programs import Programs, connection_of
from tidemark.target.stages import CloneStage, Entry

_PATIENT = Timeouts(statement_s=600)
_APPLICATION = "tidemark restore "
_LOOK_S = 0.2
_ORPHANS = """
    select pg_terminate_backend(pid, 60000) from pg_stat_activity
     where datname = current_database() and usename = current_user and pid <> pg_backend_pid()
       and starts_with(application_name, %s) and application_name <> all(%s)
"""
_ROLE = "select rolname, rolsuper from pg_roles where rolname = current_user"
_MAPPINGS = "select usename, srvname from pg_user_mappings"
_REPEATED = frozenset({"DEFAULT", "DEFAULT ACL"})  # statements that can be repeated
_NEW_SETTING = 17  # pg_restore sets transaction_timeout, which servers have since this version
_IGNORED = re.compile(r"^pg_restore: warning: errors ignored on restore: (\d+)$", re.MULTILINE)
_ENTRY = re.compile(r"^pg_restore: from TOC entry (\d+);")
_ALTERED = {"statistics object": "statistics", "foreign-data wrapper": "foreign data wrapper"}
_RANDOM = ("\\restrict ", "\\unrestrict ")  # lines that differ each time
_NEVER_ALTERED = frozenset({"index", "extension"})

_running: set[str] = set()
_lock = threading.Lock()


def restore_stage(
    programs: Programs,
    target: Dsn,
    archive: DumpArchive,
    stage: CloneStage,
    jobs: int = 1,
    only: Collection[int] | None = None,
    *,
    keep_owners: bool = False,
    without: Collection[int] = (),
    stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Create the entries of a stage that do not exist at the target; raise RestoreFailed if one cannot be created.

    `only` limits the stages KEYS and INDEXES to the tables with these OIDs at the source; a call without it creates the
    rest. `without` are entries to leave out. Without `keep_owners` the connected role owns every object. Raises Stopped
    when `stopping` returns true.
    """
    wanted = [entry for entry in _of_stage(archive, stage, only) if entry.dump_id not in without]
    tables = None if only is None else archive.identities(only)
    with (
        _application() as application,
        _session(target) as session,
    ):
        _end_orphans(session)
        todo = list(_missing(session, archive, wanted, read_existing(session, tables)))
        if todo:
            _run_pg_restore(
                programs, target, archive, todo, jobs, application, session.version_num, keep_owners, stopping
            )
        _verify(read_existing(session, tables), archive, wanted)
        if keep_owners:
            _set_owners(session, archive, wanted, tables)


def sql_of(programs: Programs, archive: DumpArchive, stage: CloneStage | None = None) -> str:
    """Return the SQL of the entries of a stage, or of all."""
    entries = archive.entries if stage is None else _of_stage(archive, stage, None)
    with tempfile.TemporaryDirectory(prefix="tidemark-restore-") as folder:
        listed = Path(folder) / "list"
        listed.write_text("".join(f"{entry.dump_id};\n" for entry in entries))
        command: list[str | Path] = [programs.pg_restore, "--file=-", f"--use-list={listed}", archive.dump]
        ended = subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    if ended.returncode != 0:
        raise _failed(archive, ended.stderr.decode(errors="replace"), tolerant=False)
    lines = ended.stdout.decode(errors="surrogateescape").splitlines()
    return "\n".join(line for line in lines if not line.startswith(_RANDOM))


def _session(target: Dsn) -> Session:
    return Session.open(target, "definitions", _PATIENT, server=Endpoint.TARGET)


def _of_stage(archive: DumpArchive, stage: CloneStage, only: Collection[int] | None) -> Iterator[Entry]:
    if only is not None and stage not in (CloneStage.KEYS, CloneStage.INDEXES):
        raise ValueError(f"stage {stage.value} cannot be limited to some tables")
    for entry in archive.entries:
        if archive.stages[entry.dump_id] is stage and (only is None or archive.table_of(entry) in only):
            yield entry


@contextmanager
def _application() -> Iterator[str]:
    """Provide an application_name that no other run has; sessions with another one are orphans."""
    name = f"{_APPLICATION}{uuid4().hex[:12]}"
    with _lock:
        _running.add(name)
    try:
        yield name
    finally:
        with _lock:
            _running.discard(name)


def _end_orphans(session: Session) -> None:
    """End the sessions of a pg_restore that was killed: the server completes their statements otherwise."""
    with _lock:
        running = list(_running)
    while session.rows(_ORPHANS, [_APPLICATION, running]):
        pass


def _missing(session: Session, archive: DumpArchive, wanted: Iterable[Entry], existing: Existing) -> Iterator[Entry]:
    """Return the entries that were not created, and those that can be repeated."""
    role, superuser = session.row(_ROLE)
    mappings = {_printed(f"- USER MAPPING {user} SERVER {server} ") for user, server in session.rows(_MAPPINGS)}
    for entry in wanted:
        mapped = entry.kind == "USER MAPPING" and any(entry.rest.startswith(each) for each in mappings)
        foreign = not superuser and entry.kind == "COMMENT" and _is_of_extension(archive, entry, existing, role)
        if not mapped and not foreign and not _exists(archive, entry, existing):
            yield entry


def _printed(text: str) -> str:
    """Return a text as the list of pg_restore prints it."""
    return text.replace("\n", " ").replace("\r", " ")


def _is_of_extension(archive: DumpArchive, entry: Entry, existing: Existing, role: str) -> bool:
    """Whether a comment is that of an extension of another owner than this role; it has the extension's own comment."""
    facts = [archive.facts[each] for each in entry.depends if each in archive.facts]
    extensions = [each for each in facts if each.type == "extension" and each in existing]
    return any(existing.owners[each.type, each.identity] != role for each in extensions)


def _exists(archive: DumpArchive, entry: Entry, existing: Existing) -> bool:
    facts = archive.facts.get(entry.dump_id)
    if entry.kind == "TABLE ATTACH":
        return _partition(archive, entry) in existing.partitions
    if entry.kind == "SHELL TYPE":
        return any(_facts(archive, each) in existing for each in archive.entries if entry.dump_id in each.depends)
    return facts is not None and not facts.view_rule and entry.kind not in _REPEATED and facts in existing


def _facts(archive: DumpArchive, entry: Entry) -> Facts:
    return archive.facts.get(entry.dump_id, Facts("", ""))


def _partition(archive: DumpArchive, entry: Entry) -> tuple[str, str]:
    """Return the identities of the partition and the table that an entry attaches it to."""
    tables = {archive.by_id[each].oid: archive.facts[each] for each in entry.depends if each in archive.facts}
    (pair,) = [(each.identity, tables[each.parent].identity) for each in tables.values() if each.parent in tables]
    return pair


def _run_pg_restore(
    programs: Programs,
    target: Dsn,
    archive: DumpArchive,
    todo: list[Entry],
    jobs: int,
    application: str,
    target_version_num: int,
    keep_owners: bool,
    stopping: Callable[[], bool],
) -> None:
    conninfo, environment = connection_of(target, application)
    tolerant = programs.major >= _NEW_SETTING > target_version_num // 10000
    options = ["--verbose", "--no-tablespaces", f"--jobs={jobs}"]
    options += [] if tolerant else ["--exit-on-error"]
    options += [] if keep_owners else ["--no-owner"]
    with tempfile.TemporaryDirectory(prefix="tidemark-restore-") as folder:
        listed = Path(folder) / "list"
        listed.write_text("".join(f"{entry.dump_id};\n" for entry in todo))
        command: list[str | Path] = [
            programs.pg_restore,
            *options,
            f"--use-list={listed}",
            f"--dbname={conninfo}",
            archive.dump,
        ]
        code, stderr = _output(command, environment, stopping)
    printed = stderr.decode(errors="replace")
    if code != 0 and not (tolerant and _only_the_setting_failed(printed, jobs)):
        Session.open(
            target, "definitions", server=Endpoint.TARGET
        ).close()  # a server that is not reachable is another error
        raise _failed(archive, target.redact(printed), tolerant)


def _output(
    command: Sequence[str | Path], environment: Mapping[str, str], stopping: Callable[[], bool]
) -> tuple[int, bytes]:
    """Run a program until it ends or `stopping` returns true; return its exit code and what it wrote to stderr."""
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, env=environment, stdin=nothing, stdout=nothing, stderr=pipe) as process:
        try:
            while True:
                try:
                    _, stderr = process.communicate(timeout=_LOOK_S)
                except subprocess.TimeoutExpired:
                    if stopping():
                        raise Stopped(
                            "stopped while definitions were created; run the command again to continue"
                        ) from None
                else:
                    return process.returncode, stderr
        finally:
            process.terminate()


def _only_the_setting_failed(printed: str, jobs: int) -> bool:
    """Whether pg_restore ignored no error but that of the setting that the target does not have.

    pg_restore sets it once per connection and counts the failures of its main process, which connects a second time
    after its workers have ended. It does not count those of workers.
    """
    counts = _IGNORED.findall(printed)
    return counts == [str(1 if jobs == 1 else 2)]


def _failed(archive: DumpArchive, printed: str, tolerant: bool) -> RestoreFailed:
    """Return the error for the first failure that pg_restore printed, with the entry that it concerns."""
    entry: Entry | None = None
    lines = iter(printed.split("\n"))
    message: list[str] = []
    for line in lines:
        if match := _ENTRY.match(line):
            entry = archive.by_id.get(int(match[1]))
        elif ": error: " in line and not (tolerant and "transaction_timeout" in line):
            message = [line.partition(": error: ")[2].removeprefix("could not execute query: ")]
            break
    for line in lines:
        if line.startswith(("Command was:", "pg_restore:")):
            break
        message.append(line)
    reported = " ".join(" ".join(message).split()) or "pg_restore ended without a message"
    return RestoreFailed(
        f"{entry or 'a definition'} cannot be created at the target: {reported}",
        "Resolve what PostgreSQL reports and run the command again: it continues with what is missing.",
    )


def _verify(existing: Existing, archive: DumpArchive, wanted: Iterable[Entry]) -> None:
    """Raise RestoreFailed unless every object exists."""
    lacking = [entry for entry in wanted if not _is_there(archive, entry, existing)]
    if lacking:
        raise RestoreFailed(
            f"pg_restore reported no error, but {len(lacking)} objects do not exist at the target, "
            f"such as {lacking[0]}",
            "Check that no other session drops objects at the target, and run the command again.",
        )


def _is_there(archive: DumpArchive, entry: Entry, existing: Existing) -> bool:
    if entry.kind == "TABLE ATTACH":
        return _partition(archive, entry) in existing.partitions
    facts = archive.facts.get(entry.dump_id)
    return facts is None or facts in existing


def _set_owners(
    session: Session, archive: DumpArchive, wanted: Collection[Entry], tables: Collection[str] | None
) -> None:
    """Set owners that pg_restore did not set because it was interrupted; sequences of columns follow their table."""
    for kind in ("table", None):
        existing = read_existing(session, tables)
        for facts in (archive.facts[entry.dump_id] for entry in wanted if entry.dump_id in archive.facts):
            there = existing.owners.get((facts.type, facts.identity), facts.owner)
            chosen = facts.type == kind if kind else facts.type not in _NEVER_ALTERED
            if chosen and facts.owner is not None and there != facts.owner:
                _set_owner(session, facts, facts.owner)


def _set_owner(session: Session, facts: Facts, owner: str) -> None:
    statement = sql.SQL("alter {} {} owner to {}").format(
        sql.SQL(_ALTERED.get(facts.type, facts.type)),
        sql.SQL(facts.identity),
        sql.Identifier(owner),
    )
    session.execute(statement, f"setting the owner of {facts.type} {facts.identity}")
