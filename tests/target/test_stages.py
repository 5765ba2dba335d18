"""The list of an archive is parsed exactly, and every kind has its stage."""

from __future__ import annotations

import pytest

from tidemark.errors import UnsupportedArchive
from tidemark.target.stages import CloneStage, Entry, Section, closure, dump_ids, entries, stage_of

pytestmark = pytest.mark.quick

LIST = """\
;
; Archive created at 2026-11-18 09:40:22 UTC
;     dbname: src
; Selected TOC Entries:
;
2825; 0 0 ENCODING - ENCODING 
2828; 1262 16386 DATABASE - src app
6; 2615 16389 SCHEMA - Odd "schema".with newline app
2834; 0 0 ACL app COLUMN parent.note app
;\tdepends on: 226 7 226
2184; 3602 16426 TEXT SEARCH CONFIGURATION app words app
229; 1259 16473 SEQUENCE OWNED BY x app
2838; 0 0 SEQUENCE OWNED BY app owned app
300; 1259 16500 TABLE ATTACH t app
2554; 0 0 TABLE ATTACH app events_1 app
301; 2604 16501 DEFAULT ACL t c app
2185; 826 16676 DEFAULT ACL app DEFAULT PRIVILEGES FOR TABLES app
302; 1259 16502 MATERIALIZED VIEW DATA m app
2820; 0 16656 MATERIALIZED VIEW DATA app grouped\x0bm\u2028x app
2633; 2606 16564 FK CONSTRAINT app points points_fkey app
303; 2617 16503 OPERATOR CLASS ## app
304; 2616 16504 OPERATOR CLASS app ints app
"""  # noqa: W291


def test_kinds_of_several_words_are_told_from_schemas_of_such_names() -> None:
    assert [(entry.dump_id, entry.kind, entry.rest) for entry in entries(LIST)] == [
        (6, "SCHEMA", '- Odd "schema".with newline app'),
        (2834, "ACL", "app COLUMN parent.note app"),
        (2184, "TEXT SEARCH CONFIGURATION", "app words app"),
        (229, "SEQUENCE", "OWNED BY x app"),
        (2838, "SEQUENCE OWNED BY", "app owned app"),
        (300, "TABLE", "ATTACH t app"),
        (2554, "TABLE ATTACH", "app events_1 app"),
        (301, "DEFAULT", "ACL t c app"),
        (2185, "DEFAULT ACL", "app DEFAULT PRIVILEGES FOR TABLES app"),
        (302, "MATERIALIZED VIEW", "DATA m app"),
        (2820, "MATERIALIZED VIEW DATA", "app grouped\x0bm\u2028x app"),
        (2633, "FK CONSTRAINT", "app points points_fkey app"),
        (303, "OPERATOR", "CLASS ## app"),
        (304, "OPERATOR CLASS", "app ints app"),
    ]
    assert entries(LIST)[1] == Entry(2834, 0, 0, "ACL", "app COLUMN parent.note app", (226, 7))
    assert len(dump_ids(LIST)) == 16


@pytest.mark.parametrize(
    "line",
    ["1; 1259 2 TABLESPACE - x app", "1; 0 2 TABLE DATA app t app", "1; 9999 2 TABLE app t app", "1; TABLE", "x"],
)
def test_an_entry_of_an_unknown_kind_is_an_error_that_names_it(line: str) -> None:
    with pytest.raises(UnsupportedArchive) as caught:
        entries(line)
    assert line.split(" ", 3)[-1] in str(caught.value)


def stage(kind: str, section: Section = Section.POST_DATA, *of: Entry, unique: bool = False) -> CloneStage:
    entry = Entry(1, 0, 10, kind, "x", tuple(each.dump_id for each in of), section)
    return stage_of(entry, {each.dump_id: each for each in of}, {10} if unique else ())


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("CONSTRAINT", CloneStage.KEYS),
        ("INDEX", CloneStage.INDEXES),
        ("INDEX ATTACH", CloneStage.INDEXES),
        ("STATISTICS", CloneStage.INDEXES),
        ("MATERIALIZED VIEW", CloneStage.INDEXES),
        ("FUNCTION", CloneStage.INDEXES),
        ("CHECK CONSTRAINT", CloneStage.LAST),
        ("FK CONSTRAINT", CloneStage.LAST),
        ("TRIGGER", CloneStage.LAST),
        ("EVENT TRIGGER", CloneStage.LAST),
        ("RULE", CloneStage.LAST),
        ("POLICY", CloneStage.LAST),
        ("ROW SECURITY", CloneStage.LAST),
        ("MATERIALIZED VIEW DATA", CloneStage.LAST),
        ("DEFAULT ACL", CloneStage.LAST),
    ],
)
def test_every_kind_after_the_data_has_its_stage(kind: str, expected: CloneStage) -> None:
    assert stage(kind) is expected


def test_everything_before_the_data_is_a_definition() -> None:
    for kind in ("TABLE", "VIEW", "MATERIALIZED VIEW", "FUNCTION", "DEFAULT", "TABLE ATTACH", "SEQUENCE OWNED BY"):
        assert stage(kind, Section.PRE_DATA) is CloneStage.DEFINITIONS
    assert stage("INDEX", unique=True) is CloneStage.KEYS
    with pytest.raises(UnsupportedArchive, match="TABLE x"):
        stage("TABLE")


def test_a_comment_is_created_with_its_object_and_privileges_on_tables_at_the_end() -> None:
    table = Entry(2, 1259, 20, "TABLE", "t")
    key = Entry(3, 2606, 30, "CONSTRAINT", "k", (2,), Section.POST_DATA)
    function = Entry(4, 1255, 40, "FUNCTION", "f")
    assert stage("COMMENT", Section.PRE_DATA, table) is CloneStage.DEFINITIONS
    assert stage("COMMENT", Section.POST_DATA, key) is CloneStage.KEYS
    assert stage("ACL", Section.PRE_DATA, table) is CloneStage.LAST
    assert stage("ACL", Section.PRE_DATA, function) is CloneStage.DEFINITIONS
    assert stage("ACL", Section.PRE_DATA) is CloneStage.LAST


def test_dependents_of_dependents_are_found() -> None:
    chain = [Entry(number, 0, 0, "VIEW", "v", (number + 1,)) for number in range(1, 9)]
    assert closure(chain, {5}) == {1, 2, 3, 4, 5}
