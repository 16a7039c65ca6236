"""Ollama's API: bodies to chats as OpenAI has them, completions to lines, models to cards. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Any, Literal

from pydantic import Field

from gateway.accumulator import CommittedToken, Completion
from gateway.body_fields import (
    Body,
    GenerationFields,
    Int32,
    Int64,
    ListOf,
    Prompt,
    PromptField,
    refuse,
)
from gateway.openai.answers import chat_logprob, finish_reason
from gateway.openai.requests import (
    Ask,
    ChatBody,
    EmbeddingBody,
    ResponseFormat,
    SchemaFormat,
    chat_of,
    completion_of,
    read_completion,
    read_embedding,
)
from gateway.turns import Call, Turn, TurnStream
from gateway.usage import reports
from orchestrator.chat.events import Arguments, CallBegun, CallEnded, Content, Thought, TurnEvent
from orchestrator.chat.template import ChatTemplate
from outrider.errors import InvalidRequest
from outrider.response import Event, Finished
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages

VERSION = "0.12.11"
"""The Ollama whose fields these are, the first with ids of calls; clients refuse old versions."""

_NEVER = "2300-01-01T00:00:00Z"  # when the model is unloaded; Ollama's command says "Forever"

# --- requests ---


class OllamaOptions(GenerationFields):
    """The options of a request: those of every generating endpoint, some under Ollama's names."""

    n_predict: Int32 | None = Field(None, alias="num_predict")
    n_keep: Int32 | None = Field(None, alias="num_keep")
    penalize_nl: bool | None = Field(None, alias="penalize_newline")


class OllamaBody(Body):
    """What every body of Ollama's has."""

    model: str | None = None
    options: OllamaOptions | None = None
    keep_alive: Any = Field(None, description="Taken, and without effect.")


class OllamaFields(OllamaBody):
    """What both of Ollama's generating endpoints take."""

    stream: bool | None = Field(None, description="True unless it says otherwise.")
    format: Literal["", "json"] | dict[str, Any] | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    logprobs: bool | None = None
    top_logprobs: Int32 | None = None
    truncate: bool | None = None
    shift: bool | None = None


class OllamaMessage(Body):
    """A turn of the chat; a last one of the assistant is continued."""

    role: str
    content: str | None = None
    thinking: str | None = None
    tool_calls: ListOf[dict[str, Any]] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    images: ListOf[Any] | None = Field(None, description="Not supported.")


class OllamaChat(OllamaFields):
    """The body of /api/chat; without messages nothing is written."""

    messages: ListOf[OllamaMessage] | None = None
    tools: ListOf[dict[str, Any]] | None = None


class OllamaPrompt(OllamaFields):
    """The body of /api/generate; without a prompt nothing is written."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    suffix: str | None = Field(None, description="What follows the text that is missing.")
    template: str | None = Field(None, description="Not supported.")
    context: ListOf[Int32] | None = Field(None, description="Not supported.")
    images: ListOf[Any] | None = Field(None, description="Not supported.")


class OllamaName(Body):
    """The body of /api/show; `name` is the older name of `model`."""

    model: str | None = None
    name: str | None = None


class OllamaInput(OllamaBody):
    """The body of /api/embed."""

    input: PromptField | None = None
    truncate: bool | None = None
    dimensions: Int64 | None = None


class OllamaText(OllamaBody):
    """The body of /api/embeddings."""

    prompt: str | None = None


def read_chat(body: OllamaChat) -> ChatBody:
    """Return the chat to answer. Raises InvalidRequest."""
    return _chat(body, list(_turns(body.messages or ())), body.tools)


def read_prompt(body: OllamaPrompt) -> ChatBody:
    """Return the chat that a prompt becomes. Raises InvalidRequest."""
    _refuse(body)
    system = [{"role": "system", "content": body.system}] if body.system else []
    return _chat(body, [*system, {"role": "user", "content": body.prompt}], None)


def read_raw(body: OllamaPrompt) -> Ask:
    """Return what a prompt asks for that is no turn of a chat, as before a suffix.

    Raises InvalidRequest.
    """
    _refuse(body, system=("",))
    top_count = (body.top_logprobs or 0) if body.logprobs else None
    said = {"prompt": body.prompt, "logprobs": top_count, **_said(body)}
    return read_completion(completion_of(_options(body), **said))


def read_inputs(body: OllamaInput) -> list[Prompt]:
    """Return the texts to embed. Raises InvalidRequest."""
    if not body.input:
        return []
    return read_embedding(
        EmbeddingBody.model_construct(input=body.input, dimensions=body.dimensions)
    )


def _refuse(body: OllamaPrompt, **more: Any) -> None:
    refuse(body, template=("",), context=([],), images=([],), **more)


def _options(body: OllamaBody) -> OllamaOptions:
    return body.options or OllamaOptions.model_construct()


def _chat(
    body: OllamaFields, turns: list[dict[str, Any]], tools: list[dict[str, Any]] | None
) -> ChatBody:
    thinks = {} if body.think is None else {"enable_thinking": body.think is not False}
    return chat_of(
        _options(body),
        messages=turns,
        tools=tools,
        logprobs=body.logprobs,
        top_logprobs=body.top_logprobs if body.logprobs else None,
        reasoning_effort=body.think if isinstance(body.think, str) else None,
        chat_template_kwargs=thinks,
        **_said(body),
    )


def _said(body: OllamaFields) -> dict[str, Any]:
    """Return what a body says of the text, under the names of OpenAI's bodies."""
    options = _options(body)
    limit = -1 if options.n_predict is None else max(-1, options.n_predict)  # -2: fill the context
    shift, cut = options.context_shift, options.truncate_prompt
    return {
        "stream": body.stream is not False,
        "n_predict": limit,
        "context_shift": shift if body.shift is None else body.shift,
        "truncate_prompt": cut if body.truncate is None else body.truncate,
        "response_format": _response_format(body.format),
    }


def _response_format(form: str | dict[str, Any] | None) -> ResponseFormat | None:
    if not form and not isinstance(form, dict):
        return None
    if isinstance(form, str):
        return ResponseFormat.model_construct(type="json_object")
    schema = SchemaFormat.model_construct(schema_=form)
    return ResponseFormat.model_construct(type="json_schema", json_schema=schema)


def _turns(given: Sequence[OllamaMessage]) -> Iterator[dict[str, Any]]:
    """Yield the messages as OpenAI has them; calls without ids get some, and so their results."""
    open_calls: list[dict[str, Any]] = []  # those of the last turn that have no result yet
    call_count = 0
    for i, message in enumerate(given):
        if message.images:
            raise InvalidRequest(f"messages[{i}].images", "is not supported")
        turn: dict[str, Any] = {"role": message.role.lower(), "content": message.content or ""}
        if message.thinking:
            turn["reasoning_content"] = message.thinking
        if message.tool_calls:
            calls = [_named(call, call_count + j) for j, call in enumerate(message.tool_calls)]
            call_count += len(calls)
            turn["tool_calls"], open_calls = calls, list(calls)
        if turn["role"] == "tool":
            turn |= _answered(message, open_calls)
        yield turn


def _named(call: dict[str, Any], number: int) -> dict[str, Any]:
    """Return a call with an id, of a form that every template takes."""
    return {**call, "id": call.get("id") or f"functions.{_function(call)}:{number}"}


def _function(call: dict[str, Any]) -> str:
    function = call.get("function")
    return str(function.get("name")) if isinstance(function, dict) else ""


def _answered(message: OllamaMessage, open_calls: list[dict[str, Any]]) -> dict[str, Any]:
    """Return which call a result is of: by its id, or the first of its name, or the first."""
    id_, name = message.tool_call_id, message.tool_name
    for call in open_calls:
        if call["id"] == id_ if id_ else name in (None, _function(call)):
            open_calls.remove(call)
            return {"tool_call_id": call["id"], "name": _function(call)}
    return {key: each for key, each in (("tool_call_id", id_), ("name", name)) if each}


# --- answers ---

Shape = Callable[[str, str, list[dict[str, Any]]], dict[str, Any]]
"""Puts content, thoughts and calls where an endpoint has them."""


def message_of(content: str, thoughts: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what /api/chat answers."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thoughts:
        message["thinking"] = thoughts
    if calls:
        message["tool_calls"] = calls
    return {"message": message}


def response_of(content: str, thoughts: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what /api/generate answers; no tools are offered there."""
    return {"response": content, **({"thinking": thoughts} if thoughts else {})}


def loaded(model: str, time: str, shape: Shape) -> dict[str, Any]:
    """Return the answer to a request without a prompt, by which clients have a model loaded."""
    return {**_head(model, time), **shape("", "", []), "done": True, "done_reason": "load"}


class OllamaAnswer:
    """A completion: in lines, or all at once. `time` is that of the request, in ISO 8601."""

    def __init__(self, ask: Ask, shape: Shape, time: str, nonce: str) -> None:
        self._shape = shape
        self._time = time
        self._place = (0, "call", nonce)
        self._reading = ask.reading
        self._wants_logprobs = ask.requests[0].logprobs is not None
        self._turn = TurnStream(ask.reading, *self._place)
        self._call = CallBegun("")  # the last that has begun, with its arguments
        self._arguments: list[str] = []
        self._call_count = 0
        self.gathering = ask.gathering()

    def whole(self) -> dict[str, Any]:
        """Return the answer once everything is finished."""
        (completion,) = self.gathering.completions
        turn = self._reading.turn(completion, *self._place)
        return {**self._piece(turn), **_end(completion), **self._logprobs(completion.shown)}

    def events(self, prompt: int, event: Event) -> Iterator[dict[str, Any]]:
        """Yield the lines that an event of the orchestrator becomes."""
        addition = self.gathering.add(prompt, event)
        if addition is None:
            return
        events = self._turn.add(addition)
        (completion,) = self.gathering.completions
        if isinstance(event, Finished):
            events += self._turn.finish(completion)
        turns = [turn for each in events if (turn := self._said(each)) is not None]
        logprobs = self._logprobs(addition.tokens)
        for turn in turns or [_NOTHING] * bool(logprobs):
            yield self._piece(turn) | logprobs
            logprobs = {}
        if isinstance(event, Finished):
            yield self._piece(_NOTHING) | _end(completion)

    def _said(self, event: TurnEvent) -> Turn | None:
        """Return what an event says, if it is whole: a call comes with all of its arguments."""
        match event:
            case Content(text):
                return Turn(text, "", [])
            case Thought(text):
                return Turn("", text, [])
            case CallBegun():
                self._call, self._arguments = event, []
            case Arguments(text):
                self._arguments.append(text)
            case CallEnded(is_sound=True):
                call = Call(self._call.id, self._call.name, "".join(self._arguments))
                return Turn("", "", [call])
        return None

    def _piece(self, turn: Turn) -> dict[str, Any]:
        calls = [_tool_call(call, self._call_count + i) for i, call in enumerate(turn.calls)]
        self._call_count += len(calls)
        head = _head(self.gathering.model, self._time)
        return {**head, **self._shape(turn.content, turn.thoughts, calls), "done": False}

    def _logprobs(self, tokens: Sequence[CommittedToken]) -> dict[str, Any]:
        if not (tokens and self._wants_logprobs):
            return {}
        return {"logprobs": [chat_logprob(token) for token in tokens]}


_NOTHING = Turn("", "", [])


def _head(model: str, time: str) -> dict[str, Any]:
    return {"model": model, "created_at": time}


def _tool_call(call: Call, index: int) -> dict[str, Any]:
    function = {"index": index, "name": call.name, "arguments": json.loads(call.arguments)}
    return {"id": call.id, "function": function}


def _end(completion: Completion) -> dict[str, Any]:
    """Return why a completion ends and what it took, durations in nanoseconds."""
    finished = completion.finished
    assert finished is not None
    statistics = finished.statistics
    return {
        "done": True,
        "done_reason": finish_reason(finished),
        "total_duration": nanoseconds(statistics.total_seconds),
        "load_duration": 0,
        "prompt_eval_count": statistics.prompt_token_count,
        "prompt_eval_duration": nanoseconds(statistics.prompt_seconds),
        "eval_count": statistics.generated_token_count,
        # From the first token, which it is therefore not the time of.
        "eval_duration": nanoseconds(statistics.generation_seconds),
        **reports(statistics),
    }


def nanoseconds(seconds: float) -> int:
    """Return a duration as Ollama has it."""
    return round(1e9 * seconds)


def embeddings(found: messages.EmbedResponse, model: str, seconds: float) -> dict[str, Any]:
    """Return the answer of /api/embed."""
    return {
        "model": model,
        "embeddings": [list(each.values) for each in found.embeddings],
        "total_duration": nanoseconds(seconds),
        "load_duration": 0,
        "prompt_eval_count": sum(each.token_count for each in found.embeddings),
    }


def embedding(found: messages.EmbedResponse) -> dict[str, Any]:
    """Return the answer of /api/embeddings: one vector, in the model's own length."""
    return {"embedding": [each.norm * value for each in found.embeddings for value in each.values]}


# --- models ---


Card = Callable[[common.GetModelResponse, str], dict[str, Any]]
"""Describes a model that is served since a time, as a list of models has it."""


def full_name(model: str) -> str:
    """Return a model's name with its tag."""
    return model if ":" in model else f"{model}:latest"


def is_named(model: str, asked: str) -> bool:
    """Say whether a model, if one is known, is asked for, with its tag or without."""
    return model != "" and asked in (model, full_name(model))


def card(model: common.GetModelResponse, time: str) -> dict[str, Any]:
    """Return a model as /api/tags lists it; `time` is since when it is served."""
    name = full_name(model.model_name)
    return {
        "name": name,
        "model": name,
        "modified_at": time,
        "size": model.weight_byte_count,
        # Clients show its first 12 characters.
        "digest": sha256(model.identity or name.encode()).hexdigest(),
        "details": _details(model),
    }


def running(model: common.GetModelResponse, time: str) -> dict[str, Any]:
    """Return a model as /api/ps lists it."""
    # How much of it is on a GPU is not known here.
    extra = {"expires_at": _NEVER, "size_vram": 0, "context_length": model.context_token_count}
    return card(model, time) | extra


def description(
    model: common.GetModelResponse, template: ChatTemplate | None, time: str
) -> dict[str, Any]:
    """Return the answer of /api/show; the `template` is the one in use, if it is any good."""
    kind = _kind(model)
    return {
        "modelfile": f"FROM {model.model_name}\n",
        "parameters": f"num_ctx {model.context_token_count}",
        "template": _shown_template(model, template),
        "details": _details(model),
        "model_info": {
            "general.architecture": kind,
            "general.basename": model.model_name,
            "general.parameter_count": model.parameter_count,
            f"{kind}.context_length": model.context_token_count,
            f"{kind}.embedding_length": model.embedding_width,
        },
        "capabilities": list(_capabilities(model, template)),
        "modified_at": time,
    }


_TAKES_SUFFIX = "{# .Suffix #}"
"""A comment in a template, by which Continue knows that /api/generate takes a suffix."""


def _shown_template(model: common.GetModelResponse, template: ChatTemplate | None) -> str:
    source = template.source if template else model.chat_template
    return source + _TAKES_SUFFIX if _fills_in(model) else source


def _fills_in(model: common.GetModelResponse) -> bool:
    return model.vocabulary.HasField("fim_tokens")


def _capabilities(model: common.GetModelResponse, template: ChatTemplate | None) -> Iterator[str]:
    yield "completion"
    if _fills_in(model):
        yield "insert"
    if template and template.takes_tools and template.form.calls:
        yield "tools"
    if template and _thinks(template):
        yield "thinking"


def _thinks(template: ChatTemplate) -> bool:
    """Say whether a template knows of thoughts; what looks like one is read without that, too."""
    end = template.form.end_think.strip()
    return template.keeps_thoughts or (end != "" and end in template.source)


def _kind(model: common.GetModelResponse) -> str:
    return model.architecture or "unknown"


def _details(model: common.GetModelResponse) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "gguf",
        "family": _kind(model),
        "families": [_kind(model)],
        "parameter_size": _size(model.parameter_count),
        "quantization_level": model.file_type,
    }


def _size(count: int) -> str:
    """Return a number of parameters as people write it."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)
