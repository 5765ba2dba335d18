"""Resolution of names to tables of the mirror; the error for an unknown name suggests similar names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NoReturn

from tidemark.mirror.sql.references import Reference
from tidemark.mirror.sql.tokens import refuse
from tidemark.schema.display import spark_name

TableKey = tuple[str, str]
_FILE_FORMATS = {"parquet", "delta", "iceberg", "orc", "avro", "csv", "json", "text", "xml", "binaryfile"}


@dataclass(frozen=True, slots=True)
class NameCatalog:
    """The tables of the mirror, and the search path for names without a schema."""

    sql: str
    known: tuple[TableKey, ...]
    search_path: tuple[str, ...]

    def find(self, reference: Reference) -> TableKey:
        """Return the table of a reference. An exact match takes precedence over one that differs in case."""
        parts = [part.name for part in reference.parts]
        groups = self.candidates(parts[0], parts[1]) if len(parts) == 2 else self._on_path(parts[0])
        for group in groups:
            if len(group) == 1:
                return group[0]
            if group:
                names = " and ".join(spark_name(key) for key in sorted(group))
                refuse(
                    self.sql,
                    reference.start,
                    f"table name {reference} is ambiguous: {names}",
                    "Write one of these names.",
                )
        return self._refuse_unknown(reference, parts)

    def candidates(self, schema: str, table: str) -> list[list[TableKey]]:
        """Return the tables with exactly this name, and then all that match regardless of case."""
        folded = (schema.lower(), table.lower())
        like = [key for key in self.known if (key[0].lower(), key[1].lower()) == folded]
        return [[key for key in like if key == (schema, table)], like]

    def _on_path(self, table: str) -> list[list[TableKey]]:
        here = [[key for key in self.known if key[0] == schema] for schema in self.search_path]
        exact = [[key for key in keys if key[1] == table] for keys in here]
        return exact + [[key for key in keys if key[1].lower() == table.lower()] for keys in here]

    def _refuse_unknown(self, reference: Reference, parts: Sequence[str]) -> NoReturn:
        if len(parts) == 2 and parts[0].lower() in _FILE_FORMATS:
            hint = "Read files with `spark.read`; a query on a mirror reads tables of the mirror only."
            refuse(self.sql, reference.start, f"{reference} is a path, not a table of the mirror", hint)
        where = "" if len(parts) == 2 else f" in schema {', '.join(self.search_path)}"
        message = f"table {reference} does not exist{where}"
        refuse(self.sql, reference.start, message, self._suggestion(parts))

    def _suggestion(self, parts: Sequence[str]) -> str:
        """Return a hint: the same name in other schemas, else similar names, else the tables of the mirror."""
        same = sorted(key for key in self.known if key[1].lower() == parts[-1].lower())
        alike = get_close_matches(parts[-1].lower(), {key[1].lower() for key in self.known}, n=3)
        close = same or [key for name in alike for key in sorted(self.known) if key[1].lower() == name]
        if close:
            return f"Did you mean {' or '.join(spark_name(key) for key in close[:5])}?"
        some = ", ".join(spark_name(key) for key in sorted(self.known)[:10])
        more = f" and {len(self.known) - 10} more" if len(self.known) > 10 else ""
        return (
            f"Tables of the mirror: {some}{more}." if some else "Run `tidemark sync` first: no table is mirrored yet."
        )
