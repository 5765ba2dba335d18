"""Nodes are read completely: a field that is set and not read refuses the statement."""

from __future__ import annotations

import pytest

from tidemark.errors import Unproven
from tidemark.split import facts_query, parse
from tidemark.split.naming import output_name
from tidemark.split.nodes import Fields, kind_of, parsed, reading, sql_of

pytestmark = pytest.mark.quick


def _expression(text: str) -> object:
    return Fields(Fields(parsed(f"select {text}"))["target_list"][0])["val"]


@pytest.mark.parametrize(
    "text",
    [
        "count(distinct a)",
        "count(a) filter (where b)",
        "count(a order by a)",
        "sum(a) over ()",
        "f(variadic a)",
        "count(*)",
    ],
)
def test_a_field_of_a_call_that_is_not_read_is_refused(text: str) -> None:
    with pytest.raises(Unproven, match="FuncCall with"), reading(_expression(text)) as fields:
        fields["funcname"]
        fields["args"]
        fields.enum("funcformat")


def test_a_node_whose_fields_are_all_read_is_accepted() -> None:
    with reading(_expression("a not like 'x'")) as fields:
        assert fields.enum("kind") == "AEXPR_LIKE"
        assert [kind_of(each) for each in fields["name"]] == ["String"]
        assert kind_of(fields["lexpr"]) == "ColumnRef"
        assert kind_of(fields["rexpr"]) == "A_Const"


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("select 1; select 2", "not one statement"),
        ("delete from t", "not a SELECT"),
        ("select", "no table"),
        ("select from", "grammar"),
        ("select xmlelement(name a) from t", "XmlExpr"),
        ("select * from a.b.c", "the name of a database"),
        ("select a operator(public.+) b from t", "the name of a schema"),
        ("select a from t order by a using <", "USING"),
        ("select a from t for update", "LockingClause"),
        ("select a into b from t", "IntoClause"),
        ("select * from t tablesample system (1)", "RangeTableSample"),
    ],
)
def test_other_statements_are_refused(statement: str, reason: str) -> None:
    with pytest.raises(Unproven, match=reason):
        parse(statement)


def test_the_names_of_a_statement_are_found() -> None:
    found = parse("with c as (select x::money from s.t) select public.f(a), b < $2 from c, u where a !~ 'x'")
    assert found.relations == {("s", "t"), ("c",), ("u",)}
    assert found.functions == {("public", "f")}
    assert found.types == {("money",)}
    assert {"<", "!~", "="} <= found.operators
    assert found.parameters == {2}
    assert '\'"s"."t"\'' in facts_query(found)


def test_a_tree_that_is_not_printed_exactly_is_refused() -> None:
    """libpg_query prints a char without a length and with its schema as char(1)."""
    assert sql_of(parsed("select a::char(3)")) == "SELECT a::char(3)"
    with pytest.raises(Unproven, match="printed exactly"):
        sql_of(parsed("select a::pg_catalog.bpchar"))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a.b", "b"),
        ("sum(a)", "sum"),
        ("a + 1", "?column?"),
        ("a::date", "a"),
        ("1::int", "int4"),
        ("case when a then b end", "case"),
        ("case when a then 1 else b end", "b"),
        ("coalesce(a, b)", "coalesce"),
        ("nullif(a, b)", "nullif"),
        ("greatest(a, b)", "greatest"),
        ("exists (select 1)", "exists"),
        ("(select x from t)", "x"),
        ("current_date", "current_date"),
        ("extract(year from a)", "extract"),
        ("not a", "?column?"),
        ('a collate "C"', "a"),
        ("array[a]", "array"),
    ],
)
def test_a_result_column_without_alias_has_the_name_that_postgresql_gives_it(text: str, name: str) -> None:
    assert output_name(_expression(text)) == name
