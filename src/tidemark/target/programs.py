"""Find pg_dump and pg_restore, and run them with a connection string that appears in no list of processes.

pg_dump reads servers up to its own major version, so it must be at least that of the source. Both programs come from
one directory, because pg_restore reads no archive of a newer pg_dump. Of several, the one nearest to the target is
used: a newer one may send settings that the target does not have.

Since the minor releases of November 2026 (15.20) a server stores the version of a column as the option `pg_attver` of
that column. An older pg_dump, also of a newer major version, dumps it as an option, which no server accepts.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tidemark.errors import InvalidValue, ProgramMissing
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session

_USUAL = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/pgsql/bin",
)
_VERSION = re.compile(r"^pg_(?:dump|restore) \([^)]*\) (\d+)(\S*)", re.MULTILINE)
_WRAPPER = "pg_wrapper"  # Debian's script on the PATH chooses another version for each server
_SECRET = frozenset({"sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret"})
_SECONDS = 60
_COLUMN_VERSION = "pg_attver"
_COLUMN_VERSIONS = """
    select exists (select from pg_attribute, unnest(attoptions) as option where starts_with(option, %s || '='))
"""


@dataclass(frozen=True, slots=True)
class Programs:
    """The two programs of one installation. `version` is as they print it: 18.4."""

    pg_dump: Path
    pg_restore: Path
    version: str

    @property
    def major(self) -> int:
        """The major version: 18."""
        return _major(self.version)

    @property
    def leaves_out_column_versions(self) -> bool:
        """Whether pg_dump leaves out versions of columns: then its code has the name of the option."""
        return _COLUMN_VERSION.encode() in self.pg_dump.read_bytes()


def stores_column_versions(source: Session) -> bool:
    """Whether columns of a server have the option that only a recent pg_dump leaves out."""
    return bool(source.row(_COLUMN_VERSIONS, [_COLUMN_VERSION])[0])


def find_programs(
    source_version_num: int, target_version_num: int, pg_bin: Path | None = None, *, column_versions: bool = False
) -> Programs:
    """Return the programs for a source and a target; `pg_bin` is the only directory searched if it is given.

    `column_versions` is whether the source stores them.
    """
    source, target = source_version_num // 10000, target_version_num // 10000
    folders = [pg_bin] if pg_bin is not None else list(dict.fromkeys(_folders()))
    found = [programs for folder in folders if (programs := _programs_in(folder))]
    fitting = [programs for programs in found if programs.major >= source]
    if not fitting:
        raise _missing(source, folders, found, pg_bin)
    if column_versions:
        dumping, fitting = fitting, [programs for programs in fitting if programs.leaves_out_column_versions]
        if not fitting:
            raise _too_old(dumping)
    return min(fitting, key=lambda programs: (abs(programs.major - target), programs.major))


def _folders() -> Iterator[Path]:
    """Return the directories to search: those of the PATH, then the usual ones, the newest version first."""
    yield from (Path(name) for name in os.environ.get("PATH", "").split(os.pathsep) if name)
    for pattern in _USUAL:
        yield from sorted(Path("/").glob(pattern.lstrip("/")), key=_digits, reverse=True)


def _digits(path: Path) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", str(path))))


def _programs_in(folder: Path) -> Programs | None:
    """Return the programs of a directory if both are there and have one version."""
    pg_dump, pg_restore = folder / "pg_dump", folder / "pg_restore"
    if _WRAPPER in (pg_dump.resolve().name, pg_restore.resolve().name):
        return None
    version = _version_of(pg_dump)
    return Programs(pg_dump, pg_restore, version) if version and version == _version_of(pg_restore) else None


def _version_of(program: Path) -> str | None:
    """Return the version that a program prints, or None if it does not run."""
    try:
        printed = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_SECONDS, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(printed.stdout)
    return f"{match[1]}{match[2]}" if match and printed.returncode == 0 else None


def _major(version: str) -> int:
    return int(re.match(r"\d+", version)[0])  # type: ignore[index]


def _missing(source: int, folders: Iterable[Path], found: Iterable[Programs], pg_bin: Path | None) -> ProgramMissing:
    versions = ", ".join(f"{programs.version} in {programs.pg_dump.parent}" for programs in found)
    searched = ", ".join(str(folder) for folder in folders) or "no directory"
    searched += "" if pg_bin is not None else f", {', '.join(_USUAL)}"
    return ProgramMissing(
        f"pg_dump and pg_restore {source} or later are required for a source of version {source}; "
        f"found: {versions or 'none'}; searched: {searched}",
        f"Install PostgreSQL's client programs, version {source} or later (such as the package "
        f"postgresql-client-{source}), or pass their directory with --pg-bin.",
    )


def _too_old(found: Iterable[Programs]) -> ProgramMissing:
    versions = ", ".join(f"{programs.version} in {programs.pg_dump.parent}" for programs in found)
    return ProgramMissing(
        f"the source stores versions of columns (option {_COLUMN_VERSION}), which pg_dump dumps as options that no "
        f"server accepts if it is older than November 2026; found: {versions}",
        "Install client programs of a minor release of November 2026 or later, such as 15.20, or pass their directory "
        "with --pg-bin.",
    )


def connection_of(dsn: Dsn, application: str) -> tuple[str, Mapping[str, str]]:
    """Return a connection string without a password, and the environment of a program that connects with it.

    Options keep their meaning, `service` among them. libpq has a variable for the password and for no other secret.
    """
    options = conninfo_to_dict(dsn.reveal())
    if secrets := sorted(_SECRET & options.keys()):
        raise InvalidValue(
            f"{', '.join(secrets)} of a connection string cannot be passed to pg_dump and pg_restore",
            "Remove the option from the connection string, and use a key file without a passphrase or ~/.pgpass.",
        )
    environment = {name: value for name, value in os.environ.items() if name != "PGCLIENTENCODING"}
    environment |= {"LC_ALL": "C", "LANGUAGE": "C"}
    if password := options.pop("password", None):
        environment["PGPASSWORD"] = str(password)
    options["application_name"] = application
    return make_conninfo("", **options), environment
