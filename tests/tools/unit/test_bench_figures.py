"""From what a benchmark noted down to its figures, by exact expectation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider_bench.figures import (
    best_peer,
    paired,
    percentiles_of,
    predicted_ratio,
    rate_ratio,
    ratio_of,
    summarize,
    summarize_block,
)
from outrider_bench.records import Block, Generated, Turn
from outrider_bench.variants import NAMED, Variant, length_variants, peer_variants
from outrider_cli.intervals import Estimate, median_of

PLAIN, SERIAL = NAMED["plain"], NAMED["serial"]

UNDRAFTED = Generated(
    begin=100.0,
    deltas=((0.5, 1), (1.5, 1), (2.5, 1), (3.5, 1)),
    finish="token limit",
    round_count=3,
    target_seconds=2.4,
    draft_seconds=0.0,
    wire_bytes=120,
    alone_rate=1.25,
)
"""Four tokens, a second each after the first; 0.8 s of it in the target."""

DRAFTED = Generated(
    begin=100.0,
    deltas=((0.5, 1), (2.0, 4), (3.5, 2)),
    finish="token limit",
    round_count=2,
    drafted_count=6,
    accepted_count=4,
    drafted_by_position=(2, 2, 2),
    accepted_by_position=(2, 1, 1),
    target_seconds=2.0,
    draft_seconds=0.6,
    wire_bytes=280,
)
"""Seven tokens; two rounds of 1.5 s, one accepted whole and one with a rejection in its second."""


def turn(variant: Variant, trial: Generated, repetition: int = 0, **cpu: float) -> Turn:
    return Turn(variant=variant.name, repetition=repetition, trials=(trial,), cpu_seconds=cpu)


def exactly(value: float) -> Estimate:
    """Return the estimate of a single repetition."""
    return Estimate(pytest.approx(value), pytest.approx(value), pytest.approx(value))


# --- a trial and a turn ---


def test_tokens_of_one_delta_have_no_time_between_them():
    assert DRAFTED.gaps == [1.5, 0.0, 0.0, 0.0, 1.5, 0.0]
    assert UNDRAFTED.gaps == [1.0, 1.0, 1.0]


def test_a_first_delta_of_several_tokens_begins_with_gaps_of_nothing():
    assert replace(UNDRAFTED, deltas=((0.5, 3), (1.0, 1))).gaps == [0.0, 0.0, 0.5]


def test_a_trial_without_tokens_has_no_times():
    empty = replace(UNDRAFTED, deltas=())
    assert (empty.token_count, empty.first_token_seconds, empty.gaps) == (0, None, [])
    assert turn(PLAIN, empty).token_rate is None


def test_the_rate_of_one_user_counts_from_the_first_token():
    assert turn(PLAIN, UNDRAFTED).token_rate == 1.0
    assert turn(SERIAL, DRAFTED).token_rate == 2.0


def test_the_rate_of_several_users_is_that_of_all_together():
    # From the earliest first token at 100.5 to the last one at 105.5: all but one of eight.
    late = replace(UNDRAFTED, begin=102.0)
    both = Turn(variant="plain", repetition=0, trials=(late, UNDRAFTED))
    assert both.later_seconds == 5.0
    assert both.token_rate == 7.0 / 5.0


def test_texts_that_ended_early_are_counted():
    assert turn(PLAIN, UNDRAFTED).count_short(4) == 0
    assert turn(PLAIN, UNDRAFTED).count_short(5) == 1


# --- estimates ---


def test_one_repetition_has_an_interval_without_width():
    assert median_of([2.0]) == Estimate(2.0, 2.0, 2.0)
    assert ratio_of([(6, 3)]) == Estimate(2.0, 2.0, 2.0)


def test_what_is_not_known_is_left_out():
    assert median_of([None, 3.0, None]) == Estimate(3.0, 3.0, 3.0)
    assert median_of([None]) is None
    assert ratio_of([(None, 3), (1, 2)]) == Estimate(0.5, 0.5, 0.5)
    assert ratio_of([(1, 0)]) is None
    assert percentiles_of([[]], (50.0, 99.0)) == (None, None)


def test_a_ratio_weighs_repetitions_by_their_size():
    assert ratio_of([(1, 10), (30, 30)]) == Estimate(
        pytest.approx(31 / 40), pytest.approx(0.1), pytest.approx(1.0)
    )


def test_percentiles_are_of_all_values_together():
    estimates = percentiles_of([[1.0, 2.0], [3.0, 4.0]], (50.0, 100.0))
    assert [each.value for each in estimates if each] == [2.5, 4.0]
    assert estimates[1] is not None
    assert (estimates[1].low, estimates[1].high) == (2.0, 4.0)


# --- pairs ---


def test_a_ratio_is_paired_by_repetition():
    fast = [turn(SERIAL, DRAFTED, 0), turn(SERIAL, DRAFTED, 2)]
    slow = replace(UNDRAFTED, deltas=((0.5, 1), (4.5, 2)))
    alone = [turn(PLAIN, UNDRAFTED, 1), turn(PLAIN, slow, 2)]
    assert paired(fast, alone) == [(fast[1], alone[1])]
    assert rate_ratio(paired(fast, alone)) == exactly(4.0)


def test_the_papers_formula():
    # Leviathan et al., table 1: acceptance 0.8, cost 0.05 and 5 drafts give 2.95.
    assert predicted_ratio(0.8, 5, 0.05) == pytest.approx(2.9514, abs=1e-4)
    assert predicted_ratio(1.0, 3, 0.0) == 4.0
    assert predicted_ratio(0.0, 3, 0.1) == pytest.approx(1 / 1.3)


# --- a summary ---


def block(*turns: Turn, users: int = 1) -> Block:
    return Block(user_count=users, turns=turns)


def test_the_summary_of_a_variant():
    both = block(
        turn(PLAIN, UNDRAFTED, target=3.0, draft=0.0, orchestrator=0.15),
        turn(SERIAL, DRAFTED, target=3.0, draft=0.6, orchestrator=0.3),
    )
    found = summarize(SERIAL, both, 8)
    assert (found.variant, found.length) == ("serial", 3)
    assert (found.turn_count, found.token_count, found.short_count) == (1, 7, 1)
    assert found.token_rate == exactly(2.0)
    assert found.alone_rate == exactly(1.25)
    assert found.over_alone == exactly(1.6)
    assert found.over_plain == exactly(2.0)
    assert found.first_token_seconds == exactly(0.5)
    assert found.gap_seconds == (exactly(0.0), exactly(1.5), exactly(1.5))
    assert found.acceptance == exactly(4 / 6)
    assert found.acceptance_by_position == (exactly(1.0), exactly(0.5), exactly(0.5))
    assert found.tokens_per_round == exactly(3.0)
    assert found.wire_bytes_per_token == exactly(40.0)
    assert found.cpu_seconds_per_token == {
        "target": exactly(0.5),
        "draft": exactly(0.1),
        "orchestrator": exactly(0.05),
        "all": exactly(0.65),
    }
    assert found.target_cpu_ratio == exactly(0.5)
    # Six tokens in 2.6 s of decoding.
    assert found.ceiling == exactly(6 / 2.6)
    assert found.of_ceiling == exactly(2.0 / (6 / 2.6))
    # Five draft tokens were looked at, four of them accepted; 0.1 s each against 0.8 s.
    assert found.formula == exactly(predicted_ratio(4 / 5, 3, 0.1 / 0.8))


def test_what_the_controller_expects_is_shown_for_one_user():
    both = [replace(DRAFTED, forecast_ratio=ratio) for ratio in (1.5, None)]
    turns = block(*(turn(SERIAL, each) for each in both))
    assert summarize(SERIAL, turns, 8).forecast == exactly(1.5)
    assert summarize(SERIAL, replace(turns, user_count=2), 8).forecast is None


def test_without_drafts_we_are_our_own_measure():
    found = summarize(PLAIN, block(turn(PLAIN, UNDRAFTED)), 4)
    assert found.over_plain == exactly(1.0)
    assert found.over_alone == exactly(0.8)
    assert found.of_ceiling == exactly(1.0 / (3 / 2.4))
    assert found.acceptance is None and found.formula is None
    assert found.acceptance_by_position == () and found.cpu_seconds_per_token == {}


def test_a_draft_that_runs_ahead_costs_what_a_serial_one_does():
    busy = replace(DRAFTED, draft_seconds=6.0)
    two = length_variants([2])[0]
    turns = block(turn(PLAIN, UNDRAFTED), turn(SERIAL, DRAFTED), turn(two, busy))
    assert summarize(two, turns, 8).formula == exactly(predicted_ratio(4 / 5, 2, 0.1 / 0.8))
    without = block(turn(PLAIN, UNDRAFTED), turn(two, busy))
    assert summarize(two, without, 8).formula == exactly(predicted_ratio(4 / 5, 2, 1.0 / 0.8))


def test_users_at_once_share_decodes_so_there_is_no_ceiling():
    found = summarize(SERIAL, block(turn(PLAIN, UNDRAFTED), turn(SERIAL, DRAFTED), users=2), 8)
    assert (found.ceiling, found.of_ceiling, found.formula) == (None, None, None)


def test_one_user_alone_is_no_measure_of_several():
    found = summarize(SERIAL, block(turn(PLAIN, UNDRAFTED), turn(SERIAL, DRAFTED), users=2), 8)
    assert (found.alone_rate, found.over_alone) == (None, None)
    assert found.over_plain == exactly(2.0)


def test_a_peer_is_measured_by_the_same_target_alone():
    server = peer_variants([])[0]
    found = summarize(server, block(turn(PLAIN, UNDRAFTED), turn(server, DRAFTED)), 8)
    assert found.over_alone == exactly(1.6)


def test_a_target_that_does_not_say_how_fast_it_is_alone_is_no_measure():
    silent = replace(UNDRAFTED, alone_rate=None)
    found = summarize(SERIAL, block(turn(PLAIN, silent), turn(SERIAL, DRAFTED)), 8)
    assert (found.alone_rate, found.over_alone) == (None, None)


def test_only_variants_that_ran_are_summarized_in_the_order_given():
    turns = block(turn(SERIAL, DRAFTED), turn(PLAIN, UNDRAFTED))
    assert [s.variant for s in summarize_block(NAMED.values(), turns, 8)] == ["plain", "serial"]


def test_the_best_peer_is_the_fastest_with_or_without_drafts():
    peers = peer_variants([2, 4])
    rates = zip(peers, (3.0, 2.0, 4.0), strict=True)
    turns = [
        turn(each, replace(UNDRAFTED, deltas=((0.0, 1), (seconds, 1)))) for each, seconds in rates
    ]
    summaries = summarize_block([PLAIN, *peers], block(turn(PLAIN, UNDRAFTED), *turns), 2)
    best = best_peer(summaries)
    assert best is not None and best.variant == "llama-server n=2"
    assert best_peer(summaries[:1]) is None
