"""A toy that copies what stood before, and keeps to a grammar: for sources that need such texts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from outrider.distribution import Distribution
from outrider.drafters.forced import GrammarPlace
from outrider.engine.model import Row, Sampler
from outrider.errors import InvalidRequest
from outrider.grammar.gbnf import read_grammar
from outrider.grammar.states import GrammarStates
from outrider.sampling import SamplingParameters
from tests.support.toy import EOS, ToyModel

JSON_SIGNS = dict(enumerate((b"{", b"}", b'"', b":", b"_", b"1"), start=34))
"""Texts for `changed_texts`, with which toys write JSON; in place of halves of characters."""


@dataclass(kw_only=True, eq=False)
class CopyingToy(ToyModel):
    """What came after the last two tokens, when they last stood together, is likely to come again.

    As in every toy all held tokens count, so that a wrong cell shows in each copy, too.
    """

    copies: float = 5.0  # added to the logit of a token that would be a copy

    def sampler(self, parameters: SamplingParameters, seed: int = 0, choice: int = 0) -> Sampler:
        """Return a new sampler chain, which may have a grammar."""
        plain = super().sampler(replace(parameters, grammar=""), seed, choice)
        if not parameters.grammar:
            return plain
        states = GrammarStates(read_grammar(parameters.grammar))
        return GrammarToySampler(plain, self, GrammarPlace(states, states.start))

    def _logits_after(self, history: tuple[int, ...]) -> Row:
        logits = super()._logits_after(history)
        for index in range(len(history) - 1, 1, -1):
            if history[index - 2 : index] == history[-2:]:
                logits[history[index]] += np.float32(self.copies)
                break
        return logits


class GrammarToySampler:
    """A sampler chain that leaves of a distribution what a grammar lets."""

    has_state = True
    mirostat_mu: float | None = None

    def __init__(self, plain: Sampler, model: ToyModel, place: GrammarPlace) -> None:
        """`place` is where in the grammar the text has come to."""
        self._plain = plain
        self._model = model
        self._texts = model.token_texts()
        self._place = place

    def distribution(self, row: Row) -> Distribution:
        """Return the distribution of the next token. Raises InvalidRequest if nothing is let."""
        masked = np.array([x if self._lets(i) else -np.inf for i, x in enumerate(row)], np.float32)
        if np.isneginf(masked).all():
            raise InvalidRequest("grammar", "leaves nothing")
        return self._plain.distribution(masked)

    def draw(self, row: Row, seed: int, stream: int, position: int) -> int:
        """Return the winner of the race in that distribution."""
        return self.distribution(row).race(seed, stream, position)[0]

    def _lets(self, token_id: int) -> bool:
        if token_id == EOS:
            state = self._place.state
            return state is not None and state.can_end and not self._place.half
        text = self._texts[token_id]
        return bool(text) and self._place.after(text).state is not None

    def accept(self, token_id: int, is_prompt: bool = False) -> None:
        """Continue behind a token. Raises InvalidRequest for one that the grammar does not let."""
        if is_prompt:
            return
        if not self._lets(token_id):
            raise InvalidRequest("grammar", "does not let the text")
        self._place = self._place.after(self._texts[token_id])

    def clone(self) -> GrammarToySampler:
        """Return a copy."""
        return GrammarToySampler(self._plain, self._model, self._place)
