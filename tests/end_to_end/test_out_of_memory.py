"""A service that finds too little memory says so in a line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import environment
from tests.support.tiny_gguf import write_model

COMMAND = "from outrider_cli import main; main()"

NO_MEMORY_TO_LOAD = f"""
from outrider.model_service import run
def load():
    raise MemoryError("Unable to allocate 3.00 GiB")
run.load_llama = lambda config, *_: load
{COMMAND}
"""

NO_THREAD_TO_LOAD = f"""
import threading
start = threading.Thread.start
def refuse(self):
    if self.name == "engine":
        raise RuntimeError("can't start new thread")
    start(self)
threading.Thread.start = refuse
{COMMAND}
"""

NO_LIBRARY_TO_LOAD = f"""
import ctypes
def refuse(name, **options):
    raise OSError("failed to map segment from shared object")
ctypes.CDLL = refuse
{COMMAND}
"""

NO_DRIVER = NO_LIBRARY_TO_LOAD.replace(
    "failed to map segment from shared object", "libcuda.so.1: cannot open shared object file"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


def last_words(script: str, model: Path, *options: str) -> list[str]:
    """Start a target in 4 GiB of addresses, which has to fail; return what it says, but the log."""
    command = [sys.executable, "-c", script, "target", "--model", str(model), *options]
    # By a shell: what runs Python between fork and exec lets gRPC write a line there too.
    limited = ["sh", "-c", 'ulimit -v 4194304 && exec "$@"', "sh", *command]
    done = subprocess.run(
        [*limited, "--listen", "127.0.0.1:0", "--threads", "1"],
        check=False,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    return [line for line in done.stderr.splitlines() if line[:1] != "{"]


@pytest.mark.fault(
    "crash",
    "too little memory at start",
    before="a traceback, and another one of gRPC's server that nobody had stopped",
    now="one line",
)
@pytest.mark.parametrize(
    ("script", "said"),
    [
        (NO_MEMORY_TO_LOAD, "outrider: out of memory: Unable to allocate 3.00 GiB"),
        (NO_THREAD_TO_LOAD, "outrider: out of memory: can't start new thread"),
        (NO_LIBRARY_TO_LOAD, "outrider: model: llama.cpp does not start: "),
    ],
)
def test_a_target_that_cannot_load_for_want_of_memory_says_so_in_a_line(
    model: Path, script: str, said: str
) -> None:
    [line] = last_words(script, model)
    assert line.startswith(said)


def test_a_build_for_cuda_says_in_a_line_that_the_driver_is_not_there(model: Path) -> None:
    [line] = last_words(NO_DRIVER, model)
    assert line.startswith("outrider: model: llama.cpp does not start: ")
    assert "NVIDIA's driver is not here: a container gets the host's with --gpus all" in line


def test_a_cache_that_no_memory_holds_is_refused_in_a_line(model: Path) -> None:
    [line] = last_words(COMMAND, model, "--ctx", "4000000")
    assert line.startswith("outrider: ctx: no context of 16000000 cells: ")
