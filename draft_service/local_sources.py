"""What a draft proposes without its model: what followed before, where that is likely. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from outrider.core.rates import AcceptanceRate
from outrider.distribution import certain
from outrider.drafters.copying import CopySource
from outrider.drafters.ngram_source import NgramSource
from outrider.drafters.source import READ_AT_ONCE, Proposal, Scored, Source
from outrider.drafters.suffix import SuffixSource
from outrider.engine.guesser import Guess
from outrider.errors import InvalidConfig
from outrider.messages import FRAME_TOKENS, Rule, SessionParameters
from outrider.speculation import MODEL

SOURCES: Mapping[str, Callable[[], Source]] = {
    "suffix": SuffixSource,
    "copy": CopySource,
    "ngram": NgramSource,
}
"""Those that need nothing but the text, by name. A draft is sent no more than that: neither the
grammar nor what the caller expects, and it keeps no text of another session."""

EVERY = "lookup"
"""Names all of them."""

INSTEAD = 0.6
"""The chance from which a proposed token is taken in place of the model's.

It costs nothing and the model's costs a decode of d seconds, but where it is wrong the line is
lost: with chances c and m it is worth more if c > m - d r / w, where r tokens a second are written
and w come of a token that stands. Of the usual pair, m = .7, d a tenth to a fifth of the target's
decode, r about 1.7 in such a decode and w about 2, that leaves .55 to .62.
"""


def read_names(text: str) -> tuple[str, ...]:
    """Return the sources that a list such as `suffix` or `lookup` names. Raises InvalidConfig.

    `model` may be listed, as in an orchestrator's option: where there is one it drafts.
    """
    names: dict[str, None] = {}
    for name in filter(None, text.split(",")):
        if name == MODEL:
            continue
        if name != EVERY and name not in SOURCES:
            known = ", ".join((EVERY, *SOURCES))
            raise InvalidConfig("drafters", f"must be of {known}, not {name!r}")
        names.update(dict.fromkeys(SOURCES if name == EVERY else (name,)))
    return tuple(names)


def acceptances(names: Iterable[str]) -> dict[str, AcceptanceRate]:
    """Return what is known of each source, to share between the sessions of one thread."""
    return {name: AcceptanceRate.of_source(name) for name in names}


class LocalSources:
    """Follows one session's text with each of some sources, and proposes what they say.

    Only ids below the target's vocabulary are proposed, and none that a session would not want of
    a model of that probability. Under `rejection` the row of a token is itself alone, which is
    what it was drawn from: what is proposed follows from the text without a coin.
    """

    def __init__(
        self, session: SessionParameters, known: Mapping[str, AcceptanceRate], least: float = 0.0
    ) -> None:
        """`known` says by name how good the sources are; tokens below `least` are kept back.

        Where there is no model none are: the orchestrator decides what is worth a row.
        """
        self._session = session
        self._known = known
        # Surely so many times as likely as the next best is what leaves all others so little.
        share = 1.0 - 1.0 / (1.0 + session.min_ratio)
        self._least = max(least, session.min_probability, share)
        self._text: Sequence[int] = []
        self._read_count = 0  # of the text, by the sources
        self._sources: list[tuple[AcceptanceRate, Scored]] = []
        self._begin()

    def _begin(self) -> None:
        self._read_count = 0
        self._sources = [(each, Scored(SOURCES[name]())) for name, each in self._known.items()]

    @property
    def has_unread(self) -> bool:
        """Whether there is text that was not read yet; nothing is proposed meanwhile."""
        return self._read_count < len(self._text)

    def follow(self, line: Sequence[int], end: int) -> None:
        """Take note of the committed text, which is a line up to `end`.

        One that does not continue what was read is read anew.
        """
        if not self._sources:
            return
        text = line[:end]
        if text[: self._read_count] != self._text[: self._read_count]:
            self._begin()
        self._text = text

    def read(self, count: int = READ_AT_ONCE) -> None:
        """Let the sources take in at most so many tokens of the text."""
        if not self._sources or not self.has_unread:
            return
        token_ids = self._text[self._read_count : self._read_count + count]
        for acceptance, source in self._sources:
            decided = source.append(token_ids)
            acceptance.note(decided.confidences, decided.accepted)
        self._read_count += len(token_ids)
        if not self.has_unread:
            for _, source in self._sources:
                source.propose(FRAME_TOKENS)  # so that every token is scored, drafted or not

    def propose(self, count: int, after: Sequence[int] = ()) -> list[Guess]:
        """Return at most `count` tokens after the text followed by `after`."""
        if self.has_unread:
            return []
        proposals = [
            self._likely(acceptance, source.propose(count, after))
            for acceptance, source in self._sources
        ]
        return [self._guess(*each) for each in max(proposals, key=_worth, default=[])]

    def _likely(self, acceptance: AcceptanceRate, proposal: Proposal) -> list[tuple[int, float]]:
        """Return the tokens with their chances, up to the first that is not likely enough."""
        likely = []
        for token_id, confidence in zip(proposal.token_ids, proposal.confidences, strict=True):
            chance = acceptance.chance(confidence)
            if chance < self._least or token_id >= self._session.vocabulary:
                break
            likely.append((token_id, chance))
        return likely

    def _guess(self, token_id: int, chance: float) -> Guess:
        session = self._session
        row = certain(token_id) if session.rule is Rule.REJECTION else None
        candidates = [(token_id, chance)] if session.candidate_count else ()
        return Guess(token_id, as_confidence(chance, session.rule), row, candidates)


def as_confidence(chance: float, rule: Rule) -> int:
    """Return a chance as the draft says it under a rule; under shared noise its odds are a lead."""
    if rule is not Rule.SHARED_NOISE:
        return int(255 * chance)
    if chance >= 1.0:
        return 255
    return min(255, max(0, int(32.0 * math.log(chance / (1.0 - chance))))) if chance > 0.0 else 0


def _worth(likely: Sequence[tuple[int, float]]) -> float:
    """Return how many tokens are expected to stand."""
    expected, survival = 0.0, 1.0
    for _, chance in likely:
        survival *= chance
        expected += survival
    return expected
