"""The sources without a model beside one text: which of them to draft with, and how good each is.

All of them follow the text, and all that one proposes is compared with what comes, drafted or
not. So each is known without being tried. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from outrider.core.control import Control
from outrider.core.counts import SourceCounts
from outrider.core.draft_line import Line
from outrider.core.rates import AcceptanceRate
from outrider.drafters.source import NOTHING, READ_AT_ONCE, Proposal, Scored, Source
from outrider.messages import MAX_DRAFT

_HOPEFUL, _SOON = 0.5, 16
"""Where a token had such a chance, one is likely to come again within so many tokens: a target
that gathers its text for 100 ms would keep the place of it back."""


@dataclass(frozen=True, slots=True)
class LocalLine:
    """A line that sources without a model propose, and what it is worth."""

    line: Line
    chances: Sequence[float]  # of each token, if those before it stand
    count: int  # tokens that are best verified in one decode; at least 1
    worth: float  # in tokens, of that decode; as the controller's values


@dataclass(slots=True)
class _Drafter:
    """A source, and how good it is: in this text, and over all texts."""

    name: str
    scored: Scored
    acceptance: AcceptanceRate
    over_all: AcceptanceRate
    counts: SourceCounts

    def append(self, token_ids: Sequence[int]) -> None:
        decided = self.scored.append(token_ids)
        self.counts.decided += len(decided.confidences)
        self.counts.agreed += decided.accepted
        for acceptance in (self.acceptance, self.over_all):
            acceptance.note(decided.confidences, decided.accepted)

    def chances(self, proposal: Proposal) -> list[float]:
        return [self.acceptance.chance(each) for each in proposal.confidences]


class LocalDrafters:
    """The sources of one generation, by name."""

    def __init__(
        self,
        sources: Mapping[str, Source],
        control: Control,
        counts: Mapping[str, SourceCounts],
        prompt_count: int,
        clock: Callable[[], float],
    ) -> None:
        """`counts` has an entry for each source; `clock` returns seconds, for what each costs.

        The text begins with a prompt of `prompt_count` tokens, which not every source reads.
        """
        self._control = control
        self._prompt_count = prompt_count
        self._clock = clock
        self._drafters = [
            _Drafter(name, Scored(source), *control.acceptance_of(name), counts[name])
            for name, source in sources.items()
        ]
        self._read_count = 0  # tokens of the text that the sources have; it only grows
        self._known: tuple[int, int, LocalLine | None] = (-1, 0, None)  # at a length, up to a cap
        self._lines: Sequence[LocalLine] = ()  # those that the best of `_known` was chosen of
        self._hope_until = 0  # a length of the text up to which a line is likely to come

    def reads(self, committed: Sequence[int]) -> bool:
        """Let the sources read on; return whether they still have text to read.

        A long prompt is read in pieces, for the sake of others on the same event loop.
        """
        news = committed[self._read_count : self._read_count + READ_AT_ONCE]
        if not self._drafters or not news:
            return False
        written = news[max(0, self._prompt_count - self._read_count) :]
        self._read_count += len(news)
        for drafter in self._drafters:
            begin = self._clock()
            drafter.append(news if drafter.scored.source.reads_prompt else written)
            drafter.counts.seconds += self._clock() - begin
        return self._read_count < len(committed)

    def expects(self, length: int) -> bool:
        """Whether a line that pays is likely to come soon after a text of this length.

        Then what the target writes by itself is better heard of at once.
        """
        return length < self._hope_until or any(
            each.name == "prediction" and each.acceptance.mean >= _HOPEFUL
            for each in self._drafters
        )

    def best(self, committed: Sequence[int], cap: int) -> LocalLine | None:
        """Return the line of at most `cap` tokens that is worth most; None where there is none.

        Asked again of the same text it is the same.
        """
        while self.reads(committed) and len(committed) - self._read_count <= MAX_DRAFT:
            pass
        if self._read_count < len(committed):
            return None
        if self._known[:2] != (len(committed), cap):
            self._known = len(committed), cap, self._best(len(committed), cap)
        return self._known[2]

    def lines(self, length: int) -> Sequence[LocalLine]:
        """Return what each source proposes, once the best after a text of this length was asked."""
        return self._lines if self._known[0] == length else ()

    def _best(self, length: int, cap: int) -> LocalLine | None:
        proposals = [(each, self._propose(each, cap)) for each in self._drafters]
        lines = [
            self._weighed(drafter, proposal)
            for drafter, proposal in proposals
            if proposal.token_ids
        ]
        self._lines = sorted(lines, key=_worth, reverse=True)
        best = max(lines, key=_worth, default=None)
        if any(line.chances[0] >= _HOPEFUL for line in lines):
            self._hope_until = length + _SOON
        return best

    def _propose(self, drafter: _Drafter, cap: int) -> Proposal:
        begin = self._clock()
        proposal = drafter.scored.propose(cap) if cap > 0 else NOTHING
        drafter.counts.seconds += self._clock() - begin
        return proposal

    def _weighed(self, drafter: _Drafter, proposal: Proposal) -> LocalLine:
        chances, ids = drafter.chances(proposal), proposal.token_ids
        count, worth = self._control.best_of_line(chances)
        line = Line(list(ids), sources=[drafter.name] * len(ids))
        return LocalLine(line, chances, max(1, count), worth)


def _worth(line: LocalLine) -> float:
    return line.worth
