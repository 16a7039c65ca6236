"""When a target's own draft is used, on the virtual clock and in the state machine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from orchestrator.core.actions import Commit
from orchestrator.core.estimates import Mean, OwnDraftEstimates, PairEstimates, ServiceTime
from orchestrator.core.forecast import Conditions, Forecast, Mode, plain
from orchestrator.core.generation import Generation
from orchestrator.core.own_draft import OwnDraft
from orchestrator.core.policies import control
from outrider.costs import CostTable
from outrider.errors import InvalidRequest
from outrider.messages import Answer, Origin, OwnTokens, Round, Rows, Rule
from outrider.speculation import Policy, Speculation
from tests.support.shared_engine import SharedEngine
from tests.support.simulation import (
    Faults,
    Models,
    Result,
    Simulation,
    alone,
    known_estimates,
    run_together,
)
from tests.unit.test_continuing import END, PROMPT, generation, rounds

ZEN = CostTable([(1, 0.0165), (2, 0.0275), (3, 0.039), (4, 0.0305), (8, 0.054), (16, 0.09)])
FREE_ROWS = CostTable([(1, 0.02), (16, 0.022)])


def models(**changes: float | bool | CostTable) -> Models:
    known = {"costs": ZEN, "draft_token": 0.002, "acceptance": 0.8, "own_token": 0.0016}
    return Models(**known | {"same_host": True, "takes_turns": True} | changes)  # type: ignore[arg-type]


def rate(
    its_models: Models,
    tokens: int = 400,
    estimates: PairEstimates | None = None,
    speculation: Speculation | None = None,
    **options: object,
) -> tuple[float, Result]:
    simulation = Simulation(
        its_models,
        speculation or Speculation(),
        tokens=tokens,
        seed=3,
        estimates=estimates,
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


@pytest.mark.parametrize("acceptance", [0.0, 0.2, 0.4, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("own_token", [0.0005, 0.0016, 0.006, 0.03])
def test_it_never_costs_more_than_three_in_a_hundred(acceptance: float, own_token: float):
    its = models(own_acceptance=acceptance, own_token=own_token)
    first = known_estimates(its)
    for _ in range(3):  # what was learned goes on
        made, _ = rate(its, tokens=300, estimates=first, has_draft=False)
    assert made > 0.97 * plain_rate(its)


def test_the_first_text_with_one_that_is_always_wrong_loses_little():
    its = models(own_acceptance=0.0)
    made, result = rate(its, tokens=200, has_draft=False)
    assert made > 0.95 * plain_rate(its)
    assert 0 < result.counts.drafted < 30


def test_one_that_looked_slow_at_load_is_used_once_it_is_seen_to_be_quick():
    its = models(own_acceptance=0.85)
    known = known_estimates(its)
    assert known.own_draft is not None
    known.own_draft = OwnDraftEstimates.of_load(0.05, 0.0)
    for _ in range(3):
        made, _ = rate(its, tokens=300, estimates=known, has_draft=False)
    assert made > 1.15 * plain_rate(its)


def test_one_that_was_bad_is_tried_again():
    its = models(own_acceptance=0.9, costs=FREE_ROWS)
    known = known_estimates(its)
    rate(models(own_acceptance=0.0, costs=FREE_ROWS), 600, known, has_draft=False)
    made, _ = rate(its, 1500, known, has_draft=False)
    assert made > 1.8 * plain_rate(its)


def test_on_the_same_cores_no_other_draft_is_asked():
    _, result = rate(models(own_acceptance=0.8))
    assert result.counts.drafted > 0
    simulation = Simulation(models(own_acceptance=0.8), Speculation(), tokens=200, seed=3)
    simulation.run()
    assert simulation.draft.held == []


def test_with_no_other_draft_it_is_not_weighed_against_one_that_could_be():
    its = models(same_host=False, takes_turns=False, own_acceptance=0.75)
    known = known_estimates(its)
    known.latency, known.token_time = Mean(0.0001), Mean(0.0001)  # whoever may come is very good
    made, _ = rate(its, 400, known, has_draft=False)
    assert made > 1.15 * plain_rate(its)


def test_a_better_draft_on_other_cores_is_preferred():
    its = models(
        same_host=False,
        takes_turns=False,
        costs=FREE_ROWS,
        acceptance=0.95,
        own_acceptance=0.3,
        draft_round_trip=0.0005,
    )
    known = known_estimates(its)
    rate(its, 400, known)
    made, _ = rate(its, 400, known)
    without, _ = rate(its, 400, known_estimates(its), has_draft=False)
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


def test_one_that_reads_a_long_text_is_not_taken_for_silent():
    known = known_estimates(models())
    known.continues = True
    its = control(Speculation(), Rule.MATCH, known, 1.0)
    own = its._own
    assert not any(own.note_nothing(6400) for _ in range(115))
    assert own.note_nothing(6400) and own.is_silent
    assert its._best_mode(its._conditions()).own_length == 0
    own.note_drafted(0.003, 3, pays=True)
    assert its._best_mode(its._conditions()).own_length > 0


def test_far_from_the_orchestrator_it_loses_nothing():
    near, _ = rate(models(own_acceptance=0.8), has_draft=False)
    for seconds in (0.02, 0.05, 0.1):
        its = models(own_acceptance=0.8, target_round_trip=seconds)
        far, _ = rate(its, has_draft=False)
        assert far > 0.93 * near


def test_sessions_side_by_side_all_use_it():
    its = models(own_acceptance=0.8, costs=FREE_ROWS)
    engine, known = SharedEngine(its.costs), known_estimates(its)
    known.generation_count = 4
    worlds = [
        Simulation(
            its, Speculation(), tokens=200, seed=i, estimates=known, engine=engine, has_draft=False
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
        engine, known = SharedEngine(its.costs), known_estimates(its)
        known.generation_count = 4
        worlds = [
            Simulation(
                its, speculation, tokens=64, seed=i, estimates=known, engine=engine, has_draft=False
            )
            for i in range(4)
        ]
        return max(result.seconds for result in run_together(engine, worlds))

    assert seconds(Speculation()) < 1.05 * seconds(Speculation(enabled=False))


def test_the_forecast_follows_who_else_is_there():
    known = known_estimates(models(costs=FULL_KERNELS))
    known.continues = True
    its = control(Speculation(), Rule.MATCH, known, 1.0)
    assert its.forecast.own_length > 0
    known.generation_count = 4
    assert its.forecast.own_length == 0
    known.generation_count = 1
    assert its.forecast.own_length > 0


def test_probes_of_many_sessions_are_short():
    known = known_estimates(models())
    known.continues = True
    known.own_draft.unused_rounds = 1000
    orders = []
    for known.generation_count in (1, 2, 4):
        its = control(Speculation(), Rule.MATCH, known, 1.0)
        its._forecast = plain(its._conditions())
        its._forecast_sessions = known.sessions_together
        its.note_unread(0, 1000)
        orders.append(its.own_draft)
    assert [order.is_probe for order in orders] == [True] * 3
    assert [order.count for order in orders] == [3, 1, 1]


def test_a_long_text_is_read_for_a_probe_once_that_is_little_of_the_time_since_the_last() -> None:
    known = OwnDraftEstimates.of_load(0.0016, 0.00015)
    draft = OwnDraft(known)
    useless = plain(
        Conditions(
            acceptance=0.1,
            decode_seconds=lambda rows: 0.0165 * rows,
            overhead=0.0,
            latency=0.0,
            token_time=0.002,
        )
    )

    def probes(length: int, rounds: int) -> bool:
        known.unused_rounds = rounds
        return draft.order(useless, 0.0165, length, 400, 1.0).is_probe

    assert probes(60, 16), "a short one is read beside a decode"
    assert not probes(1400, 1400)  # .35 s of the 23 s
    assert probes(1400, 1500)
    draft.note_drafted(0.002, 1, pays=False)
    assert probes(1400, 64), "it has read the text"


def test_a_text_is_read_for_a_probe_once_that_is_little_even_if_all_do_the_same() -> None:
    known = OwnDraftEstimates.of_load(0.0016, 0.00015)
    useless = Forecast(Mode.PLAIN, 60.0, 0, 0, 0.0)

    def probes(rounds: int, sessions: float) -> bool:
        known.unused_rounds = rounds
        return OwnDraft(known).order(useless, 0.054, 256, 400, sessions).is_probe

    assert probes(60, 1.0)  # 43 ms of 3.2 s
    assert not probes(60, 8.0) and not probes(400, 8.0)
    assert probes(480, 8.0)


def test_a_probe_waits_until_its_messages_are_little_of_the_time_since_the_last() -> None:
    def first_probe(plain_seconds: float) -> int:
        """Return the decodes after which a target so fast is probed for the first time."""
        known = OwnDraftEstimates.of_load(0.0001, 0.0)
        draft = OwnDraft(known)
        useless = Forecast(Mode.PLAIN, 1.0 / plain_seconds, 0, 0, 0.0)
        for count in range(1, 2000):
            known.unused_rounds = count
            if draft.order(useless, plain_seconds, 20, 400, 1.0).is_probe:
                return count
        return 2000

    assert first_probe(0.0165) == 16
    assert first_probe(0.005) == 40
    assert first_probe(0.0005) == 400  # .2 s


def test_what_follows_an_own_draft_is_not_taken_for_nothing_before_it_is_known() -> None:
    """The bundled pair: a plain token of .57 ms, four rows of 1.37, a draft token of .09. A draft
    that is right as often as is hoped of a new one would just pay but for what its answers cost.
    """
    costs = CostTable([(1, 0.00057), (2, 0.0011), (4, 0.00137), (8, 0.0021), (32, 0.0069)])
    known = known_estimates(models(costs=costs, own_token=0.00009))
    known.continues = True
    assert control(Speculation(), Rule.MATCH, known, 1.0).forecast.own_length == 0


def test_a_long_text_is_read_where_three_times_the_time_for_it_is_expected_to_be_saved() -> None:
    useful = Forecast(Mode.OWN, 1.0 / 0.0125, 0, 0, 0.0, own_length=3)

    def drafts(length: int, likely: int) -> bool:
        known = OwnDraftEstimates.of_load(0.0016, 0.00015)
        order = OwnDraft(known).order(useful, 0.0165, length, likely, 1.0)
        return order.count > 0

    assert drafts(60, 64) and drafts(1400, 300), "4 ms a token against .35 s"
    assert not drafts(1400, 230)


def test_what_reading_a_long_text_takes_a_draft_is_learned_from_the_rounds_it_read_in() -> None:
    known = OwnDraftEstimates.of_load(0.0016, 0.0001)
    assert known.reading_seconds(2048) == pytest.approx(2 * 2048 * 0.0001)
    draft = OwnDraft(known)
    for _ in range(4):
        draft.note_nothing(4000, seconds=0.3)
    draft.note_drafted(0.1 + 3 * known.token_time.value, 3, True, 4004)
    assert known.reading_seconds(4004) == pytest.approx(1.3)
    assert 0.1 < known.reading_seconds(1000) < 0.2, "most of it is of the length"
    draft.note_drafted(0.1, 3, True, 4008)
    assert known.reading_seconds(4004) == pytest.approx(1.3), "it had read all of that"
    OwnDraft(known).note_drafted(0.01, 3, True, 4004)  # that was cached, or nearly all of it
    assert known.reading_seconds(4004) == pytest.approx(0.65)


def test_reading_that_was_timed_in_a_busy_moment_is_tried_again_and_found_to_take_less() -> None:
    """No estimate forbids its own correction: texts of 300 tokens were never drafted for."""
    useful = Forecast(Mode.OWN, 1.0 / 0.0125, 0, 0, 0.0, own_length=3)
    known = OwnDraftEstimates.of_load(0.0016, 0.0006)  # in truth .15 ms

    def drafts() -> bool:
        return OwnDraft(known).order(useful, 0.0165, 300, 128, 1.0).count > 0

    texts = 0
    while not drafts():
        texts += 1
        known.note_unused(128)
    assert 4 < texts < 10, "at most .015 of the time is risked"
    for _ in range(2):
        OwnDraft(known).note_drafted(300 * 0.00015 + 3 * known.token_time.value, 3, True, 300)
    assert known.read_time == pytest.approx(0.00015, rel=0.2)
    assert known.unused_rounds == 0 and drafts()
    for _ in range(9):  # cached, or nearly all of it: that says nothing of other texts
        known.note_reading(0.0001, 300)
    assert known.read_time == pytest.approx(0.2 * 0.0006)


def test_a_machine_that_was_slow_for_an_hour_does_not_shut_out_long_texts_for_good() -> None:
    """Readings that took ten times as long were believed for ever: nothing showed otherwise."""
    useful = Forecast(Mode.OWN, 1.0 / 0.0125, 0, 0, 0.0, own_length=3)
    known = OwnDraftEstimates.of_load(0.0016, 0.0001)
    for _ in range(20):
        known.note_reading(10.0 * 0.9, 3000)
    assert known.reading_seconds(3000) == pytest.approx(9.0)

    def drafts() -> bool:
        return OwnDraft(known).order(useful, 0.0165, 3000, 600, 1.0).count > 0

    tokens = 0
    while not drafts() and tokens < 10**6:
        tokens += 100
        known.note_unused(100)
    assert 10_000 < tokens < 40_000, "at most .015 of the time is risked"
    for _ in range(6):
        known.note_reading(0.9, 3000)
    assert known.reading_seconds(3000) == pytest.approx(0.9, rel=0.1)


@pytest.mark.parametrize("lengths", [(65, 80, 100), (65, 300, 1000, 4000), (2000, 4000)])
def test_what_reading_takes_is_learned_of_thousands_of_texts(lengths: tuple[int, ...]) -> None:
    """Short ones made long ones look as if they took thirty times as long as they did."""
    dice = random.Random(1)

    def truth(length: int) -> float:
        return length * (0.001 + length * 0.001 / 8000)

    known = OwnDraftEstimates.of_load(0.0016, 0.001)
    known.note_reading(100.0 * truth(4000), 4000)  # the machine was busy
    for i in range(3000):
        length, noise = dice.choice(lengths), dice.lognormvariate(0.0, 0.2)
        cached = 0.1 if dice.random() < 0.2 else 1.0
        known.note_reading(cached * noise * truth(length), length)
        if i > 20:
            assert known.reading_seconds(4096) < 6.0 * truth(4096)


def test_rounds_without_it_count_once_for_all_who_share_their_decodes() -> None:
    known = OwnDraftEstimates.of_load(0.0016, 0.00015)
    for _ in range(8):
        known.note_unused(20, 8.0)
    assert known.unused_rounds == pytest.approx(20.0)


def test_what_three_write_is_gathered_for_longer() -> None:
    assert [PairEstimates(generation_count=n).gather_ms for n in (1, 2, 3, 8)] == [
        100,
        100,
        200,
        200,
    ]


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
    known = known_estimates(models())
    assert control(asked, Rule.MATCH, known, 1.0).own_draft.count == 0
    assert control(Speculation(), Rule.REJECTION, known, 1.0).own_draft.count == 0
    assert control(Speculation(), Rule.MATCH, known, 1.0).own_draft.count > 0


def test_a_given_length_is_drafted_without_messages_where_both_share_their_cores() -> None:
    pinned = Speculation(policy=Policy.FIXED, n_max=3)
    its = control(pinned, Rule.MATCH, known_estimates(models()), 1.0)
    assert (its.own_draft.count, its.draft_count(10)) == (3, 0)
    here, result = rate(models(), speculation=pinned, estimates=known_estimates(models()))
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
    its = control(asked, Rule.MATCH, known_estimates(models()), 1.0)
    assert its.own_draft.count == 0 < its.draft_count(10)


@pytest.mark.parametrize("policy", [Policy.FIXED, Policy.MEASURED])
def test_where_rows_are_no_samples_the_service_drafts(policy: Policy):
    asked = Speculation(policy=policy)
    its = control(asked, Rule.MATCH, known_estimates(models()), 1.0, samples=False)
    its.note_presence(True)
    assert its.own_draft.count == 0 < its.draft_count(10)


# --- the state machine ---


def known() -> PairEstimates:
    its = PairEstimates(costs=ZEN, continues=True, takes_turns=True)
    its.own_draft = OwnDraftEstimates(Mean(0.001), 0.0)
    return its


def begun() -> tuple[Generation, Round]:
    """Return a generation whose prompt is read, and the round that lets it be written."""
    its = generation(known=known())
    [first] = rounds(its)
    its.target_wrote(Answer(first.number, 4, 0, Rows(sampled=[5])), 0.1, ServiceTime(0.02))
    its.next_actions(0.1)
    return its, first


def wrote(
    its: Generation, round_: Round, position: int, ids: Sequence[int], *drafts: Sequence[int]
) -> None:
    own = [OwnTokens(draft, bytes([200] * len(draft))) for draft in drafts]
    times = [ServiceTime(0.02, draft=0.002)] * len(own)
    answer = Answer(round_.number, position, 0, Rows(sampled=list(ids)), own)
    its.target_wrote(answer, 0.3, ServiceTime(0.02 * len(own)), times)


def commits(its: Generation) -> list[Commit]:
    return [action for action in its.next_actions(0.3) if isinstance(action, Commit)]


def test_the_prompts_round_already_says_what_it_is_to_draft():
    [first] = rounds(generation(known=known()))
    assert first.own_draft_count == 3 and first.gather_ms == 100


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
