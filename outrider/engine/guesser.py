"""Picks the tokens of a draft by the target's own sampler chain, as the rule wants it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from outrider.distribution import (
    Distribution,
    certain,
    lead,
    most_probable,
    quantised,
    softmax,
)
from outrider.engine.model import Model, Row
from outrider.engine.sampler_state import SamplerTracker
from outrider.errors import InvalidRequest
from outrider.messages import Candidates, Rule, SessionParameters
from outrider.noise import Purpose, uniform
from outrider.sampling import MAX_BIASES, SamplingParameters
from outrider.translation import Translation


@dataclass(frozen=True, slots=True)
class Guess:
    """A drafted token, how sure the draft is (one byte), and the row under `rejection`.

    `candidates` are there when the session asks for them. A doubtful one is
    one that the session does not want, and ends the draft.
    """

    token_id: int
    confidence: int
    row: Distribution | None = None
    candidates: Candidates = ()
    doubtful: bool = False
    chances: Sequence[tuple[int, float]] = ()
    """Of it and of those that were nearly chosen: ids, and how likely each is the right one."""


class Guesser(Protocol):
    """Picks the token after a line that started over at `base`.

    With `rivals`, it says how likely it is, and the likeliest others, so many at most.
    """

    def __call__(self, row: Row, base: int, line: Sequence[int], rivals: int = 0) -> Guess: ...


def doubts(session: SessionParameters, row: Row, probability: float) -> bool:
    """Return whether a session does not want a token of this probability, picked by this row."""
    if probability < session.min_probability:
        return True
    if not session.min_ratio:
        return False
    second, best = np.partition(row, -2)[-2:]
    return bool(best - second < math.log(session.min_ratio))


class _Picker:
    """What all rules share: the chain, and what a session wants to know of a token."""

    def __init__(self, model: Model, session: SessionParameters) -> None:
        sampling = session.sampling
        self.seed, self.choice = session.seed, session.choice
        self.takes_argmax = set(sampling.beyond_basic()) <= {"logit_bias"}
        self.dropped = len(session.dropped.token_ids)
        self._session = session
        chain = sampling if self.takes_argmax else sampling.unsure()
        self._sampler = model.sampler(chain, self.seed, self.choice)
        self._tracker = SamplerTracker(self._sampler, session.prompt_count)
        known = [(i, bias) for i, bias in sampling.logit_bias if i < session.vocabulary]
        # Whether nothing is asked of a token but what it is, and how sure the draft is of it.
        self.is_simple = not (
            session.candidate_count or session.min_probability or session.min_ratio
        )
        self._biased = np.array([i for i, _ in known], np.int32)
        self._bias = np.array([bias for _, bias in known], np.float32)

    def known(self, row: Row) -> Row:
        """Return a row with nothing left of ids that the target lacks.

        It is as long as before: a grammar's mask is of all the draft's ids.
        """
        size = self._session.vocabulary
        if size < len(row):
            row = row.copy()
            row[size:] = -np.inf
        return row

    def biased(self, row: Row) -> Row:
        """Return a row with the session's biases, an id that is named twice with both."""
        if not len(self._biased):
            return row
        row = row.copy()
        np.add.at(row, self._biased, self._bias)
        return row

    def distribution(self, row: Row, base: int, line: Sequence[int]) -> Distribution:
        """Return what the chain makes of a row after the line."""
        try:
            sampler = self._tracker.at(self._session.whole(line), base + self.dropped)
            return sampler.distribution(row)
        except InvalidRequest:
            return softmax(row)  # it leads nowhere, and is only a guess

    def in_target(self, token_id: int) -> int:
        """Return the target's id of a token that the row lists."""
        return token_id

    def candidates(self, row: Row, distribution: Distribution | None = None) -> Candidates:
        """Return the most probable tokens, if the session asks for them."""
        count = self._session.candidate_count
        if not count:
            return ()
        if distribution is None or self._session.sampling.greedy:
            distribution = softmax(row)
        return most_probable(distribution, count)

    def doubts(self, row: Row, probability: float) -> bool:
        """Return whether the session does not want a token of this probability."""
        return doubts(self._session, row, probability)

    @property
    def weighs_probability(self) -> bool:
        """Whether a token's probability matters to the session."""
        return bool(self._session.min_probability)


class _TranslatingPicker(_Picker):
    """Picks by the draft's rows, of which it leaves the tokens that the target has too.

    The chain works on the draft's ids, biases and the text included. A distribution that comes out
    is in ids of the target.
    """

    def __init__(self, model: Model, session: SessionParameters, translation: Translation) -> None:
        size = len(translation.draft.texts)
        sampling = own_sampling(session.sampling, translation)
        super().__init__(model, replace(session, sampling=sampling, vocabulary=size))
        self._translation = translation
        self._reader = translation.reader(session.prompt_count)
        self._is_counted = False  # how many of its tokens the draft needs for the prompt

    def known(self, row: Row) -> Row:
        return self._translation.restricted(row)

    def distribution(self, row: Row, base: int, line: Sequence[int]) -> Distribution:
        whole, base = self._session.whole(line), base + self.dropped
        try:
            sampler = self._tracker.at(*self._own_text(whole, base))
            return self._translation.in_target(sampler.distribution(row))
        except (InvalidRequest, ValueError):
            return self._any(row)

    def _own_text(self, text: Sequence[int], base: int) -> tuple[list[int], int]:
        """Return a text in the draft's ids, and how many of them are settled."""
        if not self._sampler.has_state:
            return [], 0
        settled = self._reader.read(text[:base], base)
        if not self._is_counted:
            prompt = self._reader.read(text[: self._session.prompt_count], base)
            self._tracker = SamplerTracker(self._sampler, len(prompt))
            self._is_counted = True
        return settled + self._reader.own_ids(text[base:]), len(settled)

    def _any(self, row: Row) -> Distribution:
        """Return a distribution where the chain leads nowhere: it is only a guess."""
        try:
            return self._translation.in_target(softmax(row))
        except ValueError:  # all that the two share is forbidden
            return certain(int(self._translation.to_target.max()))

    def candidates(self, row: Row, distribution: Distribution | None = None) -> Candidates:
        if not self._session.candidate_count:
            return ()
        if distribution is None or self._session.sampling.greedy:
            distribution = self._any(row)
        return most_probable(distribution, self._session.candidate_count)

    def in_target(self, token_id: int) -> int:
        # Where all is forbidden the best one may be one that the target lacks.
        return max(0, int(self._translation.to_target[token_id]))


def own_sampling(sampling: SamplingParameters, translation: Translation) -> SamplingParameters:
    """Return a session's parameters for a chain over the draft's own ids."""
    if not sampling.logit_bias:
        return sampling
    known = {token_id for token_id, _ in sampling.logit_bias}
    biased = np.flatnonzero(np.isin(translation.to_target, list(known)))
    own: dict[int, list[int]] = {}
    for own_id in biased.tolist():
        own.setdefault(int(translation.to_target[own_id]), []).append(own_id)
    biases = [(i, bias) for its, bias in sampling.logit_bias for i in own.get(its, ())]
    # Several tokens may be one of the target's. Without the last biases it only guesses worse.
    return replace(sampling, logit_bias=tuple(biases[:MAX_BIASES]))


def guesser(
    model: Model,
    session: SessionParameters,
    support: int | None,
    tail: float,
    translation: Translation | None = None,
) -> Guesser:
    """Return how the session's rule wants tokens picked.

    `support` and `tail` bound the rows sent under `rejection`; without a support, where none is
    sent, rows are whole. Ids beyond the target's vocabulary are forbidden before anything else;
    with a translation, tokens that the target does not have, and what is picked is in its ids: at
    least one must be shared.
    Raises InvalidRequest for sampling parameters that do not go with the model.
    """
    if translation is None:
        picker = _Picker(model, session)
    else:
        picker = _TranslatingPicker(model, session, translation)
    if session.rule is Rule.MATCH:
        return _greedy(picker)
    if session.rule is Rule.SHARED_NOISE:
        return _shared_noise(picker)
    return _rejection(picker, support, tail)


def _greedy(picker: _Picker) -> Guesser:
    def guess(row: Row, base: int, line: Sequence[int], rivals: int = 0) -> Guess:
        row = picker.known(row)
        chances: Sequence[tuple[int, float]] = ()
        if picker.takes_argmax:
            row = picker.biased(row)
            best = int(row.argmax())
            # All are forbidden: it leads nowhere, and is only a guess.
            is_possible = row[best] > -np.inf
            probability = 1.0 / float(np.exp(row - row[best]).sum()) if is_possible else 0.0
            if rivals and is_possible:
                likely = [(best, probability), *_rivals(row, best, rivals, probability)]
                chances = [(picker.in_target(i), chance) for i, chance in likely]
            best = picker.in_target(best)
            if picker.is_simple and not rivals:
                return Guess(best, int(255 * probability))
        else:
            chances = most_probable(picker.distribution(row, base, line), 1 + rivals)
            best, probability = chances[0]
        doubtful = picker.doubts(row, probability)
        candidates = picker.candidates(row)
        chances = chances if rivals else ()
        return Guess(best, int(255 * probability), None, candidates, doubtful, chances)

    return guess


def _rivals(row: Row, best: int, count: int, probability: float) -> list[tuple[int, float]]:
    """Return the likeliest ids of a row beside the best one, with their probabilities."""
    count = min(count + 1, len(row))
    likely = np.argpartition(row, -count)[-count:]
    order = likely[np.argsort(-row[likely], kind="stable")]
    return [(int(i), probability * math.exp(row[i] - row[best])) for i in order if i != best]


def _as_chances(scores: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return how likely those that came first in a race would also win the target's.

    By their leads, as if each had its score's share of the chance: of two that is the logistic
    function of the margin.
    """
    best = max(score for _, score in scores)
    weights = [math.exp(score - best) for _, score in scores]
    total = sum(weights)
    return [(i, weight / total) for (i, _), weight in zip(scores, weights, strict=True)]


def _shared_noise(picker: _Picker) -> Guesser:
    def guess(row: Row, base: int, line: Sequence[int], rivals: int = 0) -> Guess:
        row = picker.known(row)
        distribution = picker.distribution(row, base, line)
        position = len(line) + picker.dropped
        first = distribution.finish(picker.seed, picker.choice, position, 2 + rivals)
        token_id, margin = lead(first)
        probability = distribution.probability(token_id) if picker.weighs_probability else 1.0
        confidence = int(min(255.0, 32.0 * margin))
        candidates = picker.candidates(row, distribution)
        chances = _as_chances(first[: 1 + rivals]) if rivals else ()
        doubtful = picker.doubts(row, probability)
        return Guess(token_id, confidence, None, candidates, doubtful, chances)

    return guess


def _rejection(picker: _Picker, support: int | None, tail: float) -> Guesser:
    def guess(row: Row, base: int, line: Sequence[int], rivals: int = 0) -> Guess:
        row = picker.known(row)
        distribution = picker.distribution(row, base, line)
        if support is not None:
            distribution = quantised(distribution, support, tail)
        first, position = base + picker.dropped, len(line) + picker.dropped
        u = uniform(picker.seed, picker.choice, Purpose.DRAFT, first, position)
        token_id = distribution.draw(u)
        confidence = int(255 * distribution.probability(token_id))
        return Guess(token_id, confidence, distribution, picker.candidates(row, distribution))

    return guess
