"""Draws texts that copy from their prompts, as walks that never meet a token twice.

A model whose next token follows from the last one alone can be made to write
them: tools/model_making/copying.py does. So no token occurs twice in a text, or in two
texts: what repeats in one is what its prompt holds, never the text itself.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

COPIED, NEW = "copied", "new"

_HEAD, _TAIL = 24, 16  # tokens of a prompt before and after what may be copied: what is asked for
_FILLERS = 1000  # ids that only prompts hold, any number of times
_SITE = (25, 40)  # tokens of a file between two places where its identifier stands
_QUOTATION, _REMARK = (60, 150), (10, 30)  # tokens of an extract's quotations, and between them
_BLOCK, _STEP = (40, 80), (3, 8)  # tokens of a transcript's tool outputs, and between them
_PIECE = (1, 3)  # tokens of a shuffled text that keep their order


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt, the text that follows it, and which parts of that are copied."""

    kind: str
    prompt: tuple[int, ...]
    text: tuple[int, ...]
    parts: tuple[tuple[str, int], ...]  # COPIED or NEW, and how many tokens: all of the text

    @property
    def copied_share(self) -> float:
        """Of the text's tokens."""
        return sum(count for part, count in self.parts if part == COPIED) / len(self.text)


class Supply:
    """Hands out ids: new ones once each, and those that stand only in prompts."""

    def __init__(self, token_ids: Sequence[int], seed: int) -> None:
        self.random = random.Random(f"tasks {seed}")
        shuffled = self.random.sample(token_ids, len(token_ids))
        # A small vocabulary spares a quarter for what only prompts hold.
        spared = min(_FILLERS, len(shuffled) // 4)
        self._fillers, self._left = shuffled[:spared], shuffled[spared:]

    def take(self, count: int) -> list[int]:
        """Return ids that nothing else has. Raises SystemExit if there are not so many."""
        if count > len(self._left):
            raise SystemExit("tasks: the vocabulary is too small for so many and so long texts")
        taken, self._left = self._left[:count], self._left[count:]
        return taken

    def fill(self, count: int) -> list[int]:
        """Return ids that no text holds."""
        return self.random.choices(self._fillers, k=count)

    def within(self, bounds: tuple[int, int]) -> int:
        """Return a number in [low, high]."""
        return self.random.randint(*bounds)


Stretch: TypeAlias = tuple[str, list[int]]
Maker: TypeAlias = Callable[[Supply, int], tuple[list[int], list[Stretch]]]
"""Makes what a prompt shows and a text of at least so many tokens."""


def _rewrite(supply: Supply, count: int) -> tuple[list[int], list[Stretch]]:
    """Return a file and the same with another identifier.

    The old one is the same everywhere. The new one cannot be, so it is other ids each time.
    """
    old = supply.fill(supply.within((1, 2)))
    renamed = supply.within((1, 2))
    file: list[int] = []
    text: list[Stretch] = []
    while _length(text) < count:
        code = supply.take(supply.within(_SITE))
        file += [*code, *old]
        text += [(COPIED, code), (NEW, supply.take(renamed))]
    return file, text


def _extract(supply: Supply, count: int) -> tuple[list[int], list[Stretch]]:
    """Return a document and remarks with long quotations from it, in another order."""
    return _around(supply, count, _QUOTATION, _REMARK, supply.random.shuffle)


def _transcript(supply: Supply, count: int) -> tuple[list[int], list[Stretch]]:
    """Return tool outputs and steps that show them once more, in their order."""
    return _around(supply, count, _BLOCK, _STEP, lambda shown: None)


def _around(
    supply: Supply,
    count: int,
    passages: tuple[int, int],
    between: tuple[int, int],
    reorder: Callable[[list[list[int]]], None],
) -> tuple[list[int], list[Stretch]]:
    """Return passages as a prompt shows them, and a text with all of them and new words between."""
    text: list[Stretch] = []
    while _length(text) < count:
        text += [
            (NEW, supply.take(supply.within(between))),
            (COPIED, supply.take(supply.within(passages))),
        ]
    shown = [stretch for part, stretch in text if part == COPIED]
    reorder(shown)
    document: list[int] = []
    for passage in shown:
        document += [*supply.fill(supply.within(between)), *passage]
    return document, text


def _prose(supply: Supply, count: int) -> tuple[list[int], list[Stretch]]:
    """Return a prompt and a text of which nothing is in it."""
    return supply.fill(count), [(NEW, supply.take(count))]


def _shuffled(supply: Supply, count: int) -> tuple[list[int], list[Stretch]]:
    """Return a text's tokens in another order, one to three at a time, and the text.

    As the usual words of prose do, they match what stood before and continue otherwise.
    """
    text = supply.take(count)
    pieces: list[list[int]] = []
    while (begin := sum(map(len, pieces))) < count:
        pieces.append(text[begin : begin + supply.within(_PIECE)])
    supply.random.shuffle(pieces)
    return [token_id for piece in pieces for token_id in piece], [(NEW, text)]


def _mixed(supply: Supply, count: int) -> tuple[list[int], list[Stretch]]:
    """Return a file, and prose, a third of all copied from within the file, and prose again."""
    code = supply.take(count // 3)
    file = [*supply.fill(count // 3), *code, *supply.fill(count // 3)]
    before = supply.take(count // 3)
    after = supply.take(count - len(before) - len(code))
    return file, [(NEW, before), (COPIED, code), (NEW, after)]


KINDS: dict[str, Maker] = {
    "rewrite": _rewrite,
    "extract": _extract,
    "transcript": _transcript,
    "prose": _prose,
    "mixed": _mixed,
    "shuffled": _shuffled,
}


def make_tasks(
    token_ids: Sequence[int], each: int, token_count: int, seed: int = 1
) -> tuple[list[Task], dict[int, int]]:
    """Return `each` tasks of every kind, with texts of `token_count`, and what follows a token.

    `token_ids` are those to use; the map takes each to another, one to one, and
    every text is a walk along it from its prompt's last token. Raises
    SystemExit where the ids do not suffice.
    """
    supply = Supply(token_ids, seed)
    tasks, following = list[Task](), dict[int, int]()
    for _ in range(each):
        for kind, make in KINDS.items():
            shown, stretches = make(supply, token_count)
            (start,) = supply.take(1)
            walk = [token_id for _, stretch in stretches for token_id in stretch]
            prompt = [*supply.fill(_HEAD), *shown, *supply.fill(_TAIL), start]
            parts = tuple(_cut(stretches, token_count))
            tasks.append(Task(kind, tuple(prompt), tuple(walk[:token_count]), parts))
            following.update(zip([start, *walk], walk, strict=False))
    return tasks, _completed(following, token_ids, supply.random)


def _length(stretches: Sequence[Stretch]) -> int:
    return sum(len(stretch) for _, stretch in stretches)


def _cut(stretches: Sequence[Stretch], count: int) -> Iterator[tuple[str, int]]:
    """Yield the parts of the first `count` tokens."""
    for part, stretch in stretches:
        if count > 0:
            yield part, min(count, len(stretch))
        count -= len(stretch)


def _completed(
    following: dict[int, int], token_ids: Sequence[int], draw: random.Random
) -> dict[int, int]:
    """Return what follows every id: those without a place go to those that nothing leads to."""
    known = set(following.values())
    free = [token_id for token_id in token_ids if token_id not in known]
    draw.shuffle(free)
    ends = [token_id for token_id in token_ids if token_id not in following]
    return following | dict(zip(ends, free, strict=True))


def write_tasks(path: Path, tasks: Sequence[Task]) -> None:
    """Write tasks as the list that `outrider bench --tasks` reads."""
    path.write_text(json.dumps([asdict(task) for task in tasks]) + "\n", encoding="utf-8")
