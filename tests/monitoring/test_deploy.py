"""The files in `deploy` name metrics, options and paths that exist."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest

from tests.documentation.reference import ROOT
from tidemark.cli.main import tidemark as commands
from tidemark.lake.pipeline_state import State
from tidemark.monitoring.metrics import Metrics
from tidemark.monitoring.server_metrics import ServerMetrics

pytestmark = pytest.mark.quick

DEPLOY = ROOT / "deploy"
_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",), "gauge": ("",)}


def known_metrics() -> set[str]:
    """The names of all samples that a process can have."""
    families = [*Metrics().registry.collect(), *ServerMetrics().registry.collect()]
    return {f"{family.name}{suffix}" for family in families for suffix in _SUFFIXES[family.type]}


@pytest.mark.parametrize("path", ["prometheus/alerts.yml", "grafana/tidemark.json"])
def test_every_metric_that_is_named_exists(path: str) -> None:
    text = (DEPLOY / path).read_text()
    named = set(re.findall(r"\b(?:tidemark|process)_[a-z0-9_]+\b", text))
    assert len(named) >= 8
    assert named <= known_metrics()
    states = {state for found in re.findall(r"state=~?\\?\"([a-z|]+)", text) for state in found.split("|")}
    assert states <= {state.value for state in State}


def test_the_dashboard_shows_each_kind_of_metric() -> None:
    panels: list[dict[str, Any]] = json.loads((DEPLOY / "grafana" / "tidemark.json").read_text())["panels"]
    shown = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    assert all(panel["title"] and panel["targets"] for panel in panels)
    assert len({panel["id"] for panel in panels}) == len(panels)
    for name in ("lag_seconds", "slot_retained_bytes", "stage_duration_seconds", "table_readable", "disk_bytes"):
        assert f"tidemark_{name}" in shown


@pytest.mark.parametrize(
    ("path", "pattern", "command", "listens"),
    [
        ("systemd/tidemark@.service", r"^ExecStart=\S+/tidemark (.*)$", "sync", "listen"),
        ("systemd/tidemark-run.service", r"^ExecStart=\S+/tidemark (.*)$", "run", None),
        ("systemd/tidemark-serve@.service", r"^ExecStart=\S+/tidemark (.*)$", "serve", "monitored"),
        ("kubernetes/tidemark.yaml", r"^ +args: \[(.*)\]$", "sync", "listen"),
    ],
)
def test_the_command_line_is_valid(path: str, pattern: str, command: str, listens: str | None) -> None:
    text = (DEPLOY / path).read_text()
    (found,) = re.findall(pattern, text, re.MULTILINE)
    (options,) = re.findall(r"^# +OPTIONS=(.*)$", text, re.MULTILINE) or [""]
    assert ("$OPTIONS" in found) == bool(options)
    assert "@" not in path or not re.search(r":\d", found)  # a port in a template would be that of all instances
    words = shlex.split(found.replace(", ", " ").replace("$OPTIONS", options))
    at = words.index(command)
    parent = commands.make_context("tidemark", [*words[:at], command])
    found_command = commands.get_command(parent, command)
    assert found_command is not None
    params = found_command.make_context(command, words[at + 1 :], parent).params
    if listens is not None:
        assert params[listens].port in (9187, 9188)
        assert str(params["lake"]).startswith("/var/lib/tidemark/")


def test_the_passfile_of_kubernetes_is_one_that_libpq_reads() -> None:
    text = (DEPLOY / "kubernetes/tidemark.yaml").read_text()
    (passfile,) = re.findall(r"^ +passfile=(\S+)$", text, re.MULTILINE)
    assert f'command: [install, -m, "0600", /etc/tidemark/pgpass, {passfile}]' in text
