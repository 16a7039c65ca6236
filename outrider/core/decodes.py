"""What a target answered, decode by decode. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from outrider.core import acceptance
from outrider.core.outcomes import UNREPORTED, ServiceTime
from outrider.core.target_progress import RoundInFlight
from outrider.errors import InvalidRequest
from outrider.messages import NO_OWN_TOKENS, Answer, OwnTokens, Rows
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


def decodes_of(
    asked: RoundInFlight,
    answer: Answer,
    begin: float,
    now: float,
    spent: ServiceTime,
    each: Sequence[ServiceTime],
) -> list[Decode]:
    """Return the decodes of an answer, which came between two times.

    `each` is what every decode took, where the target reports that. Else it is their mean, which
    says nothing of those after a first one that had a draft or a prompt. They are taken together
    where none has a draft: a text without drafts then costs next to nothing for each of its tokens.
    """
    if not answer.own_drafts:
        return _without_own(asked, answer, begin, now, spent)
    parts, draft = answer.decodes, asked.draft_of(answer)
    if len(each) != len(parts):
        each = [spent.shared(len(parts)), *[UNREPORTED] * (len(parts) - 1)]
        shares = [1.0] * len(parts)
    else:
        shares = [1e-6 + time.decode + time.draft for time in each]
    times = [begin + (now - begin) * sum_ / sum(shares) for sum_ in accumulate(shares)]
    drafts = [draft, *[()] * (len(parts) - 1)]
    return [
        Decode(own.token_ids or its_draft, own, rows, time, its_own)
        for (own, rows), its_draft, time, its_own in zip(parts, drafts, times, each, strict=True)
    ]


def _without_own(
    asked: RoundInFlight, answer: Answer, begin: float, now: float, spent: ServiceTime
) -> list[Decode]:
    """Return the first decode of an answer, and all those after it, which have no draft.

    All of them together where the target had continued by itself.
    """
    draft, count, rows = asked.draft_of(answer), answer.decode_count, answer.rows
    continued = asked.is_answered or not asked.is_waited_for
    if count == 1 or (continued and not draft):
        return [Decode(draft, NO_OWN_TOKENS, rows, now, spent.shared(count), count)]
    end, first_time = answer.drafted + 1, begin + (now - begin) / count
    return [
        Decode(draft, NO_OWN_TOKENS, rows[:end], first_time, spent.shared(count)),
        Decode((), NO_OWN_TOKENS, rows[end:], now, UNREPORTED, count - 1),
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
    return Answer(answer.round, len(committed), max(0, answer.drafted - known), left)


def _accepted_rows(asked: RoundInFlight, answer: Answer) -> Rows:
    """Return the rows of the tokens that an answer of drafts of the target's own adds."""
    rows = []
    for each in decodes_of(asked, answer, 0.0, 0.0, UNREPORTED, ()):
        accepted = acceptance.match(each.draft, each.rows.sampled).accepted_count
        rows.append(each.rows[: accepted + 1])
    return Rows.join(rows)


def _rest_of(rows: Rows, answer: Answer, committed: Sequence[int]) -> Answer | None:
    """Return what follows the text of these tokens, as if nothing had been drafted."""
    known = committed[answer.position :]
    if list(rows.sampled[: len(known)]) != list(known[: len(rows)]):
        return None
    return Answer(answer.round, len(committed), 0, rows[len(known) :])
