"""Where the target's own samples decide, a draft changes how fast a text comes, never the text.

The exact tests let the samples be arbitrary independent draws. The
statistical ones race with the real noise; their seeds are fixed, and with
fresh ones each would raise a false alarm once in a million runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from outrider.core.acceptance import Uniform, match
from outrider.distribution import quantised
from outrider.noise import Purpose
from tests.exact.enumeration import (
    Context,
    Model,
    Round,
    TextDistribution,
    chi_square_p_value,
    draw_breakpoints,
    drawing,
    emitted_distribution,
    integrate,
    random_model,
    rewritten,
    softened,
    target_distribution,
    total_variation,
)

EXACT = 1e-12
VISIBLE = 1e-6
Drafter = Callable[[Context, Uniform], Context]
"""Guesses what follows a context; it may look at the numbers that the target will use."""


def error_of(emit: Round, target: Model, count: int, rounds: int = 1) -> float:
    emitted = emitted_distribution(emit, target, count, rounds)
    return total_variation(emitted, target_distribution(target, count))


def match_round(target: Model, drafter: Drafter, vocabulary: int, *others: Model) -> Round:
    """Return the distribution of a round in which the target draws with `u(NEXT, i)`.

    `others` are the models whose draws also depend on those numbers.
    """

    sample = drawing(target)

    def round_distribution(context: Context) -> TextDistribution:
        def emit(u: Uniform) -> Context:
            draft = drafter(context, u)
            samples = [
                sample(context + draft[:i], u(Purpose.NEXT, i)) for i in range(len(draft) + 1)
            ]
            verdict = match(draft, samples)
            return (*draft[: verdict.accepted_count], verdict.next_token_id)

        def breakpoints(purpose: Purpose, i: int) -> list[float]:
            branches = itertools.product(range(vocabulary), repeat=i)
            return [
                point
                for branch in branches
                for model in (target, *others)
                for point in draw_breakpoints(model(context + branch))
            ]

        return integrate(emit, breakpoints)

    return round_distribution


def always(*token_ids: int) -> Drafter:
    return lambda context, u: token_ids


def informed(draft: Model, length: int) -> Drafter:
    """Return a drafter that draws with the very numbers of the target."""
    draw = drawing(draft)

    def drafter(context: Context, u: Uniform) -> Context:
        guess: Context = ()
        for i in range(length):
            guess = (*guess, draw(context + guess, u(Purpose.NEXT, i)))
        return guess

    return drafter


# Exactly


@pytest.mark.parametrize(("vocabulary", "length"), [(3, 0), (3, 1), (3, 2), (2, 3)])
def test_any_fixed_draft_changes_nothing(vocabulary: int, length: int) -> None:
    target = random_model(1, vocabulary, 0.2)
    for draft in itertools.product(range(vocabulary), repeat=length):
        emit = match_round(target, always(*draft), vocabulary)
        assert error_of(emit, target, length + 1) < EXACT


def test_a_draft_of_junk_changes_nothing() -> None:
    target = random_model(1, 3)
    assert error_of(match_round(target, always(99, 98), 3), target, 3) < EXACT


@pytest.mark.parametrize(("vocabulary", "length"), [(2, 3), (3, 2)])
def test_a_draft_that_shares_the_targets_noise_changes_nothing(
    vocabulary: int, length: int
) -> None:
    for seed in range(2):
        target, draft = random_model(seed, vocabulary, 0.2), random_model(seed + 50, vocabulary)
        emit = match_round(target, informed(draft, length), vocabulary, draft)
        assert error_of(emit, target, length + 1) < EXACT


def test_a_truncated_and_quantised_target_changes_nothing() -> None:
    target = rewritten(random_model(1, 3), lambda row: quantised(row, support=2, tail=0.01))
    draft = random_model(51, 3)
    assert error_of(match_round(target, informed(draft, 1), 3, draft), target, 3) < EXACT


def test_a_draft_that_withholds_tokens_changes_nothing() -> None:
    target, draft = random_model(1, 2), random_model(51, 2)
    whole = informed(draft, 3)

    def withholding(context: Context, u: Uniform) -> Context:
        guess = whole(context, u)
        return guess[: guess.index(1)] if 1 in guess else guess

    assert error_of(match_round(target, withholding, 2, draft), target, 4) < EXACT


def test_rounds_after_rounds_change_nothing() -> None:
    target, draft = random_model(1, 2), random_model(51, 2)
    emit = match_round(target, informed(draft, 2), 2, draft)
    assert error_of(emit, target, 4, rounds=4) < EXACT


# What breaks it


def test_one_number_for_two_positions_is_seen() -> None:
    target = random_model(1, 2)

    def emit(u: Uniform) -> Context:
        first = target(()).draw(u(Purpose.NEXT, 0))
        return first, target((first,)).draw(u(Purpose.NEXT, 0))

    points = [point for context in ((), (0,), (1,)) for point in draw_breakpoints(target(context))]
    emitted = integrate(emit, lambda purpose, i: points)
    assert total_variation(emitted, target_distribution(target, 2)) > VISIBLE


def test_a_second_sample_after_a_mismatch_is_seen() -> None:
    target = random_model(1, 3)
    row = target(())

    def emit(u: Uniform) -> Context:
        samples = [row.draw(u(Purpose.NEXT, i)) for i in range(2)]
        return (samples[0] if samples[0] == 1 else samples[1],)

    emitted = integrate(emit, lambda purpose, i: draw_breakpoints(row))
    assert total_variation(emitted, target_distribution(target, 1)) > VISIBLE


# With the real noise


COUNT = 4
PROMPT_LENGTH = 11
TARGET = rewritten(random_model(5, 3), softened)
DRAFT = random_model(55, 3)
Guesser = Callable[[int, Context], Context]
"""Guesses what follows a text of a seed."""


def generate(seed: int, guesser: Guesser, count: int = COUNT) -> Context:
    text: Context = ()
    while len(text) < count:
        draft = guesser(seed, text)
        samples = [
            TARGET(text + draft[:i]).race(seed, 0, PROMPT_LENGTH + len(text) + i)[0]
            for i in range(len(draft) + 1)
        ]
        verdict = match(draft, samples)
        text = (*text, *draft[: verdict.accepted_count], verdict.next_token_id)
    return text[:count]


def racing(draft: Model, length: int) -> Guesser:
    """Return a guesser that runs the draft's race on the target's noise."""

    def guesser(seed: int, text: Context) -> Context:
        guess: Context = ()
        for i in range(length):
            winner, _ = draft(text + guess).race(seed, 0, PROMPT_LENGTH + len(text) + i)
            guess = (*guess, winner)
        return guess

    return guesser


def nothing(seed: int, text: Context) -> Context:
    return ()


def lossy(guesser: Guesser) -> Guesser:
    """Return the guesser behind a link that loses or cuts two drafts in three."""

    def guesser_behind_link(seed: int, text: Context) -> Context:
        draft = guesser(seed, text)
        kept = np.random.default_rng([seed % 2**64, len(text)]).integers(3) * len(draft) // 2
        return draft[:kept]

    return guesser_behind_link


@pytest.mark.parametrize(
    "guesser",
    [
        racing(TARGET, 3),
        racing(DRAFT, 1),
        racing(DRAFT, 6),
        lossy(racing(DRAFT, 4)),
        lambda seed, text: (7, 7, 7),
        lambda seed, text: (seed % 2, len(text) % 2),
    ],
    ids=["itself", "one", "six", "lossy", "junk", "pattern"],
)
def test_a_text_is_the_same_whatever_is_drafted(guesser: Guesser) -> None:
    for seed in (-1, 0, 1, 42, 2**63):
        assert generate(seed, guesser, 40) == generate(seed, nothing, 40)


def test_a_drafter_with_the_targets_distribution_is_always_right() -> None:
    for seed in range(20):
        assert racing(TARGET, COUNT)(seed, ()) == generate(seed, nothing)


def test_texts_of_a_shared_noise_draft_have_the_targets_distribution() -> None:
    texts = [generate(seed, racing(DRAFT, 2)) for seed in range(8_000)]
    assert chi_square_p_value(texts, target_distribution(TARGET, COUNT)) > 1e-6


def test_texts_keyed_by_one_position_only_are_seen() -> None:
    def text_of(seed: int) -> Context:
        text: Context = ()
        for _ in range(2):
            text = (*text, TARGET(text).race(seed, 0, PROMPT_LENGTH)[0])
        return text

    texts = [text_of(seed) for seed in range(1_000)]
    assert chi_square_p_value(texts, target_distribution(TARGET, 2)) < 1e-6
