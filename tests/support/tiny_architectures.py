"""Writes tiny GGUF files of architectures whose memory or attention is not llama's.

Weights are random. Each file has what makes its kind special at a size that a test reaches: a
sliding window of 24 tokens, learned positions that end at 256, rotary factors that change above
256, experts, compressed keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, PoolingType, quants
from numpy.typing import NDArray

from tests.support import tiny_recurrent as recurrent
from tests.support.tiny_gguf import Vocabulary, _add_tokenizer

Tensors = dict[str, NDArray[np.float32]]

WIDTH, HEADS, HEAD, FORWARD, EXPERTS = 64, 2, 32, 64, 4
WINDOW = 24  # tokens of a sliding window
POSITIONS = 256  # that gpt2 learned, and that phi3 was first trained on
CONTEXT = 512

_BLOCK = 32  # values of a block of Q8_0


class _Random(recurrent.Draw):
    """Draws a model's tensors; the same seed gives the same ones."""


def _ones(length: int) -> NDArray[np.float32]:
    return np.ones(length, np.float32)


def _attention(draw: _Random, kv_heads: int = 1) -> Tensors:
    return {
        "attn_norm.weight": _ones(WIDTH),
        "attn_q.weight": draw.matrix(HEADS * HEAD, WIDTH, gain=2.0),
        "attn_k.weight": draw.matrix(kv_heads * HEAD, WIDTH, gain=2.0),
        "attn_v.weight": draw.matrix(kv_heads * HEAD, WIDTH, gain=2.0),
        "attn_output.weight": draw.matrix(WIDTH, HEADS * HEAD, gain=4.0),
    }


def _forward(draw: _Random) -> Tensors:
    return {
        "ffn_norm.weight": _ones(WIDTH),
        "ffn_gate.weight": draw.matrix(FORWARD, WIDTH),
        "ffn_up.weight": draw.matrix(FORWARD, WIDTH),
        "ffn_down.weight": draw.matrix(WIDTH, FORWARD, gain=4.0),
    }


def _experts(draw: _Random) -> Tensors:
    return {
        "ffn_gate_inp.weight": draw.matrix(EXPERTS, WIDTH),
        "ffn_gate_exps.weight": draw.matrix(EXPERTS, FORWARD, WIDTH),
        "ffn_up_exps.weight": draw.matrix(EXPERTS, FORWARD, WIDTH),
        "ffn_down_exps.weight": draw.matrix(EXPERTS, WIDTH, FORWARD, gain=4.0),
    }


def _shared_expert(draw: _Random) -> Tensors:
    return {
        "ffn_gate_shexp.weight": draw.matrix(FORWARD, WIDTH),
        "ffn_up_shexp.weight": draw.matrix(FORWARD, WIDTH),
        "ffn_down_shexp.weight": draw.matrix(WIDTH, FORWARD, gain=4.0),
    }


def _gemma2(draw: _Random) -> Tensors:
    norms = {f"{name}.weight": _ones(WIDTH) for name in ("post_attention_norm", "post_ffw_norm")}
    return _attention(draw) | _forward(draw) | norms


def _gemma3(draw: _Random) -> Tensors:
    norms = {f"{name}.weight": _ones(HEAD) for name in ("attn_q_norm", "attn_k_norm")}
    return _gemma2(draw) | norms


def _gpt_oss(draw: _Random) -> Tensors:
    biases = {
        "attn_q.bias": draw.vector(HEADS * HEAD),
        "attn_k.bias": draw.vector(HEAD),
        "attn_v.bias": draw.vector(HEAD),
        "attn_output.bias": draw.vector(WIDTH),
        "attn_sinks.weight": draw.vector(HEADS),
        "ffn_gate_inp.bias": draw.vector(EXPERTS),
        "ffn_gate_exps.bias": np.stack([draw.vector(FORWARD) for _ in range(EXPERTS)]),
        "ffn_up_exps.bias": np.stack([draw.vector(FORWARD) for _ in range(EXPERTS)]),
        "ffn_down_exps.bias": np.stack([draw.vector(WIDTH) for _ in range(EXPERTS)]),
    }
    return _attention(draw) | {"post_attention_norm.weight": _ones(WIDTH)} | _experts(draw) | biases


def _phi3(draw: _Random) -> Tensors:
    forward = {
        "ffn_norm.weight": _ones(WIDTH),
        "ffn_up.weight": draw.matrix(2 * FORWARD, WIDTH),
        "ffn_down.weight": draw.matrix(WIDTH, FORWARD, gain=4.0),
    }
    return _attention(draw) | forward


def _gpt2(draw: _Random) -> Tensors:
    return {
        "attn_norm.weight": _ones(WIDTH),
        "attn_norm.bias": draw.vector(WIDTH),
        "attn_qkv.weight": draw.matrix(3 * WIDTH, WIDTH, gain=2.0),
        "attn_qkv.bias": draw.vector(3 * WIDTH),
        "attn_output.weight": draw.matrix(WIDTH, WIDTH, gain=4.0),
        "attn_output.bias": draw.vector(WIDTH),
        "ffn_norm.weight": _ones(WIDTH),
        "ffn_norm.bias": draw.vector(WIDTH),
        "ffn_up.weight": draw.matrix(FORWARD, WIDTH),
        "ffn_up.bias": draw.vector(FORWARD),
        "ffn_down.weight": draw.matrix(WIDTH, FORWARD, gain=4.0),
        "ffn_down.bias": draw.vector(WIDTH),
    }


def _deepseek2(draw: _Random) -> Tensors:
    rank = 32
    attention = {
        "attn_norm.weight": _ones(WIDTH),
        "attn_q_a.weight": draw.matrix(rank, WIDTH, gain=2.0),
        "attn_q_a_norm.weight": _ones(rank),
        "attn_q_b.weight": draw.matrix(HEADS * 2 * HEAD, rank, gain=2.0),
        "attn_kv_a_mqa.weight": draw.matrix(rank + HEAD, WIDTH, gain=2.0),
        "attn_kv_a_norm.weight": _ones(rank),
        "attn_k_b.weight": draw.matrix(HEADS, rank, HEAD, gain=2.0),
        "attn_v_b.weight": draw.matrix(HEADS, HEAD, rank, gain=2.0),
        "attn_output.weight": draw.matrix(WIDTH, HEADS * HEAD, gain=4.0),
        "ffn_norm.weight": _ones(WIDTH),
    }
    return attention | _experts(draw) | _shared_expert(draw)


def _mixtral(draw: _Random) -> Tensors:
    return _attention(draw) | {"ffn_norm.weight": _ones(WIDTH)} | _experts(draw)


def _qwen2moe(draw: _Random) -> Tensors:
    gate = {"ffn_gate_inp_shexp.weight": draw.vector(WIDTH)}
    return _mixtral(draw) | _shared_expert(draw) | gate


def _common(
    writer: GGUFWriter,
    layers: int,
    kv_heads: int = 1,
    context: int = CONTEXT,
    heads: int = HEADS,
) -> None:
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(FORWARD)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)


def _rank(writer: GGUFWriter, layers: int) -> None:
    _common(writer, layers)
    writer.add_pooling_type(PoolingType.RANK)


def _windowed(writer: GGUFWriter, layers: int) -> None:
    _common(writer, layers)
    writer.add_sliding_window(WINDOW)


def _expert_counts(writer: GGUFWriter, layers: int) -> None:
    _common(writer, layers)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(2)
    writer.add_expert_feed_forward_length(FORWARD)


def _gpt_oss_header(writer: GGUFWriter, layers: int) -> None:
    _expert_counts(writer, layers)
    writer.add_sliding_window(WINDOW)


def _phi3_header(writer: GGUFWriter, layers: int) -> None:
    _common(writer, layers, context=1024)
    writer.add_rope_scaling_orig_ctx_len(POSITIONS)
    writer.add_rope_scaling_attn_factors(1.1)


def _gpt2_header(writer: GGUFWriter, layers: int) -> None:
    _common(writer, layers, kv_heads=HEADS, context=POSITIONS)
    writer.add_layer_norm_eps(1e-5)


def _deepseek2_header(writer: GGUFWriter, layers: int, kv_heads: int | Sequence[int] = 1) -> None:
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD)
    writer.add_q_lora_rank(32)
    writer.add_kv_lora_rank(32)
    writer.add_key_length(64)
    writer.add_value_length(32)
    writer.add_key_length_mla(64)
    writer.add_value_length_mla(32)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(2)
    writer.add_expert_feed_forward_length(FORWARD)
    writer.add_expert_shared_count(1)
    writer.add_leading_dense_block_count(0)


Header = Callable[[GGUFWriter, int], None]
Layer = Callable[[_Random], Tensors]

ARCHITECTURES: dict[str, tuple[str, int, Header, Layer]] = {
    "gemma2": ("gemma2", 4, _windowed, _gemma2),
    "gemma3": ("gemma3", 6, _windowed, _gemma3),
    "gpt-oss": ("gpt-oss", 4, _gpt_oss_header, _gpt_oss),
    "phi3": ("phi3", 3, _phi3_header, _phi3),
    "gpt2": ("gpt2", 3, _gpt2_header, _gpt2),
    "deepseek2": ("deepseek2", 3, _deepseek2_header, _deepseek2),
    "mixtral": ("llama", 3, _expert_counts, _mixtral),
    "qwen2moe": ("qwen2moe", 3, _expert_counts, _qwen2moe),
}
"""By name: llama.cpp's architecture, layers, header and the tensors of a layer."""


def _llama(draw: _Random) -> Tensors:
    return _attention(draw) | _forward(draw)


def _qwen2(draw: _Random) -> Tensors:
    widths = {"q": HEADS * HEAD, "k": HEAD, "v": HEAD}
    return _llama(draw) | {f"attn_{key}.bias": draw.vector(n) for key, n in widths.items()}


def _qwen3(draw: _Random) -> Tensors:
    return _llama(draw) | {f"attn_{key}_norm.weight": _ones(HEAD) for key in "qk"}


def _qwen3moe(draw: _Random) -> Tensors:
    return _mixtral(draw) | {f"attn_{key}_norm.weight": _ones(HEAD) for key in "qk"}


PLAIN: dict[str, tuple[str, int, Header, Layer]] = {
    "llama": ("llama", 3, _common, _llama),
    "qwen2": ("qwen2", 3, _common, _qwen2),
    "qwen3": ("qwen3", 3, _common, _qwen3),
    "qwen3moe": ("qwen3moe", 3, _expert_counts, _qwen3moe),
}
"""The same of models that are much like llama."""

REFUSED: dict[str, tuple[str, int, Header, Layer]] = {
    "llada": ("llada", 3, _common, _llama),
    "dream": ("dream", 3, _common, _qwen2),
    "reranker": ("llama", 3, _rank, _llama),
}
"""The same of models that write no text from left to right, or have no embeddings."""

RECURRENT: dict[str, tuple[str, int, Header, Callable[[recurrent.Draw, int], Tensors]]] = {
    "mamba": ("mamba", 3, recurrent.mamba_header, recurrent.mamba),
    "mamba2": ("mamba2", 3, recurrent.mamba2_header, recurrent.mamba2),
    "rwkv7": ("rwkv7", 3, recurrent.rwkv7_header, recurrent.rwkv7),
    "falcon-h1": ("falcon-h1", 3, recurrent.falcon_h1_header, recurrent.falcon_h1),
    "granite-hybrid": (
        "granitehybrid",
        4,
        recurrent.granite_hybrid_header,
        recurrent.granite_hybrid,
    ),
    "qwen35": ("qwen35", 4, recurrent.qwen35_header, recurrent.qwen35),
}
"""The same of models with a state; a layer's tensors may depend on which one it is."""

WINDOWED = frozenset({"gemma2", "gemma3", "gpt-oss"})


def write_architecture(path: Path, name: str, seed: int = 1, last_seed: int = 1) -> Path:
    """Write a model of this architecture; the same arguments give the same bytes.

    With another `last_seed` its last layer differs, so that it agrees with the first now and then.
    """
    architecture, layers, header, draw_layer = _parts(name)
    vocabulary, draw = Vocabulary(), _Random(seed)
    writer = GGUFWriter(path, architecture)
    writer.add_name("tiny")  # llama.cpp expects tokens of its own of a model that is called phi3
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    header(writer, layers)
    _add_tokenizer(writer, vocabulary)
    count = len(vocabulary.names)
    # Logits of a standard deviation near 3, as in tiny_gguf.
    tensors: Tensors = {
        "token_embd.weight": draw.matrix(count, WIDTH, gain=np.sqrt(WIDTH)),
        "output_norm.weight": _ones(WIDTH),
        "output.weight": draw.matrix(count, WIDTH, gain=3.0),
    }
    if name == "gemma2":
        del tensors["output.weight"]  # tied
        tensors["output_norm.weight"] *= np.float32(3.0 / np.sqrt(WIDTH))
    if name == "gpt2":
        tensors["position_embd.weight"] = draw.matrix(POSITIONS, WIDTH, gain=np.sqrt(WIDTH))
        tensors["output_norm.bias"] = draw.vector(WIDTH)
    if name == "phi3":
        tensors["rope_factors_long.weight"] = np.linspace(1.0, 8.0, HEAD // 2, dtype=np.float32)
        tensors["rope_factors_short.weight"] = _ones(HEAD // 2)
    if name == "rwkv7":
        for key in ("output_norm.bias", "token_embd_norm.bias"):
            tensors[key] = draw.vector(WIDTH)
        tensors["token_embd_norm.weight"] = _ones(WIDTH)
    for i in range(layers - 1):
        tensors |= {f"blk.{i}.{key}": value for key, value in draw_layer(draw, i).items()}
    last = draw_layer(_Random(1000 + last_seed), layers - 1)
    tensors |= {f"blk.{layers - 1}.{key}": value for key, value in last.items()}
    for key, tensor in tensors.items():
        _add(writer, key, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _parts(name: str) -> tuple[str, int, Header, Callable[[_Random, int], Tensors]]:
    """Return an architecture, its layers and header, and what draws the tensors of a layer."""
    if name in RECURRENT:
        return RECURRENT[name]
    architecture, layers, header, layer = (ARCHITECTURES | PLAIN | REFUSED)[name]
    return architecture, layers, header, lambda draw, _: layer(draw)


_PLAIN = ("gate_inp", "position", "conv1d", "ssm_a", "ssm_d", "ssm_norm", "lerp")
"""Parts of the names of tensors that are never quantised."""


def _add(writer: GGUFWriter, name: str, tensor: NDArray[Any]) -> None:
    plain = tensor.ndim < 2 or name.endswith(".bias") or any(part in name for part in _PLAIN)
    kind = GGMLQuantizationType.F32 if plain else GGMLQuantizationType.Q8_0
    writer.add_tensor(name, quants.quantize(tensor, kind), raw_dtype=kind)
