"""Decodes a prefix with its draft in one pass and turns the logits into rows. Its one job."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import takewhile
from operator import eq

from outrider.distribution import Distribution, logprobs, most_probable, softmax
from outrider.engine.job import Lease, Step
from outrider.engine.model import Model, Row, Sampler
from outrider.engine.sampler_state import SamplerTracker
from outrider.errors import RoundSuperseded
from outrider.messages import (
    Candidates,
    Form,
    Logprobs,
    Round,
    Rows,
    SessionParameters,
    check_room,
    compose,
)

_SCORED_AT_ONCE = 32


def _added(draft: Sequence[int], sampled: Sequence[int]) -> list[int]:
    """Return what a round of sampled ids adds to the text: the agreeing draft and one more."""
    accepted = takewhile(bool, map(eq, draft, sampled))
    count = sum(accepted)
    return list(sampled[: count + 1])


def score(
    lease: Lease, token_ids: list[int], top_count: int
) -> Generator[Step, list[Row], list[Logprobs]]:
    """Return what the model says of each next token of a text: one list less than tokens.

    Raises ContextExhausted.
    """
    check_room(len(token_ids), lease.capacity)
    lease.keep(0)
    scores: list[Logprobs] = []
    for first in range(0, len(token_ids), _SCORED_AT_ONCE):
        part = token_ids[first : first + _SCORED_AT_ONCE]
        rows = yield Step(part, len(part))
        followers = token_ids[first + 1 : first + 1 + len(part)]
        scores += [
            logprobs(softmax(row), top_count, [token_id])
            for row, token_id in zip(rows, followers, strict=False)
        ]
    return scores


class Verifier:
    """Verifies the rounds of one session, with its sampler and its noise.

    Raises InvalidRequest for sampling parameters that do not go with the model.
    """

    def __init__(self, model: Model, opening: SessionParameters) -> None:
        sampler = model.sampler(opening.sampling, opening.seed, opening.choice)
        self._tracker = SamplerTracker(sampler, opening.prompt_count)
        self._plain: Sampler = sampler  # of the basic stages where rows are logits
        self._opening = opening
        self._decided: list[int] = []
        self.cached_count: int | None = None
        """Tokens of the first round's prefix that were held; None before it."""

    def verify(self, lease: Lease, round_: Round) -> Generator[Step, list[Row], Rows]:
        """Return the rows after the prefix's last token and after each draft token.

        They are fewer where a shared decode left draft tokens out.

        Raises PositionPastCache and ContextExhausted, and RoundSuperseded for
        a round that was sent ahead and rests on what did not come.
        """
        wanted = compose(lease.held, round_.prefix)
        if round_.is_ahead:
            self._check_premise(wanted)
        prefix = list(wanted)
        wanted += round_.draft
        check_room(len(wanted), lease.capacity)
        missing = lease.reconcile(wanted, round_.row_count)
        if self.cached_count is None:
            self.cached_count = min(len(lease.held), len(prefix))
        gains = [survival / 255 for survival in round_.survivals]
        logits = yield Step(missing, round_.row_count, gains)
        rows = self._rows(logits, prefix, round_)
        self._decided = [*prefix, *_added(round_.draft, rows.sampled)]
        return rows

    def _check_premise(self, prefix: list[int]) -> None:
        """Spare the engine a round that rests on another answer than was given.

        Where ids are sampled here, that answer alone says what is accepted.
        """
        count = min(len(self._decided), len(prefix))
        if self._decided[:count] != prefix[:count]:
            raise RoundSuperseded("the answer before it is another than it assumes")

    def _rows(self, logits: list[Row], prefix: list[int], round_: Round) -> Rows:
        """Read rows off the logits, the first one after the prefix.

        Behind a draft token that a state forbids the last row is repeated:
        nobody looks at it.
        """
        if round_.form is Form.LOGITS:
            return Rows(
                logits=[row.tobytes() for row in logits],
                candidates=[self._candidates(row, self._plain.distribution(row)) for row in logits]
                if self._opening.candidate_count
                else (),
            )
        rows = list(self._decide(logits, prefix, round_))
        return Rows.join(rows + rows[-1:] * (len(logits) - len(rows)))

    def _decide(self, logits: list[Row], prefix: list[int], round_: Round) -> Iterator[Rows]:
        """Yield one row after the other, up to a draft token that cannot be written."""
        text = self._opening.whole(prefix)
        sampler = self._sampler(text, round_)
        seed, choice = self._opening.seed, self._opening.choice
        for i, row in enumerate(logits):
            distribution = sampler.distribution(row)
            token_id = distribution.race(seed, choice, len(text) + i)[0]
            is_last = i == len(logits) - 1
            drafted = token_id if is_last else round_.draft[i]
            continues = self._advance(sampler, distribution, token_id, drafted) and not is_last
            samples = round_.form is Form.SAMPLED
            yield Rows(
                sampled=[token_id] if samples else (),
                distributions=() if samples else [distribution],
                candidates=[self._candidates(row, distribution)]
                if self._opening.candidate_count
                else (),
                logprobs=self._logprobs(
                    row, distribution, [token_id] if samples else distribution.token_ids
                ),
                mirostat_mus=() if sampler.mirostat_mu is None else [sampler.mirostat_mu],
            )
            if not continues:
                return

    @staticmethod
    def _advance(sampler: Sampler, distribution: Distribution, token_id: int, drafted: int) -> bool:
        """Continue over a draft token, and return whether the state allows it."""
        if not sampler.has_state:
            return True
        if sampler.mirostat_mu is not None:
            sampler.accept(token_id)  # its state belongs to what it draws
            return drafted == token_id
        if distribution.probability(drafted) == 0:
            return False  # perhaps a grammar forbids it
        sampler.accept(drafted)
        return True

    def _sampler(self, text: Sequence[int], round_: Round) -> Sampler:
        """Return a sampler after the text that may be advanced over the draft."""
        sampler = self._tracker.at(text, len(text))
        if sampler.has_state:
            sampler = sampler.clone()
        if round_.mirostat_mu is not None:
            sampler.mirostat_mu = round_.mirostat_mu
        return sampler

    def _candidates(self, row: Row, distribution: Distribution) -> Candidates:
        greedy = self._opening.sampling.greedy
        return most_probable(
            softmax(row) if greedy else distribution, self._opening.candidate_count
        )

    def _logprobs(
        self, row: Row, distribution: Distribution, wanted: Iterable[int]
    ) -> Sequence[Logprobs]:
        options = self._opening.logprobs
        if options is None:
            return ()
        return [
            logprobs(
                distribution if options.after_sampling else softmax(row), options.top_count, wanted
            )
        ]
