"""What is forecast of a target with recurrent layers, on the virtual clock.

It takes a 1.1B's time for rows on two cores, or that of a GPU whose rows are nearly free. Its
states are 20 MB, as a 1B's with three recurrent layers of four: copied for a checkpoint in 4 ms,
put back in 3.
"""

from __future__ import annotations

import pytest

from outrider.core.speculate import Measured, control
from outrider.costs import CostTable, RejectionCost
from outrider.messages import Rule
from outrider.speculation import Speculation
from tests.support.simulation import Models, Simulation, alone, known_pair
from tests.support.thorough import cells

CPU = CostTable([(1, 0.055), (2, 0.065), (4, 0.075), (8, 0.13), (16, 0.24), (32, 0.46)])
GPU = CostTable([(1, 0.0300), (64, 0.0300 + 0.0004 * 63)])
MACHINES = {"cpu": CPU, "gpu": GPU}
PRICES = {
    "checkpoints": RejectionCost(0.004, 0.003),
    "four snapshots": RejectionCost(0.004, 0.003, free_count=4),
    "large states": RejectionCost(0.02, 0.015),
}
TOKENS, SEEDS = 240, 4


def pair(machine: str, price: str, acceptance: float, away: float) -> Models:
    return Models(
        costs=MACHINES[machine],
        draft_token=0.003,
        acceptance=acceptance,
        draft_round_trip=away,
        overhead=0.001,
        rejection=PRICES[price],
        spread=1e6,  # of chances: all tokens have the same, as a forecast takes them
    )


@pytest.mark.parametrize(
    ("machine", "price", "draft"), cells(MACHINES, PRICES, [(0.5, 0.0), (0.8, 0.0), (0.8, 0.02)])
)
def test_the_forecast_of_a_hybrid_target_is_near_what_is_made(
    machine: str, price: str, draft: tuple[float, float]
) -> None:
    acceptance, away = draft
    models = pair(machine, price, acceptance, away)
    known, seconds = known_pair(models), 0.0
    for seed in range(SEEDS):
        simulation = Simulation(models, Speculation(), tokens=TOKENS, seed=seed, pair=known)
        result = simulation.run()
        assert result.text == alone(simulation.language, TOKENS)
        seconds += result.seconds
    seen = SEEDS * TOKENS / seconds
    decides = control(Speculation(), Rule.MATCH, known, 1.0)
    assert isinstance(decides, Measured)
    decides.note_presence(True)
    assert decides.expected_rate == pytest.approx(seen, rel=0.15)  # by the mean of 33 tokens
    plain = 1.0 / decides.plain_seconds
    assert seen > (1.2 if acceptance > 0.7 else 0.97) * plain
