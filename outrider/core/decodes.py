"""What a target answered, decode by decode. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from outrider.core import acceptance
from outrider.core.target_progress import RoundInFlight
from outrider.errors import InvalidRequest
from outrider.messages import NO_OWN_TOKENS, Answer, OwnTokens, Rows, ServiceTime
from outrider.speculation import MODEL


@dataclass(frozen=True, slots=True)
class Decode:
    """One decode of an answer, after the one before it; or several in a row without a draft."""

    draft: Sequence[int]  # tokens that it verified
    own: OwnTokens  # of the target's own draft; empty where they are the round's
    rows: Rows
    time: float  # when it was over, about
    spent: ServiceTime
    count: int = 1  # decodes; where there are more, each has one row

    @property
    def is_own(self) -> bool:
        """Whether the target's own draft drafted for it."""
        return bool(self.own.token_ids)

    def sources(self, asked: RoundInFlight, length: int) -> Sequence[str]:
        """Return who proposed each draft token, after a text of `length` tokens."""
        count = len(self.draft)
        return [MODEL] * count if self.is_own else asked.sources_of(length, count)


def decodes_of(asked: RoundInFlight, answer: Answer, begin: float, now: float) -> list[Decode]:
    """Return the decodes of an answer, which came between two times.

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
        Decode(own.token_ids or draft, own, rows, time, own.spent)
        for (own, rows), draft, time in zip(parts, drafts, times, strict=True)
    ]


def _without_own(asked: RoundInFlight, answer: Answer, begin: float, now: float) -> list[Decode]:
    """Return the first decode of an answer, and all those after it, which have no draft.

    All of them together where the target had continued by itself.
    """
    draft, count, rows = asked.draft_of(answer), answer.decode_count, answer.rows
    continued = asked.is_answered or not asked.is_waited_for
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
