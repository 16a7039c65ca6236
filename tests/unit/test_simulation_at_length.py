"""On a virtual clock, with costs that grow with the text: drafting is never slower than not to."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

import pytest

from outrider.costs import Attended, CostTable, Point
from outrider.speculation import Speculation
from tests.support.shared_engine import SharedEngine
from tests.support.simulation import Models, Result, Simulation, known_pair, run_together
from tests.support.thorough import THOROUGH, cells

_MEMORY_BOUND = (0.060, 0.061, 0.062, 0.063, 0.064, 0.066, 0.070, 0.085, 0.100)
TARGETS = {
    # Rows are almost free, but each takes 60 ms more after 30,000 tokens.
    "flat": [
        Point(rows, seconds, 2e-6 * rows)
        for rows, seconds in zip((1, 2, 3, 4, 5, 6, 8, 12, 16), _MEMORY_BOUND, strict=True)
    ],
    # Every row costs, before a text and after it: a processor.
    "steep": [
        Point(rows, seconds, 1e-5 * rows)
        for rows, seconds in ((1, 0.022), (2, 0.038), (4, 0.056), (8, 0.105), (16, 0.147))
    ],
    # All rows of a session read its cache once: a GPU.
    "gpu": [Point(1, 0.0300, 5.1e-7), Point(64, 0.0552, 1.1e-6)],
}
DRAFT_TOKEN, SHORT, TOKENS = 0.004, 300, 64
GENERATIONS = 8 if THOROUGH else 6
LENGTHS = (1000, 2000, 4000, 8000, 16000, 30000) if THOROUGH else (1000, 30000)
ACCEPTANCES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9) if THOROUGH else (0.2, 0.6)


def together(
    models: Models, speculation: Speculation, lengths: Sequence[int], seed: int, pair=None
) -> list[Result]:
    """Run generations after prompts of these lengths on one target, which shares its decodes."""
    engine = SharedEngine(models.costs)
    simulations = [
        Simulation(
            models,
            speculation,
            tokens=TOKENS,
            seed=10 * seed + i,
            pair=pair,
            prompt_tokens=length,
            engine=engine,
        )
        for i, length in enumerate(lengths)
    ]
    return run_together(engine, simulations)


def times_plain(
    models: Models, lengths: Sequence[int], measured: CostTable | None = None
) -> list[float]:
    """Return what each of some generations in a row makes, all sessions counted, over plain.

    `measured` is what the target reported if that is not what its decodes cost.
    """

    def rate(results: Sequence[Result]) -> float:
        return sum(1.0 / result.seconds for result in results)

    off = Speculation(enabled=False, n_max=0)
    plain = rate(together(models, off, lengths, 0))
    pair = known_pair(models)
    pair.costs.generation_count = len(lengths)
    pair.costs.table = measured or pair.costs.table
    return [
        rate(together(models, Speculation(), lengths, seed, pair)) / plain
        for seed in range(GENERATIONS)
    ]


@pytest.mark.parametrize(
    ("target", "acceptance", "length", "beside"), cells(TARGETS, ACCEPTANCES, LENGTHS, [0, 3])
)
def test_after_a_long_text_drafting_is_never_slower(
    target: str, acceptance: float, length: int, beside: int
) -> None:
    models = Models(
        costs=CostTable(TARGETS[target]),
        draft_token=DRAFT_TOKEN,
        acceptance=acceptance,
        draft_round_trip=0.002,
        overhead=0.001,
    )
    first, *others = times_plain(models, [length] + beside * [SHORT])
    assert statistics.median(others) >= 0.97
    assert first >= 0.9, "of an unknown draft"


@pytest.mark.parametrize("beside", [0, 3], ids=["alone", "beside 3 short ones"])
@pytest.mark.parametrize("length", LENGTHS if THOROUGH else (8000,))
@pytest.mark.parametrize("acceptance", ACCEPTANCES)
@pytest.mark.parametrize("target", TARGETS if THOROUGH else ("flat",))
def test_slopes_that_were_not_seen_at_load_are_learned(
    target: str, acceptance: float, length: int, beside: int
) -> None:
    models = Models(
        costs=CostTable(TARGETS[target]),
        draft_token=DRAFT_TOKEN,
        acceptance=acceptance,
        draft_round_trip=0.002,
        overhead=0.001,
    )
    without = CostTable([(rows, seconds) for rows, seconds, _ in TARGETS[target]])
    _, *others = times_plain(models, [length] + beside * [SHORT], without)
    assert statistics.median(others) >= 0.95


@pytest.mark.parametrize(("target", "least"), [("flat", 1.7), ("gpu", 2.6)])
def test_beside_others_a_good_draft_pays(target: str, least: float) -> None:
    models = Models(
        costs=CostTable(TARGETS[target]),
        draft_token=DRAFT_TOKEN,
        acceptance=0.9,
        draft_round_trip=0.002,
        overhead=0.001,
    )
    assert statistics.median(times_plain(models, 4 * [SHORT])) > least


@pytest.mark.parametrize("length", [4, 300, 3000] if THOROUGH else [300, 3000])
@pytest.mark.parametrize("acceptance", [0.3, 0.5, 0.6, 0.7] if THOROUGH else [0.3, 0.6])
def test_a_plain_cost_that_was_measured_too_high_loses_little(
    acceptance: float, length: int
) -> None:
    models = Models(
        costs=CostTable([(1, 0.030), (2, 0.045), (4, 0.060), (8, 0.100)]),
        draft_token=DRAFT_TOKEN,
        acceptance=acceptance,
        draft_round_trip=0.002,
        overhead=0.001,
    )
    pair = known_pair(models)
    pair.costs.table = CostTable([(1, 0.060), (2, 0.062), (4, 0.063), (8, 0.100)])
    off = Speculation(enabled=False, n_max=0)
    plain = Simulation(models, off, tokens=256, seed=0, prompt_tokens=length).run().seconds
    first, *others = [
        plain
        / Simulation(
            models,
            Speculation(),
            tokens=256,
            seed=seed,
            pair=pair,
            prompt_tokens=length,
        )
        .run()
        .seconds
        for seed in range(4)
    ]
    # Nothing is plain only to see what that costs: a first text pays for the error.
    assert first > 0.7
    assert statistics.median(others) > 0.85


@pytest.mark.parametrize("draft_token", [0.003, DRAFT_TOKEN, 0.008])
def test_a_draft_that_runs_ahead_is_expected_when_its_first_frame_comes(draft_token: float) -> None:
    """It sends its tokens as they are 5 ms old: one that is waited for alone comes with others."""
    models = Models(
        costs=CostTable(TARGETS["gpu"]),
        draft_token=draft_token,
        acceptance=0.4,
        draft_round_trip=0.002,
        overhead=0.001,
    )
    assert statistics.median(times_plain(models, [4000])) >= 1.0


class Noisy(CostTable):
    """A target on a machine that does other things: decodes take half to twice as long."""

    dice = random.Random(4)

    def seconds(self, row_count: float, attended: Attended = ()) -> float:
        return self.dice.choice((0.7, 1.5)) * super().seconds(row_count, attended)


def test_on_a_noisy_machine_a_long_text_has_few_rounds_only_to_see_what_they_cost() -> None:
    models = Models(costs=CostTable(TARGETS["gpu"]), draft_token=DRAFT_TOKEN, acceptance=0.9)
    plain_rounds = []
    for seed in range(20):
        world = Simulation(
            models,
            Speculation(run_ahead=False),
            tokens=TOKENS,
            seed=seed,
            prompt_tokens=4000,
            engine=SharedEngine(Noisy(TARGETS["gpu"])),
        )
        counts = world.run().counts
        plain_rounds.append(counts.rounds - counts.drafted_rounds)
    assert statistics.mean(plain_rounds) < 9.0
