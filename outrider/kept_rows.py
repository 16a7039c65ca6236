"""A folder of what a target read and answered, from which a draft is taught.

Of each token of a text: its id, what some layers read there, and the likeliest tokens after it. It
holds what people wrote and were answered, so only its owner may read it. Whole texts are in a
shard, a folder of numpy's own files, all rows of its texts one after the other:

- `lengths`: int32[texts], rows of each; `first`: int32[texts], the position of its first row.
- `tokens`: int32[rows]; `rows`: float16[rows, layers * width], one layer after the other.
- `top_ids`: int32[rows, top], `top_logprobs`: float16[rows, top]: the likeliest next tokens at
  temperature 1, falling; -1 is the first id where the target computed none.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.errors import InvalidConfig

TOP = 32
"""Next tokens that are kept of a distribution. After 98,000 tokens of SmolLM2-135M they hold
.95 of the probability at temperature 1 on average, and at least that after 72 % of them."""

HEAD_FILE = "head.gguf"
"""In the folder: the head that was taught from it, with which the target drafts."""

_VERSION = 1  # of the folder; another one is refused
_SOURCE = "source.json"
_SHARD = "texts-"
_ARRAYS = ("lengths", "first", "tokens", "rows", "top_ids", "top_logprobs")
_OTHER_FILES = 1024  # open files of a process without shards: the usual limit of Linux


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSource:
    """Whose rows a folder holds."""

    model: str
    """The digest of the target's weights, in hexadecimal digits."""
    layers: tuple[int, ...]
    """Whose inputs they are, rising; none of a target that does not show them."""
    width: int
    """Numbers of one layer's row."""
    vocabulary: int
    """Tokens that the target knows."""
    top: int = TOP

    @property
    def row_bytes(self) -> int:
        """Bytes that a token takes on disk."""
        return 2 * self.row_width + 6 * self.top + 4

    @property
    def row_width(self) -> int:
        """Numbers of a token's row."""
        return self.width * len(self.layers)


@dataclass(frozen=True, slots=True, eq=False)
class KeptText:
    """Tokens that follow each other in one text, from the position `first` on."""

    first: int
    tokens: NDArray[np.int32]
    rows: NDArray[np.float16]
    top_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float16]
    written: float = 0.0
    """When it was, in seconds of the epoch; 0: it was not yet."""

    @property
    def answered(self) -> int:
        """Tokens after which the target said what comes next."""
        return int(np.count_nonzero(self.top_ids[:, 0] >= 0))


class Kept:
    """The texts of a folder. Raises InvalidConfig for one that holds none of this kind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = _read_source(folder)

    @cached_property
    def texts(self) -> list[KeptText]:
        """All texts, the oldest shard's first: views of files, of which nothing is read yet."""
        shards = _shards(self.folder)
        _allow_open_files(len(_ARRAYS) * len(shards))
        return [text for shard in shards for text in _read_shard(shard)]

    @property
    def answered(self) -> int:
        """Tokens after which the target said what comes next, of all texts."""
        return sum(text.answered for text in self.texts)


def open_folder(folder: Path, source: KeptSource) -> None:
    """Make a folder for rows of this source, or continue with one.

    Raises InvalidConfig for one with rows of another source, or that cannot be written.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in folder.glob(f".{_SHARD}*"):  # of who was killed
            shutil.rmtree(left, ignore_errors=True)
        if (folder / _SOURCE).exists():
            if _read_source(folder) != source:
                raise InvalidConfig("keep-rows", f"{folder} has rows of another model or layers")
            return
        partial = folder / f".{_SOURCE}"
        partial.write_text(json.dumps({"version": _VERSION, **asdict(source)}), encoding="utf-8")
        os.replace(partial, folder / _SOURCE)
    except OSError as error:
        raise InvalidConfig("keep-rows", f"{folder}: {error.strerror}") from None


def write_shard(folder: Path, texts: Sequence[KeptText]) -> None:
    """Write whole texts as a shard, all of it or nothing. Raises OSError."""
    name = f"{_SHARD}{time.time_ns():020d}"
    partial = folder / f".{name}"
    arrays = {
        "lengths": np.array([len(text.tokens) for text in texts], np.int32),
        "first": np.array([text.first for text in texts], np.int32),
        "tokens": np.concatenate([text.tokens for text in texts]),
        "rows": np.concatenate([text.rows for text in texts]),
        "top_ids": np.concatenate([text.top_ids for text in texts]),
        "top_logprobs": np.concatenate([text.top_logprobs for text in texts]),
    }
    try:
        partial.mkdir(mode=0o700)
        for each, array in arrays.items():
            np.save(partial / f"{each}.npy", array, allow_pickle=False)
        os.rename(partial, folder / name)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def folder_bytes(folder: Path) -> int:
    """Return what the shards of a folder take."""
    return sum(map(_bytes_of, _shards(folder)))


def drop_shards(folder: Path, most_bytes: float, oldest_time: float) -> None:
    """Delete shards that are older than a time in seconds, then the oldest beyond these bytes."""
    held = 0
    for shard in reversed(_shards(folder)):
        held += _bytes_of(shard)
        if held > most_bytes or _written(shard) < oldest_time:
            gone = shard.rename(shard.with_name(f".{shard.name}"))  # whole, for who reads it now
            shutil.rmtree(gone, ignore_errors=True)


def _shards(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{_SHARD}*"))


def _bytes_of(shard: Path) -> int:
    """Return what a shard takes; 0 for one that was dropped meanwhile."""
    try:
        return sum(file.stat().st_size for file in shard.iterdir())
    except FileNotFoundError:
        return 0


def _written(shard: Path) -> float:
    """Return when a shard was written, in seconds of the epoch."""
    return int(shard.name.removeprefix(_SHARD)) / 1e9


def _read_source(folder: Path) -> KeptSource:
    try:
        found = json.loads((folder / _SOURCE).read_text(encoding="utf-8"))
        if found.pop("version") != _VERSION:
            raise InvalidConfig("keep-rows", f"{folder} is of another version of Outrider")
        return KeptSource(**{**found, "layers": tuple(found["layers"])})
    except OSError as error:
        reason = error.strerror
    except (ValueError, TypeError, KeyError, AttributeError):
        reason = f"its {_SOURCE} cannot be read"
    raise InvalidConfig("keep-rows", f"{folder} holds no rows of a target: {reason}")


def _allow_open_files(count: int) -> None:
    """Raise this process's limit by what views need: each holds its file open.

    The file may be deleted while a lesson reads it, so it is not opened anew for each batch.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, count + _OTHER_FILES)
    if soft < wanted:
        with suppress(OSError, ValueError):  # macOS says no hard limit and has one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _read_shard(shard: Path) -> Iterator[KeptText]:
    try:
        found: dict[str, Any] = {
            name: np.load(shard / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            for name in _ARRAYS
        }
    except (OSError, ValueError, EOFError) as error:
        if not shard.exists():
            return  # it was dropped meanwhile
        raise InvalidConfig("keep-rows", f"{shard} cannot be read: {error}") from None
    begin = 0
    for length, first in zip(found["lengths"], found["first"], strict=True):
        end = begin + int(length)
        arrays = {name: found[name][begin:end] for name in _ARRAYS[2:]}
        yield KeptText(first=int(first), **arrays, written=_written(shard))
        begin = end
