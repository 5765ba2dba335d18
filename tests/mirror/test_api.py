"""The package as it is imported: every public name, and no Spark before it is used."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import tidemark
from tidemark.errors import InvalidValue, LakeMissing

pytestmark = pytest.mark.quick

LAZY = """
import sys, tidemark
tidemark.Lsn, tidemark.Boundary, tidemark.status, tidemark.expire, tidemark.doctor, tidemark.compare
loaded = {"pyspark", "py4j"} & set(sys.modules)
assert not loaded, loaded
"""


def test_importing_the_package_and_its_names_imports_no_spark() -> None:
    subprocess.run([sys.executable, "-c", LAZY], check=True)


@pytest.mark.parametrize("name", ["compare", "doctor", "expire", "open", "status", "sync"])
def test_every_function_is_documented_with_an_example(name: str) -> None:
    documented = inspect.getdoc(getattr(tidemark, name)) or ""
    assert f"tidemark.{name}(" in documented


def test_a_path_that_is_no_lake_is_refused_before_spark_starts(tmp_path: object) -> None:
    for function in (tidemark.status, tidemark.expire, tidemark.open):
        with pytest.raises(LakeMissing):
            function(str(tmp_path))
        with pytest.raises(InvalidValue, match="object storage is not supported"):
            function("s3://bucket/lake")
        with pytest.raises(InvalidValue, match="is a file"):
            function(__file__)
    with pytest.raises(InvalidValue, match="cannot be given together"):
        tidemark.expire(str(tmp_path), keep="1d", before="0/1")
