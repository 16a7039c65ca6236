"""Guesses a target's tokens by the text that a draft writes, where few of their tokens are equal.

The draft writes in its own tokens; of the text the target's tokens are given as soon as nothing
that may follow could change them (Timor et al. 2502.05202, string-level exact match). They are
guesses without a distribution, for rules that compare ids. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from outrider.distribution import Distribution, lead, softmax
from outrider.engine.guesser import Guess, doubts, own_sampling
from outrider.engine.model import Model, Row
from outrider.engine.sampler_state import SamplerTracker
from outrider.errors import InvalidRequest
from outrider.messages import Rule, SessionParameters
from outrider.text_encoder import TokenStream
from outrider.translation import ABSENT, TranslatedReader, Translation

MOST_OPEN = 32
"""Tokens that the draft writes at most without one of the target's coming to an end."""


class StringGuesser:
    """Follows one line: what the draft wrote of it, and what of that is not given yet.

    Under shared noise a token is drawn with the noise of the target's token of the same text, at
    the position where that would stand; one that the target lacks with noise of its own.
    """

    def __init__(self, model: Model, session: SessionParameters, translation: Translation) -> None:
        sampling = own_sampling(session.sampling, translation)
        # As the other guessers: the best token needs no chain, if nothing changes which that is.
        self._takes_argmax = session.rule is Rule.MATCH and not (
            set(sampling.beyond_basic()) - {"logit_bias"}
        )
        self._biases = sampling.logit_bias
        if session.rule is Rule.MATCH and not self._takes_argmax:
            sampling = sampling.unsure()
        self._sampler = model.sampler(sampling, session.seed, session.choice)
        self._tracker: SamplerTracker | None = None  # once the prompt's own tokens are counted
        self._chain: list[int] = []  # the text up to the base, as a chain with state follows it
        self._chain_reader = translation.reader(session.prompt_count)
        self._session = session
        self._translation = translation
        self.reader: TranslatedReader = translation.reader(session.prompt_count)
        """What reads the line's text in the draft's ids."""
        self._line: Sequence[int] = ()  # that it follows
        self._base = -1  # of that; -1: of none
        self._given: list[int] = []  # of the line after its base, in the target's ids
        self._ready: deque[Guess] = deque()  # settled, and not given yet
        self._own: list[int] = []  # the text, and what the draft wrote after its base
        self.settled_count = 0
        """Of the draft's tokens, those up to the line's base."""
        self._stream = TokenStream(translation.target_encoder)
        self._confidence = 255  # the least of what was written since the last settled token
        self._probability = 1.0
        self._is_over = False

    def text(self, line: Sequence[int], base: int) -> list[int]:
        """Return what the draft is to read before its next token, in its own ids."""
        follows = line is self._line and base == self._base
        if not follows or list(line[base:]) != self._given:
            self._start(line, base)
        return self._own

    def _start(self, line: Sequence[int], base: int) -> None:
        """Follow a line that this has not written."""
        self._line, self._base, self._given = line, base, list(line[base:])
        text = self.reader.read(line[:base], base)
        self._own, self.settled_count = text + self.reader.own_ids(self._given), len(text)
        if self._sampler.has_state:
            self._begin_chain(self._session.whole(line[:base]))
        self._stream = TokenStream(self._translation.target_encoder)
        self._ready.clear()
        self._confidence, self._probability, self._is_over = 255, 1.0, False

    def _begin_chain(self, text: Sequence[int]) -> None:
        """Follow a text with a sampler, which knows what was dropped, and the prompt's own end."""
        if self._tracker is None:
            prompt = text[: self._session.prompt_count]
            count = len(self._translation.reader().read(prompt, len(prompt)))
            self._tracker = SamplerTracker(self._sampler, count)
        self._chain = list(self._chain_reader.read(text, len(text)))

    def settled(self) -> Guess | None:
        """Take the next token of the target's that is settled; the line has to continue with it."""
        if not self._ready:
            return None
        guess = self._ready.popleft()
        self._given.append(guess.token_id)
        return guess

    @property
    def is_over(self) -> bool:
        """Whether the draft writes no more of this line."""
        return self._is_over or len(self._stream.pending) > MOST_OPEN * 16

    def write(self, row: Row, line: Sequence[int]) -> None:
        """Let the draft write a token after `line` and what it wrote already, from its row."""
        own_id, confidence, probability = self._pick(row, line)
        if doubts(self._session, row, probability):
            self._is_over = True
            return
        self._confidence = min(self._confidence, confidence)
        self._probability *= probability
        self._own.append(own_id)
        text = self._translation.draft.texts[own_id]
        if text and own_id not in self._translation.written_apart:
            self._settle(self._stream.feed(text))
            self._is_over = self._stream.is_stuck
            return
        # A special token, and one that was added to the target's vocabulary, ends what is before
        # it, and the line if the target does not have it.
        self._settle(self._stream.finish())
        its = int(self._translation.to_target[own_id])
        if its != ABSENT and not self._stream.is_stuck:
            self._settle([its])
        self._is_over = its == ABSENT or its in self._translation.end_token_ids

    def _settle(self, token_ids: Sequence[int]) -> None:
        candidates = self._session.candidate_count
        for token_id in token_ids:
            listed = [(token_id, self._probability)] if candidates else ()
            self._ready.append(Guess(token_id, self._confidence, None, listed))
        if token_ids:
            self._confidence, self._probability = 255, 1.0

    def _pick(self, row: Row, line: Sequence[int]) -> tuple[int, int, float]:
        """Return a token of the draft's, how sure it is, and its probability."""
        if self._takes_argmax:
            return self._best(row)
        distribution = self._distribution(row, line)
        if self._session.rule is Rule.MATCH:
            own_id = int(distribution.token_ids[distribution.weights.argmax()])
            probability = distribution.probability(own_id)
            return own_id, int(255 * probability), probability
        keyed = replace(distribution, token_ids=self._translation.noise_ids[distribution.token_ids])
        position = len(line) + len(self._ready) + self._stream.open_count
        position += len(self._session.dropped.token_ids)
        session = self._session
        winner, margin = lead(keyed.finish(session.seed, session.choice, position, 2))
        own_id = int(distribution.token_ids[int((keyed.token_ids == winner).argmax())])
        return own_id, int(min(255.0, 32.0 * margin)), distribution.probability(own_id)

    def _best(self, row: Row) -> tuple[int, int, float]:
        """Return the best token, as `_pick` does."""
        if self._biases:
            row = row.copy()
            for own_id, bias in self._biases:
                row[own_id] += bias
        best = int(row.argmax())
        if row[best] == -np.inf:  # all are forbidden
            return best, 0, 0.0
        probability = 1.0 / float(np.exp(row - row[best]).sum())
        return best, int(255 * probability), probability

    def _distribution(self, row: Row, line: Sequence[int]) -> Distribution:
        try:
            if not self._sampler.has_state:
                return self._sampler.distribution(row)
            assert self._tracker is not None
            text = self._chain + self._own[self.settled_count :]
            sampler = self._tracker.at(text, len(self._chain))
            return sampler.distribution(row)
        except InvalidRequest:
            return softmax(row)  # it leads nowhere, and is only a guess
