"""Writes tiny targets with an MTP head in their file, and heads that are files of their own.

What an MTP target writes depends on three parts of its rows: NOW holds the token, FAR and OWN means
over the text, as all heads of one layer look at every token alike. The other layers add noise. Its
head has NOW from the token, FAR from the target's hidden row and OWN from its own attention. So
a wrong row, token or cache of the head costs acceptance. The other kinds know as much.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from gguf import ExpertGatingFuncType, GGMLQuantizationType, GGUFWriter, LlamaFileType
from numpy.typing import NDArray

from tests.support import tiny_recurrent as recurrent
from tests.support.tiny_architectures import (
    EXPERTS,
    FORWARD,
    HEAD,
    HEADS,
    WIDTH,
    WINDOW,
    Tensors,
    _add,
    _common,
    _deepseek2,
    _deepseek2_header,
    _ones,
    _Random,
)
from tests.support.tiny_gguf import Vocabulary, _add_tokenizer, _finish

_NOW = WIDTH // 2  # values of a row that are the token's; FAR and OWN share the others
_LOUD = 3.0  # a mean over many tokens is small; more, and texts repeat themselves
_SPEECHLESS = 3  # control tokens, which are hardly ever written

MTP_TARGETS = (
    *("glm4moe", "hy_v3", "cohere2moe", "step35", "mimo2"),  # plain attention, windows in the last
    *("deepseek2", "deepseek32", "glm-dsa"),  # compressed keys and values
    *("qwen35", "qwen35moe", "qwen3next", "nemotron_h_moe", "bailingmoe3"),  # with a state
)
"""Architectures with a head in the file."""

MTP_BLOCKS = ("step35", "mimo2", "hy_v3")
"""Those of which a head may have several blocks."""

_GATED = ("qwen35", "qwen35moe", "qwen3next")
_COMPRESSED = ("deepseek2", "deepseek32", "glm-dsa", "bailingmoe3")
_INDEXED = ("deepseek32", "glm-dsa")
_WINDOWED = ("cohere2moe", "step35", "mimo2")
_DENSE = ("qwen35", "mimo2")  # as the others have a first layer that is
_INDEXER_HEADS, _INDEXER_HEAD = 4, 64
_RANK = 32  # of compressed keys and values


def write_mtp(
    path: Path,
    architecture: str,
    noise: float = 0.02,
    is_alone: bool = False,
    seed: int = 2,
    edit: Callable[[Tensors], object] = lambda _: None,
    blocks: int = 1,
    vocabulary: Vocabulary | None = None,
    edit_keys: Callable[[GGUFWriter], object] = lambda _: None,
) -> Path:
    """Write a target with an MTP head, or that head alone; the same arguments give the same bytes.

    The other layers add `noise` times what they would; the more, the less is accepted. The edit may
    change the tensors, of which the head's are those of `blk.2` and the further blocks.
    """
    draw, layers = _Random(seed), 2
    writer = GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    _header(writer, architecture, layers, blocks)
    writer.add_nextn_predict_layers(blocks)
    _add_tokenizer(writer, vocabulary or Vocabulary())
    edit_keys(writer)
    tensors = _outer(draw)
    trunk = [_trunk_layer(draw, architecture, layer, noise) for layer in range(layers)]
    if not is_alone:
        tensors |= _numbered(dict(enumerate(trunk)))
    for block in range(blocks):
        tensors |= _numbered({layers + block: _head_block(draw, architecture, block)})
    edit(tensors)
    for name, tensor in tensors.items():
        _add(writer, name, tensor)
    _finish(writer)
    return path


def _header(writer: GGUFWriter, architecture: str, layers: int, blocks: int) -> None:
    count = layers + blocks
    if architecture in _GATED:
        recurrent.qwen35_header(writer, count)
    elif architecture == "nemotron_h_moe":
        recurrent.nemotron_h_header(writer, count)
    elif architecture in _COMPRESSED:  # a layer without heads has a state
        has_state = architecture == "bailingmoe3"
        _deepseek2_header(writer, count, [0] + [1] * (count - 1) if has_state else 1)
    else:
        _common(writer, count)
    if architecture not in (*_GATED, *_COMPRESSED):
        writer.add_leading_dense_block_count(1)
    if architecture in _WINDOWED:  # as far as the target's layer of means looks, the head does
        writer.add_sliding_window(WINDOW)
        writer.add_sliding_window_pattern([False] + [True] * (count - 1))
    if architecture in _INDEXED:  # that finds all there is
        writer.add_indexer_head_count(_INDEXER_HEADS)
        writer.add_indexer_key_length(_INDEXER_HEAD)
        writer.add_indexer_top_k(512)
    if architecture == "bailingmoe3":
        recurrent.kimi_header(writer)
    if architecture == "cohere2moe":
        writer.add_logit_scale(1.0)
    if architecture != "qwen35":
        writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
        writer.add_expert_shared_feed_forward_length(FORWARD)
    if architecture not in ("qwen35", *_COMPRESSED):
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(2)
        writer.add_expert_shared_count(1)
        writer.add_expert_feed_forward_length(FORWARD)


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
    """Return a layer, of which the last, which is attention in all, writes FAR and OWN."""
    tensors = _layer(draw, architecture, layer)
    for name in tensors:
        if name.startswith(("attn_output.", "ffn_down", "ssm_out.")):
            tensors[name] = tensors[name] * np.float32(noise)
    return tensors | _means(architecture, _LOUD, _LOUD) if layer == 1 else tensors


def _layer(draw: _Random, architecture: str, layer: int) -> Tensors:
    """Return a random layer: the first of a hybrid has a state, and the head is the third."""
    if architecture in _GATED:
        return _gated(draw, architecture, layer)
    if architecture == "nemotron_h_moe":
        return recurrent.nemotron_h(draw, layer)
    if architecture in _COMPRESSED:
        tensors = _deepseek2(draw)
        if architecture in _INDEXED:
            tensors |= _indexer(draw)
        if architecture == "bailingmoe3":
            tensors |= {"exp_probs_b.bias": np.zeros(EXPERTS, np.float32)}
            tensors = recurrent.kimi(draw, tensors, layer)
        return tensors
    tensors = _attention(draw, architecture)
    return tensors | _forward(draw, architecture, is_dense=not layer or architecture in _DENSE)


def _gated(draw: _Random, architecture: str, layer: int) -> Tensors:
    """Return a layer of Qwen's hybrids, dense or with experts."""
    tensors = recurrent.qwen35(draw, min(layer, 1))
    if architecture == "qwen35":
        return tensors
    if architecture == "qwen3next" and "ssm_beta.weight" in tensors:
        both = [tensors.pop(f"ssm_{name}.weight") for name in ("beta", "alpha")]
        tensors["ssm_ba.weight"] = np.concatenate(both)
    dense = _forward(draw, architecture, is_dense=True)
    experts = _forward(draw, architecture, is_dense=False)
    experts["ffn_gate_inp_shexp.weight"] = draw.vector(WIDTH)
    return {name: tensor for name, tensor in tensors.items() if name not in dense} | experts


def _attention(draw: _Random, architecture: str) -> Tensors:
    norms = {"attn_norm": WIDTH}
    if architecture == "glm4moe":
        norms["post_attention_norm"] = WIDTH
    elif architecture != "cohere2moe":  # whose two parts read the same
        norms["ffn_norm"] = WIDTH
    if architecture == "hy_v3":
        norms |= {"attn_q_norm": HEAD, "attn_k_norm": HEAD}
    matrices = {
        "attn_q": draw.matrix(HEADS * HEAD, WIDTH, gain=2.0),
        "attn_k": draw.matrix(HEAD, WIDTH, gain=2.0),
        "attn_v": draw.matrix(HEAD, WIDTH, gain=2.0),
        "attn_output": draw.matrix(WIDTH, HEADS * HEAD, gain=4.0),
    }
    if architecture == "mimo2":
        matrices["attn_qkv"] = np.concatenate([matrices.pop(f"attn_{name}") for name in "qkv"])
    ones = {f"{name}.weight": _ones(count) for name, count in norms.items()}
    return ones | {f"{name}.weight": matrix for name, matrix in matrices.items()}


def _forward(draw: _Random, architecture: str, is_dense: bool) -> Tensors:
    if is_dense:
        return {
            "ffn_gate.weight": draw.matrix(FORWARD, WIDTH),
            "ffn_up.weight": draw.matrix(FORWARD, WIDTH),
            "ffn_down.weight": draw.matrix(WIDTH, FORWARD, gain=4.0),
        }
    bias = {"exp_probs_b.bias": np.zeros(EXPERTS, np.float32)}
    return (bias if architecture in ("glm4moe", "step35") else {}) | {
        "ffn_gate_inp.weight": draw.matrix(EXPERTS, WIDTH),
        "ffn_gate_exps.weight": draw.matrix(EXPERTS, FORWARD, WIDTH),
        "ffn_up_exps.weight": draw.matrix(EXPERTS, FORWARD, WIDTH),
        "ffn_down_exps.weight": draw.matrix(EXPERTS, WIDTH, FORWARD, gain=4.0),
        "ffn_gate_shexp.weight": draw.matrix(FORWARD, WIDTH),
        "ffn_up_shexp.weight": draw.matrix(FORWARD, WIDTH),
        "ffn_down_shexp.weight": draw.matrix(WIDTH, FORWARD, gain=4.0),
    }


def _indexer(draw: _Random) -> Tensors:
    """Return what chooses the tokens that sparse attention looks at."""
    return {
        "indexer.k_norm.weight": _ones(_INDEXER_HEAD),
        "indexer.k_norm.bias": np.zeros(_INDEXER_HEAD, np.float32),
        "indexer.proj.weight": draw.matrix(_INDEXER_HEADS, WIDTH),
        "indexer.attn_k.weight": draw.matrix(_INDEXER_HEAD, WIDTH),
        "indexer.attn_q_b.weight": draw.matrix(_INDEXER_HEADS * _INDEXER_HEAD, _RANK),
    }


def _means(architecture: str, far: float, own: float) -> Tensors:
    """Return attention that sees every token alike: without queries all scores are 0.

    Its two heads read the two halves of NOW; one writes FAR and the other OWN.
    """
    half = _NOW // 2
    # A gate is half open where nothing opens it; values of a part of a row are made a whole long.
    gain = 2.0 if architecture in (*_GATED, "bailingmoe3") else 1.0
    if architecture in _COMPRESSED:
        gain *= np.sqrt(2.0)
    output = np.zeros((WIDTH, HEADS * HEAD), np.float32)
    for i in range(half):
        output[_NOW + i, i] = far * gain
        output[_NOW + half + i, HEAD + half + i] = own * gain
    tensors = {"attn_output.weight": output}
    if architecture in _COMPRESSED:
        queries = 2 * HEADS * HEAD
        return tensors | {
            "attn_q_b.weight": np.zeros((queries, _RANK), np.float32),
            "attn_kv_a_mqa.weight": np.eye(_RANK + HEAD, WIDTH, dtype=np.float32),
            "attn_v_b.weight": np.stack([np.eye(HEAD, _RANK, dtype=np.float32)] * HEADS),
        }
    queries = HEADS * HEAD * (2 if architecture in _GATED else 1)
    matrices = {
        "q": np.zeros((queries, WIDTH), np.float32),
        "k": np.zeros((HEAD, WIDTH), np.float32),
        "v": np.eye(HEAD, WIDTH, dtype=np.float32),
    }
    if architecture == "mimo2":
        return tensors | {"attn_qkv.weight": np.concatenate(list(matrices.values()))}
    return tensors | {f"attn_{name}.weight": matrix for name, matrix in matrices.items()}


def _head_block(draw: _Random, architecture: str, block: int) -> Tensors:
    """Return a block that drafts: NOW of the token, FAR of the row, OWN by its attention.

    Further blocks weigh them otherwise.
    """
    tensors = _layer(draw, architecture, 2)
    tensors |= {name: np.zeros_like(t) for name, t in tensors.items() if "ffn_down" in name}
    joined = np.zeros((WIDTH, 2 * WIDTH), np.float32)
    for i in range(_NOW):
        joined[i, i] = np.sqrt(0.5)  # as NOW is half of a row, whose length becomes 1
    for i in range(_NOW, _NOW + _NOW // 2):
        joined[i, WIDTH + i] = 1.0
    norm = "layer_output_norm" if architecture == "bailingmoe3" else "nextn.shared_head_norm"
    nextn = {
        "nextn.eh_proj.weight": joined,
        **{f"{name}.weight": _ones(WIDTH) for name in ("nextn.enorm", "nextn.hnorm", norm)},
    }
    if block:
        nextn[f"{norm}.weight"] += 0.4 * draw.matrix(WIDTH, gain=np.sqrt(WIDTH))
    # Its attention reads rows that FAR makes longer by half of their square.
    return tensors | _means(architecture, 0.0, _LOUD * np.sqrt(1.5)) | nextn


# --- files of their own, for a target of llama's kind ---

_DRAFTED = np.arange(_SPEECHLESS, len(Vocabulary().names), 2, dtype=np.int64)
"""Tokens that the EAGLE-3 head drafts; the target writes few others."""
_LAYERS = (0, 1, 3)  # whose inputs are read; of a token NOW is in all of them, FAR in the others


def write_llama(
    path: Path,
    noise: float = 0.02,
    now: float = 1.0,
    seed: int = 2,
    architecture: str = "llama",
) -> Path:
    """Write a target for the heads below, in which NOW weighs as much as is said.

    Of another architecture that has the same tensors it may feed none.
    """
    draw, writer = _Random(seed), GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    _common(writer, 4)
    _add_tokenizer(writer, Vocabulary())
    tensors = _shared(now)
    layers = {i: _plain_block(draw, WIDTH, noise) for i in range(4)}
    layers[0] |= _means("llama", _LOUD, _LOUD)
    for name, tensor in (tensors | _numbered(layers)).items():
        _add(writer, name, tensor)
    _finish(writer)
    return path


def _shared(now: float = 1.0) -> Tensors:
    """Return what the target and its heads have in common."""
    tensors = _outer(_Random(2))
    rare = np.ones(len(tensors["output.weight"]), bool)
    rare[_DRAFTED] = False
    tensors["output.weight"][rare] *= np.float32(0.3)
    tensors["output.weight"][:, :_NOW] *= np.float32(now)
    return tensors


def write_eagle3(
    path: Path,
    layers: tuple[int, ...] = _LAYERS,
    borrows: bool = False,
    edit: Callable[[Tensors], object] = lambda _: None,
    drafted: NDArray[np.int64] = _DRAFTED,
) -> Path:
    """Write an EAGLE-3 head, which may have the target's matrix in place of its embeddings.

    FAR is of the second layer's row, NOW of the token, which an attention head finds by it, and OWN
    of another one. Two more take the former NOW and OWN away from the row that it is chained on.
    """
    writer = _head_file(path, "eagle3", 1, layers, heads=4)
    writer.add_uint32("eagle3.target_hidden_size", WIDTH)
    tensors = _shared()
    tensors["output.weight"] = tensors["output.weight"][_DRAFTED]
    if borrows:
        del tensors["token_embd.weight"]
    takes = np.zeros((WIDTH, len(layers) * WIDTH), np.float32)
    for i in range(_NOW, _NOW + _NOW // 2):
        takes[i, WIDTH + i] = 1.0
    block = _plain_block(_Random(5), 2 * WIDTH, 0.0)
    finds, reads, writes = (np.zeros((4 * HEAD, 2 * WIDTH), np.float32) for _ in range(3))
    for head in (0, 2, 3):
        finds[head * HEAD : (head + 1) * HEAD, :HEAD] = 1.2 * np.eye(HEAD)
    for head, column, scale in ((0, 0, 0.5**0.5), (1, 0, _LOUD), (2, WIDTH, -0.9), (3, 96, -0.9)):
        reads[head * HEAD : (head + 1) * HEAD, column : column + HEAD] = scale * np.eye(HEAD)
    writes = np.zeros((WIDTH, 4 * HEAD), np.float32)
    writes[:_NOW, :HEAD] = writes[:_NOW, 2 * HEAD : 3 * HEAD] = np.eye(HEAD)
    for i in range(_NOW // 2, _NOW):
        writes[_NOW + i, HEAD + i] = writes[_NOW + i, 3 * HEAD + i] = 1.0
    block |= {"attn_q.weight": finds, "attn_k.weight": finds, "attn_v.weight": reads}
    block |= {"attn_output.weight": writes, "attn_norm_2.weight": _ones(WIDTH)}
    tensors |= {"fc.weight": takes, **_numbered({0: block})}
    edit(tensors)
    return _write_head(writer, path, tensors, drafted)


def write_dflash(
    path: Path,
    has_markov: bool = False,
    layers: tuple[int, ...] = _LAYERS,
    borrows: bool = False,
    block: int = 8,
    edit: Callable[[Tensors], object] = lambda _: None,
) -> Path:
    """Write a DFlash head, or with a Markov head a DSpark one.

    FAR and OWN are means over the first layer's rows and the block, whose masks are nothing. NOW is
    what the Markov head adds; without it nobody knows it.
    """
    writer = _head_file(path, "dflash", 1, layers)
    writer.add_uint32("dflash.block_size", block)
    writer.add_mask_token_id(Vocabulary().pad)
    tensors = _shared()
    now = tensors["token_embd.weight"][:, :_NOW].copy()
    if borrows:
        del tensors["token_embd.weight"], tensors["output.weight"]
    else:
        tensors["token_embd.weight"] *= np.float32(0.02)  # in attention alone it is a whole row
        tensors["token_embd.weight"][Vocabulary().pad] = 0.0
    takes = np.zeros((WIDTH, len(layers) * WIDTH), np.float32)
    for i in range(_NOW):
        takes[i, i] = 1.0
    norms = {f"attn_{name}_norm.weight": _ones(HEAD) for name in "qk"}
    its = _plain_block(_Random(6), WIDTH, 0.0) | _means("llama", _LOUD, _LOUD) | norms
    tensors |= {"fc.weight": takes, "enc.output_norm.weight": _ones(WIDTH), **_numbered({0: its})}
    tensors["output_norm.weight"] = _ones(WIDTH) * np.float32(0.6)  # a row without NOW is shorter
    if has_markov:
        writer.add_bool("dflash.sample_from_anchor", True)
        writer.add_bool("dflash.has_confidence_head", True)
        tensors |= {
            "markov_w1.weight": now,
            "markov_w2.weight": _shared()["output.weight"][:, :_NOW] / np.float32(0.9),
            "conf_proj.weight": np.zeros((1, WIDTH + _NOW), np.float32),
            "conf_proj.bias": np.zeros(1, np.float32),
        }
    edit(tensors)
    return _write_head(writer, path, tensors)


def _head_file(
    path: Path, architecture: str, blocks: int, layers: tuple[int, ...], heads: int = HEADS
) -> GGUFWriter:
    writer = GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    _common(writer, blocks, kv_heads=1 if heads == HEADS else heads, heads=heads)
    writer.add_array(f"{architecture}.target_layers", list(layers))
    _add_tokenizer(writer, Vocabulary())
    return writer


def _plain_block(draw: _Random, inputs: int, noise: float) -> Tensors:
    """Return a block of llama's kind whose attention reads so many values, and adds noise."""
    matrices = {
        "attn_q": draw.matrix(HEADS * HEAD, inputs),
        "attn_k": draw.matrix(HEAD, inputs),
        "attn_v": draw.matrix(HEAD, inputs),
        "attn_output": draw.matrix(WIDTH, HEADS * HEAD, gain=4.0 * noise),
        "ffn_gate": draw.matrix(FORWARD, WIDTH),
        "ffn_up": draw.matrix(FORWARD, WIDTH),
        "ffn_down": draw.matrix(WIDTH, FORWARD, gain=4.0 * noise),
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
