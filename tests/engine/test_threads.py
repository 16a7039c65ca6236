"""Threads of decodes keep to a core each, where they are as many as the cores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.engine.llama_threads import cores_of_their_own
from tests.support.tiny_gguf import write_model

_DECODES = """
import os, sys, threading
from pathlib import Path
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk
from outrider.threads import available_cores

def masks():
    return {t: frozenset(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task")}

def serve():
    config = LlamaConfig(
        path=Path(sys.argv[1]), context=64, sequence_count=1, pad_multiple=1,
        thread_count=len(available_cores()) - (sys.argv[2] == "fewer"), pins_threads=True,
    )
    model = LlamaModel(config)
    for _ in range(3):
        model.decode([Chunk(0, 0, [1, 2, 3], 1)])
        model.truncate(0, 0)
    found.update(masks())
    cores.update(available_cores())
    model.close()

found, cores = {}, set()
engine = threading.Thread(target=serve)
engine.start()
engine.join()
alone = sorted(min(mask) for mask in found.values() if len(mask) == 1)
print(alone, sorted(cores), len(found[str(os.getpid())]))
"""


@pytest.mark.parametrize(
    ("counts", "cores", "expected"),
    [
        ((4, 4), {2, 5, 7, 6}, [2, 5, 6, 7]),
        ((3, 3), {0, 1, 2, 3}, []),  # one is left for whoever wakes
        ((4, 8), {0, 1, 2, 3}, []),
        ((8, 8), {0, 1, 2, 3}, []),
        ((1, 1), {3}, []),
        ((2, 2), {0, 512}, []),  # llama.cpp's mask ends at 511
    ],
)
def test_threads_have_cores_of_their_own_where_they_are_as_many(
    counts: tuple[int, int], cores: set[int], expected: list[int]
) -> None:
    assert cores_of_their_own(counts, cores) == expected


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
@pytest.mark.parametrize("threads", ["all", "fewer"])
def test_each_thread_decodes_on_its_own_core_and_no_other_thread_is_kept_there(
    tmp_path: Path, threads: str
) -> None:
    path = write_model(tmp_path / "tiny.gguf")
    command = [sys.executable, "-c", _DECODES, str(path), threads]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    cores = sorted(os.sched_getaffinity(0))
    alone = cores if threads == "all" else []
    assert output.stdout.split("\n")[0] == f"{alone} {cores} {len(cores)}"
