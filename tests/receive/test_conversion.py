"""The stream passes texts without an equivalent in UTF-8, and all other texts are converted as PostgreSQL does."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.database import create_database
from harness.mirrored import connected, eventually, mirrored, receiving, said
from harness.postgres import Server
from harness.printed import printed
from harness.recorded import types_of
from tests.conftest import NEWEST
from tidemark.clock import Lsn
from tidemark.log.reader import LogReader
from tidemark.pgoutput.changes import ChangeBatch, Undecodable
from tidemark.values.types import Types

pytestmark = [pytest.mark.quick, NEWEST]

# Bytes that PostgreSQL stores and cannot convert. The first ones, taken for UTF-8, would be a valid text.
UNDEFINED = {"WIN1252": r"E'\303\201'", "EUC_JP": r"E'\251\241'"}
TEXTS = {"WIN1252": "Größe 5 €", "EUC_JP": "日本語 5 円"}


@pytest.mark.parametrize("encoding", UNDEFINED)
def test_the_stream_passes_a_text_without_an_equivalent(server: Server, tmp_path: Path, encoding: str) -> None:
    db, text, undefined = create_database(server, encoding), TEXTS[encoding], UNDEFINED[encoding]
    try:
        db.run(
            "create table bad (id int primary key, v text)",
            f'create table "{text}" (id int primary key, "{text}" text, b bytea, a text[], n numeric)',
            f'alter table "{text}" replica identity full',
        )
        mirror = mirrored(db, tmp_path, "bad", f'"{text}"', as_stored_s=0.1)
        with receiving(mirror) as process:
            with connected(mirror.options.folder) as client:
                eventually(lambda: client.position().state == "streaming")
            db.run(
                f"""begin;
                insert into "{text}" values (1, '{text}', '\\xff00', '{{{text},"a b",NULL}}', 1.5);
                insert into bad values (1, {undefined}), (2, '{text}');
                select pg_logical_emit_message(true, '{text}', 'content');
                update "{text}" set id = 2, n = null;
                commit""",
                f"insert into bad values (3, '{text}')",
            )
            mirror.catch_up()
            eventually(lambda: said(mirror).count("streaming from") == 3)
            db.run(f"""insert into "{text}" values (3, '{text}', null, null, null)""")
            mirror.catch_up()
            process.stop()
            process.wait()
        reader = LogReader(mirror.options.folder)
        batches = list(reader.read(Lsn.ZERO, reader.received, Types(types_of(db))))
        rows = [
            row
            for batch in batches
            if isinstance(batch, ChangeBatch) and batch.relation.name == text
            for row in zip(*(printed(column) for column in batch.new), strict=True)
        ]
        assert rows == [
            ("1", text, r"\xff00", f'{{"{text}","a b",NULL}}', "1.5"),
            ("2", text, r"\xff00", f'{{"{text}","a b",NULL}}', None),
            ("3", text, None, None, None),
        ]
        (refused,) = (batch for batch in batches if isinstance(batch, Undecodable))
        assert (refused.relation.name, "column v" in refused.reason) == ("bad", True)
        formats = [line.rpartition(" ")[2] for line in said(mirror).splitlines() if "streaming from" in line]
        assert formats == ["binary", "text", "binary"]
    finally:
        db.drop()
