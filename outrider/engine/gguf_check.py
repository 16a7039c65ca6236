"""Checks the header of a GGUF file before llama.cpp reads it.

llama.cpp answers most damage with an error of its own. Refused here is what it would end the
process for (a token listed twice, experts that do not add up), and the common mistakes, in
plainer words: another kind of file, a download that was cut off, a part of a split model.
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

from outrider.engine.heads import Head, find_head
from outrider.errors import InvalidConfig

Scalar: TypeAlias = bool | int | float | bytes
Value: TypeAlias = Scalar | Sequence[Scalar]

_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {
    **{0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i"},
    **{6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"},
}
_OTHER_FILES = {
    b"version https://git-lfs": "is a Git LFS pointer; fetch the file itself with git lfs pull",
    b"<": "is a web page",
    b"PK": "is a zip archive, perhaps of PyTorch weights; convert it to GGUF",
}
_MOST_LAYERS = 512
_MOST_EXPERTS = 1024
_MOST_HEADS = 1 << 16
_MAP_ALIGNMENT = 32  # of ggml's CPU buffers over a mapped file

_F32, _I32, _I64 = 0, 26, 27
_BLOCKS = {  # values and bytes of a block, by the number of a tensor's type
    **{_F32: (1, 4), 1: (1, 2), 30: (1, 2), _I32: (1, 4), _I64: (1, 8)},
    **{2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 20: (32, 18)},
    **{39: (32, 17), 40: (64, 36), 41: (128, 18), 42: (64, 18)},
    **{10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210)},
    **{16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 21: (256, 110)},
    **{22: (256, 82), 23: (256, 136), 29: (256, 56), 34: (256, 54), 35: (256, 66)},
}
_ROPE_SCALINGS = (b"none", b"linear", b"yarn", b"longrope")
_EPSILONS = ("layer_norm_rms_epsilon", "layer_norm_epsilon", "group_norm_epsilon")
_EQUAL_HEADS = {  # architectures whose graph asserts that all these sizes of a head are one
    *("llama", "llama4", "mistral3", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "smollm3"),
    *("granite", "olmo2", "olmoe", "starcoder2", "internlm2", "falcon", "deepseek", "seed_oss"),
}
_COMPRESSED = ("deepseek2", "deepseek32", "glm-dsa")  # all heads share compressed keys
_MOST_STATE = 1 << 20
_TWICE_AS_WIDE = ("mamba", "jamba", "granitehybrid")
_DELTA_NETS = ("qwen3next", "qwen35", "qwen35moe", "qwen4exp")
_NO_TOKENIZERS = (b"", b"none", b"no_vocab", b"test", b"rwkv")
_SPECIAL_TOKENS = ("bos", "eos", "eot", "eom")  # llama.cpp takes another for one out of range
_DRAFT_TO_TARGET = "d2t"  # the target's ids of a head's, which are whole numbers
_PART_NAME = re.compile(r"(?P<prefix>.+)-00001-of-(?P<count>\d{5})\.gguf", re.DOTALL)


class _Refused(Exception):
    """What is wrong with a file, to be said after its name."""


class _Damaged(_Refused):
    """What no tool writes."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"is damaged: {reason}")


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]
    offset: int  # from the start of the data
    size: int  # in bytes


@dataclass(frozen=True, slots=True)
class _Header:
    values: dict[str, Value]
    tensors: dict[str, _Tensor]


@dataclass(frozen=True, slots=True)
class Checked:
    """What is known of a model that was found sound."""

    files: list[Path]
    tensor_bytes: dict[str, int]
    """By the tensors' names."""
    position_count: int | None
    """Positions that the model has learned; None where it computes them."""
    has_long_factors: bool
    """Whether its rotary factors depend on the size of the context."""
    head: Head | None = None
    """What it carries that drafts for it."""
    architecture: str = ""
    name: str = ""
    """What its makers call it; empty where the file does not say."""


def check_gguf(path: Path) -> Checked:
    """Check a model, of one file or of parts.

    Raises InvalidConfig with one line that says what is wrong.
    """
    checked = check_draft(path)
    if checked.head is not None and checked.head.is_alone:
        words = checked.head.kind.words
        reason = f"{path} is {words} of another model, and writes nothing by itself"
        raise InvalidConfig("model", reason)
    return checked


def check_draft(path: Path) -> Checked:
    """Check a model, or a head in a file of its own, as `check_gguf` does."""
    first = _read(path)
    others = _other_parts(path, first)
    tensors = dict(first.tensors)
    for part in others:
        tensors |= _read(part).tensors
    head = find_head(first.values, tensors)
    try:
        _check_model(first.values)
        if head is not None and head.is_alone and "token_embd.weight" in tensors:
            _check_embeddings(tensors["token_embd.weight"], first.values)
    except _Refused as reason:
        raise InvalidConfig("model", f"{path} {reason}") from None
    learned = tensors.get("position_embd.weight")
    return Checked(
        files=[path, *others],
        tensor_bytes={name: tensor.size for name, tensor in tensors.items()},
        position_count=learned.shape[-1] if learned else None,
        has_long_factors=any("rope_factors_long" in name for name in tensors),
        head=head,
        architecture=_text(first.values, "general.architecture"),
        name=_text(first.values, "general.name"),
    )


def _text(values: dict[str, Value], key: str) -> str:
    value = values.get(key)
    return value.decode(errors="replace") if isinstance(value, bytes) else ""


def _check_embeddings(matrix: _Tensor, values: dict[str, Value]) -> None:
    """Check that a head has a row for each token: llama.cpp takes EAGLE-3's as they are."""
    tokens = values["tokenizer.ggml.tokens"]
    count, wanted = matrix.shape[-1], len(tokens) if isinstance(tokens, list) else 0
    if count < wanted:
        raise _Damaged(f"it has embeddings of {count} tokens, not of {wanted}")


def is_head(path: Path) -> bool:
    """Return whether a file is a head alone, for a target in another one. Raises InvalidConfig."""
    head = check_draft(path).head
    return head is not None and head.is_alone


# --- one file ---


def _read(path: Path) -> _Header:
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _Refused("is not a file")
            start = file.read(64)
            if start[:4] != b"GGUF":
                raise _Refused(_describe_other(start))
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read_header(_Reader(data, position=4))
    except _Refused as refused:
        raise InvalidConfig("model", f"{path} {refused}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidConfig("model", f"cannot read {path}: {reason}") from None


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for the writer of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def _describe_other(start: bytes) -> str:
    """Return what a file is that does not begin like a GGUF one."""
    if start[8:10] == b'{"':  # after the length of its header
        return "is not a GGUF file: it holds safetensors; convert it to GGUF"
    for beginning, what in _OTHER_FILES.items():
        if start.lstrip().startswith(beginning):
            return f"is not a GGUF file: it {what}"
    return "is not a GGUF file"


class _Reader:
    """Reads forwards, and never past the end."""

    def __init__(self, data: mmap.mmap, position: int) -> None:
        self._data = data
        self.position = position
        self.size = len(data)

    def numbers(self, code: str, count: int = 1) -> tuple[Scalar, ...]:
        """Return `count` values of a struct code; of long lists, which nobody asks for, none."""
        start = self._advance(struct.calcsize(f"<{code}") * count)
        if count > _MOST_LAYERS:
            return ()
        return struct.unpack_from(f"<{count}{code}", self._data, start)

    def long_integers(self, start: int, count: int) -> tuple[int, ...]:
        """Return whole numbers from a place, all of which the file has."""
        return struct.unpack_from(f"<{count}q", self._data, start)

    def integer(self, code: str) -> int:
        return int(self.numbers(code)[0])

    def string(self) -> bytes:
        length = self.integer("Q")
        start = self._advance(length)
        return self._data[start : start + length]

    def strings(self, count: int) -> list[bytes]:
        """Return what `string` would, `count` times, but quickly: a vocabulary has 150,000."""
        data, position = self._data, self.position
        unpack = struct.Struct("<Q").unpack_from
        found = []
        try:
            for _ in range(count):
                end = position + 8 + unpack(data, position)[0]
                found.append(data[position + 8 : end])
                position = end
        except (struct.error, OverflowError):
            position = self.size + 1
        self._advance(position - self.position)
        return found

    def _advance(self, count: int) -> int:
        start = self.position
        if count > self.size - start:
            raise _Damaged(f"its header does not end within its {self.size} bytes")
        self.position += count
        return start


def _read_header(reader: _Reader) -> _Header:
    version = reader.integer("I")
    if version & 0xFFFF == 0 and version:
        raise _Refused("is big-endian; llama.cpp wants little-endian files here")
    if version not in _VERSIONS:
        raise _Refused(f"is of GGUF version {version}, not 2 or 3")
    tensor_count, pair_count = reader.integer("Q"), reader.integer("Q")
    values: dict[str, Value] = {}
    for _ in range(pair_count):
        key = reader.string().decode("utf-8", "replace")
        values[key] = _read_value(reader, reader.integer("i"))
    tensors = [_read_tensor(reader) for _ in range(tensor_count)]
    alignment = values.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise _Damaged(f"general.alignment is {alignment!r}")
    data = -(-reader.position // alignment) * alignment
    if any((data + tensor.offset) % _MAP_ALIGNMENT for tensor in tensors):
        raise _Damaged(f"a tensor is at no multiple of {_MAP_ALIGNMENT} bytes")
    ends = (data + tensor.offset + tensor.size for tensor in tensors)
    missing = max(ends, default=0) - reader.size
    if missing > 0:
        raise _Refused(f"is truncated: {missing} bytes are missing")
    named = {tensor.name: tensor for tensor in tensors}
    if _DRAFT_TO_TARGET in named:
        ids = named[_DRAFT_TO_TARGET]
        _check_drafted(reader.long_integers(data + ids.offset, math.prod(ids.shape)), values)
    return _Header(values, named)


def _check_drafted(token_ids: Sequence[int], values: dict[str, Value]) -> None:
    """Check the target's ids of a head's tokens, which llama.cpp takes as they are."""
    tokens = values.get("tokenizer.ggml.tokens")
    count = len(tokens) if isinstance(tokens, list) else 0
    if not token_ids or not 0 <= min(token_ids) <= max(token_ids) < count:
        raise _Damaged(f"its drafted tokens are not all among its {count}")


def _read_value(reader: _Reader, kind: int) -> Value:
    if kind == _STRING:
        return reader.string()
    if kind in _SCALARS:
        return reader.numbers(_SCALARS[kind])[0]
    if kind != _ARRAY:
        raise _Damaged(f"a key has the unknown type {kind}")
    element, count = reader.integer("i"), reader.integer("Q")
    if element == _STRING:
        return reader.strings(count)
    if element not in _SCALARS:
        raise _Damaged(f"a key is a list of the unknown type {element}")
    return reader.numbers(_SCALARS[element], count)


def _read_tensor(reader: _Reader) -> _Tensor:
    name = reader.string().decode("utf-8", "replace")
    shape = tuple(int(size) for size in reader.numbers("Q", reader.integer("I")))
    kind, offset = reader.integer("i"), reader.integer("Q")
    # llama.cpp finds out by an abort that it cannot compute with these.
    added = name.endswith((".bias", "norm.weight"))
    if kind not in _BLOCKS or (added and kind != _F32):
        raise _Damaged(f"{name} has the type {kind}")
    if kind == _I32 and "tid2eid" not in name:
        raise _Damaged(f"{name} is of whole numbers")
    if (kind == _I64) is not (name == _DRAFT_TO_TARGET):
        raise _Damaged(f"{name} has the type {kind}")
    block, block_bytes = _BLOCKS[kind]
    return _Tensor(name, shape, offset, math.prod(shape) // block * block_bytes)


# --- several files ---


def _other_parts(path: Path, first: _Header) -> list[Path]:
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


# --- what the keys mean ---


class _Keys:
    """The keys of an architecture: read by their names' ends, checked for their ranges."""

    def __init__(self, values: dict[str, Value]) -> None:
        self._values = values
        architecture = values.get("general.architecture")
        if not isinstance(architecture, bytes):
            raise _Damaged("it has no general.architecture")
        self.architecture = architecture.decode("utf-8", "replace")

    def get(self, key: str) -> Value | None:
        """Return the value of a key of this architecture."""
        return self._values.get(f"{self.architecture}.{key}")

    def has_any(self, *groups: str) -> bool:
        """Return whether any key of a group such as `ssm` is there."""
        starts = tuple(f"{self.architecture}.{group}." for group in groups)
        return any(key.startswith(starts) for key in self._values)

    def integer(self, key: str, most: int, default: int = 0) -> int:
        """Return a whole number up to a bound, of those for each layer the largest."""
        value = self.get(key)
        if value is None:
            return default
        values = value if isinstance(value, tuple) else (value,)
        numbers = [number for number in values if isinstance(number, int)]
        if not numbers or not 0 <= min(numbers) <= max(numbers) <= most:
            raise _Damaged(f"{self.architecture}.{key} is {repr(value)[:40]}")
        return max(numbers)


def _check_model(values: dict[str, Value]) -> None:
    keys = _Keys(values)
    # Blocks of DFlash are not causal.
    if keys.get("attention.causal") is False and keys.architecture != "dflash":
        raise _Refused("is no causal model: it does not predict the next token")
    layers = keys.integer("block_count", _MOST_LAYERS)
    if not layers:
        raise _Damaged(f"it has no {keys.architecture}.block_count")
    is_all_head = keys.architecture == "gemma4-assistant"  # elsewhere there is a layer to run
    keys.integer("nextn_predict_layers", layers if is_all_head else layers - 1)
    _check_heads(keys)
    _check_states(keys)
    _check_experts(keys)
    _check_numbers(keys)
    _check_tokens(values)


def _check_heads(keys: _Keys) -> None:
    """Check what attention divides by."""
    heads = keys.integer("attention.head_count", _MOST_HEADS)
    shared = keys.integer("attention.head_count_kv", _MOST_HEADS, heads)
    if heads % (shared or 1):
        raise _Damaged("its attention heads do not share its key-value heads")
    size = keys.integer("embedding_length", 2**31 - 1) // (heads or 1)
    key = keys.integer("attention.key_length", 2**16, size)
    value = keys.integer("attention.value_length", 2**16, size)
    rotated = keys.integer("rope.dimension_count", 2**16, key)
    sections = keys.get("rope.dimension_sections")
    if isinstance(sections, tuple) and sum(x for x in sections if isinstance(x, int)) > key:
        raise _Damaged(f"its heads of {key} keys are rotated in sections of {sections}")
    is_latent = keys.architecture in _COMPRESSED and keys.get("attention.key_length_mla")
    latent = keys.integer("attention.kv_lora_rank", 2**16)
    if is_latent and (key != latent + rotated or shared != 1):
        raise _Damaged(f"its {shared} rows of {latent} and {rotated} rotated are {key} keys")
    if keys.architecture in _EQUAL_HEADS and not key == value == rotated:
        raise _Damaged(
            f"its heads have {key} keys, {value} values, {rotated} rotated: not one size"
        )


_WKV_STEP = 64
"""Values that llama.cpp's WKV kernels take at once where a CPU has AVX-512, fewer elsewhere. They
read and write beyond the state where a head is not so many."""


def _check_states(keys: _Keys) -> None:
    """Check what llama.cpp divides by, or asserts, of a recurrent state."""
    width = keys.integer("embedding_length", 2**31 - 1)
    if keys.has_any("wkv"):
        size = keys.integer("wkv.head_size", _MOST_STATE)
        shifts = keys.integer("token_shift_count", 2, 2)
        wanted = 2 if keys.architecture in ("rwkv6", "rwkv7") else shifts
        if not size or size % _WKV_STEP or width % size or not shifts or shifts != wanted:
            raise _Damaged(f"its states have heads of {size} of {width}, {shifts} token shifts")
    if keys.has_any("kda"):
        kernel = keys.integer("ssm.conv_kernel", _MOST_STATE)
        size = keys.integer("kda.head_dim", _MOST_STATE)
        if not kernel or not size:
            raise _Damaged(f"the sizes of its states are {kernel}, {size}")
    elif keys.has_any("ssm"):
        names = ("conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count")
        kernel, inner, state, rank, groups = (
            keys.integer(f"ssm.{name}", _MOST_STATE) for name in names
        )
        is_sound = kernel > 0 and inner > 0 and state > 0 and rank > 0
        if keys.architecture in _TWICE_AS_WIDE:
            is_sound = is_sound and inner == 2 * width
        if keys.architecture not in ("mamba", "jamba") and is_sound:
            is_sound = inner % rank == 0 and inner % (groups or 1) == 0
        if keys.architecture in _DELTA_NETS and is_sound:
            is_sound = groups > 0 and rank % groups == 0
        if not is_sound:
            found = f"{kernel}, {inner}, {state}, {rank}, {groups}"
            raise _Damaged(f"the sizes of its states are {found}")


def _check_experts(keys: _Keys) -> None:
    """Check what llama.cpp asserts of a mixture of experts."""
    count = keys.integer("expert_count", _MOST_EXPERTS)
    used = keys.integer("expert_used_count", _MOST_EXPERTS)
    groups = keys.integer("expert_group_count", _MOST_EXPERTS)
    used_groups = keys.integer("expert_group_used_count", _MOST_EXPERTS)
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
        raise _Damaged(f"{keys.architecture}.rope.scaling.type is {scaling!r:.40}")
    for name in _EPSILONS:
        epsilon = keys.get(f"attention.{name}")
        if isinstance(epsilon, float) and not 0.0 <= epsilon < math.inf:
            raise _Damaged(f"{keys.architecture}.attention.{name} is {epsilon}")


def _check_tokens(values: dict[str, Value]) -> None:
    tokens = values.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise _Damaged("it has no list of tokens")
    # In C a text ends at a zero byte. llama.cpp names empty ones so, and wants every name once.
    texts = (token.partition(b"\0")[0] for token in tokens)
    names = {text or b"[EMPTY_%d]" % i for i, text in enumerate(texts)}
    if len(names) != len(tokens):
        raise _Damaged(f"{len(tokens) - len(names)} of its tokens come twice")
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
