"""Under rejection a draft in the target's process, judged there, leaves the target's distribution.

The statistical tests have fixed seeds; with fresh ones, each would raise a false alarm once in a
million runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from outrider.core.acceptance import DraftToken, Uniform, Verdict, block_samples, match
from outrider.distribution import Distribution
from outrider.engine import guesser
from outrider.engine.model_draft import ModelDraft
from outrider.messages import Answer, Form, OwnDraftOrder, Round, Rule, SessionParameters, Span
from outrider.noise import Purpose, uniform
from outrider.sampling import SamplingParameters
from tests.exact.enumeration import (
    BLOCK,
    Breakpoints,
    Context,
    block_breakpoints,
    draw_breakpoints,
    mixture,
    random_model,
)
from tests.exact.enumeration import Rule as Verification
from tests.exact.test_rejection_is_lossless import EXACT, VISIBLE, error_of, honest
from tests.services.test_rejection_over_the_wire import exact_distribution, p_value
from tests.support.one_session import OneSession
from tests.support.toy import EOS, ToyModel

ALARM = 1e-6


def read_from_samples(
    draft: Sequence[DraftToken], targets: Sequence[Distribution], u: Uniform
) -> Verdict:
    """Judge at the target and read the answer as the orchestrator does."""
    return match([token.token_id for token in draft], block_samples(draft, targets, u))


@pytest.mark.parametrize(("vocabulary", "length"), [(3, 2), (2, 3)])
@pytest.mark.parametrize("zeros", [0.0, 0.3])
def test_what_is_judged_at_the_target_has_its_distribution(
    vocabulary: int, length: int, zeros: float
) -> None:
    for seed in range(2):
        target = random_model(seed, vocabulary, zeros)
        for draft in (
            random_model(seed + 50, vocabulary, zeros),
            mixture(target, random_model(seed + 50, vocabulary), 0.8),
        ):
            speculation = honest(target, draft, length)
            here = replace(speculation, rule=Verification(read_from_samples, block_breakpoints))
            assert error_of(here) < EXACT
            there = replace(speculation, rule=BLOCK).round_distribution(())
            found = here.round_distribution(())
            assert found == pytest.approx(dict(there), abs=EXACT)


def test_samples_that_are_compared_in_place_of_a_verdict_are_seen() -> None:
    """The twin: what is drawn from p, and not what the rule accepts, is no answer of it."""

    def from_p(draft: Sequence[DraftToken], targets: Sequence[Distribution], u: Uniform) -> Verdict:
        samples = block_samples(draft, targets, u)
        accepted = match([token.token_id for token in draft], samples).accepted_count
        return Verdict(accepted, targets[accepted].draw(u(Purpose.NEXT, accepted)))

    def breakpoints(draft: Sequence[DraftToken], targets: Sequence[Distribution]) -> Breakpoints:
        of_block = block_breakpoints(draft, targets)
        return lambda purpose, i: [*of_block(purpose, i), *draw_breakpoints(targets[i])]

    speculation = honest(random_model(7, 3), random_model(57, 3), 2)
    assert error_of(replace(speculation, rule=Verification(from_p, breakpoints))) > VISIBLE


# The job of a target with its own draft, and the real noise

COUNT = 3
PROMPT = [0, 3, 4]
SAMPLING = SamplingParameters(temperature=0.8)
TOYS: dict[str, Any] = {"vocabulary_size": 7, "spread": 1.0, "context": 64, "order": 64}


def target() -> ToyModel:
    """Return a target of four tokens and the end."""
    return ToyModel(seed=4, eos_bias=-1.0, **TOYS)


def small() -> ToyModel:
    """Return a draft that is right about half of the time."""
    return ToyModel(seed=5, like=4, agreement=0.5, **TOYS)


def opening(seed: int) -> SessionParameters:
    return SessionParameters(
        session_id=bytes(16),
        attempt=1,
        rule=Rule.REJECTION,
        sampling=SAMPLING,
        seed=seed,
        choice=0,
        prompt_count=len(PROMPT),
        token_limit=COUNT + 1,
        vocabulary=7,
        end_token_ids=frozenset({EOS}),
    )


def may_write(text: Sequence[int], count: int, number: int = 1) -> Round:
    """Return a round that lets a target write so much after a text, with drafts of two tokens."""
    order, form = OwnDraftOrder(count=2, stop_below=255), Form.SAMPLED
    return Round(number, Span(0, text), (), form, continue_count=count, own_draft=order)


def text_of(said: Sequence[Answer]) -> tuple[list[int], list[int]]:
    """Return the text, and how much of each draft was accepted."""
    text, accepted = list[int](), list[int]()
    for answer in said:
        for own, rows in answer.decodes:
            verdict = match(own.token_ids, rows.sampled)
            text += [*own.token_ids[: verdict.accepted_count], verdict.next_token_id]
            accepted += [verdict.accepted_count] if own.token_ids else []
    return text, accepted


def start_of(text: Sequence[int]) -> Context:
    end = text.index(EOS) + 1 if EOS in text else len(text)
    return tuple(text[: min(COUNT, end)])


def texts(count: int) -> tuple[Counter[Context], list[int]]:
    writer = OneSession(target(), ModelDraft(small()))
    written, accepted = Counter[Context](), list[int]()
    for seed in range(count):
        writer.begin(opening(seed))
        writer.write(may_write(PROMPT, COUNT + 1))
        text, its_accepted = text_of(writer.answers)
        written[start_of(text)] += 1
        accepted += its_accepted
    return written, accepted


def test_the_texts_of_a_target_with_its_own_draft_have_its_distribution() -> None:
    written, accepted = texts(2_000)
    assert p_value(written, exact_distribution(target(), COUNT)) > ALARM
    assert {0, 1, 2} <= set(accepted)


@pytest.mark.parametrize(("shared", "count"), [(Purpose.ACCEPT, 1_000), (Purpose.NEXT, 3_000)])
def test_a_draft_that_draws_with_the_noise_of_the_rule_is_seen(
    monkeypatch: pytest.MonkeyPatch, shared: Purpose, count: int
) -> None:
    def of_the_rule(seed: int, choice: int, purpose: Purpose, first: int, position: int) -> float:
        assert purpose is Purpose.DRAFT
        return uniform(seed, choice, shared, first, position)

    monkeypatch.setattr(guesser, "uniform", of_the_rule)
    written, _ = texts(count)
    assert p_value(written, exact_distribution(target(), COUNT)) < ALARM


# No token's value decides whether it is seen


def test_neither_doubt_nor_an_end_in_it_ends_a_draft_that_is_drawn() -> None:
    """Of each decode that has a draft it is as long as was asked for, or as there is room."""
    writer, ended = OneSession(target(), ModelDraft(small())), 0
    for seed in range(100):
        writer.begin(opening(seed))
        writer.write(may_write(PROMPT, COUNT + 1))
        length = len(PROMPT)
        for answer in writer.answers:
            for own, rows in answer.decodes:
                left = len(PROMPT) + COUNT - length
                assert len(own.token_ids) == (min(2, left) if length > len(PROMPT) else 0)
                ended += own.token_ids[:1] == [EOS]
                length += match(own.token_ids, rows.sampled).accepted_count + 1
    assert ended


@pytest.mark.parametrize("rule", [Rule.REJECTION, Rule.SHARED_NOISE])
def test_what_is_drawn_is_judged_before_a_newer_round_takes_over(rule: Rule) -> None:
    writer = OneSession(target(), ModelDraft(small()))
    writer.begin(replace(opening(1), rule=rule))
    writer.write(may_write(PROMPT, COUNT + 1))
    drafted = [step.gives_way for step in writer.steps if step.row_count > 1]
    assert drafted and set(drafted) == {rule is not Rule.REJECTION}


def test_a_text_whose_cache_is_lost_is_not_drawn_again() -> None:
    """With another length of the draft it would be another text, which the first one's noise made.

    The round was sent before the answers to the one before it were received.
    """
    writer, longer = OneSession(target(), ModelDraft(small())), 0
    for seed in range(20):
        writer.begin(replace(opening(seed), token_limit=20))
        writer.write(may_write(PROMPT, 4))
        text = [*PROMPT, *text_of(writer.answers)[0]]
        if EOS in text:
            continue
        writer.lease.keep(2)
        before, longer = len(writer.answers), longer + 1
        writer.write(may_write([*PROMPT, text[len(PROMPT)]], 12, number=2))
        assert [each.position for each in writer.answers[before:][:1]] == [len(text)]
    assert longer
