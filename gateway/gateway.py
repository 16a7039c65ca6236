"""What the gateway does for a request: asks the orchestrator, and gives its answers a shape."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import Any, Protocol

from google.protobuf.json_format import MessageToDict
from starlette.responses import JSONResponse, Response

from gateway import anthropic, http_errors, llama_server, ollama
from gateway.accumulator import Accumulator
from gateway.bodies import written
from gateway.body_fields import Body, Prompt, name_of_input, named_as_in
from gateway.config import HttpConfig
from gateway.event_streams import DONE, EVENTS, LINES, EventStream, Framing, numbered
from gateway.metrics import Metrics
from gateway.openai import answers, requests, response_input, responses
from gateway.time_limit import in_time
from orchestrator.chat.template import ChatTemplate
from orchestrator.infill import Infill
from orchestrator.metering import for_client
from orchestrator.service import Orchestrator
from outrider import request_scope
from outrider.access import current_caller, said
from outrider.descriptions import own_source
from outrider.errors import Draining, InvalidRequest, OutriderError
from outrider.grammar.schema import passed_over
from outrider.grants import Right
from outrider.messages import ModelReference
from outrider.request import Request
from outrider.response import Event, Started
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.wire import write_reference
from outrider.wire_requests import write_parts

Prepare = Callable[[int, Started], Awaitable[None]]
"""What is done once the prompt of a number was read, before anything of its answer is made."""

_EMBEDDED_TOGETHER = 64  # texts of one EmbedRequest; its answer stays small

_log = logging.getLogger("outrider.http")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a family of routes reports errors and writes streams.

    An error in a stream is an event of the name `error_event`; other events are called by their
    type where they are `typed`, and `ending` comes after the last of them. `statuses` are those
    that a family has for some reasons in place of ours.
    """

    shape: Callable[[http_errors.HttpFailure], dict[str, Any]]
    error_event: str = ""
    typed: bool = False
    ending: bytes = b""
    framing: Framing = EVENTS
    statuses: Mapping[str, int] = field(default_factory=dict)

    def body(self, failure: http_errors.HttpFailure) -> dict[str, Any]:
        """Return the body of an error of the request that this task works for."""
        scope = request_scope.current()
        return self.shape(failure if scope is None else replace(failure, request_id=scope.id))

    def refusal(self, failure: http_errors.HttpFailure) -> Response:
        """Return the answer to a request that failed."""
        status = self.statuses.get(failure.reason or "", failure.status)
        return JSONResponse(self.body(failure), status_code=status, headers=failure.headers)

    def error(self, error: Exception) -> Response:
        """Return the answer to a request that failed with an error."""
        return self.refusal(failure_of(error))

    def last_words(self, error: Exception) -> bytes:
        """Return the event that ends a stream that failed."""
        return self.framing.write(self.body(failure_of(error)), self.error_event)


OPENAI = Dialect(http_errors.openai_body, ending=DONE)
RESPONSES = Dialect(http_errors.openai_body, typed=True)
LLAMA = Dialect(http_errors.llama_body)
ANTHROPIC = Dialect(http_errors.anthropic_body, error_event="error", typed=True)
OLLAMA = Dialect(http_errors.ollama_body, framing=LINES, statuses={"ENGINE_BUSY": 503})


class HttpAnswer(Protocol):
    """What a generating request is answered with, in one dialect.

    It comes as what each event of the orchestrator becomes, which `gathering` takes in there;
    or `whole`, once `gathering` has been given all of them.
    """

    gathering: Accumulator

    def events(self, prompt: int, event: Event) -> Iterator[dict[str, Any]]:
        """Yield what is sent of an event about the prompt of this number."""

    def whole(self) -> Any:
        """Return the answer as JSON once everything is finished."""


def failure_of(error: Exception) -> http_errors.HttpFailure:
    """Return the error as a client gets it: of a bug, which is logged, only an id."""
    if isinstance(error, OutriderError):
        return replace(http_errors.failure_of(error), message=said(error))
    error_id = secrets.token_hex(4)
    _log.error("internal error id=%s", error_id, exc_info=error)
    return http_errors.HttpFailure(500, f"internal error {error_id}", reason="INTERNAL")


class Gateway:
    """Answers requests with what an orchestrator brings."""

    def __init__(
        self, orchestrator: Orchestrator, config: HttpConfig, metrics: Metrics, version: str
    ) -> None:
        self._orchestrator = orchestrator
        self._config = config
        self._version = version
        self._created = int(time.time())
        self.metrics = metrics
        orchestrator.observe(metrics)

    # --- OpenAI ---

    async def complete(self, body: requests.CompletionBody) -> Response:
        """Continue prompts."""
        with named_as_in(body):
            parsed = requests.read_completion(body)
            if body.suffix:
                parsed = await self._before(body.suffix, parsed)
        shape = answers.TextShape(parsed.requests[0].logprobs is not None, parsed.choice_count)

        async def echo(number: int, prompt: Started) -> None:
            shape.echoes[number] = await self._echo(parsed.requests[number], prompt)

        return await self._openai(parsed, shape, "cmpl", echo if parsed.echoes else None)

    async def _before(self, suffix: str, ask: requests.Ask) -> requests.Ask:
        """Return what is asked for where each prompt is to be continued up to a suffix."""
        filled = []
        for each in ask.requests:
            if not isinstance(each.prompt, str):
                raise InvalidRequest("suffix", "needs a prompt that is a text")
            filled.append(await self._fill_in(each, Infill(each.prompt, suffix)))
        return replace(ask, requests=filled)

    async def _fill_in(self, request: Request, infill: Infill) -> Request:
        """Return a request with the prompt that asks for the middle of a text."""
        ids, model = await self._orchestrator.infill(infill, request.token_limit)
        return replace(request, prompt=ids, model=model)

    async def chat(self, body: requests.ChatBody) -> Response:
        """Answer a chat."""
        parsed = await self._read_chat(body, body)
        has_logprobs = parsed.requests[0].logprobs is not None
        # That of a token alone is in its report, and is not sent twice.
        is_reported = body.report and body.stream and (body.n_probs or 0) <= 1
        wants_logprobs = has_logprobs and (bool(body.logprobs) or not is_reported)
        shape = answers.ChatShape(wants_logprobs, secrets.token_hex(6), parsed.reading)
        return await self._openai(parsed, shape, "chatcmpl")

    async def count_chat(self, body: requests.ChatBody) -> Response:
        """Count the tokens of a chat's prompt."""
        count = _prompt_token_count(await self._read_chat(body, body))
        return JSONResponse({"object": "response.input_tokens", "input_tokens": count})

    async def _read_chat(self, body: requests.ChatBody, sent: Body) -> requests.Ask:
        """Return what a chat asks for, rendered and tokenized; `sent` is the client's own body."""
        chat = requests.read_template(body)
        rendered, model = await self._orchestrator.apply_template(chat)
        form = await asyncio.to_thread(self._orchestrator.chat_format)
        reading = requests.read_reading(body, form, rendered)
        with named_as_in(sent):
            required = await asyncio.to_thread(requests.read_required, body, reading)
        _pass_over(required.passed_over)
        prompt = await self._chat_ids(rendered + required.opening, model)
        reading = replace(reading, prompt=reading.prompt + required.opening)
        conversation = replace(chat, continuation=required.opening)
        with named_as_in(sent):
            parsed = requests.read_chat(
                body, prompt, reading, required.grammar, model, conversation
            )
        return replace(parsed, fields=sent)

    async def respond(self, body: response_input.ResponseBody) -> Response:
        """Answer in text, without a memory of former answers."""
        offered = response_input.read_tools(body.tools or [])
        chat = response_input.read_chat(body, offered)
        parsed = await self._read_chat(chat, body)
        _pass_over(offered.left_out)
        head = responses.ResponseHead(secrets.token_hex(12), int(time.time()))
        return await self._answer(
            parsed, responses.ResponseAnswer(head, body, offered, parsed), RESPONSES
        )

    async def embed(self, body: requests.EmbeddingBody) -> Response:
        """Embed texts."""
        found = await self._embed(requests.read_embedding(body), "input")
        return await written(
            answers.embeddings, found.model.name, found.embeddings, body.encoding_format
        )

    def models(self) -> list[dict[str, Any]]:
        """Return the models that can be asked for: the target, once it is known."""
        model = self._model()
        if not model.model_name:
            return []
        meta = {
            "vocab_type": model.vocabulary.type,
            "n_vocab": model.vocabulary.token_count,
            "n_ctx": model.context_token_count,
            "n_ctx_train": model.trained_context_token_count,
            "n_embd": model.embedding_width,
            "n_params": model.parameter_count,
            "size": model.weight_byte_count,
            "ftype": model.file_type,
        }
        return [answers.model_card(model.model_name, self._created, meta)]

    async def _openai(
        self,
        ask: requests.Ask,
        shape: answers.ChoiceShape,
        prefix: str,
        prepare: Prepare | None = None,
    ) -> Response:
        id_ = f"{prefix}-{secrets.token_hex(12)}"
        head = answers.Head(id_, int(time.time()), self._fingerprint())
        return await self._answer(
            ask, answers.OpenAIAnswer(head, shape, ask, time.perf_counter), OPENAI, prepare
        )

    async def _echo(self, request: Request, prompt: Started) -> answers.Echo:
        model = write_reference(prompt.model)
        ids = list(prompt.prompt_token_ids)
        text = request.prompt
        if not isinstance(text, str):
            text = await self._text(ids, model)
        texts = None
        if request.prompt_logprobs:
            texts = [(await self._text([token_id], model)).encode() for token_id in ids]
        return answers.echo_of(prompt, text, texts)

    async def _text(self, ids: Sequence[int], model: common.ModelReference | None = None) -> str:
        response = await self._orchestrator.detokenize(
            messages.DetokenizeRequest(token_ids=ids, model=model)
        )
        return response.text

    async def _chat_ids(self, prompt: str, model: ModelReference) -> list[int]:
        """Return the ids of a rendered chat, with BOS once, also where the template has it."""
        response = await self._orchestrator.tokenize(
            messages.TokenizeTextRequest(
                text=prompt, parse_special=True, model=write_reference(model)
            )
        )
        ids = [token.token_id for token in response.tokens]
        vocabulary = self._model().vocabulary
        if vocabulary.adds_bos and ids[:1] != [vocabulary.bos_token_id]:
            ids.insert(0, vocabulary.bos_token_id)
        return ids

    def _fingerprint(self) -> str:
        """Return what is equal as long as the same models answer in the same version."""
        status = self._orchestrator.status()
        digest = sha256(status.service_version.encode())
        # Those that joined come and go, and so do several of one model; neither changes a text.
        models = [(peer.role, peer.model) for peer in status.peers if not peer.joined]
        identities = [(role, model.model_name, model.identity.hex()) for role, model in models]
        for identity in dict.fromkeys(identities):
            digest.update(json.dumps(identity).encode())
        return f"fp_{digest.hexdigest()[:12]}"

    # --- Anthropic ---

    async def message(self, body: anthropic.MessagesBody) -> Response:
        """Answer a chat."""
        parsed = await self._read_chat(anthropic.read_messages(body), body)
        answer = anthropic.MessageAnswer(f"msg_{secrets.token_hex(12)}", parsed)
        return await self._answer(parsed, answer, ANTHROPIC)

    async def count_message(self, body: anthropic.PromptBody) -> Response:
        """Count the tokens of a chat's prompt."""
        parsed = await self._read_chat(anthropic.read_count(body), body)
        return JSONResponse({"input_tokens": _prompt_token_count(parsed)})

    # --- Ollama ---

    async def chat_ollama(self, body: ollama.OllamaChat) -> Response:
        """Answer a chat."""
        if not body.messages:
            return self._loaded(ollama.message_of)
        parsed = await self._read_chat(ollama.read_chat(body), body)
        return await self._ollama(parsed, ollama.message_of)

    async def generate_ollama(self, body: ollama.OllamaPrompt) -> Response:
        """Answer a prompt, or continue it where it is `raw` or has a `suffix`."""
        if not body.prompt:
            return self._loaded(ollama.response_of)
        if body.raw or body.suffix:
            with named_as_in(body):
                parsed = replace(ollama.read_raw(body), fields=body)
                if body.suffix:
                    parsed = await self._before(body.suffix, parsed)
        else:
            parsed = await self._read_chat(ollama.read_prompt(body), body)
        return await self._ollama(parsed, ollama.response_of)

    async def _ollama(self, ask: requests.Ask, shape: ollama.Shape) -> Response:
        answer = ollama.OllamaAnswer(ask, shape, _iso(time.time()), secrets.token_hex(6))
        return await self._answer(ask, answer, OLLAMA)

    def _loaded(self, shape: ollama.Shape) -> Response:
        """Return that the target is loaded, or why nothing can be asked."""
        if obstacle := self.obstacle():
            return OLLAMA.refusal(obstacle)
        return JSONResponse(ollama.loaded(self._model().model_name, _iso(time.time()), shape))

    async def embed_ollama(self, body: ollama.OllamaInput) -> Response:
        """Embed texts."""
        begin = time.perf_counter()
        cuts = body.truncate is not False
        found = await self._embed(ollama.read_inputs(body), "input", truncate=cuts)
        model = found.model.name or self._model().model_name
        return await written(ollama.embeddings, found, model, time.perf_counter() - begin)

    async def embed_one_ollama(self, body: ollama.OllamaText) -> Response:
        """Embed a text, as clients did before /api/embed."""
        texts: list[Prompt] = [body.prompt] if body.prompt else []
        return await written(ollama.embedding, await self._embed(texts, "prompt"))

    async def show_ollama(self, body: ollama.OllamaName) -> Response:
        """Describe the target."""
        model, name = self._model(), body.model or body.name or ""
        if not ollama.is_named(model.model_name, name):
            return OLLAMA.refusal(http_errors.HttpFailure(404, f"model {name!r:.80} not found"))
        about = ollama.description(model, self._template(), _iso(self._created))
        return JSONResponse(about)

    def models_ollama(self, shape: ollama.Card) -> dict[str, Any]:
        """Return the models that can be asked for: the target, once it is known."""
        model = self._model()
        return {"models": [shape(model, _iso(self._created))] if model.model_name else []}

    # --- llama-server ---

    async def complete_natively(self, body: llama_server.CompletionFields) -> Response:
        """Continue prompts."""
        with named_as_in(body):
            ask = llama_server.read_completion(body)
        answer = llama_server.NativeAnswer(ask, body, time.perf_counter)
        return await self._answer(ask, answer, LLAMA)

    async def fill_in(self, body: llama_server.InfillFields) -> Response:
        """Write what is missing between two texts."""
        with named_as_in(body):
            ask, infill, passed_over = llama_server.read_infill(body)
            filled = [await self._fill_in(each, infill) for each in ask.requests]
        _pass_over(passed_over)
        ask = replace(ask, requests=filled, fields=body)
        answer = llama_server.NativeAnswer(ask, body, time.perf_counter)
        return await self._answer(ask, answer, LLAMA)

    async def tokenize(self, body: llama_server.TokenizeBody) -> Response:
        """Turn text into token ids."""
        response = await self._orchestrator.tokenize(
            messages.TokenizeTextRequest(
                text=body.content,
                add_special=bool(body.add_special),
                parse_special=body.parse_special is not False,
            )
        )
        return await written(llama_server.token_list, response, bool(body.with_pieces))

    async def detokenize(self, body: llama_server.DetokenizeBody) -> Response:
        """Turn token ids into text."""
        response = await self._orchestrator.detokenize(
            messages.DetokenizeRequest(token_ids=body.tokens, show_special=True)
        )
        return JSONResponse({"content": response.text})

    async def apply_template(self, body: llama_server.TemplateBody) -> Response:
        """Render a chat as the prompt that the model sees."""
        prompt, _ = await self._orchestrator.apply_template(requests.read_template(body))
        return JSONResponse({"prompt": prompt})

    async def embed_natively(self, body: llama_server.EmbeddingFields) -> Response:
        """Embed texts."""
        inputs = llama_server.read_embedding(body)
        found = await self._embed(inputs, llama_server.embedded_field(body))
        return await written(llama_server.embeddings, found.embeddings, body)

    def properties(self) -> dict[str, Any]:
        """Return the answer of /props."""
        model = self._model()
        return llama_server.properties(
            model,
            self._template(),
            self._version,
            own_draft=own_source(model.own_draft) if model.HasField("own_draft") else None,
            endpoint_slots=self._config.slots,
        )

    def _template(self) -> ChatTemplate | None:
        """Return the template in use; None where it does not compile, and chats are refused."""
        try:
            return self._orchestrator.chat_template()
        except InvalidRequest:
            return None

    def slots(self) -> list[dict[str, Any]]:
        """Return the answer of /slots."""
        in_flight = [
            llama_server.RunningGeneration(each.speculates, each.token_count)
            for each in self._orchestrator.in_flight()
        ]
        return llama_server.slots(self._model(), in_flight)

    # --- state ---

    def obstacle(self) -> http_errors.HttpFailure | None:
        """Return why nothing can be asked now; None if it can."""
        status = self._orchestrator.status()
        if status.draining:
            return failure_of(Draining("the orchestrator is stopping"))
        ready = messages.PEER_STATE_READY
        if any(peer.role == "target" and peer.state == ready for peer in status.peers):
            return None
        return http_errors.HttpFailure(503, "Loading model")

    def status(self) -> dict[str, Any]:
        """Return the state of the orchestrator, under the names of its protobuf message.

        Chat templates are left out: they are long, and the page asks every 2 seconds.
        """
        status = self._orchestrator.status()
        if not current_caller().grant.allows(Right.OPERATOR):
            status = for_client(status)
        for peer in status.peers:
            if peer.HasField("model"):
                peer.model.ClearField("chat_template")
        return MessageToDict(status, preserving_proto_field_name=True)

    def _model(self) -> common.GetModelResponse:
        targets = [p for p in self._orchestrator.status().peers if p.role == "target"]
        ready = [peer for peer in targets if peer.state == messages.PEER_STATE_READY]
        return next((peer.model for peer in ready or targets), common.GetModelResponse())

    # --- asking ---

    async def _answer(
        self,
        ask: requests.Ask,
        answer: HttpAnswer,
        dialect: Dialect,
        prepare: Prepare | None = None,
    ) -> Response:
        """Return the answer, whole or as a stream; `prepare` gets how each prompt was read."""
        if ask.streams:
            return EventStream(
                self._events(ask, answer, dialect, prepare),
                refusal=dialect.error,
                last_words=dialect.last_words,
                ping_seconds=self._config.ping_seconds,
                framing=dialect.framing,
            )
        async with aclosing(self._generate(ask, prepare)) as stream:
            async for number, brought in stream:
                answer.gathering.add(number, brought)
        return await written(answer.whole)

    async def _events(
        self, ask: requests.Ask, answer: HttpAnswer, dialect: Dialect, prepare: Prepare | None
    ) -> AsyncGenerator[bytes]:
        async with aclosing(self._generate(ask, prepare)) as stream:
            async for number, brought in stream:
                for each in answer.events(number, brought):
                    yield dialect.framing.write(each, each["type"] if dialect.typed else "")
        if dialect.ending:
            yield dialect.ending

    async def _generate(
        self, ask: requests.Ask, prepare: Prepare | None
    ) -> AsyncGenerator[tuple[int, Event]]:
        """Yield what the generations bring, each with the number of its prompt."""
        credentials = current_caller().credentials
        streams = [partial(self._one, ask, each.separated(credentials)) for each in ask.requests]
        async with aclosing(numbered(streams)) as stream:
            async for number, brought in stream:
                if prepare and isinstance(brought, Started):
                    await prepare(number, brought)
                yield number, brought

    async def _one(self, ask: requests.Ask, request: Request) -> AsyncGenerator[Event]:
        """Yield what a generation brings; a refusal names the field as the client did."""
        counts_cached = ask.progress.reports_prompts
        generated = self._orchestrator.generate(request, counts_cached=counts_cached)
        if ask.most_seconds is not None:
            generated = in_time(generated, ask.most_seconds, time.perf_counter)
        with named_as_in(ask.fields):
            if request.json_schema:
                _pass_over(await asyncio.to_thread(passed_over, request.json_schema))
            async with aclosing(generated) as stream:
                async for brought in stream:
                    yield brought

    async def _embed(
        self, inputs: Sequence[Prompt], sent: str, *, truncate: bool = False
    ) -> messages.EmbedResponse:
        """Return the embeddings of any number of texts, all of them by one model.

        A refusal names the field `sent`, and the text in it. `truncate`: of a text that is too
        long, the start is embedded.
        """
        found = messages.EmbedResponse()
        for first in range(0, len(inputs), _EMBEDDED_TOGETHER):
            some = inputs[first : first + _EMBEDDED_TOGETHER]
            request = messages.EmbedRequest(
                inputs=[_parts(each) for each in some], model=found.model, truncate=truncate
            )
            try:
                found.MergeFrom(await self._orchestrator.embed(request))
            except InvalidRequest as refusal:
                name = name_of_input(refusal.field, sent, len(inputs), first)
                raise refusal.named(name) from refusal
        return found


def _pass_over(what: Sequence[str]) -> None:
    """Have the answer say what of the request is not kept."""
    if (scope := request_scope.current()) is not None:
        scope.passed_over = tuple(dict.fromkeys((*scope.passed_over, *what)))


def _iso(seconds: float) -> str:
    """Return a Unix time in ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _parts(prompt: Prompt) -> messages.PromptParts:
    return write_parts([prompt] if isinstance(prompt, str) else prompt)


def _prompt_token_count(parsed: requests.Ask) -> int:
    return sum(len(each.prompt) for each in parsed.requests)
