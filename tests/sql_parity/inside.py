"""Random statements of the grammar that the mirror can prove: scans, joins, filters and aggregates below PostgreSQL.

What is above the aggregates is PostgreSQL's, so any function may stand there. A statement with LIMIT has an order in
which no two rows are equal. Where equal values print differently, as 1.0 and 1.00 do, no group, DISTINCT, MIN or MAX
depends on which of them PostgreSQL keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from tests.differential.statements import Relation
from tests.differential.tables import Column
from tests.sql_parity.comparison import Statement
from tests.sql_parity.expressions import Expressions, Name, Scope, Value, names_of
from tests.sql_parity.worlds import (
    BLANKS,
    BOOL,
    DATE,
    EMPTY,
    INTEGER,
    KEY,
    NUMERIC,
    SMALL,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    tame,
)

GROUPED = (INTEGER, NUMERIC, TEXT, BLANKS, DATE, TIMESTAMP, BOOL, TIMESTAMPTZ)
LEAST = (INTEGER, NUMERIC, DATE, TIMESTAMP, TIMESTAMPTZ)
JOINS = ("join", "join", "left join", "left join", "right join", "full join")
ID = Column("id", KEY)
COUNTED = tame("int8", *SMALL.pool)
SUMMED = tame("numeric(30,4)", "0", "1", "100.5", "-1")
ABOVE = (
    "round({}, 2)",
    "{} / 7.0",
    "{} * 100.00 / nullif(count(*), 0)",
    "coalesce({}, 0)",
    "to_char({}, 'FM999999990.00')",
    "abs({})",
    "case when {} > 10 then 'many' else 'few' end",
)
WINDOWS = ("rank() over (order by {} desc)", "sum({}) over ()", "lag({0}) over (order by {0}, count(*))")


@dataclass(frozen=True, slots=True)
class From:
    """A FROM clause: its text, the columns in scope, conditions for WHERE, and the expressions that identify a row.

    `before` is a WITH clause; one that is `listed` has commas.
    """

    sql: str
    scope: Scope
    conditions: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    before: str = ""
    listed: bool = False


class Inside(Expressions):
    """Writes statements over some tables."""

    def __init__(self, chance: Random, relations: Sequence[Relation]) -> None:
        super().__init__(chance)
        self._relations = relations
        self._tame = [each for each in relations if not each.name.startswith("t") or not each.name[1:].isdigit()]
        self._aliases = 0

    def statement(self) -> Statement:
        """One statement."""
        self._aliases = 0
        makers = (self._whole, self._grouped, self._nested, self._rows, self._unique, self._scalar)
        (maker,) = self.chance.choices(makers, (20, 45, 10, 10, 8, 7))
        statement = maker()
        return replace(statement, kind=maker.__name__.strip("_"))

    # Statements

    def _whole(self) -> Statement:
        source = self._from()
        selected = ", ".join(self._measure(source.scope) for _ in range(self.chance.choice((1, 2, 3, 5))))
        having = f" having {self._having(source.scope)}" if self.chance.random() < 0.08 else ""
        return Statement(
            f"{source.before}select {selected} from {source.sql}{self._where(source)}{having}", ordered=True
        )

    def _grouped(self) -> Statement:
        source = self._from()
        keys = self._keys(source.scope, self.chance.choice((1, 1, 2, 3)))
        measures = [self._measure(source.scope) for _ in range(self.chance.choice((1, 2, 3, 4)))]
        selected = [*keys, *measures]
        if self.chance.random() < 0.08:
            window = self.chance.choice(WINDOWS).format(self._number_measure(source.scope))
            selected.append(window)
        group = ", ".join(keys if self.chance.random() < 0.7 else map(str, range(1, len(keys) + 1)))
        having = f" having {self._having(source.scope)}" if self.chance.random() < 0.3 else ""
        end, ordered = self._order(len(keys))
        sql = f"{source.before}select {', '.join(selected)} from {source.sql}{self._where(source)} group by {group}"
        return Statement(f"{sql}{having}{end}", ordered=ordered)

    def _nested(self) -> Statement:
        """An aggregate over a grouped derived table or CTE."""
        inner, columns = self._derived()
        scope = tuple(Name(f"g.{column.quoted}", column) for column in columns)
        sql, before = f"({inner}) g", ""
        if self.chance.random() < 0.4:
            before, sql = f"with g as ({inner}) ", "g"
        source = From(sql, scope, before=before)
        keys = self._keys(scope, 1)
        measures = [self._measure(scope) for _ in range(2)]
        end, ordered = self._order(len(keys))
        where = self._where(source, 0)
        sql = f"{before}select {', '.join([*keys, *measures])} from {source.sql}{where} group by {', '.join(keys)}"
        return Statement(sql + end, ordered=ordered)

    def _rows(self) -> Statement:
        source = self._from(most=2)
        families = (*GROUPED, "uuid", "bytea", "mood")
        names = [name for _ in range(3) if (name := self.column(source.scope, families)) is not None]
        values = [value.sql for _ in range(2) if (value := self.value(source.scope, self.chance.choice(GROUPED)))]
        selected = [*source.keys, *(name.sql for name in names), *values]
        sql = f"{source.before}select {', '.join(selected)} from {source.sql}{self._where(source)}"
        if not source.keys or self.chance.random() < 0.4:
            return Statement(sql)
        limit = f" limit {self.chance.choice((1, 5, 20))}" if self.chance.random() < 0.4 else ""
        return Statement(f"{sql} order by {', '.join(source.keys)}{limit}", ordered=True)

    def _unique(self) -> Statement:
        source = self._from(most=2)
        keys = self._keys(source.scope, self.chance.choice((1, 2)))
        end, ordered = self._order(len(keys))
        sql = f"{source.before}select distinct {', '.join(keys)} from {source.sql}{self._where(source)}"
        return Statement(sql + end, ordered=ordered)

    def _scalar(self) -> Statement:
        """Scalar subqueries above the aggregates."""
        parts = [f"({self._subquery()})" for _ in range(self.chance.choice((1, 2)))]
        source = self._from(most=1)
        return Statement(
            f"{source.before}select {', '.join(parts)}, {self._measure(source.scope)} "
            f"from {source.sql}{self._where(source)}",
            ordered=True,
        )

    # Clauses

    def _relation(self) -> Relation:
        chosen = self._tame if self._tame and self.chance.random() < 0.7 else self._relations
        relation = self.chance.choice(chosen)
        return relation if relation.name != EMPTY or self.chance.random() < 0.3 else self.chance.choice(chosen)

    def _alias(self) -> str:
        self._aliases += 1
        return f"x{self._aliases}"

    def _item(self, *, derived: bool = True) -> From:
        """A table or a derived table."""
        alias = self._alias()
        if derived and self.chance.random() < 0.08:
            inner, columns = self._derived()
            return From(f"({inner}) {alias}", tuple(Name(f"{alias}.{each.quoted}", each) for each in columns))
        relation = self._relation()
        scope = (Name(f"{alias}.id", ID), *names_of(relation, alias))
        return From(f"{relation.name} {alias}", scope, (), (f"{alias}.id",))

    def _from(self, most: int = 3) -> From:
        (count,) = self.chance.choices(range(1, most + 1), (50, 35, 15)[:most])
        joined = self._item()
        for _ in range(count - 1):
            joined = self._joined(joined, self._item())
        return joined

    def _joined(self, left: From, right: From) -> From:
        condition = self._join_condition(left.scope, right.scope)
        both = (*left.scope, *right.scope)
        keys = (*left.keys, *right.keys) if left.keys and right.keys else ()
        if left.listed or self.chance.random() < 0.3:  # JOIN binds tighter than a comma
            return From(f"{left.sql}, {right.sql}", both, (*left.conditions, condition), keys, listed=True)
        how = self.chance.choice(JOINS)
        extra = f" and {self.condition(right.scope, 0)}" if self.chance.random() < 0.25 else ""
        return From(f"{left.sql} {how} {right.sql} on {condition}{extra}", both, left.conditions, keys)

    def _join_condition(self, left: Scope, right: Scope) -> str:
        pairs = [
            (one, other) for one in left for other in right if one.family == other.family and one.family in GROUPED
        ]
        keyed = [pair for pair in pairs if {pair[0].column.name, pair[1].column.name} & {"id", "customer", "product"}]
        keyed = [pair for pair in keyed if pair[0].family == INTEGER]
        chosen = keyed if keyed and self.chance.random() < 0.7 else pairs
        if not chosen:
            return "true = true"
        one, other = self.chance.choice(chosen)
        return f"{one.sql} = {other.sql}"

    def _where(self, source: From, depth: int = 2) -> str:
        conditions = list(source.conditions)
        if self.chance.random() < 0.5:
            conditions.append(self.condition(source.scope, self.chance.randrange(depth + 1)))
        if self.chance.random() < 0.22 and source.scope:
            conditions.append(self._by_subquery(source.scope))
        return f" where {' and '.join(conditions)}" if conditions else ""

    def _by_subquery(self, scope: Scope) -> str:
        chance, item = self.chance, self._item(derived=False)
        mine = self.column(scope, (INTEGER, TEXT, DATE, NUMERIC)) or scope[0]
        other = self.column(item.scope, (mine.family,)) or item.scope[0]
        negated = "not " if chance.random() < 0.35 else ""
        where = f" and {self.condition(item.scope, 1)}" if chance.random() < 0.6 else ""
        way = chance.choice(("exists", "exists", "in", "in", "scalar", "correlated"))
        if other.family != mine.family or way == "scalar":
            number = self.column(scope, (INTEGER, NUMERIC)) or Name("1", ID)
            return f"{number.sql} {chance.choice(('<', '>=', '='))} ({self._subquery()})"
        if way == "exists":
            return f"{negated}exists (select 1 from {item.sql} where {other.sql} = {mine.sql}{where})"
        if way == "correlated" and mine.family in LEAST:
            least = chance.choice(("min", "max"))
            key = self.column(item.scope, (INTEGER,)) or other
            outer = self.column(scope, (key.family,)) or mine
            return f"{mine.sql} = (select {least}({other.sql}) from {item.sql} where {key.sql} = {outer.sql}{where})"
        return f"{mine.sql} {negated}in (select {other.sql} from {item.sql} where {other.sql} is not null{where})"

    def _subquery(self) -> str:
        """An uncorrelated scalar subquery that is a number."""
        item = self._item(derived=False)
        return f"select {self._number_measure(item.scope)} from {item.sql}{self._where(item, 1)}"

    def _derived(self) -> tuple[str, tuple[Column, ...]]:
        """A grouped subquery with names for its columns, or one that selects rows."""
        alias, relation = self._alias(), self._relation()
        scope = (Name(f"{alias}.id", ID), *names_of(relation, alias))
        source = From(f"{relation.name} {alias}", scope)
        if self.chance.random() < 0.35:
            chosen = [name for _ in range(4) if (name := self.column(scope, GROUPED))]
            columns = tuple(replace(name.column, name=f"v{at}") for at, name in enumerate(chosen))
            listed = ", ".join(f"{name.sql} as v{at}" for at, name in enumerate(chosen))
            return f"select {listed} from {source.sql}{self._where(source, 1)}", columns
        key = self.column(scope, GROUPED) or scope[0]
        columns = (replace(key.column, name="k"), Column("n", COUNTED), Column("m", SUMMED))
        total = self.column(scope, (INTEGER, NUMERIC)) or scope[0]
        measures = f"count(*) as n, sum({total.sql}) as m"
        return (
            f"select {key.sql} as k, {measures} from {source.sql}{self._where(source, 1)} group by {key.sql}",
            columns,
        )

    def _keys(self, scope: Scope, count: int) -> list[str]:
        found: list[str] = []
        for _ in range(count):
            family = self.chance.choice(GROUPED)
            value = self.value(scope, family) if self.chance.random() < 0.25 else None
            name = self.column(scope, (family,)) or self.column(scope, GROUPED) or scope[0]
            key = value.sql if value is not None and value.plain else name.sql
            year = self.column(scope, (DATE,))
            if year is not None and self.chance.random() < 0.08:
                key = f"extract({self.chance.choice(('year', 'month'))} from {year.sql})"
            if key not in found:
                found.append(key)
        return found

    def _measure(self, scope: Scope) -> str:
        chance = self.chance
        if chance.random() < 0.15:
            return chance.choice(ABOVE).format(self._number_measure(scope))
        if chance.random() < 0.06:
            return f"{self._number_measure(scope)} / nullif({self._number_measure(scope)}, 0)"
        return self._aggregate(scope)

    def _aggregate(self, scope: Scope) -> str:
        chance = self.chance
        way = chance.choice(("count", "count", "some", "distinct", "sum", "sum", "sum", "avg", "min", "max", "bool"))
        if way == "count":
            found = f"count({chance.choice(('*', chance.choice(scope).sql))})"
        elif way == "distinct":
            found = f"count(distinct {(self.column(scope, (*GROUPED, 'uuid')) or scope[0]).sql})"
        elif way in {"min", "max"}:
            family = chance.choice(LEAST)
            value = self.value(scope, family) or Value((self.column(scope, LEAST) or Name("1", ID)).sql)
            simple = self.column(scope, (family,))
            found = f"{way}({value.sql if value.plain or simple is None else simple.sql})"
        elif way == "bool":
            found = f"bool_{chance.choice(('and', 'or'))}({self.condition(scope, 1)})"
        else:
            found = self._number_measure(scope)
        if chance.random() < 0.1:
            found += f" filter (where {self.condition(scope, 1)})"
        return found

    def _number_measure(self, scope: Scope) -> str:
        chance = self.chance
        value = self.value(scope, chance.choice((INTEGER, NUMERIC, NUMERIC)), 2)
        if value is None or chance.random() < 0.2:
            return "count(*)"
        return f"{chance.choice(('sum', 'sum', 'avg'))}({value.sql})"

    def _having(self, scope: Scope) -> str:
        measure = self._number_measure(scope)
        return f"{measure} {self.chance.choice(('>', '<=', '<>'))} {self.chance.choice(('0', '1', '2.5', '100'))}"

    def _order(self, keys: int) -> tuple[str, bool]:
        """ORDER BY all keys of the groups, which is a total order, then perhaps LIMIT; or nothing."""
        if self.chance.random() < 0.35:
            return "", False
        places = list(range(1, keys + 1))
        self.chance.shuffle(places)
        ways = ("", "", " desc", " nulls first", " desc nulls last")
        order = ", ".join(f"{place}{self.chance.choice(ways)}" for place in places)
        limit = f" limit {self.chance.choice((1, 3, 10))}" if self.chance.random() < 0.25 else ""
        offset = f" offset {self.chance.choice((1, 2))}" if limit and self.chance.random() < 0.3 else ""
        return f" order by {order}{limit}{offset}", True
