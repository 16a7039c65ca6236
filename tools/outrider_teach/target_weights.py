"""What a head takes from its target's GGUF file: sizes, tokens, and matrices to begin with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from gguf import GGUFReader, ReaderField, ReaderTensor
from gguf.quants import dequantize
from numpy.typing import NDArray

from outrider.engine.heads import Beside, Head, fault_beside
from outrider.errors import InvalidConfig
from outrider.speculation import HeadKind
from outrider_teach.head import HeadShape

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_ROWS = 8192  # of a matrix dequantised at once
_HEAD_SIZE = 64  # of the head's attention, where the target's is of another kind


class TargetFile:
    """A target's file, or its files where it is split."""

    def __init__(self, path: Path) -> None:
        """Raises InvalidConfig."""
        self._path = path
        try:
            readers = [GGUFReader(part) for part in _parts(path)]
        except (OSError, ValueError, LookupError) as error:
            raise InvalidConfig("model", f"cannot read {path}: {error}") from None
        self.fields = dict(readers[0].fields)
        self._tensors = {t.name: t for reader in readers for t in reader.tensors}
        self.architecture = str(self._value("general.architecture"))
        if "token_embd.weight" not in self._tensors:
            raise InvalidConfig("model", f"{path} has no token embeddings")

    def _value(self, name: str, default: object = None) -> object:
        field: ReaderField | None = self.fields.get(name)
        return default if field is None else field.contents()

    def number(self, name: str, default: float = 0) -> float:
        """Return a number of the architecture's, by layers the last one's."""
        found = self._value(f"{self.architecture}.{name}", default)
        if isinstance(found, list):
            found = found[-1]
        return found if isinstance(found, int | float) else default

    @property
    def name(self) -> str:
        """As the file says, or the file's."""
        return str(self._value("general.name", self._path.stem))

    @property
    def width(self) -> int:
        return int(self.number("embedding_length"))

    @property
    def layer_count(self) -> int:
        return int(self.number("block_count"))

    @property
    def vocabulary(self) -> int:
        """Tokens that its matrices have."""
        return int(self._tensors["token_embd.weight"].shape[1])

    @property
    def cell_bytes(self) -> int:
        """Bytes of its cache for a token, in f16; of a hybrid model at most."""
        heads = int(self.number("attention.head_count"))
        size = self.number("attention.key_length", self.width // max(1, heads))
        sizes = size + self.number("attention.value_length", size)
        kv_heads = self.number("attention.head_count_kv", heads)
        return int(2 * self.number("block_count") * kv_heads * sizes)

    def check_feeds(self, layers: Sequence[int]) -> None:
        """Raise InvalidConfig where llama.cpp does not show what these layers read."""
        head = Head(HeadKind.EAGLE3, "eagle3", target_layers=tuple(layers), width=self.width)
        beside = Beside(self.architecture, int(self.number("block_count")), self.width)
        if fault := fault_beside(head, beside):
            raise InvalidConfig("model", f"{self._path}: a head for it {fault}")

    def head_shape(self, layers: Sequence[int]) -> HeadShape:
        """Return the sizes of a head that is as a layer of the target's."""
        heads = int(self.number("attention.head_count"))
        size = int(self.number("attention.key_length", self.width // max(1, heads)))
        kv_heads = int(self.number("attention.head_count_kv", heads))
        is_plain = size == self.number("attention.value_length", size) and size <= 2 * _HEAD_SIZE
        if not is_plain or heads * size > 2 * self.width or not 0 < kv_heads <= heads:
            heads, size = max(1, self.width // _HEAD_SIZE), _HEAD_SIZE
            kv_heads = heads
        return HeadShape(
            width=self.width,
            heads=heads,
            kv_heads=kv_heads,
            head_size=size,
            feed_forward=int(self.number("feed_forward_length", 4 * self.width)),
            rope_base=float(self.number("rope.freq_base", 10000.0)),
            epsilon=float(self.number("attention.layer_norm_rms_epsilon", 1e-5)),
            layers=tuple(layers),
        )

    @cached_property
    def embeddings(self) -> NDArray[np.float16]:
        """Of all tokens: [vocabulary, width]."""
        return self._matrix("token_embd.weight")

    @cached_property
    def output(self) -> NDArray[np.float16]:
        """What gives the logits of all tokens: [vocabulary, width]."""
        return self._matrix("output.weight") if self.has_output else self.embeddings

    @property
    def has_output(self) -> bool:
        """Whether its output matrix is another one than its embeddings."""
        return "output.weight" in self._tensors

    @property
    def matrices(self) -> list[ReaderTensor]:
        """Both, or the only one, as they are in its file."""
        names = ("token_embd.weight", "output.weight")
        return [self._tensors[name] for name in names if name in self._tensors]

    def _matrix(self, name: str) -> NDArray[np.float16]:
        found = np.empty((self.vocabulary, self.width), np.float16)
        for first in range(0, self.vocabulary, _ROWS):
            at = np.arange(first, min(first + _ROWS, self.vocabulary))
            found[at] = self._rows(self._tensors[name], at)
        return found

    def output_rows(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return what gives the logits of these tokens: [ids, width]."""
        tied = self._tensors["token_embd.weight"]
        return self._rows(self._tensors.get("output.weight", tied), ids)

    @property
    def output_norm(self) -> NDArray[np.float32]:
        """The weights of its last norm: [width]."""
        found = self.tensor("output_norm.weight")
        return np.ones(self.width, np.float32) if found is None else found

    def tensor(self, name: str) -> NDArray[np.float32] | None:
        """Return a tensor, [outputs, inputs] or [values]; None where there is none."""
        found = self._tensors.get(name)
        if found is None:
            return None
        return np.array(dequantize(found.data, found.tensor_type), np.float32)

    def _rows(self, tensor: ReaderTensor, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        return np.array(dequantize(tensor.data[ids], tensor.tensor_type), np.float32)


def _parts(path: Path) -> list[Path]:
    """Return the files of a split model, or the only one."""
    found = _PART.search(path.name)
    if found is None:
        return [path]
    begin, count = path.name[: found.start()], int(found[2])
    return [
        path.with_name(f"{begin}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)
    ]
