"""`tidemark.toml`: the mirrors of one process, each with the options of `tidemark sync`.

    listen = "127.0.0.1:9187"

    [spark]
    master = "local[8]"

    [defaults]
    keep = "30d"

    [mirrors.shop]
    source = "service=shop"
    lake = "/data/shop"

An option has the name of the command line without the dashes; `no-fold` is `fold = false`. A password is never in the
file: libpq finds it by `service=` or in a passfile, or `password-env` and `password-file` name where it is.
"""

from __future__ import annotations

import difflib
import inspect
import json
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from psycopg.conninfo import make_conninfo

from tidemark.addresses import ListenAddress
from tidemark.errors import InvalidValue, TidemarkError
from tidemark.pipeline.plan import PipelineOptions
from tidemark.postgres.dsn import Dsn

DEFAULT = "default"
_Value = TypeVar("_Value")
_NOT_HERE = ("endpos", "once")  # a mirror of the process has no end
_SECRETS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")  # of libpq
_PASSWORDS = ("password-env", "password-file")
_TOP, _SPARK = ("listen", "spark", "defaults", "mirrors"), ("master", "remote", "conf")
_OF_ONE = ("source", "lake", "name")  # keys that cannot have a default
_FLAGS = ("fold", "accept-altered-publication")
_NUMBERS = ("reconcile-every", "copy-parallelism")
_QUANTITIES = ("keep", "interval", "budget", "wal-limit", "cycle", "cycle-time")


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A value, and where it was set: the name of a table of the file, or `default`."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class MirrorConfig:
    """One mirror: its settings by key, and the options of its pipeline."""

    name: str
    settings: Mapping[str, ConfigValue]
    options: PipelineOptions


@dataclass(frozen=True, slots=True)
class SparkConfig:
    """The Spark session of the process."""

    master: str | None = None
    remote: str | None = None
    conf: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Config:
    """The whole file."""

    path: Path
    mirrors: tuple[MirrorConfig, ...]
    spark: SparkConfig = field(default_factory=SparkConfig)
    listen: ListenAddress | None = None


def read_config(path: Path, environment: Mapping[str, str] = os.environ) -> Config:
    """Read and check a file; an error names the table and the key."""
    try:
        found = tomllib.loads(path.read_text())
    except OSError as error:
        raise InvalidValue(f"cannot read {path}: {error.strerror}", "Name a file such as tidemark.toml.") from error
    except (tomllib.TOMLDecodeError, UnicodeError) as error:
        raise InvalidValue(f"{path} is not valid TOML: {error}", "Correct the line.") from error
    return _Reader(path, environment).config(found)


class _Reader:
    def __init__(self, path: Path, environment: Mapping[str, str]) -> None:
        self._path, self._environment = path, environment
        parameters = inspect.signature(PipelineOptions.of).parameters.values()
        keys = {each.name.replace("_", "-"): each.default for each in parameters if each.name not in _NOT_HERE}
        values = {key: None if value is inspect.Parameter.empty else value for key, value in keys.items()}
        self._defaults: dict[str, Any] = {**values, **dict.fromkeys(_PASSWORDS)}  # None for a key without one

    def config(self, found: Mapping[str, Any]) -> Config:
        """Return the whole file."""
        self._require_known("the file", found, _TOP)
        spark, defaults, mirrors = (self._table(name, found.get(name, {})) for name in ("spark", "defaults", "mirrors"))
        if not mirrors:
            raise self._wrong("no mirror", "Add a table [mirrors.NAME] with source and lake.")
        self._require_known("[defaults]", defaults, [key for key in self._defaults if key not in _OF_ONE])
        listen = found.get("listen")
        config = Config(
            self._path,
            tuple(self._mirror(name, self._table(f"mirrors.{name}", own), defaults) for name, own in mirrors.items()),
            self._spark(spark),
            None if listen is None else self._converted("listen", lambda: ListenAddress.parse(str(listen))),
        )
        self._require_different_lakes(config)
        return config

    def _mirror(self, name: str, own: Mapping[str, Any], defaults: Mapping[str, Any]) -> MirrorConfig:
        where = f"[mirrors.{name}]"
        self._require_known(where, own, self._defaults)
        for key in ("source", "lake"):
            if key not in own:
                raise self._wrong(f"{where} has no {key}", f"Add `{key} = …` to {where}.")
        settings = {}
        for key, default in self._defaults.items():
            if key in own:
                settings[key] = ConfigValue(own[key], where)
            else:
                settings[key] = (
                    ConfigValue(defaults[key], "[defaults]") if key in defaults else ConfigValue(default, DEFAULT)
                )
            if settings[key].origin != DEFAULT:
                self._require_type(key, settings[key])
        values = {key.replace("-", "_"): each.value for key, each in settings.items() if key not in _PASSWORDS}
        for key in ("lake", "log"):
            if isinstance(values[key], str):
                values[key] = self._path.parent / values[key]
        values["source"] = self._converted(f"source in {where}", lambda: self._source(settings))
        return MirrorConfig(name, settings, self._converted(where, lambda: PipelineOptions.of(**values)))

    def _source(self, settings: Mapping[str, ConfigValue]) -> Dsn:
        """Return the connection string with the password that a setting refers to."""
        text = settings["source"].value
        variable, file = (settings[key].value for key in _PASSWORDS)
        for keyword in _SECRETS:
            if Dsn(text).has(keyword):
                raise InvalidValue(
                    f"the source contains a secret: {keyword}",
                    "Use service=, a passfile, password-env or password-file instead.",
                )
        if variable and file:
            raise InvalidValue("both password-env and password-file are set", "Keep one of them.")
        if variable:
            if variable not in self._environment:
                raise InvalidValue(f"the environment variable {variable} is not set", f"Set {variable}.")
            return Dsn(make_conninfo(text, password=self._environment[variable]))
        if file:
            return Dsn(make_conninfo(text, password=self._password(file)))
        return Dsn(text)

    def _password(self, file: str) -> str:
        try:
            return (self._path.parent / file).read_text().rstrip("\n")
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
            raise InvalidValue(f"cannot read the password file {file}: {reason}", "Check its path and mode.") from error

    def _spark(self, found: Mapping[str, Any]) -> SparkConfig:
        self._require_known("[spark]", found, _SPARK)
        conf = self._table("spark.conf", found.get("conf", {}))
        texts = {"master": found.get("master", ""), "remote": found.get("remote", ""), **conf}
        for key, value in texts.items():
            if not isinstance(value, str):
                raise self._wrong(f"{key} in [spark] is not text", f"Write the value of {key} in quotes.")
        options = tuple(f"{key}={value}" for key, value in conf.items())
        return SparkConfig(found.get("master"), found.get("remote"), options)

    def _require_type(self, key: str, setting: ConfigValue) -> None:
        value, what = setting.value, "text"
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        is_right = isinstance(value, str)
        if key in ("table", "exclude"):
            is_right, what = isinstance(value, list) and all(isinstance(each, str) for each in value), "a list of text"
        elif key in _FLAGS:
            is_right, what = isinstance(value, bool), "true or false"
        elif key in _NUMBERS:
            is_right, what = is_number and isinstance(value, int) and value > 0, "a positive number"
        elif key in _QUANTITIES:
            is_right, what = is_right or is_number, 'text such as "1GB" or "30s"'
        if not is_right:
            raise self._wrong(f"{key} in {setting.origin} is not {what}", f"Change {key} in {setting.origin}.")

    def _require_known(self, where: str, found: Iterable[str], known: Iterable[str]) -> None:
        known = sorted(known)
        for key in found:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"Did you mean {near[0]}?" if near else f"Use one of {', '.join(known)}."
                raise self._wrong(f"unknown key {key} in {where}", hint)

    def _require_different_lakes(self, config: Config) -> None:
        names: dict[Path, str] = {}
        for mirror in config.mirrors:
            other = names.setdefault(mirror.options.lake.resolve(), mirror.name)
            if other != mirror.name:
                raise self._wrong(
                    f"the mirrors {other} and {mirror.name} have the same lake", "Give each its own lake."
                )

    def _table(self, name: str, found: Any) -> dict[str, Any]:
        if not isinstance(found, dict):
            raise self._wrong(f"{name} is not a table", f"Write [{name}], and its keys below.")
        return found

    def _converted(self, place: str, convert: Callable[[], _Value]) -> _Value:
        """Convert a value; an error names the place."""
        try:
            return convert()
        except TidemarkError as error:
            raise self._wrong(f"{place}: {error.message}", error.hint) from error

    def _wrong(self, message: str, hint: str) -> InvalidValue:
        return InvalidValue(f"{self._path}: {message}", hint)


def described(config: Config) -> Iterator[str]:
    """Yield the effective values as lines of a file, each with a comment on where it was set. No line has a secret."""
    if config.listen is not None:
        yield f'listen = "{config.listen}"'
        yield ""
    spark = {"master": config.spark.master, "remote": config.spark.remote}
    if config.spark != SparkConfig():
        yield "[spark]"
        yield from (f"{key} = {_toml(value)}" for key, value in spark.items() if value)
        pairs = [each.partition("=") for each in config.spark.conf]
        yield from (f"conf.{_toml(key)} = {_toml(value)}" for key, _, value in pairs)
        yield ""
    for mirror in config.mirrors:
        yield f"[mirrors.{mirror.name}]"
        for key, setting in mirror.settings.items():
            if setting.value is not None:
                yield f"{f'{key} = {_toml(setting.value)}':<48}  # {setting.origin}"
        yield ""


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, (int, float)):
        return f"{value:g}" if isinstance(value, float) else str(value)
    return json.dumps(str(value), ensure_ascii=False)  # its escapes are those of TOML
