"""Invented tables: columns of every type, rows, and what becomes of both in the phases of a lake.

All is drawn from one seed. Every row has an `id` that no other row has, and every change is about one row, so that a
table can be made again with fewer rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from tests.differential.kinds import DECIMALS, KINDS, NUMERICS, Kind, Sql, quoted

COPIED, CHANGED, APPLIED, FOLDED = "copied", "changed", "changes applied", "folded"
ALTERED, ALTERED_CHANGED, ALTERED_FOLDED = "altered", "altered and changed", "altered and folded"
PHASES = (COPIED, CHANGED, APPLIED, FOLDED, ALTERED, ALTERED_CHANGED, ALTERED_FOLDED)
CHANGED_IN = (CHANGED, APPLIED, ALTERED, ALTERED_CHANGED)

COLUMNS = 9
ODD_NAMES = ("Größe", "select", "a b", "Case", "q`q")
LARGE_BYTES = 3000
FIRST = 0  # the id of a row that is never changed, but for its first values without a twin

# What ALTER TYPE does without writing the rows again, and with: then the table is copied again.
_BY_TYPE = {kind.type: kind for kind in KINDS if not kind.setup}
WIDENED = {
    "numeric(20,10)": NUMERICS[0],
    "numeric(10,2)": DECIMALS[6],
    "varchar(10)": _BY_TYPE["varchar(40)"],
    "varchar(40)": _BY_TYPE["text"],
    "varchar": _BY_TYPE["text"],
    "text": _BY_TYPE["varchar"],
    "timestamp(3)": _BY_TYPE["timestamp"],
}
REWRITTEN = {
    "int2": _BY_TYPE["int4"],
    "int4": _BY_TYPE["int8"],
    "float4": _BY_TYPE["float8"],
    "numeric(9,2)": DECIMALS[12],
    "timestamp": _BY_TYPE["timestamptz"],
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column, and whether it has met a value that the mirror keeps as text beside it."""

    name: str
    kind: Kind
    strange: bool = False
    large: bool = False

    def read(self, alias: str, suffix: str = "") -> Sql:
        spark, postgres = (self.name + suffix).replace("`", "``"), self.name.replace('"', '""')
        return Sql(f"{alias}.`{spark}`", f'{alias}."{postgres}"')

    @property
    def quoted(self) -> str:
        return '"' + self.name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class Change:
    """A statement of the application, and the row that it is about, if it is about one."""

    sql: str
    id: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What happens to a table when a phase begins, and the columns that it has from then on."""

    changes: tuple[Change, ...]
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its story, by phase."""

    name: str
    definition: str
    steps: dict[str, Step]

    def changes(self, phase: str, ids: frozenset[int] | None = None) -> Iterator[str]:
        """The statements of a phase, of these rows only if they are given."""
        for change in self.steps[phase].changes:
            if ids is None or change.id is None or change.id in ids:
                yield change.sql

    def ids(self) -> frozenset[int]:
        return frozenset(change.id for step in self.steps.values() for change in step.changes if change.id is not None)


Draw = Callable[[int], str | None]


class Inventor:
    """Invents one table."""

    def __init__(self, name: str, kinds: Sequence[Kind], chance: Random, rows: int) -> None:
        self._name, self._chance, self._rows = name, chance, rows
        self._columns = [self._column(number, kind) for number, kind in enumerate(kinds)]
        self._key = self._chosen_key()
        self._draws = {column.name: self._draw(column) for column in self._columns}
        self._fresh = {name: self._unused(name) for name in self._key}
        self._ids: list[int] = []  # without that of the first row, which stays as it is

    def table(self) -> Table:
        columns = ", ".join(f"{column.quoted} {column.kind.type}" for column in self._columns)
        keyed = self._key and self._chance.random() < 0.8
        key = f", primary key ({', '.join(self._quoted_key())})" if self._key else ""
        definition = f"create table {self._name} (id int4 not null, {columns}{key})"
        identity = f"alter table {self._name} replica identity {'default' if keyed else 'full'}"
        external = [f"alter column {column.quoted} set storage external" for column in self._columns if column.large]
        storage = [f"alter table {self._name} {', '.join(external)}"] if external else []
        first = [self._first(), *self._inserted(range(1, self._rows))]
        steps = {COPIED: Step((*map(Change, (identity, *storage)), *first), tuple(self._columns))}
        for phase in PHASES[1:]:
            altered = self._altered() if phase == ALTERED else ()
            changes = self._changed(phase) if phase in CHANGED_IN else ()
            steps[phase] = Step((*map(Change, altered), *changes), tuple(self._columns))
        return Table(self._name, definition, steps)

    def _column(self, number: int, kind: Kind) -> Column:
        odd = self._chance.random() < 0.08
        name = f"{self._chance.choice(ODD_NAMES)}{number}" if odd else f"c{number}"
        strange = bool(kind.strange) and self._chance.random() < 0.35
        return Column(name, kind, strange, kind.can_be_large and self._chance.random() < 0.3)

    def _chosen_key(self) -> tuple[str, ...]:
        """The id, other columns, both, or none."""
        able = [
            column.name
            for column in self._columns
            # a copy that is made after the last such value leaves a key without a text fallback
            if column.kind.can_be_key and not column.large and not column.strange
        ]
        way = self._chance.random()
        if way < 0.2:
            return ()
        if way < 0.5 or not able:
            return ("id",)
        return (self._chance.choice(able),) if way < 0.85 else ("id", self._chance.choice(able))

    def _quoted_key(self) -> list[str]:
        return ['"' + name.replace('"', '""') + '"' for name in self._key]

    def _unused(self, name: str) -> Iterator[str]:
        """Values for a column of the key, each once: some extremes that are all different, then close ones."""
        column = next((column for column in self._columns if column.name == name), None)
        if column is None:
            return
        kind = column.kind
        yield from ("NaN", "-0") if kind.type.startswith("float") else ()
        yield from kind.strange[:2] if column.strange else ()
        number = 30
        while True:
            yield kind.near(number)
            number += 1

    def _draw(self, column: Column) -> Draw:
        """How values of a column are drawn: what statistics and dictionaries of files depend on."""
        chance, kind = self._chance, column.kind
        special = chance.choice(kind.odd or kind.pool)
        few = [special, *(kind.near(chance.randrange(1, 50)) for _ in range(chance.randrange(3)))]
        base, nulls = chance.randrange(100), chance.choice((0.0, 0.02, 0.2, 0.9))
        draws: tuple[Draw, ...] = (
            lambda _: chance.choice(kind.pool) if chance.random() < 0.7 else kind.near(chance.randrange(50)),
            lambda _: chance.choice(few),
            lambda _: kind.near(base + chance.randrange(50)) if chance.random() < 0.97 else special,
            lambda number: kind.near(base + number) if number % 40 else special,
        )
        draw = chance.choice(draws)
        odd = [each for each in self._columns if each.kind.odd]
        if column in odd[:2]:  # a dictionary with -0 and not 0, and bounds that leave NaN out
            few[0] = kind.odd[1 - odd.index(column)]
            draw = draws[1]

        def drawn(number: int) -> str | None:
            if column.strange and chance.random() < 0.05:
                return chance.choice(kind.strange)
            if column.large and chance.random() < 0.2:
                return self._large(kind)
            return None if chance.random() < nulls else draw(number)

        return drawn

    def _large(self, kind: Kind) -> str:
        digits = self._chance.randbytes(LARGE_BYTES // 2).hex()
        return {"bytea": f"\\x{digits}", "json": f'"{digits}"', "jsonb": f'"{digits}"'}.get(kind.type, digits)

    def _value(self, column: Column, number: int) -> str | None:
        return next(self._fresh[column.name]) if column.name in self._fresh else self._draws[column.name](number)

    def _first(self) -> Change:
        """The row that shows every column that is strange to be so."""
        values = {column: self._value(column, FIRST) for column in self._columns}
        strange = {
            column: column.kind.strange[0] for column in values if column.strange and column.name not in self._key
        }
        return self._insert(FIRST, {**values, **strange})

    def _inserted(self, ids: Sequence[int]) -> Iterator[Change]:
        for number in ids:
            self._ids.append(number)
            yield self._insert(number, {column: self._value(column, number) for column in self._columns})

    def _insert(self, number: int, values: dict[Column, str | None]) -> Change:
        names = ", ".join(column.quoted for column in values)
        literals = ", ".join(map(_literal, values.values()))
        return Change(f"insert into {self._name} (id, {names}) values ({number}, {literals})", number)

    def _changed(self, phase: str) -> Iterator[Change]:
        """Some rows updated, keys too, some deleted and some added; once in a while all rows removed before."""
        chance = self._chance
        if phase == APPLIED:
            yield from self._begin_strange_values()
        if chance.random() < 0.07 and phase == CHANGED:
            self._ids.clear()
            yield Change(f"truncate {self._name}")
            yield self._first()
        for number in chance.sample(self._ids, len(self._ids) // 5):
            if chance.random() < 0.25:
                self._ids.remove(number)
                yield Change(f"delete from {self._name} where id = {number}", number)
                continue
            able = [column for column in self._columns if column.name not in self._key or chance.random() < 0.3]
            some = chance.sample(able, min(len(able), chance.choice((1, 1, 2, 4))))
            values = ", ".join(f"{column.quoted} = {_literal(self._value(column, number))}" for column in some)
            if values:
                yield Change(f"update {self._name} set {values} where id = {number}", number)
        start = max(self._ids, default=0) + 1000
        yield from self._inserted(range(start, start + self._rows // 8))

    def _begin_strange_values(self) -> Iterator[Change]:
        """A column may meet its first value without a twin long after the copy."""
        for at, column in enumerate(self._columns):
            free = column.kind.strange and not column.strange and column.name not in self._key
            if free and self._chance.random() < 0.2:
                self._columns[at] = replace(column, strange=True)
                self._draws[column.name] = self._draw(self._columns[at])
                value = quoted(column.kind.strange[0])
                yield Change(f"update {self._name} set {column.quoted} = {value} where id = {FIRST}", FIRST)

    def _altered(self) -> Iterator[str]:
        if self._chance.random() < 0.25:
            yield from self._retyped(REWRITTEN)
            return
        yield from self._retyped(WIDENED)
        yield from self._renamed()
        yield from self._dropped()
        yield from self._added()

    def _retyped(self, types: dict[str, Kind]) -> Iterator[str]:
        for at, column in enumerate(self._columns):
            wider = types.get(column.kind.type)
            if wider is None or self._chance.random() < 0.2:
                continue
            strange = column.strange and bool(wider.strange)
            self._columns[at] = replace(column, kind=wider, strange=strange, large=False)
            if column.name not in self._fresh:
                self._draws[column.name] = self._draw(self._columns[at])
            yield f"alter table {self._name} alter column {column.quoted} type {wider.type}"

    def _renamed(self) -> Iterator[str]:
        at = self._chance.randrange(len(self._columns))
        column = self._columns[at]
        if column.name in self._key:
            return
        self._columns[at] = replace(column, name=f"r{column.name}")
        self._draws[f"r{column.name}"] = self._draws.pop(column.name)
        yield f"alter table {self._name} rename column {column.quoted} to {self._columns[at].quoted}"

    def _dropped(self) -> Iterator[str]:
        free = [column for column in self._columns if column.name not in self._key]
        if len(free) > 3:
            column = self._chance.choice(free)
            self._columns.remove(column)
            yield f"alter table {self._name} drop column {column.quoted}"

    def _added(self) -> Iterator[str]:
        """Columns with a constant default, which rows that are there read as, and one without."""
        for name in ("added1", "added2", "added3"):
            kind = self._chance.choice(KINDS)
            strange = bool(kind.strange) and self._chance.random() < 0.5
            column = Column(name, kind, strange)
            self._columns.append(column)
            self._draws[name] = self._draw(column)
            value = self._chance.choice(kind.strange if strange else kind.pool)
            default = f" default {_literal(value)}" if strange or name != "added3" else ""
            yield f"alter table {self._name} add column {name} {kind.type}{default}"


def invent(chance: Random, kinds: Sequence[Kind] = KINDS, columns: int = COLUMNS, most_rows: int = 250) -> list[Table]:
    """Tables that have a column of every one of these types."""
    deck = list(kinds)
    chance.shuffle(deck)
    hands = [deck[at : at + columns] for at in range(0, len(deck), columns)]
    sizes = (chance.choice((most_rows // 6, most_rows // 2, most_rows)) for _ in hands)
    return [
        Inventor(f"t{number}", hand, chance, rows).table()
        for number, (hand, rows) in enumerate(zip(hands, sizes, strict=True))
    ]


def setup() -> list[str]:
    """What has to be created before any table."""
    return [kind.setup for kind in KINDS if kind.setup]


def _literal(value: str | None) -> str:
    return "null" if value is None else quoted(value)
