"""What the rows of one decode mean for the text, and what is reported of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from orchestrator.core import acceptance
from orchestrator.core.acceptance import DraftToken, Verdict
from orchestrator.core.actions import Report, TokenLogprob
from orchestrator.core.controller import Outcome
from orchestrator.core.estimates import ServiceTime
from orchestrator.core.plan import Plan
from orchestrator.core.target_progress import RoundInFlight
from outrider.errors import InvalidRequest
from outrider.messages import Answer, Form, Origin, Rows
from outrider.noise import Purpose, uniform
from outrider.sampling import distribution_of
from outrider.speculation import Verification

_VERIFY = {
    Verification.BLOCK: acceptance.block_verification,
    Verification.TOKEN: acceptance.token_verification,
}


def judge(
    plan: Plan, asked: RoundInFlight, draft: Sequence[int], rows: Rows, length: int
) -> Verdict:
    """Apply the acceptance rule to a draft after a text of `length` tokens."""
    if plan.form is Form.SAMPLED:
        return acceptance.match(draft, rows.sampled)
    opening, distributions = plan.opening, rows.distributions
    if plan.form is Form.LOGITS:
        distributions = [
            distribution_of(np.frombuffer(row, np.float32), opening.sampling) for row in rows.logits
        ]
    tokens = [DraftToken(i, q) for i, q in zip(draft, asked.rows, strict=True)]
    first = length + len(opening.dropped.token_ids)

    def coin(purpose: Purpose, index: int) -> float:
        return uniform(opening.seed, opening.choice, purpose, first, first + index)

    verify = _VERIFY[plan.control.speculation.verification]
    return verify(tokens, distributions, coin)


def news_of(asked: RoundInFlight, answer: Answer, committed: Sequence[int]) -> Answer | None:
    """Return the part of an answer that follows the text; None where it contradicts the text.

    A target that lost what it wrote by itself writes it again.

    Raises InvalidRequest for an answer that skips tokens, or of a draft that it was not sent.
    """
    known, draft = len(committed) - answer.position, asked.draft_of(answer)
    if known < 0 or len(draft) != answer.drafted:
        after = f"{answer.drafted} draft tokens at {answer.position}"
        raise InvalidRequest("position", f"{after}, with a text of {len(committed)}")
    if not known:
        return answer
    accepted = acceptance.match(draft, answer.rows.sampled[: len(draft) + 1]).accepted_count
    added = answer.rows.sampled[: accepted + 1 if draft else None]
    if list(added[:known]) != list(committed[answer.position :][: len(added)]):
        return None
    left = answer.rows[known:] if len(added) > known else Rows()
    return Answer(answer.round, len(committed), max(0, answer.drafted - known), left)


def origins_of(draft: Sequence[int], verdict: Verdict) -> list[Origin]:
    """Return where the tokens of a verdict come from."""
    if verdict.accepted_count < len(draft):
        last = Origin.CORRECTED
    else:
        last = Origin.BONUS if draft else Origin.PLAIN
    return [Origin.DRAFTED] * verdict.accepted_count + [last]


def outcome(
    asked: RoundInFlight,
    before: int,
    draft: Sequence[int],
    verdict: Verdict,
    committed: int,
    now: float,
    spent: ServiceTime,
    is_prompt: bool,
) -> Outcome:
    """Return what the controller learns of a decode that added `committed` tokens to `before`."""
    waited = asked.is_waited_for and not asked.is_answered
    return Outcome(
        now=now,
        length=before,
        sent=asked.sent_time if waited else None,
        confidences=asked.confidences[before - asked.length :] if draft else (),
        is_local=bool(asked.sources),
        offered=asked.offered if waited else len(draft),
        drafted=len(draft),
        accepted=verdict.accepted_count,
        committed=committed,
        spent=spent,
        draft_busy=asked.draft_busy,
        is_prompt=is_prompt,
    )


def report(
    asked: RoundInFlight, answer: Answer, draft: Sequence[int], verdict: Verdict, number: int
) -> Report:
    """Return what a caller may see of an answer, with the verdict on its last decode.

    That is the `number`th decode of the text.
    """
    count = verdict.accepted_count + 1
    first = answer.position - asked.length
    return Report(
        round=number,
        committed_count=answer.position,
        draft=draft,
        accepted_count=verdict.accepted_count,
        next_token_id=verdict.next_token_id,
        draft_end=asked.draft_end,
        sources=asked.sources[first : first + len(draft)] if draft else (),
        target_candidates=answer.rows.candidates[:count],
        draft_candidates=asked.candidates[first : first + count] if draft else (),
    )


def logprobs(plan: Plan, token_ids: Sequence[int], rows: Rows) -> list[TokenLogprob]:
    """Return what the rows say about the tokens that were added."""
    options = plan.opening.logprobs
    if options is None:
        return []
    listed = zip(token_ids, rows.logprobs, strict=False)
    return [
        TokenLogprob(dict(row).get(token_id, -np.inf), row[: options.top_count])
        for token_id, row in listed
    ]
