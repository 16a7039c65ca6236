"""What deploy/kubernetes/base says of itself fits together: names, ports, selectors, options.

No cluster is asked. How several records behind a name are followed is in services/test_pools.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from outrider_cli import settings
from outrider_cli.app import app

BASE = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "base"
IMAGE_PORT = 50060


def documents() -> list[dict[str, Any]]:
    names = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    return [each for name in names for each in yaml.safe_load_all((BASE / name).read_text())]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [each for each in documents() if each["kind"] == kind]


def pod_of(deployment: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = deployment["spec"]["template"]
    return pod


def containers() -> list[dict[str, Any]]:
    return [c for each in of_kind("Deployment") for c in pod_of(each)["spec"]["containers"]]


def named(container: dict[str, Any]) -> str:
    return str(container["name"])


def option(container: dict[str, Any], name: str) -> list[str]:
    words = container["args"]
    return [words[i + 1] for i, word in enumerate(words) if word == name]


def listens(container: dict[str, Any]) -> int:
    [*_, address] = option(container, "--listen") or [f":{IMAGE_PORT}"]
    return int(address.rpartition(":")[2])


def probes(container: dict[str, Any]) -> Iterator[list[str]]:
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        if kind in container:
            yield container[kind]["exec"]["command"]


def test_every_file_of_the_base_is_one_of_its_resources() -> None:
    listed = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    there = {path.name for path in BASE.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(listed) == there and len(listed) == len(there)


def test_names_are_unique_within_a_kind() -> None:
    names = [(each["kind"], each["metadata"]["name"]) for each in documents()]
    assert len(set(names)) == len(names)


def test_a_deployment_selects_the_pods_that_it_makes() -> None:
    for each in of_kind("Deployment"):
        labels = pod_of(each)["metadata"]["labels"]
        assert each["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_a_service_selects_one_deployment_and_its_ports_are_there() -> None:
    for service in of_kind("Service"):
        selector = service["spec"]["selector"].items()
        [selected] = [
            each
            for each in of_kind("Deployment")
            if selector <= pod_of(each)["metadata"]["labels"].items()
        ]
        ports = {
            port["name"]
            for container in pod_of(selected)["spec"]["containers"]
            for port in container.get("ports", ())
        }
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


@pytest.mark.parametrize("container", containers(), ids=named)
def test_the_options_of_a_container_are_those_of_the_command(container: dict[str, Any]) -> None:
    root = typer.main.get_command(app)
    name, *words = container["args"]
    command = settings.commands(root)[name]
    command.make_context(name, words)  # raises for an option that there is not


@pytest.mark.parametrize("container", containers(), ids=named)
def test_probes_ask_where_the_container_listens_and_liveness_is_apart(
    container: dict[str, Any],
) -> None:
    asked = list(probes(container))
    assert all(f"127.0.0.1:{listens(container)}" in command for command in asked)
    assert ["--live" in command for command in asked].count(True) == 1
    assert "--live" in container["livenessProbe"]["exec"]["command"]


def test_ports_are_those_that_the_containers_listen_on() -> None:
    for container in containers():
        addresses = [f":{listens(container)}", *option(container, "--http")]
        listening = {int(address.rpartition(":")[2]) for address in addresses}
        declared = {port["containerPort"] for port in container.get("ports", ())}
        is_within_the_pod = any("127.0.0.1" in each for each in option(container, "--listen"))
        assert declared == (set() if is_within_the_pod else listening)


def test_the_orchestrator_dials_the_target_of_its_pod_and_the_headless_service_of_the_drafts() -> (
    None
):
    [orchestrator] = [each for each in containers() if named(each) == "orchestrator"]
    [target] = [each for each in containers() if named(each) == "target"]
    assert option(orchestrator, "--target") == option(target, "--listen")
    [headless] = [each for each in of_kind("Service") if each["spec"].get("clusterIP") == "None"]
    [port] = headless["spec"]["ports"]
    address = f"{headless['metadata']['name']}:{port['port']}"
    assert option(orchestrator, "--draft") == [address]
    [draft] = [each for each in containers() if named(each) == "draft"]
    assert port["port"] == listens(draft)  # a headless name leads to the pods' own ports


def test_every_volume_is_mounted_where_the_environment_names_it() -> None:
    for each in of_kind("Deployment"):
        spec = pod_of(each)["spec"]
        volumes = {volume["name"] for volume in spec["volumes"]}
        for container in spec["containers"]:
            mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            assert mounts.keys() <= volumes
            [token] = [e["value"] for e in container["env"] if e["name"] == "OUTRIDER_TOKEN_FILE"]
            assert token == f"{mounts['token']}/token"


def test_a_pod_has_longer_to_end_than_its_containers_take() -> None:
    for each in of_kind("Deployment"):
        spec = pod_of(each)["spec"]
        graces = [float(g) for c in spec["containers"] for g in option(c, "--grace")] or [5.0]
        assert spec.get("terminationGracePeriodSeconds", 30) > max(graces)


def test_containers_run_without_privileges() -> None:
    for each in of_kind("Deployment"):
        assert pod_of(each)["spec"]["securityContext"]["runAsNonRoot"] is True
    for container in containers():
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}
