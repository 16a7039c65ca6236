"""Makes draft tokens of what llama-server wrote, as a session's rule wants them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from draft_service.local_sources import as_confidence
from outrider.distribution import Distribution, certain, distribution_of, lead
from outrider.engine.guesser import Guess
from outrider.messages import Candidates, Rule, SessionParameters
from outrider_llama_server.answers import Said, takes_noise

_UNSAID_CHANCE = 0.5
"""Of a token without a row: llama-server says none for one that ends inside a character."""


class Guessing:
    """Picks a session's tokens: what llama-server wrote, for as long as that is what was drawn.

    Where the session samples, tokens are drawn from the likeliest ones with the target's own
    noise. Under `rejection` the row of a token is itself alone: it is greedy, and no coin is in it.
    """

    def __init__(self, session: SessionParameters) -> None:
        self._session = session
        self._draws = session.rule is Rule.SHARED_NOISE and takes_noise(session.sampling)
        self._sampling = replace(session.sampling, logit_bias=())
        self._biases = dict(session.sampling.logit_bias)
        self._dropped = len(session.dropped.token_ids)

    def guesses(self, said: Sequence[Said], position: int) -> Iterator[Guess]:
        """Yield draft tokens from `position` on, up to the first that llama-server did not write.

        Those that the session does not want are marked as doubtful.
        """
        for number, each in enumerate(said):
            guess = self._guess(each, position + number)
            yield guess
            if guess.token_id != each.token_id:
                return

    def _guess(self, said: Said, position: int) -> Guess:
        session = self._session
        ids, values = self._known(said)
        if not len(ids):
            token_id = min(said.token_id, session.vocabulary - 1)
            return self._made(token_id, as_confidence(_UNSAID_CHANCE, session.rule), _UNSAID_CHANCE)
        chances = dict(zip(ids.tolist(), np.exp(values).tolist(), strict=True))
        if self._draws:
            token_id, margin = self._drawn(ids, values, position)
            confidence = int(min(255.0, 32.0 * margin))
        else:
            token_id = said.token_id if said.token_id < session.vocabulary else int(ids[0])
            confidence = as_confidence(chances.get(token_id, _UNSAID_CHANCE), session.rule)
        chance = min(1.0, chances.get(token_id, _UNSAID_CHANCE))
        likely = list(chances.items())[: session.candidate_count]
        return self._made(token_id, confidence, chance, self._is_close(values), likely)

    def _known(self, said: Said) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return the candidates that the target has, the likeliest first."""
        is_known = said.token_ids < self._session.vocabulary
        return said.token_ids[is_known], said.log_probabilities[is_known]

    def _drawn(
        self, ids: NDArray[np.int32], values: NDArray[np.float32], position: int
    ) -> tuple[int, float]:
        """Return what the target's noise draws, and by how much it leads."""
        session, row = self._session, values.copy()
        for slot, token_id in enumerate(ids.tolist()):
            row[slot] += np.float32(self._biases.get(token_id, 0.0))
        if not np.isfinite(row).any():
            row = values
        drawn = distribution_of(row, self._sampling)
        drawn = Distribution(ids[drawn.token_ids], drawn.weights)
        return lead(drawn.finish(session.seed, session.choice, position + self._dropped, 2))

    def _is_close(self, values: NDArray[np.float32]) -> bool:
        """Return whether the likeliest token is less ahead of the next than the session wants."""
        least = self._session.min_ratio
        return bool(least and len(values) > 1 and values[0] - values[1] < math.log(least))

    def _made(
        self,
        token_id: int,
        confidence: int,
        chance: float,
        is_close: bool = False,
        likely: Candidates = (),
    ) -> Guess:
        session = self._session
        is_block = session.rule is Rule.REJECTION
        doubtful = not is_block and (is_close or chance < session.min_probability)
        candidates = (likely or [(token_id, chance)]) if session.candidate_count else ()
        row = certain(token_id) if is_block else None
        return Guess(token_id, confidence, row, candidates, doubtful)
