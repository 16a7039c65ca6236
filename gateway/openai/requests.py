"""OpenAI's API: request bodies to Requests. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.accumulator import Accumulator
from gateway.body_fields import (
    Body,
    GenerationFields,
    Int32,
    Int64,
    ListOf,
    Prompt,
    PromptField,
    StreamedFields,
    check_choice_count,
    generate_request,
    read_prompts,
    refuse,
    sampling_parameters,
)
from gateway.structured import GuidedFields, constrains, constraint
from gateway.turns import ChatReading
from gateway.usage import StreamProgress
from orchestrator.chat.format import ChatFormat
from orchestrator.chat.required_calls import (
    FREE,
    Required,
    Tool,
    offer,
    require,
    required_tools,
)
from orchestrator.chat.value_readers import member
from outrider.errors import InvalidRequest
from outrider.grammar.gbnf import read_grammar
from outrider.grammar.schema import grammar_of_schema, passed_over
from outrider.messages import ANY_MODEL, LogprobOptions, ModelReference
from outrider.request import Conversation, Detail, Request

MOST_INPUTS = 2048
"""Texts of one embeddings request at most."""

_DEFAULT_TOKENS = 16  # of /v1/completions, as OpenAI has it
_UNTIL_THE_END = -1  # token limit: until the text ends or the context is full


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


class OpenAIFields(StreamedFields, GuidedFields):
    """What both of OpenAI's generating endpoints take."""

    n: Int32 | None = None
    max_tokens: Int32 | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None


class CompletionBody(OpenAIFields):
    """The body of /v1/completions."""

    prompt: PromptField
    echo: bool | None = None
    logprobs: Int32 | bool | None = None
    best_of: Int32 | None = None
    suffix: str | None = Field(None, description="What follows the text that is missing.")


class ChatBody(OpenAIFields):
    """The body of /v1/chat/completions."""

    messages: ListOf[dict[str, Any]]
    max_completion_tokens: Int32 | None = None
    logprobs: bool | None = None
    top_logprobs: Int32 | None = None
    tools: ListOf[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | Literal["content"] | None = None
    functions: ListOf[Any] | None = None
    function_call: Any = None
    modalities: ListOf[Any] | None = None
    audio: Any = None
    web_search_options: Any = None
    report: bool | None = None


class EmbeddingBody(Body):
    """The body of /v1/embeddings."""

    model: str | None = None
    input: PromptField
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Int64 | None = None


def chat_of(body: GenerationFields, **more: Any) -> ChatBody:
    """Return the chat that a body of another dialect asks for, with what that calls otherwise."""
    return ChatBody.model_construct(**(_shared(body) | more))


def completion_of(body: GenerationFields, **more: Any) -> CompletionBody:
    """Return the completion that a body of another dialect asks for, as `chat_of` does."""
    return CompletionBody.model_construct(**(_shared(body) | more))


def _shared(body: GenerationFields) -> dict[str, Any]:
    return {name: getattr(body, name) for name in GenerationFields.model_fields}


@dataclass(frozen=True, slots=True)
class Ask:
    """What an HTTP request asks for: one Request per prompt, and how to show it.

    `fields` are what the client sent, by which errors name what is wrong.
    """

    requests: list[Request]
    fields: Body
    choice_count: int = 1
    streams: bool = False
    includes_usage: bool = False
    echoes: bool = False
    reports_tokens: bool = False  # in a chat's stream
    most_seconds: float | None = None  # after the first token; then a text with a line ends
    reading: ChatReading = field(default_factory=ChatReading)
    progress: StreamProgress = field(default_factory=StreamProgress)

    @property
    def is_single(self) -> bool:
        """Whether it asks for one completion."""
        return self.choice_count * len(self.requests) == 1

    def gathering(self) -> Accumulator:
        """Return where to gather the completions."""
        is_predicted = any(each.prediction for each in self.requests)
        return Accumulator(len(self.requests), self.choice_count, is_predicted)


def read_completion(body: CompletionBody) -> Ask:
    """Return what /v1/completions is asked for. Raises InvalidRequest."""
    refuse(body, best_of=(body.n or 1,))
    if body.suffix and body.echo:
        raise InvalidRequest("suffix", "does not go with echo")
    prompts = read_prompts(body.prompt)
    count = check_choice_count(body.n, len(prompts))
    more: dict[str, Any] = {"completion_count": count}
    if body.logprobs is not None and body.logprobs is not False:
        more["logprobs"] = _logprobs(body, int(body.logprobs))
    if "logprobs" in more or body.n_probs:
        more["prompt_logprobs"] = bool(body.echo)
    limit = _DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
    return Ask(
        requests=[_request(body, prompt, limit, **more) for prompt in prompts],
        fields=body,
        choice_count=count,
        streams=bool(body.stream),
        includes_usage=_includes_usage(body),
        echoes=bool(body.echo),
        progress=StreamProgress.of(body),
    )


def read_chat(
    body: ChatBody,
    prompt: Sequence[int],
    reading: ChatReading | None = None,
    grammar: str = "",
    model: ModelReference = ANY_MODEL,
    conversation: Conversation | None = None,
) -> Ask:
    """Return what /v1/chat/completions is asked for. Raises InvalidRequest.

    `prompt` is the rendered `conversation` in ids of the `model`, `reading` says how the answer is
    read, and `grammar` is that of calls that must come.
    """
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    reading, count = reading or ChatReading(), check_choice_count(body.n, 1)
    more: dict[str, Any] = {"completion_count": count, "model": model, "conversation": conversation}
    if body.logprobs:
        more["logprobs"] = _logprobs(body, body.top_logprobs or body.n_probs or 0)
    elif body.top_logprobs:
        raise InvalidRequest("top_logprobs", "needs logprobs")
    more["detail"] = Detail.TOKENS if body.report else Detail.NOTHING
    more["control_token_names"] = tuple(reading.form.controls)
    limit = _UNTIL_THE_END if limit is None else limit
    return Ask(
        requests=[_request(body, list(prompt), limit, grammar, **more)],
        fields=body,
        choice_count=count,
        streams=bool(body.stream),
        includes_usage=_includes_usage(body),
        reading=reading,
        reports_tokens=bool(body.report),
        progress=StreamProgress.of(body),
    )


def _logprobs(body: OpenAIFields, top_count: int) -> LogprobOptions:
    return LogprobOptions(top_count, bool(body.post_sampling_probs))


def read_reading(body: ChatBody, form: ChatFormat, prompt: str) -> ChatReading:
    """Return how an answer after the rendered chat is read.

    Raises InvalidRequest for tools where it is not known how this model calls them.
    """
    tools: dict[str, Any] = {}
    if offered_tools(body):
        if form.calls is None:
            reason = "the chat template of this model does not show how it writes calls"
            raise InvalidRequest("tools", reason)
        functions = [member(each, "function", dict) for each in body.tools or ()]
        tools = {str(each.get("name")): member(each, "parameters", dict) for each in functions}
    single = body.parallel_tool_calls is False
    last = body.messages[-1] if body.messages else {}
    content = last.get("content")
    if isinstance(content, list) and content and isinstance(content[-1], dict):
        content = content[-1].get("text")
    is_answered = isinstance(content, str) and last.get("role") != "assistant"
    written = form.written(prompt, str(content) if is_answered else "")
    return ChatReading(form, tools, written, single=single)


def read_template(body: ChatBody) -> Conversation:
    """Return how to render a chat. Raises InvalidRequest for what is not supported."""
    refuse(
        body,
        functions=([],),
        function_call=("none",),
        modalities=(["text"], []),
        audio=(),
        web_search_options=(),
    )
    _required_tools(body)
    effort = {"reasoning_effort": body.reasoning_effort} if body.reasoning_effort else {}
    variables = effort | (body.chat_template_kwargs or {})
    return Conversation(
        chat=body.messages,
        tools=(body.tools or ()) if offered_tools(body) else (),
        variables=variables or None,
        add_generation_prompt=_adds_generation_prompt(body),
    )


def _adds_generation_prompt(body: ChatBody) -> bool:
    """Say whether the assistant's turn is opened at the end; a message it continues follows."""
    opens, continues = body.add_generation_prompt, body.continue_final_message
    is_last = bool(body.messages) and body.messages[-1].get("role") == "assistant"
    if continues and opens:
        raise InvalidRequest("continue_final_message", "does not go with add_generation_prompt")
    if continues and not is_last:
        raise InvalidRequest("continue_final_message", "needs a last message of the assistant")
    if continues is False and opens is not False and is_last:
        raise InvalidRequest(
            "continue_final_message", "a last message of the assistant is always continued"
        )
    return bool(continues) or opens is not False


def offered_tools(body: ChatBody) -> bool:
    """Say whether the model may call tools."""
    return bool(body.tools) and body.tool_choice != "none"


def _required_tools(body: ChatBody) -> list[Tool]:
    tools = required_tools(body.tool_choice, body.tools or ())
    is_any_text = body.response_format is None or body.response_format.type == "text"
    is_any_text = is_any_text and not body.grammar and body.json_schema is None
    if tools and (not is_any_text or constrains(body)):
        raise InvalidRequest("tool_choice", "does not go with a response_format, grammar or schema")
    return tools


def read_required(body: ChatBody, reading: ChatReading) -> Required:
    """Return what the model must write, besides a form of the text that holds from its start.

    That form is of the answer: a thought that the prompt opened may end before it, and a call of
    the tools may come in its place. A `grammar` of llama-server's alone is of all that is written.
    Raises InvalidRequest. A large grammar takes its time.
    """
    form, tools, text = reading.form, _required_tools(body), ""
    passed: tuple[str, ...] = ()
    in_thought = bool(form.think) and reading.prompt.rstrip().endswith(form.think)
    if not tools and not body.grammar and (in_thought or offered_tools(body)):
        text, passed = _text_grammar(body)
    if text and offered_tools(body):
        several, offered = not reading.single, body.tools or ()
        required = offer(offered, form, text, several=several, in_thought=in_thought)
    elif tools or text:
        several = body.tool_choice == "required" and bool(body.parallel_tool_calls)
        required = require(tools, form, text, several=several, in_thought=in_thought)
    else:
        required = FREE
    return replace(required, passed_over=passed + required.passed_over)


def _text_grammar(body: ChatBody) -> tuple[str, tuple[str, ...]]:
    """Return the GBNF of what the text must be, and what of a schema it does not keep.

    Both are empty where it may be any text. Raises InvalidRequest.
    """
    schema, grammar = _text_form(body)
    if schema:
        return grammar_of_schema(schema), passed_over(schema)
    if grammar:
        read_grammar(grammar)  # a refusal names its own lines
    return grammar, ()


def read_embedding(body: EmbeddingBody) -> list[Prompt]:
    """Return the texts to embed. Raises InvalidRequest."""
    refuse(body, dimensions=())
    inputs = read_prompts(body.input, "input")
    if not 1 <= len(inputs) <= MOST_INPUTS:
        raise InvalidRequest("input", f"must be 1 to {MOST_INPUTS} texts, not {len(inputs)}")
    return inputs


def _request(
    body: OpenAIFields, prompt: Prompt, token_limit: int, grammar: str = "", **more: Any
) -> Request:
    """Return what is asked for; a `grammar` stands for what the body says of the text's form."""
    schema, its_grammar = ("", grammar) if grammar else _text_form(body)
    return generate_request(
        body,
        prompt,
        token_limit=token_limit,
        sampling=replace(sampling_parameters(body), grammar=its_grammar),
        json_schema=schema,
        running_statistics=StreamProgress.of(body).needs_statistics,
        **more,
    )


def _text_form(body: OpenAIFields) -> tuple[str, str]:
    """Return the JSON schema or the grammar of the text; what it is not is empty.

    Raises InvalidRequest for two constraints of one text.
    """
    schema = "" if body.json_schema is None else json.dumps(body.json_schema)
    grammar = body.grammar or ""
    if schema and grammar:
        raise InvalidRequest("json_schema", "does not go with a grammar")
    asked = schema_of(body.response_format)
    if asked is not None:
        if schema or grammar:
            raise InvalidRequest("response_format", "does not go with a schema or grammar of yours")
        schema = json.dumps(asked)
    return constraint(body, schema, grammar)


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


def _includes_usage(body: OpenAIFields) -> bool:
    return bool(body.stream_options and body.stream_options.include_usage)
