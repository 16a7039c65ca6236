"""What a wheel of this checkout holds, and that it is enough to run: the bundled pair comes along.

The packages that it needs are those of this environment; scripts/wheel-test installs it into an
empty one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import outrider
from scripts import release
from tests.end_to_end.test_doctor import DYING, of
from tests.support.commands import LOCAL, environment
from tests.support.processes import DRAFT, TARGET

ROOT = Path(outrider.__file__).parents[1]
pytestmark = pytest.mark.timeout(300)  # on a busy machine; else some seconds

PACKAGES = {
    *("outrider", "outrider_cli", "draft_service", "target_service", "orchestrator", "gateway"),
    *("outrider_bench", "outrider_certs", "outrider_lookup", "outrider_plan", "outrider_teach"),
    *("outrider_jsonrpc", "outrider_llama_server", "outrider_ray", "outrider_vllm"),
    "outrider_models",
}
METADATA = f"outrider-{outrider.__version__}.dist-info"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel, without a package index."""
    folder = tmp_path_factory.mktemp("dist")
    command = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    [built] = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that the wheel is unpacked into, as an install does."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
    return folder


def run(path: object, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command with these packages from a folder."""
    return subprocess.run(
        (sys.executable, "-m", "outrider_cli", *words),
        cwd=folder,
        env=environment(PYTHONPATH=str(path)),
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_has_the_packages_the_pair_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        assert {name.partition("/")[0] for name in names} == {*PACKAGES, METADATA}
        models = {name for name in names if name.startswith("outrider_models/")}
        assert models == {
            f"outrider_models/{one}" for one in (TARGET.name, DRAFT.name, "README.md")
        }
        for path in (TARGET, DRAFT):
            assert packed.read(f"outrider_models/{path.name}") == path.read_bytes()
    assert {
        *("outrider/py.typed", "gateway/page_files/index.html"),
        "outrider_teach/kinds/words.txt",
    } <= set(names)
    assert not any("__pycache__" in name or "tests" in name for name in names)
    assert wheel.stat().st_size < 40e6  # a package index takes 100 MB


def test_it_names_the_command_the_version_and_what_llama_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        commands = packed.read(f"{METADATA}/entry_points.txt").decode()
        about = packed.read(f"{METADATA}/METADATA").decode()
    assert "outrider = outrider_cli:main" in commands
    assert f"\nVersion: {outrider.__version__}\n" in about
    assert "\nRequires-Dist: llama-cpp-python==" in about
    assert "extra == 'llama'" in about


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository")
def test_a_commit_gives_the_same_bytes_wherever_and_whenever_it_is_built(tmp_path: Path) -> None:
    made = []
    for name in ("one", "another"):
        release.unpack("HEAD", tmp_path / name)
        release.build(tmp_path / name, tmp_path / f"{name} dist", seconds=1_750_000_000)
        made.append(release.checksums(tmp_path / f"{name} dist"))
        os.utime(tmp_path / name / "outrider")
    assert made[0] == made[1]
    assert [line.rpartition(".")[2] for line in made[0].splitlines()] == ["whl", "gz"]


@pytest.mark.parametrize("command", ["bench", "certs", "lookup", "plan", "teach"])
def test_its_commands_beside_the_main_package_are_found(
    site: Path, tmp_path: Path, command: str
) -> None:
    asked = run(site, tmp_path, command, "--help")
    assert (asked.returncode, asked.stderr) == (0, "")
    assert f"Usage: outrider {command} " in asked.stdout


def test_generate_works_from_an_empty_folder_with_the_pair_of_the_wheel(
    site: Path, tmp_path: Path
) -> None:
    look = "from outrider_cli.services.pair import BUNDLED_TARGET; print(BUNDLED_TARGET)"
    found = subprocess.check_output(
        (sys.executable, "-c", look), cwd=tmp_path, env=environment(PYTHONPATH=str(site))
    )
    assert Path(found.decode().strip()) == site / "outrider_models" / TARGET.name
    words = ("generate", *LOCAL, "--n-predict", "8", "--json")
    made = json.loads(run(site, tmp_path, *words).stdout)
    assert len(made["token_ids"]) == 8 and made["text"]
    assert not list(tmp_path.iterdir())


def test_doctor_prints_the_one_command_that_mends_a_miscompiled_llama_cpp(
    site: Path, tmp_path: Path
) -> None:
    package = tmp_path / "broken" / "llama_cpp"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(DYING.replace("{name}", "SIGILL"))
    path = os.pathsep.join((str(package.parent), str(site)))
    ended = run(path, tmp_path, "doctor", "--json")
    assert ended.returncode == 1
    [crash] = of(json.loads(ended.stdout)["findings"], "build")
    assert crash["message"].startswith("llama.cpp died of SIGILL")
    assert f"{sys.executable} -m pip install --force-reinstall" in crash["remedy"]
    version = crash["remedy"].rpartition("==")[2]
    assert f'"llama-cpp-python=={version}"' in (ROOT / "pyproject.toml").read_text()
