"""Decodes a prefix with its draft in one pass and turns the logits into rows. Its one job."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import takewhile
from operator import eq

from outrider.distribution import most_probable, softmax
from outrider.engine.cache import tokens_to_keep
from outrider.engine.job import Lease, Step
from outrider.engine.model import Model, Row, Sampler
from outrider.errors import RoundSuperseded
from outrider.messages import Candidates, Form, Opening, Round, Rows, check_room, compose


def _added(draft: Sequence[int], sampled: Sequence[int]) -> list[int]:
    """Return what a round of sampled ids adds to the text: the agreeing draft and one more."""
    accepted = takewhile(bool, map(eq, draft, sampled))
    count = sum(accepted)
    return list(sampled[: count + 1])


class Verifier:
    """Verifies the rounds of one session, with its sampler and its noise."""

    def __init__(self, model: Model, opening: Opening) -> None:
        self._sampler: Sampler = model.sampler(opening.sampling)
        self._opening = opening
        self._decided: list[int] = []

    def verify(self, lease: Lease, round_: Round) -> Generator[Step, list[Row], Rows]:
        """Return the rows after the prefix's last token and after each draft token.

        They are fewer where a shared decode left draft tokens out.

        Raises PositionPastCache and ContextExhausted, and RoundSuperseded for
        a round that was sent ahead and rests on what did not come.
        """
        wanted = compose(lease.held, round_.prefix)
        if round_.is_ahead:
            self._check_premise(wanted)
        first = len(wanted)
        wanted += round_.draft
        check_room(len(wanted), lease.capacity)
        kept = tokens_to_keep(lease.held, wanted, round_.row_count)
        lease.keep(kept)
        gains = [survival / 255 for survival in round_.survivals]
        logits = yield Step(wanted[kept:], round_.row_count, gains)
        rows = self._rows(logits, first, round_.form)
        self._decided = [*wanted[:first], *_added(round_.draft, rows.sampled)]
        return rows

    def _check_premise(self, prefix: list[int]) -> None:
        """Spare the engine a round that rests on another answer than was given.

        Where ids are sampled here, that answer alone says what is accepted.
        """
        count = min(len(self._decided), len(prefix))
        if self._decided[:count] != prefix[:count]:
            raise RoundSuperseded("the answer before it is another than it assumes")

    def _rows(self, logits: list[Row], first: int, form: Form) -> Rows:
        """Read rows off the logits; the first one decides about position `first`."""
        candidates = [self._candidates(row) for row in logits] if self._asks_for_more else ()
        if form is Form.LOGITS:
            return Rows(logits=[row.tobytes() for row in logits], candidates=candidates)
        laws = [self._sampler.law(row) for row in logits]
        if form is Form.DISTRIBUTIONS:
            return Rows(distributions=laws, candidates=candidates)
        seed, choice = self._opening.seed, self._opening.choice
        sampled = [law.race(seed, choice, first + i)[0] for i, law in enumerate(laws)]
        return Rows(sampled=sampled, candidates=candidates)

    @property
    def _asks_for_more(self) -> bool:
        return self._opening.candidate_count > 0

    def _candidates(self, row: Row) -> Candidates:
        greedy = self._opening.sampling.greedy
        law = softmax(row) if greedy else self._sampler.law(row)
        return most_probable(law, self._opening.candidate_count)
