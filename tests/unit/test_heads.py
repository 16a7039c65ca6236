"""Which head a file carries, by its keys and its tensors' names, and what is said against it."""

from __future__ import annotations

import random
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
    """Return the keys of a head that is sound, but for those that are given."""
    keys = {"block_count": 1, "embedding_length": 64, "target_hidden_size": 64} | keys
    values: Values = {"general.architecture": architecture.encode()}
    values |= {f"{architecture}.{key}": value for key, value in keys.items()}
    values |= {"tokenizer.ggml.tokens": [b"a", b"b"], "tokenizer.ggml.mask_token_id": 1}
    return values | {f"{architecture}.target_layers": layers}


DENSE = [f"blk.2.ffn_{name}.weight" for name in ("gate", "up", "down")]
WHOLE = ("token_embd.weight", "output.weight", "fc.weight")  # needs nothing of its target


@pytest.mark.parametrize("architecture", ["glm4moe", "qwen35", "qwen35moe"])
def test_a_block_behind_the_trunk_is_an_mtp_head_of_its_file(architecture: str) -> None:
    found = find_head(mtp(architecture), [*TRUNK, *block()])
    assert found == Head(HeadKind.MTP, architecture, is_alone=False)


def test_such_a_block_without_a_trunk_is_a_head_alone() -> None:
    assert find_head(mtp(), ["token_embd.weight", *block()]) == Head(HeadKind.MTP, "glm4moe")


def test_a_model_of_other_norms_is_no_head_alone() -> None:
    tensors = ["blk.0.post_attention_norm.weight", *block()]
    found = find_head(mtp("exaone4"), tensors)
    assert found is not None and not found.is_alone and "exaone4" in found.fault


def test_a_file_with_the_keys_of_a_head_and_nothing_else_writes_nothing() -> None:
    found = find_head(mtp(), ["token_embd.weight"])
    assert found is not None and found.is_alone and "blk.2.nextn.eh_proj" in found.fault


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
    ("dspark", alone("dflash", block_size=8), ["markov_w1.weight"], HeadKind.DSPARK),
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


@pytest.mark.parametrize(
    ("architecture", "tensors", "borrows"),
    [
        ("eagle3", WHOLE, False),
        ("eagle3", WHOLE[:1], True),
        ("eagle3", WHOLE[1:], True),
        ("dflash", WHOLE[:1], False),
        ("dflash", WHOLE[1:], True),
    ],
)
def test_a_head_without_matrices_for_tokens_needs_its_target(
    architecture: str, tensors: tuple[str, ...], borrows: bool
) -> None:
    found = find_head(alone(architecture), tensors)
    assert found is not None and not found.fault and found.borrows is borrows


UNUSED: list[tuple[Values, Iterable[str], str]] = [
    (mtp("deepseek4"), [*TRUNK, *block()], "has an MTP head of deepseek4"),
    (mtp("exaone4"), [*TRUNK, *block()], "has an MTP head of exaone4"),
    (alone("gemma4-assistant"), [], "has an MTP head of gemma4-assistant"),
    (mtp(heads=2, blocks=4), [*TRUNK, *block(2), *block(3)], "has 2 MTP heads"),
    (
        mtp("deepseek2") | {"deepseek2.attention.temperature_scale": 0.1},
        [*TRUNK, *block()],
        "has an MTP head of deepseek2",
    ),
    (mtp("hy_v3", 2**31, 2**31 - 2), [*TRUNK, *block()], "without blk.2.ffn_gate.weight"),
    *((mtp(), [*TRUNK, *block(but=name)], f"without blk.2.{name}") for name in BLOCK),
    (alone("eagle3", (1, 2)), WHOLE, "an EAGLE-3 head that reads 2 layers, not 3"),
    (alone("eagle3", b"1"), WHOLE, "an EAGLE-3 head that names no layers"),
    (alone("eagle3", block_count=2), WHOLE, "an EAGLE-3 head that has 2 blocks"),
    (alone("eagle3", embedding_length=96), WHOLE[1:], "no token embeddings for its width of 96"),
    (alone("eagle3"), ["d2t"], "tokens of its own and no output matrix"),
    (alone("dflash") | {"dflash.attention.key_length": 8}, WHOLE, "heads of 8 keys and None"),
    (alone("dflash", ()), WHOLE, "a DFlash head that names no layers"),
    (alone("dflash", block_size=1), WHOLE, "a DFlash head that drafts blocks of 1"),
    (alone("dflash", block_size=1 << 20), WHOLE, "drafts blocks of 1048576"),
    (alone("dflash"), [*WHOLE, "markov_w1.weight"], "does not name the size of its blocks"),
    (alone("dflash") | {"tokenizer.ggml.mask_token_id": 2}, WHOLE, "no mask among its 2 tokens"),
    (alone("dflash"), ["selector_hidden.weight"], "a DFlash2 head"),
    (alone("dflash") | {"dflash.hyper_connection.count": 4}, ["markov_w1.weight"], "DeepSeek V4"),
]


@pytest.mark.parametrize(("values", "tensors", "said"), UNUSED, ids=[c[2] for c in UNUSED])
def test_what_llama_cpp_would_end_the_process_for_is_named(
    values: Values, tensors: Iterable[str], said: str
) -> None:
    found = find_head(values, list(tensors))
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
    (of(HeadKind.EAGLE3, "eagle3", 1, 2, 4), "gpt-oss", 64, ""),
    (of(HeadKind.EAGLE3, "eagle3", 1, 2, 4), "llama", 64, "reads layers 1, 2, 4; the target has 4"),
    (of(HeadKind.DFLASH, "dflash", 1, 2, 4), "gpt-oss", 64, "reads layers 1, 2, 4"),
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


NAMES = [f"blk.{i}.{name}" for i in range(5) for name in (*BLOCK, "attn_norm.weight")]
VALUES: list[object] = [
    *range(-1, 6),
    255,
    2**31,
    b"3",
    b"glm4moe",
    b"\xff",
    1.0,
    True,
    (1, 2, 3),
    (),
]


@pytest.mark.parametrize("seed", range(8))
def test_whatever_a_file_says_it_is_told_what_llama_cpp_would_end_the_process_for(
    seed: int,
) -> None:
    """Of a block of a head that is used all is there that its graph asserts."""
    choose, used = random.Random(seed), 0
    for _ in range(500):
        architecture = choose.choice(("glm4moe", "step35", "mimo2", "eagle3", "dflash", "llama"))
        values = choose.choice((mtp, alone))(architecture)
        tensors = set(choose.sample([*NAMES, *WHOLE, *DENSE], 24)) | set(block())
        for _ in range(choose.choice((0, 0, 0, 1, 3))):
            values[choose.choice(list(values))] = choose.choice(VALUES)
            tensors ^= {choose.choice(NAMES)}
        head = find_head(values, tensors)
        if head is None or head.fault or head.kind is not HeadKind.MTP:
            continue
        blocks = values[f"{architecture}.block_count"]
        assert isinstance(blocks, int) and 0 < head.block_count < blocks
        for number in range(blocks - head.block_count, blocks):
            assert {f"blk.{number}.{name}" for name in BLOCK[:3]} <= tensors
            if architecture == "glm4moe":
                assert head.block_count == 1 and f"blk.{number}.{BLOCK[3]}" in tensors
        used += 1
    assert used > 10
