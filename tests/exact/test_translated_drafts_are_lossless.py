"""A draft with another vocabulary changes nothing of the target's distribution, at either level.

The vocabularies share all of their texts, some or none. The exact tests enumerate, over the tokens
that guessers and a translation really give; those with the real noise are equalities of texts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from outrider.core.acceptance import match
from outrider.distribution import Distribution, quantised
from outrider.engine.guesser import guesser
from outrider.engine.string_guesser import StringGuesser
from outrider.messages import Rule, SessionParameters
from outrider.noise import Purpose, uniform
from outrider.sampling import GREEDY, SamplingParameters
from outrider.translation import TokenTable, Translation
from tests.exact.enumeration import (
    BLOCK,
    TOKEN,
    Context,
    Model,
    Speculation,
    emitted_distribution,
    random_model,
    target_distribution,
    total_variation,
)
from tests.exact.test_shared_noise_is_lossless import always, error_of, informed, match_round
from tests.support.toy import ToySampler
from tests.support.vocabularies import AB_AND_BA, DISJOINT, REORDERED, table

EXACT = 1e-12
VISIBLE = 1e-6

Pair = tuple[TokenTable, TokenTable]
SHARING = {
    "all": REORDERED,
    "some": AB_AND_BA,
    "larger": (table(b"a", b"b", b"ab", b"ba"), table(b"b", b"a")),
}
EVERY = SHARING | {"none": DISJOINT}
SAMPLING = SamplingParameters(temperature=0.8, top_k=3, top_p=1.0, min_p=0.0)


def draft_rows(pair: Pair, seed: int) -> Callable[[Context], Distribution]:
    """Return rows of the draft's ids after texts of the target's ids, as the draft reads them."""
    model = random_model(seed, len(pair[0].texts))
    reader = Translation(*pair).reader()
    return functools.cache(lambda context: model(tuple(reader.read(context, len(context)))))


def restricted(pair: Pair, seed: int) -> Model:
    """Return the draft as a model over the target's ids."""
    translation, rows = Translation(*pair), draft_rows(pair, seed)
    return functools.cache(lambda context: translation.in_target(rows(context)))


# Token level


@pytest.mark.parametrize("rule", [TOKEN, BLOCK], ids=["token", "block"])
@pytest.mark.parametrize("pair", SHARING.values(), ids=SHARING)
def test_rejection_with_the_restricted_row_emits_the_targets_distribution(
    pair: Pair, rule: object
) -> None:
    assert rule in (TOKEN, BLOCK)
    for seed in range(2):
        target = random_model(seed, len(pair[1].texts), 0.2)
        draft = restricted(pair, seed + 50)
        for sent in (draft, functools.cache(lambda c, d=draft: quantised(d(c), 2, 0.01))):
            its = Speculation(target=target, sampled=sent, sent=sent, length=2, rule=rule)
            emitted = emitted_distribution(its.round_distribution, target, 3)
            assert total_variation(emitted, target_distribution(target, 3)) < EXACT


def test_a_row_that_was_not_renormalised_where_it_was_drawn_is_seen() -> None:
    """The draft draws from the restricted row and sends what the chain made of the whole."""
    pair = AB_AND_BA
    target, drawn = random_model(1, 5), restricted(pair, 51)
    rows = draft_rows(pair, 51)
    sent = functools.cache(rows)  # its ids beside the target's, one of another text
    its = Speculation(target=target, sampled=drawn, sent=sent, length=1)
    emitted = emitted_distribution(its.round_distribution, target, 2)
    assert total_variation(emitted, target_distribution(target, 2)) > VISIBLE


@pytest.mark.parametrize("pair", SHARING.values(), ids=SHARING)
def test_a_match_with_a_restricted_draft_that_knows_the_noise_changes_nothing(pair: Pair) -> None:
    size = len(pair[1].texts)
    target, draft = random_model(1, size, 0.2), restricted(pair, 51)
    emit = match_round(target, informed(draft, 2), size, draft)
    assert error_of(emit, target, 3) < EXACT


# The real guessers


class Rows:
    """A model whose rows a function gives: as much of one as guessers ask for."""

    def __init__(self, rows: Model, size: int) -> None:
        self._rows, self._size = rows, size

    def row(self, text: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        q = self._rows(tuple(text))
        logits = np.full(self._size, -20.0, np.float32)
        with np.errstate(divide="ignore"):
            logits[q.token_ids] = np.maximum(np.log(q.weights), -20.0)
        return logits

    def sampler(self, parameters: SamplingParameters, seed: int, choice: int) -> object:
        return ToySampler(parameters)


def session(rule: Rule, seed: int, size: int) -> SessionParameters:
    return SessionParameters(
        session_id=bytes(16),
        attempt=1,
        rule=rule,
        sampling=GREEDY if rule is Rule.MATCH else SAMPLING,
        seed=seed,
        choice=0,
        prompt_count=1,
        token_limit=64,
        vocabulary=size,
    )


def token_level(pair: Pair, rule: Rule, seed: int, text: Context, count: int) -> Context:
    """Return what a guesser drafts after a text."""
    translation, size = Translation(*pair), len(pair[0].texts)
    model = Rows(random_model(51, size), size)
    guess = guesser(model, session(rule, seed, len(pair[1].texts)), 8, 0.0, translation)  # type: ignore[arg-type]
    reader, line = translation.reader(1), list(text)
    for _ in range(count):
        row = model.row(reader.read(line, len(text)))
        line.append(guess(row, len(text), line).token_id)
    return tuple(line[len(text) :])


def string_level(pair: Pair, rule: Rule, seed: int, text: Context, count: int) -> Context:
    """Return what a string guesser drafts after a text."""
    translation, size = Translation(*pair), len(pair[0].texts)
    model = Rows(random_model(51, size), size)
    its = StringGuesser(model, session(rule, seed, len(pair[1].texts)), translation)  # type: ignore[arg-type]
    line = list(text)
    for _ in range(8 * count):
        own = its.text(line, len(text))
        if guess := its.settled():
            line.append(guess.token_id)
        elif its.is_over or len(line) >= len(text) + count:
            break
        else:
            its.write(model.row(own), line)
    return tuple(line[len(text) :][:count])


LEVELS = {"tokens": token_level, "strings": string_level}
USED = [("tokens", each) for each in SHARING] + [("strings", each) for each in EVERY]


@pytest.mark.parametrize(("level", "sharing"), USED)
def test_any_draft_that_guessers_make_changes_nothing_under_match(level: str, sharing: str) -> None:
    pair = EVERY[sharing]
    size = len(pair[1].texts)
    for rule in (Rule.MATCH, Rule.SHARED_NOISE):
        draft = LEVELS[level](pair, rule, 3, (0,), 2)
        assert draft
        emit = match_round(random_model(1, size, 0.2), always(*draft), size)
        assert error_of(emit, random_model(1, size, 0.2), len(draft) + 1) < EXACT


@pytest.mark.parametrize(("level", "sharing"), USED)
def test_a_text_under_shared_noise_is_the_same_with_a_foreign_draft(
    level: str, sharing: str
) -> None:
    pair = EVERY[sharing]
    target = random_model(5, len(pair[1].texts))
    accepted = []

    def generate(seed: int, is_drafted: bool) -> Context:
        text: Context = (0,)
        while len(text) < 24:
            its = LEVELS[level](pair, Rule.SHARED_NOISE, seed, text, 3) if is_drafted else ()
            samples = [
                target(text + its[:i]).race(seed, 0, len(text) + i)[0] for i in range(len(its) + 1)
            ]
            verdict = match(its, samples)
            accepted.append(verdict.accepted_count)
            text = (*text, *its[: verdict.accepted_count], verdict.next_token_id)
        return text[:24]

    for seed in (1, 42, 2**63):
        assert generate(seed, True) == generate(seed, False)
    assert sum(accepted) > 3  # drafts were in the text, or nothing would be shown


@pytest.mark.parametrize("level", LEVELS)
def test_a_draft_with_the_targets_own_distribution_under_other_ids_is_always_right(
    level: str,
) -> None:
    """Shared noise is keyed by the target's ids, whichever ids the draft has for the tokens."""
    draft, target = REORDERED
    translation = Translation(draft, target)
    rows = random_model(51, len(draft.texts))
    reader = translation.reader(1)
    for seed in range(5):
        guessed = LEVELS[level](REORDERED, Rule.SHARED_NOISE, seed, (2,), 4)
        assert guessed
        text: Context = (2,)
        for token_id in guessed:
            model = Rows(rows, len(draft.texts))
            own = model.row(reader.read(text, 1))
            its = Rows(rows, len(draft.texts)).sampler(SAMPLING, 0, 0)
            q = translation.in_target(its.distribution(own))  # type: ignore[attr-defined]
            assert token_id == q.race(seed, 0, len(text))[0]
            text = (*text, token_id)


@pytest.mark.parametrize("pair", SHARING.values(), ids=SHARING)
def test_the_rejection_rule_draws_as_often_as_its_row_says(pair: Pair) -> None:
    """The drawn token and the row of the real guesser: the proof takes them to belong together."""
    translation, size = Translation(*pair), len(pair[0].texts)
    row = Rows(random_model(51, size), size).row([0])
    count, drawn = 4000, np.zeros(len(pair[1].texts))
    for seed in range(count):
        asked = session(Rule.REJECTION, seed, len(pair[1].texts))
        guess = guesser(Rows(random_model(51, size), size), asked, 8, 0.0, translation)  # type: ignore[arg-type]
        its = guess(row, 1, [0])
        drawn[its.token_id] += 1
    assert its.row is not None
    said = np.array([its.row.probability(i) for i in range(len(drawn))])
    assert abs(drawn / count - said).max() < 5 * np.sqrt(0.25 / count)
    assert (drawn[said == 0] == 0).all()


def test_tokens_of_several_letters_are_drawn_with_the_targets_noise_too() -> None:
    """At token level they are the target's own; only the order of the ids is another."""
    draft, target = table(b"a", b"b", b"ab", b"ba"), table(b"ba", b"ab", b"b", b"a")
    translation = Translation(draft, target)
    rows, reader = random_model(51, len(draft.texts)), translation.reader(1)
    long = 0
    for seed in range(12):
        guessed = token_level((draft, target), Rule.SHARED_NOISE, seed, (2,), 4)
        text: Context = (2,)
        for token_id in guessed:
            model = Rows(rows, len(draft.texts))
            row = model.row(reader.read(text, 1))
            its = model.sampler(SAMPLING, 0, 0)
            q = translation.in_target(its.distribution(row))  # type: ignore[attr-defined]
            assert token_id == q.race(seed, 0, len(text))[0]
            text = (*text, token_id)
            long += len(target.texts[token_id]) > 1
    assert long > 5


def test_the_rejection_rule_draws_from_the_very_row_that_it_sends() -> None:
    pair = AB_AND_BA
    translation, size = Translation(*pair), len(pair[0].texts)
    model = Rows(random_model(51, size), size)
    guess = guesser(model, session(Rule.REJECTION, 7, 5), 8, 0.0, translation)  # type: ignore[arg-type]
    its = guess(model.row([0]), 1, [0])
    assert its.row is not None
    assert set(its.row.token_ids.tolist()) <= set(translation.to_target.tolist())
    assert its.token_id == its.row.draw(uniform(7, 0, Purpose.DRAFT, 1, 1))
