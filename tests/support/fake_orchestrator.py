"""An orchestrator without models: every token is a piece of a text that is fixed beforehand."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import replace

from orchestrator.chat.format import ChatFormat
from orchestrator.chat.template import ChatTemplate
from orchestrator.completions import InFlight, Observer
from orchestrator.infill import Infill, arrange, room_for
from outrider.errors import InvalidRequest
from outrider.messages import ANY_MODEL, DraftEnd, FinishReason, ModelReference, Origin
from outrider.request import Conversation, Detail, Request
from outrider.response import (
    Delta,
    Event,
    Finished,
    Logprob,
    RoundReport,
    Started,
    Statistics,
    TextPiece,
    Token,
)
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages

BOS, EOS = 1, 2
_FIRST_BYTE = 3
_FIRST_MARK = _FIRST_BYTE + 256
_MARKS = ("PRE", "SUF", "MID", "REP", "FILE")
VOCABULARY = _FIRST_MARK + len(_MARKS)
"""BOS, EOS, one token that is never used, one for every byte, and those of FIM."""

_NAMES = {BOS: b"<s>", EOS: b"</s>"} | {
    _FIRST_MARK + i: f"<{mark}>".encode() for i, mark in enumerate(_MARKS)
}
FIM = common.FimTokens(
    **{
        f"{name}_token_id": _FIRST_MARK + i
        for i, name in enumerate(("prefix", "suffix", "middle", "repository", "file"))
    }
)
_DRAFT_LENGTH = 3
_ORIGINS = (
    Origin.DRAFTED,
    Origin.DRAFTED,
    Origin.CORRECTED,
)
_CONTEXT = 512
MODEL = "fake-1b"


def ids_of(text: str) -> list[int]:
    """Return the tokens of a text: its bytes."""
    return [_FIRST_BYTE + byte for byte in text.encode()]


def text_of(token_id: int) -> bytes:
    """Return what a token adds to a text."""
    is_byte = _FIRST_BYTE <= token_id < _FIRST_MARK
    return bytes([token_id - _FIRST_BYTE]) if is_byte else b""


def shown(ids: Iterable[int]) -> str:
    """Return a prompt with the names of control tokens."""
    return b"".join(_NAMES.get(each) or text_of(each) for each in ids).decode()


class FakeOrchestrator:
    """Writes `text` in answer to everything, three tokens a round, two of them drafted.

    The first answers are `texts`, as long as there are any.

    `error` is raised after `error_after` rounds; with `stalls_after` it stops
    there and continues when `go_on` is set. `closed_count` counts the generations
    that ended or were closed, `requests` are those seen.
    """

    def __init__(
        self,
        text: str = "Hello, wörld!",
        template: str = "",
        own_draft: common.OwnDraft | None = None,
    ) -> None:
        self.text = text
        self.texts: list[str] = []
        self.template, self.own_draft = template, own_draft
        self.fim: common.FimTokens | None = FIM
        self.renders = False  # with that template, in place of lines
        self.controls: tuple[str, ...] = ()  # names in the text that are control tokens
        self.predicted = (0, 0)  # tokens of the request's prediction that stand, and that do not
        self.error: Exception | None = None
        self.error_after = 0
        self.stalls_after: int | None = None
        self.round_seconds = 0.0
        self.go_on = asyncio.Event()
        self.stalled = asyncio.Event()
        self.requests: list[Request] = []
        self.templates: list[Conversation] = []
        self.open_count = 0
        self.idle = asyncio.Event()
        self.closed_count = 0
        self.is_ready = True
        self.observers: list[Observer] = []
        self.generations: list[InFlight] = []

    def observe(self, observer: Observer) -> None:
        """Show an observer all generations."""
        self.observers.append(observer)

    def generate(
        self,
        request: Request,
        seconds: float | None = None,
        counts_cached: bool = False,
    ) -> AsyncGenerator[Event]:
        """Yield the text, in rounds."""
        events = self._generate(request)
        for observer in self.observers:
            events = observer.watch(events, request.completion_count)
        return events

    def in_flight(self) -> list[InFlight]:
        """Return the generations in flight."""
        return self.generations

    async def _generate(self, request: Request) -> AsyncGenerator[Event]:
        self.requests.append(request)
        self.open_count += 1
        self.idle.clear()
        in_flight = InFlight(request.enabled is not False)
        self.generations.append(in_flight)
        try:
            prompt = _prompt_of(request)
            await self._disturb(0)
            yield self._started(request, prompt)
            for choice in range(request.completion_count):
                for round_number, event in enumerate(self._completion(request, prompt, choice), 1):
                    if isinstance(event, Delta):
                        await self._disturb(round_number)
                        in_flight.token_count += len(event.token_ids)
                    yield event
        finally:
            self.closed_count += 1
            self.generations.remove(in_flight)
            self.open_count -= 1
            if not self.open_count:
                self.idle.set()

    async def _disturb(self, round_number: int) -> None:
        await asyncio.sleep(self.round_seconds)
        if self.error is not None and round_number >= self.error_after:
            raise self.error
        if self.stalls_after is not None and round_number > self.stalls_after:
            self.stalled.set()
            await self.go_on.wait()

    def _started(self, request: Request, prompt: list[int]) -> Started:
        logprobs: tuple[Logprob, ...] = ()
        if request.prompt_logprobs and request.logprobs:
            top_count = request.logprobs.top_count
            logprobs = tuple(_logprob(token_id, top_count) for token_id in prompt)
        return Started(
            prompt_token_ids=tuple(prompt),
            seed=7 if request.seed is None else request.seed,
            acceptance=request.rule,
            cached_token_count=1,
            context_token_count=_CONTEXT,
            prompt_logprobs=logprobs,
            sampling=request.sampling,
            token_limit=request.token_limit,
            model=ModelReference(name=MODEL),
        )

    def _completion(self, request: Request, prompt: list[int], choice: int) -> Iterator[Event]:
        ids, shown, reason, stop = _cut(request, self.texts.pop(0) if self.texts else self.text)
        rounds = 0
        for first in range(0, len(ids), _DRAFT_LENGTH):
            some = ids[first : first + _DRAFT_LENGTH]
            rounds += 1
            delta = _delta(request, some, shown, first, rounds, len(prompt))
            if self.controls:
                pieces = _marked(self.controls, shown, first, first + len(some))
                delta = replace(delta, pieces=tuple(pieces))
            if request.running_statistics:
                so_far = _statistics(first + len(some), len(prompt), rounds)
                delta = replace(delta, statistics=so_far)
            yield replace(delta, choice=choice)
        accepted, rejected = self.predicted
        whole = replace(
            _statistics(len(ids), len(prompt), rounds),
            accepted_prediction_token_count=accepted,
            rejected_prediction_token_count=rejected,
        )
        yield Finished(reason, whole, stop_sequence=stop, choice=choice)

    async def tokenize(
        self, request: messages.TokenizeTextRequest
    ) -> messages.TokenizeTextResponse:
        """Return the bytes as tokens."""
        ids = ([BOS] if request.add_special else []) + ids_of(request.text)
        return messages.TokenizeTextResponse(
            tokens=[messages.Token(token_id=i, text=text_of(i)) for i in ids]
        )

    async def infill(self, asked: Infill, token_limit: int) -> tuple[list[int], ModelReference]:
        """Return the prompt by which a text is filled in."""
        ids = {text: ids_of(text) for text in asked.texts()}
        room = room_for(_CONTEXT, token_limit)
        return arrange(asked, self._vocabulary(), ids, room), ANY_MODEL

    def _vocabulary(self) -> common.Vocabulary:
        return common.Vocabulary(
            token_count=VOCABULARY,
            bos_token_id=BOS,
            eos_token_id=EOS,
            adds_bos=True,
            fim_tokens=self.fim,
        )

    async def detokenize(self, request: messages.DetokenizeRequest) -> messages.DetokenizeResponse:
        """Return the bytes as text."""
        for token_id in request.token_ids:
            _check_id(token_id)
        special = _NAMES if request.show_special else {}
        text = b"".join(special.get(each) or text_of(each) for each in request.token_ids)
        return messages.DetokenizeResponse(text=text.decode("utf-8", "replace"))

    async def apply_template(self, conversation: Conversation) -> tuple[str, ModelReference]:
        """Render `role: content` lines."""
        self.templates.append(conversation)
        if self.renders:
            prompt = self.chat_template().render(
                conversation.chat,
                strftime_now=lambda form: "",
                tools=conversation.tools or None,
                add_generation_prompt=conversation.add_generation_prompt,
                chat_template_kwargs=conversation.variables,
            )
            return prompt, ANY_MODEL
        lines = []
        for message in conversation.chat:
            if not isinstance(message.get("role"), str):
                raise InvalidRequest("messages", "each needs a role")
            lines.append(f"{message['role']}: {message.get('content')}\n")
        return "".join(lines), ANY_MODEL

    def chat_format(self) -> ChatFormat:
        """Return what the template shows."""
        return replace(self.chat_template().form, controls=self.controls)

    def chat_template(self) -> ChatTemplate:
        """Return the template."""
        return ChatTemplate(self.template, bos_token="<s>", eos_token="</s>")

    async def embed(self, request: messages.EmbedRequest) -> messages.EmbedResponse:
        """Return a vector of length 1 that depends on the text's length."""
        embeddings = []
        for each in request.inputs:
            count = sum(len(ids_of(part.text)) or 1 for part in each.parts)
            values = [0.6, 0.8] if count % 2 else [0.8, -0.6]
            embeddings.append(messages.Embedding(values=values, token_count=count, norm=5.0))
        model = common.ModelReference(name=MODEL)
        return messages.EmbedResponse(embeddings=embeddings, model=model)

    def status(self) -> messages.GetStatusResponse:
        """Tell of a target and a draft."""
        state = messages.PEER_STATE_READY if self.is_ready else messages.PEER_STATE_LOADING
        model = common.GetModelResponse(
            model_name=MODEL,
            context_token_count=_CONTEXT,
            session_count=4,
            parameter_count=10**9,
            weight_byte_count=2 * 10**9,
            trained_context_token_count=8192,
            embedding_width=64,
            file_type="F16",
            chat_template=self.template,
            own_draft=self.own_draft,
            vocabulary=self._vocabulary(),
        )
        return messages.GetStatusResponse(
            service_version="0",
            peers=[
                messages.PeerStatus(role="draft", state=state),
                messages.PeerStatus(role="target", state=state, model=model),
            ],
            speculating=True,
        )


def _prompt_of(request: Request) -> list[int]:
    parts = [request.prompt] if isinstance(request.prompt, str) else request.prompt
    ids = [BOS] if parts and isinstance(parts[0], str) else []
    for part in parts:
        ids += ids_of(part) if isinstance(part, str) else [part]
    for token_id in ids:
        _check_id(token_id)
    if not ids:
        raise InvalidRequest("prompt", "is empty")
    return ids


def _check_id(token_id: int) -> None:
    if not 0 <= token_id < VOCABULARY:
        raise InvalidRequest("prompt", f"{token_id} is no token id")


def _cut(request: Request, text: str) -> tuple[list[int], bytes, FinishReason, str]:
    """Return the tokens, the bytes of them that are shown, why they end, and the stop sequence."""
    ids, shown, reason, stop = [*ids_of(text), EOS], text.encode(), FinishReason.END_OF_TEXT, ""
    found = [(text.find(each), each) for each in request.stop_sequences if each in text]
    if found:
        at, stop = min(found)
        shown = text[:at].encode()
        ids = ids_of(text[: at + len(stop)])
        reason = FinishReason.STOP_SEQUENCE
    limit = request.token_limit
    if 0 <= limit < len(ids):
        return ids[:limit], shown[:limit], FinishReason.TOKEN_LIMIT, ""
    return ids, shown, reason, stop


def _delta(
    request: Request,
    some: list[int],
    shown: bytes,
    first: int,
    round_number: int,
    prompt_count: int,
) -> Delta:
    # Whole characters only, as far as the tokens go; all the rest with the last ones.
    def whole(end: int) -> int:
        while end < len(shown) and shown[end] & 0xC0 == 0x80:
            end -= 1
        return min(end, len(shown))

    text = shown[whole(first) : whole(first + len(some))].decode("utf-8", "replace")
    origins = _ORIGINS[: len(some)]
    logprobs: tuple[Logprob, ...] = ()
    if request.logprobs is not None:
        logprobs = tuple(_logprob(token_id, request.logprobs.top_count) for token_id in some)
    tokens = [Token(i, text_of(i)) for i in some]
    rejected = Token(ids_of("?")[0], b"?")
    report = RoundReport(
        round=round_number,
        committed_token_count=prompt_count + first,
        draft=tuple([*tokens[: _DRAFT_LENGTH - 1], rejected][:_DRAFT_LENGTH]),
        accepted_token_count=min(len(some), _DRAFT_LENGTH - 1),
        target=tokens[-1],
        draft_end=DraftEnd.LENGTH,
        positions=(),
    )
    return Delta(
        token_ids=tuple(some),
        origins=origins,
        token_texts=tuple(text_of(each) for each in some),
        pieces=(TextPiece(text, origins[-1]),) if text else (),
        logprobs=logprobs,
        report=None if request.detail is Detail.NOTHING else report,
    )


def _marked(controls: tuple[str, ...], shown: bytes, first: int, end: int) -> Iterator[TextPiece]:
    """Yield the pieces with names as control tokens, each where its last byte is."""
    names = "|".join(map(re.escape, sorted(controls, key=len, reverse=True)))
    at = 0
    for found in [*re.finditer(names.encode(), shown), None]:
        start, stop = found.span() if found else (len(shown), len(shown))
        text = shown[max(at, first) : min(start, end)] if max(at, first) < min(start, end) else b""
        if text:
            yield TextPiece(text.decode(errors="ignore"), Origin.PLAIN)
        if found and first < stop <= end:
            yield TextPiece(found[0].decode(), Origin.PLAIN, control=True)
        at = stop


def _logprob(token_id: int, top_count: int) -> Logprob:
    others = [token_id, _FIRST_BYTE + 120, _FIRST_BYTE + 121, _FIRST_BYTE + 122][:top_count]
    return Logprob(
        -0.25,
        tuple(
            (Token(other, text_of(other)), -0.25 if other == token_id else -float("inf"))
            for other in others
        ),
    )


def _statistics(token_count: int, prompt_count: int, rounds: int) -> Statistics:
    accepted = sum(min(2, token_count - 3 * i) for i in range(rounds))
    return Statistics(
        prompt_token_count=prompt_count,
        generated_token_count=token_count,
        drafted_token_count=_DRAFT_LENGTH * rounds,
        accepted_token_count=accepted,
        round_count=rounds,
        drafted_round_count=rounds,
        drafted_by_position=(rounds,) * _DRAFT_LENGTH if rounds else (),
        accepted_by_position=(rounds, accepted - rounds, 0) if rounds else (),
        drafted_by_round=(_DRAFT_LENGTH,) * rounds,
        accepted_by_round=tuple(min(2, token_count - 3 * i) for i in range(rounds)),
        first_token_seconds=0.002,
        prompt_seconds=0.01,
        generation_seconds=0.04,
        verify_wait_seconds=0.03,
        cached_token_count=1,
    )
