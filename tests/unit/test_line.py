"""The draft's line: when it continues, when it starts over, and the frames it is sent in."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from draft_service.drafter import DraftedText, Drafter, UnreadText
from draft_service.local_sources import INSTEAD, LocalSources, acceptances
from outrider.drafters.source import READ_AT_ONCE
from outrider.engine.cache import Session
from outrider.engine.guesser import Guess, guesser
from outrider.engine.job import Lease, Step
from outrider.engine.model import Chunk, Row
from outrider.errors import ContextExhausted, PositionPastCache
from outrider.messages import Frame, Order, Rule, SessionParameters, Span
from outrider.noise import Purpose, uniform
from outrider.sampling import GREEDY, SamplingParameters
from tests.support.toy import EOS, NEVER, ToyModel, ToySampler, generate_alone

PROMPT = [0, 12, 40, 7]
WARM = SamplingParameters(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


# the line


def test_a_new_line_starts_at_the_end_of_the_committed_text() -> None:
    line = DraftedText(Rule.MATCH)
    line.follow(Span(0, [1, 2, 3]), [])
    assert (line.base, line.token_ids) == (3, [1, 2, 3])


def test_without_a_line_the_held_tokens_stand_for_the_text() -> None:
    line = DraftedText(Rule.MATCH)
    line.follow(Span(2, [3]), [1, 2, 9, 9])
    assert (line.base, line.token_ids) == (3, [1, 2, 3])


def test_a_span_past_what_is_held_is_refused_and_starts_no_line() -> None:
    line = DraftedText(Rule.MATCH)
    with pytest.raises(PositionPastCache) as caught:
        line.follow(Span(3, [4]), [1, 2])
    assert caught.value.held == 2
    assert line.base is None


def test_a_span_past_the_line_is_refused_and_leaves_it_alone() -> None:
    line = DraftedText(Rule.MATCH)
    line.follow(Span(0, [1, 2]), [])
    with pytest.raises(PositionPastCache) as caught:
        line.follow(Span(5, [4]), [1, 2, 3, 4, 5, 6])
    assert caught.value.held == 2
    assert (line.base, line.token_ids) == (2, [1, 2])


def drafted(rule: Rule, committed: list[int], guesses: list[int]) -> DraftedText:
    line = DraftedText(rule)
    line.follow(Span(0, committed), [])
    line.token_ids += guesses
    return line


@pytest.mark.parametrize("rule", [Rule.MATCH, Rule.SHARED_NOISE])
@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_a_line_that_agrees_keeps_its_tail_and_its_base(rule: Rule, accepted: int) -> None:
    line = drafted(rule, [1, 2], [3, 4, 5])
    line.follow(Span(2, [3, 4, 5][:accepted]), [])
    assert (line.base, line.token_ids) == (2, [1, 2, 3, 4, 5])


def test_a_line_that_differs_starts_over() -> None:
    line = drafted(Rule.MATCH, [1, 2], [3, 4, 5])
    line.follow(Span(2, [3, 9]), [])
    assert (line.base, line.token_ids) == (4, [1, 2, 3, 9])


def test_a_line_that_is_overtaken_starts_over() -> None:
    line = drafted(Rule.MATCH, [1, 2], [3])
    line.follow(Span(2, [3, 4]), [])
    assert (line.base, line.token_ids) == (4, [1, 2, 3, 4])


def test_a_span_may_refer_to_the_lines_own_tokens() -> None:
    line = drafted(Rule.MATCH, [1, 2], [3, 4, 5])
    line.follow(Span(4, [9]), [])
    assert (line.base, line.token_ids) == (5, [1, 2, 3, 4, 9])


def test_a_line_does_not_look_at_what_is_held() -> None:
    line = drafted(Rule.MATCH, [1, 2], [3, 4])
    line.follow(Span(3, []), [9, 9, 9, 9])
    assert (line.base, line.token_ids) == (2, [1, 2, 3, 4])


def test_a_rejection_line_starts_over_even_where_it_agrees() -> None:
    line = drafted(Rule.REJECTION, [1, 2], [3, 4, 5])
    line.follow(Span(2, [3]), [])
    assert (line.base, line.token_ids) == (3, [1, 2, 3])


def test_a_rejection_line_goes_on_while_nothing_was_committed() -> None:
    line = drafted(Rule.REJECTION, [1, 2], [3, 4, 5])
    line.follow(Span(2, []), [])
    assert (line.base, line.token_ids) == (2, [1, 2, 3, 4, 5])


# drafting


def opening(rule: Rule, sampling: SamplingParameters, vocabulary: int = 64) -> SessionParameters:
    return SessionParameters(
        session_id=bytes(16),
        attempt=1,
        rule=rule,
        sampling=sampling,
        seed=5,
        choice=0,
        prompt_count=len(PROMPT),
        token_limit=100,
        vocabulary=vocabulary,
    )


class Desk:
    """A drafter with a model and a session of its own. The clock stands still."""

    def __init__(
        self,
        rule: Rule = Rule.MATCH,
        sampling: SamplingParameters = GREEDY,
        *,
        eos_bias: float = NEVER,
        capacity: int = 256,
        context: int = 256,
        clock: Callable[[], float] = lambda: 0.0,
        drafters: Sequence[str] = (),
        **changes: float,
    ) -> None:
        self.model = ToyModel(eos_bias=eos_bias, context=context, batch_rows=context)
        self.lease = Lease(Session(bytes(16), 0.0, sequence=0), self.model, capacity)
        self.frames: list[Frame] = []
        self.steps: list[tuple[int, int]] = []  # tokens and rows of every decode
        self.opening = replace(opening(rule, sampling), **changes)  # type: ignore[arg-type]
        guess = guesser(self.model, self.opening, 256, 0.0)
        local = LocalSources(self.opening, acceptances(drafters), INSTEAD)
        self.drafter = Drafter(self.opening, guess, (EOS,), clock, local)
        self._number = 0

    def order(
        self, span: Span, until: int, frame_tokens: int = 0, stop_below: int = 0
    ) -> list[Frame]:
        """Carry an order out and return its frames."""
        self.frames = []
        self.run(self.begin(span, until, frame_tokens, stop_below))
        return self.frames

    def begin(
        self, span: Span, until: int, frame_tokens: int = 0, stop_below: int = 0
    ) -> Generator[Step, list[Row], None]:
        self._number += 1
        order = Order(self._number, span, until, frame_tokens, stop_below)
        return self.drafter.draft(self.lease, order, self.frames.append)

    def run(
        self, job: Generator[Step, list[Row], None], decodes: int = 1000
    ) -> Generator[Step, list[Row], None]:
        """Decode the job's steps, as the host does, until it ends or `decodes` are done."""
        rows: list[Row] | None = None
        for _ in range(decodes):
            try:
                step = job.send(rows)  # type: ignore[arg-type]
            except StopIteration:
                return job
            rows = self.decode(step)
        try:
            job.send(rows)  # type: ignore[arg-type]
        except StopIteration:
            return job
        return job

    def decode(self, step: Step) -> list[Row]:
        self.steps.append((len(step.token_ids), step.row_count))
        held = self.lease.session.token_ids
        [rows] = self.model.decode([Chunk(0, len(held), step.token_ids, step.row_count)])
        held.extend(step.token_ids)
        return rows

    @property
    def last(self) -> int:
        """The number of the last order."""
        return self._number


def tokens(frames: Sequence[Frame]) -> list[int]:
    return [token_id for frame in frames for token_id in frame.token_ids]


def greedy(text: list[int], count: int) -> list[int]:
    return generate_alone(ToyModel(eos_bias=NEVER), text, count, GREEDY, seed=0)


def test_an_order_is_carried_out_to_its_horizon() -> None:
    desk = Desk()
    frames = desk.order(Span(0, PROMPT), 10)
    assert tokens(frames) == greedy(PROMPT, 6)
    assert frames[-1].completed == 1
    assert {frame.base for frame in frames} == {4}


def test_frames_go_out_every_four_tokens_and_the_last_one_completes() -> None:
    frames = Desk().order(Span(0, PROMPT), 13)
    assert [len(frame.token_ids) for frame in frames] == [4, 4, 1]
    assert [frame.position for frame in frames] == [4, 8, 12]
    assert [frame.completed for frame in frames] == [0, 0, 1]


def test_a_horizon_that_fills_a_frame_needs_no_empty_one() -> None:
    frames = Desk().order(Span(0, PROMPT), 8)
    assert [(len(frame.token_ids), frame.completed) for frame in frames] == [(4, 1)]


def test_a_frame_goes_out_when_its_first_token_is_old() -> None:
    ticks = iter(range(1000))
    desk = Desk(clock=lambda: next(ticks) * 0.003)
    assert [len(frame.token_ids) for frame in desk.order(Span(0, PROMPT), 9)] == [2, 2, 1]


def test_every_token_costs_one_decode_of_one_token_after_the_first() -> None:
    desk = Desk()
    desk.order(Span(0, PROMPT), 8)
    assert desk.steps == [(4, 1), (1, 1), (1, 1), (1, 1)]


def test_every_drafted_token_has_a_confidence() -> None:
    for frame in Desk().order(Span(0, PROMPT), 13):
        assert len(frame.confidences) == len(frame.token_ids)


def test_a_repeated_order_drafts_nothing_and_completes() -> None:
    desk = Desk()
    desk.order(Span(0, PROMPT), 8)
    desk.steps.clear()
    [frame] = desk.order(Span(0, PROMPT), 8)
    assert (frame.base, frame.position, frame.token_ids) == (4, 8, [])
    assert frame.completed == 2
    assert desk.steps == []


def test_a_further_horizon_extends_the_same_line() -> None:
    desk = Desk()
    first = desk.order(Span(0, PROMPT), 6)
    second = desk.order(Span(4, []), 9)
    assert [(frame.base, frame.position) for frame in second] == [(4, 6)]
    assert tokens(first) + tokens(second) == greedy(PROMPT, 5)


def test_a_horizon_below_the_lines_end_cuts_nothing() -> None:
    desk = Desk()
    desk.order(Span(0, PROMPT), 10)
    desk.order(Span(4, []), 6)
    frames = desk.order(Span(4, []), 11)
    assert [(frame.position, len(frame.token_ids)) for frame in frames] == [(10, 1)]


def test_a_line_that_agrees_goes_on_where_it_was() -> None:
    desk = Desk()
    first = tokens(desk.order(Span(0, PROMPT), 8))
    desk.steps.clear()
    second = desk.order(Span(4, first[:2]), 10)
    assert [(frame.base, frame.position) for frame in second] == [(4, 8)]
    assert first + tokens(second) == greedy(PROMPT, 6)
    assert desk.steps == [(1, 1), (1, 1)]


def test_a_correction_starts_over_from_what_it_shares() -> None:
    desk = Desk()
    first = tokens(desk.order(Span(0, PROMPT), 8))
    desk.steps.clear()
    text = [*PROMPT, first[0], 33]
    frames = desk.order(Span(5, [33]), 9)
    assert {frame.base for frame in frames} == {6}
    assert tokens(frames) == greedy(text, 3)
    assert desk.steps[0] == (1, 1)


def test_an_empty_order_reads_the_text_ahead_of_the_next_one() -> None:
    desk = Desk()
    [frame] = desk.order(Span(0, PROMPT), 4)
    assert (frame.base, frame.position, frame.token_ids, frame.completed) == (4, 4, [], 1)
    assert desk.steps == [(3, 0)]
    desk.order(Span(4, []), 5)
    assert desk.steps == [(3, 0), (1, 1)]


def test_a_drafter_that_was_left_behind_catches_up_in_one_decode() -> None:
    desk = Desk()
    desk.order(Span(0, PROMPT), 5)
    desk.steps.clear()
    text = [*PROMPT, 20, 21, 22, 23, 24]
    frames = desk.order(Span(4, text[4:]), 11)
    assert desk.steps == [(5, 1), (1, 1)]
    assert tokens(frames) == greedy(text, 2)


def test_a_cache_that_was_lost_is_filled_from_the_line() -> None:
    desk = Desk()
    first = tokens(desk.order(Span(0, PROMPT), 6))
    desk.lease.keep(0)
    desk.steps.clear()
    frames = desk.order(Span(4, first), 8)
    assert first + tokens(frames) == greedy(PROMPT, 4)
    assert desk.steps == [(6, 1), (1, 1)]


def test_a_new_stream_continues_from_the_cache_of_the_old_one() -> None:
    desk = Desk()
    first = tokens(desk.order(Span(0, PROMPT), 8))
    desk.drafter = Drafter(
        desk.opening, guesser(desk.model, desk.opening, 256, 0.0), (EOS,), lambda: 0.0
    )
    frames = desk.order(Span(5, [first[1]]), 8)
    assert {frame.base for frame in frames} == {6}
    assert tokens(frames) == greedy([*PROMPT, *first[:2]], 2)


def test_a_span_past_the_cache_says_what_is_held() -> None:
    desk = Desk()
    with pytest.raises(PositionPastCache) as caught:
        desk.order(Span(4, [9]), 8)
    assert caught.value.held == 0
    assert desk.frames == []


# the end of the text


def test_drafting_stops_at_the_end_of_the_text() -> None:
    desk = Desk(eos_bias=20.0)
    frames = desk.order(Span(0, PROMPT), 10)
    assert tokens(frames) == [EOS]
    assert frames[-1].completed == 1


def test_a_line_that_ended_is_not_extended_by_another_order() -> None:
    desk = Desk(eos_bias=20.0)
    desk.order(Span(0, PROMPT), 10)
    [frame] = desk.order(Span(4, []), 12)
    assert (frame.position, frame.token_ids, frame.completed) == (5, [], 2)


def test_an_end_token_in_the_committed_text_ends_nothing() -> None:
    desk = Desk()
    frames = desk.order(Span(0, [*PROMPT, EOS]), 8)
    assert len(tokens(frames)) == 3


def test_a_rejection_block_has_its_length_whatever_is_in_it() -> None:
    desk = Desk(Rule.REJECTION, WARM, eos_bias=20.0)
    frames = desk.order(Span(0, PROMPT), 10)
    assert len(tokens(frames)) == 6
    assert EOS in tokens(frames)


# room


def test_the_horizon_is_cut_to_the_context() -> None:
    desk = Desk(capacity=6)
    frames = desk.order(Span(0, PROMPT), 10)
    assert len(tokens(frames)) == 2
    assert frames[-1].completed == 1


def test_a_text_that_does_not_fit_is_refused() -> None:
    desk = Desk(capacity=3)
    with pytest.raises(ContextExhausted):
        desk.order(Span(0, PROMPT), 10)


# an order that replaces another


def test_no_drafted_token_is_lost_when_an_order_is_replaced() -> None:
    desk = Desk()
    job = desk.run(desk.begin(Span(0, PROMPT), 12), decodes=2)
    job.close()
    text = greedy(PROMPT, 6)
    desk.run(desk.begin(Span(4, text[:1]), 10))
    frames = [frame for frame in desk.frames if frame.token_ids]
    assert {frame.base for frame in frames} == {4}
    position = 4
    for frame in frames:
        assert frame.position <= position, "a token was drafted and never sent"
        position = max(position, frame.position + len(frame.token_ids))
    assert position == 10
    assert desk.frames[-1].completed == desk.last


# rules


def test_a_greedy_guess_is_the_argmax_and_as_sure_as_its_probability() -> None:
    guess = guesser(ToyModel(), opening(Rule.MATCH, GREEDY), 256, 0.0)
    row = np.full(64, -30.0, np.float32)
    row[9], row[7] = 1.0, 1.0
    assert guess(row, 4, PROMPT) == Guess(7, 127)
    row[9] = -30.0
    assert guess(row, 4, PROMPT) == Guess(7, 255)


class Biasable(ToyModel):
    """A toy that lets biases pass: a greedy guess needs no chain for them."""

    def sampler(self, parameters: SamplingParameters, seed: int = 0, choice: int = 0) -> ToySampler:
        return super().sampler(replace(parameters, logit_bias=()), seed, choice)


def test_a_greedy_guess_minds_the_biases() -> None:
    never, more = (7, -math.inf), (9, 2.0)
    row = np.full(64, -30.0, np.float32)
    row[7], row[8], row[9] = 9.0, 3.5, 0.0
    before = row.copy()
    for biases, best in (((never,), 8), ((never, more), 8), ((never, more, more), 9)):
        sampling = replace(GREEDY, logit_bias=(*biases, (63, 1.0)))
        guess = guesser(Biasable(), opening(Rule.MATCH, sampling, vocabulary=32), 256, 0.0)
        assert guess(row, 4, PROMPT).token_id == best
    assert np.array_equal(row, before), "llama.cpp's own memory"
    nothing = replace(GREEDY, logit_bias=tuple((i, -math.inf) for i in range(64)))
    guess = guesser(Biasable(), opening(Rule.MATCH, nothing), 256, 0.0)
    assert guess(row, 4, PROMPT).confidence == 0


def test_ids_beyond_the_targets_vocabulary_are_never_guessed() -> None:
    row = np.zeros(64, np.float32)
    row[40] = 50.0
    row[7] = 3.0
    for rule, sampling in ((Rule.MATCH, GREEDY), (Rule.SHARED_NOISE, WARM), (Rule.REJECTION, WARM)):
        guess = guesser(ToyModel(), opening(rule, sampling, vocabulary=32), 256, 0.0)
        for position in range(4, 60):
            assert guess(row, 4, [5] * position).token_id < 32


def test_a_shared_noise_guess_is_what_the_target_would_draw() -> None:
    desk = Desk(Rule.SHARED_NOISE, WARM)
    frames = desk.order(Span(0, PROMPT), 12)
    alone = generate_alone(ToyModel(eos_bias=NEVER), PROMPT, 8, WARM, seed=5)
    assert tokens(frames) == alone


def test_a_shared_noise_guess_does_not_depend_on_where_its_line_began() -> None:
    desk = Desk(Rule.SHARED_NOISE, WARM)
    first = tokens(desk.order(Span(0, PROMPT), 9))
    again = Desk(Rule.SHARED_NOISE, WARM)
    assert tokens(again.order(Span(0, PROMPT + first[:3]), 9)) == first[3:]


def test_a_certain_guess_has_the_highest_confidence() -> None:
    sampling = SamplingParameters(temperature=1.0, top_k=1, top_p=1.0, min_p=0.0)
    row = np.arange(64, dtype=np.float32)
    guess = guesser(ToyModel(), opening(Rule.SHARED_NOISE, sampling), 256, 0.0)
    assert guess(row, 4, PROMPT) == Guess(63, 255)
    guess = guesser(ToyModel(), opening(Rule.REJECTION, sampling), 256, 0.0)
    assert guess(row, 4, PROMPT).confidence == 255


def test_a_rejection_guess_is_drawn_from_the_row_it_sends() -> None:
    desk = Desk(Rule.REJECTION, WARM)
    frames = desk.order(Span(0, PROMPT), 10)
    rows = [row for frame in frames for row in frame.rows]
    assert len(rows) == 6
    for i, (token_id, row) in enumerate(zip(tokens(frames), rows, strict=True)):
        assert row.draw(uniform(5, 0, Purpose.DRAFT, 4, 4 + i)) == token_id
        assert row.weights.min() >= 1
        assert row.weights.max() == 65535


def test_a_rejection_block_drafted_again_elsewhere_meets_new_draws() -> None:
    first = tokens(Desk(Rule.REJECTION, WARM).order(Span(0, PROMPT), 10))
    later = tokens(Desk(Rule.REJECTION, WARM).order(Span(0, PROMPT + first[:2]), 10))
    assert later != first[2:]


def test_a_row_that_is_sent_keeps_to_its_support() -> None:
    guess = guesser(ToyModel(), opening(Rule.REJECTION, WARM), 5, 0.0)
    row = guess(np.linspace(0, 8, 64, dtype=np.float32), 4, PROMPT).row
    assert row is not None
    assert row.token_ids.tolist() == [63, 62, 61, 60, 59]


def test_only_the_rejection_rule_sends_rows() -> None:
    assert all(not frame.rows for frame in Desk().order(Span(0, PROMPT), 9))


# doubt


@pytest.mark.parametrize("rule", [Rule.MATCH, Rule.SHARED_NOISE])
def test_drafting_stops_before_a_token_that_is_less_probable_than_wanted(rule: Rule) -> None:
    sampling = GREEDY if rule is Rule.MATCH else WARM
    free = Desk(rule, sampling)
    drafted = tokens(free.order(Span(0, PROMPT), 24))
    chances = [probability(free, [*PROMPT, *drafted[:i]], drafted[i]) for i in range(20)]
    least = sorted(chances)[5]
    wanted = next(i for i, chance in enumerate(chances) if chance < least)
    stopped = Desk(rule, sampling, min_probability=least)
    frames = stopped.order(Span(0, PROMPT), 24)
    assert tokens(frames) == drafted[:wanted]
    assert frames[-1].completed == stopped.last


def probability(desk: Desk, text: list[int], token_id: int) -> float:
    """Return what the draft's distribution gives a token: of the softmax where it is greedy."""
    [[row]] = ToyModel(eos_bias=NEVER).decode([Chunk(0, 0, text, 1)])
    if desk.opening.sampling.greedy:
        return float(np.exp(row - row.max())[token_id] / np.exp(row - row.max()).sum())
    return desk.model.sampler(desk.opening.sampling).distribution(row).probability(token_id)


def test_drafting_stops_where_the_best_token_hardly_leads() -> None:
    drafted = tokens(Desk().order(Span(0, PROMPT), 24))
    leads = []
    for i in range(20):
        [[row]] = ToyModel(eos_bias=NEVER).decode([Chunk(0, 0, [*PROMPT, *drafted[:i]], 1)])
        second, best = np.sort(row)[-2:]
        leads.append(float(np.exp(best - second)))
    least = sorted(leads)[5]
    wanted = next(i for i, lead in enumerate(leads) if lead < least * 0.999)
    assert tokens(Desk(min_ratio=least * 0.999).order(Span(0, PROMPT), 24)) == drafted[:wanted]


def test_a_doubtful_draft_goes_on_behind_what_was_committed() -> None:
    desk = Desk(min_probability=1.0)
    assert tokens(desk.order(Span(0, PROMPT), 10)) == []
    assert tokens(desk.order(Span(4, [9]), 11)) == []
    assert desk.lease.held == [*PROMPT, 9]


def test_an_order_may_want_its_tokens_in_one_frame() -> None:
    ticks = iter(range(1000))
    desk = Desk(clock=lambda: float(next(ticks)))
    frames = desk.order(Span(0, PROMPT), 14, frame_tokens=10)
    assert [len(frame.token_ids) for frame in frames] == [10]
    frames = desk.order(Span(14, []), 20)
    assert [len(frame.token_ids) for frame in frames] == [1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("rule", [Rule.MATCH, Rule.SHARED_NOISE])
def test_a_draft_ends_with_the_first_token_that_is_not_sure_enough(rule: Rule) -> None:
    sampling = GREEDY if rule is Rule.MATCH else SamplingParameters(temperature=1.0)
    whole = Desk(rule, sampling).order(Span(0, PROMPT), len(PROMPT) + 24, frame_tokens=24)
    confidences = b"".join(frame.confidences for frame in whole)
    assert len(confidences) == 24
    for stop_below in (1, sorted(confidences)[8], max(confidences), 255):
        desk = Desk(rule, sampling)
        order = len(PROMPT) + 24, 24, stop_below
        frames = desk.order(Span(0, PROMPT), *order)
        first = next((i for i, each in enumerate(confidences) if each < stop_below), 23)
        assert tokens(frames) == tokens(whole)[: first + 1]
        assert frames[-1].completed == desk.last
        if first < 23:
            # Ordered on, it continues behind the doubtful token.
            more = desk.order(Span(len(PROMPT), []), len(PROMPT) + first + 2, 24)
            assert tokens(more) == tokens(whole)[first + 1 : first + 2]


# local sources before the model

WORDS = [12, 40, 7, 33, 21, 9, 50, 18]
REPEATS = [0, *WORDS * 3]
"""Its last tokens stood before, with eight that followed each time."""


def with_suffixes(**options: Any) -> Desk:
    return Desk(drafters=("suffix",), **options)


def test_what_the_text_repeats_is_drafted_without_a_decode() -> None:
    desk = with_suffixes()
    frames = desk.order(Span(0, REPEATS), len(REPEATS) + 6)
    assert tokens(frames) == [12, 40, 7, 33, 21, 9]
    assert frames[-1].completed == 1
    assert desk.steps == []


FORKS = [0, *WORDS, 3, *WORDS, 5, *WORDS[:5]]
"""What follows is sure for three tokens, and then as likely as not."""


def test_what_costs_nothing_is_sent_before_the_model_decodes_behind_it() -> None:
    desk = with_suffixes()
    job = desk.begin(Span(0, FORKS), len(FORKS) + 8)
    step = next(job)
    [frame] = desk.frames
    assert frame.token_ids == WORDS[5:] and not frame.completed
    assert (step.token_ids, step.row_count) == ([*FORKS, *WORDS[5:]], 1)
    job.close()


def test_the_model_goes_on_behind_what_the_sources_propose() -> None:
    desk = with_suffixes()
    drafted = tokens(desk.order(Span(0, FORKS), len(FORKS) + 8))
    assert drafted == [*WORDS[5:], *greedy([*FORKS, *WORDS[5:]], 5)]


def test_a_text_that_repeats_nothing_is_drafted_as_by_the_model_alone() -> None:
    desk, alone = with_suffixes(), Desk()
    assert desk.order(Span(0, PROMPT), 12) == alone.order(Span(0, PROMPT), 12)
    assert desk.steps == alone.steps


def test_frames_of_local_tokens_are_no_longer_than_asked_for() -> None:
    frames = with_suffixes().order(Span(0, REPEATS), len(REPEATS) + 8, frame_tokens=3)
    assert [len(frame.token_ids) for frame in frames] == [3, 3, 2]
    whole = with_suffixes().order(Span(0, REPEATS), len(REPEATS) + 8)
    assert [len(frame.token_ids) for frame in whole] == [8]


def test_an_end_of_the_text_that_was_seen_before_ends_the_line() -> None:
    text = [*[12, 40, 7, 33, 21, EOS, 50, 18] * 2, 12, 40, 7, 33]
    assert tokens(with_suffixes().order(Span(0, text), len(text) + 8)) == [21, EOS]


def test_a_local_token_that_is_not_sure_enough_for_the_order_is_the_last() -> None:
    desk = with_suffixes()
    assert len(tokens(desk.order(Span(0, REPEATS), len(REPEATS) + 8, stop_below=255))) == 1


def test_the_model_reads_on_once_it_is_far_behind() -> None:
    desk = with_suffixes()
    until = len(REPEATS)
    desk.order(Span(0, REPEATS), until)
    assert desk.steps == [(len(REPEATS) - 1, 0)]
    desk.steps.clear()
    text = list(REPEATS)
    for _ in range(11):
        text += tokens(desk.order(Span(len(text), []), len(text) + 8))
    assert desk.steps == [(64, 0)]
    assert desk.lease.held == text[: len(desk.lease.held)]


def test_a_correction_of_a_local_token_starts_the_line_over() -> None:
    desk = with_suffixes()
    desk.order(Span(0, REPEATS), len(REPEATS) + 4)
    text = [*REPEATS, 12, 3]
    frames = desk.order(Span(len(REPEATS), [12, 3]), len(text) + 3)
    assert {frame.base for frame in frames} == {len(text)}
    assert tokens(frames) == greedy(text, 3)


def test_a_long_text_is_read_in_pieces_while_the_model_reads_it() -> None:
    desk = with_suffixes(capacity=3 * READ_AT_ONCE, context=3 * READ_AT_ONCE)
    text = [0, *random.Random(1).choices(range(4, 64), k=2 * READ_AT_ONCE)]
    text += text[5:25]
    frames = desk.order(Span(0, text), len(text) + 4)
    assert tokens(frames) == text[25:29], "what stood there before, once all was read"
    assert [step for step, _ in desk.steps] == [
        READ_AT_ONCE,
        READ_AT_ONCE,
        len(text) - 1 - 2 * READ_AT_ONCE,
    ]


# no model


class NoCache:
    """What a session without a model holds."""

    capacity = 4 * READ_AT_ONCE
    held = ()

    def reconcile(self, wanted: list[int], row_count: int) -> list[int]:
        return []


class LookupDesk:
    """A drafter without a model."""

    def __init__(self, rule: Rule = Rule.MATCH) -> None:
        session = opening(rule, GREEDY)
        local = LocalSources(session, acceptances(["suffix"]))
        self.drafter = Drafter(session, None, (EOS,), lambda: 0.0, local)
        self.pauses = 0

    def order(self, span: Span, until: int) -> list[Frame]:
        frames: list[Frame] = []
        for step in self.drafter.draft(NoCache(), Order(1, span, until), frames.append):
            assert not step.token_ids
            self.pauses += 1
        return frames


def test_without_a_model_a_draft_ends_where_the_sources_do() -> None:
    desk = LookupDesk()
    [frame] = desk.order(Span(0, PROMPT), 12)
    assert (frame.base, frame.position, frame.token_ids, frame.completed) == (4, 4, [], 1)
    [frame] = desk.order(Span(4, PROMPT[1:]), 10)
    assert (frame.base, frame.position, frame.completed) == (7, 7, 1)
    assert frame.token_ids == PROMPT[1:]


def test_without_a_model_a_line_that_agrees_is_extended() -> None:
    desk = LookupDesk()
    desk.order(Span(0, REPEATS), len(REPEATS) + 3)
    [frame] = desk.order(Span(len(REPEATS), [12]), len(REPEATS) + 5)
    assert (frame.base, frame.position) == (len(REPEATS), len(REPEATS) + 3)
    assert frame.token_ids == [33, 21]


def test_without_a_model_a_long_text_is_read_at_once_with_pauses() -> None:
    desk = LookupDesk()
    text = [0, *random.Random(1).choices(range(4, 64), k=3 * READ_AT_ONCE)]
    text += text[5:25]
    assert tokens(desk.order(Span(0, text), len(text) + 4))[:4] == text[25:29]
    assert desk.pauses == 3


def test_without_a_model_a_block_of_the_rejection_rule_is_of_point_masses() -> None:
    [frame] = LookupDesk(Rule.REJECTION).order(Span(0, REPEATS), len(REPEATS) + 8)
    assert len(frame.token_ids) == len(frame.rows) == 8
    for token_id, row in zip(frame.token_ids, frame.rows, strict=True):
        assert row.token_ids.tolist() == [token_id] and row.probability(token_id) == 1.0


def test_without_a_model_a_span_past_the_line_is_refused() -> None:
    with pytest.raises(PositionPastCache):
        LookupDesk().order(Span(4, [9]), 8)


@pytest.mark.fault(
    "hang",
    "Order follows order at a draft whose engine is busy",
    before="the text of each was kept until one of them started, however many there were",
    now="what a later one says again is forgotten, and beyond a bound the text is asked for anew",
)
def test_orders_that_are_replaced_keep_no_more_than_the_text() -> None:
    whole, endless, large = UnreadText(), UnreadText(), UnreadText()
    for _ in range(1000):
        whole.add(Span(0, [5] * 200))
    assert len(whole.spans) == 1
    for i in range(100_000):
        endless.add(Span(1 + i, [6] * 50))
        endless.add(Span(51 + i, []))
    assert sum(len(span.token_ids) for span in endless.spans) < 1 << 20
    assert len(endless.spans) < 100_000
    large.add(Span(0, [5] * (1 << 21)))
    large.add(Span(1 << 21, [6]))
    assert len(large.spans) == 1


def test_the_text_of_orders_that_were_replaced_is_not_missing() -> None:
    class Nothing:
        capacity, held = 256, ()

        def reconcile(self, wanted: list[int], row_count: int) -> list[int]:
            return []

    drafter = Drafter(opening(Rule.MATCH, GREEDY), None, (), lambda: 0.0)
    drafter.note_text(Span(0, [5] * 10))
    for i in range(10, 200):
        drafter.note_text(Span(i, [6]))
    frames: list[Frame] = []
    for _ in drafter.draft(Nothing(), Order(1, Span(200, [7]), 202), frames.append):
        pass
    assert frames[-1].base == 201
