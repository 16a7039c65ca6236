"""Writes tiny targets with an MTP head in their file, and heads that are files of their own.

What an MTP target writes depends on three parts of its rows: NOW holds the token, FAR and OWN means
over the text, as all heads of one layer look at every token alike. The other layers add noise. Its
head has NOW from the token, FAR from the target's hidden row and OWN from its own attention. So
a wrong row, token or cache of the head costs acceptance. Heads of the other kinds are random.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
from numpy.typing import NDArray

from tests.support import tiny_recurrent as recurrent
from tests.support.tiny_architectures import (
    EXPERTS,
    FORWARD,
    HEAD,
    HEADS,
    WIDTH,
    Tensors,
    _add,
    _common,
    _ones,
    _Random,
)
from tests.support.tiny_gguf import Vocabulary, _add_tokenizer, _finish

_NOW = WIDTH // 2  # values of a row that are the token's; FAR and OWN share the others
_LOUD = 3.0  # a mean over many tokens is small; more, and texts repeat themselves
_SPEECHLESS = 3  # control tokens, which are hardly ever written

MTP_TARGETS = ("glm4moe", "qwen35", "qwen35moe")
"""Architectures with a head in the file: of plain attention, and with a recurrent state."""

_HYBRIDS = ("qwen35", "qwen35moe")


def write_mtp(
    path: Path,
    architecture: str,
    noise: float = 0.02,
    is_alone: bool = False,
    seed: int = 2,
    edit: Callable[[Tensors], object] = lambda _: None,
    vocabulary: Vocabulary | None = None,
) -> Path:
    """Write a target with an MTP head, or that head alone; the same arguments give the same bytes.

    The other layers add `noise` times what they would; the more, the less is accepted. The edit may
    change the tensors, of which the head's are those of `blk.2`.
    """
    draw, layers = _Random(seed), 2
    writer = GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    if architecture in _HYBRIDS:
        recurrent.qwen35_header(writer, layers + 1)
    else:
        _common(writer, layers + 1)
        writer.add_leading_dense_block_count(1)
    if architecture.endswith("moe"):
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(2)
        writer.add_expert_shared_count(1)
        writer.add_expert_feed_forward_length(FORWARD)
    writer.add_nextn_predict_layers(1)
    _add_tokenizer(writer, vocabulary or Vocabulary())
    tensors = _outer(draw)
    trunk = [_trunk_layer(draw, architecture, layer, noise) for layer in range(layers)]
    if not is_alone:
        tensors |= _numbered(dict(enumerate(trunk)))
    tensors |= _numbered({layers: _head_block(draw, architecture)})
    edit(tensors)
    for name, tensor in tensors.items():
        _add(writer, name, tensor)
    _finish(writer)
    return path


def _numbered(layers: dict[int, Tensors]) -> Tensors:
    return {f"blk.{i}.{name}": t for i, layer in layers.items() for name, t in layer.items()}


def _outer(draw: _Random) -> Tensors:
    """Return the matrices that the target and its head share."""
    count = len(Vocabulary().names)
    embedding = draw.matrix(count, WIDTH, gain=np.sqrt(WIDTH))
    embedding[:, _NOW:] = 0.0
    output = draw.matrix(count, WIDTH, gain=4.0)
    output[:_SPEECHLESS] *= np.float32(0.1)
    return {
        "token_embd.weight": embedding,
        "output_norm.weight": _ones(WIDTH),
        "output.weight": output,
    }


def _trunk_layer(draw: _Random, architecture: str, layer: int, noise: float) -> Tensors:
    """Return a layer, of which the one that is attention in both writes FAR and OWN."""
    if architecture in _HYBRIDS:
        tensors = _hybrid(draw, architecture, layer)
    else:
        tensors = _attention(draw) | _forward(draw, is_dense=not layer)
    for name in ("attn_output.weight", "ffn_down.weight", "ssm_out.weight"):
        if name in tensors:
            tensors[name] = tensors[name] * np.float32(noise)
    for name in ("ffn_down_exps.weight", "ffn_down_shexp.weight"):
        if name in tensors:
            tensors[name] = tensors[name] * np.float32(noise)
    return tensors | _means(architecture, _LOUD, _LOUD) if layer == 1 else tensors


def _hybrid(draw: _Random, architecture: str, layer: int) -> Tensors:
    """Return a layer of a hybrid, dense or with experts."""
    tensors = recurrent.qwen35(draw, layer)
    if architecture == "qwen35":
        return tensors
    dense = _forward(draw, is_dense=True)
    experts = _forward(draw, is_dense=False) | {"ffn_gate_inp_shexp.weight": draw.vector(WIDTH)}
    del experts["exp_probs_b.bias"]
    return {name: tensor for name, tensor in tensors.items() if name not in dense} | experts


def _attention(draw: _Random) -> Tensors:
    return {
        "attn_norm.weight": _ones(WIDTH),
        "post_attention_norm.weight": _ones(WIDTH),
        "attn_q.weight": draw.matrix(HEADS * HEAD, WIDTH, gain=2.0),
        "attn_k.weight": draw.matrix(HEAD, WIDTH, gain=2.0),
        "attn_v.weight": draw.matrix(HEAD, WIDTH, gain=2.0),
        "attn_output.weight": draw.matrix(WIDTH, HEADS * HEAD, gain=4.0),
    }


def _forward(draw: _Random, is_dense: bool) -> Tensors:
    if is_dense:
        return {
            "ffn_gate.weight": draw.matrix(FORWARD, WIDTH),
            "ffn_up.weight": draw.matrix(FORWARD, WIDTH),
            "ffn_down.weight": draw.matrix(WIDTH, FORWARD, gain=4.0),
        }
    return {
        "ffn_gate_inp.weight": draw.matrix(EXPERTS, WIDTH),
        "exp_probs_b.bias": np.zeros(EXPERTS, np.float32),
        "ffn_gate_exps.weight": draw.matrix(EXPERTS, FORWARD, WIDTH),
        "ffn_up_exps.weight": draw.matrix(EXPERTS, FORWARD, WIDTH),
        "ffn_down_exps.weight": draw.matrix(EXPERTS, WIDTH, FORWARD, gain=4.0),
        "ffn_gate_shexp.weight": draw.matrix(FORWARD, WIDTH),
        "ffn_up_shexp.weight": draw.matrix(FORWARD, WIDTH),
        "ffn_down_shexp.weight": draw.matrix(WIDTH, FORWARD, gain=4.0),
    }


def _means(architecture: str, far: float, own: float) -> Tensors:
    """Return attention that sees every token alike: without queries and keys all scores are 0.

    Its two heads read the two halves of NOW; one writes FAR and the other OWN.
    """
    gated = architecture in _HYBRIDS  # by half, where nothing opens the gate
    half = _NOW // 2
    value = np.eye(HEAD, WIDTH, dtype=np.float32)
    output = np.zeros((WIDTH, HEADS * HEAD), np.float32)
    for i in range(half):
        output[_NOW + i, i] = far * (1 + gated)
        output[_NOW + half + i, HEAD + half + i] = own * (1 + gated)
    return {
        "attn_q.weight": np.zeros(((1 + gated) * HEADS * HEAD, WIDTH), np.float32),
        "attn_k.weight": np.zeros((HEAD, WIDTH), np.float32),
        "attn_v.weight": value,
        "attn_output.weight": output,
    }


def _head_block(draw: _Random, architecture: str) -> Tensors:
    """Return the block that drafts: NOW of the token, FAR of the row, OWN by its attention."""
    if architecture in _HYBRIDS:
        tensors = _hybrid(draw, architecture, 1)
    else:
        tensors = _attention(draw) | _forward(draw, is_dense=False)
    silent = ("ffn_down.weight", "ffn_down_exps.weight", "ffn_down_shexp.weight")
    tensors |= {name: np.zeros_like(tensors[name]) for name in silent if name in tensors}
    joined = np.zeros((WIDTH, 2 * WIDTH), np.float32)
    for i in range(_NOW):
        joined[i, i] = np.sqrt(0.5)  # as NOW is half of a row, whose length becomes 1
    for i in range(_NOW, _NOW + _NOW // 2):
        joined[i, WIDTH + i] = 1.0
    nextn = {
        "nextn.eh_proj.weight": joined,
        **{f"nextn.{name}.weight": _ones(WIDTH) for name in ("enorm", "hnorm", "shared_head_norm")},
    }
    # Its attention reads rows that FAR makes longer by half of their square.
    return tensors | _means(architecture, 0.0, _LOUD * np.sqrt(1.5)) | nextn


# --- files of their own, for a target of `write_model` with the same vocabulary ---


def write_eagle3(path: Path, layers: tuple[int, ...] = (1, 2, 3), seed: int = 5) -> Path:
    """Write an EAGLE-3 head that drafts every fourth token of the vocabulary."""
    draw, writer = _Random(seed), _head_file(path, "eagle3", 1, layers)
    writer.add_uint32("eagle3.target_hidden_size", WIDTH)
    count = len(Vocabulary().names)
    drafted = np.arange(3, count, 4, dtype=np.int64)
    block = _plain_block(draw, 2 * WIDTH) | {"attn_norm_2.weight": _ones(WIDTH)}
    tensors = {
        "token_embd.weight": draw.matrix(count, WIDTH, gain=np.sqrt(WIDTH)),
        "output_norm.weight": _ones(WIDTH),
        "output.weight": draw.matrix(len(drafted), WIDTH, gain=3.0),
        "fc.weight": draw.matrix(WIDTH, len(layers) * WIDTH),
        **_numbered({0: block}),
    }
    return _write_head(writer, path, tensors, drafted)


def write_dflash(
    path: Path, has_markov: bool = False, layers: tuple[int, ...] = (1, 2, 3), seed: int = 6
) -> Path:
    """Write a DFlash head, or with a Markov head a DSpark one."""
    draw, writer = _Random(seed), _head_file(path, "dflash", 2, layers)
    writer.add_uint32("dflash.block_size", 8)
    writer.add_mask_token_id(Vocabulary().pad)
    count, rank = len(Vocabulary().names), 32
    norms = {f"attn_{name}_norm.weight": _ones(HEAD) for name in "qk"}
    tensors = {
        "token_embd.weight": draw.matrix(count, WIDTH, gain=np.sqrt(WIDTH)),
        "output_norm.weight": _ones(WIDTH),
        "output.weight": draw.matrix(count, WIDTH, gain=3.0),
        "fc.weight": draw.matrix(WIDTH, len(layers) * WIDTH),
        "enc.output_norm.weight": _ones(WIDTH),
        **_numbered({i: _plain_block(draw, WIDTH) | norms for i in range(2)}),
    }
    if has_markov:
        writer.add_bool("dflash.sample_from_anchor", True)
        writer.add_bool("dflash.has_confidence_head", True)
        tensors |= {
            "markov_w1.weight": draw.matrix(count, rank),
            "markov_w2.weight": draw.matrix(count, rank),
            "conf_proj.weight": draw.matrix(1, WIDTH + rank),
            "conf_proj.bias": np.zeros(1, np.float32),
        }
    return _write_head(writer, path, tensors)


def _head_file(path: Path, architecture: str, blocks: int, layers: tuple[int, ...]) -> GGUFWriter:
    writer = GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    _common(writer, blocks)
    writer.add_array(f"{architecture}.target_layers", list(layers))
    _add_tokenizer(writer, Vocabulary())
    return writer


def _plain_block(draw: _Random, inputs: int) -> Tensors:
    """Return a block of llama's kind whose attention reads so many values."""
    matrices = {
        "attn_q": draw.matrix(HEADS * HEAD, inputs),
        "attn_k": draw.matrix(HEAD, inputs),
        "attn_v": draw.matrix(HEAD, inputs),
        "attn_output": draw.matrix(WIDTH, HEADS * HEAD),
        "ffn_gate": draw.matrix(FORWARD, WIDTH),
        "ffn_up": draw.matrix(FORWARD, WIDTH),
        "ffn_down": draw.matrix(WIDTH, FORWARD),
    }
    norms = {f"{name}.weight": _ones(WIDTH) for name in ("attn_norm", "ffn_norm")}
    return norms | {f"{name}.weight": matrix for name, matrix in matrices.items()}


def _write_head(
    writer: GGUFWriter, path: Path, tensors: Tensors, drafted: NDArray[np.int64] | None = None
) -> Path:
    for name, tensor in tensors.items():
        _add(writer, name, tensor)
    if drafted is not None:
        writer.add_tensor("d2t", drafted, raw_dtype=GGMLQuantizationType.I64)
    _finish(writer)
    return path
