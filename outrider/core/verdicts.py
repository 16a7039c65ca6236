"""What a target's answer means for the text, decode by decode, and what is reported of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from outrider.core import acceptance
from outrider.core.acceptance import DraftToken, Verdict
from outrider.core.actions import Commit, Report, TokenLogprob
from outrider.core.outcomes import Outcome
from outrider.core.plan import Plan
from outrider.core.target_progress import RoundInFlight
from outrider.distribution import distribution_of
from outrider.errors import InvalidRequest
from outrider.messages import (
    NO_OWN_TOKENS,
    Answer,
    DraftEnd,
    Form,
    Origin,
    OwnTokens,
    Rows,
    ServiceTime,
)
from outrider.noise import Purpose, uniform
from outrider.speculation import MODEL, Verification


@dataclass(frozen=True, slots=True)
class Decode:
    """One decode of an answer, after the one before it; or several in a row without a draft."""

    draft: Sequence[int]  # tokens that it verified
    own: OwnTokens  # of the target's own draft; empty where they are the round's
    rows: Rows
    time: float  # when it was over, about
    spent: ServiceTime
    count: int = 1  # decodes; where there are more, each has one row
    own_source: str = MODEL  # the name of the target's own draft

    @property
    def is_own(self) -> bool:
        """Whether the target's own draft drafted for it."""
        return bool(self.own.token_ids)

    def sources(self, asked: RoundInFlight, length: int) -> Sequence[str]:
        """Return who proposed each draft token, after a text of `length` tokens."""
        count = len(self.draft)
        return [self.own_source] * count if self.is_own else asked.sources_of(length, count)


def decodes_of(
    asked: RoundInFlight, answer: Answer, begin: float, now: float, own_source: str = MODEL
) -> list[Decode]:
    """Return the decodes of an answer, which came between two times.

    `own_source` is the name of the target's own draft.

    What each took is known where the target's own draft drafted. Else it is their mean, which says
    nothing of those after a first one that had a draft or a prompt. They are taken together where
    none has a draft: a text without drafts then costs next to nothing for each of its tokens.
    """
    if not answer.own_drafts:
        return _without_own(asked, answer, begin, now)
    shares = [1e-6 + own.spent.decode + own.spent.draft for own in answer.own_drafts]
    times = [begin + (now - begin) * sum_ / sum(shares) for sum_ in accumulate(shares)]
    parts = answer.decodes
    drafts = [asked.draft_of(answer), *[()] * (len(parts) - 1)]
    return [
        Decode(own.token_ids or draft, own, rows, time, own.spent, own_source=own_source)
        for (own, rows), draft, time in zip(parts, drafts, times, strict=True)
    ]


def _without_own(asked: RoundInFlight, answer: Answer, begin: float, now: float) -> list[Decode]:
    """Return the first decode of an answer, and all those after it, which have no draft.

    All of them together where the target had continued by itself.
    """
    draft, count, rows = asked.draft_of(answer), answer.decode_count, answer.rows
    continued = not asked.finds_target_idle
    if count == 1 or (continued and not draft):
        return [Decode(draft, NO_OWN_TOKENS, rows, now, answer.spent.shared(count), count)]
    end, first_time = answer.drafted + 1, begin + (now - begin) / count
    return [
        Decode(draft, NO_OWN_TOKENS, rows[:end], first_time, answer.spent.shared(count)),
        Decode((), NO_OWN_TOKENS, rows[end:], now, ServiceTime(), count - 1),
    ]


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
    if answer.own_drafts:
        return _rest_of(_accepted_rows(asked, answer), answer, committed)
    accepted = acceptance.match(draft, answer.rows.sampled[: len(draft) + 1]).accepted_count
    added = answer.rows.sampled[: accepted + 1 if draft else None]
    if list(added[:known]) != list(committed[answer.position :][: len(added)]):
        return None
    left = answer.rows[known:] if len(added) > known else Rows()
    drafted = max(0, answer.drafted - known)
    return replace(answer, position=len(committed), drafted=drafted, rows=left)


def _accepted_rows(asked: RoundInFlight, answer: Answer) -> Rows:
    """Return the rows of the tokens that an answer of drafts of the target's own adds."""
    rows = []
    for each in decodes_of(asked, answer, 0.0, 0.0):
        accepted = acceptance.match(each.draft, each.rows.sampled).accepted_count
        rows.append(each.rows[: accepted + 1])
    return Rows.join(rows)


def _rest_of(rows: Rows, answer: Answer, committed: Sequence[int]) -> Answer | None:
    """Return what follows the text of these tokens, as if nothing had been drafted."""
    known = committed[answer.position :]
    if list(rows.sampled[: len(known)]) != list(known[: len(rows)]):
        return None
    rest = rows[len(known) :]
    return replace(answer, position=len(committed), drafted=0, rows=rest, own_drafts=())


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
    if asked.round.form is Form.SAMPLED:
        return acceptance.match(draft, rows.sampled)
    opening, distributions = plan.opening, rows.distributions
    if asked.round.form is Form.LOGITS:
        distributions = [
            distribution_of(np.frombuffer(row, np.float32), opening.sampling) for row in rows.logits
        ]
    tokens = [DraftToken(i, q) for i, q in zip(draft, asked.line.rows, strict=True)]
    first = length + len(opening.dropped.token_ids)

    def coin(purpose: Purpose, index: int) -> float:
        return uniform(opening.seed, opening.choice, purpose, first, first + index)

    rule = _VERIFY[plan.control.speculation.verification]
    return acceptance.verdict_of(rule, tokens, distributions, coin)


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
    waited, draft = asked.finds_target_idle, decode.draft
    confidences = asked.line.confidences[before - asked.length :] if draft else ()
    return Outcome(
        now=decode.time,
        length=before,
        sent=asked.sent_time if waited else None,
        confidences=decode.own.confidences if decode.is_own else confidences,
        is_local=bool(asked.line.sources),
        is_own=decode.is_own,
        asks_own=asked.round.own_draft.count > 0,
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
        end = DraftEnd.LENGTH if len(draft) == asked.round.own_draft.count else DraftEnd.ENOUGH
    is_sent, sources = draft and not decode.is_own, decode.sources(asked, length)
    return Report(
        round=number,
        committed_count=length,
        draft=draft,
        accepted_count=verdict.accepted_count,
        next_token_id=verdict.next_token_id,
        draft_end=end,
        sources=() if set(sources) <= {MODEL} else sources,
        line_numbers=asked.line.numbers[first : first + len(draft)] if is_sent else (),
        target_candidates=decode.rows.candidates[:count],
        draft_candidates=asked.line.candidates[first : first + count] if is_sent else (),
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
