"""Thousands of generations on a virtual clock: no delay, loss or death changes a text."""

from __future__ import annotations

import random
import statistics

import pytest

from outrider.costs import CostTable
from outrider.speculation import Policy, Speculation
from tests.support.simulation import Faults, Models, Result, Simulation, alone, known_pair
from tests.support.thorough import THOROUGH, cells

GPU = CostTable([(1, 0.0300), (64, 0.0300 + 0.0004 * 63)])
CPU = CostTable([(4, 0.055), (8, 0.100), (16, 0.200), (32, 0.400)])
ONE_ROW = CostTable([(1, 0.020), (4, 0.022), (8, 0.026), (16, 0.034), (64, 0.1)])
TARGETS = {"one row": ONE_ROW, "gpu": GPU, "cpu": CPU}
TOKENS = 48


def anything(dice: random.Random) -> tuple[Models, Speculation, Faults]:
    """Return a pair, a request and a world that none has thought of."""
    models = Models(
        costs=dice.choice([GPU, CPU]),
        draft_token=dice.choice([0.0005, 0.003, 0.02, 0.2]),
        acceptance=dice.choice([0.0, 0.05, 0.5, 0.8, 0.95, 1.0]),
        draft_round_trip=dice.choice([0.0, 0.001, 0.02, 0.15, 0.4]),
        target_round_trip=dice.choice([0.0, 0.0, 0.02, 0.1]),
        overhead=0.001,
        same_host=dice.random() < 0.3,
        slowdown=dice.choice([1.0, 1.5]),
        draft_slowdown=dice.choice([1.0, 3.0]),
        continues=dice.random() < 0.7,
    )
    speculation = Speculation(
        policy=dice.choice(list(Policy)),
        n_max=dice.choice([1, 3, 8, 16]),
        n_min=dice.choice([0, 0, 1]),
        run_ahead=dice.choice([None, None, True, False]),
    )
    faults = Faults(
        frame_loss=dice.choice([0.0, 0.0, 0.2]),
        frame_repeat=dice.choice([0.0, 0.2]),
        jitter=dice.choice([0.0, 0.05]),
        draft_deaths=dice.choice([0.0, 0.0, 1.0]),
        target_deaths=dice.choice([0.0, 0.0, 0.7]),
        evictions=dice.choice([0.0, 0.0, 2.0]),
        stalls=dice.choice([0.0, 0.0, 0.5]),
    )
    return models, speculation, faults


@pytest.mark.parametrize("part", range(10 if THOROUGH else 2))
def test_the_text_is_the_targets_own_in_any_world(part: int) -> None:
    for seed in range(100 * part, 100 * (part + 1)):
        models, speculation, faults = anything(random.Random(seed))
        simulation = Simulation(models, speculation, tokens=TOKENS, seed=seed, faults=faults)
        result = simulation.run()
        assert result.text == alone(simulation.language, TOKENS), seed
        assert result.stale_rows == 0, seed


def test_a_generation_repeats_itself_exactly() -> None:
    models, speculation, faults = anything(random.Random(5))
    one, two = (
        Simulation(models, speculation, tokens=TOKENS, seed=5, faults=faults).run()
        for _ in range(2)
    )
    assert (one.seconds, one.counts) == (two.seconds, two.counts)


def ratio(models: Models, faults: Faults | None = None, tokens: int = 256) -> tuple[float, Result]:
    """Return how much faster the measured policy is than the target alone, once it is warm."""
    pair = known_pair(models)
    seconds, result = [], None
    for seed in range(5):
        simulation = Simulation(
            models, Speculation(), tokens=tokens, seed=seed, pair=pair, faults=faults
        )
        result = simulation.run()
        seconds.append(result.seconds)
    assert result is not None
    off = Speculation(enabled=False, n_max=0)
    plain = Simulation(models, off, tokens=tokens, seed=0).run().seconds
    return plain / statistics.median(seconds[1:]), result


ROUND_TRIPS = (0.0, 0.001, 0.005, 0.02, 0.05, 0.15, 0.4)


@pytest.mark.parametrize(("target", "round_trip"), cells(["gpu", "cpu"], ROUND_TRIPS))
def test_a_junk_draft_costs_next_to_nothing(target: str, round_trip: float) -> None:
    costs = TARGETS[target]
    junk = Models(
        costs=costs,
        draft_token=0.006,
        acceptance=0.01,
        draft_round_trip=round_trip,
        same_host=costs is CPU,
        slowdown=1.5 if costs is CPU else 1.0,
    )
    faster, result = ratio(junk)
    assert faster > 0.97
    assert result.decodes <= 1.01 * 256


@pytest.mark.parametrize("round_trip", ROUND_TRIPS)
def test_a_draft_slower_than_the_target_costs_next_to_nothing(round_trip: float) -> None:
    slow = Models(
        costs=GPU, draft_token=0.09, acceptance=0.7, draft_round_trip=round_trip, overhead=0.001
    )
    assert ratio(slow)[0] > 0.97


def test_a_draft_that_stalls_now_and_then_is_not_waited_for() -> None:
    models = Models(costs=GPU, draft_token=0.003, acceptance=0.7, draft_round_trip=0.001)
    assert ratio(models, Faults(stalls=0.2, stall=2.0), tokens=600)[0] > 1.0


@pytest.mark.parametrize(
    ("round_trip", "acceptance"), cells(ROUND_TRIPS, [0.5, 0.8, 0.95], together=1)
)
def test_a_good_draft_never_makes_it_slower(round_trip: float, acceptance: float) -> None:
    models = Models(
        costs=GPU,
        draft_token=0.003,
        acceptance=acceptance,
        draft_round_trip=round_trip,
        overhead=0.001,
    )
    assert ratio(models)[0] > 0.97


@pytest.mark.parametrize(
    ("target", "round_trip", "most"), cells(TARGETS, [0.0, 0.001, 0.005, 0.01, 0.02, 0.05], [1, 2])
)
def test_a_draft_that_ends_every_order_early_costs_next_to_nothing(
    target: str, round_trip: float, most: int
) -> None:
    models = Models(
        costs=TARGETS[target],
        draft_token=0.0005,
        acceptance=0.97,
        draft_round_trip=round_trip,
        target_round_trip=0.0005,
        overhead=0.0005,
        draft_most=most,
    )
    assert ratio(models)[0] > 0.97


@pytest.mark.parametrize(
    ("draft_token", "most", "turns", "reported"),
    cells([0.005, 0.015, 0.05], [1, 4, 1 << 20], [False, True], [0.0, 0.1]),
)
def test_a_draft_that_lies_about_its_time_costs_next_to_nothing(
    draft_token: float, most: int, turns: bool, reported: float
) -> None:
    models = Models(
        costs=ONE_ROW,
        draft_token=draft_token,
        acceptance=0.97,
        draft_round_trip=0.001,
        overhead=0.0005,
        takes_turns=turns,
        same_host=turns,
        draft_most=most,
        draft_reported=reported,
    )
    # Each look at it costs at most twelve tokens, and it is looked at less and less often.
    assert ratio(models, tokens=512)[0] > 0.93


def test_rounds_ahead_hide_the_way_to_a_distant_target() -> None:
    models = Models(
        costs=GPU,
        draft_token=0.001,
        acceptance=0.95,
        target_round_trip=0.1,
        overhead=0.001,
    )
    ahead = Speculation(policy=Policy.FIXED, n_max=4, run_ahead=True)
    waits = Speculation(policy=Policy.FIXED, n_max=4, run_ahead=False)

    def seconds(speculation: Speculation) -> float:
        pair = known_pair(models)
        runs = [
            Simulation(models, speculation, tokens=256, seed=seed, pair=pair).run()
            for seed in range(3)
        ]
        assert all(run.stale_rows == 0 for run in runs)
        return statistics.median(run.seconds for run in runs)

    assert seconds(ahead) < 0.6 * seconds(waits)


ZEN = CostTable([(2, 0.041), (4, 0.057), (8, 0.105), (16, 0.147)])


def in_turns(acceptance: float, draft_token: float, round_trip: float) -> float:
    """Return the median speed-up of eight new pairs whose two models share their cores."""
    models = Models(
        costs=ZEN,
        draft_token=draft_token,
        acceptance=acceptance,
        draft_round_trip=round_trip,
        overhead=0.002,
        same_host=True,
        takes_turns=True,
        read_time=draft_token / 4,
    )
    plain = 256 * (ZEN.seconds(1) + models.overhead)
    return statistics.median(
        plain / Simulation(models, Speculation(), tokens=256, seed=seed).run().seconds
        for seed in range(8)
    )


@pytest.mark.parametrize(
    ("draft_token", "round_trip", "acceptance"),
    cells([0.0036, 0.015, 0.035, 0.07], [0.0005, 0.02, 0.05, 0.15, 0.4], [0.0, 0.3, 0.65]),
)
def test_in_turns_no_draft_costs_more_than_a_few_percent(
    draft_token: float, round_trip: float, acceptance: float
) -> None:
    assert in_turns(acceptance, draft_token, round_trip) > 0.96


def test_in_turns_a_good_draft_pays_from_the_first_generation_on() -> None:
    assert in_turns(0.65, 0.0036, 0.0005) > 1.45
    assert in_turns(0.9, 0.0036, 0.0005) > 1.9
    assert in_turns(0.9, 0.0036, 0.02) > 1.5
    assert in_turns(0.9, 0.015, 0.0005) > 1.2
