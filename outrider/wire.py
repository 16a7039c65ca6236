"""Protobuf to values and back, checked on the way in. Pure.

Readers raise InvalidRequest with the field's name. What depends on the model
(vocabulary size, context) is checked where the model is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, Generic, TypeVar

import numpy as np

from outrider import wire_checks
from outrider.distribution import MAX_WEIGHT, Distribution
from outrider.errors import InvalidRequest
from outrider.messages import (
    ANY_MODEL,
    MAX_CANDIDATES,
    MAX_CONTINUED,
    MAX_DRAFT,
    MAX_GATHER_MS,
    MAX_LINES,
    MAX_PROMPT_BYTES,
    MAX_TOP_LOGPROBS,
    NO_OWN_TOKENS,
    NOTHING_DROPPED,
    SALT_BYTES,
    Answer,
    Candidates,
    DraftEnd,
    FinishReason,
    Form,
    Frame,
    LogprobOptions,
    Logprobs,
    ModelReference,
    Order,
    Origin,
    OwnTokens,
    PeerState,
    Round,
    Rows,
    Rule,
    SessionParameters,
    Span,
)
from outrider.sampling import NUMBERS, SamplingParameters, Stage
from outrider.speculation import DraftTemplate, Policy, Verification
from outrider.trees import read_parents, write_parents
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_service_pb2 as draft
from outrider.v1 import orchestrator_service_pb2 as orchestrator
from outrider.v1 import target_service_pb2 as target
from outrider.wire_checks import check_log_probabilities, read_text, within
from outrider.wire_runner_ups import read_runner_ups, write_runner_up

at_least, read_ids = wire_checks.at_least, wire_checks.read_ids
"""What others need of the checks beside the messages."""

SESSION_ID_BYTES = 16
IDENTITY_BYTES = 32  # of a model: a SHA-256
MAX_MODEL_NAME = 256
MAX_END_IDS = 1024
MAX_SUPPORT = 4096
"""Entries of one draft distribution at most."""

Member = TypeVar("Member", bound=Enum)


class EnumNumbers(Generic[Member]):
    """The members of an enum of ours and the numbers of their namesakes in a protobuf enum."""

    def __init__(self, field: str, ours: type[Member], theirs: Any, prefix: str) -> None:
        self._field = field
        self._numbers = {member: theirs.Value(prefix + member.name) for member in ours}
        self._members = {number: member for member, number in self._numbers.items()}

    def read(self, number: int, default: Member | None = None) -> Member:
        """Return a member; for an unknown number the default, or else raise InvalidRequest."""
        member = self._members.get(number, default)
        if member is None:
            raise InvalidRequest(self._field, f"unknown value {number}")
        return member

    def write(self, member: Member) -> Any:
        """Return the number of a member."""
        return self._numbers[member]


RULES = EnumNumbers("acceptance_rule", Rule, common.AcceptanceRule, "ACCEPTANCE_RULE_")
FORMS = EnumNumbers("row_form", Form, common.RowForm, "ROW_FORM_")
STAGES = EnumNumbers("samplers", Stage, common.Sampler, "SAMPLER_")
POLICIES = EnumNumbers("policy", Policy, orchestrator.DraftPolicy, "DRAFT_POLICY_")
VERIFICATIONS = EnumNumbers(
    "verification", Verification, orchestrator.Verification, "VERIFICATION_"
)
DRAFT_TEMPLATES = EnumNumbers(
    "draft_template", DraftTemplate, orchestrator.DraftTemplate, "DRAFT_TEMPLATE_"
)
ORIGINS = EnumNumbers("origin", Origin, orchestrator.TokenOrigin, "TOKEN_ORIGIN_")
DRAFT_ENDS = EnumNumbers("draft_end", DraftEnd, orchestrator.DraftEnd, "DRAFT_END_")
PEER_STATES = EnumNumbers("state", PeerState, orchestrator.PeerState, "PEER_STATE_")
FINISH_REASONS = EnumNumbers("reason", FinishReason, orchestrator.FinishReason, "FINISH_REASON_")


_SCALARS = (*NUMBERS, "penalize_newline")
"""The sampling parameters that are one value each, under one name here and on the wire."""


def read_sampling(message: common.SamplingParameters) -> SamplingParameters:
    """Return the parameters; unset fields take their defaults."""
    return replace(read_settings(message), logit_bias=tuple(map(_read_bias, message.logit_biases)))


def read_settings(message: common.SamplingParameters) -> SamplingParameters:
    """Return the parameters without their biases, which may name tokens by text."""
    known: dict[str, Any] = {n: getattr(message, n) for n in _SCALARS if message.HasField(n)}
    if message.HasField("dry_sequence_breakers"):
        known["dry_sequence_breakers"] = tuple(message.dry_sequence_breakers.texts)
    if message.samplers:
        known["stages"] = tuple(map(STAGES.read, message.samplers))
    return SamplingParameters(grammar=message.grammar, **known)


def _read_bias(message: common.LogitBias) -> tuple[int, float]:
    if message.WhichOneof("token") != "token_id":
        raise InvalidRequest("logit_biases", "each needs a token id here")
    return message.token_id, message.bias


def write_sampling(parameters: SamplingParameters) -> common.SamplingParameters:
    """Return the message with every field set."""
    return common.SamplingParameters(
        **{name: getattr(parameters, name) for name in _SCALARS},
        dry_sequence_breakers=common.SequenceBreakers(texts=parameters.dry_sequence_breakers),
        logit_biases=[
            common.LogitBias(token_id=token_id, bias=bias)
            for token_id, bias in parameters.logit_bias
        ],
        grammar=parameters.grammar,
        samplers=map(STAGES.write, parameters.stages),
    )


def read_logprob_options(message: common.LogprobOptions) -> LogprobOptions:
    """Return what to report about tokens."""
    count = message.top_count
    if not 0 <= count <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(
            "logprobs.top_count", f"must be in [0, {MAX_TOP_LOGPROBS}], not {count}"
        )
    return LogprobOptions(count, message.after_sampling)


def read_session_id(value: bytes) -> bytes:
    """Return a session id."""
    if len(value) != SESSION_ID_BYTES:
        raise InvalidRequest("session_id", f"must be {SESSION_ID_BYTES} bytes, not {len(value)}")
    return value


def read_salt(value: bytes) -> bytes:
    """Return a cache salt."""
    if len(value) not in (0, SALT_BYTES):
        raise InvalidRequest("cache_salt", f"must be {SALT_BYTES} bytes or none, not {len(value)}")
    return value


def read_opening(message: common.OpenSession) -> SessionParameters:
    """Return what a stream opens with."""
    return SessionParameters(
        session_id=read_session_id(message.session_id),
        attempt=at_least("attempt", message.attempt, 0),
        rule=RULES.read(message.acceptance_rule),
        sampling=read_sampling(message.sampling),
        seed=message.seed,
        choice=at_least("choice_index", message.choice_index, 0),
        prompt_count=at_least("prompt_token_count", message.prompt_token_count, 1),
        token_limit=at_least("token_limit", message.token_limit, 0),
        vocabulary=at_least("vocabulary_token_count", message.vocabulary_token_count, 1),
        candidate_count=_read_candidate_count(message.candidate_count),
        min_probability=within("draft_min_probability", message.draft_min_probability, 0, 1),
        min_ratio=within("draft_min_ratio", message.draft_min_ratio, 0, np.inf),
        logprobs=read_logprob_options(message.logprobs) if message.HasField("logprobs") else None,
        dropped=_read_dropped(message),
        model=read_reference(message.model),
        salt=read_salt(message.cache_salt),
        end_token_ids=_read_end_ids(message.end_token_ids),
        vocabulary_key=message.vocabulary_key,
        own_prompt=read_text("own_prompt", message.own_prompt, MAX_PROMPT_BYTES),
    )


def _read_end_ids(token_ids: Sequence[int]) -> frozenset[int]:
    if len(token_ids) > MAX_END_IDS:
        raise InvalidRequest("end_token_ids", f"at most {MAX_END_IDS}, not {len(token_ids)}")
    return frozenset(token_ids)


def read_reference(message: common.ModelReference) -> ModelReference:
    """Return which model is meant."""
    identity, name = message.identity, message.name
    if len(identity) not in (0, IDENTITY_BYTES):
        raise InvalidRequest("model.identity", f"{len(identity)} bytes, not {IDENTITY_BYTES}")
    if len(name) > MAX_MODEL_NAME:
        raise InvalidRequest("model.name", f"{len(name)} characters, at most {MAX_MODEL_NAME}")
    return ModelReference(identity, name) if identity else ANY_MODEL


def write_reference(model: ModelReference) -> common.ModelReference:
    """Return the message that says which model is meant."""
    return common.ModelReference(identity=model.identity, name=model.name)


def hosted_model(message: common.GetModelResponse) -> ModelReference:
    """Return the model that a service describes, its name cut to what a reference may have."""
    return ModelReference(message.identity, message.model_name[:MAX_MODEL_NAME])


def writer_of(started: orchestrator.GenerationStarted) -> ModelReference:
    """Return the model that writes a text."""
    return ModelReference(started.model_identity, started.model_name)


def _read_dropped(message: common.OpenSession) -> Span:
    if not message.HasField("dropped"):
        return NOTHING_DROPPED
    return read_span("dropped", message.dropped, max(1, message.vocabulary_token_count))


def _read_candidate_count(count: int) -> int:
    if not 0 <= count <= MAX_CANDIDATES:
        raise InvalidRequest("candidate_count", f"must be in [0, {MAX_CANDIDATES}], not {count}")
    return count


def write_opening(opening: SessionParameters) -> common.OpenSession:
    """Return the message that opens a stream."""
    return common.OpenSession(
        session_id=opening.session_id,
        attempt=opening.attempt,
        acceptance_rule=RULES.write(opening.rule),
        sampling=write_sampling(opening.sampling),
        seed=opening.seed,
        choice_index=opening.choice,
        prompt_token_count=opening.prompt_count,
        token_limit=opening.token_limit,
        vocabulary_token_count=opening.vocabulary,
        candidate_count=opening.candidate_count,
        draft_min_probability=opening.min_probability,
        draft_min_ratio=opening.min_ratio,
        logprobs=write_logprob_options(opening.logprobs),
        dropped=write_span(opening.dropped) if opening.dropped.token_ids else None,
        model=write_reference(opening.model),
        cache_salt=opening.salt,
        end_token_ids=sorted(opening.end_token_ids),
        vocabulary_key=opening.vocabulary_key,
        own_prompt=opening.own_prompt,
    )


def write_logprob_options(options: LogprobOptions | None) -> common.LogprobOptions | None:
    """Return the message, or None where nothing is to be reported."""
    if options is None:
        return None
    return common.LogprobOptions(top_count=options.top_count, after_sampling=options.after_sampling)


def read_tokenized(message: target.TokenizeResponse, count: int, size: int) -> list[list[int]]:
    """Return the ids of each of `count` texts, every id in [0, size)."""
    if len(message.texts) != count:
        raise InvalidRequest("texts", f"{len(message.texts)} were tokenized, not {count}")
    return [read_ids("texts", text.token_ids, size) for text in message.texts]


def read_span(field: str, message: common.TokenSpan, size: int) -> Span:
    """Return a span of ids in [0, size)."""
    position = at_least(f"{field}.position", message.position, 0)
    return Span(position, read_ids(f"{field}.token_ids", message.token_ids, size))


def write_span(span: Span) -> common.TokenSpan:
    """Return the message of a span."""
    return common.TokenSpan(position=span.position, token_ids=span.token_ids)


def read_order(message: draft.DraftOrder, size: int) -> Order:
    """Return an order of ids in [0, size)."""
    number = at_least("order", message.order, 1)
    span = read_span("committed", message.committed, size)
    until = at_least("draft_until", message.draft_until, 0)
    if span.end == 0:
        raise InvalidRequest("committed", "holds no token to continue")
    if until > span.end + MAX_DRAFT:
        raise InvalidRequest("draft_until", f"at most {MAX_DRAFT} past the committed text")
    frame_tokens = message.frame_token_count
    if not 0 <= frame_tokens <= MAX_DRAFT:
        raise InvalidRequest("frame_token_count", f"must be in [0, {MAX_DRAFT}]")
    stop_below = message.stop_below_confidence
    if not 0 <= stop_below <= 255:
        raise InvalidRequest("stop_below_confidence", "must be in [0, 255]")
    lines = message.parallel_line_count
    if not 0 <= lines <= MAX_LINES:
        raise InvalidRequest("parallel_line_count", f"must be in [0, {MAX_LINES}]")
    split = within("split_probability", message.split_probability, 0, 1)
    return Order(number, span, until, frame_tokens, stop_below, max(1, lines), split)


def write_order(order: Order) -> draft.DraftRequest:
    """Return the message of an order."""
    return draft.DraftRequest(
        order=draft.DraftOrder(
            order=order.number,
            committed=write_span(order.committed),
            draft_until=order.draft_until,
            frame_token_count=order.frame_tokens,
            stop_below_confidence=order.stop_below,
            parallel_line_count=order.line_count if order.line_count > 1 else 0,
            split_probability=order.split_chance,
        )
    )


def read_frame(message: draft.DraftResponse, size: int) -> Frame:
    """Return a frame of ids in [0, size)."""
    frame = message.frame
    if len(frame.token_ids) > MAX_DRAFT:  # of one order; a longer one is not even looked at
        raise InvalidRequest("token_ids", f"{len(frame.token_ids)}, at most {MAX_DRAFT}")
    if frame.distributions and len(frame.distributions) != len(frame.token_ids):
        raise InvalidRequest("distributions", "needs one for every token")
    return Frame(
        base=at_least("base", frame.base, 0),
        position=at_least("position", frame.position, frame.base),
        token_ids=read_ids("token_ids", frame.token_ids, size),
        confidences=frame.confidences,
        rows=[
            _read_draft_row(row, token_id, size)
            for row, token_id in zip(frame.distributions, frame.token_ids, strict=False)
        ],
        completed=message.completed_order,
        candidates=_read_candidates(frame.candidates, size, len(frame.token_ids)),
        line=at_least("line", frame.line, 0),
        runner_ups=read_runner_ups(frame, size),
    )


def write_frame(frame: Frame) -> draft.DraftResponse:
    """Return the message of a frame."""
    return draft.DraftResponse(
        frame=draft.DraftFrame(
            base=frame.base,
            position=frame.position,
            token_ids=frame.token_ids,
            confidences=frame.confidences,
            distributions=[
                draft.DraftDistribution(
                    token_ids=row.token_ids.tolist(), weights=row.weights.astype(int).tolist()
                )
                for row in frame.rows
            ],
            candidates=_write_candidates(frame.candidates),
            line=frame.line,
            runner_up_lines=map(write_runner_up, frame.runner_ups),
        ),
        completed_order=frame.completed,
    )


def _read_draft_row(message: draft.DraftDistribution, token_id: int, size: int) -> Distribution:
    """Return a row that cannot bias the rejection rule: anything odd about it is an error."""
    ids = read_ids("distributions.token_ids", message.token_ids, size)
    weights = list(message.weights)
    if not 0 < len(ids) == len(weights) <= MAX_SUPPORT or len(set(ids)) != len(ids):
        raise InvalidRequest("distributions", "needs distinct ids and as many weights")
    if min(weights) < 1 or max(weights) > MAX_WEIGHT or token_id not in ids:
        raise InvalidRequest("distributions", "a weight is out of range, or the token not listed")
    return Distribution(np.array(ids, np.int32), np.array(weights, np.float64))


def read_round(message: target.VerifyRound, size: int) -> Round:
    """Return a round of ids in [0, size)."""
    number = at_least("round", message.round, 1)
    prefix = read_span("prefix", message.prefix, size)
    if prefix.end == 0:
        raise InvalidRequest("prefix", "a verify needs at least one token to decode")
    if len(message.draft_token_ids) > MAX_DRAFT:
        raise InvalidRequest("draft_token_ids", f"at most {MAX_DRAFT} in one round")
    ids = read_ids("draft_token_ids", message.draft_token_ids, size)
    form, survivals = FORMS.read(message.row_form), message.draft_survivals
    if survivals and (len(survivals) != len(ids) or form is not Form.SAMPLED):
        raise InvalidRequest("draft_survivals", "one for every draft token, with SAMPLED only")
    mu = message.mirostat_mu if message.HasField("mirostat_mu") else None
    if mu is not None and not np.isfinite(mu):
        raise InvalidRequest("mirostat_mu", f"must be finite, not {mu}")
    continued, limit = message.continue_token_count, message.decode_draft_limit
    if not 0 <= continued <= MAX_CONTINUED or (continued and form is not Form.SAMPLED):
        raise InvalidRequest("continue_token_count", f"[0, {MAX_CONTINUED}], with SAMPLED only")
    if limit < 0 or (limit and form is not Form.SAMPLED):
        raise InvalidRequest("decode_draft_limit", "must be at least 0, with SAMPLED only")
    gather = message.gather_milliseconds
    if not 0 <= gather <= MAX_GATHER_MS:
        raise InvalidRequest("gather_milliseconds", f"[0, {MAX_GATHER_MS}], not {gather}")
    own = _read_own_draft(message, form)
    parents = read_parents(message.draft_parents, ids, form is Form.SAMPLED and not limit)
    settings = mu, continued, limit, gather, *own, parents
    return Round(number, prefix, ids, form, message.sent_ahead, survivals, *settings)


def _read_own_draft(message: target.VerifyRound, form: Form) -> tuple[int, int, int]:
    """Return how many tokens the own draft drafts, the least confidence, and plain decodes."""
    count, stop_below = message.own_draft_token_count, message.own_draft_stop_below
    if not 0 <= count <= MAX_DRAFT or (count and form is not Form.SAMPLED):
        raise InvalidRequest("own_draft_token_count", f"[0, {MAX_DRAFT}], with SAMPLED only")
    if not 0 <= stop_below <= 255:
        raise InvalidRequest("own_draft_stop_below", "must be in [0, 255]")
    return count, stop_below, at_least("plain_decode_count", message.plain_decode_count, 0)


def write_round(round_: Round) -> target.VerifyRequest:
    """Return the message of a round."""
    return target.VerifyRequest(
        round=target.VerifyRound(
            round=round_.number,
            prefix=write_span(round_.prefix),
            draft_token_ids=round_.draft,
            row_form=FORMS.write(round_.form),
            draft_survivals=round_.survivals,
            sent_ahead=round_.is_ahead,
            mirostat_mu=round_.mirostat_mu,
            continue_token_count=round_.continue_count,
            decode_draft_limit=round_.decode_limit,
            gather_milliseconds=round_.gather_ms,
            own_draft_token_count=round_.own_draft_count,
            own_draft_stop_below=round_.own_stop_below,
            plain_decode_count=round_.plain_count,
            draft_parents=write_parents(round_.parents),
        )
    )


def read_answer(message: target.VerifyResponse, size: int) -> Answer:
    """Return rows that say which text they follow, over ids in [0, size)."""
    rows = read_rows(message.rows, size)
    drafted = message.drafted_token_count
    if not 0 <= drafted < max(1, len(rows.sampled)) or len(rows) != len(rows.sampled):
        raise InvalidRequest("drafted_token_count", f"{drafted} of {len(rows.sampled)} rows")
    own = [_read_own_tokens(each, size) for each in message.own_drafts]
    count = drafted + sum(len(each.token_ids) + 1 for each in own)
    if own and (count != len(rows.sampled) or (drafted and own[0].token_ids)):
        raise InvalidRequest("own_drafts", f"are of {count} rows, not of {len(rows.sampled)}")
    position = at_least("position", message.position, 0)
    return Answer(message.round, position, drafted, rows, own)


def _read_own_tokens(message: target.OwnDraftTokens, size: int) -> OwnTokens:
    ids = read_ids("own_drafts.token_ids", message.token_ids, size)
    if len(ids) > MAX_DRAFT or len(message.confidences) != len(ids):
        raise InvalidRequest("own_drafts", f"{len(ids)} tokens, {len(message.confidences)} bytes")
    return OwnTokens(ids, message.confidences) if ids else NO_OWN_TOKENS


def write_answer(
    answer: Answer,
    answered: int,
    time: common.ServiceTime,
    times: Sequence[common.ServiceTime] = (),
) -> target.VerifyResponse:
    """Return the message of rows that say which text they follow; `answered` as in write_rows.

    `time` is of the whole answer, `times` of each decode where the target's own draft drafted.
    """
    return target.VerifyResponse(
        round=answer.round,
        rows=write_rows(answer.rows, 0, answered),
        service_time=time,
        position=answer.position,
        drafted_token_count=answer.drafted,
        own_drafts=[
            target.OwnDraftTokens(
                token_ids=own.token_ids, confidences=own.confidences, service_time=each
            )
            for own, each in zip(answer.own_drafts, times, strict=True)
        ],
    )


def read_rows(message: target.Rows, size: int) -> Rows:
    """Return rows over ids in [0, size)."""
    if any(len(row) != 4 * size for row in message.logits):
        raise InvalidRequest("logits", f"a row is not {4 * size} bytes")
    count = max(len(message.token_ids), len(message.distributions), len(message.logits))
    if message.mirostat_mus and len(message.mirostat_mus) != count:
        raise InvalidRequest("mirostat_mus", f"{len(message.mirostat_mus)} for {count} rows")
    return Rows(
        sampled=read_ids("token_ids", message.token_ids, size),
        distributions=[_read_target_row(row, size) for row in message.distributions],
        logits=list(message.logits),
        candidates=_read_candidates(message.candidates, size, count),
        logprobs=read_logprobs(message.logprobs, size, count),
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
        candidates=_write_candidates(rows.candidates),
        logprobs=[write_logprobs(each) for each in rows.logprobs],
        mirostat_mus=rows.mirostat_mus,
        answered_row_count=answered,
    )


def _read_candidates(lists: Sequence[common.Candidates], size: int, count: int) -> list[Candidates]:
    """Return what was reported for each of `count` tokens, or nothing at all."""
    if lists and len(lists) != count:
        raise InvalidRequest("candidates", f"{len(lists)} lists for {count} tokens")
    return [
        list(zip(read_ids("candidates", each.token_ids, size), each.probabilities, strict=False))
        for each in lists
    ]


def write_logprobs(listed: Logprobs) -> common.Logprobs:
    """Return the message of what was reported for one position."""
    return common.Logprobs(
        token_ids=[token_id for token_id, _ in listed],
        log_probabilities=[value for _, value in listed],
    )


def read_logprobs(lists: Sequence[common.Logprobs], size: int, count: int) -> list[Logprobs]:
    """Return what was reported for each of `count` rows, or nothing at all."""
    if lists and len(lists) != count:
        raise InvalidRequest("logprobs", f"{len(lists)} lists for {count} rows")
    for each in lists:
        if len(each.token_ids) != len(each.log_probabilities):
            raise InvalidRequest("logprobs", "needs as many values as ids")
        check_log_probabilities("logprobs", each.log_probabilities)
    return [
        list(zip(read_ids("logprobs", each.token_ids, size), each.log_probabilities, strict=True))
        for each in lists
    ]


def _write_candidates(lists: Sequence[Candidates]) -> list[common.Candidates]:
    return [
        common.Candidates(
            token_ids=[token_id for token_id, _ in each],
            probabilities=[probability for _, probability in each],
        )
        for each in lists
    ]


def _read_target_row(message: target.RowDistribution, size: int) -> Distribution:
    ids = read_ids("distributions.token_ids", message.token_ids, size)
    weights = np.array(message.weights, np.float64)
    if not 0 < len(ids) == len(weights):
        raise InvalidRequest("distributions", "needs as many weights as ids")
    if not (weights.min() >= 0.0 < weights.sum() < np.inf):
        raise InvalidRequest("distributions", "a weight is negative or not finite")
    return Distribution(np.array(ids, np.int32), weights)


def _write_target_row(row: Distribution) -> target.RowDistribution:
    return target.RowDistribution(token_ids=row.token_ids.tolist(), weights=row.weights.tolist())


def write_time(
    queue: float,
    decode: float,
    sample: float,
    rows: int = 0,
    attended: int = 0,
    steps: int | None = None,
    own_draft: float = 0.0,
    sessions: int = 0,
) -> common.ServiceTime:
    """Return the message of a service's own time, from seconds, and of its decodes and rows."""
    return common.ServiceTime(
        queue_us=int(1e6 * queue),
        decode_us=int(1e6 * decode),
        sample_us=int(1e6 * sample),
        decoded_row_count=rows,
        attended_token_count=attended,
        step_count=steps,
        own_draft_us=int(1e6 * own_draft),
        generating_session_count=sessions,
    )
