"""OpenAI's API: request bodies to GenerateRequests, their responses to answers and chunks. Pure."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from orchestrator.forced_calls import FREE, ForcedCalls, Tool, force_calls, forced_tools
from orchestrator.http.completion import Addition, CommittedToken, Completion, Gathering
from orchestrator.http.counts import acceptance_metrics, timings, usage
from orchestrator.http.options import (
    Body,
    Int32,
    Int64,
    Prompt,
    StreamedFields,
    ask_for_logprobs,
    check_choice_count,
    generate_request,
    read_prompts,
    refuse,
    set_prompt,
)
from orchestrator.http.progress import StreamProgress
from orchestrator.tool_calls import CallFormat, Mark, ToolCall, ToolCallParser, mark_names, parse
from outrider.errors import InvalidRequest
from outrider.v1 import orchestrator_service_pb2 as messages

MOST_INPUTS = 2048
"""Texts of one embeddings request at most."""

LEAST_LOGPROB = -9999.0
"""Stands for the logarithm of no probability, which JSON cannot hold."""

_DEFAULT_TOKENS = 16  # of /v1/completions, as OpenAI has it
_UNTIL_THE_END = -1

_FINISH_REASONS = {
    messages.FINISH_REASON_END_OF_TEXT: "stop",
    messages.FINISH_REASON_STOP_SEQUENCE: "stop",
}


# --- requests ---


class StreamOptions(Body):
    """What a stream carries besides."""

    include_usage: bool | None = None


Schema = Annotated[dict[str, Any] | None, Field(alias="schema")]


class SchemaFormat(Body):
    """A JSON schema under a name."""

    name: str | None = None
    schema_: Schema = None


class ResponseFormat(Body):
    """What the text must be; llama-server's clients put a schema beside `json_object` too."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None
    schema_: Schema = None


class OpenAIFields(StreamedFields):
    """What both of OpenAI's generating endpoints take."""

    n: Int32 | None = None
    max_tokens: Int32 | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None


class CompletionBody(OpenAIFields):
    """The body of /v1/completions."""

    prompt: str | list[Int32 | str | list[Int32 | str]]
    echo: bool | None = None
    logprobs: Int32 | bool | None = None
    best_of: Int32 | None = None
    suffix: str | None = None


class ChatBody(OpenAIFields):
    """The body of /v1/chat/completions."""

    messages: list[dict[str, Any]]
    max_completion_tokens: Int32 | None = None
    logprobs: bool | None = None
    top_logprobs: Int32 | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[Any] | None = None
    audio: Any = None
    web_search_options: Any = None


class EmbeddingBody(Body):
    """The body of /v1/embeddings."""

    model: str | None = None
    input: str | list[Int32 | str | list[Int32]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Int64 | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """What an HTTP request asks for: one GenerateRequest per prompt, and how to show it."""

    requests: list[messages.GenerateRequest]
    choice_count: int = 1
    streams: bool = False
    includes_usage: bool = False
    echoes: bool = False
    call_format: CallFormat | None = None
    call_opening: str = ""
    progress: StreamProgress = field(default_factory=StreamProgress)

    def gathering(self) -> Gathering:
        """Return where to gather the completions."""
        return Gathering(len(self.requests), self.choice_count)


def read_completion(body: CompletionBody) -> Wish:
    """Return what /v1/completions is asked for. Raises InvalidRequest."""
    refuse(body, best_of=(body.n or 1,), suffix=("",))
    prompts = read_prompts(body.prompt)
    limit = _DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
    request = _request(body, limit)
    if body.logprobs is not None and body.logprobs is not False:
        ask_for_logprobs(request, int(body.logprobs), after_sampling=bool(body.post_sampling_probs))
    if request.HasField("logprobs"):
        request.prompt_logprobs = bool(body.echo)
    request.completion_count = check_choice_count(body.n, len(prompts))
    return Wish(
        requests=[_with_prompt(request, prompt) for prompt in prompts],
        choice_count=request.completion_count,
        streams=bool(body.stream),
        includes_usage=_includes_usage(body),
        echoes=bool(body.echo),
        progress=StreamProgress.of(body),
    )


def read_chat(
    body: ChatBody,
    prompt: Sequence[int],
    call_format: CallFormat | None,
    forced: ForcedCalls = FREE,
) -> Wish:
    """Return what /v1/chat/completions is asked for. Raises InvalidRequest.

    `prompt` is the rendered chat with the opening of what is `forced`;
    `call_format` is how this model writes calls.
    """
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    request = _request(body, _UNTIL_THE_END if limit is None else limit)
    if body.logprobs:
        top_count = body.top_logprobs or body.n_probs or 0
        ask_for_logprobs(request, top_count, after_sampling=bool(body.post_sampling_probs))
    elif body.top_logprobs:
        raise InvalidRequest("top_logprobs", "needs logprobs")
    if call_format is not None and offered_tools(body):
        request.control_token_names.extend(mark_names(call_format))
    if forced.grammar:
        request.sampling.grammar = forced.grammar
    request.completion_count = check_choice_count(body.n, 1)
    return Wish(
        requests=[_with_prompt(request, list(prompt))],
        choice_count=request.completion_count,
        streams=bool(body.stream),
        includes_usage=_includes_usage(body),
        call_format=call_format if offered_tools(body) else None,
        call_opening=forced.opening,
        progress=StreamProgress.of(body),
    )


def read_template(body: ChatBody) -> messages.ApplyTemplateRequest:
    """Return how to render a chat. Raises InvalidRequest for what is not supported."""
    refuse(
        body,
        functions=([],),
        function_call=("none",),
        modalities=(["text"], []),
        audio=(),
        web_search_options=(),
    )
    _forced_tools(body)
    return messages.ApplyTemplateRequest(
        messages_json=json.dumps(body.messages),
        tools_json=json.dumps(body.tools) if offered_tools(body) else "",
        variables_json=json.dumps(body.chat_template_kwargs) if body.chat_template_kwargs else "",
        add_generation_prompt=body.add_generation_prompt is not False,
    )


def offered_tools(body: ChatBody) -> bool:
    """Say whether the model may call tools."""
    return bool(body.tools) and body.tool_choice != "none"


def _forced_tools(body: ChatBody) -> list[Tool]:
    tools = forced_tools(body.tool_choice, body.tools or ())
    is_any_text = body.response_format is None or body.response_format.type == "text"
    if tools and not (is_any_text and not body.grammar and body.json_schema is None):
        raise InvalidRequest("tool_choice", "does not go with a response_format, grammar or schema")
    return tools


def read_forced_calls(body: ChatBody, call_format: CallFormat | None) -> ForcedCalls:
    """Return what the model must call. Raises InvalidRequest. A large grammar takes its time."""
    tools = _forced_tools(body)
    if not tools:
        return FREE
    if call_format is None:
        raise InvalidRequest("tool_choice", "it is not known how this model writes calls")
    several = body.tool_choice == "required" and bool(body.parallel_tool_calls)
    return force_calls(tools, call_format, several=several)


def read_embedding(body: EmbeddingBody) -> list[Prompt]:
    """Return the texts to embed. Raises InvalidRequest."""
    refuse(body, dimensions=())
    inputs = read_prompts(body.input)
    if not 1 <= len(inputs) <= MOST_INPUTS:
        raise InvalidRequest("input", f"must be 1 to {MOST_INPUTS} texts, not {len(inputs)}")
    return inputs


def _request(body: OpenAIFields, token_limit: int) -> messages.GenerateRequest:
    request = generate_request(body, token_limit=token_limit)
    StreamProgress.of(body).ask(request)
    schema = schema_of(body.response_format)
    if schema is not None:
        if request.json_schema or request.sampling.grammar:
            raise InvalidRequest("response_format", "does not go with a schema or grammar of yours")
        request.json_schema = json.dumps(schema)
    return request


def schema_of(form: ResponseFormat | None) -> dict[str, Any] | None:
    """Return the JSON schema of the text, or None for any text. Raises InvalidRequest."""
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return form.schema_ or {"type": "object"}
    schema = form.json_schema.schema_ if form.json_schema else form.schema_
    if schema is None:
        raise InvalidRequest("response_format", "json_schema needs a schema")
    return schema


def _with_prompt(request: messages.GenerateRequest, prompt: Prompt) -> messages.GenerateRequest:
    copy = messages.GenerateRequest()
    copy.CopyFrom(request)
    set_prompt(copy, prompt)
    return copy


def _includes_usage(body: OpenAIFields) -> bool:
    return bool(body.stream_options and body.stream_options.include_usage)


# --- answers ---


@dataclass(frozen=True, slots=True)
class Head:
    """What every answer and chunk of a request begins with."""

    id: str
    created: int
    fingerprint: str

    def of(self, kind: str, model: str) -> dict[str, Any]:
        """Return the head of an object of this kind, by the model of this name."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": model,
            "system_fingerprint": self.fingerprint,
        }


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that is shown again: its text, and its tokens, where they were asked for."""

    text: str
    tokens: tuple[CommittedToken, ...] = ()


_NO_ECHO = Echo("")


class Shape(Protocol):
    """One of OpenAI's endpoints: how its choices look, whole and in pieces."""

    @property
    def kind(self) -> str:
        """The object type of an answer."""

    @property
    def chunk_kind(self) -> str:
        """The object type of a chunk."""

    def choice(self, index: int, completion: Completion) -> dict[str, Any]:
        """Return a whole choice."""

    def silent(self, index: int) -> dict[str, Any]:
        """Return a choice that adds nothing, while its prompt is read."""

    def pieces(self, index: int, addition: Addition) -> Iterator[dict[str, Any]]:
        """Yield what there is to send of an addition, as choices without a finish reason."""

    def last(self, index: int, completion: Completion) -> Iterator[dict[str, Any]]:
        """Yield the last pieces of a choice; the last of them has the finish reason."""


def answer(head: Head, shape: Shape, gathering: Gathering) -> dict[str, Any]:
    """Return the answer once everything is finished."""
    return {
        **head.of(shape.kind, gathering.model),
        "choices": [shape.choice(i, each) for i, each in enumerate(gathering.completions)],
        "usage": usage(gathering.started, gathering.statistics),
        **_reports(gathering),
    }


class Chunks:
    """The chunks of a streamed answer."""

    def __init__(self, head: Head, shape: Shape, wish: Wish) -> None:
        self._head = head
        self._shape = shape
        self._wish = wish
        self._gathering = wish.gathering()
        self._open = len(self._gathering.completions)

    def add(self, prompt: int, response: messages.GenerateResponse) -> Iterator[dict[str, Any]]:
        """Yield the chunks that a message becomes."""
        addition = self._gathering.add(prompt, response)
        index = self._gathering.index(prompt, response)
        timed = self._wish.progress.timings(response)
        read = self._wish.progress.prompt(prompt, response)
        if read:
            yield self._chunk([self._shape.silent(index)]) | timed | read
        if addition is None:
            return
        for piece in self._shape.pieces(index, addition):
            yield self._chunk([piece]) | timed
        if response.WhichOneof("event") != "finished":
            return
        self._open -= 1
        pieces = list(self._shape.last(index, self._gathering.completions[index]))
        for piece in pieces[:-1]:
            yield self._chunk([piece]) | timed
        ending = self._chunk(pieces[-1:]) | timed
        if self._open or self._wish.includes_usage:
            yield ending
        else:
            yield ending | _reports(self._gathering)
        if not self._open and self._wish.includes_usage:
            counted = usage(self._gathering.started, self._gathering.statistics)
            yield self._chunk([]) | {"usage": counted} | _reports(self._gathering)

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = self._head.of(self._shape.chunk_kind, self._gathering.model)
        chunk = {**head, "choices": choices}
        return chunk | {"usage": None} if self._wish.includes_usage else chunk


def _reports(gathering: Gathering) -> dict[str, Any]:
    """Return how speculation went, as llama-server and vLLM tell it, of a single completion."""
    if len(gathering.completions) != 1:
        return {"metrics": None}
    (statistics,) = gathering.statistics
    return {"timings": timings(statistics), "metrics": acceptance_metrics(statistics)}


def finish_reason(finished: messages.GenerationFinished) -> str:
    """Return why a completion ended."""
    return _FINISH_REASONS.get(finished.reason, "length")


def _finished(completion: Completion) -> messages.GenerationFinished:
    assert completion.finished is not None
    return completion.finished


# --- /v1/completions ---


@dataclass(slots=True)
class TextShape:
    """Choices of /v1/completions. `echoes` are the prompts to show again, by their index."""

    wants_logprobs: bool
    choice_count: int = 1
    echoes: dict[int, Echo] = field(default_factory=dict)
    kind: str = "text_completion"
    chunk_kind: str = "text_completion"
    _offsets: dict[int, int] = field(default_factory=dict)

    def choice(self, index: int, completion: Completion) -> dict[str, Any]:
        """Return a whole choice."""
        echo = self._echo(index)
        tokens = (*echo.tokens, *completion.shown)
        reason = finish_reason(_finished(completion))
        return self._choice(index, echo.text + completion.text, tokens, 0, reason)

    def silent(self, index: int) -> dict[str, Any]:
        """Return a choice without text."""
        return self._choice(index, "", (), 0, None)

    def pieces(self, index: int, addition: Addition) -> Iterator[dict[str, Any]]:
        """Yield the new text, the first time behind the prompt if that is echoed."""
        text, tokens = addition.text, addition.tokens
        if index not in self._offsets:
            echo = self._echo(index)
            text, tokens = echo.text + text, (*echo.tokens, *tokens)
            self._offsets[index] = 0
        if not text and not (tokens and self.wants_logprobs):
            return
        yield self._choice(index, text, tokens, self._offsets[index], None)
        self._offsets[index] += sum(len(_text(token)) for token in tokens)

    def last(self, index: int, completion: Completion) -> Iterator[dict[str, Any]]:
        """Yield the finish reason."""
        yield self._choice(index, "", (), 0, finish_reason(_finished(completion)))

    def _echo(self, index: int) -> Echo:
        return self.echoes.get(index // self.choice_count, _NO_ECHO)

    def _choice(
        self,
        index: int,
        text: str,
        tokens: Sequence[CommittedToken],
        offset: int,
        reason: str | None,
    ) -> dict[str, Any]:
        shows = self.wants_logprobs and (tokens or reason is None or text)
        return {
            "text": text,
            "index": index,
            "logprobs": _text_logprobs(tokens, offset) if shows else None,
            "finish_reason": reason,
        }


def _text_logprobs(tokens: Sequence[CommittedToken], offset: int) -> dict[str, Any]:
    shape: dict[str, list[Any]] = {
        "tokens": [],
        "token_logprobs": [],
        "top_logprobs": [],
        "text_offset": [],
    }
    for token in tokens:
        text = _text(token)
        shape["tokens"].append(text)
        shape["text_offset"].append(offset)
        offset += len(text)
        if token.logprob is None:
            shape["token_logprobs"].append(None)
            shape["top_logprobs"].append(None)
            continue
        value = finite(token.logprob.log_probability)
        top = {_decode(a.token.text): finite(a.log_probability) for a in _top(token)}
        shape["token_logprobs"].append(value)
        shape["top_logprobs"].append(top | {text: value})
    return shape


def echo_of(
    prompt: messages.GenerationStarted, text: str, token_texts: Sequence[bytes] | None
) -> Echo:
    """Return the prompt to show; `token_texts` are the texts of its tokens if they are wanted."""
    if token_texts is None:
        return Echo(text)
    logprobs = prompt.prompt_logprobs
    return Echo(
        text,
        tuple(
            CommittedToken(
                token_id,
                token_texts[i],
                "prompt",
                # Nothing is before the first token that could make it probable.
                logprobs[i] if 0 < i < len(logprobs) else None,
            )
            for i, token_id in enumerate(prompt.prompt_token_ids)
        ),
    )


# --- /v1/chat/completions ---


@dataclass(slots=True)
class ChatShape:
    """Choices of /v1/chat/completions. `id_suffix` makes the ids of calls unique.

    `call_opening` is the part of a call that the prompt ends in.
    """

    wants_logprobs: bool
    id_suffix: str
    call_format: CallFormat | None = None
    call_opening: str = ""
    kind: str = "chat.completion"
    chunk_kind: str = "chat.completion.chunk"
    _parsers: dict[int, ToolCallParser | None] = field(default_factory=dict)
    _call_counts: dict[int, int] = field(default_factory=dict)

    def choice(self, index: int, completion: Completion) -> dict[str, Any]:
        """Return a whole choice."""
        content: str | None = completion.text
        calls: list[ToolCall] = []
        if self.call_format is not None:
            content, calls = parse([*self._opening(), *completion.pieces], self.call_format)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            message["content"] = content or None
            message["tool_calls"] = [self._call(index, i, call) for i, call in enumerate(calls)]
        reason = finish_reason(_finished(completion))
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(completion.shown),
            "finish_reason": "tool_calls" if calls and reason == "stop" else reason,
        }

    def silent(self, index: int) -> dict[str, Any]:
        """Return a choice without content."""
        return self._piece(index, {"role": "assistant", "content": None})

    def pieces(self, index: int, addition: Addition) -> Iterator[dict[str, Any]]:
        """Yield the role at first, then content and calls as they become certain."""
        if index not in self._parsers:
            self._parsers[index] = self._parser()
            self._call_counts[index] = 0
            yield self._piece(index, {"role": "assistant", "content": ""})
        parser = self._parsers[index]
        certain: list[str | ToolCall] = [addition.text]
        if parser is not None:
            certain = [each for piece in addition.pieces for each in parser.add(piece)]
        yield from self._deltas(index, certain, addition.tokens)

    def last(self, index: int, completion: Completion) -> Iterator[dict[str, Any]]:
        """Yield what was not certain before, then the finish reason."""
        parser = self._parsers[index]
        if parser is not None:
            yield from self._deltas(index, parser.finish(), ())
        reason = finish_reason(_finished(completion))
        called = self._call_counts[index] > 0 and reason == "stop"
        yield self._piece(index, {}, reason="tool_calls" if called else reason)

    def _opening(self) -> list[Mark]:
        return [Mark(self.call_opening)] if self.call_opening else []

    def _parser(self) -> ToolCallParser | None:
        if self.call_format is None:
            return None
        parser = ToolCallParser(self.call_format)
        for mark in self._opening():
            parser.add(mark)
        return parser

    def _deltas(
        self,
        index: int,
        certain: Iterable[str | ToolCall],
        tokens: Sequence[CommittedToken],
    ) -> Iterator[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        for each in certain:
            if isinstance(each, str):
                deltas += [{"content": each}] if each else []
            else:
                number = self._call_counts[index]
                self._call_counts[index] += 1
                call = {"index": number, **self._call(index, number, each)}
                deltas.append({"tool_calls": [call]})
        if tokens and self.wants_logprobs and not deltas:
            deltas.append({"content": ""})
        for delta in deltas:
            yield self._piece(index, delta, tokens)
            tokens = ()

    def _piece(
        self,
        index: int,
        delta: dict[str, Any],
        tokens: Sequence[CommittedToken] = (),
        reason: str | None = None,
    ) -> dict[str, Any]:
        return {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs(tokens) if tokens else None,
            "finish_reason": reason,
        }

    def _logprobs(self, tokens: Sequence[CommittedToken]) -> dict[str, Any] | None:
        if not self.wants_logprobs:
            return None
        return {"content": [_chat_logprob(token) for token in tokens], "refusal": None}

    def _call(self, choice: int, number: int, call: ToolCall) -> dict[str, Any]:
        return {
            "id": f"call_{self.id_suffix}_{choice}_{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }


def _chat_logprob(token: CommittedToken) -> dict[str, Any]:
    logprob = token.logprob or messages.TokenLogprob()
    return {
        **_token_logprob(token.text, logprob.log_probability),
        "top_logprobs": [
            _token_logprob(each.token.text, each.log_probability) for each in logprob.alternatives
        ],
    }


def _token_logprob(text: bytes, value: float) -> dict[str, Any]:
    return {"token": _decode(text), "logprob": finite(value), "bytes": list(text)}


def finite(value: float) -> float:
    """Return a log probability that JSON can hold."""
    return max(value, LEAST_LOGPROB)


def _top(token: CommittedToken) -> Iterable[messages.Alternative]:
    return token.logprob.alternatives if token.logprob is not None else ()


def _text(token: CommittedToken) -> str:
    return _decode(token.text)


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "replace")


# --- /v1/embeddings and /v1/models ---


def embeddings(
    model: str, found: Sequence[messages.Embedding], encoding: str | None
) -> dict[str, Any]:
    """Return the answer of /v1/embeddings."""
    count = sum(embedding.token_count for embedding in found)
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": i, "embedding": _vector(embedding.values, encoding)}
            for i, embedding in enumerate(found)
        ],
        "model": model,
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }


def _vector(values: Sequence[float], encoding: str | None) -> str | list[float]:
    if encoding != "base64":
        return list(values)
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()


def model_card(model: str, created: int, meta: dict[str, Any]) -> dict[str, Any]:
    """Return one model of /v1/models."""
    return {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "outrider",
        "meta": meta,
    }
