"""Invented statements that mean the same in Spark SQL and PostgreSQL, over tables of which only the columns are known.

Besides what `kinds` says of types, these constructs differ between the two languages and are left out or written out:
the place of nulls in ORDER BY (always written), division and averages, sums of floating-point numbers (which depend on
the order of rows) and of decimals of more than 28 digits, casts to text, regular expressions, upper and lower case,
greatest and least of arrays, min and max of types that PostgreSQL has none for, CASE and COALESCE of a float4 and a
number, natural joins. The sign of a zero is not compared where one of several equal values stands for all (GROUP BY,
DISTINCT, UNION, min and max): either is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from random import Random

from tests.differential.kinds import Sql, View
from tests.differential.tables import Column

ID = "id"
SUMMED_DIGITS = 28
LONG_LIST, BEYOND = 400, 100_000
HAS_MIN = frozenset({"integer", "float", "decimal", "text", "date", "timestamp", "timestamptz"})
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
TRUE = "true"


class Form(Enum):
    """How the values of a result column are compared: as they are printed, as numbers, or as lists of numbers."""

    PRINTED = "printed"
    NUMBER = "number"
    NUMBERS = "numbers"

    @staticmethod
    def of(view: View) -> Form:
        """The form where any of several equal values may stand for all."""
        if view.family.startswith("array of float"):
            return Form.NUMBERS
        return Form.NUMBER if view.family in {"float", "decimal"} else Form.PRINTED


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as it is in a phase."""

    name: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Predicate:
    """A condition: a template around others, or a leaf. One with a list has it in pieces.

    The parts of one that is `bound` mean nothing alone.
    """

    template: str
    parts: tuple[Predicate, ...] = ()
    leaf: Sql | None = None
    listed: tuple[Sql, ...] = ()
    bound: bool = False

    def sql(self) -> Sql:
        inner = tuple(part.sql() for part in self.parts)
        if self.listed:
            inner = (*inner, Sql(", ".join(s.spark for s in self.listed), ", ".join(s.postgres for s in self.listed)))
        return Sql.of(self.template, *((self.leaf,) if self.leaf is not None else ()), *inner)

    def simpler(self) -> Iterator[Predicate]:
        """Conditions with less in them, the simplest first."""
        if not self.bound:
            yield from self.parts
        if len(self.listed) > 1:
            half = len(self.listed) // 2
            for listed in (self.listed[:half], self.listed[half:]):
                yield replace(self, listed=listed)
        for at, part in enumerate(self.parts):
            for less in part.simpler():
                yield replace(self, parts=(*self.parts[:at], less, *self.parts[at + 1 :]))


def leaf(sql: Sql) -> Predicate:
    return Predicate("{}", leaf=sql)


ALL = leaf(Sql.same(TRUE))


@dataclass(frozen=True, slots=True)
class Statement:
    """A query: what is around its condition, and how its answer is compared."""

    kind: str
    tables: tuple[str, ...]
    predicate: Predicate
    build: Callable[[Sql], Sql]
    forms: tuple[Form, ...]
    ordered: bool = False

    @property
    def sql(self) -> Sql:
        return self.build(self.predicate.sql())

    def with_predicate(self, predicate: Predicate) -> Statement:
        return replace(self, predicate=predicate)


@dataclass(frozen=True, slots=True)
class Term:
    """An expression of a column that can be compared, and the condition under which it may be evaluated."""

    sql: Sql
    view: View
    column: Column
    guard: Sql | None = None


EDGES = (
    ("{} = {}", ("0",)),
    ("{} in ({}, {})", ("0", "1e15")),
    ("{} > {}", ("1e6",)),
    ("{} = {}", ("NaN",)),
)


class Author:
    """Invents statements over some tables."""

    def __init__(self, chance: Random, relations: Sequence[Relation]) -> None:
        self._chance, self._relations = chance, relations

    def statement(self) -> Statement:
        makers = (self._ids, self._rows, self._grouped, self._sorted, self._joined, self._combined, self._aggregate)
        (maker,) = self._chance.choices(makers, (60, 8, 8, 6, 10, 5, 5))
        return maker()

    def filter(self) -> Statement:
        """A condition on one table: several such statements can run as one."""
        return self._ids(subqueries=False)

    def edges(self) -> list[Statement]:
        """Conditions that bounds and dictionaries of files can get wrong, on every column for which they can."""
        found = []
        for relation in self._relations:
            for column in (each for each in relation.columns if each.kind.odd):
                view, read = column.kind.views[0], column.read("a")
                for template, values in EDGES:
                    literals = [literal for value in values if (literal := view.spell(value)) is not None]
                    found.append(self._filter(relation, leaf(Sql.of(template, view.read(read), *literals))))
        return found

    # Statements

    def _ids(self, *, subqueries: bool = True) -> Statement:
        relation = self._relation()
        return self._filter(relation, self._predicate(relation, "a", 2, subqueries=subqueries))

    def _filter(self, relation: Relation, predicate: Predicate) -> Statement:
        def build(where: Sql) -> Sql:
            return Sql.of(f"select a.id from {relation.name} a where {{}}", where)

        return Statement("filter", (relation.name,), predicate, build, (Form.PRINTED,))

    def _rows(self) -> Statement:
        """Whole rows, with the texts of values that have no twin, and some expressions."""
        relation = self._relation()
        columns = [Sql.same("a.id"), *(sql for column in relation.columns for sql in _shown(column, "a"))]
        others = [self._expression(relation) for _ in range(2)]
        shown = [*columns, *(sql for sql, _ in others)]

        def build(where: Sql) -> Sql:
            return Sql.of(f"select {', '.join('{}' for _ in shown)} from {relation.name} a where {{}}", *shown, where)

        forms = (*(Form.PRINTED for _ in columns), *(form for _, form in others))
        return Statement("rows", (relation.name,), self._predicate(relation, "a", 1), build, forms)

    def _grouped(self) -> Statement:
        relation = self._relation()
        keys = [self._term(relation, "a") for _ in range(self._chance.choice((1, 1, 2)))]
        what = [(Sql.same("count(*)"), Form.PRINTED), *(self._aggregated(relation) for _ in range(2))]
        least = self._chance.choice((0, 0, 1, 3))
        selected = ", ".join("{}" for _ in (*keys, *what))
        places = ", ".join(str(at + 1) for at in range(len(keys)))

        def build(where: Sql) -> Sql:
            query = f"select {selected} from {relation.name} a where {{}} group by {places} having count(*) > {least}"
            return Sql.of(query, *(_safe(key) for key in keys), *(sql for sql, _ in what), where)

        forms = (*(Form.of(key.view) for key in keys), *(form for _, form in what))
        return Statement("group", (relation.name,), self._predicate(relation, "a", 1), build, forms)

    def _aggregate(self) -> Statement:
        relation = self._relation()
        what = [self._aggregated(relation) for _ in range(3)]

        def build(where: Sql) -> Sql:
            query = f"select {{}}, {{}}, {{}} from {relation.name} a where {{}}"
            return Sql.of(query, *(sql for sql, _ in what), where)

        forms = tuple(form for _, form in what)
        return Statement("aggregate", (relation.name,), self._predicate(relation, "a", 1), build, forms)

    def _sorted(self) -> Statement:
        relation, chance = self._relation(), self._chance
        keys = [self._term(relation, "a", ordered=True) for _ in range(chance.choice((1, 2)))]
        ways = [f"{chance.choice(('asc', 'desc'))} nulls {chance.choice(('first', 'last'))}" for _ in keys]
        order = ", ".join(f"{{}} {way}" for way in ways)
        limit = f"limit {chance.choice((1, 5, 30))} offset {chance.choice((0, 0, 3))}"
        selected = ", ".join("{}" for _ in keys)

        def build(where: Sql) -> Sql:
            query = f"select a.id, {selected} from {relation.name} a where {{}} order by {order}, a.id {limit}"
            safe = [_safe(key) for key in keys]
            return Sql.of(query, *safe, where, *safe)

        forms = (Form.PRINTED,) * (1 + len(keys))
        return Statement("order", (relation.name,), self._predicate(relation, "a", 1), build, forms, ordered=True)

    def _joined(self) -> Statement:
        chance = self._chance
        left, right = self._relation(), self._relation()
        one = self._term(left, "a")
        other = self._partner(right, "b", one.view)
        if other is None:
            right, other = left, self._term_of(one.column, "b", one.view)
        keys = _safe(one), _safe(other)
        way = chance.choice(("join", "left join", "right join", "full join"))
        part = chance.randrange(5)
        extra = f" and a.id % 5 = {part}" if way != "join" or chance.random() < 0.5 else ""
        # Spark applies a predicate on one join key to the other key too, where a cast may fail.
        both = one.column.kind is other.column.kind and way in {"join", "left join"}
        predicate = self._predicate(left, "a", 1) if both else leaf(Sql.same("a.id is not null"))

        def build(where: Sql) -> Sql:
            query = f"select a.id, b.id from {left.name} a {way} {right.name} b on {{}} = {{}}{extra} where {{}}"
            return Sql.of(query, *keys, where)

        return Statement("join", (left.name, right.name), predicate, build, (Form.PRINTED,) * 2)

    def _combined(self) -> Statement:
        """UNION, EXCEPT and INTERSECT of values of two tables, or of one."""
        chance = self._chance
        left, right = self._relation(), self._relation()
        one = self._term(left, "a")
        other = self._partner(right, "b", one.view)
        if other is None:
            right, other = left, self._term_of(one.column, "b", one.view)
        way = chance.choice(("union", "union all", "except", "intersect", "except all", "intersect all"))
        safe, second = _safe(one), _safe(other)
        where = self._predicate(right, "b", 1).sql()

        def build(condition: Sql) -> Sql:
            query = f"select {{}} from {left.name} a where {{}} {way} select {{}} from {right.name} b where {{}}"
            return Sql.of(query, safe, condition, second, where)

        return Statement("set", (left.name, right.name), self._predicate(left, "a", 1), build, (Form.of(one.view),))

    # Conditions

    def _predicate(self, relation: Relation, alias: str, depth: int, *, subqueries: bool = False) -> Predicate:
        chance = self._chance
        if depth and chance.random() < 0.4:
            one = self._predicate(relation, alias, depth - 1, subqueries=subqueries)
            if chance.random() < 0.2:
                return Predicate("(not {})", (one,))
            other = self._predicate(relation, alias, depth - 1)
            if chance.random() < 0.1:
                third = self._predicate(relation, alias, 0)
                return Predicate("(case when {} then {} else {} end)", (one, other, third))
            return Predicate(f"({{}} {chance.choice(('and', 'or'))} {{}})", (one, other))
        if chance.random() < 0.04:
            return self._of_id(alias)
        if subqueries and chance.random() < 0.12:
            return self._by_subquery(relation, alias)
        return self._leaf(relation, alias)

    def _of_id(self, alias: str) -> Predicate:
        number = self._chance.randrange(250)
        texts = (f"{alias}.id = {number}", f"{alias}.id % 7 = 3", f"{alias}.id between {number} and {number + 40}")
        return leaf(Sql.same(self._chance.choice(texts)))

    def _leaf(self, relation: Relation, alias: str) -> Predicate:
        chance = self._chance
        term = self._term(relation, alias)
        ways = (self._compared, self._listed, self._null, self._between, self._distinct, self._beside, self._odd)
        (way,) = chance.choices(ways, (40, 16, 8, 10, 8, 8, 10))
        found = way(relation, alias, term)
        if term.guard is None:
            return found
        return Predicate("({} and {})", (found,), leaf=term.guard, bound=True)

    def _compared(self, relation: Relation, alias: str, term: Term) -> Predicate:
        operator = self._chance.choice(COMPARISONS if term.view.ordered else COMPARISONS[:2])
        literal = self._literal(term)
        if literal is None:
            return self._null(relation, alias, term)
        flipped = self._chance.random() < 0.1
        return leaf(Sql.of(f"{{}} {operator} {{}}", *((literal, term.sql) if flipped else (term.sql, literal))))

    def _listed(self, relation: Relation, alias: str, term: Term) -> Predicate:
        chance = self._chance
        count = chance.choices(
            (chance.randint(1, 5), chance.randint(11, 40), LONG_LIST + chance.randint(1, 99)), (6, 3, 1)
        )[0]
        # PostgreSQL compares a list with a column's own type, and a single literal of another type with a wider one
        literals = [literal for _ in range(count) if (literal := self._same_type(term)) is not None]
        if not literals:
            return self._null(relation, alias, term)
        if chance.random() < 0.1:
            literals.append(Sql.same("null"))
        negated = "not " if chance.random() < 0.25 else ""
        return Predicate(f"{{}} {negated}in ({{}})", leaf=term.sql, listed=tuple(literals))

    def _null(self, _: Relation, __: str, term: Term) -> Predicate:
        return leaf(Sql.of(self._chance.choice(("{} is null", "{} is not null")), term.sql))

    def _between(self, relation: Relation, alias: str, term: Term) -> Predicate:
        low, high = self._literal(term), self._literal(term)
        if not term.view.ordered or low is None or high is None:
            return self._compared(relation, alias, term)
        negated = "not " if self._chance.random() < 0.25 else ""
        return leaf(Sql.of(f"{{}} {negated}between {{}} and {{}}", term.sql, low, high))

    def _distinct(self, relation: Relation, alias: str, term: Term) -> Predicate:
        literal = self._literal(term)
        if literal is None:
            return self._null(relation, alias, term)
        negated = self._chance.choice(("", "not "))
        return leaf(Sql.of(f"{{}} is {negated}distinct from {{}}", term.sql, literal))

    def _beside(self, relation: Relation, alias: str, term: Term) -> Predicate:
        """Two columns of a row."""
        other = self._partner(relation, alias, term.view)
        if other is None:
            return self._compared(relation, alias, term)
        ordered = term.view.ordered and other.view.ordered
        operator = self._chance.choice(COMPARISONS if ordered else COMPARISONS[:2])
        its = _safe(other)
        if term.view.family == "text" and other.column.kind is not term.column.kind:
            # Spark applies a predicate on one of two columns that are equal to the other too, where a cast may fail.
            its = Sql(f"concat({its.spark}, '')", its.postgres)
        return leaf(Sql.of(f"{{}} {operator} {{}}", term.sql, its))

    def _odd(self, relation: Relation, alias: str, term: Term) -> Predicate:
        """Expressions around a column, and what only some types have."""
        chance, view = self._chance, term.view
        one, other = self._same_type(term), self._same_type(term)
        if one is None or other is None:
            return self._null(relation, alias, term)
        if view.family == "bool":
            return leaf(Sql.of(chance.choice(("{}", "not {}", "{} is true", "{} is not false")), term.sql))
        if view.family == "text" and chance.random() < 0.6:
            return self._of_text(term)
        if term.column.kind.element is not None and chance.random() < 0.5:
            return self._of_array(term, alias)
        templates = [
            "coalesce({0}, {1}) = {2}",
            "nullif({0}, {1}) is null",
            "case when {0} = {1} then {2} else {0} end = {2}",
            "({0} = {1} or {0} is null) is not true",
        ]
        templates += ["greatest({0}, {1}) = {2}", "least({0}, {1}) <= {2}"] if view.ordered else []
        return leaf(Sql.of(chance.choice(templates), term.sql, one, other))

    def _of_text(self, term: Term) -> Predicate:
        value = self._text(term.column)
        plain = "".join(c for c in value if c not in "%_\\")[: self._chance.choice((1, 3, 64, 100))]
        pattern = self._chance.choice(("{}%", "%{}", "%{}%", "{}", "{}_")).format(plain)
        spelled = term.view.spell(pattern)
        length = Sql.of(f"length({{}}) {self._chance.choice(COMPARISONS)} {len(value)}", term.sql)
        if spelled is None or self._chance.random() < 0.3 or "rpad" in term.sql.postgres:
            return leaf(length)
        return leaf(Sql.of("{} like {}", term.sql, spelled))

    def _of_array(self, term: Term, alias: str) -> Predicate:
        """An element in an array, which the condition beside it guards."""
        element, (whole, _, first) = term.column.kind.element, term.column.kind.views
        spelled = first.spell(self._text(term.column))
        if element is None or spelled is None or term.column.strange:
            return leaf(Sql.of("{} is not null", term.sql))
        array = whole.read(term.column.read(alias))
        found = f"array_contains({array.spark}, cast({spelled.spark} as {element[0]}))"
        return leaf(Sql(found, f"{spelled.postgres} = any({array.postgres})"))

    def _by_subquery(self, relation: Relation, alias: str) -> Predicate:
        chance = self._chance
        term = self._term(relation, alias)
        right = self._relation()
        other = self._partner(right, "s", term.view)
        if other is None:
            right, other = relation, self._term_of(term.column, "s", term.view)
        where = self._predicate(right, "s", 0)
        mine, its = _safe(term), _safe(other)
        way = chance.choice(("in", "not in", "exists", "not exists", "max", "min"))
        if way in {"in", "not in"}:
            template = f"{{}} {way} (select {{}} from {right.name} s where {{}})"
        elif way in {"max", "min"} and term.view.family in HAS_MIN and term.view.ordered:
            template = f"{{}} = (select {way}({{}}) from {right.name} s where {{}})"
        else:
            negated = "not " if way.startswith("not") else ""
            template = f"{negated}exists (select 1 from {right.name} s where {{1}} = {{0}} and {{2}})"
        return Predicate(template, (leaf(mine), leaf(its), where), bound=True)

    # Pieces

    def _relation(self) -> Relation:
        return self._chance.choice(self._relations)

    def _term(self, relation: Relation, alias: str, *, ordered: bool = False) -> Term:
        columns = [column for column in relation.columns if not ordered or any(v.ordered for v in column.kind.views)]
        floats = [column for column in columns if column.kind.type.startswith("float")]
        if not columns:
            return self._term(self._relation(), alias, ordered=ordered)
        column = self._chance.choice(floats if floats and self._chance.random() < 0.2 else columns)
        views = [view for view in column.kind.views if view.ordered or not ordered]
        return self._term_of(column, alias, self._chance.choice(views))

    def _term_of(self, column: Column, alias: str, view: View) -> Term:
        """A column that has met values without a twin: they are left out by the condition, or by the expression."""
        read = column.read(alias)
        if not column.strange:
            return Term(view.read(read), view, column)
        typed = _typed(column, alias)
        if self._chance.random() < 0.5:
            return Term(view.read(read), view, column, typed)
        return Term(view.read(Sql.of("(case when {} then {} end)", typed, read)), view, column)

    def _partner(self, relation: Relation, alias: str, view: View) -> Term | None:
        found = [(c, v) for c in relation.columns for v in c.kind.views if v.compares_with(view)]
        if not found:
            return None
        column, its = self._chance.choice(found)
        return self._term_of(column, alias, its)

    def _text(self, column: Column) -> str:
        """A value of a column's type: an extreme one, or one of those that rows have, or one just beyond."""
        kind, way = column.kind, self._chance.random()
        if way < 0.5:
            return self._chance.choice(kind.pool)
        return kind.near(self._chance.randrange(160) if way < 0.85 else BEYOND)

    def _literal(self, term: Term) -> Sql | None:
        for _ in range(5):
            if (spelled := term.view.spell(self._text(term.column))) is not None:
                return spelled
        return None

    def _same_type(self, term: Term) -> Sql | None:
        """A literal of the column's own type: CASE of a float4 and a number is a double in Spark SQL alone."""
        typed = term.column.kind.views[0]
        return self._literal(replace(term, view=typed) if term.view.family == typed.family else term)

    def _expression(self, relation: Relation) -> tuple[Sql, Form]:
        term = self._term(relation, "a")
        literal = self._same_type(term)
        if literal is None:
            return Sql.of("case when {} is null then 1 else 0 end", _safe(term)), Form.PRINTED
        templates = ("coalesce({0}, {1})", "case when {0} = {1} then {1} else {0} end", "nullif({0}, {1})")
        return Sql.of(self._chance.choice(templates), _safe(term), literal), Form.of(term.view)

    def _aggregated(self, relation: Relation) -> tuple[Sql, Form]:
        term = self._term(relation, "a")
        safe, family = _safe(term), term.view.family
        options = [("count({})", Form.PRINTED), ("count(distinct {})", Form.PRINTED)]
        if family in HAS_MIN and term.view.ordered:
            options += [(f"{least}({{}})", Form.of(term.view)) for least in ("min", "max")] * 2
        if family == "bool":
            options += [("bool_and({})", Form.PRINTED), ("bool_or({})", Form.PRINTED)]
        if family == "decimal" and term.view.digits is not None and sum(term.view.digits) <= SUMMED_DIGITS:
            options.append(("sum({})", Form.NUMBER))
        if family == "integer":
            options.append(("sum(cast({} as decimal(28,0)))", Form.NUMBER))
        template, form = self._chance.choice(options)
        return Sql.of(template, safe), form


def _typed(column: Column, alias: str) -> Sql:
    """The condition that a value is one of the mirror's type."""
    postgres = column.kind.typed.format(column.read(alias).postgres)
    return Sql(f"{column.read(alias, '~text').spark} is null", f"coalesce({postgres}, true)")


def _safe(term: Term) -> Sql:
    """The expression for places where no condition can stand before it."""
    if term.guard is None:
        return term.sql
    return Sql.of("(case when {} then {} end)", term.guard, term.sql)


def _shown(column: Column, alias: str) -> Iterator[Sql]:
    """A column in a result, and the text beside it."""
    read = column.read(alias)
    if not column.strange:
        yield read
        return
    typed = _typed(column, alias)
    yield Sql.of("case when {} then {} end", typed, read)
    text = column.read(alias, "~text").spark
    yield Sql(text, f"case when not {typed.postgres} then {read.postgres}::text end")
