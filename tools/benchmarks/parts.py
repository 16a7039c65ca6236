"""One completion that goes from prose to copied code and back: tokens/s of each part, by source.

    python -m model_making.copying --shape 1.1b --agreement 0.8 --tokenizer GGUF --out DIR
    python -m benchmarks.parts DIR [--texts 4] [--kind mixed]

Every text is written with each choice of drafters, one after the other, in an order that differs
from text to text. A part's rate is of the tokens after its first one; the last column is of the
whole text without its first token. Medians; the last lines are all sources together over the best
single one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from statistics import median
from time import monotonic

from outrider.client import Delta, GenerateOptions, OutriderClient
from outrider.sampling import GREEDY
from outrider.speculation import MODEL
from outrider_cli.generate.run import wait_for_pair
from outrider_cli.options import ModelOptions
from outrider_cli.screen import Progress
from outrider_cli.services.local import Hosted, LocalPlan, local_services

ALL = "all"
ARMS: dict[str, GenerateOptions] = {
    "alone": GenerateOptions(enabled=False),
    **{name: GenerateOptions(drafters=frozenset({name})) for name in (MODEL, "suffix", "copy")},
    "ngram": GenerateOptions(drafters=frozenset({"ngram"})),
    ALL: GenerateOptions(),
}


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt, and how long the parts of the text are that follows it."""

    prompt: list[int]
    parts: list[tuple[str, int]]  # what each is, and its tokens

    @property
    def count(self) -> int:
        """The text's tokens."""
        return sum(count for _, count in self.parts)


def read_texts(folder: Path, kind: str) -> list[Text]:
    """Return the tasks that model_making/copying.py wrote; adjacent equal ones are one part."""
    found = []
    for each in json.loads((folder / "tasks.json").read_text(encoding="utf-8")):
        if each["kind"] == kind:
            runs = groupby(each["parts"], key=lambda part: part[0])
            parts = [(name, sum(count for _, count in run)) for name, run in runs]
            found.append(Text(each["prompt"], parts))
    if not found:
        raise SystemExit(f"{folder} has no tasks of the kind {kind}")
    return found


@dataclass(slots=True)
class Arrivals:
    """When tokens came: of each message how many there were then, and the time in seconds."""

    counts: list[tuple[int, float]] = field(default_factory=list)

    def note(self, count: int) -> None:
        """Take note of `count` more tokens."""
        before = self.counts[-1][0] if self.counts else 0
        self.counts.append((before + count, monotonic()))

    def rate(self, begin: int, end: int) -> float:
        """Return tokens/s between two lengths of the text, which is at least `end` long."""
        first, since = self._at(max(1, begin))
        last, until = self._at(end)
        return (last - first) / max(1e-9, until - since)

    def _at(self, count: int) -> tuple[int, float]:
        return next(each for each in self.counts if each[0] >= count)


async def write(client: OutriderClient, text: Text, arm: GenerateOptions) -> Arrivals:
    """Write a text; return when its tokens came."""
    how = replace(
        arm,
        token_limit=text.count,
        sampling=GREEDY,
        seed=1,
        ignore_eos=True,
        ignore_cached_prefix=True,
    )
    arrivals = Arrivals()
    async for event in client.generate(text.prompt, how):
        if isinstance(event, Delta):
            arrivals.note(len(event.token_ids))
    return arrivals


async def measure(
    folder: Path, texts: Sequence[Text], options: ModelOptions
) -> dict[str, list[list[float]]]:
    """Return each arm's rates, by text: of each part and of the whole."""
    plan = LocalPlan(
        target=Hosted(folder / "target.gguf", options), draft=Hosted(folder / "draft.gguf", options)
    )
    rates: dict[str, list[list[float]]] = {name: [] for name in ARMS}
    async with (
        local_services(plan) as services,
        OutriderClient(await services.start()) as client,
    ):
        await services.watch(wait_for_pair(client, Progress()))
        for number, text in enumerate(texts):
            order = random.Random(number).sample(list(ARMS), len(ARMS))
            for name in order:
                its = await services.watch(write(client, text, ARMS[name]))
                ends = [0, *accumulate(count for _, count in text.parts)]
                parts = [its.rate(*each) for each in pairwise(ends)]
                rates[name].append([*parts, its.rate(1, text.count)])
    return rates


def report(rates: dict[str, list[list[float]]], names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a table."""
    columns = [*names, "whole"]
    yield "| drafters | " + " | ".join(columns) + " |"
    yield "|---" * (1 + len(columns)) + "|"
    medians = {
        arm: [median(column) for column in zip(*rows, strict=True)] for arm, rows in rates.items()
    }
    for arm, its in medians.items():
        yield f"| {arm} | " + " | ".join(f"{rate:.1f}" for rate in its) + " |"
    singles = [its for arm, its in medians.items() if arm != ALL]
    best = [max(column) for column in zip(*singles, strict=True)]
    over = (mine / other for mine, other in zip(medians[ALL], best, strict=True))
    yield "| all, over the best | " + " | ".join(f"{ratio:.2f}" for ratio in over) + " |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="that model_making.copying wrote")
    parser.add_argument("--kind", default="mixed")
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--threads", type=int, default=0)
    asked = parser.parse_args()
    texts = read_texts(asked.folder, asked.kind)[: asked.texts]
    options = ModelOptions(threads=asked.threads, sessions=1, numerics="native")
    rates = asyncio.run(measure(asked.folder, texts, options))
    for line in report(rates, [name for name, _ in texts[0].parts]):
        print(line)


if __name__ == "__main__":
    main()
