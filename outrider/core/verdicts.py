"""What the rows of one decode mean for the text, and what is reported of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from outrider.core import acceptance
from outrider.core.acceptance import DraftToken, Verdict
from outrider.core.actions import Commit, Report, TokenLogprob
from outrider.core.decodes import Decode
from outrider.core.outcomes import Outcome
from outrider.core.plan import Plan
from outrider.core.target_progress import RoundInFlight
from outrider.distribution import distribution_of
from outrider.messages import DraftEnd, Form, Origin, Rows
from outrider.noise import Purpose, uniform
from outrider.speculation import Verification

_VERIFY = {
    Verification.BLOCK: acceptance.block_verification,
    Verification.TOKEN: acceptance.token_verification,
}


def judge(plan: Plan, asked: RoundInFlight, decode: Decode, length: int) -> Verdict:
    """Apply the acceptance rule to the draft of a decode after a text of `length` tokens.

    Of several decodes without a draft, it is the last one's.
    """
    draft, rows = decode.draft, decode.rows
    if decode.count > 1:
        return Verdict(0, rows.sampled[-1])
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


def tokens_of(decode: Decode, verdict: Verdict) -> Sequence[int]:
    """Return what a decode, or several without a draft, add to the text."""
    if decode.count > 1:
        return decode.rows.sampled
    return [*decode.draft[: verdict.accepted_count], verdict.next_token_id]


def origins_of(draft: Sequence[int], verdict: Verdict, count: int) -> list[Origin]:
    """Return where the first `count` tokens that a verdict adds come from."""
    if not draft:
        return [Origin.PLAIN] * count
    last = Origin.CORRECTED if verdict.accepted_count < len(draft) else Origin.BONUS
    return ([Origin.DRAFTED] * verdict.accepted_count + [last])[:count]


def outcome(
    asked: RoundInFlight,
    before: int,
    decode: Decode,
    verdict: Verdict,
    committed: int,
    is_prompt: bool,
) -> Outcome:
    """Return what the controller learns of a decode that added `committed` tokens to `before`.

    Or of several without a draft, which added one each.
    """
    waited, draft = asked.is_waited_for and not asked.is_answered, decode.draft
    confidences = asked.confidences[before - asked.length :] if draft else ()
    return Outcome(
        now=decode.time,
        length=before,
        sent=asked.sent_time if waited else None,
        confidences=decode.own.confidences if decode.is_own else confidences,
        is_local=bool(asked.sources),
        is_own=decode.is_own,
        asks_own=asked.round.own_draft_count > 0,
        drafted=len(draft),
        accepted=verdict.accepted_count,
        committed=committed,
        decodes=committed if decode.count > 1 else 1,
        spent=decode.spent,
        draft_busy=asked.draft_busy,
        is_prompt=is_prompt,
        beside=asked.beside if waited else 0,
    )


def reported(
    asked: RoundInFlight,
    added: Commit,
    length: int,
    decode: Decode,
    verdict: Verdict,
    number: int,
) -> list[Commit]:
    """Return what a decode added to a text of `length` tokens, with its report.

    Of several decodes without a draft, a commit for each. The last one is the `number`th.
    """
    if decode.count == 1:
        return [replace(added, report=_report(asked, length, decode, verdict, number))]
    commits, count = [], len(added.token_ids)
    for i, token_id in enumerate(added.token_ids):
        its = replace(decode, rows=decode.rows[i : i + 1], count=1)
        alone = Verdict(0, token_id)
        report = _report(asked, length + i, its, alone, number - count + 1 + i)
        logprobs = added.logprobs[i : i + 1]
        commits.append(Commit([token_id], added.origins[i : i + 1], report, logprobs))
    return commits


def _report(
    asked: RoundInFlight, length: int, decode: Decode, verdict: Verdict, number: int
) -> Report:
    """Return what a caller may see of the `number`th decode, after a text of `length` tokens."""
    count, draft = verdict.accepted_count + 1, decode.draft
    first, end = length - asked.length, asked.draft_end
    if decode.is_own:
        end = DraftEnd.LENGTH if len(draft) == asked.round.own_draft_count else DraftEnd.ENOUGH
    is_sent = draft and not decode.is_own
    return Report(
        round=number,
        committed_count=length,
        draft=draft,
        accepted_count=verdict.accepted_count,
        next_token_id=verdict.next_token_id,
        draft_end=end,
        sources=asked.sources[first : first + len(draft)] if is_sent else (),
        line_numbers=asked.line_numbers[first : first + len(draft)] if is_sent else (),
        target_candidates=decode.rows.candidates[:count],
        draft_candidates=asked.candidates[first : first + count] if is_sent else (),
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
