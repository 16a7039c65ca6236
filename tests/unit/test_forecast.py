"""The closed forms of each mode, against what the real controller does on a virtual clock."""

from __future__ import annotations

import statistics

import pytest

from orchestrator.forecast import Conditions, Mode, expected_tokens, forecasts, plain, serial
from orchestrator.simulation import Models, Simulation, known_experience
from outrider.costs import CostTable
from outrider.speculation import Policy, Speculation

GPU = CostTable([(1, 0.0300), (64, 0.0300 + 0.0004 * 63)])
CPU = CostTable([(4, 0.055), (8, 0.100), (16, 0.200), (32, 0.400)])


def conditions(**changes: object) -> Conditions:
    usual: dict[str, object] = {
        "acceptance": 0.8,
        "decode_seconds": GPU.seconds,
        "overhead": 0.0015,
        "latency": 0.02,
        "token_time": 0.003,
    }
    return Conditions(**(usual | changes))  # type: ignore[arg-type]


def rates(given: Conditions) -> dict[Mode, float]:
    return {each.mode: each.rate for each in forecasts(given, 16, None)}


def test_a_verify_adds_a_geometric_number_of_tokens() -> None:
    assert expected_tokens(0.5, 2) == pytest.approx(1 + 0.5 + 0.25)
    assert expected_tokens(0.0, 8) == 1.0
    assert expected_tokens(1.0, 8) == 9.0


def test_plain_decoding_is_one_row_after_the_other() -> None:
    assert plain(conditions()).rate == pytest.approx(1 / 0.0315)


@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.9])
def test_serial_drafting_takes_the_length_that_the_closed_form_is_best_at(
    acceptance: float,
) -> None:
    given = conditions(acceptance=acceptance)
    by_length = {
        k: expected_tokens(acceptance, k) / (0.02 + 0.003 * k + GPU.seconds(k + 1) + 0.0015)
        for k in range(1, 17)
    }
    found = serial(given, 16)
    assert found.length == max(by_length, key=by_length.__getitem__)
    assert found.rate == pytest.approx(max(by_length.values()))


def test_a_longer_way_never_makes_anything_faster() -> None:
    for mode in (Mode.SERIAL, Mode.WAITING, Mode.RESTLESS):
        along = [rates(conditions(latency=ms / 1e3))[mode] for ms in (0, 1, 5, 20, 50, 150, 400)]
        assert along == sorted(along, reverse=True)


def test_never_waiting_is_never_slower_than_the_target_alone() -> None:
    for ms in (0, 20, 150, 400):
        for acceptance in (0.0, 0.3, 0.9):
            given = rates(conditions(latency=ms / 1e3, acceptance=acceptance))
            assert given[Mode.RESTLESS] >= 0.999 * given[Mode.PLAIN]


def test_a_draft_that_slows_the_target_is_not_run_ahead() -> None:
    given = rates(
        conditions(decode_seconds=CPU.seconds, latency=0.001, token_time=0.006, slowdown=1.6)
    )
    assert given[Mode.SERIAL] > max(given[Mode.WAITING], given[Mode.RESTLESS])


@pytest.mark.parametrize("acceptance", [0.6, 0.8, 0.9])
@pytest.mark.parametrize("latency", [0.0003, 0.02, 0.05, 0.15])
def test_the_controller_reaches_what_the_best_mode_promises(
    acceptance: float, latency: float
) -> None:
    models = Models(
        costs=GPU,
        draft_token=0.003,
        acceptance=acceptance,
        draft_round_trip=latency,
        overhead=0.0015,
        spread=1e6,
    )
    promised = max(rates(conditions(acceptance=acceptance, latency=latency)).values())
    reached = simulated_rate(models, Speculation())
    assert reached > 0.8 * promised


@pytest.mark.parametrize("length", [1, 3, 8])
def test_serial_drafting_of_a_fixed_length_is_as_fast_as_its_formula(length: int) -> None:
    models = Models(costs=GPU, draft_token=0.003, acceptance=0.8, draft_round_trip=0.02, spread=1e6)
    fixed = Speculation(policy=Policy.FIXED, n_max=length, run_ahead=False)
    time = 0.02 + 0.003 * length + GPU.seconds(length + 1)
    assert simulated_rate(models, fixed) == pytest.approx(
        expected_tokens(0.8, length) / time, rel=0.08
    )


def simulated_rate(models: Models, speculation: Speculation, tokens: int = 400) -> float:
    """Return the median of tokens per second over some generations that learn from each other."""
    experience = known_experience(models)
    seconds = [
        Simulation(models, speculation, tokens=tokens, seed=seed, experience=experience)
        .run()
        .seconds
        for seed in range(6)
    ]
    return tokens / statistics.median(seconds[1:])
