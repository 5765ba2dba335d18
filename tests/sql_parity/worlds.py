"""The tables of random statements: invented ones with extreme values, and small ones that join, group and add up.

The tame tables have few different values, NULLs, texts that differ in blanks alone, keys without partners, and one has
no rows. `FAMILIES` says which columns can stand for each other in an expression.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from tests.differential.kinds import BOOL as BOOLEAN
from tests.differential.kinds import BYTEA, DECIMALS, ENUM, FLOATS, INTEGERS, KINDS, MOMENTS, UUID, Kind
from tests.differential.statements import Relation
from tests.differential.tables import CHANGED_IN, COPIED, PHASES, Change, Column, Step, Table, invent

INTEGER, NUMERIC, TEXT, BLANKS, FLOAT, BOOL = "integer", "numeric", "text", "blanks", "float", "bool"
DATE, TIMESTAMP, TIMESTAMPTZ, OTHER = "date", "timestamp", "timestamptz", "other"
ORDERED = (INTEGER, NUMERIC, FLOAT, DATE, TIMESTAMP, TIMESTAMPTZ)
_FAMILIES = (
    (r"int[248]", INTEGER),
    (r"numeric\(([1-9]|[12]\d|3[0-8]),\d+\)", NUMERIC),
    (r"text|varchar(\(\d+\))?", TEXT),
    (r"char\(\d+\)", BLANKS),
    (r"float[48]", FLOAT),
    (r"bool", BOOL),
    (r"date", DATE),
    (r"timestamp(\(\d\))?", TIMESTAMP),
    (r"timestamptz", TIMESTAMPTZ),
    (r"uuid|bytea|mood", "{}"),
)
NULLS = 0.12
EMPTY = "nothing"


def family_of(type_: str) -> str:
    """The family of a type; columns of `other` are only counted."""
    return next((name.format(type_) for pattern, name in _FAMILIES if re.fullmatch(pattern, type_)), OTHER)


def of_family(family: str) -> tuple[Kind, ...]:
    """The invented tables' types of one family."""
    return tuple(kind for kind in KINDS if family_of(kind.type) == family)


PROVEN = (*INTEGERS[:3], *DECIMALS, *of_family(TEXT), *of_family(BLANKS), *FLOATS, BOOLEAN, *MOMENTS, UUID, BYTEA, ENUM)


def tame(type_: str, *pool: str) -> Kind:
    """A type with few values."""
    return Kind(type_, pool, lambda n: pool[n % len(pool)], ())


KEY = tame("int4", *map(str, range(1, 41)))
SMALL = tame("int4", "0", "1", "2", "3", "5", "7", "-1", "-4", "10", "100")
BLANK_TEXTS = ("", " ", "a", "a ", "a  ", "A", "ab", "b", "ä", "Ab", "a%b", "a_b", "null")
WORDS = ("north", "south", "east", "west", "North", "so", "special requests", "x special y requests", "")
MONEY = tame("numeric(12,2)", "0.00", "0.01", "-0.01", "1.00", "1.50", "99.99", "-250.00", "1000.00", "123456.78")
RATE = tame("numeric(5,4)", "0.0000", "0.0500", "0.0700", "0.1000", "1.0000", "-0.3333")
DAYS = tame("date", "2019-12-31", "2020-01-01", "2020-02-29", "2020-03-01", "2020-06-30", "2021-01-01", "1999-12-31")
TIMES = tame("timestamp", "2020-01-01 00:00:00", "2020-01-01 00:00:00.000001", "2020-02-29 23:59:59.999999")
ZONED = tame("timestamptz", "2020-01-01 00:00:00+00", "2020-03-29 01:00:00+00", "2020-07-01 12:30:00+02")
TAME: dict[str, tuple[int, dict[str, Kind]]] = {
    "customers": (
        60,
        {
            "region": tame("int2", "1", "2", "3", "32767"),
            "name": tame("varchar(20)", *WORDS),
            "code": tame("char(4)", *(text for text in BLANK_TEXTS if len(text) <= 4)),
            "segment": tame("text", *BLANK_TEXTS),
            "balance": MONEY,
            "since": DAYS,
            "active": tame("bool", "t", "f"),
            "product": KEY,
        },
    ),
    "sales": (
        300,
        {
            "customer": tame("int8", *map(str, range(1, 70))),
            "product": KEY,
            "amount": MONEY,
            "discount": RATE,
            "quantity": SMALL,
            "sold": DAYS,
            "at": TIMES,
            "booked": ZONED,
            "state": tame("char(8)", *WORDS[:6]),
            "note": tame("varchar(30)", *WORDS, *BLANK_TEXTS),
            "weight": tame("float8", "0", "0.1", "1e15", "NaN", "-0", "Infinity", "2.5"),
        },
    ),
    "products": (
        40,
        {
            "label": tame("text", *WORDS),
            "kind": tame("char(3)", "a", "a b", "ab", "b", ""),
            "price": tame("numeric(9,4)", "0.0001", "12.5000", "99999.9999", "-1.0000"),
            "units": tame("int2", "0", "1", "12", "-12"),
            "launched": DAYS,
            "parent": KEY,
            "total": tame("numeric(38,10)", "0.0000000001", "1.0000000000", "9999999999999999999999999999.9999999999"),
        },
    ),
    "strange": (
        50,
        {
            "day": tame("date", "infinity", "-infinity", "2020-01-01", "0044-03-15 BC", "2020-02-29"),
            "at": tame("timestamp", "infinity", "2020-01-01 00:00:00", "-infinity"),
            "rate": tame("numeric(5,2)", "NaN", "1.00", "2.50", "-1.00"),
            "free": tame("numeric", "1.0", "1.00", "1", "NaN", "Infinity", "1e50", "0.10"),
            "key": KEY,
        },
    ),
    EMPTY: (0, {"n": SMALL, "amount": MONEY, "word": tame("text", *WORDS), "day": DAYS}),
}


def tame_table(name: str, chance: Random) -> Table:
    """One of the tame tables, which changes in the same phases as invented ones."""
    rows, kinds = TAME[name]
    columns = tuple(Column(column, kind) for column, kind in kinds.items())
    listed = ", ".join(f"{column.quoted} {column.kind.type}" for column in columns)
    numbers = list(range(1, rows + 1))
    steps = {COPIED: Step(tuple(_inserts(name, columns, numbers, chance)), columns)}
    for phase in PHASES[1:]:
        changes = _changes(name, columns, numbers, chance) if phase in CHANGED_IN and rows else []
        steps[phase] = Step(tuple(changes), columns)
    return Table(name, f"create table {name} (id int4 primary key, {listed})", steps)


def _inserts(name: str, columns: Sequence[Column], numbers: Sequence[int], chance: Random) -> list[Change]:
    names = ", ".join(column.quoted for column in columns)
    return [
        Change(
            f"insert into {name} (id, {names}) values "
            f"({number}, {', '.join(_value(column, chance) for column in columns)})",
            number,
        )
        for number in numbers
    ]


def _changes(name: str, columns: Sequence[Column], numbers: list[int], chance: Random) -> list[Change]:
    found = []
    for number in chance.sample(numbers, len(numbers) // 5):
        if chance.random() < 0.25:
            numbers.remove(number)
            found.append(Change(f"delete from {name} where id = {number}", number))
            continue
        column = chance.choice(columns)
        changed = f"update {name} set {column.quoted} = {_value(column, chance)} where id = {number}"
        found.append(Change(changed, number))
    new = list(range(max(numbers, default=0) + 1, max(numbers, default=0) + 1 + len(numbers) // 8))
    numbers += new
    return found + _inserts(name, columns, new, chance)


def _value(column: Column, chance: Random) -> str:
    if chance.random() < NULLS:
        return "null"
    return "'" + chance.choice(column.kind.pool).replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class Inventory:
    """The tables of a world."""

    tables: tuple[Table, ...]

    def relations(self, phase: str) -> tuple[Relation, ...]:
        """The tables as they are in a phase."""
        return tuple(Relation(table.name, table.steps[phase].columns) for table in self.tables)


def world(seed: int, kinds: Sequence[Kind] = PROVEN, rows: int = 120, names: Sequence[str] = tuple(TAME)) -> Inventory:
    """The tables of a seed."""
    chance = Random(seed)  # noqa: S311 - to be repeated
    invented = [replace(table) for table in invent(chance, kinds, most_rows=rows)] if kinds else []
    return Inventory((*(tame_table(name, chance) for name in names), *invented))
