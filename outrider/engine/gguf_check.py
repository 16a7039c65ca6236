"""Checks a GGUF file before llama.cpp reads it: its format, and what llama.cpp would abort on.

llama.cpp refuses most damaged files by itself, but some end the process: a
token listed twice, heads that do not divide, a type it cannot compute with.
Those are refused here, and what it would refuse is said in plainer words.
Only the header is read, never the weights.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from outrider.errors import InvalidConfig

Scalar: TypeAlias = bool | int | float | bytes
Value: TypeAlias = Scalar | Sequence[Scalar]

_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {
    **{0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i"},
    **{6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"},
}
_LEAST_PAIR = 8 + 1 + 4 + 1  # bytes of the shortest key and value
_LEAST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8
_MOST_STRINGS = 1 << 24
_MOST_NUMBERS = 1 << 24
_NAME_BYTES = 63
_MOST_LAYERS = 512
_MOST_EXPERTS = 1024
_MAP_ALIGNMENT = 32  # of ggml's CPU buffers over a mapped file

_TYPES = {  # number: (name, values of a block, bytes of a block)
    **{0: ("f32", 1, 4), 1: ("f16", 1, 2), 30: ("bf16", 1, 2), 26: ("i32", 1, 4)},
    **{2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20), 6: ("q5_0", 32, 22), 7: ("q5_1", 32, 24)},
    **{8: ("q8_0", 32, 34), 20: ("iq4_nl", 32, 18), 39: ("mxfp4", 32, 17), 40: ("nvfp4", 64, 36)},
    **{41: ("q1_0", 128, 18), 42: ("q2_0", 64, 18), 10: ("q2_K", 256, 84), 11: ("q3_K", 256, 110)},
    **{12: ("q4_K", 256, 144), 13: ("q5_K", 256, 176), 14: ("q6_K", 256, 210)},
    **{16: ("iq2_xxs", 256, 66), 17: ("iq2_xs", 256, 74), 22: ("iq2_s", 256, 82)},
    **{18: ("iq3_xxs", 256, 98), 21: ("iq3_s", 256, 110), 23: ("iq4_xs", 256, 136)},
    **{
        19: ("iq1_s", 256, 50),
        29: ("iq1_m", 256, 56),
        34: ("tq1_0", 256, 54),
        35: ("tq2_0", 256, 66),
    },
}
_ROPE_SCALINGS = (b"none", b"linear", b"yarn", b"longrope")
_EPSILONS = ("layer_norm_rms_epsilon", "layer_norm_epsilon", "group_norm_epsilon")
_EQUAL_HEADS = {  # architectures whose graph asserts that all these sizes of a head are one
    *("llama", "llama4", "mistral3", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "smollm3"),
    *("granite", "olmo2", "olmoe", "starcoder2", "internlm2", "falcon", "deepseek", "seed_oss"),
}
_MOST_HEADS = 1 << 16
_NO_TOKENIZERS = (b"", b"none", b"no_vocab", b"test", b"rwkv")
_SPECIAL_TOKENS = ("bos", "eos", "eot", "eom")  # llama.cpp itself drops other ids out of range
_PART_NAME = re.compile(r"(?P<prefix>.+)-00001-of-(?P<count>\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]
    type: int
    offset: int  # from the start of the data
    size: int


@dataclass(frozen=True, slots=True)
class _Part:
    """The header of one file."""

    values: dict[str, Value]
    types: dict[str, int]
    tensors: dict[str, _Tensor]


class _Refused(Exception):
    """What is wrong with a file, to be said after its name."""


class _Damaged(_Refused):
    """What no tool writes."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"is damaged: {reason}")


@dataclass(frozen=True, slots=True)
class Checked:
    """What is known of a model that was found sound."""

    files: list[Path]
    position_count: int | None
    """Positions that the model has learned; None where it computes them."""


def check_gguf(path: Path) -> Checked:
    """Check a model, of one file or of parts.

    Raises InvalidConfig with one line that says what is wrong.
    """
    first = _read(path)
    others = _other_parts(path, first)
    parts = [_read(part) for part in others]
    try:
        for index, part in enumerate(parts, start=1):
            _check_part(index, part)
        tensors = first.tensors | {k: t for part in parts for k, t in part.tensors.items()}
        _check_model(first, tensors)
    except _Refused as reason:
        raise InvalidConfig("model", f"{path} {reason}") from None
    learned = tensors.get("position_embd.weight")
    return Checked([path, *others], learned.shape[-1] if learned else None)


def _read(path: Path) -> _Part:
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _Refused("is not a file")
            if file.read(4) != b"GGUF":
                raise _Refused("is not a GGUF file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read_part(_Reader(data, position=4))
    except _Refused as refused:
        raise InvalidConfig("model", f"{path} {refused}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidConfig("model", f"cannot read {path}: {reason}") from None


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for whoever writes to a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


class _Reader:
    """Reads forwards, and never past the end."""

    def __init__(self, data: mmap.mmap, position: int) -> None:
        self._data = data
        self.position = position
        self.size = len(data)

    def numbers(self, code: str, count: int = 1) -> tuple[Scalar, ...]:
        """Return `count` values of a struct code."""
        layout = f"<{count}{code}"
        start = self._advance(struct.calcsize(layout))
        return struct.unpack_from(layout, self._data, start)

    def integer(self, code: str) -> int:
        return int(self.numbers(code)[0])

    def string(self) -> bytes:
        length = self.integer("Q")
        start = self._advance(length)
        return self._data[start : start + length]

    def strings(self, count: int) -> list[bytes]:
        """Return what `string` would, `count` times, but quickly: a vocabulary has 150,000."""
        data, size, position = self._data, self.size, self.position
        unpack = struct.Struct("<Q").unpack_from
        found = []
        try:
            for _ in range(count):
                end = position + 8 + unpack(data, position)[0]
                found.append(data[position + 8 : end])
                position = end
        except (struct.error, OverflowError):
            position = size + 1
        if position > size:
            raise _past_end(self.size)
        self.position = position
        return found

    def _advance(self, count: int) -> int:
        start = self.position
        if count > self.size - start:
            raise _past_end(self.size)
        self.position += count
        return start


def _past_end(size: int) -> _Damaged:
    return _Damaged(f"its header does not end within its {size} bytes")


# --- one file ---


def _read_part(reader: _Reader) -> _Part:
    version = reader.integer("I")
    if version & 0xFFFF == 0 and version:
        raise _Refused("is big-endian; llama.cpp wants little-endian files here")
    if version not in _VERSIONS:
        raise _Refused(f"is of GGUF version {version}, not 2 or 3")
    tensor_count, pair_count = reader.integer("Q"), reader.integer("Q")
    if pair_count * _LEAST_PAIR + tensor_count * _LEAST_TENSOR > reader.size:
        raise _Damaged(f"{tensor_count} tensors and {pair_count} keys do not fit its size")
    values: dict[str, Value] = {}
    types: dict[str, int] = {}
    for _ in range(pair_count):
        key = _read_name(reader, "key")
        if key in values:
            raise _Damaged(f"the key {key!r} comes twice")
        types[key] = reader.integer("i")
        values[key] = _read_value(reader, key, types[key])
    alignment = _alignment(values)
    tensors: dict[str, _Tensor] = {}
    for _ in range(tensor_count):
        tensor = _read_tensor(reader)
        if tensor.name in tensors:
            raise _Damaged(f"the tensor {tensor.name!r} comes twice")
        tensors[tensor.name] = tensor
    start = _padded(reader.position, alignment)
    end = _check_layout(tensors, start, alignment)
    if end > reader.size:
        raise _Refused(f"is truncated: {end - reader.size} bytes are missing")
    return _Part(values, types, tensors)


def _read_name(reader: _Reader, kind: str) -> str:
    name = reader.string()
    try:
        text = name.decode()
    except UnicodeDecodeError:
        text = ""
    if not text or not text.isprintable():
        raise _Damaged(f"the name of a {kind} is no text: {name[:40]!r}")
    return text


def _read_value(reader: _Reader, key: str, kind: int) -> Value:
    if kind in _SCALARS:
        return reader.numbers(_SCALARS[kind])[0]
    if kind == _STRING:
        return reader.string()
    if kind != _ARRAY:
        raise _Damaged(f"{key} has the unknown type {kind}")
    element, count = reader.integer("i"), reader.integer("Q")
    if element == _STRING and count <= _MOST_STRINGS:
        return reader.strings(count)
    if element in _SCALARS and count <= _MOST_NUMBERS:
        return reader.numbers(_SCALARS[element], count)
    raise _Damaged(f"{key} is a list of {count} values of type {element}")


def _read_tensor(reader: _Reader) -> _Tensor:
    name = _read_name(reader, "tensor")
    if len(name.encode()) > _NAME_BYTES:
        raise _Damaged(f"the tensor name {name[:80]!r} is longer than {_NAME_BYTES} bytes")
    dimensions = reader.integer("I")
    if not 1 <= dimensions <= 4:
        raise _Damaged(f"{name} has {dimensions} dimensions")
    shape = tuple(int(size) for size in reader.numbers("Q", dimensions))
    number, offset = reader.integer("i"), reader.integer("Q")
    if number not in _TYPES:
        raise _Damaged(f"{name} has the type {number}, which is none of weights")
    type_name, block, block_bytes = _TYPES[number]
    count = math.prod(shape)
    if not 0 < count < 2**63:
        raise _Damaged(f"{name} has the shape {shape}")
    if shape[0] % block:
        raise _Damaged(f"{name} has rows of {shape[0]}, no multiple of a {type_name} block")
    _check_type(name, len(shape), type_name)
    return _Tensor(name, shape, number, offset, count // block * block_bytes)


def _check_type(name: str, dimensions: int, type_name: str) -> None:
    """Refuse what llama.cpp cannot compute with, which it finds out by an abort."""
    added = name.endswith((".bias", "norm.weight"))
    if added and type_name != "f32":
        raise _Damaged(f"{name} is {type_name}, not f32")
    if dimensions == 1 and type_name not in ("f32", "f16", "bf16"):
        raise _Damaged(f"{name} is {type_name}, not floating-point")
    if type_name == "i32" and "tid2eid" not in name:
        raise _Damaged(f"{name} is of whole numbers")


def _alignment(values: dict[str, Value]) -> int:
    alignment = values.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise _Damaged(f"general.alignment is {alignment!r}, no power of two")
    return alignment


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _check_layout(tensors: dict[str, _Tensor], start: int, alignment: int) -> int:
    """Return where the last tensor ends; each must start where the one before it ends."""
    expected = 0
    for tensor in tensors.values():
        if tensor.offset != expected:
            raise _Damaged(f"{tensor.name} is at {tensor.offset} of the data, not at {expected}")
        if (start + tensor.offset) % _MAP_ALIGNMENT:
            raise _Damaged(f"{tensor.name} is at no multiple of {_MAP_ALIGNMENT} bytes")
        end = start + expected + tensor.size
        expected += _padded(tensor.size, alignment)
    return end if tensors else 0


# --- several files ---


def _other_parts(path: Path, first: _Part) -> list[Path]:
    """Return the files that llama.cpp loads besides the first, which carry its name."""
    count = first.values.get("split.count", 0)
    if not isinstance(count, int) or count < 2:
        return []
    name = _PART_NAME.fullmatch(path.name)
    if first.values.get("split.no") != 0 or not name or int(name["count"]) != count:
        ending = f"-00001-of-{count:05}.gguf"
        raise InvalidConfig("model", f"{path} is not the first of {count} parts (NAME{ending})")
    names = (f"{name['prefix']}-{i:05}-of-{count:05}.gguf" for i in range(2, count + 1))
    return [path.with_name(part) for part in names]


def _check_part(index: int, part: _Part) -> None:
    if part.values.get("split.no") != index or part.types["split.no"] != 2:
        raise _Damaged(f"its part {index + 1} says to be another")


# --- what the keys mean ---


class _Keys:
    """The keys of an architecture: read by their names' ends, checked for their ranges."""

    def __init__(self, values: dict[str, Value]) -> None:
        self._values = values
        architecture = values.get("general.architecture")
        if not isinstance(architecture, bytes) or not architecture:
            raise _Damaged("it has no general.architecture")
        self.architecture = architecture.decode("utf-8", "replace")

    def get(self, key: str) -> Value | None:
        """Return the value of a key of this architecture."""
        return self._values.get(f"{self.architecture}.{key}")

    def has_any(self, *groups: str) -> bool:
        """Return whether any key of a group such as `ssm` is there."""
        starts = tuple(f"{self.architecture}.{group}." for group in groups)
        return any(key.startswith(starts) for key in self._values)

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """Return a whole number of a range; required without a default."""
        [number] = {*self.integers(key, 1, low, high, default)}
        return number

    def integers(
        self, key: str, count: int, low: int, high: int, default: int | None = None
    ) -> Sequence[int]:
        """Return `count` whole numbers, given one by one or all at once."""
        value = self.get(key)
        if value is None:
            if default is None:
                raise _Damaged(f"it has no {self.architecture}.{key}")
            return [default] * count
        values = value if isinstance(value, tuple) else (value,) * count
        numbers = [v for v in values if isinstance(v, int) and low <= v <= high]
        if len(numbers) != len(values) or len(numbers) != count:
            raise _Damaged(f"{self.architecture}.{key} is {_shown(value)}")
        return numbers


def _shown(value: Value) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _check_model(first: _Part, tensors: dict[str, _Tensor]) -> None:
    keys = _Keys(first.values)
    if keys.has_any("ssm", "wkv"):
        raise _Refused("cannot be rolled back: it is recurrent, and drafts could not be rejected")
    layers = keys.integer("block_count", 1, _MOST_LAYERS)
    keys.integer("nextn_predict_layers", 0, layers, default=0)
    keys.integer("context_length", 1, 2**31 - 1)
    embedding = keys.integer("embedding_length", 1, 2**31 - 1)
    if keys.get("attention.causal") is False:
        raise _Refused("is no causal model: it does not predict the next token")
    _check_heads(keys, layers, embedding)
    _check_experts(keys, layers)
    _check_numbers(keys)
    token_count = _check_tokens(first.values)
    embedded = tensors.get("token_embd.weight")
    if embedded is None:
        raise _Damaged("it has no tensor token_embd.weight")
    if len(embedded.shape) != 2 or embedded.shape[1] != token_count:
        raise _Damaged(f"token_embd.weight has the shape {embedded.shape} for {token_count} tokens")


def _check_heads(keys: _Keys, layers: int, embedding: int) -> None:
    """Check what attention divides by. Single layers may go without heads."""
    heads = keys.integers("attention.head_count", layers, 0, _MOST_HEADS)
    kv_heads = heads
    if keys.get("attention.head_count_kv") is not None:
        kv_heads = keys.integers("attention.head_count_kv", layers, 0, _MOST_HEADS)
    if not max(heads) or not max(kv_heads):
        raise _Damaged("it has no attention heads")
    for count, kv_count in zip(heads, kv_heads, strict=True):
        if kv_count and count % kv_count:
            raise _Damaged(f"{count} attention heads do not share {kv_count} key-value heads")
    size = embedding // heads[0] if heads[0] else 1
    key = keys.integer("attention.key_length", 1, 2**16, default=size)
    value = keys.integer("attention.value_length", 1, 2**16, default=size)
    rotated = keys.integer("rope.dimension_count", 0, 2**16, default=key)
    if keys.architecture in _EQUAL_HEADS and not key == value == rotated:
        raise _Damaged(
            f"its heads have {key} keys, {value} values, {rotated} rotated: not one size"
        )


def _check_experts(keys: _Keys, layers: int) -> None:
    """Check what llama.cpp asserts of a mixture of experts."""
    count = keys.integer("expert_count", 0, _MOST_EXPERTS, default=0)
    used = max(keys.integers("expert_used_count", layers, 0, _MOST_EXPERTS, default=0))
    groups = keys.integer("expert_group_count", 0, _MOST_EXPERTS, default=0)
    used_groups = keys.integer("expert_group_used_count", 0, _MOST_EXPERTS, default=0)
    if keys.architecture.startswith("hunyuan") and count <= 1:
        return  # llama.cpp takes it for a dense model
    sound = used == groups == 0 if count == 0 else 0 < used <= count and groups < count
    if sound and count and groups > 1:
        sound = count % groups == 0 and 0 < used_groups < groups
    if not sound:
        raise _Damaged(f"{used} of {count} experts in {used_groups} of {groups} groups")


def _check_numbers(keys: _Keys) -> None:
    scaling = keys.get("rope.scaling.type")
    if scaling is not None and scaling not in _ROPE_SCALINGS:
        raise _Damaged(f"{keys.architecture}.rope.scaling.type is {_shown(scaling)}")
    for name in _EPSILONS:
        epsilon = keys.get(f"attention.{name}")
        if isinstance(epsilon, float) and not 0.0 <= epsilon < math.inf:
            raise _Damaged(f"{keys.architecture}.attention.{name} is {epsilon}")


def _check_tokens(values: dict[str, Value]) -> int:
    """Return the number of tokens."""
    tokens = values.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise _Damaged("it has no list of tokens")
    # In C a text ends at a zero byte. llama.cpp names empty ones so, and wants every name once.
    texts = (token.partition(b"\0")[0] for token in tokens)
    names = {text or b"[EMPTY_%d]" % i for i, text in enumerate(texts)}
    if len(names) != len(tokens):
        raise _Damaged(f"{len(tokens) - len(names)} of its tokens come twice")
    for name in ("scores", "token_type"):
        given = values.get(f"tokenizer.ggml.{name}")
        if given is not None and (not isinstance(given, tuple) or len(given) < len(tokens)):
            raise _Damaged(f"tokenizer.ggml.{name} is not one for each of {len(tokens)} tokens")
    for name in _SPECIAL_TOKENS:
        token_id = values.get(f"tokenizer.ggml.{name}_token_id", 0)
        if not isinstance(token_id, int) or not 0 <= token_id < len(tokens):
            raise _Damaged(f"its {name} token {token_id!r} is none of {len(tokens)}")
    model = values.get("tokenizer.ggml.model")
    if not isinstance(model, bytes) or model in _NO_TOKENIZERS:
        raise _Damaged("it has no tokenizer")
    if model.partition(b"\0")[0] == b"llama":
        missing = [b for b in range(256) if not {b"<0x%02X>" % b, bytes([b])} & names]
        if missing:
            raise _Damaged(f"{len(missing)} bytes have no token")
    return len(tokens)
