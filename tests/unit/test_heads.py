"""Which head a file carries, by its keys and its tensors' names, and what is said against it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from outrider.engine.heads import Beside, CarriedHead, Head, carried, fault_beside, find_head
from outrider.speculation import HeadKind

Values = dict[str, object]

BLOCK = ("nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight", "ffn_gate_inp.weight")
TRUNK = ("token_embd.weight", "blk.0.attn_norm.weight", "blk.1.attn_norm.weight")


def mtp(architecture: str = "glm4moe", blocks: int = 3, heads: int = 1) -> Values:
    return {
        "general.architecture": architecture.encode(),
        f"{architecture}.block_count": blocks,
        f"{architecture}.nextn_predict_layers": heads,
    }


def block(number: int = 2, but: str = "") -> list[str]:
    return [f"blk.{number}.{name}" for name in BLOCK if name != but]


def alone(architecture: str, layers: object = (1, 2, 3), **keys: object) -> Values:
    values: Values = {"general.architecture": architecture.encode()}
    values |= {f"{architecture}.{key}": value for key, value in keys.items()}
    return values | {f"{architecture}.target_layers": layers}


@pytest.mark.parametrize("architecture", ["glm4moe", "qwen35", "qwen35moe"])
def test_a_block_behind_the_trunk_is_an_mtp_head_of_its_file(architecture: str) -> None:
    found = find_head(mtp(architecture), [*TRUNK, *block()])
    assert found == Head(HeadKind.MTP, architecture, is_alone=False)


def test_such_a_block_without_a_trunk_is_a_head_alone() -> None:
    assert find_head(mtp(), ["token_embd.weight", *block()]) == Head(HeadKind.MTP, "glm4moe")


NONE: list[tuple[str, Values, Iterable[str]]] = [
    ("no architecture", {}, TRUNK),
    ("a model without a head", mtp(heads=0), TRUNK),
    ("more heads than blocks", mtp(heads=4), [*TRUNK, *block()]),
    ("a key that is no number", mtp() | {"glm4moe.block_count": b"3"}, [*TRUNK, *block()]),
    ("a file that was converted without it", mtp(), TRUNK),
    ("a block in another place", mtp(), [*TRUNK, *block(1)]),
]


@pytest.mark.parametrize(("values", "tensors"), [c[1:] for c in NONE], ids=[c[0] for c in NONE])
def test_other_files_carry_none(values: Values, tensors: list[str]) -> None:
    assert find_head(values, tensors) is None


FILES: list[tuple[str, Values, list[str], HeadKind]] = [
    ("eagle3", alone("eagle3"), ["fc.weight"], HeadKind.EAGLE3),
    ("dflash", alone("dflash", (2, 9)), ["fc.weight"], HeadKind.DFLASH),
    ("dspark", alone("dflash"), ["fc.weight", "markov_w1.weight"], HeadKind.DSPARK),
]


@pytest.mark.parametrize(
    ("values", "tensors", "kind"), [c[1:] for c in FILES], ids=[c[0] for c in FILES]
)
def test_a_file_of_its_own_is_known_by_its_architecture(
    values: Values, tensors: list[str], kind: HeadKind
) -> None:
    found = find_head(values, tensors)
    assert found is not None and not found.fault
    assert (found.kind, found.is_alone) == (kind, True)
    assert found.target_layers == values[f"{found.architecture}.target_layers"]


UNUSED: list[tuple[Values, list[str], str]] = [
    (mtp("deepseek4"), [*TRUNK, *block()], "has an MTP head of deepseek4"),
    (mtp("exaone4"), [*TRUNK, *block()], "has an MTP head of exaone4"),
    (alone("gemma4-assistant"), [], "has an MTP head of gemma4-assistant"),
    (mtp(heads=2, blocks=4), [*TRUNK, *block(2), *block(3)], "has 2 MTP heads"),
    *((mtp(), [*TRUNK, *block(but=name)], f"without blk.2.{name}") for name in BLOCK),
    (alone("eagle3", (1, 2)), [], "an EAGLE-3 head of 2 layers"),
    (alone("eagle3", b"1"), [], "an EAGLE-3 head that names no layers"),
    (alone("dflash", ()), [], "a DFlash head that names no layers"),
    (alone("dflash"), ["selector_hidden.weight"], "a DFlash2 head"),
    (alone("dflash") | {"dflash.hyper_connection.count": 4}, ["markov_w1.weight"], "DeepSeek V4"),
]


@pytest.mark.parametrize(("values", "tensors", "said"), UNUSED, ids=[c[2] for c in UNUSED])
def test_what_llama_cpp_would_end_the_process_for_is_named(
    values: Values, tensors: list[str], said: str
) -> None:
    found = find_head(values, tensors)
    assert found is not None and said in found.fault


def of(kind: HeadKind, architecture: str, *layers: int) -> Head:
    return Head(kind, architecture, target_layers=layers, width=64)


BESIDE: list[tuple[Head, str, int, str]] = [
    (of(HeadKind.MTP, "qwen35"), "qwen35", 64, ""),
    (of(HeadKind.MTP, "qwen35"), "qwen35", 96, "of a target of width 64, not 96"),
    (of(HeadKind.MTP, "qwen35"), "llama", 64, "the target is llama"),
    (of(HeadKind.EAGLE3, "eagle3", 1, 2, 3), "llama", 64, ""),
    (of(HeadKind.EAGLE3, "eagle3", 1, 2, 3), "llama", 96, "of a target of width 64, not 96"),
    (of(HeadKind.EAGLE3, "eagle3", 1, 2, 5), "llama", 64, "reads layers 1, 2, 5"),
    (of(HeadKind.DFLASH, "dflash", -1), "llama", 64, "reads layers -1"),
    (of(HeadKind.DSPARK, "dflash", 1), "phi3", 64, "phi3 models do not show"),
]


@pytest.mark.parametrize(("head", "architecture", "width", "said"), BESIDE)
def test_a_head_reads_only_a_target_that_has_what_it_reads(
    head: Head, architecture: str, width: int, said: str
) -> None:
    fault = fault_beside(head, Beside(architecture, 4, width))
    assert said in fault if said else not fault


def test_what_a_file_has_of_a_head_alone_is_its_blocks_or_all_of_it() -> None:
    sizes = {"token_embd.weight": 1000, "blk.0.attn_norm.weight": 100}
    sizes |= {"blk.1.nextn.eh_proj.weight": 10, "blk.1.attn_q.weight": 1}
    inside, alone = (Head(HeadKind.MTP, "qwen35", is_alone=is_alone) for is_alone in (False, True))
    assert carried(None, sizes) is None
    assert carried(inside, sizes) == CarriedHead(inside, 1, 11)
    assert carried(alone, sizes) == CarriedHead(alone, 2, 1111)
