"""The two Dockerfiles by construction: stages, base images, flags, user, entry point.

deploy/Dockerfile is built and run by `make compose-test`; deploy/Dockerfile.cuda needs NVIDIA's
images and is compared with it here.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CPU, CUDA = ROOT / "deploy" / "Dockerfile", ROOT / "deploy" / "Dockerfile.cuda"
BOTH = pytest.mark.parametrize("file", [CPU, CUDA], ids=["cpu", "cuda"])


@dataclass(frozen=True)
class Stage:
    """One FROM with what follows it, as (instruction, what is after it)."""

    image: str
    name: str
    steps: list[tuple[str, str]]

    def all_of(self, instruction: str) -> list[str]:
        return [words for each, words in self.steps if each == instruction]


def read(file: Path) -> tuple[dict[str, str], list[Stage]]:
    """Return the arguments before the first stage, by name, and the stages."""
    text = re.sub(r"^\s*#.*\n", "", file.read_text(), flags=re.M).replace("\\\n", " ")
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


def stage(file: Path, name: str) -> Stage:
    """Return the stage of this name; the last one for an empty name."""
    stages = read(file)[1]
    return next(each for each in stages if each.name == name) if name else stages[-1]


def cmake_flags(file: Path) -> list[str]:
    """Return the flags that llama.cpp is configured with, the defaults of arguments filled in."""
    build = stage(file, "build")
    defaults = dict(each.split("=", 1) for each in build.all_of("ARG"))
    [command] = [each for each in build.all_of("RUN") if "CMAKE_ARGS=" in each]
    [flags] = re.findall(r'CMAKE_ARGS="([^"]*)"', command)
    for name, default in defaults.items():
        flags = flags.replace(f"${{{name}}}", default.strip('"'))
    return shlex.split(flags.replace(";", r"\;"))


def test_every_base_image_is_an_argument_so_that_a_mirror_can_be_named() -> None:
    for file in (CPU, CUDA):
        arguments, stages = read(file)
        names = {each.name for each in stages}
        for each in stages:
            if each.image != "scratch" and each.image not in names:
                used = re.findall(r"\$\{(\w+)\}", each.image)
                assert used and all(arguments[name] for name in used), each.image
                assert each.image.startswith("${"), each.image


def test_the_cuda_image_is_built_with_the_tools_and_runs_without_them() -> None:
    arguments, stages = read(CUDA)
    images = [each.image for each in stages]
    for name, default in arguments.items():
        images = [each.replace(f"${{{name}}}", default) for each in images]
    assert images[1:] == [
        "nvidia/cuda:12.8.1-devel-ubuntu24.04",
        "nvidia/cuda:12.8.1-runtime-ubuntu24.04",
    ]
    assert "--from=build /opt/outrider /opt/outrider" in stages[-1].all_of("COPY")
    assert not any("g++" in each for each in stages[-1].all_of("RUN"))


def test_the_cuda_image_has_kernels_for_gpus_and_those_for_cpus_of_the_other() -> None:
    cpu, cuda = cmake_flags(CPU), cmake_flags(CUDA)
    assert set(cpu) <= set(cuda)
    more = sorted(set(cuda) - set(cpu))
    assert more == [
        "-DCMAKE_CUDA_ARCHITECTURES=80;86;89;90;120",
        # libcuda is the driver's, and not there while it is built.
        "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--allow-shlib-undefined",
        "-DGGML_CUDA=ON",
    ]
    assert "-DGGML_NATIVE=OFF" in cpu  # else it runs where it was built alone
    assert "-DGGML_RPC=OFF" in cpu


@BOTH
def test_what_a_user_adds_comes_last_and_so_decides(file: Path) -> None:
    [command] = [each for each in stage(file, "build").all_of("RUN") if "CMAKE_ARGS=" in each]
    assert re.search(r'\$\{LLAMA_CMAKE_ARGS\}"', command)


def test_both_install_the_same_versions_in_the_same_steps() -> None:
    def same(file: Path) -> list[tuple[str, str]]:
        steps = [*stage(file, "pins").steps, *stage(file, "build").steps]
        kept = [(each, words) for each, words in steps if "apt-get" not in words and each != "ARG"]
        known = [(each, words) for each, words in kept if "CMAKE_ARGS" not in words]
        return [(each, words.replace("python3 -m venv", "python -m venv")) for each, words in known]

    assert same(CPU) == same(CUDA)
    assert len(same(CPU)) >= 8


@pytest.mark.fault(
    "crash",
    "`--traces` in a container",
    before="the images lacked OpenTelemetry: the service ended at its start, again and again",
    now="it is in both",
)
@BOTH
def test_images_have_what_every_option_of_a_service_needs(file: Path) -> None:
    [command] = [each for each in stage(file, "pins").all_of("RUN") if "requirements.txt" in each]
    [code] = re.findall(r"python -c '([^']*)'", command)
    printed = subprocess.run(
        (sys.executable, "-c", code), cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert {*extras["llama"], *extras["traces"]} <= set(printed.splitlines())


def test_both_run_as_nobody_else_and_start_and_are_probed_alike() -> None:
    cpu, cuda = stage(CPU, ""), stage(CUDA, "")
    for instruction in ("USER", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT"):
        assert cpu.all_of(instruction) == cuda.all_of(instruction) != []
    assert cpu.all_of("USER") == ["10001:10001"]
    assert cpu.all_of("ENTRYPOINT") == ['["outrider"]']
    ours, theirs = (
        {word.split("=")[0]: word for word in shlex.split(each.all_of("ENV")[0])}
        for each in (cpu, cuda)
    )
    assert ours.keys() == theirs.keys()
    assert {name for name in ours if ours[name] != theirs[name]} == {"PATH"}
    assert "PATH=/opt/outrider/bin:" in ours["PATH"] and "PATH=/opt/outrider/bin:" in theirs["PATH"]


@BOTH
def test_nothing_that_installs_is_left_and_its_folders_are_the_users(file: Path) -> None:
    cleaning = " ".join(words for each in read(file)[1] for words in each.all_of("RUN"))
    for removed in ("/etc/apt", "/usr/bin/apt*", "/usr/bin/dpkg*", "/var/lib/apt"):
        assert f" {removed} " in f"{cleaning} "
    assert "install -d -o 10001 -g 10001 -m 700 /tmp/outrider-10001" in cleaning
    assert "ln -s /opt/outrider/models /models" in cleaning


@BOTH
def test_the_build_context_has_all_that_is_copied(file: Path) -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    kept = {line[1:] for line in ignored if line.startswith("!")}
    for each in read(file)[1]:
        for words in each.all_of("COPY"):
            sources = [word for word in words.split()[:-1] if not word.startswith("--")]
            if "--from" not in words and sources != ["."]:
                assert set(sources) <= kept
    assert {"outrider", "outrider_cli", "models/*.gguf", "scripts/llama.cmake"} <= kept
