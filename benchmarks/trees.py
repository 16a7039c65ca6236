"""A table of trees against chains: what is accepted of the best of either, and tokens a second.

`python -m benchmarks.trees`, or with `--costs ROWS:MS,...` for the decode costs of a target of your
own, as `outrider doctor` shows them, and `--ranks` for how often the first, second, third candidate
is what the target says. Computed, not timed: nothing is decoded. The draft is taken to be ready
when the target is, so a round takes its decode and `--overhead-ms` beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from rich import box
from rich.console import Console
from rich.table import Table

from orchestrator.core.branching import best_survivals
from outrider.costs import CostTable
from outrider.messages import MAX_DRAFT
from outrider.trees import MAX_LEAVES

COSTS = {
    # Measured: a 1.1B in Q4_0, two cores of a Zen 4.
    "CPU, 1.1B": CostTable(
        [
            *((1, 0.017), (2, 0.028), (3, 0.040), (4, 0.031), (5, 0.043), (6, 0.055)),
            *((7, 0.066), (8, 0.055), (16, 0.105), (64, 0.420)),
        ]
    ),
    # Not measured: what the tests of the controller take for a GPU, 30 ms and .4 a row.
    "GPU, taken": CostTable([(1, 0.0300), (64, 0.0552)]),
    "rows free": CostTable([(1, 0.0300), (64, 0.0300)]),
}
RANKS = {
    # Of a 1.1B-shaped pair at T=0.8, top-k 40: shared noise, one candidate .73, best three .93.
    "shared noise, T=0.8": (0.73, 0.13, 0.07),
    "acceptance .5": (0.50, 0.20, 0.10),
    "acceptance .82": (0.82, 0.09, 0.04),
}
OVERHEADS = (0.0, 0.002, 0.050)


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
    for leaf_limit in range(1, MAX_LEAVES + 1):
        survivals = list(islice(best_survivals(ranks, leaf_limit), MAX_DRAFT - 1))
        count, rate = best_of(costs, survivals, overhead)
        bests.append(Best(count, leaf_limit, sum(survivals[:count]), rate))
    return Compared(bests[0], max(bests, key=lambda each: each.rate))


def table(
    costs: dict[str, CostTable], ranks: dict[str, Sequence[float]], overheads: Sequence[float]
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
                    name, draft, f"{1e3 * overhead:g}", _told(found.chain), *_tree_cells(found)
                )
    return shown


def _tree_cells(found: Compared) -> tuple[str, str]:
    if found.tree.leaves == 1:
        return "the chain", "1.00"
    return f"{_told(found.tree)}, leaves {found.tree.leaves}", f"{found.gain:.2f}"


def _told(best: Best) -> str:
    return f"{best.nodes} for {best.accepted:.2f}, {best.rate:.1f}/s"


def main() -> None:
    """Compute and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--costs", help="of your own target, as ROWS:MS,ROWS:MS ...")
    parser.add_argument("--ranks", help="chances of the candidates of a token, as .73,.13,.07")
    parser.add_argument("--overhead-ms", type=float, action="append")
    options = parser.parse_args()
    costs, ranks = dict(COSTS), {name: tuple(chances) for name, chances in RANKS.items()}
    if options.costs:
        points = [pair.split(":") for pair in options.costs.split(",")]
        costs = {"yours": CostTable([(int(rows), float(ms) / 1e3) for rows, ms in points])}
    if options.ranks:
        ranks = {options.ranks: tuple(map(float, options.ranks.split(",")))}
    overheads = [each / 1e3 for each in options.overhead_ms or ()] or OVERHEADS
    print("draft tokens for those accepted of them, on average, and tokens a second")
    Console(width=140).print(table(costs, dict(ranks), overheads))


if __name__ == "__main__":
    main()
