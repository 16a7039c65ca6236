"""Why a round's draft is as long as it is, for who watches. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.core.control import Control
from outrider.core.draft_progress import DraftProgress, DraftState
from outrider.messages import MAX_DRAFT, DraftEnd


def draft_end(
    control: Control,
    progress: DraftProgress,
    draft: Sequence[int],
    cap: int,
    wanted: int,
    remaining: int,
    is_first: bool,
) -> DraftEnd:
    """Return why a draft that does not end the text has just these tokens.

    At most `cap` may be verified, of `wanted` that the controller asked for, with `remaining`
    tokens to the limit; `is_first` says that the round reads the prompt.
    """
    if not control.speculation.drafts:
        return DraftEnd.OFF
    if progress.is_absent:
        return DraftEnd.ABSENT
    if progress.pause:
        return DraftEnd.PAUSED
    if is_first and not draft:
        return DraftEnd.PROMPT
    unhindered = control.draft_count(MAX_DRAFT)
    if len(draft) == cap < unhindered:
        return DraftEnd.TOKEN_LIMIT if remaining - 1 <= cap else DraftEnd.CONTEXT
    if draft and len(draft) >= unhindered:
        return DraftEnd.LENGTH
    if progress.state is DraftState.LATE:
        return DraftEnd.LATE
    if progress.state is DraftState.IDLE and control.may_doubt and wanted:
        return DraftEnd.DOUBT
    if progress.state is DraftState.IDLE and control.stop_below:
        return DraftEnd.ENOUGH
    return DraftEnd.SHORT if len(draft) < wanted else DraftEnd.ENOUGH
