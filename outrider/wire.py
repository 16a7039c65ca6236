"""Protobuf to values and back, checked on the way in: what several services say. Pure.

Readers raise InvalidRequest with the field's name. What depends on the model
(vocabulary size, context) is checked where the model is known. What a draft alone is
asked and sends is in `wire_drafts`, what a target is in `wire_rounds`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, Generic, TypeVar

import numpy as np

from outrider import wire_checks
from outrider.errors import InvalidRequest
from outrider.messages import (
    ANY_MODEL,
    MAX_CANDIDATES,
    MAX_PROMPT_BYTES,
    MAX_TOP_LOGPROBS,
    NOTHING_DROPPED,
    SALT_BYTES,
    Candidates,
    DraftEnd,
    FinishReason,
    Form,
    LogprobOptions,
    Logprobs,
    ModelReference,
    Origin,
    PeerState,
    Rule,
    ServiceTime,
    SessionParameters,
    Span,
)
from outrider.row_window import RowWindow, read_window
from outrider.sampling import NUMBERS, SamplingParameters, Stage
from outrider.speculation import DraftTemplate, Policy, Verification
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as orchestrator
from outrider.v1 import target_service_pb2 as target
from outrider.wire_checks import check_log_probabilities, read_text, within

at_least, read_ids = wire_checks.at_least, wire_checks.read_ids
"""What others need of the checks beside the messages."""

SESSION_ID_BYTES = 16  # bytes of a random session id
IDENTITY_BYTES = 32  # of a model: a SHA-256
MAX_MODEL_NAME = 256  # characters of a model's name
MAX_END_IDS = 1024  # tokens that end a text
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


_MOST_STEPS_AT_ONCE = 1 << 16
"""Decodes with rows for one session that a message may report: far more than it has tokens."""
_MOST_MICROSECONDS = 2**31 - 1  # us, 36 minutes; of a duration on the round, which is an int32
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


def read_hidden_rows(message: common.HiddenRows) -> RowWindow:
    """Return a target's hidden rows; who reads them checks their width."""
    return read_window("hidden_rows", message.position, message.rows)


def write_hidden_rows(window: RowWindow) -> common.HiddenRows | None:
    """Return the message of a target's hidden rows, or None where there are none."""
    return common.HiddenRows(position=window.position, rows=window.rows) if window.rows else None


def read_candidates(lists: Sequence[common.Candidates], size: int, count: int) -> list[Candidates]:
    """Return what was reported for each of `count` tokens, or nothing at all."""
    if lists and len(lists) != count:
        raise InvalidRequest("candidates", f"{len(lists)} lists for {count} tokens")
    _check_listed("candidates", lists, MAX_CANDIDATES)
    return [
        list(zip(read_ids("candidates", each.token_ids, size), each.probabilities, strict=False))
        for each in lists
    ]


def _check_listed(
    field: str, lists: Sequence[common.Candidates | common.Logprobs], most: int
) -> None:
    """Raise InvalidRequest for a list of more than `most` ids, before any of it is read."""
    for each in lists:
        if len(each.token_ids) > most:
            raise InvalidRequest(field, f"{len(each.token_ids)} for one position, at most {most}")


def write_logprobs(listed: Logprobs) -> common.Logprobs:
    """Return the message of what was reported for one position."""
    return common.Logprobs(
        token_ids=[token_id for token_id, _ in listed],
        log_probabilities=[value for _, value in listed],
    )


def read_logprobs(
    lists: Sequence[common.Logprobs], size: int, count: int, others: int = 1
) -> list[Logprobs]:
    """Return what was reported for each of `count` rows, or nothing at all.

    Each lists the most probable ids, and so many others at most: the token, or those of its row.
    """
    if lists and len(lists) != count:
        raise InvalidRequest("logprobs", f"{len(lists)} lists for {count} rows")
    _check_listed("logprobs", lists, MAX_TOP_LOGPROBS + others)
    for each in lists:
        if len(each.token_ids) != len(each.log_probabilities):
            raise InvalidRequest("logprobs", "needs as many values as ids")
        check_log_probabilities("logprobs", each.log_probabilities)
    return [
        list(zip(read_ids("logprobs", each.token_ids, size), each.log_probabilities, strict=True))
        for each in lists
    ]


def write_candidates(lists: Sequence[Candidates]) -> list[common.Candidates]:
    """Return the messages of what was reported for some tokens."""
    return [
        common.Candidates(
            token_ids=[token_id for token_id, _ in each],
            probabilities=[probability for _, probability in each],
        )
        for each in lists
    ]


def microseconds(seconds: float) -> int:
    """Return a service's own time as `ServiceTime` has it: 36 minutes at most."""
    return min(int(1e6 * seconds), _MOST_MICROSECONDS)


def write_time(spent: ServiceTime) -> common.ServiceTime:
    """Return the message of a service's own time."""
    return common.ServiceTime(
        queue_us=microseconds(spent.queue),
        decode_us=microseconds(spent.decode),
        sample_us=microseconds(spent.sample),
        decoded_row_count=spent.rows,
        attended_token_count=spent.attended,
        step_count=spent.steps,
        own_draft_us=microseconds(spent.draft),
        runner_up_us=microseconds(spent.runner_ups),
        generating_session_count=spent.sessions,
    )


def read_time(message: common.ServiceTime) -> ServiceTime:
    """Return a service's own time. Raises InvalidRequest for one that none can have taken."""
    spent = ServiceTime(
        decode=message.decode_us / 1e6,
        queue=message.queue_us / 1e6,
        sample=message.sample_us / 1e6,
        draft=message.own_draft_us / 1e6,
        runner_ups=message.runner_up_us / 1e6,
        rows=message.decoded_row_count,
        attended=message.attended_token_count,
        sessions=message.generating_session_count,
        steps=message.step_count if message.HasField("step_count") else None,
    )
    seconds = spent.decode, spent.queue, spent.sample, spent.draft, spent.runner_ups
    if min(*seconds, spent.rows, spent.attended, spent.sessions) < 0:
        raise InvalidRequest("service_time", "must be at least 0")
    within("step_count", message.step_count, 0, _MOST_STEPS_AT_ONCE)
    return spent
