"""What deploy/kubernetes says is valid, and fits together: names, ports, selectors, options.

No cluster is asked. How several records behind a name are followed is in services/test_pools.py,
and in containers in deploy/test_compose_pools.py.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml

import outrider
from gateway.metrics import Metrics
from outrider.rpc.probe import main as probe
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider_cli import settings
from outrider_cli.app import app
from tests.support import kustomize
from tests.support.kustomize import Document, build, merged

KUBERNETES = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
NAMES = ("base", "overlays/cpu", "overlays/gpu", "example", "example-guarded")
VERSIONS = ("1.29", "1.37")  # the first in which sidecars are on, and the newest with a schema
NOT_IN_KUBERNETES = {"ServiceMonitor"}  # of the Prometheus Operator
IMAGE_PORT = 50060
DEFAULT_GRACE = 5.0
ADAPTER = KUBERNETES / "components" / "autoscaling" / "adapter-values.yaml"
LOADER = KUBERNETES / "components" / "models" / "loader.yaml"


@dataclass(frozen=True)
class Manifests:
    """The documents of one kustomization."""

    documents: list[Document]

    def of_kind(self, kind: str) -> list[Document]:
        return [each for each in self.documents if each["kind"] == kind]

    def named(self, kind: str) -> dict[str, Document]:
        return {each["metadata"]["name"]: each for each in self.of_kind(kind)}

    def selected(self, labels: dict[str, str]) -> list[Document]:
        """Return the Deployments whose pods have these labels."""
        return [
            each
            for each in self.of_kind("Deployment")
            if labels.items() <= pod_of(each)["metadata"]["labels"].items()
        ]

    def containers(self) -> dict[str, Document]:
        found = [one for each in self.of_kind("Deployment") for one in containers_of(each)]
        assert len({one["name"] for one in found}) == len(found)
        return {one["name"]: one for one in found}


@pytest.fixture(params=NAMES)
def manifests(request: pytest.FixtureRequest) -> Manifests:
    return Manifests(build(KUBERNETES / request.param))


def pod_of(deployment: Document) -> Document:
    pod: Document = deployment["spec"]["template"]
    return pod


def containers_of(deployment: Document) -> list[Document]:
    spec = pod_of(deployment)["spec"]
    return [*spec.get("initContainers", ()), *spec["containers"]]


def ports_of(deployment: Document) -> dict[str, int]:
    return {
        port["name"]: port["containerPort"]
        for container in containers_of(deployment)
        for port in container.get("ports", ())
    }


def option(container: Document, name: str) -> list[str]:
    words = container["args"]
    return [words[i + 1] for i, word in enumerate(words) if word == name]


def grace(container: Document) -> float:
    return float([*option(container, "--grace"), DEFAULT_GRACE][0])


def listens(container: Document) -> int:
    [*_, address] = option(container, "--listen") or [f":{IMAGE_PORT}"]
    return int(address.rpartition(":")[2])


def probes(container: Document) -> Iterator[list[str]]:
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        yield container[kind]["exec"]["command"]


def in_order(values: Iterable[Any]) -> list[Any]:
    return sorted(values, key=lambda each: json.dumps(each, sort_keys=True))


def comparable(value: Any) -> Any:
    """Return a document without the order of lists that are merged by a key."""
    if isinstance(value, dict):
        return {
            name: in_order(map(comparable, each))
            if name in kustomize.MERGE_KEYS and isinstance(each, list)
            else comparable(each)
            for name, each in value.items()
        }
    return [comparable(each) for each in value] if isinstance(value, list) else value


# --- the files ---


@pytest.mark.parametrize("name", NAMES)
def test_kubectl_makes_the_same_of_a_kustomization(name: str) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed; tests/support/kustomize.py stands in for it")
    printed = subprocess.run(
        (kubectl, "kustomize", str(KUBERNETES / name)), capture_output=True, text=True, check=True
    ).stdout
    theirs = map(comparable, yaml.safe_load_all(printed))
    assert in_order(theirs) == in_order(map(comparable, build(KUBERNETES / name)))


def test_every_file_is_part_of_a_kustomization() -> None:
    used = {ADAPTER, LOADER}
    for path in KUBERNETES.rglob("kustomization.yaml"):
        its = yaml.safe_load(path.read_text())
        patches = [patch["path"] for patch in its.get("patches", ())]
        used |= {path, *(path.parent / name for name in (*its.get("resources", ()), *patches))}
    there = {path for path in KUBERNETES.rglob("*") if path.is_file()}
    assert there == {path for path in used if path.is_file()}


def test_a_patch_changes_what_it_names_and_takes_away_what_it_nulls() -> None:
    base = {"replicas": 1, "env": [{"name": "A", "value": "1"}, {"name": "B"}], "args": ["x", "y"]}
    change = {"replicas": None, "env": [{"name": "A", "value": "2"}], "args": ["z"]}
    assert merged(base, change) == {
        "env": [{"name": "A", "value": "2"}, {"name": "B"}],
        "args": ["z"],
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_knows_every_field(manifests: Manifests, version: str) -> None:
    for document in manifests.documents:
        if document["kind"] not in NOT_IN_KUBERNETES:
            kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_loader_is_valid_and_mounts_the_claim(version: str) -> None:
    loader = yaml.safe_load(LOADER.read_text())
    kubernetes_validate.validate(loader, version, strict=True)
    claim = yaml.safe_load(LOADER.with_name("claim.yaml").read_text())
    [volume] = loader["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_a_field_that_kubernetes_does_not_know_is_found() -> None:
    [deployment, *_] = Manifests(build(KUBERNETES / "base")).of_kind("Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["imagePullPolize"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, VERSIONS[-1], strict=True)


def test_names_are_unique_within_a_kind(manifests: Manifests) -> None:
    names = [(each["kind"], each["metadata"]["name"]) for each in manifests.documents]
    assert len(set(names)) == len(names)


def test_images_are_of_this_version(manifests: Manifests) -> None:
    tags = {one["image"].rpartition(":")[2] for one in manifests.containers().values()}
    assert tags == {outrider.__version__}


# --- what names what ---


def test_a_deployment_selects_the_pods_that_it_makes(manifests: Manifests) -> None:
    for each in manifests.of_kind("Deployment"):
        labels = each["spec"]["selector"]["matchLabels"]
        assert manifests.selected(labels) == [each]
        for spread in pod_of(each)["spec"]["topologySpreadConstraints"]:
            assert spread["labelSelector"]["matchLabels"] == labels


def test_a_service_selects_one_deployment_and_its_ports_are_there(manifests: Manifests) -> None:
    for service in manifests.of_kind("Service"):
        [selected] = manifests.selected(service["spec"]["selector"])
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports_of(
            selected
        ).keys()


def test_disruption_budgets_and_autoscalers_are_of_deployments_that_there_are(
    manifests: Manifests,
) -> None:
    [budget] = manifests.of_kind("PodDisruptionBudget")
    [serving] = manifests.selected(budget["spec"]["selector"]["matchLabels"])
    assert budget["spec"]["maxUnavailable"] > 0  # else no node could be drained
    scalers = manifests.of_kind("HorizontalPodAutoscaler")
    assert {each["spec"]["scaleTargetRef"]["name"] for each in scalers} <= manifests.named(
        "Deployment"
    ).keys()
    for each in scalers:
        scaled = manifests.named("Deployment")[each["spec"]["scaleTargetRef"]["name"]]
        assert "replicas" not in scaled["spec"]  # it would be set back at every apply
    assert serving["metadata"]["name"] == "outrider-serving"


def test_every_volume_is_mounted_where_the_environment_names_it(manifests: Manifests) -> None:
    claims = manifests.named("PersistentVolumeClaim")
    for each in manifests.of_kind("Deployment"):
        volumes = {volume["name"]: volume for volume in pod_of(each)["spec"]["volumes"]}
        for container in containers_of(each):
            mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            assert mounts.keys() <= volumes.keys()
            environment = {one["name"]: one["value"] for one in container["env"]}
            assert environment["OUTRIDER_TOKEN_FILE"] == f"{mounts['token']}/token"
            if "models" in mounts:
                assert volumes["models"]["persistentVolumeClaim"]["claimName"] in claims
                folder, _, _ = environment["OUTRIDER_MODEL"].rpartition("/")
                assert folder == mounts["models"]


# --- the commands ---


@pytest.mark.parametrize("container", ["target", "orchestrator", "draft"])
def test_the_options_of_a_container_are_those_of_the_command(
    manifests: Manifests, container: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    its = manifests.containers()[container]
    environment = {one["name"]: one["value"] for one in its["env"]}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    root = typer.main.get_command(app)
    settings.read_environment(root, environment)  # raises for a variable that there is not
    name, *words = its["args"]
    command = settings.commands(root)[name]
    context = command.make_context(name, words)  # raises for an option that there is not
    if container != "orchestrator":
        assert str(context.params["model"]) == environment["OUTRIDER_MODEL"]


def test_a_container_is_probed_where_it_listens_and_liveness_is_apart(
    manifests: Manifests, capsys: pytest.CaptureFixture[str]
) -> None:
    for container in manifests.containers().values():
        for command in probes(container):
            python, _, module, address, *flags = command
            assert (python, module) == ("python", "outrider.rpc.probe")
            assert address == f"127.0.0.1:{listens(container)}"
            assert probe("127.0.0.1:1", *flags) == 1  # nobody there, and not 2: wrong arguments
        assert "--live" in container["livenessProbe"]["exec"]["command"]
        assert "--live" not in container["readinessProbe"]["exec"]["command"]


def test_ports_are_those_that_the_containers_listen_on(manifests: Manifests) -> None:
    for container in manifests.containers().values():
        addresses = [f":{listens(container)}", *option(container, "--http")]
        listening = {int(address.rpartition(":")[2]) for address in addresses}
        declared = {port["containerPort"] for port in container.get("ports", ())}
        is_within_the_pod = any("127.0.0.1" in each for each in option(container, "--listen"))
        assert declared == (set() if is_within_the_pod else listening)


def test_the_orchestrator_dials_the_target_of_its_pod_and_the_headless_service_of_the_drafts(
    manifests: Manifests,
) -> None:
    containers = manifests.containers()
    orchestrator = containers["orchestrator"]
    [within_the_pod] = option(containers["target"], "--listen")
    assert option(orchestrator, "--target") == [f"plain://{within_the_pod}"]
    services = manifests.of_kind("Service")
    [headless] = [each for each in services if each["spec"].get("clusterIP") == "None"]
    [port] = headless["spec"]["ports"]
    address = f"{headless['metadata']['name']}:{port['port']}"
    assert option(orchestrator, "--draft") == [address]
    # A headless name leads to the pods' own ports.
    assert port["port"] == listens(containers["draft"])


def test_the_target_outlives_the_orchestrator_and_the_pod_both(manifests: Manifests) -> None:
    serving = manifests.named("Deployment")["outrider-serving"]
    spec = pod_of(serving)["spec"]
    [target] = spec["initContainers"]
    [orchestrator] = spec["containers"]
    assert (target["name"], target["restartPolicy"]) == ("target", "Always")
    [command, seconds] = orchestrator["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    takes = float(seconds) + grace(orchestrator) + grace(target)
    assert spec["terminationGracePeriodSeconds"] > takes
    draft = manifests.named("Deployment")["outrider-drafts"]
    [container] = containers_of(draft)
    assert pod_of(draft)["spec"].get("terminationGracePeriodSeconds", 30) > grace(container)


# --- who reaches whom ---


def test_the_network_lets_through_what_is_dialled_and_keeps_drafts_to_themselves(
    manifests: Manifests,
) -> None:
    policies = manifests.named("NetworkPolicy")
    deployments = manifests.named("Deployment")
    for name in ("outrider-serving", "outrider-drafts"):
        spec = policies[name]["spec"]
        assert manifests.selected(spec["podSelector"]["matchLabels"]) == [deployments[name]]
        assert set(spec["policyTypes"]) == {"Ingress", "Egress"}
        for rule in spec["ingress"]:
            ports = {port["port"] for port in rule["ports"]}
            assert ports <= ports_of(deployments[name]).keys()
    [inward] = policies["outrider-drafts"]["spec"]["ingress"]
    [source] = inward["from"]
    assert manifests.selected(source["podSelector"]["matchLabels"]) == [
        deployments["outrider-serving"]
    ]
    [to_drafts, to_names] = policies["outrider-serving"]["spec"]["egress"]
    [destination] = to_drafts["to"]
    assert manifests.selected(destination["podSelector"]["matchLabels"]) == [
        deployments["outrider-drafts"]
    ]
    dialled = option(manifests.containers()["orchestrator"], "--draft")
    assert [f"outrider-drafts:{port['port']}" for port in to_drafts["ports"]] == dialled
    assert {port["port"] for port in to_names["ports"]} == {53}
    assert policies["outrider-drafts"]["spec"]["egress"] == []


def test_containers_run_without_privileges_and_pods_without_an_account(
    manifests: Manifests,
) -> None:
    for each in manifests.of_kind("Deployment"):
        spec = pod_of(each)["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False  # OUTRIDER_PORT would be read as an option
        for container in containers_of(each):
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            resources = container["resources"]
            assert {"cpu", "memory"} <= resources["requests"].keys()
            assert "memory" in resources["limits"]


def test_traces_reach_the_collector_from_every_pod() -> None:
    manifests = Manifests(build(KUBERNETES / "example-guarded"))
    [endpoint] = {
        one["value"]
        for container in manifests.containers().values()
        for one in container["env"]
        if one["name"] == "OUTRIDER_TRACES"
    }
    assert all(
        "OUTRIDER_TRACES" in {one["name"] for one in container["env"]}
        for container in manifests.containers().values()
    )
    host, _, port = endpoint.removeprefix("grpc://").partition(":")
    policy = manifests.named("NetworkPolicy")["outrider-traces"]["spec"]
    [labels] = policy["podSelector"]["matchExpressions"]
    assert labels["operator"] == "In" and sorted(labels["values"]) == sorted(
        pod_of(each)["metadata"]["labels"][labels["key"]]
        for each in manifests.of_kind("Deployment")
    )
    [to_collector, to_names] = policy["egress"]
    [its_namespace] = to_collector["to"]
    name = its_namespace["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
    assert host.split(".")[1] == name
    assert [each["port"] for each in to_collector["ports"]] == [int(port)]
    assert {each["port"] for each in to_names["ports"]} == {53}


def test_a_client_stays_at_the_pod_that_knows_its_jobs(manifests: Manifests) -> None:
    services = manifests.named("Service")
    assert services["outrider"]["spec"]["sessionAffinity"] == "ClientIP"


def test_certificates_are_mounted_where_they_are_named_and_h2c_is_said_of_none() -> None:
    manifests = Manifests(build(KUBERNETES / "example-guarded"))
    for name in ("outrider-serving", "outrider-drafts"):
        deployment = manifests.named("Deployment")[name]
        [container] = pod_of(deployment)["spec"]["containers"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        named = [one["value"] for one in container["env"] if "_TLS_" in one["name"]]
        assert len(named) >= 3 and all(each.startswith(mounts["tls"] + "/") for each in named)
        volumes = {volume["name"]: volume for volume in pod_of(deployment)["spec"]["volumes"]}
        assert volumes["tls"]["secret"]["secretName"] == f"{name}-tls"
        guide = (KUBERNETES.parents[1] / "docs" / "kubernetes.md").read_text()
        assert f"secret generic {name}-tls" in guide
    for service in manifests.of_kind("Service"):
        assert not any("appProtocol" in port for port in service["spec"]["ports"])


# --- the overlays ---


@pytest.fixture
def overlay() -> Callable[[str], Manifests]:
    return lambda name: Manifests(build(KUBERNETES / name))


def test_on_cpus_requests_are_limits(overlay: Callable[[str], Manifests]) -> None:
    for container in overlay("overlays/cpu").containers().values():
        resources = container["resources"]
        assert resources["requests"] == resources["limits"]


def test_on_gpus_only_the_target_has_one(overlay: Callable[[str], Manifests]) -> None:
    containers = overlay("overlays/gpu").containers()
    with_gpu = [
        name for name, one in containers.items() if "nvidia.com/gpu" in one["resources"]["limits"]
    ]
    images = {name: one["image"].partition(":")[0] for name, one in containers.items()}
    assert with_gpu == ["target"]
    assert images == {"target": "outrider-cuda", "orchestrator": "outrider", "draft": "outrider"}


def test_autoscalers_ask_for_a_metric_that_there_is_and_that_the_adapter_serves(
    overlay: Callable[[str], Manifests],
) -> None:
    manifests = overlay("example")
    [rule] = yaml.safe_load(ADAPTER.read_text())["rules"]["custom"]
    exposed = Metrics(messages.GetStatusResponse).exposition().decode()
    scalers = manifests.of_kind("HorizontalPodAutoscaler")
    assert len(scalers) == 2
    for scaler in scalers:
        [metric] = scaler["spec"]["metrics"]
        its = metric[metric["type"].lower()]
        name = its["metric"]["name"]
        assert f"\n{name} 0.0\n" in exposed
        assert rule["seriesQuery"].startswith(f"{name}{{") and rule["name"]["as"] == name
        if metric["type"] == "Object":
            described = its["describedObject"]
            assert described["name"] in manifests.named(described["kind"])
            assert described["kind"].lower() in rule["resources"]["overrides"]


def test_prometheus_finds_the_service_and_shows_the_token(
    overlay: Callable[[str], Manifests],
) -> None:
    manifests = overlay("example")
    [monitor] = manifests.of_kind("ServiceMonitor")
    service = manifests.named("Service")["outrider"]
    assert (
        monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    )
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    serving = manifests.named("Deployment")["outrider-serving"]
    secrets = {
        volume["secret"]["secretName"]
        for volume in pod_of(serving)["spec"]["volumes"]
        if "secret" in volume
    }
    assert endpoint["authorization"]["credentials"]["name"] in secrets
