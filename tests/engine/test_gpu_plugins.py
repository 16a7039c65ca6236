"""A build of llama.cpp for GPUs where NVIDIA's driver is not: the CUDA image on a host for CPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.engine.llama_library import cpu_plugins
from tests.support.commands import environment
from tests.support.tiny_gguf import write_model

LOAD = """
import sys
from pathlib import Path
from outrider import logs
from outrider.errors import InvalidConfig
from outrider.model_service.config import ModelConfig
from outrider.model_service.run import load_llama
logs.start_logging()
config = ModelConfig(model=Path(sys.argv[1]), n_gpu_layers=int(sys.argv[2]))
try:
    load_llama(config, chooses_kernels=True)()
except InvalidConfig as error:
    sys.exit(str(error))
"""

pytestmark = pytest.mark.skipif(not cpu_plugins(), reason="a build without plug-ins")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of this build and, in place of a plug-in for CUDA, what needs its driver."""
    folder = tmp_path_factory.mktemp("libraries")
    [first, *_] = cpu_plugins().values()
    for path in first.parent.glob("*.so"):
        if not path.name.startswith("libggml-cuda"):
            (folder / path.name).symlink_to(path)
    needed, driver = b"libggml-base.so\0", b"libcuda.so.1\0"
    content = first.read_bytes().replace(needed, driver.ljust(len(needed), b"\0"))
    (folder / "libggml-cuda.so").write_bytes(content)
    return folder


def load(model: Path, libraries: Path, layers: int) -> tuple[int, list[str]]:
    """Load a model in a process of its own; return how that ended, and what it said."""
    done = subprocess.run(
        (sys.executable, "-c", LOAD, str(model), str(layers)),
        check=False,
        env=environment(LLAMA_CPP_LIB_PATH=str(libraries)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stderr.splitlines()


def test_without_a_driver_the_cpu_computes_and_one_line_says_so(
    model: Path, libraries: Path
) -> None:
    code, lines = load(model, libraries, -1)
    assert code == 0
    [warning] = [each for each in map(json.loads, lines) if each["level"] == "warning"]
    assert warning["message"] == "no GPU, so the CPU computes"
    assert "NVIDIA's driver is not here" in warning["detail"]


def test_who_wants_no_gpu_hears_of_none(model: Path, libraries: Path) -> None:
    code, lines = load(model, libraries, 0)
    assert code == 0
    assert not [each for each in lines if "GPU" in each]


def test_who_wants_layers_on_a_gpu_is_told_in_one_line_why_there_is_none(
    model: Path, libraries: Path
) -> None:
    code, lines = load(model, libraries, 2)
    assert code == 1
    [line] = [each for each in lines if not each.startswith("{")]
    assert line.startswith("n-gpu-layers: this build of llama.cpp finds no GPU: it is built for ")
    assert "NVIDIA's driver is not here" in line
