"""Which sources without a model go with a generation, and what they need of its model. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outrider.drafters.forced import ForcedSource
from outrider.drafters.prediction import PredictionSource
from outrider.drafters.source import Source
from outrider.errors import InvalidRequest
from outrider.grammar.gbnf import read_grammar
from outrider.grammar.states import GrammarStates
from outrider.speculation import Speculation

_MOST_BYTES = 24
"""Of a token that is looked for; few tokens are longer, and none of those is forced."""

_MOST_GRAMMARS = 16


class UsualTokens:
    """Cuts bytes into the longest tokens that there are, one after the other.

    That is what most vocabularies do with most short texts, and no model has to be asked: what is
    cut otherwise is only a draft that is wrong.
    """

    def __init__(self, texts: Sequence[bytes]) -> None:
        """`texts` are those of all tokens, by id; of equal ones the first is taken."""
        pairs = zip(reversed(texts), range(len(texts) - 1, -1, -1), strict=True)
        self._ids = {text: token_id for text, token_id in pairs if 0 < len(text) <= _MOST_BYTES}

    def __call__(self, text: bytes) -> list[int]:
        """Return the tokens of a text; none where it cannot be cut."""
        found, at, ids = [], 0, self._ids
        while at < len(text):
            for end in range(min(at + _MOST_BYTES, len(text)), at, -1):
                token_id = ids.get(text[at:end])
                if token_id is not None:
                    found.append(token_id)
                    at = end
                    break
            else:
                return []
        return found


class Grammars:
    """The states of the latest grammars, and the tokens of the latest vocabulary.

    `read` takes as long as a grammar is large: it may be called in a thread, one at a time.
    """

    def __init__(self) -> None:
        self._states: OrderedDict[str, GrammarStates | None] = OrderedDict()  # the oldest first
        self._texts: Sequence[bytes] = ()  # of the tokens
        self._usual = UsualTokens(())

    def read(self, grammar: str, texts: Sequence[bytes]) -> Forcing | None:
        """Return what a grammar forces; None where there is none, or none that is understood."""
        if not grammar:
            return None
        if texts is not self._texts:
            self._texts, self._usual = texts, UsualTokens(texts)
        if grammar not in self._states:
            self._states[grammar] = _states_of(grammar)
            if len(self._states) > _MOST_GRAMMARS:
                self._states.popitem(last=False)
        states = self._states[grammar]
        return None if states is None else Forcing(states, texts, self._usual)


def _states_of(grammar: str) -> GrammarStates | None:
    try:
        return GrammarStates(read_grammar(grammar))
    except InvalidRequest:
        return None


@dataclass(frozen=True, slots=True)
class Forcing:
    """A grammar's states, and the tokens that its texts are made of."""

    states: GrammarStates
    texts: Sequence[bytes]  # by id
    usual: UsualTokens

    def source(self, prompt: Sequence[int], end_id: int | None) -> ForcedSource:
        """Return a source for one text."""
        return ForcedSource(self.states, self.texts.__getitem__, self.usual, prompt, end_id)


@dataclass(frozen=True, slots=True)
class Expected:
    """What a request says of its text."""

    prediction: Sequence[int] = ()  # tokens that it is expected to be much like
    forcing: Forcing | None = None  # what its grammar leaves no choice of
    end_id: int | None = None  # the token that ends a text


NOTHING_EXPECTED = Expected()


def sources_of(
    speculation: Speculation,
    expected: Expected = NOTHING_EXPECTED,
    of_texts: Mapping[str, Source] | None = None,
    prompt: Sequence[int] = (),
) -> dict[str, Source]:
    """Return the sources for one text that is begun, by name.

    `of_texts` are those that follow texts, the prompt among them.
    """
    made = dict(of_texts or {})
    if expected.prediction:
        made["prediction"] = PredictionSource(expected.prediction)
    if expected.forcing is not None:
        made["forced"] = expected.forcing.source(prompt, expected.end_id)
    return {name: made[name] for name in speculation.local_drafters if name in made}


def sources_after_shift(
    before: Mapping[str, Source], fresh: Mapping[str, Source]
) -> dict[str, Source]:
    """Return the sources for a text of which the middle is dropped.

    What reads the prompt begins anew with what is left of it; the others continue.
    """
    return {name: source if source.reads_prompt else before[name] for name, source in fresh.items()}
