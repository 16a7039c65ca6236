"""What a policy makes of many models, links and loads, on the virtual clock.

    python -m benchmarks.clock [--grid remote --grid own] [--seed 100] [--out after.json]
    python -m benchmarks.clock --beside before.json

Six grids: a draft elsewhere, one that ends early or lies, a target's own draft, several users, a
GPU, heads. Of each cell the rate over the target's alone; on the GPU, and of heads beside their
target, over the best of that and of drafts of 1, 3 and 8 tokens: of the first text, when nothing
but costs is known, and the mean of later ones. A clock is no machine: what it cannot say is in
`tools/benchmarks/results`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import geometric_mean, mean

from outrider.core.target_costs import Pair
from outrider.costs import CostTable, Point
from outrider.speculation import Policy, Speculation
from tests.support.shared_engine import SharedEngine
from tests.support.simulation import Models, Simulation, known_pair, run_together

_ALONE = Speculation(enabled=False, n_max=0)

_SLOW_GPU = CostTable([(1, 0.0300), (64, 0.0552)])
_CPU = CostTable([(4, 0.055), (8, 0.100), (16, 0.200), (32, 0.400)])
_SHARED_CPU = CostTable([(2, 0.041), (4, 0.057), (8, 0.105), (16, 0.147)])
_FEW_FREE = CostTable([(1, 0.020), (4, 0.022), (8, 0.026), (16, 0.034), (64, 0.1)])
_ZEN = CostTable([(1, 0.0165), (2, 0.0275), (3, 0.039), (4, 0.0305), (8, 0.054), (16, 0.09)])
_FREE = CostTable([(1, 0.02), (16, 0.022)])
_REMOTE = {"gpu": _SLOW_GPU, "cpu": _CPU, "few rows free": _FEW_FREE}
_OWN = {"zen": _ZEN, "rows free": _FREE, "gpu": _SLOW_GPU}
_FLAT = ((1, 0.060), (2, 0.061), (4, 0.063), (6, 0.066), (8, 0.070), (12, 0.085), (16, 0.100))
_STEEP = ((1, 0.022), (2, 0.038), (4, 0.056), (8, 0.105), (16, 0.147))
_AT_LENGTH = {
    "flat": CostTable([Point(rows, seconds, 2e-6 * rows) for rows, seconds in _FLAT]),
    "steep": CostTable([Point(rows, seconds, 1e-5 * rows) for rows, seconds in _STEEP]),
    "gpu": CostTable([Point(1, 0.0300, 5.1e-7), Point(64, 0.0552, 1.1e-6)]),
}
"""Seconds by rows, and in the last ones what each token of the text adds."""

_H200 = ((1, 2.8), (2, 3.0), (4, 3.6), (8, 5.2), (16, 6.4), (32, 7.9), (64, 11.0))
"""Milliseconds of a 7B in Q4_0 by rows, as measured; that of 64 is drawn out."""
_H200_SHAPES = {"7B": (1.0, 0.0007), "32B": (3.57, 0.0009)}
"""Times its decode, and seconds of a token of the draft: 32B takes 10 ms a token."""
_FIXED = (1, 3, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Models under a load. `assumed` are the costs that a policy starts from; None: the true ones.

    Each of `users` writes a text at once after a prompt of `prompt_tokens`. Above 0 `fixed` is the
    acceptance of the same draft in a program that drafts so many tokens always.
    """

    name: str
    models: Models
    assumed: CostTable | None = None
    prompt_tokens: int = 4
    users: int = 1
    has_draft: bool = True
    fixed: float = 0.0

    def seconds(self, speculation: Speculation, known: Pair, seed: int, n: int) -> float:
        """Return the seconds of a token of all users together, each of whom writes `n`."""
        engine = SharedEngine(self.models.costs)
        texts = [
            Simulation(
                self.models,
                speculation,
                tokens=n,
                seed=1000 * seed + user,
                pair=known,
                prompt_tokens=self.prompt_tokens,
                engine=engine,
                has_draft=self.has_draft,
            )
            for user in range(self.users)
        ]
        rate = sum(n / result.seconds for result in run_together(engine, texts))
        return 1.0 / rate

    def known(self) -> Pair:
        """Return what a policy knows before the first text."""
        known = known_pair(self.models)
        known.costs.generation_count = self.users
        if self.assumed is not None:
            known.costs.table = CostTable(self.assumed.points)
        return known


def remote() -> Iterator[Cell]:
    """Yield drafts elsewhere, and in another process on the target's cores."""
    acceptances = (0.05, 0.4, 0.65, 0.85)
    for (name, costs), a, trip in product(_REMOTE.items(), acceptances, (0.0, 0.02, 0.05, 0.15)):
        models = Models(
            costs=costs, draft_token=0.004, acceptance=a, draft_round_trip=trip, overhead=0.001
        )
        yield Cell(name=f"{name}, {a}, {1e3 * trip:.0f} ms away", models=models)
    for a, trip, token in product(acceptances, (0.0005, 0.02), (0.0036, 0.015)):
        models = Models(
            costs=_SHARED_CPU,
            draft_token=token,
            acceptance=a,
            draft_round_trip=trip,
            overhead=0.002,
            same_host=True,
            takes_turns=True,
            read_time=token / 4,
        )
        yield Cell(name=f"in turns, {a}, {1e3 * trip} ms, {1e3 * token} ms", models=models)
    for trip in (0.0, 0.05):
        models = Models(
            costs=_SLOW_GPU, draft_token=0.09, acceptance=0.7, draft_round_trip=trip, overhead=0.001
        )
        yield Cell(name=f"slow draft, {1e3 * trip:.0f} ms", models=models)


def adverse() -> Iterator[Cell]:
    """Yield drafts that end early or lie, costs that are wrong, and long texts."""
    for (name, costs), most, trip in product(_REMOTE.items(), (1, 2), (0.0, 0.005, 0.02)):
        models = Models(
            costs=costs,
            draft_token=0.0005,
            acceptance=0.97,
            draft_round_trip=trip,
            target_round_trip=0.0005,
            overhead=0.0005,
            draft_most=most,
        )
        yield Cell(name=f"ends after {most}, {name}, {1e3 * trip:.0f} ms", models=models)
    for token, most, turns, said in product((0.005, 0.05), (1, 1 << 20), (False, True), (0.0, 0.1)):
        models = Models(
            costs=_FEW_FREE,
            draft_token=token,
            acceptance=0.97,
            draft_round_trip=0.001,
            overhead=0.0005,
            takes_turns=turns,
            same_host=turns,
            draft_most=most,
            draft_reported=said,
        )
        place = "on the target's cores" if turns else "elsewhere"
        yield Cell(name=f"says {said} of {token} s, at most {most}, {place}", models=models)
    for (name, costs), a in product(_REMOTE.items(), (0.05, 0.5, 0.8)):
        models = Models(
            costs=costs, draft_token=0.004, acceptance=a, draft_round_trip=0.005, overhead=0.001
        )
        first, *others = [(each.rows, each.seconds) for each in costs.points]
        dear = 1.6 * first[1]
        wrong = {
            "a token looks dear": [(first[0], dear), *((r, max(s, dear)) for r, s in others)],
            "all looks cheap": [(rows, 0.5 * seconds) for rows, seconds in (first, *others)],
            "rows look free": [(rows, first[1]) for rows, _ in (first, *others)],
        }
        for words, points in wrong.items():
            cell = f"{words}, {name}, {a}"
            yield Cell(name=cell, models=models, assumed=CostTable(points))
    for name, a, length in product(("flat", "steep"), (0.3, 0.6), (2000, 16000)):
        costs = _AT_LENGTH[name]
        models = Models(
            costs=costs, draft_token=0.004, acceptance=a, draft_round_trip=0.002, overhead=0.001
        )
        unknown = CostTable([(each.rows, each.seconds) for each in costs.points])
        cell = f"{name}, {a}, after {length}"
        yield Cell(name=cell, models=models, prompt_tokens=length)
        cell = f"{cell}, slope unknown"
        yield Cell(name=cell, models=models, prompt_tokens=length, assumed=unknown)


def own() -> Iterator[Cell]:
    """Yield drafts in the target's process, after short and long prompts."""
    acceptances = (0.05, 0.3, 0.6, 0.8, 0.9)
    for (name, costs), a, token, n in product(
        _OWN.items(), acceptances, (0.0016, 0.006), (4, 2000)
    ):
        models = Models(
            costs=costs,
            draft_token=0.002,
            acceptance=a,
            own_acceptance=a,
            own_token=token,
            same_host=True,
            takes_turns=True,
            overhead=0.001,
            read_time=token / 6,
        )
        cell = f"{name}, {a}, {1e3 * token} ms, after {n}"
        yield Cell(name=cell, models=models, prompt_tokens=n, has_draft=False)


def users() -> Iterator[Cell]:
    """Yield several users of one target, with a draft elsewhere or its own."""
    for (name, costs), a, n, is_own in product(
        _AT_LENGTH.items(), (0.05, 0.3, 0.6, 0.8), (2, 4, 8), (False, True)
    ):
        models = Models(
            costs=costs,
            draft_token=0.004,
            acceptance=a,
            draft_round_trip=0.002,
            overhead=0.001,
            own_token=0.003 if is_own else 0.0,
            own_acceptance=a,
            same_host=is_own,
            takes_turns=is_own,
            read_time=0.0005 if is_own else 0.0,
        )
        cell = f"{n} users, {name}, {a}, {'own' if is_own else 'remote'}"
        yield Cell(name=cell, models=models, prompt_tokens=300, users=n)


def gpu() -> Iterator[Cell]:
    """Yield a target on an H200 with its own draft there, and with one on a CPU or that joins.

    At temperature .8 llama-server's own choice of a draft's best token is accepted less often than
    one that is drawn with the target's noise: .2 of three tokens where ours are as at 0.
    """
    for (name, (times, token)), (t, fixed), n, count in product(
        _H200_SHAPES.items(), (("T 0", 0.7), ("T .8", 0.4)), (64, 2000), (1, 4, 8, 16)
    ):
        models = _on_h200(times, token, 0.0)
        cell = f"{name}, {t}, after {n}, {count} users"
        yield Cell(
            name=cell, models=models, prompt_tokens=n, users=count, has_draft=False, fixed=fixed
        )
    for times, token, trip in product((3.57, 7.1), (0.0015, 0.006), (0.0004, 0.002, 0.02)):
        models = _on_h200(times, token, trip)
        cell = f"{2.8 * times:.0f} ms, draft elsewhere, {1e3 * token} ms, {1e3 * trip} ms away"
        yield Cell(name=cell, models=models, prompt_tokens=64, fixed=0.7)


def _on_h200(times: float, token: float, trip: float) -> Models:
    """Return a target that takes `times` as long as the 7B, and a draft; in it, or so far away."""
    points = [
        Point(rows, 1e-3 * times * ms, 6.4e-8 * times * (1 + rows / 20)) for rows, ms in _H200
    ]
    return Models(
        costs=CostTable(points),
        draft_token=token,
        acceptance=0.7,
        own_token=0.0 if trip else token,
        own_acceptance=0.7,
        draft_round_trip=trip,
        same_host=not trip,
        takes_turns=not trip,
        gap=0.0003,
        overhead=0.0005,
        read_time=5e-6,
    )


def heads() -> Iterator[Cell]:
    """Yield heads of targets of 13 to 200 ms a token: in the target's process, and on a LAN.

    As a study of a 27B on an RTX 3090 has it, each verified token costs a quarter of a decode, and
    a head's token .06 of one. One elsewhere is sent the hidden rows of each round, and waited for.
    """
    for ms, (a, fixed), count in product(
        _HEAD_TARGETS, ((0.3, 0.3), (0.6, 0.6), (0.8, 0.8), (0.6, 0.35)), (1, 4)
    ):
        cell = f"{ms:.0f} ms, {a} beside {fixed}, {count} users"
        yield Cell(
            name=cell, models=_with_head(ms, a, 0.0), users=count, has_draft=False, fixed=fixed
        )
    for ms, a, trip in product(_HEAD_TARGETS, (0.3, 0.8), (0.0005, 0.002, 0.005, 0.02)):
        cell = f"{ms:.0f} ms, {a}, {1e3 * trip} ms away"
        yield Cell(name=cell, models=_with_head(ms, a, trip))


_HEAD_TARGETS = (13.4, 24.0, 87.0, 200.0)


def _with_head(ms: float, acceptance: float, trip: float) -> Models:
    """Return a target of so many milliseconds a token with a head; in it, or so far away."""
    points = [(rows, 1e-3 * ms * (0.77 + 0.23 * rows)) for rows in (1, 2, 4, 8, 16, 32)]
    return Models(
        costs=CostTable(points),
        draft_token=6e-5 * ms,
        acceptance=acceptance,
        own_token=0.0 if trip else 6e-5 * ms,
        own_acceptance=acceptance,
        draft_round_trip=trip,
        is_head=trip > 0,
        same_host=not trip,
        takes_turns=not trip,
        gap=0.0003,
        overhead=0.0005,
    )


GRIDS: dict[str, Callable[[], Iterator[Cell]]] = {
    "remote": remote,
    "adverse": adverse,
    "own": own,
    "users": users,
    "gpu": gpu,
    "heads": heads,
}


def ratios(cell: Cell, seed: int, texts: int, tokens: int) -> tuple[float, float]:
    """Return the rate over what is compared with: of the first text, and the mean of later ones."""
    known = cell.known()
    first, *later = (
        cell.seconds(Speculation(), known, seed + text, tokens) for text in range(texts)
    )
    beside = cell.seconds(_ALONE, cell.known(), seed, tokens)
    if cell.fixed:
        beside = min(beside, *(_fixed_seconds(cell, n, seed, texts, tokens) for n in _FIXED))
    return beside / first, beside / mean(later)


def _fixed_seconds(cell: Cell, n: int, seed: int, texts: int, tokens: int) -> float:
    """Return the mean seconds of a token with drafts of `n` tokens."""
    models = replace(cell.models, acceptance=cell.fixed, own_acceptance=cell.fixed)
    other, fixed = replace(cell, models=models), Speculation(policy=Policy.FIXED, n_max=n)
    known = other.known()
    return mean(other.seconds(fixed, known, seed + text, tokens) for text in range(texts))


def measure(grid: str, seed: int, texts: int, tokens: int) -> dict[str, tuple[float, float]]:
    """Return the ratios of every cell of a grid by its name."""
    return {cell.name: ratios(cell, seed, texts, tokens) for cell in GRIDS[grid]()}


def describe(grid: str, found: dict[str, tuple[float, float]], before: object) -> Iterator[str]:
    """Yield what a grid shows; beside what it showed before, where that is known."""
    for place, words in enumerate(("first text", "later texts")):
        values = {name: cell[place] for name, cell in found.items()}
        worst = min(values, key=lambda name: values[name])
        line = (
            f"{grid:8} {words:12} {len(values)} cells, mean {geometric_mean(values.values()):.3f}"
        )
        yield f"{line}, worst {values[worst]:.3f} ({worst})"
        if not isinstance(before, dict):
            continue
        by_cell = {name: values[name] / before[name][place] for name in values if name in before}
        low, *_, high = sorted(by_cell, key=lambda name: by_cell[name])
        line = f"{'':21} over before: {geometric_mean(by_cell.values()):.3f}"
        yield f"{line}, {by_cell[low]:.3f} ({low}) to {by_cell[high]:.3f} ({high})"


def main() -> None:
    """Measure, print, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grid", action="append", choices=GRIDS, help="all, unless some are named")
    parser.add_argument("--seed", type=int, default=0, help="of the first text")
    parser.add_argument("--texts", type=int, default=4, help="of a cell, at least 2")
    parser.add_argument("--tokens", type=int, default=256, help="of a text")
    parser.add_argument("--beside", type=Path, help="what --out wrote before, with the same seed")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    before = json.loads(options.beside.read_text()) if options.beside else {}
    found = {}
    for grid in options.grid or GRIDS:
        begin = time.process_time()
        found[grid] = measure(grid, options.seed, options.texts, options.tokens)
        for line in describe(grid, found[grid], before.get(grid)):
            print(line, flush=True)
        print(f"{'':21} {time.process_time() - begin:.0f} s of a processor", flush=True)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
