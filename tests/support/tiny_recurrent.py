"""The layers and headers of tiny recurrent and hybrid models, for `tiny_architectures`."""

from __future__ import annotations

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray

Tensors = dict[str, NDArray[np.float32]]

WIDTH, HEADS, HEAD, FORWARD, CONTEXT = 64, 2, 32, 64, 512
INNER, CONVOLUTION, STATE, RANK = 2 * WIDTH, 4, 32, 32
SSM_HEADS = 4
DELTA_HEADS = 2
EXPERTS = 4


class Draw:
    """Draws a model's tensors; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def matrix(self, *shape: int, gain: float = 1.0) -> NDArray[np.float32]:
        """Return a matrix, or one for every expert: float32[..., outputs, inputs]."""
        drawn = self._random.standard_normal(shape, np.float32)
        return drawn * np.float32(gain / np.sqrt(shape[-1]))

    def vector(self, length: int, mean: float = 0.0) -> NDArray[np.float32]:
        """Return a bias."""
        drawn = self._random.standard_normal(length, np.float32) * np.float32(0.1)
        return drawn + np.float32(mean)


def _ones(length: int) -> NDArray[np.float32]:
    return np.ones(length, np.float32)


def _decays(draw: Draw, *shape: int) -> NDArray[np.float32]:
    """Return how fast states fade: negative."""
    return -np.abs(draw.matrix(*shape, gain=np.sqrt(shape[-1]))) * np.float32(0.5) - np.float32(0.1)


def mamba(draw: Draw, layer: int) -> Tensors:
    return {
        "attn_norm.weight": _ones(WIDTH),
        "ssm_in.weight": draw.matrix(2 * INNER, WIDTH, gain=2.0),
        "ssm_conv1d.weight": draw.matrix(INNER, CONVOLUTION, gain=2.0),
        "ssm_conv1d.bias": draw.vector(INNER),
        "ssm_x.weight": draw.matrix(RANK + 2 * STATE, INNER, gain=2.0),
        "ssm_dt.weight": draw.matrix(INNER, RANK),
        "ssm_dt.bias": draw.vector(INNER),
        "ssm_a": _decays(draw, INNER, STATE),
        "ssm_d": _ones(INNER),
        "ssm_out.weight": draw.matrix(WIDTH, INNER, gain=4.0),
    }


def mamba2(draw: Draw, layer: int) -> Tensors:
    convolved = INNER + 2 * STATE
    return {
        "attn_norm.weight": _ones(WIDTH),
        "ssm_in.weight": draw.matrix(INNER + convolved + SSM_HEADS, WIDTH, gain=2.0),
        "ssm_conv1d.weight": draw.matrix(convolved, CONVOLUTION, gain=2.0),
        "ssm_conv1d.bias": draw.vector(convolved),
        "ssm_dt.bias": draw.vector(SSM_HEADS),
        "ssm_a": _decays(draw, SSM_HEADS, 1),
        "ssm_d": np.ones((SSM_HEADS, 1), np.float32),
        "ssm_norm.weight": np.ones((1, INNER), np.float32),
        "ssm_out.weight": draw.matrix(WIDTH, INNER, gain=4.0),
    }


def _attention(draw: Draw) -> Tensors:
    return {
        "attn_norm.weight": _ones(WIDTH),
        "attn_q.weight": draw.matrix(HEADS * HEAD, WIDTH, gain=2.0),
        "attn_k.weight": draw.matrix(HEAD, WIDTH, gain=2.0),
        "attn_v.weight": draw.matrix(HEAD, WIDTH, gain=2.0),
        "attn_output.weight": draw.matrix(WIDTH, HEADS * HEAD, gain=4.0),
    }


def _forward(draw: Draw) -> Tensors:
    return {
        "ffn_gate.weight": draw.matrix(FORWARD, WIDTH),
        "ffn_up.weight": draw.matrix(FORWARD, WIDTH),
        "ffn_down.weight": draw.matrix(WIDTH, FORWARD, gain=4.0),
    }


def falcon_h1(draw: Draw, layer: int) -> Tensors:
    both = mamba2(draw, layer) | _attention(draw) | _forward(draw)
    return both | {"ffn_norm": _ones(WIDTH)}  # llama.cpp wants it under this name


def granite_hybrid(draw: Draw, layer: int) -> Tensors:
    mixer = _attention(draw) if layer % 2 else mamba2(draw, layer)
    return mixer | _forward(draw) | {"ffn_norm.weight": _ones(WIDTH)}


def qwen35(draw: Draw, layer: int) -> Tensors:
    norms = {"attn_norm.weight": _ones(WIDTH), "post_attention_norm.weight": _ones(WIDTH)}
    if layer % 2:
        gated = {"attn_q.weight": draw.matrix(2 * HEADS * HEAD, WIDTH, gain=2.0)}
        both = {f"attn_{name}_norm.weight": _ones(HEAD) for name in "qk"}
        return _attention(draw) | gated | both | _forward(draw) | norms
    keys = values = DELTA_HEADS * STATE
    return (
        norms
        | _forward(draw)
        | {
            "attn_qkv.weight": draw.matrix(2 * keys + values, WIDTH, gain=2.0),
            "attn_gate.weight": draw.matrix(values, WIDTH, gain=2.0),
            "ssm_conv1d.weight": draw.matrix(2 * keys + values, CONVOLUTION, gain=2.0),
            "ssm_dt.bias": draw.vector(DELTA_HEADS),
            "ssm_a": _decays(draw, DELTA_HEADS),
            "ssm_beta.weight": draw.matrix(DELTA_HEADS, WIDTH),
            "ssm_alpha.weight": draw.matrix(DELTA_HEADS, WIDTH),
            "ssm_norm.weight": _ones(STATE),
            "ssm_out.weight": draw.matrix(WIDTH, values, gain=4.0),
        }
    )


def nemotron_h(draw: Draw, layer: int) -> Tensors:
    """Return a state, attention, or what has attention and experts: a head."""
    if not layer:
        return mamba2(draw, layer)
    if layer == 1:
        return _attention(draw)
    return _attention(draw) | {
        "post_attention_norm.weight": _ones(WIDTH),
        "ffn_gate_inp.weight": draw.matrix(EXPERTS, WIDTH),
        "exp_probs_b.bias": np.zeros(EXPERTS, np.float32),
        "ffn_up_exps.weight": draw.matrix(EXPERTS, FORWARD, WIDTH),
        "ffn_down_exps.weight": draw.matrix(EXPERTS, WIDTH, FORWARD, gain=4.0),
        "ffn_up_shexp.weight": draw.matrix(FORWARD, WIDTH),
        "ffn_down_shexp.weight": draw.matrix(WIDTH, FORWARD, gain=4.0),
    }


def kimi(draw: Draw, layer_tensors: Tensors, layer: int) -> Tensors:
    """Return a layer with a gate, of which the first has a state in place of attention."""
    if layer:
        return layer_tensors | {"attn_gate.weight": draw.matrix(HEADS, WIDTH)}
    inner = HEADS * HEAD
    names = ("attn_q", "attn_k", "attn_v", "ssm_f_a", "ssm_g_a")
    convolutions = {
        f"ssm_conv1d_{name}.weight": draw.matrix(inner, CONVOLUTION, gain=2.0) for name in "qkv"
    }
    return (
        {name: tensor for name, tensor in layer_tensors.items() if not name.startswith("attn_")}
        | {f"{name}.weight": draw.matrix(inner, WIDTH) for name in names}
        | {name: matrix.reshape(inner, 1, CONVOLUTION) for name, matrix in convolutions.items()}
        | {
            "attn_norm.weight": _ones(WIDTH),
            "ssm_beta.weight": draw.matrix(HEADS, WIDTH),
            "ssm_a": -_decays(draw, HEADS, 1),
            "ssm_dt.bias": draw.vector(inner),
            "ssm_norm.weight": _ones(HEAD),
            "attn_output.weight": draw.matrix(WIDTH, inner, gain=4.0),
        }
    )


def rwkv7(draw: Draw, layer: int) -> Tensors:
    tensors: Tensors = {
        "attn_norm.weight": _ones(WIDTH),
        "attn_norm.bias": draw.vector(WIDTH),
        "attn_norm_2.weight": _ones(WIDTH),
        "attn_norm_2.bias": draw.vector(WIDTH),
        "time_mix_g1.weight": draw.matrix(RANK, WIDTH),
        "time_mix_g2.weight": draw.matrix(WIDTH, RANK, gain=2.0),
        "time_mix_lerp_fused.weight": np.abs(draw.vector(6 * WIDTH, 0.5)).reshape(6, 1, 1, WIDTH),
        "time_mix_k_k.weight": draw.vector(WIDTH, 0.8),
        "time_mix_k_a.weight": draw.vector(WIDTH, 1.0),
        "time_mix_r_k.weight": draw.vector(WIDTH),
        "time_mix_ln.weight": _ones(WIDTH),
        "time_mix_ln.bias": draw.vector(WIDTH),
        "channel_mix_lerp_k.weight": np.abs(draw.vector(WIDTH, 0.5)).reshape(1, 1, WIDTH),
        "channel_mix_key.weight": draw.matrix(FORWARD, WIDTH),
        "channel_mix_value.weight": draw.matrix(WIDTH, FORWARD, gain=4.0),
    }
    for name in "wav":
        tensors[f"time_mix_{name}0.weight"] = draw.vector(WIDTH)
        tensors[f"time_mix_{name}1.weight"] = draw.matrix(RANK, WIDTH)
        tensors[f"time_mix_{name}2.weight"] = draw.matrix(WIDTH, RANK)
    for name in ("key", "value", "receptance", "output"):
        tensors[f"time_mix_{name}.weight"] = draw.matrix(WIDTH, WIDTH, gain=2.0)
    return tensors


def _common(writer: GGUFWriter, layers: int) -> None:
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(FORWARD)
    writer.add_layer_norm_rms_eps(1e-5)


def _states(writer: GGUFWriter, heads: int, inner: int = INNER, groups: int = 1) -> None:
    writer.add_ssm_conv_kernel(CONVOLUTION)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(STATE)
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_group_count(groups)


def _heads(writer: GGUFWriter) -> None:
    writer.add_head_count(HEADS)
    writer.add_rope_dimension_count(HEAD)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)


def mamba_header(writer: GGUFWriter, layers: int) -> None:
    _common(writer, layers)
    writer.add_head_count(0)
    _states(writer, RANK)


def mamba2_header(writer: GGUFWriter, layers: int) -> None:
    _common(writer, layers)
    writer.add_head_count(0)
    _states(writer, SSM_HEADS)


def falcon_h1_header(writer: GGUFWriter, layers: int) -> None:
    _common(writer, layers)
    _heads(writer)
    writer.add_head_count_kv(1)
    _states(writer, SSM_HEADS)


def granite_hybrid_header(writer: GGUFWriter, layers: int) -> None:
    _common(writer, layers)
    _heads(writer)
    writer.add_head_count_kv([layer % 2 for layer in range(layers)])
    _states(writer, SSM_HEADS)


def qwen35_header(writer: GGUFWriter, layers: int) -> None:
    _common(writer, layers)
    _heads(writer)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_sections([4, 4, 4, 4])
    writer.add_full_attention_interval(2)
    _states(writer, DELTA_HEADS, DELTA_HEADS * STATE, DELTA_HEADS)


def nemotron_h_header(writer: GGUFWriter, layers: int) -> None:
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length([0, 0] + [FORWARD] * (layers - 2))
    writer.add_layer_norm_eps(1e-5)
    writer.add_layer_norm_rms_eps(1e-5)
    _heads(writer)
    writer.add_head_count_kv([0] + [1] * (layers - 1))
    _states(writer, SSM_HEADS)


def kimi_header(writer: GGUFWriter) -> None:
    """Write what a state needs beside the keys of compressed attention."""
    writer.add_ssm_conv_kernel(CONVOLUTION)
    writer.add_kda_head_dim(HEAD)
    writer.add_float32(f"{writer.arch}.kda.gate_lower_bound", -5.0)


def rwkv7_header(writer: GGUFWriter, layers: int) -> None:
    _common(writer, layers)
    writer.add_head_count(0)
    writer.add_layer_norm_eps(1e-5)
    writer.add_wkv_head_size(WIDTH)  # 64: no other size is safe on every CPU
    for rank in ("decay", "iclr", "value_residual_mix", "gate"):
        getattr(writer, f"add_{rank}_lora_rank")(RANK)
    writer.add_token_shift_count(2)
