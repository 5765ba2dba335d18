"""Connection strings: understood as libpq understands them, and never shown."""

import copy
import json
import logging
import pickle
import traceback

import pytest

from tidemark.errors import InvalidValue
from tidemark.postgres.dsn import Dsn

pytestmark = pytest.mark.quick

CANARY = "c4n4ry"


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://u:{CANARY}@h/d",
        f"postgres://u:{CANARY}@h:5432,h2/d?sslmode=require",
        f"host=h user=u password={CANARY} sslpassword={CANARY}",
        f"host=h password='{CANARY} x'",
        f"postgresql://h/d?user=u&password={CANARY}",
        f"postgresql://u:{CANARY}%40%2F@h/d",
    ],
)
def test_a_password_is_not_shown_by_any_way_of_showing(text: str, caplog: pytest.LogCaptureFixture) -> None:
    dsn = Dsn(text)
    logging.getLogger("x").error("source %s %r", dsn, dsn)
    shown = [str(dsn), repr(dsn), f"{dsn}", f"{[dsn]!r}", caplog.text]
    assert CANARY not in "".join(shown)
    assert dsn.reveal() == text
    for act in (pickle.dumps, copy.copy, copy.deepcopy, json.dumps, vars, Dsn.__getstate__):
        with pytest.raises(TypeError):
            act(dsn)


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://u:{CANARY}%zz@h/d",  # libpq: invalid percent-encoded token: "c4n4ry%zz"
        f"postgresql://u:x@{CANARY}@h/d",  # libpq would look for the host "c4n4ry@h"
        f"postgresql://u:x/{CANARY}@h/d",  # libpq would take "x" for the port and the rest for the database
        f"postgresql://u:12/{CANARY}@h/d",
        f"postgresql://u:{CANARY}/y@h/d",
        f"password=my {CANARY}",  # libpq: missing "=" after "c4n4ry"
        f"password=my {CANARY}=x",  # libpq: invalid connection option "c4n4ry"
        f"host='{CANARY}",
        f"postgresql://[{CANARY}/d",
        f"postgresql://h/d?{CANARY}",
        f"postgresql://h/d?{CANARY}=1",
        f"postgresql://h/d?password=a={CANARY}",
        f"{CANARY}",
        f"host=h\0{CANARY}",
        f"host=h port={CANARY}",
        f"dbname=postgresql://u:{CANARY}@127.0.0.1:1/d host=127.0.0.1",
        f"host=postgresql://u:{CANARY}@127.0.0.1",
        f"postgresql://u:12/{CANARY}?application_name=x@h/d",
        f"host=h password={CANARY}\udcff",
    ],
)
def test_what_libpq_cannot_read_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(InvalidValue, match="invalid connection string") as caught:
        Dsn(text)
    said = "".join(traceback.format_exception(caught.value)) + repr(caught.value.args)
    assert CANARY not in said
    assert caught.value.hint


def test_what_is_no_secret_is_shown() -> None:
    assert str(Dsn("postgresql://app:x@db.example:5433/shop")) == "host=db.example port=5433 dbname=shop user=app"
    assert str(Dsn("service=shop")) == "service=shop"
    assert str(Dsn("")) == "libpq defaults"
