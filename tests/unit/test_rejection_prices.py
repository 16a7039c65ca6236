"""The controller where a rejected draft is expensive: a target that goes back to checkpoints."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest

from outrider.core.control import Control
from outrider.core.outcomes import Outcome
from outrider.core.speculate import control
from outrider.core.target_costs import TakenBack
from outrider.costs import CostTable, RejectionCost
from outrider.messages import Rule, ServiceTime
from outrider.speculation import Policy, Speculation
from tests.support.simulation import Models, Result, Simulation, alone, known_pair

GPU = CostTable([(1, 0.0300), (64, 0.0300 + 0.0004 * 63)])
CPU = CostTable([(1, 0.017), (2, 0.028), (4, 0.031), (8, 0.055), (16, 0.110), (32, 0.220)])
TOKENS, SEEDS = 128, 5
DEAR, CHEAP = RejectionCost(0.02, 0.02), RejectionCost(0.0005, 0.0005)


def run(models: Models, speculation: Speculation | None = None) -> tuple[float, Sequence[Result]]:
    """Return how much faster than the target alone a pair is once it is known, and its texts."""
    known, results = known_pair(models), []
    for seed in range(SEEDS):
        simulation = Simulation(
            models, speculation or Speculation(), tokens=TOKENS, seed=seed, pair=known
        )
        results.append(simulation.run())
        assert results[-1].text == alone(simulation.language, TOKENS)
    off = Speculation(enabled=False, n_max=0)
    plain = Simulation(models, off, tokens=TOKENS, seed=0).run().seconds
    return plain / statistics.median(each.seconds for each in results[1:]), results


def drafted(results: Sequence[Result]) -> list[int]:
    """Return the draft tokens of each round, of generations that know the pair."""
    return [count for each in results[1:] for count in each.counts.drafted_by_round]


@pytest.mark.parametrize("price", [CHEAP, DEAR], ids=["cheap", "dear"])
@pytest.mark.parametrize(("acceptance", "free"), [(0.05, 0), (0.5, 0), (0.5, 4), (0.9, 0)])
@pytest.mark.parametrize("costs", [GPU, CPU], ids=["gpu", "cpu"])
def test_drafts_are_never_slower_than_the_target_alone(
    costs: CostTable, acceptance: float, free: int, price: RejectionCost
) -> None:
    models = Models(
        costs=costs,
        draft_token=0.002,
        acceptance=acceptance,
        draft_round_trip=0.001,
        overhead=0.001,
        rejection=price._replace(free_count=free),
    )
    assert run(models)[0] > 0.97


def test_less_is_drafted_the_dearer_a_rejection_is_and_nothing_where_it_does_not_pay() -> None:
    models = Models(costs=GPU, draft_token=0.002, acceptance=0.7, draft_round_trip=0.001)
    prices = [RejectionCost(), CHEAP, DEAR, RejectionCost(0.2, 0.2)]
    speeds, counts = [], []
    for price in prices:
        faster, results = run(replace(models, rejection=price))
        speeds.append(faster)
        counts.append(sum(drafted(results)))
    assert speeds == sorted(speeds, reverse=True) and speeds[1] > 1.5
    assert counts[0] >= counts[1] > counts[2] >= counts[3] < 0.02 * counts[1]


def test_drafts_end_where_a_rejection_is_free_if_a_checkpoint_is_dear() -> None:
    price = RejectionCost(0.05, 0.05, free_count=4)
    models = Models(costs=GPU, draft_token=0.002, acceptance=0.8, draft_round_trip=0.001)
    assert max(drafted(run(models)[1])) > 4
    faster, results = run(replace(models, rejection=price))
    assert faster > 1.2 and max(drafted(results)) <= 4
    pinned = Speculation(policy=Policy.FIXED, n_max=8, run_ahead=False)
    assert run(replace(models, rejection=price), pinned)[0] < faster


def test_what_is_decoded_again_is_not_taken_for_the_price_of_rows() -> None:
    models = Models(
        costs=CPU,
        draft_token=0.001,
        acceptance=0.6,
        draft_round_trip=0.001,
        rejection=RejectionCost(0.004, 0.003),
    )
    known = known_pair(models)
    pinned = Speculation(policy=Policy.FIXED, n_max=3, run_ahead=False)
    for seed in range(SEEDS):
        Simulation(models, pinned, tokens=TOKENS, seed=seed, pair=known).run()
    for rows in (1, 4, 8):
        assert known.costs.table.seconds(rows) == pytest.approx(CPU.seconds(rows), rel=0.1)
    assert known.costs.sessions_together == pytest.approx(1.0, abs=0.05)
    assert known.costs.overhead.value < 0.001


def test_the_targets_own_draft_is_priced_by_how_often_it_is_right_itself() -> None:
    models = Models(
        draft_token=0.002,
        acceptance=0.7,
        costs=GPU,
        own_token=0.0005,
        rejection=DEAR,
        same_host=True,
        takes_turns=True,
    )
    lengths = []
    for others in (0, 8):  # accepted of eight tokens of the other draft
        decides = control(Speculation(), Rule.MATCH, known_pair(models), 1.0)
        for _ in range(50):
            decides.acceptance.note([128] * 8, others)
        lengths.append((decides.forecast.own_length, decides.forecast.rate))
    assert lengths[0] == lengths[1]


def shared(models: Models, sessions: int) -> Control:
    """Return what decides for one of some sessions, whose decodes were always shared so far."""
    known = known_pair(models)
    for _ in range(50):
        known.costs.others.note(float(sessions - 1))
    return control(Speculation(), Rule.MATCH, known, 1.0)


def test_sessions_that_share_a_decode_wait_for_the_checkpoints_of_all() -> None:
    def price(sessions: int) -> float:
        """Return what checkpoints add to a round of four draft tokens, beside the decodes."""
        seconds = []
        for each in (CHEAP, RejectionCost(1e-9, 1e-9)):
            models = Models(costs=GPU, draft_token=0.002, acceptance=0.7, rejection=each)
            seconds.append(shared(models, sessions).costs.checked_seconds(5, 0, 0.7))
        return seconds[0] - seconds[1]

    assert price(1) > 0.5 * CHEAP.checkpoint_seconds
    assert price(3) == pytest.approx(3 * price(1))


def test_the_checkpoints_of_all_are_not_taken_for_the_price_of_rows() -> None:
    models = Models(costs=GPU, draft_token=0.002, acceptance=0.7, rejection=DEAR)
    for sessions in (1, 3):
        decides, now = shared(models, sessions), 0.0
        rows = 5 * sessions
        decode = GPU.seconds(rows) + sessions * DEAR.checkpoint_seconds
        for i in range(60):
            now += decode
            decides.note_round(
                Outcome(
                    now=now,
                    length=100 + 5 * i,
                    sent=now - decode,
                    confidences=[128] * 4,
                    drafted=4,
                    accepted=4,
                    committed=5,
                    spent=ServiceTime(decode, rows=rows, sessions=sessions),
                    draft_busy=False,
                    is_prompt=False,
                )
            )
        known = decides.costs.table.seconds(rows)
        assert known == pytest.approx(GPU.seconds(rows), rel=0.05), sessions


def test_decodes_with_rows_that_are_decoded_again_teach_what_rows_cost() -> None:
    models = Models(costs=GPU, draft_token=0.002, acceptance=0.7, rejection=CHEAP)
    decides, again = shared(models, 1), TakenBack()
    for i in range(40):  # on a machine that takes twice as long now
        rows = 4 + again.count * (not again.is_apart)
        done = Outcome(
            now=0.1 * i,
            length=100 + 2 * i,
            sent=0.1 * i - 0.08,
            confidences=[128] * 3,
            drafted=3,
            accepted=1,
            committed=2,
            spent=ServiceTime(2.0 * GPU.seconds(rows), rows=rows, sessions=1),
            draft_busy=False,
            is_prompt=False,
        )
        decides.note_round(done)
        again.note(CHEAP, done)
    assert decides.costs.table.seconds(8) == pytest.approx(2.0 * GPU.seconds(8), rel=0.05)


def test_less_of_a_line_is_verified_where_a_rejection_is_dear() -> None:
    counts = []
    for price in (RejectionCost(), RejectionCost(0.2, 0.2, free_count=2)):
        models = Models(costs=GPU, draft_token=0.002, acceptance=0.7, rejection=price)
        decides = control(Speculation(), Rule.MATCH, known_pair(models), 1.0)
        counts.append(decides.best_of_line([0.8] * 8)[0])
    assert counts[1] == 2 < counts[0]
