"""Requests to protobuf messages and back, checked on the way in. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from outrider import wire
from outrider.errors import InvalidRequest
from outrider.request import INT32_MAX, Conversation, Detail, Request, RollbackMode
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages

_PLAIN = (
    *("json_schema", "ignore_eos", "finish_character", "prompt_logprobs", "parse_special"),
    *("cache_salt", "ignore_cached_prefix", "running_statistics"),
)
"""Fields that are one value of one name here and in the message."""

_OPTIONAL = ("seed", "token_limit", "completion_count", "beam_count")
"""The same; unset they have the value's own default."""

_REPEATED = ("stop_sequences", "stop_token_ids", "control_token_names")

_SPECULATIVE = ("enabled", "n_max", "n_min", "p_min", "run_ahead", "n_parallel", "p_split")

_ROLLBACKS = wire.EnumNumbers("rollback", RollbackMode, messages.RollbackMode, "ROLLBACK_MODE_")

_ENUMS: dict[str, wire.EnumNumbers[Any]] = {
    "policy": wire.POLICIES,
    "verification": wire.VERIFICATIONS,
    "draft_template": wire.DRAFT_TEMPLATES,
    "acceptance": wire.RULES,
    "row_form": wire.FORMS,
    "rollback": _ROLLBACKS,
}
"""Fields of SpeculativeOptions that are 0 where nothing is said."""

_OVERFLOW = ("truncate_prompt", "shift", "keep_token_count")


def write_request(request: Request) -> messages.GenerateRequest:
    """Return the message that asks for a generation. Raises InvalidRequest for an odd token id."""
    message = messages.GenerateRequest(
        **{name: getattr(request, name) for name in (*_PLAIN, *_OPTIONAL, *_REPEATED)},
        sampling=wire.write_sampling(request.sampling),
        speculative=messages.SpeculativeOptions(
            **{name: getattr(request, name) for name in _SPECULATIVE},
            **{
                name: numbers.write(member)
                for name, numbers in _ENUMS.items()
                if (member := getattr(request, name)) is not None
            },
            drafters=sorted(request.drafters or ()),
        ),
        overflow=messages.ContextOverflow(**{name: getattr(request, name) for name in _OVERFLOW}),
        round_detail=messages.RoundDetail.Name(request.detail.value),
        logprobs=wire.write_logprob_options(request.logprobs),
        prediction=_write_prediction(request.prediction),
        conversation=_write_conversation(request.conversation),
    )
    if request.model.identity:
        message.model.CopyFrom(wire.write_reference(request.model))
    for token, bias in request.logit_bias:
        named: dict[str, Any] = {"text" if isinstance(token, str) else "token_id": token}
        message.sampling.logit_biases.add(bias=bias, **named)
    _write_prompt(message, request.prompt)
    return message


def _write_prompt(message: messages.GenerateRequest, prompt: str | Sequence[int | str]) -> None:
    if isinstance(prompt, str):
        message.prompt_text = prompt
        return
    ids = [part for part in prompt if not isinstance(part, str)]
    wire.read_ids("prompt", ids, INT32_MAX)
    if len(ids) == len(prompt):
        message.prompt_tokens.token_ids.extend(ids)
        message.prompt_tokens.SetInParent()
    else:
        message.prompt_parts.CopyFrom(write_parts(prompt))


def write_parts(parts: Sequence[int | str]) -> messages.PromptParts:
    """Return a prompt of texts and ids in turn."""
    return messages.PromptParts(
        parts=[
            messages.PromptPart(text=part)
            if isinstance(part, str)
            else messages.PromptPart(token_id=part)
            for part in parts
        ]
    )


def _write_prediction(prediction: str | tuple[int, ...]) -> messages.Prediction | None:
    if not prediction:
        return None
    if isinstance(prediction, str):
        return messages.Prediction(text=prediction)
    ids = wire.read_ids("prediction", prediction, INT32_MAX)
    return messages.Prediction(tokens=messages.PromptTokens(token_ids=ids))


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


def read_request(message: messages.GenerateRequest) -> Request:
    """Return what a message asks for. Raises InvalidRequest."""
    known: dict[str, Any] = {name: getattr(message, name) for name in _PLAIN}
    known |= {name: getattr(message, name) for name in _OPTIONAL if message.HasField(name)}
    known |= {name: tuple(getattr(message, name)) for name in _REPEATED}
    known |= {name: getattr(message.overflow, name) for name in _OVERFLOW}
    options = message.speculative
    known |= {name: getattr(options, name) for name in _SPECULATIVE if options.HasField(name)}
    known |= {
        name: numbers.read(number)
        for name, numbers in _ENUMS.items()
        if (number := getattr(options, name))
    }
    if options.drafters:
        known["drafters"] = frozenset(options.drafters)
    if message.HasField("logprobs"):
        known["logprobs"] = wire.read_logprob_options(message.logprobs)
    if message.HasField("conversation"):
        chat, continuation = message.conversation.chat, message.conversation.continuation
        known["conversation"] = read_chat(chat, "conversation.chat.", continuation)
    return Request(
        _read_prompt(message),
        sampling=wire.read_settings(message.sampling),
        logit_bias=tuple(map(_read_bias, message.sampling.logit_biases)),
        model=wire.read_reference(message.model),
        prediction=_read_prediction(message.prediction),
        detail=_read_detail(message.round_detail),
        **known,
    )


def _read_prompt(message: messages.GenerateRequest) -> str | list[int] | list[int | str]:
    kind = message.WhichOneof("prompt")
    if kind is None:
        raise InvalidRequest("prompt", "is missing")
    if kind == "prompt_tokens":
        return list(message.prompt_tokens.token_ids)
    if kind == "prompt_parts":
        return read_parts(message.prompt_parts)
    return message.prompt_text


def read_parts(message: messages.PromptParts) -> list[int | str]:
    """Return texts and ids in turn."""
    return [
        part.text if part.WhichOneof("part") == "text" else part.token_id for part in message.parts
    ]


def _read_prediction(message: messages.Prediction) -> str | tuple[int, ...]:
    if message.WhichOneof("kind") == "tokens":
        return tuple(message.tokens.token_ids)
    return message.text


def _read_bias(message: common.LogitBias) -> tuple[int | str, float]:
    kind = message.WhichOneof("token")
    if kind is None:
        raise InvalidRequest("logit_bias", "each needs a token, by its id or by text")
    return (message.text if kind == "text" else message.token_id), message.bias


def _read_detail(number: int) -> Detail:
    if number not in messages.RoundDetail.values():
        raise InvalidRequest("round_detail", f"unknown value {number}")
    return Detail(number)


def read_chat(
    message: messages.ApplyTemplateRequest, prefix: str = "", continuation: str = ""
) -> Conversation:
    """Return a chat to render. A refusal names the field with the prefix. Raises InvalidRequest."""
    adds = message.add_generation_prompt if message.HasField("add_generation_prompt") else True
    return Conversation(
        chat=_read_json(f"{prefix}messages_json", message.messages_json),
        tools=_read_json(f"{prefix}tools_json", message.tools_json) or (),
        variables=_read_json(f"{prefix}variables_json", message.variables_json),
        add_generation_prompt=adds,
        continuation=continuation,
    )


def _read_json(field: str, text: str) -> Any:
    """Return what a JSON text says; None for an empty one. Raises InvalidRequest."""
    if not text:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(field, f"is not JSON: {error}") from None
