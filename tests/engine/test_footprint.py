"""What a model takes of each device: by a dry run, and by what that says of GPUs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.footprint import CPU, DeviceShare, Footprint, read_footprint
from outrider.engine.gguf_check import check_draft, check_gguf
from outrider.engine.hidden_rows import rows_bytes
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_footprint import footprint, head_footprint
from outrider.engine.llama_library import log_lines
from outrider.engine.llama_loading import LlamaConfig
from outrider.errors import InvalidConfig
from tests.support.tiny_architectures import WIDTH, write_architecture
from tests.support.tiny_gguf import Shape, write_model
from tests.support.tiny_heads import write_dflash, write_eagle3, write_llama, write_mtp

import llama_cpp as ll  # isort: skip  (outrider.engine sets its environment first)

MIB = 1 << 20
SHAPE = Shape(layers=2, heads=4, kv_heads=2, embedding=128)
needs_no_gpu = pytest.mark.skipif(ll.llama_supports_gpu_offload(), reason="a build for GPUs")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", shape=SHAPE)


def config_of(path: Path, **options: Any) -> LlamaConfig:
    settings: dict[str, Any] = {
        "context": 512,
        "sequence_count": 3,
        "thread_count": 1,
        "pad_multiple": 1,
    }
    return LlamaConfig(path=path, **(settings | options))


def only(found: Footprint) -> DeviceShare:
    [share] = found.shares
    return share


@needs_no_gpu
def test_without_a_gpu_all_is_in_the_machines_memory(path: Path) -> None:
    found = footprint(config_of(path))
    share = only(found)
    assert (share.device, share.layers, found.split_count) == (CPU, SHAPE.layers + 1, 1)
    assert (found.file_type, found.gpu_layers) == ("Q8_0", 0)
    assert share.weights == sum(check_gguf(path).tensor_bytes.values())
    width = SHAPE.kv_heads * SHAPE.embedding // SHAPE.heads
    # Keys and values of two bytes, in every cell of every layer.
    assert share.caches == pytest.approx(3 * 512 * SHAPE.layers * width * 2 * 2, abs=0.01 * MIB)
    assert share.compute > 0


@needs_no_gpu
def test_caches_grow_with_sessions_and_shrink_with_their_type(path: Path) -> None:
    plain = only(footprint(config_of(path))).caches
    assert only(footprint(config_of(path, sequence_count=6))).caches == pytest.approx(
        2 * plain, 0.02
    )
    kinds: dict[str, Any] = {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
    assert only(footprint(config_of(path, **kinds))).caches == pytest.approx(34 / 64 * plain, 0.02)


@needs_no_gpu
@pytest.mark.parametrize("name", ["mamba", "qwen35", "gemma3"])
def test_states_and_windows_are_counted(tmp_path: Path, name: str) -> None:
    path = write_architecture(tmp_path / "m.gguf", name)
    assert only(footprint(config_of(path, context=64))).caches > 0


BLOCK = re.compile(r"blk\.2\.")  # the head's


def real_sizes(lines: list[str]) -> tuple[int, int]:
    """Return the bytes of caches and of graphs that llama.cpp allocated."""
    said = "".join(lines)
    found = (re.findall(rf"{name} buffer size = +([\d.]+) MiB", said) for name in ("KV", "compute"))
    caches, graphs = (sum(map(float, sizes)) for sizes in found)
    return round(caches * MIB), round(graphs * MIB)


@needs_no_gpu
@pytest.mark.parametrize("architecture", ["glm4moe", "qwen35"])
def test_a_targets_head_is_counted_as_it_is_allocated(tmp_path: Path, architecture: str) -> None:
    path = write_mtp(tmp_path / "m.gguf", architecture)
    plain, both = (only(footprint(config_of(path, mtp=mtp))) for mtp in (False, True))
    sizes = check_gguf(path).tensor_bytes
    assert both.weights == sum(sizes.values())
    its_own = sum(size for name, size in sizes.items() if BLOCK.match(name))
    assert both.weights - plain.weights == its_own > 0
    model = LlamaModel(config_of(path, mtp=True))
    with log_lines() as lines:
        head = model.open_head()
    caches, compute = real_sizes(lines)
    head.close()
    model.close()
    rows = 3 * rows_bytes(WIDTH)
    assert both.caches - plain.caches == pytest.approx(caches + rows, abs=0.01 * MIB)
    assert both.compute - plain.compute == pytest.approx(compute, abs=0.01 * MIB)
    assert footprint(config_of(path, mtp=True)).split_count == 1


def test_a_head_that_is_not_used_takes_nothing(tmp_path: Path) -> None:
    def leave_out(tensors: dict[str, Any]) -> None:
        del tensors["blk.2.nextn.hnorm.weight"]

    with pytest.raises(InvalidConfig, match="hnorm"):  # by llama.cpp, which wants it all the same
        footprint(config_of(write_mtp(tmp_path / "m.gguf", "qwen35", edit=leave_out), mtp=True))
    plain = write_architecture(tmp_path / "p.gguf", "qwen35")
    assert footprint(config_of(plain, mtp=True)) == footprint(config_of(plain))


@needs_no_gpu
@pytest.mark.parametrize("kind", ["mtp", "eagle3", "borrowing", "dflash", "dspark"])
def test_a_head_in_a_file_of_its_own_is_counted_as_it_is_allocated(
    tmp_path: Path, kind: str
) -> None:
    target, path = tmp_path / "m.gguf", tmp_path / "head.gguf"
    if kind == "mtp":
        write_mtp(target, "qwen35")
        write_mtp(path, "qwen35", is_alone=True)
    else:
        write_llama(target)
        if kind in ("eagle3", "borrowing"):
            write_eagle3(path, borrows=kind == "borrowing")
        else:
            write_dflash(path, kind == "dspark")
    share = only(head_footprint(config_of(path), config_of(target)))
    checked = check_draft(path)
    assert checked.head is not None
    assert share.weights == sum(checked.tensor_bytes.values())
    model = LlamaModel(config_of(target))
    with log_lines() as lines:
        head = model.open_head(config_of(path))
    caches, compute = real_sizes(lines)
    head.close()
    model.close()
    rows = 3 * rows_bytes(WIDTH) * max(1, len(checked.head.target_layers))
    assert share.caches == pytest.approx(caches + rows, abs=0.01 * MIB)
    assert share.compute == pytest.approx(compute, abs=0.01 * MIB)


def test_a_head_that_does_not_go_with_its_target_is_not_sized(tmp_path: Path) -> None:
    target = config_of(write_mtp(tmp_path / "m.gguf", "qwen35"))
    head = config_of(write_eagle3(tmp_path / "e.gguf", (0, 1, 3)))
    with pytest.raises(InvalidConfig, match=r"e.gguf is .* reads layers 0, 1, 3; .* has 2"):
        head_footprint(head, target)


def test_what_cannot_be_loaded_is_refused(path: Path) -> None:
    with pytest.raises(InvalidConfig, match="ctx: must be at least 32 tokens"):
        footprint(config_of(path, context=16))
    narrow = write_model(path.parent / "narrow.gguf", shape=replace(SHAPE, heads=8))
    with pytest.raises(InvalidConfig, match="heads of a multiple of 32"):
        footprint(config_of(narrow, cache_type_k="q4_0"))


# --- what llama.cpp says where there are GPUs: its formats, as of src/llama-*.cpp ---


def said(devices: list[str], split_count: str) -> list[str]:
    """Return the lines of a dry run of layers on these devices, the output on the last."""
    layers = [
        f"load_tensors: layer {i:3d} assigned to device {device}, is_swa = 0\n"
        for i, device in enumerate(devices)
    ]
    caches = [
        f"llama_kv_cache: layer {i:3d}: dev = {device}\n" for i, device in enumerate(devices[:-1])
    ]
    return [
        *layers,
        "print_info: file type   = Q4_0\n",
        "print_info: file size   = 18.3 GiB (4.5 BPW) \n",
        *caches,
        "llama_kv_cache:      CUDA0 KV buffer size =     0.00 MiB\n",
        "llama_kv_cache: size =  400.00 MiB (  4096 cells,   4 layers,  4/4 seqs), K (f16)\n",
        "sched_reserve:      CUDA0 compute buffer size =    64.00 MiB\n",
        "sched_reserve:  CUDA_Host compute buffer size =    16.00 MiB\n",
        f"sched_reserve: graph (pp bs=512, tg bs=4): nodes = 9 / 8, splits = {split_count}\n",
    ]


BYTES = {
    "token_embd.weight": 1000,
    "output_norm.weight": 1,
    "output.weight": 1000,
    **{f"blk.{i}.attn_q.weight": 10 + i for i in range(4)},
}
GPUS = ["CUDA0", "CUDA1"]


def shares(devices: list[str], tensor_bytes: dict[str, int]) -> dict[str, DeviceShare]:
    found = read_footprint(said(devices, "3 / 2"), tensor_bytes, GPUS)
    assert (found.split_count, found.file_type) == (2, "Q4_0")
    return {share.device: share for share in found.shares}


def test_layers_caches_and_graphs_are_counted_card_by_card() -> None:
    found = shares(["CUDA0", "CUDA0", "CUDA0", "CUDA1", "CUDA1"], BYTES)
    first = DeviceShare(device="CUDA0", layers=3, weights=33, caches=300 * MIB, compute=64 * MIB)
    last = DeviceShare(device="CUDA1", layers=2, weights=13 + 1001, caches=100 * MIB, compute=0)
    beside = DeviceShare(device=CPU, layers=0, weights=1000, caches=0, compute=16 * MIB)
    assert found == {"CUDA0": first, "CUDA1": last, CPU: beside}


def test_what_stays_with_the_processor_is_counted_there() -> None:
    part = ["CPU", "CPU", "CUDA0", "CUDA0", "CUDA0"]
    assert not read_footprint(said(part, "3"), BYTES, GPUS).is_on_gpu
    assert read_footprint(said(["CUDA0"] * 5, "2"), BYTES, GPUS).is_on_gpu
    found = shares(part, BYTES)
    assert [found[each].layers for each in ("CUDA0", CPU)] == [3, 2]
    assert [found[each].weights for each in ("CUDA0", CPU)] == [12 + 13 + 1001, 10 + 11 + 1000]
    assert [found[each].caches for each in ("CUDA0", CPU)] == [200 * MIB, 200 * MIB]


def test_an_embedding_that_is_the_output_too_is_in_both_memories() -> None:
    tied = {name: size for name, size in BYTES.items() if name != "output.weight"}
    found = shares(["CUDA0"] * 5, tied)
    assert (found["CUDA0"].weights, found[CPU].weights) == (46 + 1 + 1000, 1000)
    assert shares(["CPU"] * 5, tied)[CPU].weights == 46 + 1 + 1000
