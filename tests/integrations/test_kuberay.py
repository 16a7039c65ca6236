"""What deploy/ray says is valid, and fits together: arguments, ports, mounts, versions.

No cluster is asked. What the application does on a real Ray is in tests/integrations/ray_serve.
"""

from __future__ import annotations

import json
import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import outrider
from outrider_cli import settings
from outrider_cli.app import app
from outrider_ray.settings import Settings, deployments

ROOT = Path(__file__).resolve().parents[2]
RAY = ROOT / "deploy" / "ray"
VERSIONS = ("1.29", "1.37")


@pytest.fixture
def spec() -> dict[str, Any]:
    document = yaml.safe_load((RAY / "rayservice.yaml").read_text())
    assert (document["apiVersion"], document["kind"]) == ("ray.io/v1", "RayService")
    return dict(document["spec"])


@pytest.fixture
def serve(spec: dict[str, Any]) -> dict[str, Any]:
    return dict(yaml.safe_load(spec["serveConfigV2"]))


def application_of(serve: dict[str, Any]) -> dict[str, Any]:
    [application] = serve["applications"]
    return dict(application)


@pytest.fixture
def application(serve: dict[str, Any]) -> dict[str, Any]:
    return application_of(serve)


def groups(spec: dict[str, Any]) -> dict[str, Any]:
    cluster = spec["rayClusterConfig"]
    workers = {each["groupName"]: each for each in cluster["workerGroupSpecs"]}
    return {"head": cluster["headGroupSpec"], **workers}


def container(group: dict[str, Any]) -> dict[str, Any]:
    [its] = group["template"]["spec"]["containers"]
    return dict(its)


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_knows_every_field_of_the_pods(spec: dict[str, Any], version: str) -> None:
    for name, group in groups(spec).items():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
        kubernetes_validate.validate({**pod, **group["template"]}, version, strict=True)


def test_the_application_and_its_grpc_service_are_there(serve: dict[str, Any]) -> None:
    for each in (serve, yaml.safe_load((RAY / "serve.yaml").read_text())):
        application = application_of(each)
        module, _, name = application["import_path"].partition(":")
        assert callable(getattr(import_module(module), name))
        [servicer] = each["grpc_options"]["grpc_servicer_functions"]
        module, _, name = servicer.rpartition(".")
        assert callable(getattr(import_module(module), name))
        Settings.read(application["args"])


def test_arguments_are_the_applications_own(application: dict[str, Any]) -> None:
    read = Settings.read(application["args"])
    options = deployments(read)
    assert {each["name"] for each in application["deployments"]} <= options.keys()
    # Serve puts these in place of what the arguments say.
    [draft] = application["deployments"]
    assert draft["ray_actor_options"]["num_cpus"] == read.draft_cpus


def test_the_options_are_those_of_the_commands(application: dict[str, Any]) -> None:
    read = Settings.read(application["args"])
    commands = settings.commands(command_line())
    for name, words in (
        ("target", read.target_words),
        ("draft", read.draft_words),
        ("orchestrator", read.orchestrator_words("127.0.0.1:1")),
    ):
        commands[name].make_context(name, [*words])  # raises for an option that there is not


def command_line() -> Any:
    import typer

    return typer.main.get_command(app)


def test_workers_hold_what_a_replica_asks_for(
    spec: dict[str, Any], application: dict[str, Any]
) -> None:
    read, found = Settings.read(application["args"]), groups(spec)
    targets, drafts = container(found["targets"])["resources"], container(found["drafts"])
    assert float(targets["limits"]["cpu"]) >= read.serving_cpus
    assert float(targets["limits"]["nvidia.com/gpu"]) >= read.serving_gpus
    assert float(drafts["resources"]["limits"]["cpu"]) >= read.draft_cpus
    most = {name: found[name]["maxReplicas"] for name in ("targets", "drafts")}
    assert most == {"targets": read.serving.most, "drafts": read.drafts.most}
    [draft] = application["deployments"]
    offered = json.loads(json.loads(found["drafts"]["rayStartParams"]["resources"].strip("'")))
    assert draft["ray_actor_options"]["resources"].keys() <= offered.keys()
    assert found["head"]["rayStartParams"]["num-cpus"] == "0"


def test_models_and_token_are_mounted_where_the_arguments_name_them(
    spec: dict[str, Any], application: dict[str, Any]
) -> None:
    read = Settings.read(application["args"])
    for name, group in groups(spec).items():
        mounts = {m["name"]: m["mountPath"] for m in container(group)["volumeMounts"]}
        volumes = {volume["name"] for volume in group["template"]["spec"]["volumes"]}
        assert mounts.keys() == volumes
        assert read.token_file == f"{mounts['token']}/token"
        if name != "head":
            for model in (read.model, read.draft_model):
                assert str(Path(model).parent) == mounts["models"]
            assert group["template"]["spec"]["terminationGracePeriodSeconds"] > read.grace


def test_ports_are_those_that_serve_listens_on_and_get_a_service(
    spec: dict[str, Any], serve: dict[str, Any]
) -> None:
    ports = {p["name"]: p["containerPort"] for p in container(groups(spec)["head"])["ports"]}
    # KubeRay makes a Service of what is named serve, or begins so.
    assert ports["serve"] == serve["http_options"]["port"]
    assert ports["serve-grpc"] == serve["grpc_options"]["port"]


def test_images_and_ray_are_of_this_version(spec: dict[str, Any]) -> None:
    images = {container(each)["image"] for each in groups(spec).values()}
    assert images == {f"outrider-ray:{outrider.__version__}"}
    [pinned] = re.findall(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert spec["rayClusterConfig"]["rayVersion"] == pinned


def test_ray_is_in_no_other_extra_and_not_in_the_base_install() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    with_ray = {n for n, needs in extras.items() if any(re.match(r"ray\b", e) for e in needs)}
    assert with_ray == {"ray"}
    assert not any(re.match(r"ray\b", each) for each in project["dependencies"])
