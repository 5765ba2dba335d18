"""Random typed expressions and conditions in PostgreSQL's own dialect, over the columns in scope.

Only such text is written as PostgreSQL accepts: operands have one family, literals one of its spellings. An expression
is `plain` if equal values of it print alike: a CASE with branches of different scales is not, and no key of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from tests.differential.statements import Relation
from tests.differential.tables import Column
from tests.sql_parity.worlds import (
    BLANKS,
    BOOL,
    DATE,
    FLOAT,
    INTEGER,
    NUMERIC,
    ORDERED,
    OTHER,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    family_of,
)

COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
TYPED = {DATE: "date", TIMESTAMP: "timestamp", TIMESTAMPTZ: "timestamptz"}
PATTERNS = ("a%", "%b", "%special%requests%", "_", "%", "", "a_b%", "so%", "%ä%", "n_rth", "k000%")
CALENDAR = ("2020-01-01", "2020-02-29", "2019-12-31", "1999-12-31", "2020-06-30")


@dataclass(frozen=True, slots=True)
class Name:
    """A column in scope, by a name that is valid there."""

    sql: str
    column: Column

    @property
    def family(self) -> str:
        """What it can stand for."""
        return family_of(self.column.kind.type)


@dataclass(frozen=True, slots=True)
class Value:
    """An expression, and whether equal values of it print alike."""

    sql: str
    plain: bool = True


Scope = tuple[Name, ...]


def names_of(relation: Relation, alias: str) -> Scope:
    """The columns of a relation under an alias."""
    return tuple(Name(f"{alias}.{column.quoted}", column) for column in relation.columns)


def quoted(text: str) -> str:
    """A literal."""
    return "'" + text.replace("'", "''") + "'"


class Expressions:
    """Writes expressions with one source of chance."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance

    def column(self, scope: Scope, families: Sequence[str] = ()) -> Name | None:
        """A column of one of these families, or of any."""
        found = [name for name in scope if not families or name.family in families]
        return self.chance.choice(found) if found else None

    def literal(self, name: Name) -> str:
        """A value of a column's type."""
        kind, family = name.column.kind, name.family
        near = kind.near(self.chance.randrange(160))
        text = self.chance.choice(kind.pool) if self.chance.random() < 0.6 else near
        if family in {INTEGER, NUMERIC} and text.lstrip("-").replace(".", "", 1).isdigit():
            return text if self.chance.random() < 0.9 else quoted(text)
        if family in TYPED and self.chance.random() < 0.5:
            return f"{TYPED[family]} {quoted(text)}"
        if family == BOOL:
            return "true" if text == "t" else "false"
        if family == FLOAT:
            return f"{quoted(text)}::float8"
        return quoted(text)

    def value(self, scope: Scope, family: str, depth: int = 1) -> Value | None:
        """An expression of a family, None if no column has it."""
        name = self.column(scope, (family,))
        if name is None:
            return None
        if depth == 0 or self.chance.random() < 0.45:
            return Value(name.sql)
        makers: dict[str, Callable[[Scope, Name, int], Value]] = {
            INTEGER: self._number,
            NUMERIC: self._number,
            TEXT: self._text,
            DATE: self._date,
        }
        maker = makers.get(family)
        if maker is None or self.chance.random() < 0.35:
            return self._chosen(scope, name, depth)
        return maker(scope, name, depth)

    def _chosen(self, scope: Scope, name: Name, depth: int) -> Value:
        """COALESCE, NULLIF or CASE over one family."""
        other = self.value(scope, name.family, depth - 1) or Value(name.sql)
        literal = self.literal(name)
        plain = name.family not in {NUMERIC, BLANKS, FLOAT}
        way = self.chance.choice(("coalesce", "coalesce", "nullif", "case", "case", "case else", "simple case"))
        if way == "coalesce":
            return Value(f"coalesce({name.sql}, {self.chance.choice((literal, other.sql))})", plain and other.plain)
        if way == "nullif":
            return Value(f"nullif({name.sql}, {literal})")
        if way == "simple case":
            return Value(f"case {name.sql} when {literal} then {other.sql} else {name.sql} end", plain and other.plain)
        condition = self.condition(scope, depth - 1)
        end = "" if way == "case" else f" else {self.chance.choice((literal, name.sql))}"
        return Value(f"case when {condition} then {other.sql}{end} end", plain and other.plain)

    def _number(self, scope: Scope, name: Name, depth: int) -> Value:
        chance = self.chance
        other = self.value(scope, chance.choice((INTEGER, NUMERIC, name.family)), depth - 1) or Value(name.sql)
        number = chance.choice(("1", "2", "0", "-1", "100", "0.5", "1.00", "0.07"))
        templates = ("{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} * (1 - {1})", "{0} + {2}", "{2} * {0}", "{2} - {0}")
        (template,) = chance.choices((*templates, "- {0}", "({0})::int8", "{0}::numeric(18,4)"), (*[4] * 7, 2, 1, 1))
        if template == "({0})::int8" and name.family != INTEGER:
            template = "- {0}"
        return Value("(" + template.format(name.sql, other.sql, number) + ")", other.plain)

    def _text(self, _: Scope, name: Name, __: int) -> Value:
        start, length = self.chance.choice((1, 1, 1, 2, 3)), self.chance.choice((1, 2, 4))
        return Value(f"substring({name.sql} from {start} for {length})")

    def _date(self, _: Scope, name: Name, __: int) -> Value:
        return Value(f"({name.sql} {self.chance.choice('+-')} {self.chance.choice((0, 1, 30, 366))})")

    def condition(self, scope: Scope, depth: int = 1) -> str:
        """A condition."""
        chance = self.chance
        if depth > 0 and chance.random() < 0.5:
            parts = [self.condition(scope, depth - 1) for _ in range(chance.choice((2, 2, 3)))]
            return "(" + f" {chance.choice(('and', 'and', 'or'))} ".join(parts) + ")"
        if depth > 0 and chance.random() < 0.12:
            return f"not ({self.condition(scope, depth - 1)})"
        makers = (self._compared, self._beside, self._between, self._listed, self._null, self._like, self._distinct)
        (maker,) = chance.choices((*makers, self._calculated), (30, 16, 10, 12, 8, 12, 5, 10))
        return maker(scope)

    def _compared(self, scope: Scope) -> str:
        name = self._comparable(scope)
        if name.family == BOOL:
            return self.chance.choice(("{}", "not {}", "{} is true", "{} is not false", "{} = true")).format(name.sql)
        sides = [name.sql, self.literal(name)]
        if self.chance.random() < 0.1:
            sides.reverse()
        return f" {self._operator(name)} ".join(sides)

    def _calculated(self, scope: Scope) -> str:
        family = self.chance.choice((INTEGER, NUMERIC, DATE))
        value = self.value(scope, family, 2)
        name = self.column(scope, (family,))
        if value is None or name is None:
            return self._compared(scope)
        if family == DATE and self.chance.random() < 0.6:
            months = f"interval '{self.chance.choice((1, 3, 12))}' month"
            return f"{name.sql} {self.chance.choice(('<', '>='))} date {quoted(self._day())} + {months}"
        return f"{value.sql} {self.chance.choice(COMPARISONS)} {self.literal(name)}"

    def _beside(self, scope: Scope) -> str:
        name = self._comparable(scope)
        families = (INTEGER, NUMERIC) if name.family in {INTEGER, NUMERIC} else (name.family,)
        other = self.column(scope, families)
        return f"{name.sql} {self._operator(name)} {other.sql if other else name.sql}"

    def _between(self, scope: Scope) -> str:
        name = self.column(scope, ORDERED)
        if name is None:
            return self._compared(scope)
        negated = "not " if self.chance.random() < 0.2 else ""
        low, high = sorted((self.literal(name), self.literal(name)), key=lambda text: (len(text.lstrip("-")), text))
        return f"{name.sql} {negated}between {low} and {high}"

    def _listed(self, scope: Scope) -> str:
        name = self._comparable(scope)
        literals = [self.literal(name) for _ in range(self.chance.choice((1, 2, 3, 8)))]
        literals += ["null"] if self.chance.random() < 0.08 else []
        return f"{name.sql} {self.chance.choice(('in', 'in', 'not in'))} ({', '.join(literals)})"

    def _null(self, scope: Scope) -> str:
        return f"{self.chance.choice(scope).sql} {self.chance.choice(('is null', 'is not null'))}"

    def _like(self, scope: Scope) -> str:
        name = self.column(scope, (TEXT, BLANKS))
        if name is None:
            return self._compared(scope)
        pattern = self.chance.choice(PATTERNS)
        return f"{name.sql} {self.chance.choice(('like', 'not like'))} {quoted(pattern)}"

    def _distinct(self, scope: Scope) -> str:
        name = self._comparable(scope)
        negated = self.chance.choice(("", "not "))
        return f"{name.sql} is {negated}distinct from {self.literal(name)}"

    def _comparable(self, scope: Scope) -> Name:
        found = [name for name in scope if name.family != OTHER]
        return self.chance.choice(found or list(scope))

    def _operator(self, name: Name) -> str:
        return self.chance.choice(COMPARISONS if name.family in ORDERED else COMPARISONS[:2])

    def _day(self) -> str:
        return self.chance.choice(CALENDAR)
