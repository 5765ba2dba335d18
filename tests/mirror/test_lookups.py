"""Which keys a query asks for: the rules as sentences, and Spark as the judge that no other row was needed."""

import random
from collections.abc import Iterator
from functools import reduce
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.conftest import INTERPRETED
from tests.mirror.conftest import set_in
from tidemark.mirror.sql import bind
from tidemark.reads.equalities import Equalities, Literal, LiteralKind

pytestmark = pytest.mark.quick

KNOWN = [("public", "orders"), ("public", "lines"), ("crm", "orders"), ("public", "Odd `Name`")]


def asked(sql: str, placeholder: str = "t0") -> dict[str, str]:
    return {column: literal.text for column, literal in bind(sql, KNOWN).lookups[placeholder].items()}


def test_an_equality_of_the_where_is_given_with_its_column_in_lower_case() -> None:
    assert asked("select * from public.orders where id = 5") == {"id": "5"}
    assert asked("select * from orders WHERE 5=ID;") == {"id": "5"}
    assert asked("select * from orders where `Id` = 5 and 'a' = orders.name") == {"id": "5", "name": "'a'"}
    assert asked("select * from `odd ``name```where `odd ``Name```.`a``b`=5") == {"a`b": "5"}
    assert asked("from orders o select o.id where ((O.id = 5) and (x or y))") == {"id": "5"}


def test_every_placeholder_has_an_entry_and_a_query_without_tables_none() -> None:
    assert bind("select * from orders, crm.orders c, lines l where l.id = 5", KNOWN).lookups == {
        "t0": {},
        "t1": {},
        "t2": {"id": Literal(LiteralKind.INTEGER, "5")},
    }
    assert bind("select 1 where 1 = 1", KNOWN).lookups == {}


@pytest.mark.parametrize(
    ("written", "kind", "text"),
    [
        ("5", LiteralKind.INTEGER, "5"),
        ("- /* less */ 05", LiteralKind.INTEGER, "-05"),
        ("9223372036854775807", LiteralKind.INTEGER, "9223372036854775807"),
        ("-9223372036854775808", LiteralKind.INTEGER, "-9223372036854775808"),
        ("1.50", LiteralKind.DECIMAL, "1.50"),
        ("-0.5", LiteralKind.DECIMAL, "-0.5"),
        ("'{a} ü\n-- b'", LiteralKind.STRING, "'{a} ü\n-- b'"),
        ("date\n'2026-01-31'", LiteralKind.DATE, "DATE '2026-01-31'"),
        ("Timestamp '2026-01-31 10:00:00.5'", LiteralKind.TIMESTAMP, "TIMESTAMP '2026-01-31 10:00:00.5'"),
    ],
)
def test_a_literal_is_given_with_its_kind(written: str, kind: LiteralKind, text: str) -> None:
    for sql in (f"select * from orders where id = {written}", f"select * from orders where x and {written} = id"):
        assert bind(sql, KNOWN).lookups == {"t0": {"id": Literal(kind, text)}}


@pytest.mark.parametrize(
    "written",
    [
        *("9223372036854775808", "5L", "5e0", "5.0e0", "5.0D", "5.0BD", "+5", "- -5", "~5", "null", "true", "x'05'"),
        *("'it''s'", "'a\\nb'", "r'a'", '"a"', "$$a$$", "'a' 'b'", "'a' collate utf8_lcase", "'5'::int", "5::string"),
        *("cast('2026-01-31' as date)", "date('2026-01-31')", "date 'today'", "timestamp '2026-01-31 10:00:00+01'"),
        *(
            "timestamp_ntz '2026-01-31 10:00:00'",
            "interval '5' day",
            "5 + 0",
            "(5)",
            ":p",
            "?",
            "id",
            "o.x",
            "(select 5)",
        ),
    ],
)
def test_what_is_not_plainly_a_literal_says_nothing(written: str) -> None:
    assert asked(f"select * from orders o where id = {written}") == {}
    assert asked(f"select * from orders o where {written} = id") == {}


@pytest.mark.parametrize(
    "condition",
    [
        *("id = 5 or x", "x or y and id = 5", "id = 5 and x or y", "not id = 5", "not (x and id = 5)", "! (id = 5)"),
        *(
            "id = 5 is null",
            "id = 5 is not true",
            "id = 5 in (false)",
            "id = 5 = false",
            "false = id = 5",
            "x > id = 5",
        ),
        *("id = 5 > x", "x between y and id = 5", "x like id = 5", "x is distinct from id = 5", "id = 5 <=> y"),
        *(
            "case when id = 5 then x else y end",
            "if(id = 5, x, y)",
            "coalesce(x and id = 5, true)",
            "id != 5",
            "id <=> 5",
        ),
        *("id >= 5", "id in (5, 6)", "id + 0 = 5", "-id = 5", "id.a = 5", "a.o.id = 5", "id[0] = 5", "lower(id) = '5'"),
        *("exists(x, v -> v and id = 5)", "(select id = 5)", "x in (select y from range(5) where o.id = 5)"),
        *("größe = 5", "user = 'me'", "current_date = date '2026-01-31'", "orders.id = 5", "id = 5 = true and x"),
    ],
)
def test_what_need_not_hold_for_every_row_says_nothing(condition: str) -> None:
    assert asked(f"select * from orders o where {condition}") == {}


@pytest.mark.parametrize(
    "rest",
    [
        *("o left join lines l on true where o.id = 5", "o right outer join lines l on true where o.id = 5"),
        *("o full join lines l on o.id = 5 where o.id = 5", "o left semi join lines l on true where o.id = 5"),
        *("o anti join lines l on true where o.id = 5", "o join lines l left join lines m on x on y where o.id = 5"),
        *("o, lines l where id = 5", "o join lines l using (id) where id = 5", "o join lines l on o.id = 5"),
        *("o, lines o where o.id = 5", "o, (select 1 as id) where id = 5", "o, lateral (select 1) s where o.id = 5"),
        *("o lateral view explode(x) t as id where id = 5", "o(id, x) where id = 5", "as o(id) where o.id = 5"),
        *("tablesample (5 rows) o where id = 5", "pivot (sum(x) for y in (1)) p where id = 5"),
        *("o, range(5) r where o.id = 5", "having id = 5", "qualify id = 5", "group by id having id = 5"),
        *("unpivot (x for id in (a, b)) where id = 5", "o, (lines l left join lines m on x) where o.id = 5"),
    ],
)
def test_a_from_that_is_more_than_names_and_inner_joins_says_nothing(rest: str) -> None:
    assert asked(f"select 1 from orders {rest}") == {}


def test_inner_joins_say_what_is_said_of_a_table_by_its_name() -> None:
    sql = "select * from orders o {} where o.id = 5 and l.id = 6 and l.sku = 'a' and id = 7"
    for join in (", lines l", "join lines l on x", "inner join lines l using (id)", "cross join lines l"):
        assert asked(sql.format(join)) == {"id": "5"}
        assert asked(sql.format(join), "t1") == {"id": "6", "sku": "'a'"}
    assert asked("select * from orders natural join (select * from lines) l where orders.id = 5") == {"id": "5"}


def test_each_select_speaks_for_its_own_tables() -> None:
    sql = "with c as (select * from orders where id = 5) select * from c, lines l where c.id = 6 and l.id = 7"
    assert (asked(sql), asked(sql, "t1")) == ({"id": "5"}, {"id": "7"})
    assert asked("select * from (select * from orders) o where id = 5") == {}
    assert asked("with orders as (select * from public.orders) select * from orders where id = 5") == {}
    sql = "select * from orders o where id = 5 and (x or exists (select 1 from lines l where o.id = 6 and l.id = 7))"
    assert (asked(sql), asked(sql, "t1")) == ({"id": "5"}, {"id": "7"})
    sql = "select * from orders where id = 5 union all select * from lines where id = 6 order by 1"
    assert (asked(sql), asked(sql, "t1")) == ({"id": "5"}, {"id": "6"})


def test_a_table_that_is_read_twice_is_asked_for_what_both_readings_say() -> None:
    assert asked("select * from orders a, orders b where a.id = 5 and b.id = 5 and b.x = 1") == {"id": "5"}
    assert asked("select * from orders a, orders b where a.id = 5 and b.id = 6") == {}
    assert asked("select * from orders where id = 5 union all select * from orders") == {}
    assert asked("select * from orders where id = 5 and x = (select max(x) from orders)") == {}
    assert asked("select * from orders where id = 5 union select * from PUBLIC.orders o where o.id = 5") == {"id": "5"}


def test_a_number_of_thousands_of_digits_says_nothing() -> None:
    assert asked(f"select * from orders where id = {'9' * 5000}") == {}


def test_of_two_equalities_of_a_column_one_is_given() -> None:
    assert asked("select * from orders where id = 5 and id = 6") == {"id": "5"}


ATOMS = (
    *("{a}id = 2", "3 = {a}id", "{a}ID=1", "{a}name = 'b'", "{a}name = 'B '", "{a}day = date '2026-01-02'"),
    *("{a}amount = 1.50", "{a}amount = 2", "{a}at = timestamp '2026-01-02 00:00:00'", "{a}name = '2'", "{a}id = -1"),
    *("{a}id > 1", "{a}name is not null", "{a}id in (1, 2)", "{a}id between 1 and 2", "{a}id <=> 2"),
    *("exists (select 1 from orders x where x.id = {a}id)", "{a}id = (select max(id) from lines where name = 'b')"),
)
SHAPES = (
    "select * from public.orders where {0}",
    "select count(*), max(name) as id from orders o where {o0}",
    "select id + 1 as id, name from orders where {0} order by 1 limit 100",
    "select name as n, count(*) from orders o where {o0} group by name having count(*) > 0",
    "select * from orders o, lines l where {o0} and {l1}",
    "select * from orders o join lines l on o.id = l.order_id and {l0} where {o1}",
    "select o.*, l.name from orders o natural join lines l where {o0} and {l1}",
    "select * from orders o join lines l using (id) where {o0}",
    "select * from orders o left join lines l on o.id = l.order_id where {o0} and {l1}",
    "select * from orders o left join lines l on {o0} and {l1}",
    "select * from lines l right join orders o on {l1} and o.id = l.id where {o0}",
    "select * from orders o full join lines l on o.id = l.id where {o0} or {l1}",
    "select * from orders o left semi join lines l on o.id = l.order_id and {l1} where {o0}",
    "select * from orders o left anti join lines l on o.id = l.order_id where {o0}",
    "select * from orders o cross join lines l where not ({o0}) and {l1}",
    "select * from orders a, orders o where {o0} and a.id = 2",
    "select * from orders where {0} union all select * from orders where {1}",
    "select id from orders where {0} intersect select order_id from lines where {1}",
    "select id from orders where {0} except select order_id from lines where {1}",
    "with c as (select * from orders where {0}) select * from c, lines l where {l1} and c.id = 2",
    "with lines as (select * from orders where {0}) select * from lines where {1}",
    "select * from (select * from orders where {0}) o, lines l where {o1}",
    "select * from orders o where {o0} and exists (select 1 from lines l where l.order_id = o.id and {l1})",
    "select * from orders o where exists (select 1 from lines l where {o0} and {l1})",
    "select * from orders o where not exists (select 1 from lines l where l.order_id = o.id and {l1})",
    "select * from orders o where id not in (select order_id from lines where {1}) and {o0}",
    "select * from orders o where exists (select 1 from lines where total = 2 and day = date '2026-01-02') and {o0}",
    "select *, (select count(*) from lines l where l.order_id = o.id and {l1}) from orders o where {o0}",
    "select * from orders o where case when {o0} then {o1} else true end",
    "select * from orders as o(id, name, day, amount, at, total) where {o0}",
    "select * from orders as o(total, name, day, amount, at, id) where {o0}",
    "select *, row_number() over (partition by name order by id) from orders o where {o0}",
)
TYPES = {
    "int": LiteralKind.INTEGER,
    "string": LiteralKind.STRING,
    "date": LiteralKind.DATE,
    "timestamp": LiteralKind.TIMESTAMP,
}


def condition(chance: random.Random, alias: str) -> str:
    """A condition on a relation: mostly AND, so that there is something to find."""
    parts = [chance.choice(ATOMS).format(a=alias) for _ in range(chance.randint(1, 3))]
    parts = [f"not ({part})" if chance.random() < 0.1 else part for part in parts]
    joined = reduce(lambda left, right: f"{left} {chance.choice(['and', 'and', 'and', 'and', 'or'])} {right}", parts)
    return joined if chance.random() < 0.5 else f"({joined})"


def generated() -> Iterator[str]:
    chance = random.Random(5)  # noqa: S311  a seed, not a secret
    for shape in SHAPES * 3:
        yield shape.format(
            condition(chance, ""),
            condition(chance, ""),
            **{f"{alias}{at}": condition(chance, f"{alias}.") for alias in "ol" for at in "01"},
        )


@pytest.fixture(scope="module")
def frames(spark: SparkSession) -> Iterator[dict[tuple[str, str], DataFrame]]:
    """Two small tables that share the names of all columns but one."""
    chance = random.Random(7)  # noqa: S311

    def row() -> str:
        day = chance.choice(["'2026-01-01'", "'2026-01-02'", "null"])
        name = chance.choice(["'a'", "'b'", "'B'", "'B '", "'2'", "'02'", "null"])
        key, other = chance.choice(["-1", "1", "2", "3", "null"]), chance.randint(1, 3)
        return f"({key}, {name}, date({day}), {chance.choice(['1.50', '2.00'])}, timestamp({day}), {other})"

    def table(columns: str, rows: int) -> DataFrame:
        return spark.sql(f"select * from values {', '.join(row() for _ in range(rows))} as t({columns})")

    with set_in(spark, {**INTERPRETED, "spark.sql.shuffle.partitions": "1"}):
        yield {
            KNOWN[0]: table("id, name, day, amount, at, total", 30),
            KNOWN[1]: table("id, name, day, amount, at, order_id", 15),
        }


def restricted(frame: DataFrame, equalities: Equalities) -> DataFrame:
    """Only the rows that are asked for, by the equalities that a caller may use."""
    for column, literal in equalities.items():
        if TYPES.get(dict(frame.dtypes).get(column, "")) is literal.kind:
            frame = frame.where(F.col(column) == F.expr(literal.text))
    return frame


def answer(spark: SparkSession, text: str, frames: dict[str, Any]) -> list[str]:
    return sorted(map(str, spark.sql(text, **frames).collect()))


@pytest.mark.full
def test_rows_that_are_not_asked_for_change_no_answer(
    spark: SparkSession, frames: dict[tuple[str, str], DataFrame]
) -> None:
    narrowed = told = 0
    for sql in generated():
        bound = bind(sql, KNOWN)
        whole = {name: frames[key] for name, key in bound.tables.items()}
        parts = {name: restricted(frames[key], bound.lookups[name]) for name, key in bound.tables.items()}
        if any(parts[name] is not whole[name] for name in whole):
            rows = answer(spark, bound.text, whole)
            assert answer(spark, bound.text, parts) == rows, sql
            narrowed, told = narrowed + 1, told + bool(rows)
    assert narrowed >= 20
    assert told >= 10


def test_a_name_that_the_select_list_gives_is_not_seen_by_the_where(
    spark: SparkSession, frames: dict[tuple[str, str], DataFrame]
) -> None:
    bound = bind("select id + 1 as id, id as total from orders where id = 2 and total = 1", KNOWN)
    wanted = frames[KNOWN[0]].where("id = 2 and total = 1").count()
    assert answer(spark, bound.text, {"t0": frames[KNOWN[0]]}) == ["Row(id=3, total=2)"] * wanted
    assert wanted
