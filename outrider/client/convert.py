"""Values to protobuf messages and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from google.protobuf.duration_pb2 import Duration

from outrider import wire
from outrider.client.values import (
    INT32_MAX,
    Activity,
    Candidate,
    ControllerView,
    Conversation,
    Delta,
    EngineTime,
    Event,
    Finished,
    GenerateOptions,
    GenerationView,
    JobFailure,
    Logprob,
    Model,
    Peer,
    Piece,
    PlainCosts,
    Polled,
    Position,
    RefusedDraft,
    Report,
    Rollback,
    SourceStatistics,
    Started,
    Statistics,
    Status,
    Token,
    check_text,
)
from outrider.descriptions import rollback_kind, translation_level
from outrider.messages import DraftEnd, FinishReason, Origin, PeerState
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages


def write_request(prompt: str | Sequence[int | str], options: GenerateOptions) -> Any:
    """Return the message that asks for a generation."""
    request = messages.GenerateRequest(
        sampling=wire.write_sampling(options.sampling),
        seed=options.seed,
        token_limit=options.token_limit,
        stop_sequences=options.stop_sequences,
        speculative=_write_speculative(options),
        round_detail=messages.RoundDetail.Name(options.detail.value),
        json_schema=options.json_schema,
        ignore_eos=options.ignore_eos,
        finish_character=options.finish_character,
        logprobs=wire.write_logprob_options(options.logprobs),
        stop_token_ids=options.stop_token_ids,
        completion_count=options.completion_count,
        beam_count=options.beam_count if options.beam_count != 1 else None,
        prompt_logprobs=options.prompt_logprobs,
        parse_special=options.parse_special,
        overflow=messages.ContextOverflow(
            truncate_prompt=options.truncate_prompt,
            shift=options.shift,
            keep_token_count=options.keep_token_count,
        ),
        cache_salt=options.cache_salt,
        ignore_cached_prefix=options.ignore_cached_prefix,
        prediction=_write_prediction(options.prediction),
        conversation=_write_conversation(options.conversation),
    )
    for token, bias in options.logit_bias:
        named = {"text": token} if isinstance(token, str) else {"token_id": token}
        request.sampling.logit_biases.append(common.LogitBias(bias=bias, **named))
    if isinstance(prompt, str):
        request.prompt_text = check_text("prompt", prompt)
        return request
    ids = [part for part in prompt if not isinstance(part, str)]
    read = iter(wire.read_ids("prompt", ids, INT32_MAX))
    if len(ids) == len(prompt):
        request.prompt_tokens.token_ids.extend(read)
        return request
    for part in prompt:
        if isinstance(part, str):
            request.prompt_parts.parts.add(text=check_text("prompt", part))
        else:
            request.prompt_parts.parts.add(token_id=next(read))
    return request


def write_chat(conversation: Conversation) -> messages.ApplyTemplateRequest:
    """Return the message that asks to render a chat."""
    tools, variables = conversation.tools, conversation.variables
    return messages.ApplyTemplateRequest(
        messages_json=json.dumps(conversation.chat),
        tools_json=json.dumps(tools) if tools else "",
        variables_json=json.dumps(variables) if variables else "",
        add_generation_prompt=conversation.add_generation_prompt,
    )


def _write_conversation(conversation: Conversation | None) -> messages.Conversation | None:
    if conversation is None:
        return None
    chat, continuation = write_chat(conversation), conversation.continuation
    return messages.Conversation(chat=chat, continuation=continuation)


def _write_prediction(prediction: str | Sequence[int]) -> messages.Prediction | None:
    if not prediction:
        return None
    if isinstance(prediction, str):
        return messages.Prediction(text=check_text("prediction", prediction))
    ids = wire.read_ids("prediction", prediction, INT32_MAX)
    return messages.Prediction(tokens=messages.PromptTokens(token_ids=ids))


def _write_speculative(options: GenerateOptions) -> messages.SpeculativeOptions:
    known = options.speculation
    policy, verification = known.pop("policy", None), known.pop("verification", None)
    drafters, template = sorted(known.pop("drafters", ())), known.pop("draft_template", None)
    message = messages.SpeculativeOptions(**known, drafters=drafters)
    if policy is not None:
        message.policy = wire.POLICIES.write(policy)
    if verification is not None:
        message.verification = wire.VERIFICATIONS.write(verification)
    if template is not None:
        message.draft_template = wire.DRAFT_TEMPLATES.write(template)
    if options.acceptance is not None:
        message.acceptance = wire.RULES.write(options.acceptance)
    if options.rows is not None:
        message.row_form = wire.FORMS.write(options.rows)
    if options.rollback is not None:
        message.rollback = _ROLLBACKS.write(options.rollback)
    return message


def read_event(response: messages.GenerateResponse) -> Event:
    """Return the event of one message of a generation."""
    if response.HasField("started"):
        return read_started(response.started)
    if response.HasField("finished"):
        return _read_finished(response.finished, response.choice_index)
    return _read_delta(response.delta, response.choice_index)


def read_polled(response: messages.PollGenerationResponse) -> Polled:
    """Return what a job has brought."""
    failure = None
    if response.HasField("error"):
        failure = JobFailure(
            response.error.reason, response.error.message, dict(response.error.metadata)
        )
    events = tuple(read_event(each) for each in response.responses)
    return Polled(events, response.next_cursor, response.finished, failure)


def read_started(message: messages.GenerationStarted) -> Started:
    """Return how a prompt was read."""
    return _made(
        Started,
        message,
        acceptance=wire.RULES.read(message.acceptance_rule),
        sampling=wire.read_sampling(message.sampling),
        prompt_logprobs=tuple(_read_logprob(each) for each in message.prompt_logprobs),
    )


def _read_delta(message: messages.GenerationDelta, choice: int) -> Delta:
    return Delta(
        tuple(message.token_ids),
        tuple(_read_origin(value) for value in message.origins),
        tuple(
            Piece(piece.text, _read_origin(piece.origin), piece.control) for piece in message.pieces
        ),
        _read_report(message.report) if message.HasField("report") else None,
        tuple(_read_logprob(each) for each in message.logprobs),
        choice,
        tuple(_read_logprob(each) for each in message.prompt_logprobs),
        tuple(message.token_texts),
    )


def _read_logprob(message: messages.TokenLogprob) -> Logprob:
    return Logprob(
        message.log_probability,
        tuple((read_token(each.token), each.log_probability) for each in message.alternatives),
    )


def _read_report(message: messages.RoundReport) -> Report:
    return _made(
        Report,
        message,
        draft=tuple(read_token(token) for token in message.draft),
        target=read_token(message.target),
        draft_end=wire.DRAFT_ENDS.read(message.draft_end, DraftEnd.UNSPECIFIED),
        positions=tuple(
            Position(_read_candidates(position.target), _read_candidates(position.draft))
            for position in message.positions
        ),
    )


def read_token(message: messages.Token) -> Token:
    """Return a token."""
    return Token(message.token_id, message.text)


def _read_candidates(listed: Iterable[messages.Candidate]) -> tuple[Candidate, ...]:
    return tuple(Candidate(read_token(one.token), one.probability) for one in listed)


def _read_finished(message: messages.GenerationFinished, choice: int) -> Finished:
    reason = wire.FINISH_REASONS.read(message.reason, FinishReason.UNSPECIFIED)
    sources = tuple(_read_source(each) for each in message.statistics.sources)
    statistics = _made(Statistics, message.statistics, sources=sources)
    return Finished(reason, statistics, message.stop_sequence, message.truncated, choice)


def _read_source(message: messages.SourceStatistics) -> SourceStatistics:
    unset = {"seconds": None} if _is_unset(message, "duration") else {}
    return _made(SourceStatistics, message, **unset)


def _read_origin(value: int) -> Origin:
    return wire.ORIGINS.read(value, Origin.UNSPECIFIED)


def read_status(message: messages.GetStatusResponse) -> Status:
    """Return the state of an orchestrator."""
    peers = tuple(_read_peer(peer) for peer in message.peers)
    refused = tuple(_made(RefusedDraft, each) for each in message.refused_drafts)
    return _made(
        Status,
        message,
        version=message.service_version,
        peers=peers,
        refused_drafts=refused,
        generations=tuple(_made(GenerationView, each) for each in message.generations),
    )


def _read_peer(message: messages.PeerStatus) -> Peer:
    return _made(
        Peer,
        message,
        state=wire.PEER_STATES.read(message.state, PeerState.UNSPECIFIED),
        model=_read_model(message.model) if message.HasField("model") else None,
        level=translation_level(message),
        shared_mass=message.translation.shared_mass if message.HasField("translation") else 1.0,
    )


def _read_model(message: common.GetModelResponse) -> Model:
    return _made(
        Model,
        message,
        name=message.model_name,
        vocabulary_token_count=message.vocabulary.token_count,
        numerics_profile=_PROFILES.get(message.numerics_profile, "unspecified"),
        has_chat_template=bool(message.chat_template),
        identity=message.identity.hex(),
        rollback_capability=rollback_kind(message),
    )


Made = TypeVar("Made")


def _made(kind: type[Made], message: Any, **given: Any) -> Made:
    """Return a dataclass: what is given, and the other fields from a message's namesakes."""
    known: Any = kind
    names = [each.name for each in fields(known) if each.name not in given]
    return known(**given, **{name: _read_field(message, name) for name in names})  # type: ignore[no-any-return]


def _is_unset(message: Any, name: str) -> bool:
    return message.DESCRIPTOR.fields_by_name[name].has_presence and not message.HasField(name)


def _read_field(message: Any, name: str) -> Any:
    """Return a field; `x_seconds` is the message's `x_duration`. An unset optional is None."""
    known = message.DESCRIPTOR.fields_by_name
    if name not in known:
        duration: Duration = getattr(message, name.removesuffix("seconds") + "duration")
        return duration.ToNanoseconds() / 1e9
    if known[name].message_type is None and _is_unset(message, name):
        return None
    value = getattr(message, name)
    if isinstance(value, messages.EngineTime):
        return _made(EngineTime, value)
    if isinstance(value, common.PlainCosts):
        return _made(PlainCosts, value)
    if isinstance(value, common.OwnDraft):
        return value.model_name
    if isinstance(value, common.EngineActivity):
        return _made(Activity, value)
    if isinstance(value, messages.ControllerView):
        costs = tuple((cost.row_count, cost.milliseconds / 1e3) for cost in value.decode_costs)
        return _made(ControllerView, value, decode_costs=costs)
    return value if isinstance(value, int | float | str) else tuple(value)


# Values added later are not in here, and read as unspecified.
_ROLLBACKS = wire.EnumNumbers("rollback", Rollback, messages.RollbackMode, "ROLLBACK_MODE_")
_PROFILES = {common.NUMERICS_PROFILE_EXACT: "exact", common.NUMERICS_PROFILE_NATIVE: "native"}
