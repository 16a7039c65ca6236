"""What the controller decides, and what it learns."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest

from orchestrator.core.controller import Control
from orchestrator.core.estimates import (
    UNREPORTED,
    Acceptance,
    Mean,
    OwnDraftEstimates,
    PairEstimates,
    ServiceTime,
    plain_share,
)
from orchestrator.core.forecast import Mode, forecasts
from orchestrator.core.outcomes import Outcome
from orchestrator.core.policies import control
from outrider.costs import CostTable, Point
from outrider.messages import Rule
from outrider.speculation import Policy, Speculation

GPU = [(1, 0.0300), (64, 0.0300 + 0.0004 * 63)]
ZEN = [(2, 0.038), (4, 0.056), (8, 0.105), (16, 0.147)]
CPU = [(4, 0.055), (8, 0.100), (16, 0.200)]
SURE = 255


def made(
    *,
    costs: list[tuple[int, float]] = GPU,
    latency: float = 0.001,
    token_time: float = 0.003,
    acceptance: float = 0.8,
    rule: Rule = Rule.MATCH,
    same_host: bool = False,
    is_rough: bool = False,
    **speculation: object,
) -> Control:
    """Return a controller that knows its pair well."""
    estimates = PairEstimates(costs=CostTable(costs, is_rough), same_host=same_host)
    estimates.latency, estimates.token_time = Mean(latency), Mean(token_time)
    estimates.overhead = Mean(0.001)
    its_control = control(Speculation(**speculation), rule, estimates, patience=1.0)  # type: ignore[arg-type]
    its_control.note_presence(True)
    stood = 0.0
    for _ in range(400):
        stood += acceptance
        accepted = stood >= 1.0
        stood -= accepted
        its_control.acceptance.note([128], int(accepted))
    return its_control


def outcome(**changes: object) -> Outcome:
    usual: dict[str, object] = {
        "now": 1.0,
        "length": 0,
        "sent": 0.9,
        "confidences": [],
        "offered": 0,
        "drafted": 0,
        "accepted": 0,
        "committed": 1,
        "spent": UNREPORTED,
        "draft_busy": False,
        "is_prompt": False,
    }
    return Outcome(**(usual | changes))  # type: ignore[arg-type]


# acceptance


def test_a_source_remembers_for_longer_than_a_copied_stretch_where_those_end() -> None:
    known = Acceptance.trusting(goes_by_matches=True)
    for _ in range(10):
        known.note([254] * 51, 50)
    known.note([254] * 50, 50)
    assert 0.98 < known.chance(254) < 0.988  # one of 51 is wrong
    assert Acceptance(known).chance(254) == pytest.approx(known.chance(254), abs=0.02)


def test_acceptance_is_what_was_seen() -> None:
    assert made(acceptance=0.8).acceptance.mean == pytest.approx(0.8, abs=0.05)
    assert made(acceptance=0.0).acceptance.mean < 0.02
    # Of an unknown draft much is hoped, for some tokens.
    unknown = Acceptance()
    assert unknown.mean > 0.75
    for _ in range(5):
        unknown.note([128], 0)
    assert unknown.mean < 0.5
    for _ in range(40):
        unknown.note([128], 0)
    assert unknown.mean < 0.05


def test_a_good_beginning_is_not_taken_for_a_draft_that_is_always_right() -> None:
    known = Acceptance()
    known.note([128] * 18, 18)
    assert 0.93 < known.mean < 0.975


def test_what_is_expected_of_further_texts_rests_on_many_tokens() -> None:
    known = Acceptance()
    assert known.lasting().mean == known.mean
    for i in range(1000):
        known.note([128], i % 2)
    for _ in range(30):
        known.note([128], 1)
    assert known.mean > 0.75 and known.lasting().mean == pytest.approx(0.5, abs=0.05)


def test_when_gathered_answers_come_says_nothing_of_the_gap_between_decodes() -> None:
    """At multiples of 100 ms, one or two decodes of 62 ms each: they follow each other at once."""
    gathered = made()
    gathered.note_round(outcome(now=0.0, is_prompt=True))
    done, arrived = 0, 0.0
    for i in range(1, 60):
        count = int(0.1 * i / 0.062) - done
        for j in range(count):
            now = arrived + (0.1 * i - arrived) * (j + 1) / count
            spent = ServiceTime(0.055, draft=0.0065, sample=0.0005)
            gathered.note_round(outcome(now=now, sent=None, committed=2, spent=spent))
        done, arrived = done + count, 0.1 * i if count else arrived
    assert gathered.estimates.gap.value == pytest.approx(0.0005)


def test_sure_tokens_are_told_from_unsure_ones() -> None:
    acceptance = Acceptance()
    for _ in range(30):
        acceptance.note([250], 1)
        acceptance.note([20], 0)
    assert acceptance.chance(250) > 0.85
    assert acceptance.chance(20) < 0.15
    assert acceptance.chance(100) == pytest.approx(acceptance.mean)


def test_survival_multiplies_and_goes_on_with_the_mean() -> None:
    acceptance = Acceptance()
    mean = acceptance.mean
    survival = acceptance.survival([128], 3)
    assert survival == pytest.approx([mean, mean**2, mean**3])


def test_a_new_session_begins_with_what_was_learned_and_soon_trusts_itself() -> None:
    before = made(acceptance=0.9).acceptance
    after = Acceptance(before)
    assert after.mean == pytest.approx(before.mean, abs=0.02)
    for _ in range(30):
        after.note([128], 0)
    assert after.mean < 0.3 < before.mean


def test_lines_teach_and_under_rejection_only_verified_tokens_do() -> None:
    learner = made(acceptance=0.5)
    learner.note_line([128] * 50, agrees=True)
    assert learner.acceptance.mean > 0.8
    judged = made(acceptance=0.5, rule=Rule.REJECTION)
    for _ in range(50):
        judged.note_round(outcome(confidences=[128, 128, 128], drafted=3, accepted=0))
    assert judged.acceptance.mean < 0.2


# the mode


@pytest.mark.parametrize(
    ("latency", "mode"), [(0.0, Mode.WAITING), (0.02, Mode.NO_WAIT), (0.15, Mode.NO_WAIT)]
)
def test_the_way_to_the_draft_decides_whether_to_wait(latency: float, mode: Mode) -> None:
    assert made(latency=latency).forecast.mode is mode


def test_a_useless_draft_is_left_alone() -> None:
    idle = made(acceptance=0.0)
    assert idle.forecast.mode is Mode.PLAIN
    assert idle.draft_count(64) == 0


def test_on_shared_cores_a_draft_that_slows_its_target_waits_for_it() -> None:
    careful = made(costs=CPU, token_time=0.006, same_host=True)
    assert careful.forecast.mode is not Mode.SERIAL
    for _ in range(100):
        careful.estimates.slowdown.note(1.8)
    careful._forecast = None
    assert careful.forecast.mode is Mode.SERIAL


def test_a_draft_left_alone_is_tried_again_ever_more_rarely() -> None:
    left = made(acceptance=0.0)
    tried = []
    for i in range(400):
        if left.draft_count(64):
            tried.append(i)
            left.note_line([128], agrees=False)
        left.note_round(outcome(now=float(i), sent=float(i)))
    gaps = [b - a for a, b in pairwise(tried)]
    assert tried[0] == 16 and gaps == sorted(gaps) and gaps[-1] >= 128


def test_a_good_draft_that_is_too_far_away_is_tried_ever_more_rarely_too() -> None:
    its_control = made(acceptance=0.9, latency=2.0, run_ahead=False)
    assert its_control.draft_count(16) == 0
    gaps, rounds = [], 0
    for _ in range(600):
        its_control.note_round(outcome())
        rounds += 1
        if its_control.draft_count(16):
            gaps.append(rounds)
            rounds = 0
            its_control.note_line([200, 200, 200], agrees=True)
    assert gaps == [16, 32, 64, 128, 128, 128]


@pytest.mark.parametrize(
    ("latency", "expected"),
    # Two seconds away a probe takes 68 tokens of 3 ms, which is 1.5 % of 439 rounds.
    [(0.4, [104, 104, 256, 512]), (2.0, [439, 439])],
)
def test_a_far_draft_on_the_targets_own_cores_is_tried_more_rarely_still(
    latency: float, expected: list[int]
) -> None:
    far = made(acceptance=0.9, latency=latency)
    far.estimates.takes_turns = True
    far.estimates.overhead = Mean(0.001)
    gaps, rounds = [], 0
    for _ in range(1000):
        far.note_round(outcome(now=1.0, sent=0.969, spent=ServiceTime(0.030)))
        rounds += 1
        if far.draft_count(16):
            gaps.append(rounds)
            rounds = 0
            far.note_line([200, 200, 200], agrees=True)
    assert gaps == expected


def test_the_next_generation_goes_on_waiting_to_try_a_useless_draft() -> None:
    first = made(acceptance=0.0)
    estimates = first.estimates
    for _ in range(16):
        first.note_round(outcome())
    first.note_line([128], agrees=False)
    for _ in range(20):
        first.note_round(outcome())
    second = control(first.speculation, Rule.MATCH, estimates, patience=1.0)
    second.acceptance = first.acceptance
    for _ in range(11):
        second.note_round(outcome())
        assert not second.draft_count(16)
    second.note_round(outcome())
    assert second.draft_count(16)


@pytest.mark.parametrize(("loaded", "tried"), [(0.07, 0), (0.0, 1), (0.002, 1)])
def test_a_draft_slower_than_its_target_is_hardly_ever_tried(loaded: float, tried: int) -> None:
    slow = made(costs=ZEN, token_time=0.07)
    slow.estimates.takes_turns = True
    slow.estimates.loaded_token_time = loaded
    drafted = []
    for _ in range(600):
        slow.note_round(outcome())
        drafted.append(slow.draft_count(16) > 0)
        if drafted[-1]:
            slow.note_line([200, 200, 200], agrees=True)
    assert sum(drafted) == tried


def test_a_draft_that_looked_slow_in_passing_is_tried_soon() -> None:
    """Others may have loaded their models at the same time."""
    slow = made(costs=ZEN, token_time=0.05)
    slow.estimates.loaded_token_time, slow.estimates.is_roughly_loaded = 0.05, True
    rounds = 0
    while not slow.draft_count(16):
        slow.note_round(outcome())
        rounds += 1
    assert rounds < 32


def test_a_draft_that_was_slow_when_it_was_loaded_is_tried_again() -> None:
    """It may have been measured on a busy machine."""
    slow = made(token_time=0.12)
    slow.estimates.loaded_token_time = 0.12
    tried = []
    for i in range(1100):
        if slow.draft_count(16):
            tried.append(i)
            slow.note_order(1.0, 10, 3)
            slow.note_frame(1.01, 10, 3, 0.009, is_first=True)
            slow.note_line([200, 200, 200], agrees=True)
        slow.note_round(outcome(committed=0))
    assert tried[0] == 1024
    assert len(tried) > 20, "and is used as soon as it is seen to be quick"


def test_what_a_draft_reads_is_no_part_of_its_tokens_time() -> None:
    reader = made(token_time=0.002)
    reader.estimates.loaded_token_time, reader.estimates.read_time = 0.002, Mean(0.001)
    reader.note_order(1.0, 80, 3, reading=81)
    reader.note_frame(1.1, 80, 3, 0.086, is_first=True)
    assert reader.view().draft_token_seconds == pytest.approx(0.002)
    reader.note_order(1.2, 80, 3, reading=1000)
    reader.note_frame(1.3, 80, 3, 0.086, is_first=True)
    assert reader.view().draft_token_seconds == pytest.approx(0.002), "not less than at load"
    reader.note_order(1.4, 80, 3, reading=81)
    reader.note_frame(1.5, 80, 3, 0.12, is_first=True)
    assert reader.view().draft_token_seconds == pytest.approx(0.002), "nor what reading took more"
    reader.note_order(1.6, 80, 3, reading=3)
    reader.note_frame(1.7, 80, 3, 0.014, is_first=True)
    assert reader.view().draft_token_seconds > 0.0025, "but for a few tokens"


def test_what_reading_takes_a_draft_is_learned_where_it_read_much() -> None:
    reader = made(token_time=0.002)
    estimates = reader.estimates
    estimates.loaded_token_time, estimates.read_time = 0.002, Mean(0.004)
    for i in range(6):
        reader.note_order(1.0 + i, 80, 3, reading=81)
        reader.note_frame(1.5 + i, 80, 3, 0.086, is_first=True)
        assert i or estimates.read_time.value == pytest.approx(0.002), "not all at once"
    assert estimates.read_time.value == pytest.approx(0.001, rel=0.3)
    assert reader.view().draft_token_seconds == pytest.approx(0.002)


def test_a_rough_cost_is_hoped_to_be_less_until_it_was_seen() -> None:
    made_so = partial(made, token_time=0.002, acceptance=0.85, n_max=3, run_ahead=False)
    costs = [(1, 0.022), (2, 0.055), (4, 0.065), (8, 0.12)]
    hopeful = made_so(costs=costs, is_rough=True)
    assert hopeful.draft_count(16) > 0
    for _ in range(20):
        hopeful.note_round(outcome(sent=0.934, drafted=3, spent=ServiceTime(0.065, rows=4)))
    assert hopeful.forecast.length == 0, "it does cost that much"
    assert made_so(costs=costs).forecast.length == 0


def test_generations_that_take_turns_want_a_clear_gain_since_not_all_share_every_decode() -> None:
    costs = [(1, 0.022), (4, 0.05), (8, 0.07), (16, 0.12)]
    lengths = {}
    for generations in (1, 4):
        one = made(costs=costs, token_time=0.002, acceptance=0.7, run_ahead=False)
        one.estimates.takes_turns, one.estimates.generation_count = True, generations
        alone, serial = forecasts(one._conditions(), 16, False)
        assert 1.05 * alone.rate < serial.rate, "it gains"
        lengths[generations] = one.forecast.length
        if generations == 4:
            assert serial.rate < 1.3 * alone.rate, "but not much"
    assert lengths[1] > 0 and lengths[4] == 0


def test_a_short_text_is_read_at_once_to_try_a_draft_of_which_nothing_is_known() -> None:
    for unread, tries in ((60, True), (1400, False)):
        new = made(costs=ZEN, token_time=0.002)
        new.acceptance = Acceptance()
        estimates = new.estimates
        estimates.takes_turns, estimates.read_time = True, Mean(0.001)
        new.note_unread(unread, 500)
        assert (new.draft_count(16) > 0) is tries


def test_one_slow_frame_does_not_make_a_draft_look_hopeless() -> None:
    met = made(token_time=0.002)
    met.estimates.loaded_token_time = 0.002
    for i, most in enumerate((0.004, 0.006)):
        met.note_order(1.0 + i, 80, 3, reading=1)
        met.note_frame(1.5 + i, 80, 3, 0.3, is_first=True)
        assert met.view().draft_token_seconds == pytest.approx(most)
    for i in range(12):
        met.note_frame(2.5 + i, 80, 3, 0.3, is_first=False)
    assert met.view().draft_token_seconds > 0.03, "but several do"


def test_a_probe_on_the_targets_own_cores_takes_a_small_share_of_its_time() -> None:
    useless = made(costs=ZEN, token_time=0.002, acceptance=0.0)
    estimates = useless.estimates
    estimates.takes_turns, estimates.read_time = True, Mean(0.0002)
    tried = []
    for i in range(1, 400):
        useless.note_unread(64 + i, 1000)
        useless.note_round(outcome(now=1.0, sent=0.961, spent=ServiceTime(0.038, rows=2)))
        if useless.draft_count(16):
            tried.append(i)
            useless.note_unread(0, 1000)
            useless.note_line([128], agrees=False)
    # 64 + i tokens read and 4 drafted, at 1.5 % of i times 39 ms.
    assert tried[0] == pytest.approx((64 * 0.0002 + 4 * 0.002) / (0.015 * 0.039 - 0.0002), abs=3)
    estimates.takes_turns = False
    useless.note_unread(10_000, 1000)
    for _ in range(512):
        useless.note_round(outcome(now=1.0, sent=0.961, spent=ServiceTime(0.038, rows=2)))
    assert useless.draft_count(16)


def test_probes_of_all_generations_together_take_that_share() -> None:
    rounds = {}
    for generations in (1, 4):
        useless = made(costs=ZEN, token_time=0.002, acceptance=0.0)
        estimates = useless.estimates
        estimates.takes_turns, estimates.generation_count = True, generations
        for i in range(1, 400):
            useless.note_round(outcome())
            if useless.draft_count(16):
                rounds[generations] = i
                break
        share = 0.015 / generations * rounds[generations] * useless.plain_seconds
        assert share == pytest.approx(4 * 0.002, rel=0.25)
    assert rounds[4] > rounds[1]


def test_nobody_waits_for_a_draft_that_is_only_tried_as_reading_would_not_pay() -> None:
    tried = made(costs=CPU, token_time=0.006, acceptance=0.8)
    tried.estimates.takes_turns, tried.estimates.read_time = True, Mean(0.001)
    tried._forecast = None
    tried.note_unread(100, 3)
    while tried.draft_count(16) == 0:
        tried.note_round(outcome(now=1.0, sent=0.961, spent=ServiceTime(0.038, rows=2)))
    assert tried.forecast.length > 0 and tried.probing and not tried.waits_for_drafts


def test_on_the_targets_own_cores_a_long_text_is_read_only_where_enough_is_to_follow() -> None:
    reader = made(costs=CPU, token_time=0.006, acceptance=0.8)
    estimates = reader.estimates
    assert reader.draft_count(16) > 0
    estimates.takes_turns, estimates.read_time = True, Mean(0.001)
    reader._forecast = None
    # Some 30 ms are saved with every token, and 1,400 are read in 1.4 s.
    for remaining, reads in ((64, False), (200, True), (10_000, True)):
        reader.note_unread(1400, remaining)
        assert (reader.draft_count(16) > 0) is reads
        assert reader.leaves_draft_alone is not reads
    reader.note_unread(5, 4)
    assert reader.draft_count(3) > 0, "the end of a text that it has read"
    # Where nothing is known of the length, some 256 tokens; once more are written, as many again.
    reader.note_unread(8000, 10_000)
    assert reader.draft_count(16) == 0
    for _ in range(800):
        reader.note_round(outcome(length=0))
    reader.note_unread(8000, 10_000)
    assert reader.draft_count(16) > 0
    # Elsewhere it reads while the target writes.
    estimates.takes_turns = False
    reader.note_unread(100_000, 10)
    assert reader.draft_count(16) > 0


def test_in_turns_the_wait_for_the_draft_is_no_wait_for_others() -> None:
    together = made(costs=CPU)
    together.estimates.takes_turns = True
    together.note_round(outcome(sent=0.5, spent=ServiceTime(0.055, queue=0.4, rows=4)))
    assert together.estimates.queue.value == 0.0
    together.estimates.takes_turns = False
    together.note_round(outcome(sent=0.5, spent=ServiceTime(0.055, queue=0.4, rows=4)))
    assert together.estimates.queue.value == 0.055, "one decode of the others at most"


def test_a_draft_on_the_targets_own_cores_is_left_alone_when_nothing_is_wanted() -> None:
    useless = made(acceptance=0.0)
    assert useless.draft_count(16) == 0 and not useless.leaves_draft_alone
    useless.estimates.takes_turns = True
    assert useless.leaves_draft_alone
    useful = made()
    useful.estimates.takes_turns = True
    assert not useful.leaves_draft_alone


def test_a_probe_reaches_behind_what_is_decoded_until_it_comes() -> None:
    far = made(acceptance=0.0, latency=0.31)
    for i in range(16):
        far.note_round(outcome(now=float(i), sent=float(i)))
    assert far.lookahead() == 10


def test_a_pinned_serial_draft_is_never_longer_than_asked_for() -> None:
    pinned = made(policy=Policy.FIXED, n_max=4, run_ahead=False, acceptance=0.0, latency=0.31)
    assert pinned.forecast.mode is Mode.PLAIN
    assert (pinned.draft_count(64), pinned.lookahead()) == (4, 0)


# what to verify, and whether to wait


def test_a_draft_told_the_bonus_token_need_not_have_guessed_it() -> None:
    serial = made(costs=ZEN, token_time=0.005, acceptance=0.4, run_ahead=False)
    serial.note_order(0.0, 8, 1)
    serial.line_agrees(9)
    # The token at 9 was accepted and so was all before; the text got the target's at 9 and 10.
    serial.note_order(1.0, 11, 1)
    assert serial.choose([], 8, now=1.0, length=11, expected=True).until is not None


def test_rows_that_cost_too_much_are_not_verified() -> None:
    expensive = made(costs=CPU, token_time=0.006, acceptance=0.6, run_ahead=False)
    choice = expensive.choose([128] * 8, 8, now=0.0, length=10, expected=False)
    assert choice.count == 3 and choice.until is None  # four rows cost what one does


def test_a_draft_goes_on_behind_sure_tokens_only_where_confidence_tells() -> None:
    for informative, stops in ((True, True), (False, False)):
        its_control = made(acceptance=0.5, run_ahead=False)
        for i in range(400):
            stands = i % 2
            its_control.acceptance.note([255 * stands if informative else 128], stands)
        assert bool(its_control.stop_below) is stops
        assert its_control.draft_count(64) > 1
        fixed = made(acceptance=0.5, policy=Policy.FIXED, n_max=4)
        assert fixed.stop_below == 0
    ahead = made(acceptance=0.5, run_ahead=True)
    assert ahead.stop_below == 0


def test_how_sure_tokens_are_is_known_by_how_often_they_came() -> None:
    acceptance = Acceptance()
    assert acceptance.confidences == []
    for i in range(1000):
        acceptance.note([255 if i % 4 else 0], i % 4)
    shares = {edge: share for edge, share, _ in acceptance.confidences if share > 0.0}
    assert shares == {0: pytest.approx(0.25, abs=0.01), 253: pytest.approx(0.75, abs=0.01)}
    chances = {edge: chance for edge, share, chance in acceptance.confidences if share > 0.0}
    assert chances[0] < 0.15
    assert chances[253] > 0.9


def test_sure_tokens_are_worth_more_rows_than_unsure_ones() -> None:
    mixed = made(costs=CPU, token_time=0.006, acceptance=0.6, run_ahead=False)
    for _ in range(60):
        mixed.acceptance.note([250], 1)
        mixed.acceptance.note([20], 0)
    assert mixed.choose([250] * 7, 8, now=0.0, length=10, expected=False).count == 7
    assert mixed.choose([20] * 7, 8, now=0.0, length=10, expected=False).count <= 3


def test_what_is_expected_soon_is_waited_for_and_what_is_late_is_not() -> None:
    near = made(run_ahead=False)
    near.note_order(0.0, 10, 0)
    times = [0.0005]
    while (until := near.choose([], 8, now=times[-1], length=10, expected=True).until) is not None:
        times.append(until)
    assert 2 <= len(times) <= 4 and 0.004 < times[-1] < 0.1


def test_the_targets_turn_makes_no_draft_distant() -> None:
    for takes_turns, latency in ((True, 0.001), (False, 0.041)):
        its_control = made(acceptance=0.9, latency=0.021)  # it moves by steps
        its_control.estimates.takes_turns = takes_turns
        its_control.note_round(outcome())
        its_control.note_order(10.0, 5, 3)
        its_control.note_frame(10.050, 5, 3, 0.009, is_first=True, queue=0.040)
        assert its_control.estimates.latency.value == pytest.approx(latency)
        its_control.line_lost(5)
        its_control.note_order(20.0, 9, 3)
        # Yet it is no later than usual if it waits for as long again.
        assert not its_control.is_late(20.090)
        assert its_control.is_late(20.500)


def test_where_the_two_take_turns_a_slow_draft_is_waited_for_until_patience_ends() -> None:
    its_control = made(acceptance=0.9, run_ahead=False)
    its_control.estimates.takes_turns = True
    its_control.note_order(10.0, 5, 3)
    for late in (0.0, 0.02, 0.05):
        choice = its_control.choose([], 64, 10.010 + late, 5, expected=True)
        assert choice.until is not None
        assert choice.until > 10.060
    assert its_control.choose([], 64, choice.until, 5, expected=True).until is None


def test_a_distant_draft_is_not_waited_for() -> None:
    far = made(latency=0.3)
    far.note_order(0.0, 10, 0)
    assert far.choose([], 8, now=0.0, length=10, expected=True).until is None


def test_a_draft_below_n_min_is_not_verified() -> None:
    choosy = made(n_min=4, run_ahead=False)
    assert choosy.choose([SURE] * 3, 16, now=0.0, length=10, expected=False).count == 0
    assert choosy.choose([SURE] * 5, 16, now=0.0, length=10, expected=False).count == 5


def test_under_rejection_a_block_is_waited_for_whole() -> None:
    block = made(rule=Rule.REJECTION)
    block.note_order(0.0, 10, 4)
    assert block.choose([128] * 2, 4, now=0.01, length=10, expected=True).until is not None
    assert block.choose([128] * 4, 4, now=0.01, length=10, expected=True) == block.choose(
        [1] * 4, 4, now=0.01, length=10, expected=True
    )


def test_a_draft_that_a_busy_target_cuts_is_shorter_for_a_while() -> None:
    busy = made(run_ahead=False)
    wanted = busy.draft_count(64)
    assert wanted > 3
    busy.note_round(outcome(offered=wanted, drafted=1, accepted=1))
    assert busy.draft_count(64) == 1
    for _ in range(8):
        busy.note_round(outcome(offered=1, drafted=1, accepted=1))
    assert busy.draft_count(64) == 3


# policies


def test_a_fixed_length_is_waited_for_until_patience_ends() -> None:
    fixed = made(policy=Policy.FIXED, n_max=4, acceptance=0.0, run_ahead=False)
    assert fixed.draft_count(64) == 4 and fixed.draft_count(2) == 2
    fixed.note_order(0.0, 10, 4)
    first = fixed.choose([128] * 3, 64, now=0.0, length=10, expected=True)
    assert first.until == pytest.approx(0.001 + 4 * 0.003 + 1.0)
    assert fixed.choose([128] * 3, 64, now=1.1, length=10, expected=True).until is None
    assert fixed.choose([128] * 5, 64, now=0.0, length=10, expected=True).count == 4


def test_the_classic_rule_grows_and_shrinks_as_in_llama_cpp() -> None:
    classic = made(policy=Policy.CLASSIC, n_max=5)
    lengths = [classic.draft_count(64)]
    for drafted, accepted in ((5, 5), (13, 13), (21, 21), (29, 29), (30, 7), (4, 4), (28, 0)):
        classic.note_round(outcome(drafted=drafted, accepted=accepted))
        lengths.append(classic.draft_count(64))
    assert lengths == [5, 13, 21, 29, 30, 29, 29, 28]
    for _ in range(40):
        classic.note_round(outcome(drafted=2, accepted=0))
    assert classic.draft_count(64) == 2


# the table of costs


PADDED = CostTable([(4, 10.0), (8, 16.0), (12, 20.0)])
"""A target that pads to four rows: one row costs what four do."""


def test_rows_between_two_points_cost_what_the_next_one_does() -> None:
    shares = {rows: plain_share(PADDED, rows, 0) for rows in (1, 4, 5, 8, 9, 12)}
    assert shares == {1: 1.0, 4: 1.0, 5: 0.625, 8: 0.625, 9: 0.5, 12: 0.5}


def test_beyond_the_table_its_last_slope_goes_on() -> None:
    assert plain_share(PADDED, 65, 0) == 10.0 / (20.0 + (68 - 12) * 1.0)


def test_more_rows_are_never_taken_for_cheaper_than_one() -> None:
    assert plain_share(CostTable([(1, 9.0), (4, 6.0)]), 4, 0) == 1.0


def test_a_decode_beside_a_busy_draft_says_how_much_it_slows_the_target() -> None:
    shared = made(costs=CPU, same_host=True)
    shared.note_sent()
    shared.note_frame(0.5, 10, 4, 0.080, is_first=True)
    shared.note_round(outcome(spent=ServiceTime(0.088), drafted=3, draft_busy=True))
    assert shared.estimates.slowdown.value == pytest.approx(1 + (0.088 - 0.055) / 0.080)
    before = shared.estimates.costs.seconds(4)
    shared.note_sent()
    shared.note_round(outcome(spent=ServiceTime(0.060), drafted=3))
    assert shared.estimates.costs.seconds(4) > before


def test_the_gap_after_drafted_decodes_is_no_part_of_a_plain_token() -> None:
    own = OwnDraftEstimates.of_load(0.0002, 0.0)
    quick = made(costs=[(1, 0.0006), (4, 0.0020)])
    quick.estimates.continues, quick.estimates.own_draft = True, own
    plain = quick.plain_seconds
    for _ in range(20):
        spent = ServiceTime(0.0020, rows=4, sample=0.0013, draft=0.0006)
        drafted = outcome(spent=spent, sent=None, drafted=3, accepted=1, is_own=True)
        quick.note_round(drafted)
    assert own.gap.value == pytest.approx(0.0013, rel=0.05)
    assert quick.plain_seconds == pytest.approx(plain)


def test_what_the_targets_own_draft_reads_is_learned_from_the_rounds_that_it_read_in() -> None:
    own = OwnDraftEstimates.of_load(0.0016, 0.0001)
    its = made()
    its.estimates.continues, its.estimates.own_draft = True, own
    its.note_draft(its.estimates)
    for _ in range(4):
        spent = ServiceTime(0.02, draft=0.3)
        its.note_round(outcome(length=4000, sent=None, asks_own=True, spent=spent))
    spent = ServiceTime(0.03, draft=0.1)
    its.note_round(outcome(length=4004, sent=None, is_own=True, drafted=3, spent=spent))
    assert own.reading_seconds(4004) == pytest.approx(1.3, abs=0.01)


def test_the_first_plain_decode_after_another_kind_says_nothing_of_a_plain_token() -> None:
    """llama.cpp builds its graph anew for it."""
    quick = made(costs=[(1, 0.0006), (4, 0.0020), (8, 0.0030)])

    def note(seconds: float, drafted: int = 0) -> float:
        spent = ServiceTime(seconds, rows=drafted + 1)
        quick.note_round(outcome(spent=spent, drafted=drafted, offered=drafted))
        return quick.estimates.costs.seconds(1)

    known = note(0.0020, drafted=3)
    assert note(0.0010) == known
    assert note(0.0010) > known, "a second one does"
    known = note(0.0020, drafted=3)
    assert note(0.0050) > known, "no graph takes so long"


def test_a_busy_draft_on_another_machine_does_not_keep_costs_from_being_learned() -> None:
    apart = made(costs=CPU)
    for _ in range(40):
        apart.note_sent()
        apart.note_frame(0.5, 10, 4, 0.080, is_first=True)
        apart.note_round(outcome(spent=ServiceTime(0.088), drafted=3, draft_busy=True))
    assert apart.estimates.costs.seconds(4) == pytest.approx(0.088, rel=0.02)
    assert apart.estimates.slowdown.value == 1.0


def test_a_decode_that_others_share_is_weighed_with_their_rows() -> None:
    crowded = made(costs=CPU)
    alone = crowded.estimates.decode_seconds(4)
    for _ in range(60):
        crowded.note_round(outcome(spent=ServiceTime(0.2, rows=16), drafted=3))
    assert crowded.estimates.sharing.value == pytest.approx(4.0, rel=0.01)
    # Not taken for a slower target: what a decode of its own rows costs has not changed.
    assert crowded.estimates.costs.seconds(4) == pytest.approx(alone, rel=0.01)
    assert crowded.estimates.decode_seconds(4) == pytest.approx(0.2, rel=0.02)


@pytest.mark.parametrize(("drafted", "rows"), [(0, 9), (3, 6)])
def test_who_shares_a_decode_is_counted_not_guessed_from_rows(drafted: int, rows: int) -> None:
    crowded = made(costs=CPU)
    before = crowded.estimates.costs.points
    for _ in range(60):  # beside two that draft, or two that do not
        spent = ServiceTime(0.2, rows=rows, sessions=3)
        crowded.note_round(outcome(spent=spent, drafted=drafted))
    assert crowded.estimates.sharing.value == pytest.approx(3.0)
    # What so many rows cost that are not as many of each session is not learned from it.
    assert crowded.estimates.costs.points == before


def test_a_decode_that_others_share_with_as_many_rows_teaches_what_those_cost() -> None:
    crowded = made(costs=CPU)
    for _ in range(60):
        spent = ServiceTime(0.3, rows=12, sessions=3)
        crowded.note_round(outcome(spent=spent, drafted=3))
    assert crowded.estimates.costs.seconds(12) == pytest.approx(0.3, rel=0.02)
    crowded = made(costs=[(1, 0.03), (4, 0.06), (8, 0.12)])
    for _ in range(60):  # three plain ones, and a row that fills the decode
        crowded.note_round(outcome(spent=ServiceTime(0.1, rows=4, sessions=3)))
    assert crowded.estimates.costs.seconds(4) == pytest.approx(0.1, rel=0.02)


def test_after_a_prompt_nobody_is_expected_who_is_gone() -> None:
    crowded = made(costs=CPU)
    for _ in range(20):
        crowded.note_round(outcome(spent=ServiceTime(0.3, rows=8, sessions=8)))
    assert crowded.estimates.sessions_together == pytest.approx(8.0)
    crowded.note_round(outcome(is_prompt=True))
    assert crowded.estimates.sessions_together == 1.0
    crowded.note_round(outcome(spent=ServiceTime(0.3, rows=8, sessions=8)))
    assert crowded.estimates.sessions_together == pytest.approx(8.0)


def test_where_the_two_take_turns_a_decode_is_expected_to_be_shared_by_all() -> None:
    serial = made(costs=ZEN, token_time=0.002, acceptance=0.85, n_max=3, run_ahead=False)
    alone = serial.forecast.length
    serial.estimates.generation_count, serial._forecast = 2, None
    assert serial.forecast.length == alone
    serial.estimates.takes_turns, serial._forecast = True, None
    # Two rows each cost what four of one do, and four each what eight do.
    assert serial.forecast.length == 1 < alone


def test_waiting_for_others_is_no_overhead_of_a_round() -> None:
    told = made(costs=CPU)
    for _ in range(60):
        told.note_round(outcome(sent=0.8, spent=ServiceTime(0.055, queue=0.143, rows=4), drafted=3))
    assert told.estimates.overhead.value == pytest.approx(0.002, abs=1e-3)


@pytest.mark.fault(
    "others",
    "Four sessions whose drafts are half right share a target",
    before="each missed the others' decodes while it waited for its draft: .8 of no drafts",
    now="what a round that waits misses is measured, and must be paid for too",
)
def test_a_draft_that_is_waited_for_must_pay_for_the_others_decodes_it_misses() -> None:
    crowded = made(costs=CPU, acceptance=0.4, latency=0.0, run_ahead=False)
    crowded.estimates.continues = True
    assert crowded.forecast.mode is Mode.SERIAL
    for _ in range(20):
        crowded.note_round(outcome(sent=0.894, spent=ServiceTime(0.055, queue=0.05, rows=4)))
    assert crowded.forecast.mode is Mode.PLAIN
    # The others may be gone by the time that it is tried again.
    for _ in range(300):
        crowded.note_round(outcome(sent=None, spent=ServiceTime(0.055, rows=4)))
    assert crowded.forecast.mode is Mode.SERIAL


def test_a_decode_costs_what_it_does_after_the_text_beside_those_who_share_it() -> None:
    its_control = made(costs=[(1, 0.03), (8, 0.03)])
    its_control.estimates.costs = CostTable([Point(1, 0.03, 1e-6), Point(8, 0.03, 8e-6)])
    its_control.note_length(10_000)
    assert its_control.plain_seconds == pytest.approx(0.03 + 0.01 + 0.001)
    assert its_control.decode_seconds(8) == pytest.approx(0.03 + 0.08)
    # Three rows of others, each after 2,000 tokens.
    spent = ServiceTime(0.046, rows=4, attended=10_000 + 3 * 2_000)
    for _ in range(20):
        its_control.note_round(outcome(length=10_000, committed=0, spent=spent))
    assert its_control.decode_seconds(1) == pytest.approx(0.03 + 0.016, rel=0.01)
    assert its_control.estimates.others_length.value == pytest.approx(2_000)


def test_a_piece_of_somebodys_prompt_teaches_nothing() -> None:
    told = made(costs=CPU)
    before = told.estimates.costs.points
    told.note_round(outcome(spent=ServiceTime(1.3, rows=132), drafted=3))
    assert told.estimates.sharing.value == 1.0
    assert told.estimates.costs.points == before


def test_where_the_two_take_turns_nobody_runs_ahead() -> None:
    together = made(costs=CPU, same_host=True)
    together.estimates.takes_turns = True
    assert not any(_ran_ahead(together) for _ in range(40))
    apart = made(costs=CPU, same_host=True)
    assert any(_ran_ahead(apart) for _ in range(40))


def _ran_ahead(told: Control) -> bool:
    told.note_round(outcome(spent=ServiceTime(0.055, rows=4), drafted=3, accepted=2))
    return told.runs_ahead()


def test_a_high_estimate_of_which_nothing_is_seen_falls_back_to_the_first_one() -> None:
    mean = Mean(0.02)
    for _ in range(50):
        mean.note(0.2)
    mean.fade()
    assert 0.19 < mean.value < 0.2
    for _ in range(1000):
        mean.fade()
    assert mean.value == pytest.approx(0.02, rel=0.1)
    mean.note(0.2)
    assert mean.value > 0.18, "what is seen then is believed at once"
    for _ in range(50):
        mean.note(0.001)
    low = mean.value
    mean.fade()
    assert mean.value == low < 0.02


def test_a_draft_that_is_not_there_is_not_counted_on() -> None:
    its = made()
    assert its.forecast.rate > 1.2 / its.plain_seconds
    its.note_presence(False)
    assert its.forecast.mode is Mode.PLAIN
    assert its.forecast.rate == pytest.approx(1.0 / its.plain_seconds)
    its.note_presence(True)
    assert its.forecast.length > 0
