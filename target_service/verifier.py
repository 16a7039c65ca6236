"""Decodes a prefix with its draft in one pass and turns the logits into rows. Its one job."""

from __future__ import annotations

from collections.abc import Generator

from outrider.distribution import most_probable, softmax
from outrider.engine.cache import tokens_to_keep
from outrider.engine.job import Lease, Step
from outrider.engine.model import Model, Row, Sampler
from outrider.messages import Candidates, Form, Opening, Round, Rows, check_room, compose


class Verifier:
    """Verifies the rounds of one session, with its sampler and its noise."""

    def __init__(self, model: Model, opening: Opening) -> None:
        self._sampler: Sampler = model.sampler(opening.sampling)
        self._opening = opening

    def verify(self, lease: Lease, round_: Round) -> Generator[Step, list[Row], Rows]:
        """Return the rows after the prefix's last token and after each draft token.

        Raises PositionPastCache and ContextExhausted.
        """
        wanted = compose(lease.held, round_.prefix)
        first = len(wanted)
        wanted += round_.draft
        check_room(len(wanted), lease.capacity)
        kept = tokens_to_keep(lease.held, wanted, round_.row_count)
        lease.keep(kept)
        logits = yield Step(wanted[kept:], round_.row_count)
        return self._rows(logits, first, round_.form)

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
