"""The closed forms of each mode, against what the real controller does on a virtual clock."""

from __future__ import annotations

import itertools
import math
import operator
import statistics
from dataclasses import replace

import pytest

from outrider.core.forecast import (
    Conditions,
    Mode,
    expected_tokens,
    forecasts,
    plain,
    serial,
)
from outrider.core.speculate import control
from outrider.costs import CostTable
from outrider.messages import Rule
from outrider.speculation import Policy, Speculation
from tests.support.simulation import Models, Simulation, known_pair
from tests.support.thorough import cells

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


def test_the_next_frame_of_a_draft_that_runs_ahead_is_expected_when_it_is_full() -> None:
    models = Models(costs=GPU, draft_token=0.003, acceptance=0.8, overhead=0.001)
    decides = control(Speculation(run_ahead=True), Rule.MATCH, known_pair(models), 1.0)
    decides.note_presence(True)
    assert decides.forecast.mode is Mode.WAITING
    decides.note_order(0.0, 6, 0)
    decides.note_frame(0.009, 6, 3, 0.009, True)
    there = decides.choose([204] * 3, 16, now=0.009, expected=True)
    assert there.count == 3 and there.until is None, "three more come after 9 ms, not one after 3"


def test_what_is_due_just_before_a_decode_ends_may_miss_it() -> None:
    far = [
        conditions(latency=seconds, gap=0.0, overhead=0.001) for seconds in (0.02, 0.0255, 0.028)
    ]
    soon, late, missed = (rates(each)[Mode.NO_WAIT] for each in far)
    assert soon > late > missed > plain(far[0]).rate


def test_news_of_a_miss_is_on_its_way_while_a_target_continues() -> None:
    given = conditions(latency=0.023, gap=0.0, overhead=0.0)
    assert rates(given)[Mode.NO_WAIT] > 1.05 * rates(replace(given, overhead=0.005))[Mode.NO_WAIT]
    waits = replace(given, gap=None)
    assert rates(waits)[Mode.NO_WAIT] == pytest.approx(rates(given)[Mode.NO_WAIT])


def test_a_line_comes_in_frames() -> None:
    found = [rates(conditions(latency=0.0, first_frame=frame)) for frame in (1, 3)]
    for mode in (Mode.WAITING, Mode.NO_WAIT):
        assert found[0][mode] >= found[1][mode]
    assert found[0][Mode.SERIAL] == found[1][Mode.SERIAL]


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


TWO_KINDS = [(0, 0.4, 0.3), (128, 0.6, 0.95)]
"""Two fifths of the tokens stand three times in ten, the others nearly always."""


def by_hand(length: int, stops: bool) -> float:
    """Return the rate of serial drafting, over all drafts that two kinds of tokens make."""
    tokens = time = 0.0
    for kinds in itertools.product(TWO_KINDS, repeat=length):
        drafted = next((i + 1 for i, kind in enumerate(kinds) if stops and not kind[0]), length)
        chance = math.prod(share for _, share, _ in kinds)
        survivals = itertools.accumulate((kind[2] for kind in kinds[:drafted]), operator.mul)
        tokens += chance * (1.0 + sum(survivals))
        time += chance * (0.02 + 0.003 * drafted + GPU.seconds(drafted + 1) + 0.0015)
    return tokens / time


def test_a_draft_that_may_end_early_is_as_fast_as_all_its_ends_together() -> None:
    mean = sum(share * chance for _, share, chance in TWO_KINDS)
    found = serial(conditions(acceptance=mean, confidences=TWO_KINDS), 8)
    assert found.stop_below == 128
    assert found.rate == pytest.approx(by_hand(found.length, stops=True))
    best = max(by_hand(k, stops) for k in range(1, 9) for stops in (False, True))
    assert found.rate == pytest.approx(best)
    assert found.mean_length == pytest.approx(sum(0.6**i for i in range(found.length)))


def test_an_unsure_last_token_is_verified_only_where_its_row_pays() -> None:
    steep = CostTable([(2, 0.03), (4, 0.09), (8, 0.10), (16, 0.12)])
    kinds = [(0, 0.5, 0.02), (128, 0.5, 1.0)]
    given = conditions(
        acceptance=0.51, confidences=kinds, decode_seconds=steep.seconds, token_time=0.0
    )
    found = serial(given, 1)
    # One token, of either kind, is free here: two rows cost what one does.
    assert (found.length, found.rate) == (1, pytest.approx(1.51 / (0.02 + 0.0315)))
    assert serial(given, 2).length == 1
    two = serial(replace(given, acceptance=0.99, confidences=[(0, 0.02, 0.5), (9, 0.98, 1.0)]), 2)
    assert two.length == 1, "two more rows for one more token do not pay"


def test_confidences_that_say_nothing_change_nothing() -> None:
    for acceptance in (0.3, 0.6, 0.9):
        alike = [(0, 0.5, acceptance), (128, 0.5, acceptance)]
        with_them = serial(conditions(acceptance=acceptance, confidences=alike), 16)
        without = serial(conditions(acceptance=acceptance), 16)
        assert with_them.rate == pytest.approx(without.rate)


@pytest.mark.parametrize("share", [1e-320, 1e-18, 1e-12])
@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_confidences_that_hardly_occur_change_nothing(share: float, chance: float) -> None:
    """Counts fade, and what was seen long ago is next to nothing beside the rest."""
    rare = [(0, share, chance), (128, 0.5, 0.8), (192, 0.5, 0.8), (255, share, chance)]
    with_them = serial(conditions(confidences=rare), 16)
    assert with_them.rate == pytest.approx(serial(conditions(), 16).rate)


def test_a_longer_way_never_makes_anything_faster() -> None:
    for mode in (Mode.SERIAL, Mode.WAITING, Mode.NO_WAIT):
        along = [rates(conditions(latency=ms / 1e3))[mode] for ms in (0, 1, 5, 20, 50, 150, 400)]
        assert along == sorted(along, reverse=True)


def test_never_waiting_is_never_slower_than_the_target_alone() -> None:
    for ms in (0, 20, 150, 400):
        for acceptance in (0.0, 0.3, 0.9):
            given = rates(conditions(latency=ms / 1e3, acceptance=acceptance))
            assert given[Mode.NO_WAIT] >= 0.999 * given[Mode.PLAIN]


@pytest.mark.parametrize(
    ("acceptance", "latency"), cells([0.6, 0.8, 0.9], [0.0003, 0.02, 0.05, 0.15], together=1)
)
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
    pair = known_pair(models)
    seconds = [
        Simulation(models, speculation, tokens=tokens, seed=seed, pair=pair).run().seconds
        for seed in range(6)
    ]
    return tokens / statistics.median(seconds[1:])
