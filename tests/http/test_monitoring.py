"""deploy/prometheus and deploy/grafana ask for nothing that /metrics does not have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.support.fake_orchestrator import FakeOrchestrator
from tests.support.gateway import serving

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "outrider.rules.yaml"
DASHBOARD = DEPLOY / "grafana" / "outrider.json"

_NAME = re.compile(r"outrider_[a-z0-9_]+")
_LABELS = re.compile(r"(outrider_[a-z0-9_]+)\{([^}]*)\}")
_LABEL = re.compile(r"([a-z_]+) *[=!]")
OWN = {"job", "instance"}
"""Labels that Prometheus gives every sample."""


def rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def panels() -> list[dict[str, Any]]:
    return list(json.loads(DASHBOARD.read_text())["panels"])


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    for panel in panels():
        yield from (target["expr"] for target in panel["targets"])


async def exposition() -> str:
    """Return the metrics of an orchestrator with a target and a draft that has written."""

    def status(of_orchestrator: FakeOrchestrator) -> messages.GetStatusResponse:
        ready, model = messages.PEER_STATE_READY, common.GetModelResponse(model_name="small")
        peers = [
            messages.PeerStatus(role=role, address=f"{role}:1", state=ready, model=model)
            for role in ("target", "draft")
        ]
        return messages.GetStatusResponse(peers=peers)

    fake = type("WithPeers", (FakeOrchestrator,), {"status": status})()
    async with serving(fake) as url, httpx.AsyncClient() as client:
        await client.post(f"{url}/completion", json={"prompt": "a"})
        return (await client.get(f"{url}/metrics")).text


async def test_every_metric_that_is_asked_for_is_there_with_its_labels() -> None:
    text = await exposition()
    families = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    parts = {"histogram": ("_bucket", "_sum", "_count")}
    there = {name + end for name, kind in families.items() for end in parts.get(kind, ("",))}
    labels: dict[str, set[str]] = {}
    for name, found in re.findall(r"^(outrider_[a-z0-9_]+)(?:\{(.*)\})? ", text, re.M):
        labels.setdefault(name, set()).update(_LABEL.findall(found))
    asked = {name for each in expressions() for name in _NAME.findall(each)}
    assert len(asked) > 25
    assert asked <= there, asked - there
    for each in expressions():
        for name, matchers in _LABELS.findall(each):
            if name in labels:  # else the fake has no sample of it
                assert set(_LABEL.findall(matchers)) - OWN <= labels[name], each


def test_every_alert_names_its_cause_and_says_what_to_do() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts) >= 9
    for rule in alerts:
        assert rule["alert"].startswith("Outrider")
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["for"]
        about = rule["annotations"]
        assert len(about["summary"]) < 120
        assert len(about["description"]) > 80


def test_the_dashboard_can_be_imported_anywhere() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    assert "id" not in dashboard  # else Grafana looks for one of that number
    assert len({panel["id"] for panel in panels()}) == len(panels())
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}"
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
    taken = [
        (x, y)
        for each in (panel["gridPos"] for panel in panels())
        for x in range(each["x"], each["x"] + each["w"])
        for y in range(each["y"], each["y"] + each["h"])
    ]
    assert len(taken) == len(set(taken))


def test_the_configuration_reads_the_rules() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
    assert config["rule_files"] == [RULES.name]
    [scraped] = config["scrape_configs"]
    assert scraped["job_name"] == "outrider"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("words", [("rules", RULES), ("config", RULES.parent / "prometheus.yaml")])
def test_promtool_finds_nothing_wrong(words: tuple[str, Path]) -> None:
    kind, path = words
    command = ["promtool", "check", kind, str(path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
