"""Read the state of a target: the only place that reads the input of its requirements (`target.rights`).

What the role may do is tried in transactions that are rolled back, because managed services grant other subsets of a
superuser's rights than PostgreSQL does. There are two exceptions. The privileges on tables are read from the catalog:
TRUNCATE would wait for all sessions that use the table. Of the functions of replication origins only
`pg_replication_origin_create` is called, because a session that sets up an origin uses an entry in shared memory, which
a rollback does not release.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace

from psycopg import sql

from tidemark.errors import ConnectionLost, NotPermitted, SourceError
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.facts import OLDEST
from tidemark.postgres.identity import Identity, is_same_database, locate
from tidemark.postgres.requirements import Mode, require
from tidemark.postgres.requirements.reading import version_of
from tidemark.postgres.session import Session
from tidemark.postgres.sqlstate import Endpoint
from tidemark.schema.selection import Selection, choose
from tidemark.target.source_tables import read_extended

PRIVILEGES = ("select", "insert", "update", "delete", "truncate")
_ORIGIN_FUNCTIONS = (
    *("pg_replication_origin_create", "pg_replication_origin_drop", "pg_replication_origin_oid"),
    *("pg_replication_origin_session_setup", "pg_replication_origin_session_reset"),
    *("pg_replication_origin_session_progress", "pg_replication_origin_xact_setup", "pg_replication_origin_progress"),
)
_EXTENSIONS = """
    select e.extname::text, e.extversion, n.nspname::text
      from pg_extension e join pg_namespace n on n.oid = e.extnamespace
     where e.extname <> 'plpgsql' order by e.extname
"""
_SEQUENCES = """
    select n.nspname, c.relname, has_schema_privilege(n.oid, 'USAGE') and has_sequence_privilege(c.oid, 'SELECT')
      from pg_class c join pg_namespace n on n.oid = c.relnamespace
     where c.relkind = 'S' and c.relpersistence <> 't' and n.nspname not in ('pg_catalog', 'information_schema')
       and n.nspname not like 'pg\\_toast%'
     order by n.nspname collate "C", c.relname collate "C"
"""
_COUNTED = 100_000  # rows of a table of an extension that are counted
_EXTENSION_TABLES = """
    select n.nspname::text, c.relname::text, greatest(c.reltuples, 0)::bigint,
           has_schema_privilege(n.oid, 'USAGE') and has_table_privilege(c.oid, 'SELECT')
      from pg_depend d join pg_class c on c.oid = d.objid
           join pg_namespace n on n.oid = c.relnamespace
     where d.classid = 'pg_class'::regclass and d.refclassid = 'pg_extension'::regclass and d.deptype = 'e'
       and c.relkind = 'r'
     order by n.nspname collate "C", c.relname collate "C"
"""
_TABLE_OWNERS = """
    select pg_get_userbyid(relowner)::text, count(*) from pg_class where oid = any(%s) group by 1 order by 1
"""
_GIVEN = """
    select r.rolname::text from pg_roles r
     where r.rolname = any(%s) and (pg_has_role(r.oid, %s)
           or (select rolsuper from pg_roles where rolname = current_user))
"""
_SERVER = """
    select current_setting('server_version'), current_database()::text, current_user::text,
           current_setting('server_encoding'), pg_is_in_recovery(),
           (select reset_val = 'on' from pg_settings where name = 'default_transaction_read_only')
"""
_READ_ONLY_SETTINGS = """
    select case when setrole = 0 then format('alter database %I reset default_transaction_read_only', datname)
                when setdatabase = 0 then format('alter role %I reset default_transaction_read_only', rolname)
                else format('alter role %I in database %I reset default_transaction_read_only', rolname, datname) end
      from pg_db_role_setting left join pg_database d on d.oid = setdatabase left join pg_roles r on r.oid = setrole
     where (setdatabase = 0 or datname = current_database()) and (setrole = 0 or rolname = current_user)
       and exists (select from unnest(setconfig) each where each like 'default_transaction_read_only=%')
     order by 1
"""
_TABLES = """
    select n.nspname, c.relname,
           array(select privilege from unnest(%s::text[]) privilege where not has_table_privilege(c.oid, privilege)),
           c.relrowsecurity and not (r.rolsuper or r.rolbypassrls
               or not c.relforcerowsecurity and pg_has_role(c.relowner, 'USAGE'))
      from pg_class c join pg_namespace n on n.oid = c.relnamespace, pg_roles r
     where c.relkind in ('r', 'p') and r.rolname = current_user
     order by n.nspname collate "C", c.relname collate "C"
"""
_FUNCTIONS = """
    select oid::regprocedure::text from pg_proc
     where pronamespace = 'pg_catalog'::regnamespace and proname = any(%s)
       and not has_function_privilege(oid, 'EXECUTE')
     order by proname
"""
_OFFERED = """
    select a.name::text, a.installed_version, v.schema::text
      from pg_available_extensions a
           left join pg_available_extension_versions v on v.name = a.name and v.version = a.default_version
"""


@dataclass(frozen=True, slots=True)
class Extension:
    """An extension of the source and its schema."""

    name: str
    version: str
    schema: str


@dataclass(frozen=True, slots=True)
class TargetNeeds:
    """What a clone of the selected tables of a source needs at its target.

    `hidden_sequences` are those that `role` may not read at the source. The stream has no UPDATE and DELETE of the
    tables `without_identity`. `extension_rows` are tables of extensions and the texts of their numbers of rows,
    `owners` the owners of the tables and how many each has.
    """

    major: int
    encoding: str
    role: str
    tables: frozenset[tuple[str, str]]
    extensions: tuple[Extension, ...] = ()
    hidden_sequences: tuple[tuple[str, str], ...] = ()
    without_identity: tuple[tuple[str, str], ...] = ()
    extension_rows: tuple[tuple[str, str], ...] = ()
    owners: tuple[tuple[str, int], ...] = ()

    @property
    def schemas(self) -> tuple[str, ...]:
        """The schemas of the tables."""
        return tuple(sorted({schema for schema, _ in self.tables}))


@dataclass(frozen=True, slots=True)
class LimitedTable:
    """An existing table, the privileges on it that the role lacks, and whether policies restrict its rows."""

    schema: str
    name: str
    lacking: tuple[str, ...]
    row_security: bool


@dataclass(frozen=True, slots=True)
class LackingExtension:
    """An extension that the target does not have: why the role cannot create it, or "" if it can."""

    extension: Extension
    available: bool
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class TargetState:
    """A target as probed. A refusal is the error message of a probe, and None if it succeeded.

    `same` is whether the target is the database of the source, or a copy or standby of that server. On a server that
    cannot be a target, nothing is probed, and the fields from `creates_schemas` on have their defaults.
    `strange_owners` are owners of tables at the source to which the role cannot give tables at the target.
    """

    needs: TargetNeeds
    version_num: int
    version: str
    database: str
    role: str
    encoding: str
    in_recovery: bool
    pooled: bool
    same: bool
    read_only_settings: tuple[str, ...] = ()
    creates_schemas: str | None = None
    closed_schemas: tuple[str, ...] = ()
    limited_tables: tuple[LimitedTable, ...] = ()
    existing_tables: int = 0
    sets_replication_role: str | None = None
    uses_origins: str | None = None
    closed_functions: tuple[str, ...] = ()
    lacking_extensions: tuple[LackingExtension, ...] = ()
    strange_owners: tuple[tuple[str, int], ...] = ()

    @property
    def major(self) -> int:
        """The major version: 16 for 16.14."""
        return self.version_num // 10000

    @property
    def can_be_probed(self) -> bool:
        """Whether the rights of its role are of interest: not if the server itself cannot be a target."""
        return not self.in_recovery and not self.same and self.major >= OLDEST


def read_needs(source: Session, selection: Selection) -> TargetNeeds:
    """Read what a clone of the selected tables needs."""
    require([version_of(source)], Mode.POLL)
    with source.transaction():
        chosen = choose(read_catalog(source), selection)
        tables, extended = (*chosen.tables, *(each.table for each in chosen.skipped)), read_extended(source)
        sequences = [(schema, name) for schema, name, readable in source.rows(_SEQUENCES) if not readable]
        return TargetNeeds(
            major=source.version_num // 10000,
            encoding=source.connection.info.parameter_status("server_encoding") or "",
            role=source.row("select current_user::text")[0],
            tables=frozenset((table.schema, table.name) for table in tables),
            extensions=tuple(Extension(*row) for row in source.rows(_EXTENSIONS)),
            hidden_sequences=tuple(name for name in sequences if selection.includes(*name)),
            without_identity=tuple(
                (table.schema, table.name)
                for table in chosen.tables
                if not table.identifies_rows and table.oid not in extended
            ),
            extension_rows=tuple(_extension_rows(source)),
            owners=tuple(source.rows(_TABLE_OWNERS, [[table.oid for table in tables if table.oid not in extended]])),
        )


def _extension_rows(source: Session) -> Iterator[tuple[str, str]]:
    """Yield the tables of extensions that have rows, and how many. What the role may not read is estimated."""
    for schema, name, estimate, readable in source.rows(_EXTENSION_TABLES):
        counting = sql.SQL("select count(*) from (select from only {} limit {}) r").format(
            sql.Identifier(schema, name), sql.Literal(_COUNTED + 1)
        )
        rows = source.row(counting.as_string(None))[0] if readable else estimate
        if rows:
            yield f"{schema}.{name}", f"more than {_COUNTED:,}" if readable and rows > _COUNTED else f"{rows:,}"


def read_target_state(source: Session, source_dsn: Dsn, target: Dsn, selection: Selection) -> TargetState:
    """Read the state of a target for a clone of the selected tables of a source; nothing is created."""
    needs = read_needs(source, selection)
    with Session.open(target, "doctor", server=Endpoint.TARGET) as session:
        version, database, role, encoding, in_recovery, read_only = session.row(_SERVER)
        same = is_same_database(source, session) or _have_one_identity((source, source_dsn), (session, target))
        settings = tuple(row[0] for row in session.rows(_READ_ONLY_SETTINGS)) if read_only else ()
        unprobed = TargetState(
            needs, session.version_num, version, database, role, encoding, in_recovery, session.pooled, same,
            settings or (_SERVER_WIDE if read_only else ()),
        )  # fmt: skip
        return _probed(session, target, unprobed) if unprobed.can_be_probed else unprobed


_SERVER_WIDE = ("alter system set default_transaction_read_only = off", "select pg_reload_conf()")


def _have_one_identity(*servers: tuple[Session, Dsn]) -> bool:
    """Return whether both have the same system identifier and database OID; False if a role may not read them."""
    identities: list[Identity] = []
    for session, dsn in servers:
        try:
            identities.append(locate(session, dsn, may_replicate=False).identity)
        except NotPermitted:
            return False
    one, other = ((each.system_identifier, each.database_oid) for each in identities)
    return one == other


def _probed(session: Session, dsn: Dsn, state: TargetState) -> TargetState:
    needs, rights = state.needs, session.rows(_TABLES, [list(PRIVILEGES)])
    tables = [LimitedTable(schema, name, tuple(lacking), hidden) for schema, name, lacking, hidden in rights]
    existing = [table for table in tables if (table.schema, table.name) in needs.tables]
    origin = sql.SQL("select pg_replication_origin_create({})").format(sql.Literal(_probe_name()))
    return replace(
        state,
        creates_schemas=_refusal(session, sql.SQL("create schema {}").format(sql.Identifier(_probe_name()))),
        closed_schemas=_closed_schemas(session, needs),
        limited_tables=tuple(table for table in existing if table.lacking or table.row_security),
        existing_tables=len(existing),
        sets_replication_role=_refusal(session, sql.SQL("set local session_replication_role = replica").format()),
        uses_origins=_refusal(session, origin),
        closed_functions=tuple(row[0] for row in session.rows(_FUNCTIONS, [list(_ORIGIN_FUNCTIONS)])),
        lacking_extensions=tuple(_lacking_extensions(session, dsn, needs)),
        strange_owners=_strange_owners(session, needs),
    )


def _strange_owners(session: Session, needs: TargetNeeds) -> tuple[tuple[str, int], ...]:
    how = "SET" if session.version_num >= 160000 else "MEMBER"
    given = {name for (name,) in session.rows(_GIVEN, [[name for name, _ in needs.owners], how])}
    return tuple((name, tables) for name, tables in needs.owners if name not in given)


def _closed_schemas(session: Session, needs: TargetNeeds) -> tuple[str, ...]:
    existing = {row[0] for row in session.rows("select nspname::text from pg_namespace")}
    create = sql.SQL("create table {} ()")
    return tuple(
        schema
        for schema in needs.schemas
        if schema in existing and _refusal(session, create.format(sql.Identifier(schema, _probe_name()))) is not None
    )


def _lacking_extensions(session: Session, dsn: Dsn, needs: TargetNeeds) -> Iterator[LackingExtension]:
    """Yield the extensions that the target does not have.

    Each is tried in a session of its own: an extension that must be preloaded ends the session.
    """
    offered = {name: (installed, schema) for name, installed, schema in session.rows(_OFFERED)}
    for extension in needs.extensions:
        installed, schema = offered.get(extension.name, (None, None))
        if extension.name not in offered:
            yield LackingExtension(extension, available=False)
        elif installed is None:
            with Session.open(dsn, "doctor", server=Endpoint.TARGET) as own:
                yield LackingExtension(extension, True, _refusal(own, *_creation(extension.name, schema)) or "")


def _creation(extension: str, schema: str | None) -> Iterator[sql.Composed]:
    """Yield statements that create an extension: in its fixed schema, or in a new one if it can be anywhere."""
    name, place = sql.Identifier(extension), sql.Identifier(_probe_name())
    if schema is not None:
        yield sql.SQL("create extension {} cascade").format(name)
    else:
        yield sql.SQL("create schema {}").format(place)
        yield sql.SQL("create extension {} with schema {} cascade").format(name, place)


def _refusal(session: Session, *statements: sql.Composed) -> str | None:
    """Run statements in a transaction that is rolled back; return the message of the error, or None."""
    session.begin(read_only=False)
    try:
        for statement in statements:
            session.execute(statement, "probing the target")
    except ConnectionLost as error:
        if session.connection.closed:
            return error.message
        raise
    except SourceError as error:
        return error.message
    finally:
        session.end()
    return None


def _probe_name() -> str:
    return f"tidemark_probe_{secrets.token_hex(8)}"
