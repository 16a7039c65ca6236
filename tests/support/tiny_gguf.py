"""Writes GGUF files with random weights and a real tokenizer, for llama.cpp."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, RopeScalingType, TokenType, quants
from gguf.vocab import bytes_to_unicode
from numpy.typing import NDArray

Weights = dict[str, NDArray[np.float32]]

_FILE_TYPES = {
    GGMLQuantizationType.F32: LlamaFileType.ALL_F32,
    GGMLQuantizationType.F16: LlamaFileType.MOSTLY_F16,
    GGMLQuantizationType.Q8_0: LlamaFileType.MOSTLY_Q8_0,
}

_CONTROL = ("<s>", "</s>", "<pad>")
_MERGE_COUNT = 61  # 3 control tokens, 256 bytes and these are 320, a multiple of 32

_SAMPLE = """
An outrider rides ahead of the carriage to see whether the road is clear. Here a small draft model
rides ahead of a large target model: it proposes tokens, the target checks many of them in one pass,
and what comes out is exactly what the target alone would have written, only sooner.
def read(path): return open(path).read()
for line in lines: print(line)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The size of a model; every width is a multiple of 32, the blocks of Q8_0."""

    embedding: int = 64
    layers: int = 4
    heads: int = 2
    kv_heads: int = 1
    feed_forward: int = 128
    context: int = 512
    short_context: int = 0  # up to it llama.cpp takes the short rotary factors, above the long ones
    long_factor: float = 8.0  # every long rotary factor; the short ones are 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What the tokenizer keys of a file say; the defaults are a bundled pair's."""

    tail_count: int = 0  # tokens `tail0`, `tail1` ... at the end that no text is tokenized to
    changed: Mapping[int, str] = field(default_factory=dict)  # other stored texts, by id
    bos: int = 0
    eos: int = 1
    pad: int = 2
    adds_bos: bool = True
    adds_eos: bool = False
    pre_tokenizer: str = "gpt-2"
    sample: str = _SAMPLE  # that the merges are learned from

    @property
    def names(self) -> list[str]:
        """The text each token is stored under, in GPT-2's alphabet for bytes."""
        known = [*_CONTROL, *bytes_to_unicode().values(), *map("".join, merges(self.sample))]
        tail = [f"tail{index}" for index in range(self.tail_count)]
        return [self.changed.get(index, name) for index, name in enumerate(known + tail)]

    @property
    def token_types(self) -> list[TokenType]:
        """Whether each token is a control token or text."""
        text_count = len(self.names) - len(_CONTROL)
        return [TokenType.CONTROL] * len(_CONTROL) + [TokenType.NORMAL] * text_count


def write_model(
    path: Path,
    *,
    shape: Shape | None = None,
    vocabulary: Vocabulary | None = None,
    weight_type: GGMLQuantizationType = GGMLQuantizationType.Q8_0,
    seed: int = 1,
) -> Path:
    """Write one model; the same arguments give the same bytes."""
    shape, vocabulary = shape or Shape(), vocabulary or Vocabulary()
    weights = random_weights(shape, len(vocabulary.names), seed)
    _write(path, shape, vocabulary, weights, weight_type)
    return path


def write_pair(
    folder: Path,
    *,
    shape: Shape | None = None,
    draft_layers: int = 2,
    residual: float = 0.15,
    vocabulary: Vocabulary | None = None,
    draft_vocabulary: Vocabulary | None = None,
    weight_type: GGMLQuantizationType = GGMLQuantizationType.Q8_0,
    seed: int = 1,
) -> tuple[Path, Path]:
    """Write target.gguf and draft.gguf; the draft is the target's first layers.

    The target's other layers add `residual` times what they would; 0 makes
    the two models agree everywhere.
    """
    shape, vocabulary = shape or Shape(), vocabulary or Vocabulary()
    draft_shape = replace(shape, layers=draft_layers)
    draft_vocabulary = draft_vocabulary or vocabulary
    weights = random_weights(shape, len(vocabulary.names), seed)
    draft_weights = random_weights(draft_shape, len(draft_vocabulary.names), seed)
    _quieten(weights, range(draft_layers, shape.layers), residual)
    target, draft = folder / "target.gguf", folder / "draft.gguf"
    _write(target, shape, vocabulary, weights, weight_type)
    _write(draft, draft_shape, draft_vocabulary, draft_weights, weight_type)
    return target, draft


def random_weights(shape: Shape, token_count: int, seed: int) -> Weights:
    """Return the tensors of a model, float32[out, in].

    A layer's weights depend on the seed and its number only, and a token's on
    the seed and its id, so that models of one seed share what they both have.
    """
    weights = {"token_embd.weight": _embedding(shape, token_count, seed)}
    for layer in range(shape.layers):
        weights |= _layer(shape, layer, seed)
    # Logits of standard deviation 3: a sharp distribution, but no certain one.
    scale = 3.0 / np.sqrt(shape.embedding)
    weights["output_norm.weight"] = np.full(shape.embedding, scale, np.float32)
    if shape.short_context:
        ones = np.ones(shape.embedding // shape.heads // 2, np.float32)
        weights["rope_factors_short.weight"] = ones
        weights["rope_factors_long.weight"] = ones * np.float32(shape.long_factor)
    return weights


def _embedding(shape: Shape, token_count: int, seed: int) -> NDArray[np.float32]:
    random = np.random.default_rng((seed, 0))
    embedding = random.standard_normal((token_count, shape.embedding), np.float32)
    # The output is tied to this; control tokens of small logits are hardly ever written.
    embedding[: len(_CONTROL)] *= 0.1
    return embedding


def _layer(shape: Shape, layer: int, seed: int) -> Weights:
    """Return one layer, loud enough that a token does not just predict itself.

    With these gains a greedy text uses a hundred tokens and every ninth repeats
    the one before; with gains of 1 it soon repeats a single token.
    """
    random = np.random.default_rng((seed, 1, layer))
    width, kv_width = shape.embedding, shape.embedding // shape.heads * shape.kv_heads
    sizes = {
        "attn_q": (width, width, 2.0),
        "attn_k": (kv_width, width, 2.0),
        "attn_v": (kv_width, width, 2.0),
        "attn_output": (width, width, 4.0),
        "ffn_gate": (shape.feed_forward, width, 1.0),
        "ffn_up": (shape.feed_forward, width, 1.0),
        "ffn_down": (width, shape.feed_forward, 6.0),
    }
    weights: Weights = {
        f"blk.{layer}.{name}.weight": _matrix(random, *size) for name, size in sizes.items()
    }
    for name in ("attn_norm", "ffn_norm"):
        weights[f"blk.{layer}.{name}.weight"] = np.ones(width, np.float32)
    return weights


def _matrix(
    random: np.random.Generator, outputs: int, inputs: int, gain: float
) -> NDArray[np.float32]:
    deviation = np.float32(gain / np.sqrt(inputs))
    return random.standard_normal((outputs, inputs), np.float32) * deviation


def _quieten(weights: Weights, layers: Iterable[int], residual: float) -> None:
    for layer, name in itertools.product(layers, ("attn_output", "ffn_down")):
        weights[f"blk.{layer}.{name}.weight"] *= np.float32(residual)


def _write(
    path: Path,
    shape: Shape,
    vocabulary: Vocabulary,
    weights: Weights,
    weight_type: GGMLQuantizationType,
) -> None:
    writer = GGUFWriter(path, "llama")
    writer.add_name(path.stem)
    writer.add_file_type(_FILE_TYPES[weight_type])
    _add_shape(writer, shape)
    _add_tokenizer(writer, vocabulary)
    for name, tensor in weights.items():
        _add_tensor(writer, name, tensor, weight_type)
    _finish(writer)


def _finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: GGUFWriter, shape: Shape) -> None:
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.embedding)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.embedding // shape.heads)
    writer.add_rope_freq_base(10000.0)
    if shape.short_context:
        writer.add_rope_scaling_type(RopeScalingType.LONGROPE)
        writer.add_rope_scaling_orig_ctx_len(shape.short_context)


def _add_tokenizer(writer: GGUFWriter, vocabulary: Vocabulary) -> None:
    names = vocabulary.names
    writer.add_vocab_size(len(names))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary.pre_tokenizer)
    writer.add_token_list(names)
    writer.add_token_types(vocabulary.token_types)
    writer.add_token_merges([" ".join(pair) for pair in merges(vocabulary.sample)])
    writer.add_bos_token_id(vocabulary.bos)
    writer.add_eos_token_id(vocabulary.eos)
    writer.add_pad_token_id(vocabulary.pad)
    writer.add_add_bos_token(vocabulary.adds_bos)
    writer.add_add_eos_token(vocabulary.adds_eos)


def _add_tensor(
    writer: GGUFWriter, name: str, tensor: NDArray[np.float32], weight_type: GGMLQuantizationType
) -> None:
    kind = weight_type if tensor.ndim > 1 else GGMLQuantizationType.F32
    writer.add_tensor(name, quants.quantize(tensor, kind), raw_dtype=kind)


@lru_cache(8)
def merges(sample: str = _SAMPLE, count: int = _MERGE_COUNT) -> tuple[tuple[str, str], ...]:
    """Return the merges of byte pairs learned from a sample, most frequent first."""
    alphabet = bytes_to_unicode()
    words = Counter(re.findall(r" ?[A-Za-z]+| ?[^\sA-Za-z]+|\s+", sample))
    spelled = {tuple(alphabet[byte] for byte in word.encode()): n for word, n in words.items()}
    return tuple(itertools.islice(_learned(spelled), count))


def _learned(words: Mapping[tuple[str, ...], int]) -> Iterator[tuple[str, str]]:
    while True:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += count
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        yield best
        words = {_merged(word, best): count for word, count in words.items()}


def _merged(word: Sequence[str], pair: tuple[str, str]) -> tuple[str, ...]:
    parts: list[str] = []
    for part in word:
        if parts and (parts[-1], part) == pair:
            parts[-1] += part
        else:
            parts.append(part)
    return tuple(parts)
