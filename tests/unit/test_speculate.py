"""What the policies decide by what is known of a pair."""

from __future__ import annotations

from itertools import pairwise

import pytest

from outrider.core.control import CLEARLY, Control
from outrider.core.forecast import Mode
from outrider.core.outcomes import Outcome
from outrider.core.rates import FIRST_RETRY, AcceptanceRate, DraftRates, Mean
from outrider.core.speculate import control
from outrider.core.target_costs import Pair, TargetCosts
from outrider.costs import CostTable
from outrider.messages import Rule, ServiceTime
from outrider.speculation import Policy, Speculation
from tests.support.thorough import cells

GPU = [(1, 0.0300), (64, 0.0300 + 0.0004 * 63)]
ZEN = [(2, 0.038), (4, 0.056), (8, 0.105), (16, 0.147)]
CPU = [(4, 0.055), (8, 0.100), (16, 0.200)]
SURE = 255


def made(
    *,
    costs: list[tuple[int, float]] = GPU,
    latency: float = 0.001,
    token_time: float = 0.003,
    read_time: float = 0.0,
    acceptance: float = 0.8,
    rule: Rule = Rule.MATCH,
    continues: bool = False,
    own: DraftRates | None = None,
    same_host: bool = False,
    takes_turns: bool = False,
    **speculation: object,
) -> Control:
    """Return what decides for a generation whose pair is known well."""
    target = TargetCosts(CostTable(costs), continues=continues, own=own, overhead=Mean(0.001))
    rates = DraftRates(
        token_time=Mean(token_time), latency=Mean(latency), read_time=Mean(read_time)
    )
    pair = Pair(target, rates, same_host or takes_turns, takes_turns)
    its_control = control(Speculation(**speculation), rule, pair, timeout=1.0)  # type: ignore[arg-type]
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
        "drafted": 0,
        "accepted": 0,
        "committed": 1,
        "spent": ServiceTime(),
        "draft_busy": False,
        "is_prompt": False,
    }
    return Outcome(**(usual | changes))  # type: ignore[arg-type]


# --- what is learned ---


def test_lines_teach_and_under_rejection_only_verified_tokens_do() -> None:
    learner = made(acceptance=0.5)
    learner.note_line([128] * 150, agrees=True)
    assert learner.acceptance.mean > 0.8
    judged = made(acceptance=0.5, rule=Rule.REJECTION)
    for _ in range(150):
        judged.note_round(outcome(confidences=[128, 128, 128], drafted=3, accepted=0))
    assert judged.acceptance.mean < 0.2


def test_all_generations_learn_from_each() -> None:
    first = made(acceptance=0.5)
    first.note_line([128] * 150, agrees=True)
    second = control(Speculation(), Rule.MATCH, first.pair, timeout=1.0)
    assert second.acceptance.mean > 0.8


# --- the way to speculate ---


def test_an_unknown_draft_is_used_from_the_first_token_on() -> None:
    new = made()
    new.acceptance = AcceptanceRate()
    assert new.draft_count(16) > 0 and not new.probing


@pytest.mark.parametrize(
    ("latency", "mode"), [(0.0, Mode.WAITING), (0.02, Mode.NO_WAIT), (0.15, Mode.NO_WAIT)]
)
def test_the_way_to_the_draft_decides_whether_to_wait(latency: float, mode: Mode) -> None:
    assert made(latency=latency).forecast.mode is mode


def test_a_useless_draft_is_left_alone() -> None:
    idle = made(acceptance=0.0)
    assert idle.forecast.mode is Mode.PLAIN
    assert idle.draft_count(64) == 0


def test_what_gains_nothing_clear_is_not_used() -> None:
    for acceptance in (0.1, 0.2, 0.3, 0.4, 0.5):
        chosen = made(costs=ZEN, acceptance=acceptance).forecast
        alone = 1.0 / made(costs=ZEN).plain_seconds
        assert chosen.mode is Mode.PLAIN or chosen.rate > CLEARLY * alone


def test_where_the_two_take_turns_nobody_runs_ahead() -> None:
    together, apart = (made(costs=CPU, same_host=True, takes_turns=its) for its in (True, False))
    assert not any(_ran_ahead(together) for _ in range(40))
    assert any(_ran_ahead(apart) for _ in range(40))


def _ran_ahead(its: Control) -> bool:
    its.note_round(outcome(spent=ServiceTime(0.055, rows=4), drafted=3, accepted=2))
    return its.runs_ahead()


def test_a_draft_that_is_not_there_is_not_counted_on() -> None:
    its = made()
    assert its.forecast.rate > 1.2 / its.plain_seconds
    its.note_presence(False)
    assert its.forecast.mode is Mode.PLAIN
    assert its.forecast.rate == pytest.approx(1.0 / its.plain_seconds)
    its.note_presence(True)
    assert its.forecast.length > 0


@pytest.mark.fault(
    "others",
    "Four sessions whose drafts are half right share a target",
    before="each missed the others' decodes while it waited for its draft: .8 of no drafts",
    now="what a round that waits misses is measured, and must be paid for too",
)
def test_a_draft_that_is_waited_for_must_pay_for_the_others_decodes_it_misses() -> None:
    crowded = made(costs=CPU, acceptance=0.4, latency=0.0, run_ahead=False, continues=True)
    assert crowded.forecast.mode is Mode.SERIAL
    for _ in range(20):
        crowded.note_round(outcome(sent=0.894, spent=ServiceTime(0.055, queue=0.05, rows=4)))
    assert crowded.forecast.mode is Mode.PLAIN
    # The others may be gone by the time that it is tried again.
    for _ in range(600):
        crowded.note_round(outcome(sent=None, spent=ServiceTime(0.055, rows=4)))
    assert crowded.forecast.mode is Mode.SERIAL


# --- what is not used is tried now and then ---


def tries(its: Control, rounds: int, unread: int = 0, agrees: bool = False) -> list[int]:
    """Return after which of some plain rounds the draft was asked for. All that it
    drafted agrees with the text, or the first token does not.

    `unread` tokens of the text have to be read for that, each time.
    """
    tried = []
    for i in range(1, rounds + 1):
        its.note_unread(unread, 10_000)
        now = its.plain_seconds * i
        spent = ServiceTime(its.decode_seconds(1))
        its.note_round(outcome(now=now, sent=now - spent.decode, spent=spent))
        if its.draft_count(16):
            tried.append(i)
            its.note_line([200] * (3 if agrees else 1), agrees)
    return tried


@pytest.mark.parametrize(("acceptance", "latency"), [(0.0, 0.001), (0.9, 2.0)])
def test_a_draft_that_does_not_pay_is_tried_again_ever_more_rarely(
    acceptance: float, latency: float
) -> None:
    left = made(acceptance=acceptance, latency=latency, run_ahead=False)
    tried = tries(left, 3000, agrees=acceptance > 0.0)
    gaps = [b - a for a, b in pairwise([0, *tried])]
    assert gaps[0] <= FIRST_RETRY, "a second or two, the first time"
    assert gaps == sorted(gaps) and gaps[-1] >= 256
    assert len(tried) >= 5, "but never for good"


def test_the_next_generation_goes_on_waiting_to_try_a_useless_draft() -> None:
    first = made(acceptance=0.0)
    [tried] = tries(first, FIRST_RETRY + 4)
    second = control(first.speculation, Rule.MATCH, first.pair, timeout=1.0)
    second.note_presence(True)
    second.acceptance = first.acceptance
    [again] = tries(second, 2 * FIRST_RETRY)
    assert 2 * tried - (FIRST_RETRY + 4 - tried) == again


@pytest.mark.parametrize(
    ("unread", "latency", "sessions"), cells([5, 300, 3000], [0.001, 0.4, 2.0], [1, 4], together=1)
)
def test_probes_on_the_targets_own_cores_take_a_small_share_of_its_time(
    unread: int, latency: float, sessions: int
) -> None:
    useless = made(
        costs=ZEN,
        token_time=0.002,
        read_time=0.0002,
        acceptance=0.0,
        latency=latency,
        takes_turns=True,
        continues=True,
    )
    useless.costs.generation_count = sessions
    rounds = 5_000
    probes = len(tries(useless, rounds, unread))
    overtaken = latency / useless.plain_seconds
    seconds = sessions * (unread * 0.0002 + (4 + overtaken) * 0.002)
    assert probes * seconds < 0.02 * rounds * useless.plain_seconds
    assert probes > 0


def test_a_draft_elsewhere_is_tried_after_a_text_of_any_length() -> None:
    assert tries(made(acceptance=0.0, read_time=0.0002), FIRST_RETRY, unread=100_000)


def test_a_draft_slower_than_its_target_takes_little_of_its_time() -> None:
    slow = made(costs=ZEN, token_time=0.07, takes_turns=True)
    probes = len(tries(slow, 2000, agrees=True))
    assert probes * 3 * 0.07 < 0.02 * 2000 * slow.plain_seconds


def test_a_draft_that_was_measured_on_a_busy_machine_is_used_once_it_is_seen_to_be_quick() -> None:
    slow = made(token_time=0.12)
    slow.rates.loaded_token_time = 0.12
    rounds = 0
    while not slow.forecast.length:
        rounds += 1
        if slow.draft_count(64):
            slow.note_order(1.0, 10, 3)
            slow.note_frame(1.01, 10, 3, 0.009, is_first=True)
            slow.note_line([200, 200, 200], agrees=True)
        slow.note_round(outcome(committed=0))
        assert rounds < 1000


def test_a_probe_reaches_behind_what_is_decoded_until_it_comes() -> None:
    far = made(acceptance=0.0, latency=0.31)
    for i in range(FIRST_RETRY):
        far.note_round(outcome(now=float(i), sent=float(i)))
    assert far.probing and far.lookahead() == 10


def test_nobody_waits_for_a_draft_that_is_only_tried() -> None:
    tried = made(acceptance=0.0)
    while not tried.draft_count(16):
        tried.note_round(outcome())
    assert tried.probing and not tried.waits_for_drafts
    assert tried.choose([], 16, now=1.0, expected=True).until is None


def test_on_the_targets_own_cores_a_long_text_is_read_only_where_enough_is_to_follow() -> None:
    def reads(takes_turns: bool, unread: int, remaining: int, written: int = 0) -> bool:
        its = made(costs=CPU, token_time=0.006, read_time=0.001, takes_turns=takes_turns)
        for _ in range(written):
            its.note_round(outcome())
        its.note_unread(unread, remaining)
        assert its.sends_no_text is (takes_turns and not its.forecast.length)
        return its.draft_count(3) > 0

    # Some 20 ms are saved with every token, and 1,400 are read in 1.4 s.
    assert not reads(True, 1400, 40)
    assert reads(True, 1400, 200)
    assert reads(True, 1400, 10_000)
    assert reads(True, 5, 4), "the end of a text that it has read"
    # Where nothing is known of the length, some 256 tokens; once more are written, as many again.
    assert not reads(True, 8000, 10_000)
    assert reads(True, 8000, 10_000, written=800)
    assert reads(False, 100_000, 10), "elsewhere it reads while the target writes"


def test_a_draft_on_the_targets_own_cores_is_left_alone_when_nothing_is_wanted() -> None:
    assert not made(acceptance=0.0).sends_no_text
    assert made(acceptance=0.0, takes_turns=True).sends_no_text
    assert not made(takes_turns=True).sends_no_text


# --- what to verify, and whether to wait ---


def test_rows_that_cost_too_much_are_not_verified() -> None:
    expensive = made(costs=CPU, token_time=0.006, acceptance=0.6, run_ahead=False)
    choice = expensive.choose([128] * 8, 8, now=0.0, expected=False)
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


def test_what_is_expected_soon_is_waited_for_and_what_is_late_is_not() -> None:
    near = made(run_ahead=False)
    near.note_order(0.0, 10, 0)
    times = [0.0005]
    while (until := near.choose([], 8, now=times[-1], expected=True).until) is not None:
        times.append(until)
    assert 2 <= len(times) <= 4 and 0.004 < times[-1] < 0.1


def test_the_targets_turn_makes_no_draft_late() -> None:
    its = made(acceptance=0.9, run_ahead=False, takes_turns=True)
    its.note_order(10.0, 5, 3)
    until = its.choose([], 64, 10.010, expected=True).until
    assert until is not None
    assert until > 10.010 + its.plain_seconds + 3 * 0.003, "it may wait for a decode first"
    assert its.choose([], 64, until, expected=True).until is None


def test_a_distant_draft_is_not_waited_for() -> None:
    far = made(latency=0.3)
    far.note_order(0.0, 10, 0)
    assert far.choose([], 8, now=0.0, expected=True).until is None


def test_a_draft_below_n_min_is_not_verified() -> None:
    choosy = made(n_min=4, run_ahead=False)
    assert choosy.choose([SURE] * 3, 16, now=0.0, expected=False).count == 0
    assert choosy.choose([SURE] * 5, 16, now=0.0, expected=False).count == 5


def test_under_rejection_a_block_is_waited_for_whole() -> None:
    block = made(rule=Rule.REJECTION)
    block.note_order(0.0, 10, 4)
    assert block.choose([128] * 2, 4, now=0.01, expected=True).until is not None
    assert block.choose([128] * 4, 4, now=0.01, expected=True) == block.choose(
        [1] * 4, 4, now=0.01, expected=True
    )


# --- given lengths ---


def test_a_pinned_serial_draft_is_never_longer_than_asked_for() -> None:
    pinned = made(policy=Policy.FIXED, n_max=4, run_ahead=False, acceptance=0.0, latency=0.31)
    assert pinned.forecast.mode is Mode.PLAIN
    assert (pinned.draft_count(64), pinned.lookahead()) == (4, 0)


def test_a_fixed_length_is_waited_for_until_its_timeout() -> None:
    fixed = made(policy=Policy.FIXED, n_max=4, acceptance=0.0, run_ahead=False)
    assert fixed.draft_count(64) == 4 and fixed.draft_count(2) == 2
    fixed.note_order(0.0, 10, 4)
    first = fixed.choose([128] * 3, 64, now=0.0, expected=True)
    assert first.until == pytest.approx(0.001 + 4 * 0.003 + 1.0)
    assert fixed.choose([128] * 3, 64, now=1.1, expected=True).until is None
    assert fixed.choose([128] * 5, 64, now=0.0, expected=True).count == 4


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
