"""Whatever a draft says, verifying it token by token emits exactly the target's distribution.

Every exact test has a twin that breaks one rule and must be seen to fail. The
statistical tests have fixed seeds; with fresh ones, each would raise a false
alarm once in a million runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from outrider.core.acceptance import DraftToken, Uniform, Verdict, token_verification
from outrider.distribution import Distribution, certain, quantised, residual
from outrider.noise import Purpose, uniform
from tests.exact.enumeration import (
    Breakpoints,
    Context,
    Model,
    Rule,
    Speculation,
    TextDistribution,
    chi_square_p_value,
    coin_breakpoints,
    draw_breakpoints,
    draw_distribution,
    emitted_distribution,
    integrate,
    mixture,
    random_model,
    rewritten,
    softened,
    target_distribution,
    total_variation,
)

EXACT = 1e-12
VISIBLE = 1e-6
SHAPES = [(3, 2), (4, 3), (2, 4)]  # vocabulary, draft length


def error_of(speculation: Speculation, rounds: int = 1) -> float:
    """Return how far the emitted distribution is from the target's, one token past the draft."""
    count = speculation.length + 1
    emitted = emitted_distribution(
        speculation.round_distribution, speculation.target, count, rounds
    )
    return total_variation(emitted, target_distribution(speculation.target, count))


def honest(target: Model, draft: Model, length: int) -> Speculation:
    """Return a speculation whose drafter draws from the very rows it sends."""
    return Speculation(target=target, sampled=draft, sent=draft, length=length)


def everywhere(row: Distribution) -> Model:
    return lambda context: row


def most_likely(row: Distribution) -> Distribution:
    return certain(int(row.token_ids[row.weights.argmax()]))


def wire_row(row: Distribution) -> Distribution:
    return quantised(row, support=2, tail=0.01)


def coarse(row: Distribution) -> Distribution:
    """Return the row rounded so coarsely that a bias shows: weights 1 to 7."""
    weights = np.floor(row.weights / row.weights.max() * 7 + 0.5)
    return Distribution(row.token_ids, np.maximum(weights, 1.0))


# The harness itself


def test_the_harness_gives_a_draw_its_exact_distribution() -> None:
    row = Distribution(np.array([7, 3, 5], np.int32), np.array([1.0, 2.0, 1.0]))
    assert draw_distribution(row) == {7: 0.25, 3: 0.5, 5: 0.25}


def test_the_harness_gives_the_same_question_the_same_number() -> None:
    def decide(u: Uniform) -> tuple[bool, bool]:
        return u(Purpose.ACCEPT, 0) < 0.25, u(Purpose.ACCEPT, 0) < 0.25

    distribution = integrate(decide, lambda purpose, i: [0.25])
    assert distribution == {(True, True): 0.25, (False, False): 0.75}


def test_the_harness_takes_different_questions_as_independent() -> None:
    def decide(u: Uniform) -> tuple[bool, bool]:
        return u(Purpose.ACCEPT, 0) < 0.25, u(Purpose.NEXT, 0) < 0.5

    distribution = integrate(decide, lambda purpose, i: [0.25, 0.5])
    assert distribution[True, True] == 0.125
    assert distribution[False, True] == 0.375


@pytest.mark.parametrize("hint", [[], [0.3 - 1e-9], [0.3 + 1e-9]])
def test_the_harness_notices_an_answer_that_changes_elsewhere(hint: list[float]) -> None:
    with pytest.raises(AssertionError, match="inside"):
        integrate(lambda u: u(Purpose.ACCEPT, 0) < 0.3, lambda purpose, i: hint)


# Where the answers change


def coin_and_draw(coin: float, draw: float) -> Uniform:
    return lambda purpose, i: coin if purpose is Purpose.ACCEPT else draw


def test_the_coin_turns_exactly_at_p_over_q() -> None:
    for seed in range(100):
        p, q = random_model(seed, 4)(()), random_model(seed + 100, 4)(())
        for token in (DraftToken(token_id, q) for token_id in range(4)):
            [threshold] = coin_breakpoints(token, p)
            below, above = min(threshold, 1.0) - 1e-9, min(threshold + 1e-9, 1.0 - 1e-12)
            accepted = [
                token_verification([token], [p, p], coin_and_draw(coin, 0.5)).accepted_count
                for coin in (below, above)
            ]
            assert accepted == [1, int(threshold >= 1.0)]


def test_the_next_token_changes_exactly_at_the_cumulative_sums_of_the_residual() -> None:
    for seed in range(100):
        p, q = random_model(seed, 4)(()), random_model(seed + 100, 4)(())
        more = {i: p.probability(i) - q.probability(i) for i in p.token_ids.tolist()}
        rejected = next(i for i in more if more[i] < 0)
        kept = [i for i in more if more[i] > 0]
        edges = np.cumsum([more[i] for i in kept]) / sum(more[i] for i in kept)
        for before, after, edge in zip(kept, kept[1:], edges, strict=False):
            for token_id, draw in ((before, edge - 1e-9), (after, edge + 1e-9)):
                u = coin_and_draw(1.0 - 1e-9, float(draw))
                verdict = token_verification([DraftToken(rejected, q)], [p, p], u)
                assert verdict == Verdict(0, token_id)


# Lossless


@pytest.mark.parametrize(("vocabulary", "length"), SHAPES)
@pytest.mark.parametrize("zeros", [0.0, 0.3])
def test_a_bad_draft_changes_nothing(vocabulary: int, length: int, zeros: float) -> None:
    for seed in range(3):
        target = random_model(seed, vocabulary, zeros)
        draft = random_model(seed + 50, vocabulary, zeros)
        assert error_of(honest(target, draft, length)) < EXACT


@pytest.mark.parametrize(("vocabulary", "length"), SHAPES)
@pytest.mark.parametrize("zeros", [0.0, 0.3])
def test_a_good_draft_changes_nothing(vocabulary: int, length: int, zeros: float) -> None:
    for seed in range(3):
        target = random_model(seed, vocabulary, zeros)
        draft = mixture(target, random_model(seed + 50, vocabulary), 0.8)
        assert error_of(honest(target, draft, length)) < EXACT


@pytest.mark.parametrize(("vocabulary", "length"), SHAPES)
def test_a_truncated_and_quantised_row_changes_nothing(vocabulary: int, length: int) -> None:
    for seed in range(3):
        target = random_model(seed, vocabulary, 0.2)
        draft = rewritten(random_model(seed + 50, vocabulary), wire_row)
        assert error_of(honest(target, draft, length)) < EXACT


def test_a_coarsely_rounded_row_changes_nothing_when_it_is_the_sampled_one() -> None:
    draft = rewritten(random_model(51, 3), coarse)
    assert error_of(honest(random_model(1, 3), draft, 2)) < EXACT


def test_a_truncated_target_needs_nothing_special() -> None:
    target = rewritten(random_model(1, 4), wire_row)
    assert error_of(honest(target, random_model(51, 4), 2)) < EXACT


@pytest.mark.parametrize(("vocabulary", "length"), SHAPES)
def test_a_greedy_draft_sent_as_certain_changes_nothing(vocabulary: int, length: int) -> None:
    for seed in range(3):
        draft = rewritten(random_model(seed + 50, vocabulary), most_likely)
        assert error_of(honest(random_model(seed, vocabulary, 0.2), draft, length)) < EXACT


def test_a_draft_of_a_greedy_target_changes_nothing() -> None:
    target = rewritten(random_model(1, 3), most_likely)
    assert error_of(honest(target, random_model(51, 3), 3)) < EXACT


def test_draft_ids_that_the_target_does_not_know_change_nothing() -> None:
    for seed in range(3):
        assert error_of(honest(random_model(seed, 2), random_model(seed + 50, 4), 3)) < EXACT


def test_a_draft_equal_to_the_target_is_accepted_whole() -> None:
    target = random_model(1, 3)
    distribution = honest(target, target, 3).round_distribution(())
    assert {len(emitted) for emitted in distribution} == {4}
    assert total_variation(distribution, target_distribution(target, 4)) < EXACT


def test_a_draft_that_ends_before_it_draws_changes_nothing() -> None:
    draft = random_model(51, 3)

    def unsure(context: Context, token_id: int) -> bool:
        row = draft(context)
        return len(context) > 0 and row.weights.max() / row.total < 0.6

    speculation = dataclasses.replace(honest(random_model(1, 3), draft, 3), withholds=unsure)
    assert error_of(speculation) < EXACT


@pytest.mark.parametrize("rounds", [0, 2, 3, 4])
def test_rounds_after_rounds_change_nothing(rounds: int) -> None:
    speculation = honest(random_model(1, 2, 0.2), random_model(51, 2), 3)
    assert error_of(speculation, rounds) < EXACT


def test_a_token_is_accepted_with_the_mass_that_p_and_q_share() -> None:
    for seed in range(20):
        p, q = random_model(seed, 4, 0.2)(()), random_model(seed + 50, 4, 0.2)(())
        speculation = honest(everywhere(p), everywhere(q), 1)
        accepted = sum(
            probability * share
            for token_id, probability in draw_distribution(q).items()
            for verdict, share in speculation.verdict_distribution((), (token_id,)).items()
            if verdict.accepted_count == 1
        )
        shared = sum(min(p.probability(i), q.probability(i)) for i in range(4))
        assert accepted == pytest.approx(shared, abs=EXACT)


# What breaks it


BROKEN_TARGET = random_model(7, 3)
BROKEN_DRAFT = random_model(57, 3)
UNBROKEN = honest(BROKEN_TARGET, BROKEN_DRAFT, 2)


Accepts = Callable[[DraftToken, Distribution, float], bool]
Resample = Callable[[Distribution, Distribution, Uniform, int], int]


def fairly(token: DraftToken, p: Distribution, coin: float) -> bool:
    return coin * token.distribution.probability(token.token_id) < p.probability(token.token_id)


def with_padded_q(token: DraftToken, p: Distribution, coin: float) -> bool:
    return coin < padded_ratio(token, p)


def padded_ratio(token: DraftToken, p: Distribution) -> float:
    return p.probability(token.token_id) / (token.distribution.probability(token.token_id) + 1e-3)


def from_the_residual(p: Distribution, q: Distribution, u: Uniform, i: int) -> int:
    return residual(p, q).draw(u(Purpose.NEXT, i))


def from_p(p: Distribution, q: Distribution, u: Uniform, i: int) -> int:
    return p.draw(u(Purpose.NEXT, i))


def with_the_coin(p: Distribution, q: Distribution, u: Uniform, i: int) -> int:
    return residual(p, q).draw(u(Purpose.ACCEPT, i))


def from_the_residual_by_place(p: Distribution, q: Distribution, u: Uniform, i: int) -> int:
    return residual_by_place(p, q).draw(u(Purpose.NEXT, i))


def residual_by_place(p: Distribution, q: Distribution) -> Distribution:
    return Distribution(p.token_ids, np.maximum(p.weights / p.total - q.weights / q.total, 0.0))


def altered(*, accepts: Accepts = fairly, resample: Resample = from_the_residual) -> Rule:
    """Return the rejection rule with one of its two parts replaced."""

    def verify(draft: Sequence[DraftToken], targets: Sequence[Distribution], u: Uniform) -> Verdict:
        for i, (token, p) in enumerate(zip(draft, targets, strict=False)):
            if not accepts(token, p, u(Purpose.ACCEPT, i)):
                return Verdict(i, resample(p, token.distribution, u, i))
        return Verdict(len(draft), targets[-1].draw(u(Purpose.NEXT, len(draft))))

    return Rule(verify, every_breakpoint)


def every_breakpoint(draft: Sequence[DraftToken], targets: Sequence[Distribution]) -> Breakpoints:
    """Return every place where any of the altered rules changes its answer."""

    def breakpoints(purpose: Purpose, i: int) -> list[float]:
        p = targets[i]
        if i == len(draft):
            return draw_breakpoints(p)
        q = draft[i].distribution
        return [
            *draw_breakpoints(p),
            *draw_breakpoints(residual(p, q)),
            *draw_breakpoints(residual_by_place(p, q)),
            *coin_breakpoints(draft[i], p),
            padded_ratio(draft[i], p),
        ]

    return breakpoints


def test_an_unaltered_rule_changes_nothing() -> None:
    assert error_of(dataclasses.replace(UNBROKEN, rule=altered())) < EXACT


@pytest.mark.parametrize(
    "rule",
    [
        altered(accepts=with_padded_q),
        altered(resample=from_p),
        altered(resample=with_the_coin),
        altered(resample=from_the_residual_by_place),
    ],
    ids=["padded q", "resampled from p", "coin reused", "rows aligned by place"],
)
def test_an_altered_rule_is_seen(rule: Rule) -> None:
    assert error_of(dataclasses.replace(UNBROKEN, rule=rule)) > VISIBLE


def test_sampling_from_the_unrounded_row_is_seen() -> None:
    sent = rewritten(BROKEN_DRAFT, coarse)
    assert error_of(dataclasses.replace(UNBROKEN, sent=sent)) > VISIBLE


def test_sampling_from_the_whole_row_and_sending_a_part_is_seen() -> None:
    sent = rewritten(BROKEN_DRAFT, wire_row)
    assert error_of(dataclasses.replace(UNBROKEN, sent=sent)) > VISIBLE


def test_a_greedy_draft_that_sends_the_whole_row_is_seen() -> None:
    sampled = rewritten(BROKEN_DRAFT, most_likely)
    assert error_of(dataclasses.replace(UNBROKEN, sampled=sampled)) > VISIBLE


def test_a_draft_that_withholds_tokens_after_looking_at_them_is_seen() -> None:
    def unsure(context: Context, token_id: int) -> bool:
        return BROKEN_DRAFT(context).probability(token_id) < 0.35

    assert error_of(dataclasses.replace(UNBROKEN, withholds=unsure)) > VISIBLE


@pytest.mark.parametrize("shared", [Purpose.ACCEPT, Purpose.NEXT])
def test_a_draft_that_shares_its_number_with_the_rule_is_seen(shared: Purpose) -> None:
    target, draft = random_model(8, 4), random_model(58, 4)
    assert (
        total_variation(
            shared_distribution(target, draft, Purpose.DRAFT), target_distribution(target, 1)
        )
        < EXACT
    )
    assert (
        total_variation(shared_distribution(target, draft, shared), target_distribution(target, 1))
        > VISIBLE
    )


def shared_distribution(target: Model, draft: Model, purpose: Purpose) -> TextDistribution:
    """Return the distribution of one position when the draft draws with the number of `purpose`."""
    p, q = target(()), draft(())
    points = draw_breakpoints(q) + draw_breakpoints(residual(p, q))
    for token_id in q.token_ids.tolist():
        points += coin_breakpoints(DraftToken(token_id, q), p)

    def emit(u: Uniform) -> Context:
        token_id = q.draw(u(purpose, 0))
        verdict = token_verification([DraftToken(token_id, q)], [p, certain(0)], u)
        return (token_id if verdict.accepted_count else verdict.next_token_id,)

    return integrate(emit, lambda purpose, i: points)


# With the real noise, over many rounds


PROMPT_LENGTH = 11
COUNT = 4
TARGET = rewritten(random_model(3, 3), softened)
DRAFT = rewritten(random_model(63, 3), coarse)
A_STREAM_EACH = {purpose: purpose for purpose in Purpose}
ONE_STREAM = dict.fromkeys(Purpose, Purpose.DRAFT)


def generate(seed: int, streams: Mapping[Purpose, Purpose]) -> tuple[Context, int]:
    """Return the first tokens of a text drafted in threes, and how often it was rolled back."""
    text: Context = ()
    rollbacks = 0
    while len(text) < COUNT:
        first = PROMPT_LENGTH + len(text)

        def u(purpose: Purpose, i: int, first: int = first) -> float:
            return uniform(seed, 0, streams[purpose], first, first + i)

        guess = text
        draft: list[DraftToken] = []
        for i in range(3):
            draft.append(DraftToken(DRAFT(guess).draw(u(Purpose.DRAFT, i)), DRAFT(guess)))
            guess = (*guess, draft[-1].token_id)
        verdict = token_verification(draft, [TARGET(guess[: len(text) + i]) for i in range(4)], u)
        rollbacks += verdict.accepted_count < len(draft)
        text = (*guess[: len(text) + verdict.accepted_count], verdict.next_token_id)
    return text[:COUNT], rollbacks


def test_texts_of_many_rounds_have_the_targets_distribution() -> None:
    runs = [generate(seed, A_STREAM_EACH) for seed in range(8_000)]
    assert sum(rollbacks for _, rollbacks in runs) > 8_000
    assert chi_square_p_value([text for text, _ in runs], target_distribution(TARGET, COUNT)) > 1e-6


def test_texts_whose_purposes_share_one_stream_are_seen() -> None:
    texts = [generate(seed, ONE_STREAM)[0][:2] for seed in range(1_000)]
    assert chi_square_p_value(texts, target_distribution(TARGET, 2)) < 1e-6
