"""The layers of hybrid targets of 1B size, for pairs that copy: most have a state, few attention.

Both are as wide as the 1.1B of synthetic.py and take about as long for a token. Their
states are what differs: llama.cpp keeps the last few of gated delta nets (qwen35), and none of
granite's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gguf import GGUFWriter

from model_making.synthetic import Constant, Matrix, Shape, Tensor

_CONVOLVED = 4  # tokens
_STATE = 128  # values of a state, for each value of a head
_FADING = -0.5


@dataclass(frozen=True, slots=True)
class Hybrid:
    """A kind of hybrid: how many layers it needs, and which."""

    architecture: str  # llama.cpp's name
    layers: int
    feed_forward: int
    attending_every: int  # layers: the last of so many attends, the others have a state
    tensors: Callable[[Shape, bool], list[Tensor]]  # of a layer; whether it attends
    header: Callable[[GGUFWriter, Shape, Hybrid], None]

    def sized(self, shape: Shape) -> Shape:
        """Return the shape of a target as large as one of `shape`; tiny ones stay so."""
        is_tiny = shape.layers < self.attending_every
        layers = self.attending_every if is_tiny else self.layers
        wide = shape.feed_forward if is_tiny else self.feed_forward
        return replace(shape, layers=layers, feed_forward=wide, tied=False)

    def attends(self, layer: int) -> bool:
        """Return whether a layer has keys and values in place of a state."""
        return layer % self.attending_every == self.attending_every - 1

    def layer(self, shape: Shape, layer: int) -> list[Tensor]:
        """Return the tensors of a layer, by their full names."""
        its = self.tensors(shape, self.attends(layer))
        return [replace(tensor, name=f"blk.{layer}.{tensor.name}") for tensor in its]

    def write_header(self, writer: GGUFWriter, shape: Shape) -> None:
        """Write what llama.cpp has to know of the layers beside their common sizes."""
        self.header(writer, shape, self)


def _matrix(name: str, rows: int, columns: int) -> Matrix:
    return Matrix(f"{name}.weight", rows, columns, 1.0 / math.sqrt(columns))


def _attention(shape: Shape, queries: int) -> list[Tensor]:
    """Return what attends; `queries` matrices as wide as the model are one for llama.cpp."""
    width, kv_width = shape.width, shape.kv_width
    return [
        _matrix("attn_q", queries * width, width),
        _matrix("attn_k", kv_width, width),
        _matrix("attn_v", kv_width, width),
        _matrix("attn_output", width, width),
    ]


def _forward(shape: Shape) -> list[Tensor]:
    width, wide = shape.width, shape.feed_forward
    return [
        _matrix("ffn_gate", wide, width),
        _matrix("ffn_up", wide, width),
        _matrix("ffn_down", width, wide),
    ]


def _qwen35(shape: Shape, attends: bool) -> list[Tensor]:
    width, heads = shape.width, _delta_heads(shape)
    norms = ("attn_norm", "post_attention_norm")
    common = [*(Constant(f"{name}.weight", width, 1.0) for name in norms), *_forward(shape)]
    if attends:
        both = [Constant(f"attn_{name}_norm.weight", _head(shape), 1.0) for name in "qk"]
        return [*common, *_attention(shape, 2), *both]
    inner = heads * _STATE
    return [
        *common,
        _matrix("attn_qkv", 3 * inner, width),
        _matrix("attn_gate", inner, width),
        Constant("ssm_conv1d.weight", _CONVOLVED, 0.5, rows=3 * inner),
        Constant("ssm_dt.bias", heads, 0.0),
        Constant("ssm_a", heads, _FADING),
        _matrix("ssm_beta", heads, width),
        _matrix("ssm_alpha", heads, width),
        Constant("ssm_norm.weight", _STATE, 1.0),
        _matrix("ssm_out", width, inner),
    ]


def _granite(shape: Shape, attends: bool) -> list[Tensor]:
    width, inner, heads = shape.width, 2 * shape.width, _mamba_heads(shape)
    norms = [Constant(f"{name}_norm.weight", width, 1.0) for name in ("attn", "ffn")]
    common = [*norms, *_forward(shape)]
    if attends:
        return [*common, *_attention(shape, 1)]
    convolved = inner + 2 * _STATE
    return [
        *common,
        _matrix("ssm_in", inner + convolved + heads, width),
        Constant("ssm_conv1d.weight", _CONVOLVED, 0.5, rows=convolved),
        Constant("ssm_conv1d.bias", convolved, 0.0),
        Constant("ssm_dt.bias", heads, 0.0),
        Constant("ssm_a", 1, _FADING, rows=heads),
        Constant("ssm_d", 1, 1.0, rows=heads),
        Constant("ssm_norm.weight", inner, 1.0, rows=1),
        _matrix("ssm_out", width, inner),
    ]


def _head(shape: Shape) -> int:
    return shape.width // shape.heads


def _delta_heads(shape: Shape) -> int:
    return max(1, shape.width // _STATE)


def _mamba_heads(shape: Shape) -> int:
    return 2 * shape.width // 32


def _write_states(writer: GGUFWriter, heads: int, inner: int, groups: int) -> None:
    writer.add_ssm_conv_kernel(_CONVOLVED)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(_STATE)
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_group_count(groups)


def _qwen35_header(writer: GGUFWriter, shape: Shape, its: Hybrid) -> None:
    heads, head = _delta_heads(shape), _head(shape)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_sections([head // 8] * 4)
    writer.add_full_attention_interval(its.attending_every)
    _write_states(writer, heads, heads * _STATE, heads)


def _granite_header(writer: GGUFWriter, shape: Shape, its: Hybrid) -> None:
    kv_heads = [shape.kv_heads * its.attends(layer) for layer in range(shape.layers)]
    writer.add_head_count_kv(kv_heads)
    _write_states(writer, _mamba_heads(shape), 2 * shape.width, 1)


HYBRIDS: Mapping[str, Hybrid] = {
    "qwen35": Hybrid("qwen35", 20, 5120, 4, _qwen35, _qwen35_header),
    "granite": Hybrid("granitehybrid", 20, 4096, 10, _granite, _granite_header),
}
"""By the name that --hybrid takes: 15 layers of 20 with 1.1 MB of state each, and 18 with 2.1."""
