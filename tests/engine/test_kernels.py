"""llama.cpp's plug-ins for the CPU, each in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.engine import kernels
from outrider.engine.kernel_trial import Failed, Tried, decode_with, difference
from outrider.engine.llama_library import (
    cpu_plugins,
    kernels_in_use,
    unused_features,
    use_kernels,
)
from outrider.errors import InvalidConfig
from tests.support.processes import DRAFT, TARGET
from tests.support.tiny_architectures import write_architecture

NAMES = list(cpu_plugins())
pytestmark = pytest.mark.skipif(not NAMES, reason="this llama.cpp has no plug-ins")


def decoded(path: Path, name: str) -> Tried:
    result = decode_with(path, name, threads=1)
    assert isinstance(result, Tried), result
    return result


@pytest.fixture(scope="module")
def expected() -> Tried:
    """What the oldest kernels compute, which every processor runs."""
    return decoded(DRAFT, NAMES[-1])


@pytest.mark.parametrize("name", NAMES[:-1])
def test_all_kernels_that_the_processor_runs_compute_the_same(name: str, expected: Tried) -> None:
    found = decoded(DRAFT, name)
    assert difference(expected.rows, found.rows) == ""
    assert all(seconds > 0.0 for seconds in found.seconds.values())


def test_by_default_a_process_computes_with_what_is_right_for_every_model() -> None:
    name = kernels_in_use().partition(":")[0].partition(",")[0]
    assert name == next(each for each in NAMES if each not in kernels.AMX)


def test_nothing_of_the_processor_is_left_unused() -> None:
    assert unused_features() == []


def test_kernels_that_are_not_there_are_refused_by_name() -> None:
    with pytest.raises(InvalidConfig, match="and not zen99"):
        use_kernels("zen99")


def test_a_file_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(TARGET.read_bytes()[:1000])
    result = decode_with(path, NAMES[0], threads=1)
    assert isinstance(result, Failed) and not result.was_killed
    assert "m.gguf" in result.reason


@pytest.mark.parametrize("name", ["mamba", "qwen35", "rwkv7", "deepseek2", "gemma3", "qwen3moe"])
def test_what_amx_computes_is_right_or_the_trial_says_that_it_is_not(
    name: str, tmp_path: Path
) -> None:
    """llama.cpp computes the first three wrong with AMX, and aborts with the fourth."""
    amx = [each for each in NAMES if each in kernels.AMX]
    if not amx:
        pytest.skip("this processor has no AMX")
    path = write_architecture(tmp_path / "m.gguf", name)
    plain = decoded(path, next(each for each in NAMES if each not in kernels.AMX))
    found = decode_with(path, amx[0], threads=1)
    is_right = isinstance(found, Tried) and not difference(plain.rows, found.rows)
    assert is_right is (name in ("gemma3", "qwen3moe"))
