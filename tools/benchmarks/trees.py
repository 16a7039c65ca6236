"""A table of trees against chains: what is accepted of the best of either, and tokens a second.

`python -m benchmarks.trees` takes the costs and chances below. With `--model` and `--draft-model`
it first measures those of a pair here: what decodes cost in a pool of cells, and how often the
draft's first, second, third candidate is what the target says. `--costs ROWS:MS,...` and `--ranks`
say them. The table itself is computed: the draft is taken to be ready when the target is, so that a
round takes its decode and `--overhead-ms` beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from orchestrator.core.branching import best_survivals
from outrider import noise
from outrider.costs import CostTable
from outrider.engine.calibrate import decode_costs
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk
from outrider.messages import MAX_DRAFT
from outrider.sampling import SamplingParameters
from outrider.trees import MAX_LEAVES

COSTS = {
    # Measured: a 1.1B in Q4_0, two cores of a Zen 4, up to 8 rows (outrider/costs.py).
    "CPU, 1.1B": CostTable(
        [
            *((1, 0.017), (2, 0.028), (3, 0.040), (4, 0.031)),
            *((5, 0.043), (6, 0.055), (7, 0.066), (8, 0.055)),
        ]
    ),
    # Not measured: what the tests of the controller take for a GPU, 30 ms and .4 a row.
    "GPU, taken": CostTable([(1, 0.0300), (64, 0.0552)]),
    "rows free": CostTable([(1, 0.0300), (64, 0.0300)]),
}
RANKS = {
    # Measured with --model and --draft-model, 450 tokens at T=0.8, top-k 40.
    "the bundled pair": (0.74, 0.09, 0.03),
    "a 1.1B-shaped pair": (0.75, 0.12, 0.06),
    # Not measured: a draft that is worse, and surer of its second.
    "right half the time": (0.50, 0.20, 0.10),
}
OVERHEADS = (0.0, 0.002, 0.050)
PROMPTS = (
    "def read_config(path):\n    ",
    "class Cache:\n    def __init__(self, size):\n",
    "import os\nimport sys\n\ndef parse(path):\n",
)
TOKENS = 150  # of each prompt's text
SAMPLING = SamplingParameters(temperature=0.8)


@dataclass(frozen=True, slots=True)
class Best:
    """The best draft of one kind."""

    nodes: int
    leaves: int
    accepted: float  # tokens on average
    rate: float  # tokens a second


@dataclass(frozen=True, slots=True)
class Compared:
    """The best chain and the best tree."""

    chain: Best
    tree: Best

    @property
    def gain(self) -> float:
        """The tree's rate over the chain's."""
        return self.tree.rate / self.chain.rate


def best_of(costs: CostTable, survivals: Sequence[float], overhead: float) -> tuple[int, float]:
    """Return how many of the nodes make most tokens a second, and how many those are."""
    best, most, tokens = 0, 1.0 / (costs.seconds(1) + overhead), 1.0
    for count, survival in enumerate(survivals, 1):
        tokens += survival
        rate = tokens / (costs.seconds(count + 1) + overhead)
        if rate > most:
            best, most = count, rate
    return best, most


def compared(costs: CostTable, ranks: Sequence[float], overhead: float) -> Compared:
    """Return the best chain and the best tree of any number of leaves."""
    bests = []
    most = min(MAX_DRAFT, costs.points[-1].rows - 1)  # no further than the costs are known
    for leaf_limit in range(1, MAX_LEAVES + 1):
        survivals = list(islice(best_survivals(ranks, leaf_limit), most))
        count, rate = best_of(costs, survivals, overhead)
        bests.append(Best(count, leaf_limit, sum(survivals[:count]), rate))
    return Compared(bests[0], max(bests, key=lambda each: each.rate))


def open_model(path: Path, threads: int) -> LlamaModel:
    """Return a model with a pool of cells for one session."""
    return LlamaModel(
        LlamaConfig(
            path=path,
            context=1024,
            sequence_count=1,
            thread_count=threads,
            pad_multiple=1,
            batch_rows=512,
            pool=True,
            flash_attention=False,
        )
    )


def measured_ranks(target: LlamaModel, draft: LlamaModel, count: int = 3) -> list[float]:
    """Return how often the draft's k-th best candidate, by the shared noise, is what comes."""
    found, hits = 0, np.zeros(count)
    for seed, prompt in enumerate(PROMPTS):
        text = target.tokenize(prompt.encode(), True, False)
        for model in (target, draft):
            model.truncate(0, 0)
            model.decode([Chunk(0, 0, text[:-1], 0)])
        for _ in range(TOKENS):
            position = len(text)
            rows = [m.decode([Chunk(0, position - 1, text[-1:], 1)])[0][0] for m in (target, draft)]
            samplers = [model.sampler(SAMPLING, seed) for model in (target, draft)]
            its, guesses = (s.distribution(row) for s, row in zip(samplers, rows, strict=True))
            token_id = its.race(seed, 0, position)[0]
            uniforms = noise.uniforms(seed, 0, position, guesses.token_ids)
            with np.errstate(divide="ignore"):
                scores = np.log(guesses.weights) - np.log(-np.log(uniforms))
            best = guesses.token_ids[np.argsort(-scores)][:count]
            hits[: len(best)] += best == token_id
            found += 1
            text.append(int(token_id))
            if token_id in target.describe().vocabulary.end_token_ids:
                break
    return [float(each) for each in hits / found]


def table(
    costs: Mapping[str, CostTable], ranks: Mapping[str, Sequence[float]], overheads: Sequence[float]
) -> Table:
    """Return a row for every table of costs, kind of draft and overhead."""
    shown = Table(box=box.SIMPLE)
    for title in ("decode costs", "draft", "beside, ms", "chain", "tree", "tree / chain"):
        shown.add_column(title, justify="left" if title in ("decode costs", "draft") else "right")
    for name, cost in costs.items():
        for draft, chances in ranks.items():
            for overhead in overheads:
                found = compared(cost, chances, overhead)
                shown.add_row(
                    name, draft, f"{1e3 * overhead:g}", _described(found.chain), *_tree_cells(found)
                )
    return shown


def _tree_cells(found: Compared) -> tuple[str, str]:
    if found.tree.leaves == 1:
        return "the chain", "1.00"
    return f"{_described(found.tree)}, leaves {found.tree.leaves}", f"{found.gain:.2f}"


def _described(best: Best) -> str:
    return f"{best.nodes} for {best.accepted:.2f}, {best.rate:.1f}/s"


def main() -> None:
    """Measure what is to be measured, compute and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a target to measure")
    parser.add_argument("--draft-model", type=Path, help="its draft")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--costs", help="of your own target, as ROWS:MS,ROWS:MS ...")
    parser.add_argument("--ranks", help="chances of the candidates of a token, as .73,.13,.07")
    parser.add_argument("--overhead-ms", type=float, action="append")
    options = parser.parse_args()
    costs: dict[str, CostTable] = dict(COSTS)
    ranks: dict[str, Sequence[float]] = dict(RANKS)
    if options.model:
        target = open_model(options.model, options.threads)
        points = decode_costs(target, perf_counter)
        print("ms by rows:", ", ".join(f"{p.rows}:{1e3 * p.seconds:.2f}" for p in points))
        costs = {options.model.stem: CostTable(points)}
        if options.draft_model:
            chances = measured_ranks(target, open_model(options.draft_model, options.threads))
            print("chances of the candidates:", ", ".join(f"{each:.2f}" for each in chances))
            ranks = {"measured": chances}
    if options.costs:
        pairs = [pair.split(":") for pair in options.costs.split(",")]
        costs = {"yours": CostTable([(int(rows), float(ms) / 1e3) for rows, ms in pairs])}
    if options.ranks:
        ranks = {options.ranks: tuple(map(float, options.ranks.split(",")))}
    overheads = [each / 1e3 for each in options.overhead_ms or ()] or OVERHEADS
    print("draft tokens for those accepted of them, on average, and tokens a second")
    Console(width=140).print(table(costs, ranks, overheads))


if __name__ == "__main__":
    main()
