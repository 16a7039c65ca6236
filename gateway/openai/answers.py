"""OpenAI's API: the events of generations to answers and chunks. Pure."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.accumulator import Accumulator, Addition, CommittedToken, Completion
from gateway.openai.requests import Ask
from gateway.token_reports import TokenReports, finite
from gateway.turns import ChatReading, TurnStream
from gateway.usage import reports, usage
from orchestrator.chat.events import Arguments, CallBegun, Content, Thought, TurnEvent
from outrider.messages import FinishReason
from outrider.response import Event, Finished, Started, Token
from outrider.v1 import orchestrator_service_pb2 as messages

_FINISH_REASONS = {
    FinishReason.END_OF_TEXT: "stop",
    FinishReason.STOP_SEQUENCE: "stop",
}


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


class ChoiceShape(Protocol):
    """One of OpenAI's endpoints: how its choices look, whole and in pieces."""

    @property
    def kind(self) -> str:
        """The object type of an answer."""

    @property
    def chunk_kind(self) -> str:
        """The object type of a chunk."""

    def choice(self, index: int, completion: Completion) -> dict[str, Any]:
        """Return a whole choice."""

    def empty(self, index: int) -> dict[str, Any]:
        """Return a choice that adds nothing, while its prompt is read."""

    def pieces(self, index: int, addition: Addition) -> Iterator[dict[str, Any]]:
        """Yield what there is to send of an addition, as choices without a finish reason."""

    def last(self, index: int, completion: Completion) -> Iterator[dict[str, Any]]:
        """Yield the last pieces of a choice; the last of them has the finish reason."""


class OpenAIAnswer:
    """The answer of one of OpenAI's endpoints: chunks of choices, or all of them at once.

    `clock` measures the seconds between events, which reports of tokens hold.
    """

    def __init__(
        self, head: Head, shape: ChoiceShape, ask: Ask, clock: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._head = head
        self._shape = shape
        self._ask = ask
        self.gathering = ask.gathering()
        self._reports = TokenReports(self.gathering, clock)
        self._open = len(self.gathering.completions)

    def whole(self) -> dict[str, Any]:
        """Return the answer once everything is finished."""
        gathering = self.gathering
        return {
            **self._head.of(self._shape.kind, gathering.model),
            "choices": [
                self._shape.choice(i, each) for i, each in enumerate(gathering.completions)
            ],
            "usage": _usage(gathering),
            **_reports(gathering),
        }

    def events(self, prompt: int, event: Event) -> Iterator[dict[str, Any]]:
        """Yield the chunks that an event becomes."""
        addition = self.gathering.add(prompt, event)
        report = self._reports.of(prompt, event) if self._ask.reports_tokens else {}
        index = self.gathering.index(prompt, event)
        timed = self._ask.progress.timings(event)
        read = self._ask.progress.prompt(prompt, event)
        if read:
            yield self._chunk([self._shape.empty(index)]) | timed | read
        if addition is None:
            return
        pieces = list(self._shape.pieces(index, addition))
        for piece in pieces or [self._shape.empty(index)] * bool(report):
            yield self._chunk([piece]) | timed | report
            report = {}
        if not isinstance(event, Finished):
            return
        self._open -= 1
        pieces = list(self._shape.last(index, self.gathering.completions[index]))
        for piece in pieces[:-1]:
            yield self._chunk([piece]) | timed
        ending = self._chunk(pieces[-1:]) | timed
        if self._ask.reports_tokens:
            ending |= self._reports.ending(prompt, event)
        if self._open or self._ask.includes_usage:
            yield ending
        else:
            yield ending | _reports(self.gathering)
        if not self._open and self._ask.includes_usage:
            counted = _usage(self.gathering)
            yield self._chunk([]) | {"usage": counted} | _reports(self.gathering)

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = self._head.of(self._shape.chunk_kind, self.gathering.model)
        chunk = {**head, "choices": choices}
        return chunk | {"usage": None} if self._ask.includes_usage else chunk


def _usage(gathering: Accumulator) -> dict[str, Any]:
    return usage(gathering.started, gathering.statistics, is_predicted=gathering.is_predicted)


def _reports(gathering: Accumulator) -> dict[str, Any]:
    """Return how speculation went, as llama-server and vLLM report it, of a single completion."""
    if len(gathering.completions) != 1:
        return {"metrics": None}
    (statistics,) = gathering.statistics
    return reports(statistics)


def finish_reason(finished: Finished) -> str:
    """Return why a completion ended."""
    return _FINISH_REASONS.get(finished.reason, "length")


def _finished(completion: Completion) -> Finished:
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

    def empty(self, index: int) -> dict[str, Any]:
        """Return a choice without text."""
        return self._choice(index, "", (), 0, None)

    def pieces(self, index: int, addition: Addition) -> Iterator[dict[str, Any]]:
        """Yield the new text, the first time after the prompt if that is echoed."""
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
        value = finite(token.logprob.value)
        top = {_decode(each.text): finite(other) for each, other in _top(token)}
        shape["token_logprobs"].append(value)
        shape["top_logprobs"].append(top | {text: value})
    return shape


def echo_of(prompt: Started, text: str, token_texts: Sequence[bytes] | None) -> Echo:
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
    """Choices of /v1/chat/completions. `nonce` makes the ids of calls unique."""

    wants_logprobs: bool
    nonce: str
    reading: ChatReading = field(default_factory=ChatReading)
    kind: str = "chat.completion"
    chunk_kind: str = "chat.completion.chunk"
    _streams: dict[int, TurnStream] = field(default_factory=dict)
    _call_counts: dict[int, int] = field(default_factory=dict)

    def choice(self, index: int, completion: Completion) -> dict[str, Any]:
        """Return a whole choice."""
        turn = self.reading.turn(completion, index, "call", self.nonce)
        message: dict[str, Any] = {"role": "assistant", "content": turn.content, "refusal": None}
        if turn.thoughts:
            message["reasoning_content"] = turn.thoughts
        if turn.calls:
            message["content"] = turn.content or None
            message["tool_calls"] = [
                _call(call.id, call.name, call.arguments) for call in turn.calls
            ]
        reason = finish_reason(_finished(completion))
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(completion.shown),
            "finish_reason": "tool_calls" if turn.calls and reason == "stop" else reason,
        }

    def empty(self, index: int) -> dict[str, Any]:
        """Return a choice without content."""
        return self._piece(index, {"role": "assistant", "content": None})

    def pieces(self, index: int, addition: Addition) -> Iterator[dict[str, Any]]:
        """Yield the role at first, then content and calls as they become certain."""
        if index not in self._streams:
            self._streams[index] = TurnStream(self.reading, index, "call", self.nonce)
            self._call_counts[index] = 0
            yield self._piece(index, {"role": "assistant", "content": ""})
        events = self._streams[index].add(addition)
        yield from self._deltas(index, events, addition.tokens)

    def last(self, index: int, completion: Completion) -> Iterator[dict[str, Any]]:
        """Yield what was not certain before, then the finish reason."""
        stream = self._streams[index]
        yield from self._deltas(index, stream.finish(completion), ())
        reason = finish_reason(_finished(completion))
        called = stream.has_called and reason == "stop"
        yield self._piece(index, {}, reason="tool_calls" if called else reason)

    def _deltas(
        self, index: int, events: Iterable[TurnEvent], tokens: Sequence[CommittedToken]
    ) -> Iterator[dict[str, Any]]:
        deltas = [delta for event in events if (delta := self._delta(index, event))]
        if tokens and self.wants_logprobs and not deltas:
            deltas.append({"content": ""})
        for delta in deltas:
            yield self._piece(index, delta, tokens)
            tokens = ()

    def _delta(self, index: int, event: TurnEvent) -> dict[str, Any] | None:
        match event:
            case Content(text):
                return {"content": text}
            case Thought(text):
                return {"reasoning_content": text}
            case CallBegun(name, id_):
                self._call_counts[index] += 1
                call = {"index": self._call_counts[index] - 1, **_call(id_, name, "")}
                return {"tool_calls": [call]}
            case Arguments(text):
                number = self._call_counts[index] - 1
                return {"tool_calls": [{"index": number, "function": {"arguments": text}}]}
        return None

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
        return {"content": [chat_logprob(token) for token in tokens], "refusal": None}


def _call(id_: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def chat_logprob(token: CommittedToken) -> dict[str, Any]:
    """Return a token of a chat with its log probability and the most probable ones."""
    value = token.logprob.value if token.logprob is not None else 0.0
    return {
        **_token_logprob(token.text, value),
        "top_logprobs": [_token_logprob(each.text, other) for each, other in _top(token)],
    }


def _token_logprob(text: bytes, value: float) -> dict[str, Any]:
    return {"token": _decode(text), "logprob": finite(value), "bytes": list(text)}


def _top(token: CommittedToken) -> Iterable[tuple[Token, float]]:
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


def model_list(cards: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the answer of /v1/models, with llama-server's list in Ollama's shape besides."""
    return {
        "models": [_ollama_card(card["id"]) for card in cards],
        "object": "list",
        "data": cards,
    }


def _ollama_card(model: str) -> dict[str, Any]:
    """Return a model as llama-server lists it: its name, and nothing under the other fields."""
    nothing = ("modified_at", "size", "digest", "description", "parameters")
    return {
        "name": model,
        "model": model,
        "type": "model",
        **dict.fromkeys(nothing, ""),
        "tags": [""],
        "capabilities": ["completion"],
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": "",
            "families": [""],
            "parameter_size": "",
            "quantization_level": "",
        },
    }


def model_card(model: str, created: int, meta: dict[str, Any]) -> dict[str, Any]:
    """Return one model of /v1/models."""
    return {
        "id": model,
        "aliases": [],
        "tags": [],
        "object": "model",
        "created": created,
        "owned_by": "outrider",
        "meta": meta,
    }
