"""When a target's own draft is used, on the virtual clock and in the state machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from outrider.core.actions import Commit
from outrider.core.control import CLEARLY, Control
from outrider.core.generation import Generation
from outrider.core.own_draft_state import OwnDraftState
from outrider.core.rates import DraftRates, Mean
from outrider.core.speculate import control
from outrider.core.target_costs import Pair, TargetCosts
from outrider.costs import CostTable
from outrider.distribution import certain
from outrider.errors import InvalidRequest
from outrider.messages import Answer, Form, Origin, OwnTokens, Round, Rows, Rule, ServiceTime
from outrider.speculation import Policy, Speculation, Verification
from tests.support.shared_engine import SharedEngine
from tests.support.simulation import (
    Faults,
    Models,
    Result,
    Simulation,
    alone,
    known_pair,
    run_together,
)
from tests.support.thorough import THOROUGH, cells
from tests.unit.test_continuing import END, PROMPT, generation, rounds
from tests.unit.test_speculate import outcome

ZEN = CostTable([(1, 0.0165), (2, 0.0275), (3, 0.039), (4, 0.0305), (8, 0.054), (16, 0.09)])
FREE_ROWS = CostTable([(1, 0.02), (16, 0.022)])


def models(**changes: float | bool | CostTable) -> Models:
    known = {"costs": ZEN, "draft_token": 0.002, "acceptance": 0.8, "own_token": 0.0016}
    return Models(**known | {"same_host": True, "takes_turns": True} | changes)  # type: ignore[arg-type]


def rate(
    its_models: Models,
    tokens: int = 400,
    pair: Pair | None = None,
    speculation: Speculation | None = None,
    **options: object,
) -> tuple[float, Result]:
    simulation = Simulation(
        its_models,
        speculation or Speculation(),
        tokens=tokens,
        seed=3,
        pair=pair,
        **options,  # type: ignore[arg-type]
    )
    result = simulation.run()
    return tokens / result.seconds, result


def plain_rate(its_models: Models) -> float:
    return 1.0 / its_models.costs.seconds(1)


@pytest.mark.parametrize("acceptance", [0.6, 0.7, 0.8, 0.9])
@pytest.mark.parametrize("costs", [ZEN, FREE_ROWS], ids=["zen", "free rows"])
def test_it_makes_what_the_best_fixed_length_would(acceptance: float, costs: CostTable):
    its = models(own_acceptance=acceptance, costs=costs)
    made, result = rate(its, tokens=1000)
    best = plain_rate(its)
    for k in range(1, 12):
        tokens = (1.0 - acceptance ** (k + 1)) / (1.0 - acceptance)
        best = max(best, tokens / (costs.seconds(k + 1) + k * its.own_token))
    # A beta-distributed chance for every token is better to draft for than its mean.
    assert made > 0.93 * best
    assert result.text == alone(Simulation(its, Speculation(), tokens=1, seed=3).language, 1000)


@pytest.mark.parametrize("acceptance", [0.8, 0.85, 0.9])
def test_a_first_text_is_not_given_away_for_long_drafts_after_a_good_beginning(acceptance: float):
    # On a table where 16 rows take three times what four take. Six accepted rounds of three tokens
    # looked like a draft that is always right: of 24 first texts the worst made .65 of the best.
    its = models(own_acceptance=acceptance)
    best = max(
        sum(acceptance**i for i in range(k + 1)) / (ZEN.seconds(k + 1) + k * its.own_token)
        for k in range(1, 12)
    )
    runs = [Simulation(its, Speculation(), tokens=128, seed=seed).run() for seed in range(24)]
    assert min(128 / each.seconds for each in runs) > 0.8 * best


@pytest.mark.parametrize(
    ("acceptance", "own_token"),
    cells([0.0, 0.2, 0.4, 0.6, 0.8, 0.95], [0.0005, 0.0016, 0.006, 0.03], together=1),
)
def test_it_never_costs_more_than_three_in_a_hundred(acceptance: float, own_token: float):
    its = models(own_acceptance=acceptance, own_token=own_token)
    known, seconds = known_pair(its), 0.0
    for seed in range(12):
        text = Simulation(its, Speculation(), tokens=300, seed=seed, pair=known, has_draft=False)
        seconds += text.run().seconds
    assert 12 * 300 / seconds > 0.97 * plain_rate(its)


def test_the_first_text_with_one_that_is_always_wrong_loses_little():
    its = models(own_acceptance=0.0)
    made, result = rate(its, tokens=200, has_draft=False)
    assert made > 0.95 * plain_rate(its)
    assert 0 < result.counts.drafted < 30


def test_one_that_looked_slow_at_load_is_used_once_it_is_seen_to_be_quick():
    its = models(own_acceptance=0.85)
    known = known_pair(its)
    known.costs.own = DraftRates(token_time=Mean(0.05))
    for _ in range(6):
        made, _ = rate(its, tokens=300, pair=known, has_draft=False)
    assert made > 1.15 * plain_rate(its)


def test_one_that_was_bad_is_tried_again():
    its = models(own_acceptance=0.9, costs=FREE_ROWS)
    known = known_pair(its)
    rate(models(own_acceptance=0.0, costs=FREE_ROWS), 600, known, has_draft=False)
    made, _ = rate(its, 3000, known, has_draft=False)
    assert made > 1.8 * plain_rate(its)


def test_on_the_same_cores_no_other_draft_is_asked():
    _, result = rate(models(own_acceptance=0.8))
    assert result.counts.drafted > 0
    simulation = Simulation(models(own_acceptance=0.8), Speculation(), tokens=200, seed=3)
    simulation.run()
    assert simulation.draft.held == []


def test_a_better_draft_on_other_cores_is_preferred():
    its = models(
        same_host=False,
        takes_turns=False,
        costs=FREE_ROWS,
        acceptance=0.95,
        own_acceptance=0.3,
        draft_round_trip=0.0005,
    )
    known = known_pair(its)
    rate(its, 400, known)
    made, _ = rate(its, 400, known)
    without, _ = rate(its, 400, known_pair(its), has_draft=False)
    assert made > 1.5 * without


@pytest.mark.fault(
    "hang",
    "A target's own draft was the best one and drafts no more: its context is too short",
    before="it was waited for to the end of the text, at a rate near that without drafts",
    now="after 16 rounds in vain another draft is used, if there is one, and it is tried later",
)
def test_one_that_falls_silent_leaves_the_text_to_another_draft():
    its = models(
        same_host=False,
        takes_turns=False,
        acceptance=0.85,
        own_acceptance=0.9,
        draft_round_trip=0.001,
    )
    silent = Faults(own_silence=150)
    both, result = rate(its, 800, faults=silent)
    remote, _ = rate(replace(its, own_token=0.0), 800)
    assert both > 0.93 * remote
    simulation = Simulation(its, Speculation(), tokens=800, seed=3, faults=silent)
    assert result.text == alone(simulation.language, 800)


def test_one_that_falls_silent_costs_nothing_where_there_is_no_other():
    its = models(own_acceptance=0.85)
    made, _ = rate(its, 600, faults=Faults(own_silence=1), has_draft=False)
    assert made > 0.99 * plain_rate(its)


def test_far_from_the_orchestrator_it_loses_nothing():
    near, _ = rate(models(own_acceptance=0.8), has_draft=False)
    for seconds in (0.02, 0.05, 0.1):
        its = models(own_acceptance=0.8, target_round_trip=seconds)
        far, _ = rate(its, has_draft=False)
        assert far > 0.93 * near


def test_sessions_side_by_side_all_use_it():
    its = models(own_acceptance=0.8, costs=FREE_ROWS)
    engine, known = SharedEngine(its.costs), known_pair(its)
    known.costs.generation_count = 4
    worlds = [
        Simulation(
            its, Speculation(), tokens=200, seed=i, pair=known, engine=engine, has_draft=False
        )
        for i in range(4)
    ]
    for world, result in zip(worlds, run_together(engine, worlds), strict=True):
        assert result.text == alone(world.language, 200)
        assert result.counts.accepted > 60


FULL_KERNELS = CostTable([(1, 0.028), (2, 0.05), (4, 0.069), (8, 0.135), (16, 0.231)])


def test_where_full_kernels_leave_no_room_sessions_that_begin_together_lose_little():
    its = models(own_acceptance=0.6, costs=FULL_KERNELS)

    def seconds(speculation: Speculation) -> float:
        engine, known = SharedEngine(its.costs), known_pair(its)
        known.costs.generation_count = 4
        worlds = [
            Simulation(
                its, speculation, tokens=64, seed=i, pair=known, engine=engine, has_draft=False
            )
            for i in range(4)
        ]
        return max(result.seconds for result in run_together(engine, worlds))

    assert seconds(Speculation()) < 1.05 * seconds(Speculation(enabled=False))


def test_the_forecast_follows_who_else_is_there():
    known = known_pair(models(costs=FULL_KERNELS))
    known.costs.continues = True
    for count in (1, 4, 1):
        known.costs.generation_count = count
        its = control(Speculation(), Rule.MATCH, known, 1.0)
        assert (its.forecast.own_length > 0) == (count == 1)


def test_whatever_goes_wrong_the_text_is_the_targets():
    faults = Faults(target_deaths=0.5, evictions=1.0, draft_deaths=0.5, frame_loss=0.1)
    for seed in range(20):
        simulation = Simulation(
            models(own_acceptance=0.7, same_host=False, takes_turns=False, target_round_trip=0.02),
            Speculation(),
            tokens=120,
            seed=seed,
            faults=faults,
        )
        assert simulation.run().text == alone(simulation.language, 120)


@pytest.mark.parametrize(
    "asked", [Speculation(run_ahead=True), Speculation(n_min=1), Speculation(n_max=0)]
)
def test_what_pins_the_other_drafts_way_leaves_it_out(asked: Speculation):
    known = known_pair(models())
    assert control(asked, Rule.MATCH, known, 1.0).own_draft.count == 0
    assert control(Speculation(), Rule.MATCH, known, 1.0).own_draft.count > 0


def test_under_rejection_it_is_judged_as_a_block_where_the_target_may_answer_with_samples() -> None:
    known, by_token = known_pair(models()), Speculation(verification=Verification.TOKEN)
    order = control(Speculation(), Rule.REJECTION, known, 1.0).own_draft
    assert order.count > 0 and not order.stop_below
    assert control(by_token, Rule.REJECTION, known, 1.0).own_draft.count == 0
    assert control(Speculation(), Rule.REJECTION, known, 1.0, samples=False).own_draft.count == 0
    assert control(by_token, Rule.MATCH, known, 1.0).own_draft.count > 0


def test_a_given_length_is_drafted_without_messages_where_both_share_their_cores() -> None:
    pinned = Speculation(policy=Policy.FIXED, n_max=3)
    its = control(pinned, Rule.MATCH, known_pair(models()), 1.0)
    assert (its.own_draft.count, its.draft_count(10)) == (3, 0)
    here, result = rate(models(), speculation=pinned, pair=known_pair(models()))
    there, _ = rate(models(own_token=0.0), speculation=pinned)
    assert result.text == alone(Simulation(models(), pinned, tokens=400, seed=3).language, 400)
    assert here > 1.02 * there


@pytest.mark.parametrize(
    "asked",
    [
        Speculation(policy=Policy.CLASSIC),
        Speculation(policy=Policy.FIXED, p_min=0.5),
        Speculation(policy=Policy.FIXED, run_ahead=True),
        Speculation(policy=Policy.FIXED, n_min=1),
    ],
)
def test_a_given_length_that_the_draft_may_shorten_is_drafted_at_its_service(asked: Speculation):
    its = control(asked, Rule.MATCH, known_pair(models()), 1.0)
    assert its.own_draft.count == 0 < its.draft_count(10)


@pytest.mark.parametrize("policy", [Policy.FIXED, Policy.MEASURED])
def test_where_rows_are_no_samples_the_service_drafts(policy: Policy):
    asked = Speculation(policy=policy)
    its = control(asked, Rule.MATCH, known_pair(models()), 1.0, samples=False)
    its.note_presence(True)
    assert its.own_draft.count == 0 < its.draft_count(10)


def own_draft(read_time: float) -> OwnDraftState:
    return OwnDraftState(DraftRates(token_time=Mean(0.0016), read_time=Mean(read_time)))


def test_one_that_reads_a_long_text_is_not_taken_for_silent():
    own = own_draft(0.0001)
    assert not any(own.note_nothing(6400, 1, 0.01) for _ in range(115))
    assert own.note_nothing(6400, 1, 0.01) and own.drafts_nothing
    own.note_drafted(0.003, 3, True, 6400, 1.0)
    assert not own.drafts_nothing


def test_what_reading_a_long_text_takes_is_learned_from_the_rounds_it_read_in() -> None:
    own = own_draft(0.0001)
    for _ in range(4):
        own.note_nothing(4000, 1, 0.3)
    own.note_drafted(0.1 + 3 * 0.0016, 3, True, 4004, 1.0)
    after = OwnDraftState(own.rates)
    assert after.reading_seconds(4004) == pytest.approx(0.8, rel=0.05), "twice what was known"
    assert own.reading_seconds(4004) == 0.0, "it has read that"


def test_the_time_of_reading_a_text_is_not_taken_for_a_loss_of_its_drafts() -> None:
    # That the text is worth reading was decided before. A dozen plain tokens' time for it made a
    # good draft back off in the first text after a long prompt.
    its = models(own_acceptance=0.8, read_time=0.0002)
    result = rate(its, 300, has_draft=False, prompt_tokens=1400)[1]
    assert result.counts.drafted > 250, "it is used all the time"


@pytest.mark.parametrize("length", [300, 3000] if THOROUGH else [3000])
def test_what_a_bad_hour_taught_of_its_times_does_not_shut_out_long_texts_for_good(length: int):
    its = models(own_acceptance=0.85, read_time=0.0001)
    known = known_pair(its)
    assert known.costs.own is not None
    for mean, slow in ((known.costs.own.token_time, 0.016), (known.costs.own.read_time, 0.001)):
        for _ in range(50):
            mean.note(slow)
    made = [
        rate(its, 500, known, has_draft=False, prompt_tokens=length)[0] / plain_rate(its)
        for _ in range(60)
    ]
    assert made[0] < 1.02, "it is not used yet"
    assert made[-1] > 1.15


def test_a_long_text_is_read_only_where_enough_is_to_follow() -> None:
    for length, remaining, reads in ((60, 64, True), (1400, 600, True), (1400, 60, False)):
        known = known_pair(models(read_time=0.0005))
        known.costs.continues = True
        its = control(Speculation(), Rule.MATCH, known, 1.0)
        its.note_length(length)
        its.note_unread(length, remaining)
        assert (its.own_draft.count > 0) is reads


def test_a_long_text_is_read_only_where_drafts_save_it_beyond_what_forecasts_are_wrong_by() -> None:
    length, remaining = 1400, 200

    def after(read_time: float) -> Control:
        known = known_pair(models(read_time=read_time))
        known.costs.continues = True
        its = control(Speculation(), Rule.MATCH, known, 1.0)
        its.note_length(length)
        its.note_unread(length, remaining)
        return its

    best, plain = after(0.0).forecast.rate, 1.0 / after(0.0).plain_seconds
    least, most = (remaining * (1.0 / rate - 1.0 / best) for rate in (CLEARLY * plain, plain))
    assert after(0.95 * least / length).own_draft.count > 0
    assert after((least + most) / 2.0 / length).own_draft.count == 0


@pytest.mark.parametrize("sessions", [1, 2])
def test_sessions_that_share_decodes_all_draft_or_none_does(sessions: int) -> None:
    known = known_pair(models())
    known.costs.continues = True
    known.costs.generation_count = sessions
    good, bad = (control(Speculation(), Rule.MATCH, known, 1.0) for _ in range(2))
    for _ in range(30):  # what each learned of its own text, and both together
        for its, accepted in ((good, 4), (bad, 0)):
            its._own_acceptance.note([200] * min(4, accepted + 1), accepted)
            its._all_own_acceptance.note([200] * min(4, accepted + 1), accepted)
    drafting = {its.forecast.own_length > 0 for its in (good, bad)}
    assert len(drafting) == (2 if sessions == 1 else 1)


def test_those_who_share_decodes_change_their_way_together() -> None:
    known = known_pair(models(own_acceptance=0.9))
    known.costs.continues = True
    known.costs.generation_count = 2
    first, second = (control(Speculation(), Rule.MATCH, known, 1.0) for _ in range(2))
    before = first.forecast
    assert before.own_length
    for _ in range(60):  # nothing is right any more
        first._all_own_acceptance.note([200], 0)
    assert second.forecast is before, "as the other still does"
    for its in (second, first):
        its.last_time, its._rounds = 1.0, 1
    after = second.forecast
    assert not after.own_length
    assert first.forecast is after
    assert len(known.costs.together) == 1, "what was found before is forgotten"


def test_who_gets_nothing_drafted_or_has_a_text_to_read_decides_without_the_others() -> None:
    known = known_pair(models(own_acceptance=0.9, read_time=0.01))
    known.costs.continues = True
    known.costs.generation_count = 2
    others, silent, long = (control(Speculation(), Rule.MATCH, known, 1.0) for _ in range(3))
    assert others.forecast.own_length
    assert silent._own is not None
    silent._own.drafts_nothing = True
    assert not silent.forecast.own_length
    long.note_length(10_000)
    assert not long.forecast.own_length


def test_a_draft_that_backs_off_is_used_by_none_of_those_who_share_decodes() -> None:
    known = known_pair(models(own_acceptance=0.9))
    known.costs.continues = True
    known.costs.generation_count = 2
    first, second = (control(Speculation(), Rule.MATCH, known, 1.0) for _ in range(2))
    assert first.forecast.own_length and first._own is not None
    first._own.has_read = True
    for i in range(20):
        first.last_time = 0.01 * i
        spent = ServiceTime(0.009, rows=8, sessions=2)
        first._note_gain(outcome(now=0.01 * i + 0.15, spent=spent, drafted=3, committed=1))
    assert not first.forecast.own_length
    assert not second.forecast.own_length


@pytest.mark.parametrize("others", [0, 3])
def test_what_rounds_with_others_took_is_no_loss_of_one_that_is_alone_now(others: int) -> None:
    known = known_pair(models(own_acceptance=0.9))
    known.costs.continues = True
    assert known.costs.own is not None
    its = control(Speculation(), Rule.MATCH, known, 1.0)
    assert its.forecast.own_length
    its._own = OwnDraftState(known.costs.own)
    its._own.has_read = True
    for i in range(20):
        sessions = 1 + others
        spent = ServiceTime(0.3, rows=4 * sessions, sessions=sessions)
        its.last_time = float(i)
        its._note_gain(outcome(now=i + 0.3, spent=spent, drafted=3, committed=1))
    assert known.costs.own.gain.backs_off(1.0) == (others == 0)


def test_one_that_drafts_few_tokens_is_not_asked_for_more() -> None:
    known = known_pair(models(costs=FREE_ROWS, own_token=0.0001, own_acceptance=0.9))
    known.costs.continues = True
    assert known.costs.own is not None
    many = control(Speculation(), Rule.MATCH, known, 1.0)
    assert many.own_draft.count > 2
    known.costs.own.most_tokens = 2
    few = control(Speculation(), Rule.MATCH, known, 1.0)
    assert few.own_draft.count == 2
    assert few.forecast.rate < many.forecast.rate


@pytest.mark.parametrize("sessions", [1, 4])
def test_where_decodes_are_shared_no_draft_ends_before_the_others(sessions: int) -> None:
    known = known_pair(models(costs=FREE_ROWS, own_token=0.004))
    known.costs.continues = True
    known.costs.generation_count = sessions
    its = control(Speculation(), Rule.MATCH, known, 1.0)
    for _ in range(30):  # of sure tokens all are right, of others none
        its._own_acceptance.note([240, 240, 20], 2)
        its._all_own_acceptance.note([240, 240, 20], 2)
    assert its.own_draft.count > 1
    assert (its.own_draft.stop_below > 0) == (sessions == 1)


# --- the state machine ---


def known() -> Pair:
    own = DraftRates(token_time=Mean(0.001))
    return Pair(TargetCosts(ZEN, continues=True, own=own), DraftRates(), True, True)


def begun() -> tuple[Generation, Round]:
    """Return a generation whose prompt is read, and the round that lets it be written."""
    its = generation(known=known())
    [first] = rounds(its)
    its.target_wrote(Answer(first.number, 4, 0, Rows([5]), spent=ServiceTime(0.02)), 0.1)
    its.next_actions(0.1)
    return its, first


def wrote(
    its: Generation, round_: Round, position: int, ids: Sequence[int], *drafts: Sequence[int]
) -> None:
    each = ServiceTime(0.02, draft=0.002)
    own = [OwnTokens(draft, bytes([200] * len(draft)), each) for draft in drafts]
    spent = ServiceTime(0.02 * len(own))
    its.target_wrote(Answer(round_.number, position, 0, Rows(list(ids)), own, spent), 0.3)


def commits(its: Generation) -> list[Commit]:
    return [action for action in its.next_actions(0.3) if isinstance(action, Commit)]


def test_the_prompts_round_already_says_what_it_is_to_draft():
    [first] = rounds(generation(known=known()))
    assert first.own_draft.count == 3 and first.gathers


def test_under_rejection_the_target_judges_its_own_draft_and_is_stopped_where_that_does_not_pay():
    its = generation(known=known(), rule=Rule.REJECTION)
    [first] = rounds(its)
    assert first.own_draft.count == 3 and first.form is Form.SAMPLED and first.continue_count
    its.target_wrote(Answer(first.number, 4, 0, Rows([5]), spent=ServiceTime(0.02)), 0.1)
    its.next_actions(0.1)
    before = its.plan.control.acceptance.mean
    wrote(its, first, 5, [11, 12, 13, 14, 21, 23, 99], [11, 12, 13], [21, 22])
    [commit] = commits(its)
    assert commit.token_ids == [11, 12, 13, 14, 21, 23]
    assert its.plan.control.acceptance.mean == before  # nothing is learned of another draft
    stop, asked = None, first
    for _ in range(64):  # it is always wrong from now on
        wrote(its, asked, len(its.committed), [30, 31, 32, 33], [40, 41, 42])
        if sent := [a for a in its.next_actions(0.3) if isinstance(a, Round)]:
            [stop] = sent
            break
    assert stop is not None and stop.form is Form.SAMPLED and not stop.continue_count
    its.target_wrote(Answer(stop.number, len(its.committed), 0, Rows([50])), 0.4)
    [plain] = rounds(its)
    assert plain.form is Form.DISTRIBUTIONS and not plain.continue_count
    its.target_answered(
        Answer(plain.number, len(its.committed), 0, Rows(distributions=[certain(51)])), 0.5
    )
    assert its.committed[-3:] == [30, 50, 51]


def test_several_decodes_are_one_commit_and_count_as_rounds():
    its, first = begun()
    # Three accepted of three, a bonus; one of two, a correction; a plain one.
    wrote(its, first, 5, [11, 12, 13, 14, 21, 23, 99, 31], [11, 12, 13], [21, 22], [])
    [commit] = commits(its)
    assert commit.token_ids == [11, 12, 13, 14, 21, 23, 31]
    drafted, bonus, corrected = Origin.DRAFTED, Origin.BONUS, Origin.CORRECTED
    expected = [drafted, drafted, drafted, bonus, drafted, corrected, Origin.PLAIN]
    assert list(commit.origins) == expected
    counts = its.counts
    assert (counts.rounds, counts.drafted, counts.accepted) == (4, 5, 4)
    assert counts.sources["model"].drafted == 5 and counts.sources["model"].accepted == 4


def test_what_was_written_once_more_is_not_committed_twice():
    its, first = begun()
    wrote(its, first, 5, [11, 12, 13, 14], [11, 12, 13])
    commits(its)
    wrote(its, first, 7, [13, 14, 15, 16], [13, 14, 15])
    [commit] = commits(its)
    assert commit.token_ids == [15, 16]
    assert its.committed == [*PROMPT, 5, 11, 12, 13, 14, 15, 16]


def test_another_text_than_the_committed_one_is_asked_for_again():
    its, first = begun()
    wrote(its, first, 5, [11, 12, 13, 14], [11, 12, 13])
    commits(its)
    wrote(its, first, 7, [13, 77, 15, 16], [13, 77, 15])
    assert not commits(its)
    assert its.committed == [*PROMPT, 5, 11, 12, 13, 14] and its.counts.target_faults == 1


def test_a_text_ends_within_a_decode():
    its, first = begun()
    wrote(its, first, 5, [11, END, 13, 14, 21], [11, END, 13], [])
    [commit] = commits(its)
    assert commit.token_ids == [11, END]
    assert its.counts.rounds == 2


def test_a_stop_sequence_takes_back_accepted_tokens_of_several_decodes():
    its, first = begun()
    wrote(its, first, 5, [11, 12, 13, 21, 22, 23], [11, 12], [21, 22])
    commits(its)
    assert its.counts.accepted == 4
    its.stop(6)  # after 11
    assert its.counts.accepted == 1 and its.counts.accepted_by_round == [1, 0]
    assert its.counts.sources["model"].accepted == 1


def test_an_answer_that_skips_tokens_is_refused():
    its, first = begun()
    with pytest.raises(InvalidRequest):
        wrote(its, first, 9, [11, 12], [11])


@pytest.mark.parametrize(
    ("drafters", "asks"),
    [(None, True), ({"mtp"}, True), ({"model", "suffix"}, False), ({"eagle3"}, False)],
)
def test_a_request_may_name_a_head_or_leave_it_out(drafters: set[str] | None, asks: bool) -> None:
    own = DraftRates(source="mtp", token_time=Mean(0.001), latency=Mean(0.0))
    costs = TargetCosts(FREE_ROWS, continues=True, own=own)
    asked = Speculation(drafters=None if drafters is None else frozenset(drafters))
    its = control(asked, Rule.MATCH, Pair(costs), timeout=1.0)
    assert (its.own_draft.count > 0) is asks


def test_what_is_learned_of_a_head_is_kept_apart_from_a_model() -> None:
    costs = TargetCosts(FREE_ROWS, continues=True, own=DraftRates(source="mtp"))
    control(Speculation(), Rule.MATCH, Pair(costs), timeout=1.0)
    costs.own = DraftRates()
    control(Speculation(), Rule.MATCH, Pair(costs), timeout=1.0)
    assert set(costs.sources) == {(Rule.MATCH, "mtp"), (Rule.MATCH, "model")}


def test_a_pinned_length_is_for_heads_too() -> None:
    assert Speculation(policy=Policy.FIXED).lets_draft("mtp")
    assert not Speculation(policy=Policy.FIXED).lets_draft("suffix")
    assert not Speculation(n_max=0).lets_draft("mtp")
