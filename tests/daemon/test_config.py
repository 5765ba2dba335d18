"""`tidemark.toml`: what it accepts, what it refuses, and that it prints no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.shell import here
from tidemark.addresses import ListenAddress
from tidemark.daemon.config import read_config
from tidemark.errors import ExitCode, InvalidValue

pytestmark = pytest.mark.quick

WHOLE = """
listen = "127.0.0.1:9187"

[spark]
master = "local[3]"
conf = { "spark.driver.memory" = "3g" }

[defaults]
keep = "30d"
exclude = ["audit.*"]

[mirrors.shop]
source = "service=shop"
lake = "shop"
keep = "forever"
fold = false
wal-limit = "1GB"
table = ["public.*"]

[mirrors.stock]
source = "host=db dbname=stock user=reader"
lake = "/data/stock"
password-env = "STOCK_PASSWORD"
name = "stock_mirror"
"""
ONE = '[mirrors.a]\nsource = "host=db dbname=a"\nlake = "/a"\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "tidemark.toml"
    path.write_text(text)
    return path


def test_the_options_are_those_of_sync_and_defaults_apply_to_all(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, WHOLE), {"STOCK_PASSWORD": "s3 'cret"})
    shop, stock = (mirror.options for mirror in config.mirrors)
    assert (config.listen, config.spark.master) == (ListenAddress("127.0.0.1", 9187), "local[3]")
    assert config.spark.conf == ("spark.driver.memory=3g",)
    assert (shop.lake, stock.lake) == (tmp_path / "shop", Path("/data/stock"))
    assert (shop.keep_s, stock.keep_s) == (None, 30 * 86400)
    assert (shop.folds, stock.folds) == (False, True)
    assert shop.wal_limit_bytes == 1 << 30
    assert (len(shop.selection.take), len(shop.selection.leave), len(stock.selection.take)) == (1, 1, 0)
    assert stock.mirror is not None
    assert "s3 \\'cret" in stock.source.reveal()


def test_the_effective_values_are_printed_with_their_origin_and_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOCK_PASSWORD", "canary-of-stock")
    shown = here("config", str(written(tmp_path, WHOLE)))
    lines = {line.partition(" = ")[0]: line for line in shown.stdout.partition("[mirrors.stock]")[2].splitlines()}
    assert lines["keep"].split() == ["keep", "=", '"30d"', "#", "[defaults]"]
    assert lines["name"].endswith("# [mirrors.stock]")
    assert lines["interval"].endswith("# default")
    assert lines["password-env"].split()[2] == '"STOCK_PASSWORD"'
    assert "canary" not in shown.stdout + shown.stderr
    again = read_config(written(tmp_path, shown.stdout))
    assert again.spark == read_config(written(tmp_path, WHOLE)).spark
    assert again.listen == ListenAddress("127.0.0.1", 9187)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "no mirror", "mirrors.NAME"),
        ("[mirrors.a]\n", "[mirrors.a] has no source", "source"),
        ('[mirrors.a]\nsource = "host=x"\n', "[mirrors.a] has no lake", "lake"),
        (f'{ONE}kep = "3d"\n', "unknown key kep in [mirrors.a]", "Did you mean keep?"),
        (f'[default]\nkeep = "3d"\n{ONE}', "unknown key default", "Did you mean defaults?"),
        (f'[defaults]\nlake = "3d"\n{ONE}', "unknown key lake in [defaults]", "Use one of"),
        (f"{ONE}keep = true\n", "keep in [mirrors.a] is not text", "keep"),
        (f'{ONE}keep = "soon"\n', "[mirrors.a]: ", ""),
        (f'{ONE}table = "x"\n', "table in [mirrors.a] is not a list", "table"),
        (f"{ONE}copy-parallelism = 0\n", "copy-parallelism in [mirrors.a] is not a positive number", ""),
        (f'{ONE}mode = "fast"\n', "invalid mode", "Use one of"),
        (f'[defaults]\nfold = "no"\n{ONE}', "fold in [defaults] is not true or false", ""),
        (f'[mirrors.b]\nsource = "host=x"\nlake = "/a"\n{ONE}', "have the same lake", ""),
        ('[mirrors.a]\nsource = "host=x password=y"\nlake = "/a"\n', "contains a secret: password", "password-env"),
        ('[mirrors.a]\nsource = "host=x sslpassword=y"\nlake = "/a"\n', "contains a secret: sslpassword", "service="),
        ('[mirrors.a]\nsource = "postgresql://u:p@x/a"\nlake = "/a"\n', "contains a secret: password", "service="),
        (f'{ONE}password-env = "MISSING"\n', "the environment variable MISSING is not set", "MISSING"),
        (f'{ONE}password-file = "missing"\n', "cannot read the password file missing", ""),
        (f'{ONE}password-file = "a"\npassword-env = "B"\n', "both password-env and password-file", ""),
        (f'listen = "9187"\n{ONE}', "listen: invalid address", "HOST:PORT"),
        (f"[spark]\nmaster = 3\n{ONE}", "master in [spark] is not text", ""),
        (f"[spark]\nmemory = 3\n{ONE}", "unknown key memory in [spark]", ""),
        ("mirrors = 3\n", "mirrors is not a table", ""),
        ("[mirrors\n", "is not valid TOML", ""),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, text: str, message: str, hint: str) -> None:
    with pytest.raises(InvalidValue) as raised:
        read_config(written(tmp_path, text), {})
    assert message in raised.value.message
    assert hint in raised.value.hint


def test_a_missing_file_is_named() -> None:
    shown = here("run", "/nowhere/tidemark.toml")
    assert (shown.returncode, "cannot read /nowhere/tidemark.toml" in shown.stderr) == (ExitCode.USAGE, True)


def test_a_password_file_has_the_password(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("from the file\n")
    config = read_config(written(tmp_path, f'{ONE}password-file = "secret"\n'), {})
    assert "from the file" in config.mirrors[0].options.source.reveal()
    assert "from the file" not in str(config.mirrors[0].options.source)
