"""Rounds and rows: what a target is asked and answers, checked on the way in. Pure.

Readers raise InvalidRequest with the field's name.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.distribution import Distribution
from outrider.errors import InvalidRequest
from outrider.messages import (
    MAX_CONTINUED,
    MAX_DRAFT,
    Answer,
    Form,
    OwnDraftOrder,
    OwnTokens,
    Round,
    Rows,
)
from outrider.trees import read_parents, write_parents
from outrider.v1 import target_service_pb2 as target
from outrider.wire import (
    FORMS,
    read_candidates,
    read_hidden_rows,
    read_logprobs,
    read_span,
    read_time,
    write_candidates,
    write_hidden_rows,
    write_logprobs,
    write_span,
    write_time,
)
from outrider.wire_checks import at_least, read_ids

_MOST_ROWS = (MAX_CONTINUED + 1) * (MAX_DRAFT + 1)
"""Of one answer: each token that a round lets a target write may be that of a whole decode."""


def read_round(message: target.VerifyRound, size: int) -> Round:
    """Return a round of ids in [0, size)."""
    number = at_least("round", message.round, 1)
    prefix = read_span("prefix", message.prefix, size)
    if prefix.end == 0:
        raise InvalidRequest("prefix", "a verify needs at least one token to decode")
    form, mu = FORMS.read(message.row_form), None
    if message.HasField("mirostat_mu"):
        mu = message.mirostat_mu
        if not np.isfinite(mu):
            raise InvalidRequest("mirostat_mu", f"must be finite, not {mu}")
    draft, continuation = message.draft, message.continuation
    ids, parents = _read_draft(draft, size, form)
    _check_continuation(continuation, form)
    return Round(
        number,
        prefix,
        ids,
        form,
        is_ahead=message.sent_ahead,
        survivals=draft.survivals,
        mirostat_mu=mu,
        continue_count=continuation.token_count,
        decode_limit=draft.decode_token_limit,
        gathers=continuation.gathers,
        own_draft=OwnDraftOrder(
            continuation.own_draft_token_count, continuation.own_draft_stop_below
        ),
        parents=parents,
        wants_rows=message.wants_hidden_rows,
    )


def _read_draft(
    message: target.RoundDraft, size: int, form: Form
) -> tuple[list[int], Sequence[int]]:
    """Return the draft tokens, and which of them each follows; nothing where they are a chain."""
    if len(message.token_ids) > MAX_DRAFT:
        raise InvalidRequest("draft.token_ids", f"at most {MAX_DRAFT} in one round")
    ids = read_ids("draft.token_ids", message.token_ids, size)
    survivals, limit = message.survivals, message.decode_token_limit
    if survivals and (len(survivals) != len(ids) or form is not Form.SAMPLED):
        raise InvalidRequest("draft.survivals", "one for every draft token, with SAMPLED only")
    if limit < 0 or (limit and form is not Form.SAMPLED):
        raise InvalidRequest("draft.decode_token_limit", "must be at least 0, with SAMPLED only")
    return ids, read_parents(message.parents, ids, form is Form.SAMPLED and not limit)


def _check_continuation(message: target.Continuation, form: Form) -> None:
    """Raise InvalidRequest for what no target may write by itself."""
    count, own = message.token_count, message.own_draft_token_count
    if not 0 <= count <= MAX_CONTINUED or (count and form is not Form.SAMPLED):
        raise InvalidRequest("continuation.token_count", f"[0, {MAX_CONTINUED}], SAMPLED only")
    if not 0 <= own <= MAX_DRAFT or (own and form is not Form.SAMPLED):
        field = "continuation.own_draft_token_count"
        raise InvalidRequest(field, f"[0, {MAX_DRAFT}], with SAMPLED only")
    if not 0 <= message.own_draft_stop_below <= 255:
        raise InvalidRequest("continuation.own_draft_stop_below", "must be in [0, 255]")


def write_round(round_: Round) -> target.VerifyRequest:
    """Return the message of a round."""
    message = target.VerifyRound(
        round=round_.number,
        prefix=write_span(round_.prefix),
        row_form=FORMS.write(round_.form),
        sent_ahead=round_.is_ahead,
        mirostat_mu=round_.mirostat_mu,
        wants_hidden_rows=round_.wants_rows,
    )
    if round_.draft:
        message.draft.MergeFrom(
            target.RoundDraft(
                token_ids=round_.draft,
                survivals=round_.survivals,
                parents=write_parents(round_.parents),
                decode_token_limit=round_.decode_limit,
            )
        )
    if round_.continue_count:
        message.continuation.MergeFrom(
            target.Continuation(
                token_count=round_.continue_count,
                gathers=round_.gathers,
                own_draft_token_count=round_.own_draft.count,
                own_draft_stop_below=round_.own_draft.stop_below,
            )
        )
    return target.VerifyRequest(round=message)


def read_answer(message: target.VerifyResponse, size: int) -> Answer:
    """Return rows that say which text they follow, over ids in [0, size)."""
    rows = read_rows(message.rows, size)
    drafted = message.drafted_token_count
    if not 0 <= drafted < max(1, len(rows.sampled)) or len(rows) != len(rows.sampled):
        raise InvalidRequest("drafted_token_count", f"{drafted} of {len(rows.sampled)} rows")
    if len(message.own_drafts) > len(rows):
        raise InvalidRequest("own_drafts", f"{len(message.own_drafts)} of {len(rows)} rows")
    own = [_read_own_tokens(each, size) for each in message.own_drafts]
    count = drafted + sum(len(each.token_ids) + 1 for each in own)
    if own and (count != len(rows.sampled) or (drafted and own[0].token_ids)):
        raise InvalidRequest("own_drafts", f"are of {count} rows, not of {len(rows.sampled)}")
    position = at_least("position", message.position, 0)
    hidden, spent = read_hidden_rows(message.hidden_rows), read_time(message.service_time)
    return Answer(message.round, position, drafted, rows, own, spent, hidden)


def _read_own_tokens(message: target.OwnDraftTokens, size: int) -> OwnTokens:
    count = len(message.token_ids)
    if count > MAX_DRAFT or len(message.confidences) != count:
        raise InvalidRequest("own_drafts", f"{count} tokens, {len(message.confidences)} bytes")
    ids = read_ids("own_drafts.token_ids", message.token_ids, size)
    return OwnTokens(ids, message.confidences, read_time(message.service_time))


def write_answer(answer: Answer, answered: int) -> target.VerifyResponse:
    """Return the message of rows that say which text they follow; `answered` as in write_rows."""
    return target.VerifyResponse(
        round=answer.round,
        rows=write_rows(answer.rows, 0, answered),
        service_time=write_time(answer.spent),
        position=answer.position,
        drafted_token_count=answer.drafted,
        own_drafts=[
            target.OwnDraftTokens(
                token_ids=own.token_ids,
                confidences=own.confidences,
                service_time=write_time(own.spent),
            )
            for own in answer.own_drafts
        ],
        hidden_rows=write_hidden_rows(answer.hidden),
    )


def read_rows(message: target.Rows, size: int) -> Rows:
    """Return rows over ids in [0, size)."""
    if any(len(row) != 4 * size for row in message.logits):
        raise InvalidRequest("logits", f"a row is not {4 * size} bytes")
    count = max(len(message.token_ids), len(message.distributions), len(message.logits))
    if count > _MOST_ROWS:
        raise InvalidRequest("rows", f"{count}, at most {_MOST_ROWS}")
    if message.mirostat_mus and len(message.mirostat_mus) != count:
        raise InvalidRequest("mirostat_mus", f"{len(message.mirostat_mus)} for {count} rows")
    others = max((len(row.token_ids) for row in message.distributions), default=1)
    return Rows(
        sampled=read_ids("token_ids", message.token_ids, size),
        distributions=[_read_target_row(row, size) for row in message.distributions],
        logits=list(message.logits),
        candidates=read_candidates(message.candidates, size, count),
        logprobs=read_logprobs(message.logprobs, size, count, others),
        mirostat_mus=list(message.mirostat_mus),
    )


def write_rows(rows: Rows, first: int, answered: int = 0) -> target.Rows:
    """Return the message of rows, the first of them with index `first`.

    `answered` is how many there are in all, if that is fewer than asked for.
    """
    return target.Rows(
        first_row=first,
        token_ids=rows.sampled,
        distributions=[_write_target_row(row) for row in rows.distributions],
        logits=rows.logits,
        candidates=write_candidates(rows.candidates),
        logprobs=[write_logprobs(each) for each in rows.logprobs],
        mirostat_mus=rows.mirostat_mus,
        answered_row_count=answered,
    )


def _read_target_row(message: target.RowDistribution, size: int) -> Distribution:
    if len(message.token_ids) > size:
        raise InvalidRequest("distributions", f"{len(message.token_ids)} ids of {size} tokens")
    ids = read_ids("distributions.token_ids", message.token_ids, size)
    weights = np.array(message.weights, np.float64)
    if not 0 < len(ids) == len(weights):
        raise InvalidRequest("distributions", "needs as many weights as ids")
    if not (weights.min() >= 0.0 < weights.sum() < np.inf):
        raise InvalidRequest("distributions", "a weight is negative or not finite")
    return Distribution(np.array(ids, np.int32), weights)


def _write_target_row(row: Distribution) -> target.RowDistribution:
    return target.RowDistribution(token_ids=row.token_ids.tolist(), weights=row.weights.tolist())
