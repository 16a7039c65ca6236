"""A model's file: sound ones pass, damaged ones are refused in one line, by us or by llama.cpp."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter

from outrider.engine.gguf_check import check_gguf
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk
from outrider.errors import DecodeFailed, InvalidConfig, InvalidRequest
from tests.support import tiny_gguf
from tests.support.tiny_architectures import RECURRENT, write_architecture
from tests.support.tiny_gguf import Shape, Vocabulary, write_model
from tests.support.tiny_heads import MTP_BLOCKS, write_mtp

ROOT = Path(__file__).parents[2]
BUNDLED = sorted((ROOT / "models").glob("*.gguf"))

Edit = Callable[[GGUFWriter], object]


def write(path: Path, *edits: Edit, tokens: Sequence[str | bytes] = ("a", "b", "c", "d")) -> Path:
    """Write the header of a small model that the edits may change, and its embedding."""
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_merges(["a b"])
    writer.add_tensor("token_embd.weight", np.zeros((4, 64), np.float32))
    for edit in edits:
        edit(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def set_key(name: str, add: str, value: object) -> Edit:
    """Return an edit that replaces a key, by the writer's method for its type."""

    def edit(writer: GGUFWriter) -> None:
        writer.kv_data[0].pop(name, None)
        getattr(writer, f"add_{add}")(name, value)

    return edit


def number(name: str, value: int) -> Edit:
    return set_key(f"llama.{name}", "uint32", value)


def remove(name: str) -> Edit:
    return lambda writer: writer.kv_data[0].pop(name)


def tensor(name: str, *shape: int, kind: str = "F32") -> Edit:
    """Return an edit that adds zeros of a type, their shape in rows of bytes where quantised."""
    dtype = {"F32": np.float32, "F16": np.float16, "I32": np.int32}.get(kind, np.uint8)
    zeros = np.zeros(shape, dtype)
    return lambda writer: writer.add_tensor(name, zeros, raw_dtype=GGMLQuantizationType[kind])


def load(path: Path) -> LlamaModel:
    return LlamaModel(
        LlamaConfig(path=path, context=64, sequence_count=2, thread_count=1, pad_multiple=4)
    )


def refusal(path: Path) -> str:
    with pytest.raises(InvalidConfig) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith("model: ") and "\n" not in message
    return message


@pytest.mark.fault(
    "text",
    "a diffusion model (llada, dream) as a target",
    before="It was taken: its text was another one with drafts.",
    now="It is refused by name.",
)
@pytest.mark.parametrize("name", ["llada", "dream"])
def test_a_diffusion_model_is_refused(tmp_path: Path, name: str) -> None:
    assert "is a diffusion model" in refusal(write_architecture(tmp_path / "m.gguf", name))


@pytest.mark.fault(
    "crash",
    "a reranker with `--embeddings`",
    before="512 floats were read where there is one: a caller got what lay behind it.",
    now="It is refused by name.",
)
def test_a_reranker_embeds_nothing(tmp_path: Path) -> None:
    path = write_architecture(tmp_path / "m.gguf", "reranker")
    config = LlamaConfig(
        path=path, context=64, sequence_count=1, thread_count=1, pad_multiple=4, embeddings=True
    )
    model = LlamaModel(config)
    with pytest.raises(InvalidRequest, match="is a reranker"):
        model.embed([1, 2, 3])
    model.close()


# sound files


@pytest.mark.parametrize("path", BUNDLED, ids=lambda path: path.name)
def test_the_bundled_models_are_sound(path: Path) -> None:
    check_gguf(path)


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0"])
def test_tiny_models_are_sound(tmp_path: Path, kind: str) -> None:
    check_gguf(write_model(tmp_path / "m.gguf", weight_type=GGMLQuantizationType[kind]))


SOUND: list[tuple[str, list[Edit]]] = [
    ("as it is", []),
    ("heads by layer", [set_key("llama.attention.head_count_kv", "array", [4, 0])]),
    ("experts", [number("expert_count", 8), number("expert_used_count", 2)]),
    ("an old norm", [set_key("llama.attention.layer_norm_epsilon", "float32", 0.0)]),
    ("a scaling", [set_key("llama.rope.scaling.type", "string", "yarn")]),
    ("every quantised type", [tensor("x.weight", 4, 34, kind="Q8_0")]),
    ("a router's table", [tensor("blk.0.ffn_gate_tid2eid.weight", 4, 2, kind="I32")]),
    ("more scores than tokens", [lambda w: w.add_token_scores([0.0] * 5)]),
    ("an id out of range that llama.cpp drops", [lambda w: w.add_pad_token_id(99)]),
    ("an empty key of text", [lambda w: w.add_chat_template("")]),
    ("an alignment", [lambda w: w.add_custom_alignment(64)]),
]


@pytest.mark.parametrize("edits", [s[1] for s in SOUND], ids=[s[0] for s in SOUND])
def test_what_llama_cpp_takes_is_sound(tmp_path: Path, edits: list[Edit]) -> None:
    check_gguf(write(tmp_path / "m.gguf", *edits))


@pytest.mark.fault(
    "crash",
    "a recurrent model, such as Mamba or RWKV",
    before="called a damaged file, or refused after all of it was loaded",
    now="it runs, and is rolled back by checkpoints; sizes of states that abort are refused",
)
@pytest.mark.parametrize("name", sorted(RECURRENT))
def test_a_recurrent_model_is_no_damaged_one(tmp_path: Path, name: str) -> None:
    check_gguf(write_architecture(tmp_path / "m.gguf", name))


def test_a_model_of_kimi_s_delta_attention_is_no_damaged_one(tmp_path: Path) -> None:
    """Its states have one size, and only a convolution of those of other models."""
    check_gguf(write_mtp(tmp_path / "m.gguf", "bailingmoe3"))


@pytest.mark.parametrize(
    ("key", "size"),
    [("ssm.conv_kernel", 0), ("wkv.head_size", 0), ("wkv.head_size", 32), ("kda.head_dim", 0)],
)
def test_sizes_of_states_that_llama_cpp_cannot_compute_with_are_damage(
    tmp_path: Path, key: str, size: int
) -> None:
    assert "states" in refusal(write(tmp_path / "m.gguf", number(key, size)))


def test_a_large_vocabulary_takes_a_fraction_of_a_second(tmp_path: Path) -> None:
    tokens = [f"token {i}" for i in range(150_000)]

    def large(writer: GGUFWriter) -> None:
        writer.tensors[0].clear()
        writer.add_tensor("token_embd.weight", np.zeros((len(tokens), 32), np.float16))
        writer.add_token_types([1] * len(tokens))
        writer.add_token_merges([f"tok en{i}" for i in range(150_000)])

    path = write(tmp_path / "m.gguf", large, tokens=tokens)
    begin = time.process_time()
    check_gguf(path)
    # 0.13 s on a busy machine.
    assert time.process_time() - begin < 0.5


# the format

HEADER: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("no file of this kind", lambda data: b"GGML" + data[4:], "is not a GGUF file"),
    ("a pointer", lambda data: b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    ("a page", lambda data: b"\n<!DOCTYPE html>", "is not a GGUF file: it is a web page"),
    ("other weights", lambda data: bytes(8) + b'{"__metadata__":{}}', "it holds safetensors"),
    ("an archive", lambda data: b"PK\x03\x04", "it is a zip archive"),
    ("nothing", lambda data: b"", "is not a GGUF file"),
    ("version 1", lambda data: data[:4] + struct.pack("<I", 1) + data[8:], "of GGUF version 1,"),
    ("big-endian", lambda data: data[:4] + struct.pack(">I", 3) + data[8:], "is big-endian"),
    ("a huge key", lambda data: data[:24] + b"\xff" * 8 + data[32:], "header does not end"),
    ("an empty key", lambda data: data[:24] + b"\0" * 8 + data[32:], "has the unknown type"),
    (
        "bytes for a key",
        lambda data: data[:32] + b"\xff" + data[33:],
        "has no general.architecture",
    ),
    ("an unknown type", lambda data: data[:52] + b"\x0d" + data[53:], "has the unknown type 13"),
    ("a huge text", lambda data: data[:56] + b"\xff" * 7 + data[63:], "header does not end"),
]


@pytest.mark.parametrize(("change", "said"), [h[1:] for h in HEADER], ids=[h[0] for h in HEADER])
def test_a_damaged_header_is_told(
    tmp_path: Path, change: Callable[[bytes], bytes], said: str
) -> None:
    path = write(tmp_path / "m.gguf")
    path.write_bytes(change(path.read_bytes()))
    assert said in refusal(path)


def test_every_cut_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    data = path.read_bytes()
    missing = 0
    for size in range(0, len(data), 5):
        path.write_bytes(data[:size])
        said = refusal(path)
        missing += f"truncated: {len(data) - size} bytes are missing" in said
    assert missing >= 4 * 64 * 4 // 5


WRONG_KEYS: list[tuple[bytes, bytes, str]] = [
    (b"embedding_length", b"embedding_lenght", "key not found in model: llama.embedding_length"),
    (b"llama.context_length", b"llama.embeddng_lengt", "not found in model: llama.context_length"),
    (b"context_lengti", b"context_length", "duplicate key 'llama.context_length'"),
]


@pytest.mark.parametrize(("old", "new", "said"), WRONG_KEYS)
def test_a_key_that_comes_twice_or_never_is_told(
    tmp_path: Path, old: bytes, new: bytes, said: str
) -> None:
    path = write(tmp_path / "m.gguf", number("context_lengti", 512))
    path.write_bytes(path.read_bytes().replace(old, new))
    assert said in refusal(path)


@pytest.mark.parametrize("count", [1 << 25, 1 << 62])
@pytest.mark.parametrize("element", [8, 4, 9, 13])
def test_an_absurd_list_is_told_at_once(tmp_path: Path, element: int, count: int) -> None:
    path = write(tmp_path / "m.gguf", lambda w: w.add_token_types([1, 1, 1, 1]))
    data = path.read_bytes()
    at = data.index(b"tokenizer.ggml.token_type") + 29
    path.write_bytes(data[:at] + struct.pack("<iQ", element, count) + data[at + 12 :])
    said = refusal(path)
    assert "is a list of the unknown type" in said or "header does not end" in said


# tensors

TENSORS: list[tuple[str, list[Edit], str]] = [
    (
        "a quantised norm",
        [tensor("output_norm.weight", 34, kind="Q8_0")],
        "output_norm.weight has the type 8",
    ),
    (
        "a half norm",
        [tensor("blk.0.attn_norm.weight", 8, kind="F16")],
        "blk.0.attn_norm.weight has the type 1",
    ),
    ("whole numbers", [tensor("blk.0.ffn_up.weight", 2, 2, kind="I32")], "of whole numbers"),
    ("a type of activations", [tensor("x.weight", 2, 40, kind="Q8_1")], "x.weight has the type 9"),
    ("no embedding", [lambda w: w.tensors[0].clear()], "tensor 'token_embd.weight' not found"),
    (
        "an embedding of one dimension",
        [lambda w: w.tensors[0].clear(), tensor("token_embd.weight", 64)],
        "tensor 'token_embd.weight' has wrong shape",
    ),
]


@pytest.mark.parametrize(("edits", "said"), [t[1:] for t in TENSORS], ids=[t[0] for t in TENSORS])
def test_tensors_that_llama_cpp_cannot_compute_with_are_told(
    tmp_path: Path, edits: list[Edit], said: str
) -> None:
    assert said in refusal(write(tmp_path / "m.gguf", *edits))


INFO: list[tuple[int, str, int, str]] = [  # where after the name of the embedding
    (0, "<I", 0, "has the type 64"),
    (0, "<I", 5, "has invalid number of dimensions: 5"),
    (4, "<Q", 0, "has wrong shape"),
    (4, "<Q", 2**63, "bytes are missing"),
    (12, "<Q", 2**62, "bytes are missing"),
    (20, "<i", 4, "has the type 4"),
    (20, "<i", -1, "has the type -1"),
    (20, "<i", 12, "not a multiple of block size"),
    (24, "<Q", 2**64 - 32, "bytes are missing"),
    (12, "<Q", 2**40, "bytes are missing"),
]


@pytest.mark.parametrize(("at", "layout", "value", "said"), INFO)
def test_a_damaged_tensor_is_told(
    tmp_path: Path, at: int, layout: str, value: int, said: str
) -> None:
    path = write(tmp_path / "m.gguf")
    data = bytearray(path.read_bytes())
    struct.pack_into(layout, data, data.index(b"token_embd.weight") + 17 + at, value)
    path.write_bytes(data)
    assert said in refusal(path)


def test_tensors_that_overlap_or_leave_gaps_are_told(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", tensor("x.weight", 4, 64))
    data = bytearray(path.read_bytes())
    for offset in (0, 960):
        struct.pack_into("<Q", data, data.index(b"x.weight") + 8 + 24, offset)
        path.write_bytes(data)
        assert f"tensor 'x.weight' has offset {offset}, expected 1024" in refusal(path)


@pytest.mark.parametrize("alignment", [0, 3, 48])
def test_an_impossible_alignment_is_told(tmp_path: Path, alignment: int) -> None:
    refusal(write(tmp_path / "m.gguf", lambda w: w.add_uint32("general.alignment", alignment)))


def test_data_that_cannot_be_mapped_is_told(tmp_path: Path) -> None:
    # ggml asserts that a mapped tensor is at a multiple of 32 bytes; 8 meets that by chance.
    edits = [lambda w: w.add_custom_alignment(8), tensor("x.weight", 2, 1), tensor("y.weight", 1)]
    assert "a tensor is at no multiple of 32 bytes" in refusal(write(tmp_path / "m.gguf", *edits))


# what the keys mean

MEANING: list[tuple[str, list[Edit], str]] = [
    ("no architecture", [remove("general.architecture")], "has no general.architecture"),
    ("no layers", [number("block_count", 0)], "has no llama.block_count"),
    ("too many layers", [number("block_count", 513)], "llama.block_count is 513"),
    ("layers as text", [set_key("llama.block_count", "string", "2")], "block_count is b'2'"),
    ("more guessed layers", [number("nextn_predict_layers", 3)], "nextn_predict_layers is 3"),
    ("shared heads", [number("attention.head_count_kv", 3)], "its attention heads do not share"),
    (
        "heads of other layers",
        [set_key("llama.attention.head_count", "array", [4, 4, 4])],
        "head_count has wrong array length",
    ),
    ("heads of two sizes", [number("attention.key_length", 32)], "32 keys, 16 values, 32 rotated"),
    ("a part rotated", [number("rope.dimension_count", 8)], "16 keys, 16 values, 8 rotated"),
    ("both ways", [set_key("llama.attention.causal", "bool", False)], "is no causal model"),
    ("experts unused", [number("expert_count", 8)], "0 of 8 experts"),
    ("no experts used", [number("expert_used_count", 2)], "2 of 0 experts"),
    (
        "uneven groups",
        [
            *(number("expert_count", 8), number("expert_used_count", 2)),
            *(number("expert_group_count", 3), number("expert_group_used_count", 1)),
        ],
        "2 of 8 experts in 1 of 3 groups",
    ),
    (
        "a negative norm",
        [set_key("llama.attention.layer_norm_rms_epsilon", "float32", -1.0)],
        "layer_norm_rms_epsilon is -1.0",
    ),
    (
        "a norm of no number",
        [set_key("llama.attention.layer_norm_rms_epsilon", "float32", float("nan"))],
        "layer_norm_rms_epsilon is nan",
    ),
    ("a scaling", [set_key("llama.rope.scaling.type", "string", "yam")], "scaling.type is b'yam'"),
    ("no tokens", [remove("tokenizer.ggml.tokens")], "has no list of tokens"),
    ("no tokenizer", [remove("tokenizer.ggml.model")], "has no tokenizer"),
    ("a tokenizer of none", [set_key("tokenizer.ggml.model", "string", "none")], "no tokenizer"),
    ("a wrong end", [lambda w: w.add_eos_token_id(4)], "its eos token 4 is none of 4"),
    ("a wrong start", [lambda w: w.add_bos_token_id(2**32 - 1)], "its bos token 4294967295"),
    ("no bytes", [set_key("tokenizer.ggml.model", "string", "llama")], "252 bytes have no token"),
]


@pytest.mark.parametrize(("edits", "said"), [m[1:] for m in MEANING], ids=[m[0] for m in MEANING])
def test_keys_that_make_no_sense_are_told(tmp_path: Path, edits: list[Edit], said: str) -> None:
    assert said in refusal(write(tmp_path / "m.gguf", *edits))


@pytest.mark.parametrize(
    "tokens", [["a", "b", "c", "a"], [b"a", b"b", b"c", b"a\0d"], ["", "[EMPTY_0]", "c", "d"]]
)
def test_a_token_that_comes_twice_is_told(tmp_path: Path, tokens: list[str | bytes]) -> None:
    assert "1 of its tokens come twice" in refusal(write(tmp_path / "m.gguf", tokens=tokens))


# split models


def split(folder: Path, *, number: int = 1, of: int = 2) -> Path:
    """Write two parts whose second says to be `number`, counted from 0."""
    parts = [folder / f"m-{i:05}-of-00002.gguf" for i in (1, 2)]
    write(
        parts[0],
        lambda w: w.tensors[0].clear(),
        lambda w: w.add_uint16("split.count", of),
        lambda w: w.add_uint16("split.no", 0),
    )
    write(parts[1], lambda w: w.add_uint16("split.no", number))
    return parts[0]


def test_all_parts_of_a_split_model_are_checked(tmp_path: Path) -> None:
    first = split(tmp_path)
    second = first.with_name("m-00002-of-00002.gguf")
    checked = check_gguf(first)
    assert checked.files == [first, second]
    # The first part has no tensor here; the second's is float32[4, 64].
    assert checked.tensor_bytes == {"token_embd.weight": 4 * 64 * 4}
    second.write_bytes(second.read_bytes()[:-5])
    assert f"{second} is truncated: 5 bytes are missing" in refusal(first)
    second.unlink()
    assert f"cannot read {second}: No such file" in refusal(first)


def test_parts_that_do_not_belong_together_are_told(tmp_path: Path) -> None:
    assert "llama.cpp cannot load" in refusal(split(tmp_path, number=2))
    assert "is not the first of 3 parts" in refusal(split(tmp_path, of=3))
    renamed = split(tmp_path).rename(tmp_path / "m.gguf")
    assert "is not the first of 2 parts (NAME-00001-of-00002.gguf)" in refusal(renamed)


# what is no file


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is not a file" in refusal(tmp_path / "pipe")


@pytest.mark.parametrize("path", [Path("/dev/zero"), Path("no\0thing"), Path("/proc/self/mem")])
def test_what_cannot_be_a_model_is_refused(path: Path) -> None:
    assert "is not a" in refusal(path) or "cannot read" in refusal(path)


# weights


def test_weights_that_give_no_numbers_fail_the_decode_that_meets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tiny_gguf.random_weights

    def damaged(*arguments: int) -> tiny_gguf.Weights:
        made = weights(*arguments)
        made["token_embd.weight"][5] = np.nan
        return made

    monkeypatch.setattr(tiny_gguf, "random_weights", damaged)
    untied = write_model(tmp_path / "m.gguf", weight_type=GGMLQuantizationType.F32)
    model = LlamaModel(
        LlamaConfig(path=untied, context=64, sequence_count=2, thread_count=1, pad_multiple=4)
    )
    for _ in range(2):
        # Nothing of it is held, so that it can be tried again.
        with pytest.raises(DecodeFailed, match="computes no numbers"):
            model.decode([Chunk(0, 0, [5, 6], 1), Chunk(1, 0, [6, 7], 1)])
    model.close()


# llama.cpp itself


@pytest.mark.parametrize(
    ("name", "first", "count"),
    [("tiny", 0, 150), ("draft", 1000, 40), ("glm4moe", 5000, 60), ("mimo2", 5100, 60)],
)
def test_no_damaged_file_ends_the_process(
    tmp_path: Path, name: str, first: int, count: int
) -> None:
    # Thousands of other numbers were tried; these are the ones that are cheap to keep.
    path = tmp_path / f"{name}.gguf"
    if name == "tiny":
        write_model(path, shape=Shape(layers=2), vocabulary=Vocabulary(tail_count=1))
    elif name == "draft":
        path.write_bytes((ROOT / "models" / "stdlib-draft-q8_0.gguf").read_bytes())
    else:
        write_mtp(path, name, blocks=2 if name in MTP_BLOCKS else 1)
    command = [sys.executable, "-m", "tests.engine.load_mutants", str(path), str(first), str(count)]
    said = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, timeout=110, check=True
    ).stdout.splitlines()
    outcomes = [line.split()[1] for line in said]
    assert len(outcomes) == count
    assert [line for line in said if "died" in line] == []
    assert {"loaded", "refused"} == set(outcomes) - {"headless"}
