"""What tools/benchmarks/routing.py prints holds, of fewer targets and for a shorter time."""

from __future__ import annotations

import pytest

from benchmarks.routing import POLICIES, SCENARIOS, Outcome, Run, Scenario

TARGETS, SECONDS, SEED = 10, 60.0, 1


def outcomes(scenario: Scenario) -> dict[str, Outcome]:
    return {p: Run(p, scenario, TARGETS, SEED).run(SECONDS) for p in POLICIES}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_at_most_half_is_read_again_and_first_tokens_come_no_later(scenario: Scenario) -> None:
    its = outcomes(scenario)
    ours, others = its.pop("Outrider"), list(its.values())
    assert ours.turn_count > 200
    assert ours.recomputed <= 0.5 * its["round-robin"].recomputed
    assert ours.quantile(0.95) <= min(each.quantile(0.95) for each in others)


def test_a_run_is_the_same_again() -> None:
    one, other = (Run("Outrider", SCENARIOS[-1], TARGETS, SEED).run(20.0) for _ in range(2))
    assert one.first_tokens == other.first_tokens and one.recomputed == other.recomputed
