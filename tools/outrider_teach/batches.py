"""Kept texts as batches: windows of texts, one after the other without padding."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.kept_rows import KeptText

LONGEST = 1024  # rows of a window; attention's scores of a batch stay below 100 MiB
OVERLAP = 64  # rows; a window begins with them, as a head reads so many of a prompt
_HELD_OUT = 16  # one prompt in so many is held out


@dataclass(frozen=True, slots=True)
class Window:
    """Rows `start` to `stop` of a text, of which those from `begin` on are learned."""

    text: int
    start: int
    begin: int
    stop: int

    @property
    def learned(self) -> int:
        """Rows whose next token is learned, and between them those of later prompts."""
        return self.stop - self.begin


def windows_of(texts: Sequence[KeptText], before: int = OVERLAP) -> list[Window]:
    """Return windows that cover what is known of the target's distributions.

    Each has so many rows before those that it covers, where the text has them.
    """
    windows = []
    for number, text in enumerate(texts):
        begin = first_known(text)
        for first in range(begin, len(text.tokens), LONGEST - before):
            start = max(0, first - before)
            stop = min(len(text.tokens), first + LONGEST - before)
            windows.append(Window(number, start, max(first, start + 1), stop))
    return [window for window in windows if window.learned > 0]


def first_known(text: KeptText) -> int:
    """Return the first row of a text with logits, after the row that its pair needs."""
    known = np.flatnonzero(text.top_ids[1:, 0] >= 0)
    return int(known[0]) + 1 if len(known) else len(text.tokens)


def is_held_out(text: KeptText) -> bool:
    """Return whether a text is to be judged by, and never trained on; by its prompt."""
    prompt = np.ascontiguousarray(text.tokens[: first_known(text) + 1])
    return zlib.crc32(prompt.tobytes()) % _HELD_OUT == 0


@dataclass(frozen=True, slots=True)
class Grid:
    """Where windows of different lengths are in one batch, and the drafts that start in them.

    A draft starts at each learned pair, in the windows' order.
    """

    starts: Tensor
    """int64[drafts]: the pair that each reads first."""
    ends: Tensor
    """int64[drafts]: the last pair of its window."""
    pairs: Tensor
    """int64[windows, most pairs]: the pairs of each window, the last one repeated."""
    drafts: Tensor
    """int64[windows, most drafts]: the drafts of each window, the last one repeated."""
    places: Tensor
    """int64[drafts]: each draft within `drafts`, flat."""
    is_visible: Tensor
    """bool[windows, most drafts, most pairs]: a draft sees the pairs up to its start."""

    @property
    def is_pair(self) -> Tensor:
        """bool[windows, most pairs]: whether one is there, and not the last one repeated."""
        number = torch.arange(self.pairs.shape[1], device=self.pairs.device)
        return self.pairs[:, :1] + number <= self.pairs[:, -1:]

    def read(self, lag: int) -> Tensor:
        """Return the pairs that drafts read as their token `lag`, as far as windows go."""
        return torch.minimum(self.starts + lag, self.ends)

    def is_inside(self, lag: int) -> Tensor:
        """Return whether those are in the drafts' windows."""
        return self.starts + lag <= self.ends

    def by_window(self, figures: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        """Return figures of drafts, [drafts, ...], window by window."""
        changes = np.flatnonzero(np.diff(self.ends.cpu().numpy())) + 1
        return np.split(figures, changes)


def _grid(windows: Sequence[Window], device: str, lag: int) -> Grid:
    lengths = np.array([w.stop - w.start - lag for w in windows])
    counts = np.array([w.learned for w in windows])
    first_pairs, first_drafts = (np.cumsum(each) - each for each in (lengths, counts))
    of_window = np.repeat(np.arange(len(windows)), counts)
    number = np.arange(counts.sum()) - first_drafts[of_window]
    ends = first_pairs + lengths - 1
    most_pairs, most_drafts = np.arange(lengths.max()), np.arange(counts.max())
    before = (lengths - counts)[:, None, None] + most_drafts[:, None]
    arrays = {
        "starts": (ends - counts + 1)[of_window] + number,
        "ends": ends[of_window],
        "pairs": np.minimum(first_pairs[:, None] + most_pairs, ends[:, None]),
        "drafts": first_drafts[:, None] + np.minimum(most_drafts, counts[:, None] - 1),
        "places": of_window * len(most_drafts) + number,
        "is_visible": most_pairs <= before,
    }
    return Grid(**{name: torch.from_numpy(each).to(device) for name, each in arrays.items()})


@dataclass(frozen=True, slots=True)
class Batch:
    """Pairs of several windows, one after the other: [pairs, ...] each.

    For a draft model, which reads no rows, a pair is a token alone.
    """

    tokens: Tensor
    rows: Tensor
    """Of the token before each; empty ones for a draft model."""
    positions: Tensor
    """Within the window: attention sees distances alone."""
    top_ids: Tensor
    top_logprobs: Tensor
    following: Tensor
    """The token after each; -1 where the text ends."""
    grid: Grid


def batch_of(
    texts: Sequence[KeptText], windows: Sequence[Window], device: str = "cpu", lag: int = 1
) -> Batch:
    """Return the pairs of windows, with the row `lag` before each; without a lag no row is read.

    The first ones of a window have no row before them, so they are no pairs.
    """
    parts = [(texts[window.text], window) for window in windows]

    def joined(name: str, shift: int, kind: type) -> Tensor:
        found = [getattr(text, name)[w.start + lag + shift : w.stop + shift] for text, w in parts]
        return torch.from_numpy(np.concatenate(found).astype(kind)).to(device)

    lengths = [np.arange(lag, w.stop - w.start) for _, w in parts]
    following = np.concatenate([_following(*part)[lag:] for part in parts])
    return Batch(
        tokens=joined("tokens", 0, np.int64),
        rows=joined("rows", -lag, np.float16).float() if lag else torch.empty(0, device=device),
        positions=torch.from_numpy(np.concatenate(lengths)).to(device),
        top_ids=joined("top_ids", 0, np.int64),
        top_logprobs=joined("top_logprobs", 0, np.float32),
        following=torch.from_numpy(following).to(device),
        grid=_grid(windows, device, lag),
    )


def _following(text: KeptText, window: Window) -> NDArray[np.int64]:
    after = text.tokens[window.start + 1 : window.stop + 1].astype(np.int64)
    return np.pad(after, (0, window.stop - window.start - len(after)), constant_values=-1)


def shuffled(
    windows: Sequence[Window], size: int, random: np.random.Generator
) -> list[list[Window]]:
    """Return packs of all windows in random order, each of windows of similar lengths."""
    keys = [window.learned * random.uniform(0.7, 1.4) for window in windows]
    packs = list(packed(windows, np.argsort(keys, kind="stable"), size))
    return [packs[i] for i in random.permutation(len(packs))]


def packed(windows: Sequence[Window], order: Iterable[int], size: int) -> Iterator[list[Window]]:
    """Yield windows in this order, as many at a time as have `size` learned rows."""
    held: list[Window] = []
    for i in order:
        held.append(windows[i])
        if sum(window.learned for window in held) >= size:
            yield held
            held = []
    if held:
        yield held


def counted(texts: Sequence[KeptText], vocabulary: int) -> NDArray[np.float64]:
    """Return how often the target would write each token in these texts: float64[vocabulary]."""
    counts = np.zeros(vocabulary)
    for text in texts:
        ids = np.asarray(text.top_ids)
        ids = ids[ids[:, 0] >= 0]
        chances = np.exp(np.asarray(text.top_logprobs, np.float32))[text.top_ids[:, 0] >= 0]
        counts += np.bincount(ids.ravel(), chances.ravel(), minlength=vocabulary)
    return counts


def most_frequent(counts: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return the ids of the tokens that are written most, in rising order; at most all."""
    order = np.argsort(-counts, kind="stable")[:count]
    return np.sort(order).astype(np.int64)


def row_scale(texts: Sequence[KeptText], count: int = 4096) -> NDArray[np.float32]:
    """Return what makes the numbers of rows one on average, number by number: [row width].

    Over as many rows, of the first texts: the target's layers differ by hundreds, and a few numbers
    of a layer by more.
    """
    found, taken = [], 0
    for text in texts:
        found.append(np.asarray(text.rows[1:], np.float32))
        taken += len(found[-1])
        if taken >= count:
            break
    mean = np.sqrt(np.mean(np.square(np.concatenate(found)), 0))
    return (1.0 / np.maximum(mean, 1e-3 * mean.max())).astype(np.float32)
