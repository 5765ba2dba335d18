"""What a session sees: one statement that returns it, and the values that it returns.

The statement is fully qualified and independent of the session's settings, so that it may run in the session of any
client, beside its own statements. It returns one row with one text, which is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from tidemark.clock import Lsn, Snapshot
from tidemark.errors import Unproven
from tidemark.quoting import double_quoted, postgres_text
from tidemark.split.parse import Name, Parsed

FIRST_USER_OID = 16384
REPLAYED = "tidemark.replayed"  # set in the statement before: the LSN that a standby had replayed by then
SETTINGS = ("tidemark.route", "tidemark.at", "tidemark.cost", "tidemark.wait", "tidemark.notice", "tidemark.prefer")
_NEEDED = {
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "array_nulls": "on",  # the rows of a bottom are arrays
    "server_encoding": "UTF8",
    "client_encoding": "UTF8",
}
_SHOWN = (*_NEEDED, *SETTINGS, "transaction_isolation", "transaction_read_only", "search_path", "server_version_num")

_QUERY = """\
SELECT pg_catalog.jsonb_build_object(
 'snapshot', pg_catalog.pg_current_snapshot()::pg_catalog.text,
 'recovery', pg_catalog.pg_is_in_recovery(),
 'replayed', pg_catalog.current_setting({replayed}, true),
 'system', (SELECT c.system_identifier FROM pg_catalog.pg_control_system() c),
 'timeline', CASE WHEN pg_catalog.pg_is_in_recovery() THEN GREATEST(
     (SELECT r.received_tli FROM pg_catalog.pg_stat_wal_receiver r),
     (SELECT r.min_recovery_end_timeline FROM pg_catalog.pg_control_recovery() r),
     (SELECT c.timeline_id FROM pg_catalog.pg_control_checkpoint() c))
   ELSE (('x'::pg_catalog.text OPERATOR(pg_catalog.||) pg_catalog."left"(
     pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8))::pg_catalog.bit(32))::pg_catalog.int4 END,
 'lsn', CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
             ELSE pg_catalog.pg_current_wal_insert_lsn() END::pg_catalog.text,
 'xid', pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text,
 'path', pg_catalog.to_jsonb(pg_catalog.current_schemas(true)),
 'settings', (SELECT pg_catalog.jsonb_object_agg(n.s, pg_catalog.current_setting(n.s, true))
   FROM pg_catalog.unnest({settings}::pg_catalog.text[]) AS n(s)),
 'database', (SELECT pg_catalog.to_jsonb(d) OPERATOR(pg_catalog.-) 'datacl'::pg_catalog.text
   FROM pg_catalog.pg_database d
   WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()),
 'casts', (SELECT pg_catalog.count(*) FROM pg_catalog.pg_cast k
   WHERE k.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid
     AND (k.castsource OPERATOR(pg_catalog.<) 16384::pg_catalog.oid)
     AND (k.casttarget OPERATOR(pg_catalog.<) 16384::pg_catalog.oid)),
 'operators', (SELECT pg_catalog.jsonb_agg(DISTINCT o.oprname) FROM pg_catalog.pg_operator o
   JOIN pg_catalog.pg_namespace s ON s.oid OPERATOR(pg_catalog.=) o.oprnamespace
   WHERE o.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid
     AND o.oprname OPERATOR(pg_catalog.=) ANY ({operators}::pg_catalog.name[])
     AND s.nspname OPERATOR(pg_catalog.=) ANY (pg_catalog.current_schemas(true))),
 'functions', (SELECT pg_catalog.jsonb_agg(DISTINCT pg_catalog.jsonb_build_array(s.nspname, p.proname,
     p.prokind::pg_catalog.text,
     p.provolatile::pg_catalog.text, p.proretset, p.oid OPERATOR(pg_catalog.<) 16384::pg_catalog.oid))
   FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace s ON s.oid OPERATOR(pg_catalog.=) p.pronamespace
   WHERE p.proname OPERATOR(pg_catalog.=) ANY ({functions}::pg_catalog.name[])
     AND (s.nspname OPERATOR(pg_catalog.=) ANY (pg_catalog.current_schemas(true))
       OR s.nspname OPERATOR(pg_catalog.=) ANY ({schemas}::pg_catalog.name[]))),
 'types', (SELECT pg_catalog.jsonb_object_agg(n.s, pg_catalog.to_regtype(n.s)::pg_catalog.oid::pg_catalog.int8)
   FROM pg_catalog.unnest({types}::pg_catalog.text[]) AS n(s)),
 'collations', (SELECT pg_catalog.jsonb_object_agg(l.oid::pg_catalog.text, pg_catalog.jsonb_build_array(
     s.nspname, pg_catalog.to_jsonb(l)))
   FROM pg_catalog.pg_collation l JOIN pg_catalog.pg_namespace s ON s.oid OPERATOR(pg_catalog.=) l.collnamespace
   WHERE l.oid OPERATOR(pg_catalog.=) ANY (SELECT a.attcollation
     FROM pg_catalog.pg_attribute a JOIN pg_catalog.unnest({relations}::pg_catalog.text[]) AS n(s)
       ON a.attrelid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(n.s)::pg_catalog.oid)),
 'relations', (SELECT pg_catalog.jsonb_object_agg(n.s, (SELECT pg_catalog.jsonb_build_object(
     'oid', c.oid::pg_catalog.int8, 'schema', s.nspname, 'name', c.relname, 'kind', c.relkind::pg_catalog.text,
     'persistence', c.relpersistence::pg_catalog.text, 'security', c.relrowsecurity, 'rules', c.relhasrules,
     'rewritten', COALESCE(c.relfilenode OPERATOR(pg_catalog.<>) pg_catalog.pg_relation_filenode(c.oid), false),
     'children', EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhparent OPERATOR(pg_catalog.=) c.oid),
     'columns', (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(a.attnum, a.attname,
         a.atttypid::pg_catalog.int8, a.atttypmod, a.attcollation::pg_catalog.int8, a.attgenerated::pg_catalog.text,
         a.attnotnull) ORDER BY a.attnum)
       FROM pg_catalog.pg_attribute a WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid
         AND (a.attnum OPERATOR(pg_catalog.>) 0::pg_catalog.int2) AND NOT a.attisdropped))
     FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace s ON s.oid OPERATOR(pg_catalog.=) c.relnamespace
     WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(n.s)::pg_catalog.oid))
   FROM pg_catalog.unnest({relations}::pg_catalog.text[]) AS n(s))
)::pg_catalog.text"""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table as the session sees it."""

    attnum: int
    name: str
    type: int
    typmod: int
    collation: int
    generated: str
    not_null: bool


@dataclass(frozen=True, slots=True)
class ResolvedRelation:
    """A relation as the session resolves a name; `rewritten` since its snapshot, as TRUNCATE does for all snapshots."""

    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    security: bool
    rules: bool
    rewritten: bool
    children: bool
    columns: tuple[TableColumn, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """The functions of one name that the session can see: their kinds, and the volatility of the most volatile."""

    kinds: frozenset[str]
    volatile: bool
    returns_set: bool
    builtin: bool
    immutable: bool


@dataclass(frozen=True, slots=True)
class Collation:
    """Whether equal means equal bytes, and whether texts are ordered by their bytes."""

    deterministic: bool
    is_c: bool
    name: Name = ()


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """The session: its server, snapshot and LSN, its transaction, its settings, and what it sees under the names.

    On a standby `lsn` is the LSN replayed after the snapshot was taken, and `replayed` one from before it, unless the
    snapshot is that of an earlier statement.
    """

    system_identifier: int
    database_oid: int
    timeline: int
    snapshot: Snapshot
    lsn: Lsn
    in_recovery: bool
    replayed: Lsn | None
    xid: str | None
    path: tuple[str, ...]
    settings: dict[str, str | None]
    user_casts: bool
    operators: frozenset[str]
    functions: dict[Name, Function]
    types: dict[Name, int | None]
    collations: dict[int, Collation]
    relations: dict[Name, ResolvedRelation | None]

    @classmethod
    def read(cls, text: str, parsed: Parsed) -> SessionFacts:
        """Read the result of the statement that `facts_query` returns for the same names."""
        plain = json.loads(text)
        path = tuple(plain["path"])
        default = _default_collation(plain["database"])
        collations = {
            int(oid): _collation(each[0], each[1], default) for oid, each in (plain["collations"] or {}).items()
        }
        types, relations = plain["types"] or {}, plain["relations"] or {}
        return cls(
            system_identifier=plain["system"],
            database_oid=int(plain["database"]["oid"]),
            timeline=plain["timeline"],
            snapshot=Snapshot.parse(plain["snapshot"]),
            lsn=Lsn.parse(plain["lsn"]),
            in_recovery=plain["recovery"],
            replayed=Lsn.parse(plain["replayed"]) if plain["replayed"] else None,
            xid=plain["xid"],
            path=path,
            settings=plain["settings"],
            user_casts=plain["casts"] > 0,
            operators=frozenset(plain["operators"] or ()),
            functions={name: _function(name, plain["functions"] or [], path) for name in parsed.functions},
            types={name: types[_quoted(name)] for name in parsed.types},
            collations={**collations, 100: default},
            relations={name: _relation(relations[_quoted(name)]) for name in parsed.relations},
        )

    @property
    def version_num(self) -> int:
        """The server's version as a number."""
        return int(self.settings["server_version_num"] or 0)

    def require_ordinary(self, parsed: Parsed) -> None:
        """Raise Unproven if a name or a setting of the session may change what the statement means."""
        for name, wanted in _NEEDED.items():
            if self.settings[name] != wanted:
                raise Unproven(f"the setting {name} is {self.settings[name]}")
        ahead = [each for each in self.path if not each.startswith("pg_temp")]
        if ahead[:1] != ["pg_catalog"]:
            raise Unproven("pg_catalog is not first in the search path")
        if self.user_casts:
            raise Unproven("a cast between built-in types was added to the database")
        if self.operators:
            raise Unproven(f"an operator {min(self.operators)} was added to the database")
        for function in parsed.functions:
            self._require_plain(function)

    def _require_plain(self, name: Name) -> None:
        function = self.functions[name]
        if not function.kinds:
            raise Unproven(f"the function {'.'.join(name)} does not exist")
        if function.volatile:
            raise Unproven(f"the function {'.'.join(name)} is volatile")
        if function.returns_set:  # in a list of results or in ORDER BY it multiplies rows, or removes them
            raise Unproven(f"the function {'.'.join(name)} returns a set")
        if not (function.builtin or function.immutable) or (not function.builtin and "a" in function.kinds):
            raise Unproven(f"the function {'.'.join(name)} is not built in")


def facts_query(parsed: Parsed) -> str:
    """Return the statement whose result `SessionFacts.read` reads: one row with one text."""
    return _QUERY.format(
        replayed=postgres_text(REPLAYED),
        settings=_array(_SHOWN),
        operators=_array(sorted(parsed.operators)),
        functions=_array(sorted({name[-1] for name in parsed.functions})),
        schemas=_array(sorted({name[0] for name in parsed.functions if len(name) > 1})),
        types=_array(sorted(map(_quoted, parsed.types))),
        relations=_array(sorted(map(_quoted, parsed.relations))),
    )


def _array(items: Iterable[str]) -> str:
    return f"ARRAY[{', '.join(map(postgres_text, items))}]"


def _quoted(name: Name) -> str:
    return ".".join(map(double_quoted, name))


def _function(name: Name, rows: list[list[str | bool]], path: tuple[str, ...]) -> Function:
    """Return what a session sees under the name of a function; every schema of the path counts."""
    schemas = path if len(name) == 1 else name[:1]
    found = [row for row in rows if row[1] == name[-1] and row[0] in schemas]
    return Function(
        kinds=frozenset(str(row[2]) for row in found),
        volatile=any(row[3] == "v" for row in found),
        returns_set=any(bool(row[4]) for row in found),
        builtin=all(row[0] == "pg_catalog" and bool(row[5]) for row in found),
        immutable=all(row[3] == "i" for row in found),
    )


def _default_collation(database: dict[str, str | None]) -> Collation:
    locale = database.get("datlocale") or database.get("daticulocale") or database["datcollate"]
    return Collation(True, _is_c(database.get("datlocprovider") or "c", database["datcollate"], locale))


def _collation(schema: str, row: dict[str, str | bool | None], default: Collation) -> Collation:
    provider = str(row["collprovider"])
    if provider == "d":
        return default
    name = (schema, str(row["collname"]))
    collate, locale = row["collcollate"], row.get("colllocale") or row.get("colliculocale")
    is_c = _is_c(provider, str(collate), str(locale if locale is not None else collate))
    return Collation(bool(row["collisdeterministic"]), is_c, name)


def _is_c(provider: str, collate: str | None, locale: str | None) -> bool:
    """Return whether texts in UTF-8 are ordered by their bytes."""
    if provider == "c":
        return collate in ("C", "POSIX")
    return provider == "b" and locale in ("C", "C.UTF-8", "C.UTF8", "PG_UNICODE_FAST")


def _relation(row: dict[str, object] | None) -> ResolvedRelation | None:
    if row is None:
        return None
    columns: list[list[object]] = row.pop("columns") or []  # type: ignore[assignment]
    return ResolvedRelation(**row, columns=tuple(TableColumn(*each) for each in columns))  # type: ignore[arg-type]
