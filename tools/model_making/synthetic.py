"""Writes pairs of synthetic models for benchmarks: the size and cost of real ones, random weights.

    python -m model_making.synthetic --shape 1.1b --acceptance 0.65 --draft-length 3 \\
        --tokenizer models/stdlib-target-q8_0.gguf --out DIR

The draft is the target's first layers with the same embeddings and head. The
target's other layers cost what they always cost but add only little: as much
as lets the two models agree as often as asked. What they write is noise; its
timing and its acceptance are those of real models.
"""

from __future__ import annotations

import argparse
import itertools
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
from gguf import (
    GGMLQuantizationType,
    GGUFReader,
    GGUFValueType,
    GGUFWriter,
    LlamaFileType,
    TokenType,
)
from numpy.typing import NDArray

from model_making.agreement import (
    TEXTS,
    Text,
    acceptance,
    agreement,
    load,
    longest_repeat,
    write_texts,
)
from outrider.sampling import GREEDY, SamplingParameters

Q4_0, Q8_0, F32 = GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q8_0, GGMLQuantizationType.F32

SAMPLING = SamplingParameters(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)
"""What the figures above temperature 0 are measured at."""

TRIALS = (16, 48, 128)  # tokens of each text, at each guess of the residual
WRITTEN, SAMPLED = 256, 64  # tokens of each text for the final figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The size of a llama-architecture model. Widths are multiples of 32, the block of Q4_0."""

    name: str
    width: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocabulary: int
    context: int = 2048
    head_type: GGMLQuantizationType = Q4_0  # of the embeddings too
    tied: bool = False  # the head is the embeddings

    @property
    def kv_width(self) -> int:
        """The width of a layer's keys, and of its values."""
        return self.width // self.heads * self.kv_heads


_TINYLLAMA = Shape(
    name="1.1b",
    width=2048,
    layers=22,
    heads=32,
    kv_heads=4,
    feed_forward=5632,
    vocabulary=32000,
)
_LIKE_QWEN_2_5_0_5B = Shape(
    name="152k",
    width=896,
    layers=24,
    heads=14,
    kv_heads=2,
    feed_forward=4864,
    vocabulary=151936,
    head_type=Q8_0,
    tied=True,
)
_FOR_TESTS = Shape(
    name="tiny",
    width=64,
    layers=4,
    heads=2,
    kv_heads=1,
    feed_forward=128,
    vocabulary=4096,
)
SHAPES = {shape.name: shape for shape in (_TINYLLAMA, _LIKE_QWEN_2_5_0_5B, _FOR_TESTS)}


@dataclass(frozen=True, slots=True)
class Agreement:
    """Asks for the share of a greedy text's positions where both models say the same."""

    share: float

    def of(self, texts: Sequence[Text]) -> float:
        """Return the share that texts have."""
        return agreement(texts)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Asks for accepted / drafted tokens of serial rounds along greedy text."""

    share: float
    draft_length: int = 3

    def of(self, texts: Sequence[Text]) -> float:
        """Return the share that texts have."""
        return acceptance(texts, self.draft_length)


Goal: TypeAlias = Agreement | Acceptance


@dataclass(frozen=True, slots=True)
class Pair:
    """Two files, and what the target's later layers add, relative to what the draft's add."""

    target: Path
    draft: Path
    residual: float


def make_pair(
    shape: Shape,
    goal: Goal,
    tokenizer: Path,
    out: Path,
    seed: int = 1,
    draft_layers: int = 1,
    threads: int = 1,
) -> Pair:
    """Write a pair that agrees as asked, measured in llama.cpp, into the folder `out`.

    The weights follow from the seed. So does the residual on one machine;
    another computes slightly other texts and may find a slightly other one.
    """
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out) as folder:
        trial = write_pair(shape, 1.0, tokenizer, Path(folder), seed, draft_layers)

        def measure(residual: float, count: int) -> float:
            set_residual(trial.target, shape, draft_layers, residual)
            share = goal.of(
                write_texts(trial.target, trial.draft, [seed, 0], count, GREEDY, threads)
            )
            print(f"residual {residual:.4f}: {share:.3f}, {TEXTS * count} tokens", flush=True)
            return share

        residual = tune(measure, goal.share)
        set_residual(trial.target, shape, draft_layers, residual)
        target, draft = (path.replace(out / path.name) for path in (trial.target, trial.draft))
    return Pair(target, draft, residual)


def tune(measure: Callable[[float, int], float], asked: float) -> float:
    """Return the residual at which `measure(residual, count)` is `asked`, in (0, 1].

    The odds of a disagreement grow about as residual**1.3, so each trial says
    by how much it missed. Later trials write more and only correct.
    """
    asked_odds = 1.0 / asked - 1.0
    residual = 0.3 * math.pow(asked_odds, 1.0 / 1.3)
    for count in TRIALS if residual else ():
        odds = 1.0 / min(max(measure(residual, count), 0.001), 0.999) - 1.0
        residual *= math.pow(asked_odds / odds, 1.0 / 1.3)
    return round(residual, 4)


def write_pair(
    shape: Shape,
    residual: float,
    tokenizer: Path,
    out: Path,
    seed: int = 1,
    draft_layers: int = 1,
) -> Pair:
    """Write a pair of a known residual; at 0 it always agrees. Equal arguments give equal bytes."""
    if not 0 < draft_layers < shape.layers:
        raise SystemExit(
            f"synthetic: {shape.name} has {shape.layers} layers, the draft needs fewer"
        )
    keys = enlarged(read_tokenizer(tokenizer), shape.vocabulary)
    out.mkdir(parents=True, exist_ok=True)
    pair = Pair(out / f"{shape.name}-target.gguf", out / f"{shape.name}-draft.gguf", residual)
    write_model(pair.target, shape, keys, seed)
    write_model(pair.draft, replace(shape, layers=draft_layers), keys, seed)
    set_residual(pair.target, shape, draft_layers, residual)
    return pair


# --- weights ---

SHARPNESS = 0.95
"""The temperature below which a few tokens hold all the probability.

The distribution at temperature T depends on T / SHARPNESS only, whatever the
vocabulary: with random logits this is their deviation / sqrt(2 ln vocabulary)
(the random energy model). At 0.8 the most probable token has 0.5 on average.
"""

ATTENTION_SPREAD = 3.0
"""The deviation of a head's attention logits: it looks at a few of hundreds of tokens.

So the next token follows from the whole history, and greedy text does not loop.
"""

_MIX_RMS = 0.7  # of a mix of a few values that are 1 each
_GATED_RMS = 0.6  # of silu(a) * b, normal a and b


@dataclass(frozen=True, slots=True)
class Matrix:
    """A tensor of random weights: `rows` outputs of `columns` inputs each."""

    name: str
    rows: int
    columns: int
    deviation: float
    type: GGMLQuantizationType = Q4_0
    quiet_rows: tuple[int, ...] = ()  # of a tenth of the deviation

    @property
    def size(self) -> int:
        """The bytes in a file."""
        return self.rows * self.columns // 32 * _ENCODINGS[self.type].block.itemsize


@dataclass(frozen=True, slots=True)
class Constant:
    """A norm, or another tensor in F32, whose weights are all `value`."""

    name: str
    columns: int
    value: float
    rows: int = 0  # 0: it is a vector

    @property
    def size(self) -> int:
        """The bytes in a file."""
        return 4 * max(1, self.rows) * self.columns

    @property
    def sizes(self) -> tuple[int, ...]:
        """What numpy calls its shape."""
        return (self.rows, self.columns) if self.rows else (self.columns,)


Tensor: TypeAlias = Matrix | Constant


def llama_layer(shape: Shape, layer: int) -> list[Tensor]:
    """Return the tensors of a layer, by their full names."""
    width, wide, kv_width = shape.width, shape.feed_forward, shape.kv_width
    unit = 1.0 / math.sqrt(width)
    look = unit * math.sqrt(ATTENTION_SPREAD)
    matrices = (
        Matrix("attn_q", width, width, look),
        Matrix("attn_k", kv_width, width, look),
        Matrix("attn_v", kv_width, width, unit),
        Matrix("attn_output", width, width, unit / _MIX_RMS),
        Matrix("ffn_gate", wide, width, unit),
        Matrix("ffn_up", wide, width, unit),
        Matrix("ffn_down", width, wide, 1.0 / math.sqrt(wide) / _GATED_RMS),
    )
    norms = (Constant("attn_norm", width, 1.0), Constant("ffn_norm", width, 1.0))
    return [
        replace(tensor, name=f"blk.{layer}.{tensor.name}.weight") for tensor in norms + matrices
    ]


def tensors(
    shape: Shape,
    quiet_tokens: tuple[int, ...],
    of_layer: Callable[[Shape, int], list[Tensor]] = llama_layer,
) -> list[Tensor]:
    """Return a model's tensors. What the layers add is loud, so a token does not predict itself."""
    unit = 1.0 / math.sqrt(shape.width)
    words = Matrix(
        "token_embd.weight", shape.vocabulary, shape.width, unit, shape.head_type, quiet_tokens
    )
    logits = SHARPNESS * math.sqrt(2.0 * math.log(shape.vocabulary))
    return [
        words,
        *(tensor for layer in range(shape.layers) for tensor in of_layer(shape, layer)),
        Constant("output_norm.weight", shape.width, logits),
        *([] if shape.tied else [replace(words, name="output.weight")]),
    ]


@dataclass(frozen=True, slots=True)
class _Encoding:
    """How a block of 32 weights is stored: a scale, and whole numbers that are random here."""

    block: np.dtype[Any]
    values: NDArray[np.uint8]  # uint8[256]: what to store for a random byte
    deviation: float  # of the weights at a scale of 1


def _encoding(value_bytes: int, values: Sequence[int], deviation: float) -> _Encoding:
    block = np.dtype([("scale", "<f2"), ("values", "u1", value_bytes)])
    return _Encoding(block, np.array(values, np.uint8), deviation)


# Each has one value more below 0 than above; it becomes a second 0, and so the mean is 0.
_NIBBLES = [8, *range(1, 16)]  # n stands for n - 8
_ENCODINGS = {
    Q4_0: _encoding(16, [low | high << 4 for high in _NIBBLES for low in _NIBBLES], 17.5**0.5),
    Q8_0: _encoding(32, [*range(128), 0, *range(129, 256)], 5397.5**0.5),
}


def stored(tensor: Tensor, seed: int) -> NDArray[Any]:
    """Return a tensor as it stands in a file, which follows from the seed and the tensor alone."""
    if isinstance(tensor, Constant):
        return np.full(tensor.sizes, tensor.value, np.float32)
    encoding = _ENCODINGS[tensor.type]
    blocks = np.empty((tensor.rows, tensor.columns // 32), encoding.block)
    random = np.random.default_rng([seed, zlib.crc32(tensor.name.encode())])
    drawn = np.frombuffer(random.bytes(blocks["values"].size), np.uint8)
    blocks["values"] = encoding.values[drawn].reshape(blocks["values"].shape)
    blocks["scale"] = tensor.deviation / encoding.deviation
    blocks["scale"][list(tensor.quiet_rows)] *= np.float16(0.1)
    return blocks


# --- the tokenizer ---


@dataclass(frozen=True, slots=True)
class Key:
    """The value of a key of a GGUF file. Texts are bytes, which need not be UTF-8."""

    value: Any
    type: GGUFValueType
    element_type: GGUFValueType | None


Keys: TypeAlias = Mapping[str, Key]

TOKENS, SCORES, TYPES = (f"tokenizer.ggml.{name}" for name in ("tokens", "scores", "token_type"))


def read_tokenizer(path: Path) -> Keys:
    """Return the tokenizer's keys of a GGUF file."""
    fields = GGUFReader(path).fields.values()
    keys = {field.name: _key(field) for field in fields if field.name.startswith("tokenizer.")}
    if TOKENS not in keys:
        raise SystemExit(f"synthetic: {path} has no tokenizer")
    return keys


def _key(field: Any) -> Key:
    kind, *elements = field.types
    element_type = elements[-1] if elements else None
    if GGUFValueType.STRING not in field.types:
        return Key(field.contents(), kind, element_type)
    texts = [field.parts[index].tobytes() for index in field.data]
    return Key(texts if elements else texts[0], kind, element_type)


def enlarged(keys: Keys, size: int) -> Keys:
    """Return a tokenizer of `size` tokens: those it has, then `<4096>`, `<4097>` and so on.

    No text is tokenized to the new ones, but models write them. They count as
    ordinary text, since llama.cpp shows nothing for tokens of type UNUSED.
    """
    names = keys[TOKENS].value
    missing = size - len(names)
    if missing < 0:
        raise SystemExit(f"synthetic: the tokenizer has {len(names)} tokens, the shape {size}")
    known = set(names)
    new = (b"<%d>" % number for number in itertools.count(len(names)))
    more: dict[str, list[Any]] = {
        TOKENS: list(itertools.islice((name for name in new if name not in known), missing)),
        SCORES: [-1e6] * missing,
        TYPES: [TokenType.NORMAL.value] * missing,
    }
    return {
        name: replace(key, value=key.value + more[name]) if name in more else key
        for name, key in keys.items()
    }


def quiet_tokens(keys: Keys) -> tuple[int, ...]:
    """Return the ids that no text should have: control tokens, and all that have a name."""
    types = keys[TYPES].value if TYPES in keys else []
    control = {i for i, kind in enumerate(types) if kind in (TokenType.CONTROL, TokenType.UNKNOWN)}
    named = {key.value for name, key in keys.items() if name.endswith("_token_id")}
    return tuple(sorted(i for i in control | named if i < len(keys[TOKENS].value)))


# --- files ---


def write_model(path: Path, shape: Shape, keys: Keys, seed: int) -> None:
    """Write a model; its tokenizer has as many tokens as the shape. Holds one tensor at a time."""
    planned = tensors(shape, quiet_tokens(keys))
    write_tensors(path, shape, keys, planned, lambda tensor: stored(tensor, seed))


def _write_llama_header(writer: GGUFWriter, shape: Shape) -> None:
    writer.add_head_count_kv(shape.kv_heads)


def write_tensors(
    path: Path,
    shape: Shape,
    keys: Keys,
    planned: Sequence[Tensor],
    weights: Callable[[Tensor], NDArray[Any]],
    architecture: str = "llama",
    write_header: Callable[[GGUFWriter, Shape], None] = _write_llama_header,
) -> None:
    """Write a model of tensors, each with the weights that it is given when its turn comes."""
    writer = GGUFWriter(path, architecture)
    writer.add_name(f"synthetic {path.stem}")
    writer.add_file_type(LlamaFileType.MOSTLY_Q4_0)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    write_header(writer, shape)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(shape.vocabulary)
    for name, key in keys.items():
        writer.add_key_value(name, key.value, key.type, key.element_type)
    for tensor in planned:
        _announce(writer, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in planned:
        writer.write_tensor_data(weights(tensor))
    writer.close()


def _announce(writer: GGUFWriter, tensor: Tensor) -> None:
    if isinstance(tensor, Constant):
        sizes, kind = tensor.sizes, F32
    else:
        sizes, kind = (tensor.rows, tensor.columns), tensor.type
    writer.add_tensor_info(tensor.name, sizes, np.dtype(np.float32), tensor.size, kind)


def set_residual(path: Path, shape: Shape, draft_layers: int, residual: float) -> None:
    """Set in a target's file what its layers after the draft's add, all of them together.

    Only the scales of the two matrices that add are written.
    """
    later = range(draft_layers, shape.layers)
    share = residual * math.sqrt(draft_layers / len(later))
    adding = {f"blk.{i}.{name}.weight" for i in later for name in ("attn_output", "ffn_down")}
    planned = tensors(shape, ())
    # The file ends with the tensors; their sizes are multiples of its alignment.
    offset = path.stat().st_size - sum(tensor.size for tensor in planned)
    for tensor in planned:
        if isinstance(tensor, Matrix) and tensor.name in adding:
            encoding = _ENCODINGS[tensor.type]
            count = tensor.size // encoding.block.itemsize
            blocks = np.memmap(path, encoding.block, "r+", offset, (count,))
            blocks["scale"] = share * tensor.deviation / encoding.deviation
        offset += tensor.size


# --- the command ---


def report(pair: Pair, seed: int, draft_length: int, threads: int) -> None:
    """Print a pair's sizes and its figures on texts that were not used to make it."""
    for role, path in (("target", pair.target), ("draft", pair.draft)):
        with closing(load(path, 32, threads)) as model:
            million = model.describe().parameter_count / 1e6
        print(
            f"{role}: {path}, {million:.1f} million parameters, {path.stat().st_size / 1e6:.1f} MB"
        )
    greedy = write_texts(pair.target, pair.draft, [seed, 1], WRITTEN, GREEDY, threads)
    sampled = write_texts(pair.target, pair.draft, [seed, 2], SAMPLED, SAMPLING, threads)
    flat = [position for text in sampled for position in text]
    rounds = f"accepted/drafted at length {draft_length}"
    print(f"residual {pair.residual:.4f}")
    print(f"greedy, {TEXTS} texts of {WRITTEN} tokens:")
    print(f"  agreement {agreement(greedy):.3f}, {rounds} {acceptance(greedy, draft_length):.3f}")
    repeats = [longest_repeat([position.token_id for position in text]) for text in greedy]
    print(f"  longest repeat: {max(repeats)} tokens, {np.median(repeats):.0f} in the median text")
    print(f"temperature 0.8, top-k 40, top-p 0.95, min-p 0.05, {TEXTS} texts of {SAMPLED} tokens:")
    print(
        f"  shared noise: agreement {agreement(sampled):.3f}, "
        f"{rounds} {acceptance(sampled, draft_length):.3f}"
    )
    match = np.mean([position.token_id == position.draft_best for position in flat])
    print(f"  the draft's most probable token matches: {match:.3f}")
    print(f"  the target's most probable token has {np.mean([p.top for p in flat]):.3f}")


def main() -> None:
    """Write a pair and print what it is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, required=True)
    goal = parser.add_mutually_exclusive_group(required=True)
    goal.add_argument("--agreement", type=_share, help="of greedy texts, per position")
    goal.add_argument("--acceptance", type=_share, help="accepted/drafted at --draft-length")
    goal.add_argument("--residual", type=float, help="as an earlier run found it: nothing is tried")
    parser.add_argument("--draft-length", type=int, default=3)
    parser.add_argument("--tokenizer", type=Path, required=True, help="any GGUF file")
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--draft-layers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    files = options.tokenizer, options.out, options.seed, options.draft_layers
    if options.residual is not None:
        pair = write_pair(shape, options.residual, *files)
    elif options.agreement is not None:
        pair = make_pair(shape, Agreement(options.agreement), *files, options.threads)
    else:
        asked = Acceptance(options.acceptance, options.draft_length)
        pair = make_pair(shape, asked, *files, options.threads)
    report(pair, options.seed, options.draft_length, options.threads)


def _share(text: str) -> float:
    share = float(text)
    if not 0.0 < share <= 1.0:
        raise argparse.ArgumentTypeError("must be above 0 and at most 1")
    return share


if __name__ == "__main__":
    main()
