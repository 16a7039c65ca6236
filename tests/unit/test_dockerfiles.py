"""deploy/Dockerfile by construction: stages, base images, flags, user, entry point.

It is built and run by `make compose-test`, and for CUDA and for Ray by `make images`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "deploy" / "Dockerfile"


@dataclass(frozen=True)
class Stage:
    """One FROM with what follows it, as (instruction, what is after it)."""

    image: str
    name: str
    steps: list[tuple[str, str]]

    def all_of(self, instruction: str) -> list[str]:
        return [words for each, words in self.steps if each == instruction]


def read() -> tuple[dict[str, str], list[Stage]]:
    """Return the arguments before the first stage, by name, and the stages."""
    text = re.sub(r"^\s*#.*\n", "", FILE.read_text(), flags=re.M).replace("\\\n", " ")
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        instruction, _, words = line.partition(" ")
        if instruction == "FROM":
            image, _, name = words.partition(" AS ")
            stages.append(Stage(image, name, []))
        elif stages:
            stages[-1].steps.append((instruction, " ".join(words.split())))
        else:
            assert instruction == "ARG", line
            name, _, default = words.partition("=")
            arguments[name] = default
    return arguments, stages


def stage(name: str) -> Stage:
    """Return the stage of this name."""
    return next(each for each in read()[1] if each.name == name)


def image(llama: str) -> list[Stage]:
    """Return the stages that an image is made of: from the one that its last line names, down."""
    by_name = {each.name: each for each in read()[1]}
    chain = [by_name[read()[1][-1].image.replace("${LLAMA}", llama)]]
    while chain[-1].image in by_name:
        chain.append(by_name[chain[-1].image])
    return chain


def test_every_base_image_is_an_argument_so_that_a_mirror_can_be_named() -> None:
    arguments, stages = read()
    names = {each.name for each in stages} | {"scratch"}
    for each in stages:
        known = each.image.replace("${LLAMA}", "cuda")
        assert known in names or (known == "${PYTHON_IMAGE}" and arguments["PYTHON_IMAGE"])


def test_the_default_is_the_command_for_cpus() -> None:
    arguments, _ = read()
    assert (arguments["LLAMA"], arguments["FOR"]) == ("cpu", "service")


def test_both_are_built_by_the_same_steps_without_tools_in_them() -> None:
    tools = stage("build").image
    assert tools == "tools-${LLAMA}"
    assert stage("tools-cuda").image == "tools-cpu"
    for llama in ("cpu", "cuda"):
        chain = image(llama)
        assert chain[-1].image == "scratch"
        copied = [words for each in chain for words in each.all_of("COPY")]
        assert copied == ["--from=runtime / /", "--from=build /opt/outrider /opt/outrider"]


def test_llama_cpp_is_built_for_every_cpu_and_for_gpus_beside_that() -> None:
    [command] = [each for each in stage("build").all_of("RUN") if "CMAKE_ARGS=" in each]
    [flags] = re.findall(r'CMAKE_ARGS="([^"]*)"', command)
    assert "-DGGML_RPC=OFF" in flags
    # With plug-ins for every processor, and what mends gcc's AMX beside the file that names it.
    assert "-DCMAKE_PROJECT_llama_cpp_INCLUDE=/pins/llama_build/llama.cmake" in flags
    # What a user adds comes last and so decides.
    assert flags.endswith("${LLAMA_GPU_ARGS:-} ${LLAMA_CMAKE_ARGS}")
    [for_cpus] = [each for each in stage("build").all_of("ARG") if each.startswith("LLAMA_CMAKE")]
    assert "-DGGML_NATIVE=OFF" in for_cpus  # else it runs where it was built alone
    [environment] = stage("tools-cuda").all_of("ENV")
    assert "-DGGML_CUDA=ON" in environment
    assert "-DCMAKE_CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES}" in environment
    assert stage("tools-cuda").all_of("ARG") == ['CUDA_ARCHITECTURES="80;86;89;90;120"']


def test_the_cuda_image_asks_for_the_driver_and_finds_its_libraries() -> None:
    [environment] = image("cuda")[0].all_of("ENV")
    assert "NVIDIA_VISIBLE_DEVICES=all" in environment
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in environment
    assert "LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/opt/outrider/cuda/lib" in environment


@pytest.mark.fault(
    "crash",
    "`--traces` in a container",
    before="the images lacked OpenTelemetry: the service ended at its start, again and again",
    now="it is in both",
)
@pytest.mark.parametrize("more", [[], ["ray"]], ids=["service", "ray"])
def test_images_have_what_every_option_of_a_service_needs(more: list[str]) -> None:
    [command] = [each for each in stage("pins").all_of("RUN") if "requirements.txt" in each]
    [(code, extras)] = re.findall(r"python -c '([^']*)' (.*?) > requirements.txt", command)
    [always] = re.findall(r"^([a-z ]*[a-z])", extras)
    assert '$([ "$FOR" != ray ] || echo ray)' in extras
    printed = subprocess.run(
        (sys.executable, "-c", code, *always.split(), *more),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    its = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {line for extra in ("llama", "traces", *more) for line in its[extra]} <= set(
        printed.splitlines()
    )


def test_it_runs_as_nobody_else_and_is_probed() -> None:
    its = stage("image-cpu")
    for instruction in ("EXPOSE", "STOPSIGNAL", "HEALTHCHECK"):
        assert its.all_of(instruction)
    assert its.all_of("USER") == ["10001:10001"]
    assert its.all_of("ENTRYPOINT") == ['["outrider"]']
    assert "PATH=/opt/outrider/bin:" in its.all_of("ENV")[0]


def test_nothing_that_installs_is_left_and_its_folders_are_the_users() -> None:
    [cleaning] = stage("runtime").all_of("RUN")
    for removed in ("/etc/apt", "/usr/bin/apt*", "/usr/bin/dpkg*", "/var/lib/apt"):
        assert f" {removed} " in f"{cleaning} "
    assert "install -d -o 10001 -g 10001 -m 700 /tmp/outrider-10001 /tmp/.cache" in cleaning
    assert "ln -s /opt/outrider/models /models" in cleaning


def test_kuberay_finds_what_it_calls() -> None:
    [installing] = stage("runtime").all_of("RUN")
    assert '$([ "$FOR" != ray ] || echo wget)' in installing  # its probes
    assert "/etc/profile.d/outrider.sh" in installing  # a login shell forgets PATH


def test_the_build_context_has_all_that_is_copied() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    kept = {line[1:] for line in ignored if line.startswith("!")}
    for each in read()[1]:
        for words in each.all_of("COPY"):
            sources = [word for word in words.split()[:-1] if not word.startswith("--")]
            if "--from" not in words and sources != ["."]:
                assert {each for each in sources if each.partition("/")[0] not in kept} <= kept
    assert {"outrider", "outrider_cli", "tools/outrider_*", "models/*.gguf"} <= kept
