"""The files in `deploy` name metrics, options and paths that exist."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest

from tests.documentation.reference import ROOT
from tidemark.cli.main import tidemark as commands
from tidemark.cli.sync import sync
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
    ("path", "pattern"),
    [
        ("systemd/tidemark@.service", r"^ExecStart=\S+/tidemark (.*)$"),
        ("kubernetes/tidemark.yaml", r"^ +args: \[(.*)\]$"),
    ],
)
def test_the_command_line_is_one_of_sync(path: str, pattern: str) -> None:
    text = (DEPLOY / path).read_text()
    (found,) = re.findall(pattern, text, re.MULTILINE)
    words = shlex.split(found.replace(", ", " "))
    at = words.index("sync")
    parent = commands.make_context("tidemark", [*words[:at], "sync"])
    params = sync.make_context("sync", words[at + 1 :], parent).params
    assert params["listen"].port == 9187
    assert str(params["lake"]).startswith("/var/lib/tidemark/")
