"""How fast texts that copy are written without a model, beside llama.cpp's n-gram drafters.

python -m benchmarks.copying_texts [--seeds 8] [--costs gpu] [--kind rewrite] [--tokens 256]

On a virtual clock, greedy, one user, nothing known but what decodes cost: the real controller and
sources, and ports of `ngram-simple` and `ngram-mod` which draft in every round that they can and
have no overhead. Texts are walks that copy (model_making/tasks.py) and, in tokens of the
bundled model, Python's own library: a file with a name exchanged, remarks that quote it, tool
output shown again with some values changed, and a file that has nothing to do with the prompt.
Tokens/s, medians.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import random
import re
import shutil
import subprocess
import textwrap
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import TypeAlias

from model_making.agreement import load
from model_making.tasks import make_tasks
from outrider.costs import CostTable
from outrider.drafters.copying import CopySource
from outrider.drafters.source import Source
from outrider.drafters.suffix import SuffixSource
from outrider.speculation import Speculation
from tests.support.simulation import Models, Script, Simulation

COSTS = {
    "45ms": CostTable(
        [(1, 0.045), (2, 0.068), (4, 0.094), (8, 0.183), (16, 0.286), (32, 0.526), (64, 1.05)]
    ),
    "28ms": CostTable([(1, 0.028), (2, 0.050), (4, 0.069), (8, 0.135), (16, 0.231), (64, 0.9)]),
    "22ms": CostTable([(1, 0.022), (2, 0.034), (4, 0.056), (8, 0.080), (16, 0.130), (64, 0.450)]),
    "18ms": CostTable(
        [(1, 0.018), (2, 0.030), (4, 0.0325), (8, 0.063), (16, 0.098), (32, 0.200), (60, 0.363)]
    ),
    "gpu": CostTable([(1, 0.0304), (64, 0.0556)]),
    "h200": CostTable(
        [(1, 0.0028), (2, 0.003), (4, 0.0036), (8, 0.0052), (16, 0.0064), (32, 0.0079), (64, 0.011)]
    ),
}
"""Seconds by rows: two looks at a Zen 3 and at a Zen 5 (docs/benchmarks.md), a GPU, and a 7B on an
H200."""

_OVERHEAD = 0.0015  # seconds of a round of ours
_TOKENIZER = Path("models/stdlib-target-q8_0.gguf")
_PROMPT = 700  # tokens at most of what a real text copies
_MODULES = (argparse, ast, inspect, json, random, re, shutil, subprocess, textwrap, typing)

Text: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""A prompt, and what is written after it."""
Tokenize: TypeAlias = Callable[[str], list[int]]


def main() -> None:
    """Print a table for each machine."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256, help="of each text")
    parser.add_argument("--costs", choices=COSTS, action="append")
    parser.add_argument("--kind", action="append", help="such as rewrite or py-rename")
    options = parser.parse_args()
    texts = _texts(options.seeds, options.tokens)
    for machine in options.costs or COSTS:
        print(f"{machine:12}" + "".join(f"{name:>16}" for name in _arms()))
        for kind, some in texts.items():
            if options.kind and kind not in options.kind:
                continue
            print(f"{kind:12}", end="")
            for write in _arms().values():
                rates = [write(prompt, text, COSTS[machine]) for prompt, text in some]
                print(f"{median(rates):16.1f}", end="", flush=True)
            print()


# --- who writes them ---

Arm: TypeAlias = Callable[[Sequence[int], Sequence[int], CostTable], float]
"""Writes a text; returns tokens/s."""


def _arms() -> dict[str, Arm]:
    def sources(*makers: Callable[[], tuple[str, Source]]) -> Arm:
        return lambda prompt, text, costs: _written(
            prompt, text, costs, dict(make() for make in makers)
        )

    def peer(make: Callable[[], Drafter]) -> Arm:
        return lambda prompt, text, costs: _peer(prompt, text, costs, make)

    def suffix() -> tuple[str, Source]:
        return "suffix", SuffixSource()

    def copying() -> tuple[str, Source]:
        return "copy", CopySource()

    return {
        "plain": sources(),
        "suffix": sources(suffix),
        "and copy": sources(suffix, copying),
        "simple/4/16": peer(lambda: _simple(4, 16)),
        "mod/4/2/16": peer(lambda: _Mod(4, 2, 16)),
    }


def _written(
    prompt: Sequence[int], text: Sequence[int], costs: CostTable, beside: dict[str, Source]
) -> float:
    models = Models(costs=costs, draft_token=0.01, acceptance=0.0, overhead=_OVERHEAD)
    simulation = Simulation(
        models,
        Speculation(),
        tokens=len(text),
        seed=1,
        language=Script(prompt, text),
        sources=beside,
        has_draft=False,
    )
    return len(text) / simulation.run().seconds


Drafter: TypeAlias = Callable[[Sequence[int]], list[int]]
"""What one of llama.cpp drafts after a text."""


def _peer(
    prompt: Sequence[int], text: Sequence[int], costs: CostTable, make: Callable[[], Drafter]
) -> float:
    whole, at, seconds, draft_after = [*prompt, *text], len(prompt), 0.0, make()
    while at < len(whole):
        draft = draft_after(whole[:at])[: len(whole) - at - 1]
        seconds += costs.seconds(len(draft) + 1)
        right = 0
        while right < len(draft) and draft[right] == whole[at + right]:
            right += 1
        at += right + 1
    return len(text) / seconds


def _simple(size: int, most: int) -> Drafter:
    """Return `ngram-simple`: what followed the latest place of the last `size` tokens."""

    def draft(text: Sequence[int]) -> list[int]:
        tail = text[-size:]
        for begin in range(len(text) - size - 1, 0, -1):
            if text[begin : begin + size] == tail:
                found = list(text[begin + size : begin + size + most])
                return found if len(found) >= size else []
        return []

    return draft


class _Mod:
    """`ngram-mod`: the latest token after each n-gram, and the one after that, and so on.

    As there, new n-grams are taken in 32 tokens at a time, and all are forgotten and read again
    after five drafts in a row of which less than a quarter stood.
    """

    def __init__(self, size: int, least: int, most: int) -> None:
        self._size, self._least, self._most = size, least, most
        self._known: dict[tuple[int, ...], int] = {}
        self._read = self._low = 0
        self._before: tuple[int, list[int]] = (0, [])  # the last draft, and the text's length then

    def __call__(self, text: Sequence[int]) -> list[int]:
        size = self._size
        self._judge(text)
        if not self._read or self._read + 32 < len(text):
            for begin in range(self._read, len(text) - size):
                self._known[tuple(text[begin : begin + size])] = text[begin + size]
            self._read = len(text) - size
        line = list(text[-size:])
        while len(line) < size + self._most:
            following = self._known.get(tuple(line[-size:]))
            if following is None:
                break
            line.append(following)
        found = line[size:] if len(line) - size >= self._least else []
        self._before = len(text), found
        return found

    def _judge(self, text: Sequence[int]) -> None:
        length, draft = self._before
        if not draft:
            return
        accepted = len(text) - length - 1
        self._low = self._low + 1 if accepted < len(draft) / 4 else 0
        if self._low == 5:
            self._known, self._read, self._low = {}, 0, 0


# --- what is written ---


def _texts(seeds: int, count: int) -> dict[str, list[Text]]:
    """Return the texts of each kind."""
    found: dict[str, list[Text]] = {}
    for task in make_tasks(range(600_000), seeds, count)[0]:
        found.setdefault(task.kind, []).append((task.prompt, task.text))
    model = load(_TOKENIZER, 512, 1)

    def tokenize(text: str) -> list[int]:
        return model.tokenize(text.encode(), False, False)

    for seed in range(seeds):
        for kind, text in _real_texts(tokenize, random.Random(seed), count):
            found.setdefault(kind, []).append(text)
    model.close()
    return found


def _real_texts(tokenize: Tokenize, dice: random.Random, count: int) -> Iterator[tuple[str, Text]]:
    one, other = dice.sample(_MODULES, 2)
    lines = inspect.getsource(one).splitlines(True)
    begin = dice.randrange(len(lines) // 2)
    shown = "".join(lines[begin : begin + 120])
    while len(tokenize(shown)) > _PROMPT:
        shown = shown[: shown.rindex("\n", 0, -1) + 1]
    prompt = tokenize(shown)

    def text(written: str) -> Text:
        return prompt, tokenize(written)[:count]

    yield "py-rename", text(_renamed(shown, dice))
    yield "py-quote", text(_quoting(shown.splitlines(True), other, dice))
    yield "py-other", text(inspect.getsource(other)[2000:])
    table, steps = _tool_output(other, dice)
    yield "py-tool", (tokenize(table), tokenize(steps)[:count])


def _renamed(shown: str, dice: random.Random) -> str:
    """Return a file in which two of its commonest names are others, of one to three words."""
    names = re.findall(r"\b[a-z_]\w{3,}\b", shown)
    common = sorted(sorted(set(names)), key=names.count, reverse=True)[:5]
    for name in dice.sample(common, 2):
        new = "_".join(dice.sample(["entry", "batch", "outer", "lookup", "x"], dice.randint(1, 3)))
        shown = re.sub(rf"\b{name}\b", new, shown)
    return shown


def _quoting(lines: Sequence[str], other: ModuleType, dice: random.Random) -> str:
    remarks = iter(inspect.getsource(other).splitlines(True)[40:])
    text = ""
    while len(text) < 8_000:
        text += "".join(next(remarks, "") for _ in range(dice.randint(1, 3)))
        begin = dice.randrange(max(1, len(lines) - 12))
        text += "".join(lines[begin : begin + dice.randint(5, 12)])
    return text


def _tool_output(other: ModuleType, dice: random.Random) -> tuple[str, str]:
    pods = [(f"pod-{i}-{dice.randrange(16**6):06x}", "Running", i) for i in range(8)]

    def show() -> str:
        rows = (f"{name}  {state}  {age}m  10.0.0.{age % 12}\n" for name, state, age in pods)
        return "NAME  STATUS  AGE  ADDRESS\n" + "".join(rows)

    remarks = iter(inspect.getsource(other).splitlines(True)[40:])
    table, text = show(), ""
    for _ in range(20):
        text += "".join(next(remarks, "") for _ in range(dice.randint(1, 2)))
        for i in dice.sample(range(len(pods)), 2):
            name, _, age = pods[i]
            pods[i] = (name, dice.choice(["Running", "Pending", "Failed"]), age + 1)
        text += show()
    return table, text


if __name__ == "__main__":
    main()
