"""`tidemark config`: the effective values of a configuration."""

from __future__ import annotations

from pathlib import Path

import click

from tidemark.daemon.config import described, read_config
from tidemark.errors import ExitCode


@click.command()
@click.argument("file", type=click.Path(path_type=Path), default="tidemark.toml")
def config(file: Path) -> ExitCode:
    """Check FILE, and print the effective values and their origin.

    FILE is tidemark.toml by default. Passwords are not printed: the file only refers to them.
    """
    for line in described(read_config(file)):
        click.echo(line)
    return ExitCode.OK
