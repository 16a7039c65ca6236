"""The target's gRPC edge: reads rounds, has them verified, writes rows."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, cast

import grpc

from outrider import tracing, wire, wire_rounds
from outrider.engine.head_draft import HeadTarget
from outrider.engine.host import EngineHost
from outrider.engine.hosting import Loaded
from outrider.engine.job import Ticket
from outrider.engine.model import Model
from outrider.engine.own_draft import OwnDraft
from outrider.errors import (
    ContextExhausted,
    EngineBusy,
    InvalidRequest,
    PositionPastCache,
    RoundSuperseded,
)
from outrider.grammar.schema import grammar_of_schema
from outrider.messages import (
    MAX_BEAMS,
    MAX_SCORES,
    Answer,
    Form,
    OwnTokens,
    Round,
    Rows,
    ServiceTime,
    SessionParameters,
    contradicts,
)
from outrider.model_service.servicer import (
    ModelService,
    Ownership,
    run_stream,
)
from outrider.row_window import RowWindow
from outrider.rpc.channel import MESSAGE_BYTES
from outrider.sampling import SamplingParameters
from outrider.texts import check_count, longest_token, most_bytes
from outrider.tracing import NOTHING, TraceSpan
from outrider.v1 import common_pb2 as common
from outrider.v1 import target_service_pb2 as messages
from outrider.v1 import target_service_pb2_grpc as stubs
from target_service.beam_search import BeamSearch
from target_service.tree_rounds import check_tree_round
from target_service.verifier import KeptRows, Verifier, score

_MOST_UNANSWERED = 16
"""Rounds of one stream that may wait, or whose answers may; no more are read until they went."""

Context = grpc.aio.ServicerContext[Any, Any]

_GATHER_SECONDS = 0.1
"""s; between two messages of what is written while nobody waits for each token. Each takes target
and orchestrator 2 ms of the processor: .68, .79, .85 and .84 of llama-server's rate with .016, .05,
.1 and .25 on two cores (docs/decisions/0018)."""
_SEVERAL = 3
"""Open sessions from which on that is twice as long: each sends its own messages."""
_MOST_REPLIES = 256  # kept; the longest unused are forgotten
_KEPT_REPLY_BYTES = 1 << 16
_LONG_TEXT = 1 << 16  # bytes; texts above it are tokenized one after the other


@dataclass(slots=True, eq=False)
class _Waiting:
    """A round that is queued, being verified, or answered already by a kept reply."""

    round: Round
    asked: messages.VerifyRound
    ticket: Ticket | None = None  # None: the engine's queue was full, or there is a kept reply
    kept: Sequence[messages.VerifyResponse] = ()
    answers: deque[Answer] = field(default_factory=deque)  # not written yet
    is_answered: bool = False  # some were written
    news: asyncio.Event = field(default_factory=asyncio.Event)  # there are answers, or it is over
    is_watched: bool = False  # answers have to set `news`: the writer waits, or is about to
    span: TraceSpan = NOTHING  # of few rounds; `spent` is on their answers so far
    spent: ServiceTime = field(default_factory=ServiceTime)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A session's last reply, and what it answered."""

    sampled_by: tuple[object, ...]
    asked: messages.VerifyRound
    reply: list[messages.VerifyResponse]


def _sampled_by(opening: SessionParameters) -> tuple[object, ...]:
    """Return what rows depend on besides the tokens."""
    return opening.sampling, opening.seed, opening.choice


class TargetServicer(ModelService, stubs.TargetServiceServicer):
    """TargetService over one engine."""

    def __init__(self, host: EngineHost, alias: str) -> None:
        super().__init__(host, alias)
        self._model: Model | None = None
        self._draft: OwnDraft | None = None  # the engine's own; None where it has none
        self._kept_rows: KeptRows | None = None  # hidden ones; None where the model keeps none
        self._replies: dict[bytes, _Kept] = {}
        self._long_texts = asyncio.Lock()  # held while a long text is tokenized
        self._most_text_bytes = 0  # of one Tokenize; set with the model

    def set_loaded(self, loaded: Loaded) -> None:
        super().set_loaded(loaded)
        self._model = loaded.model
        self._draft = loaded.own_draft
        if loaded.model.describe().hidden_row_width:
            self._kept_rows = cast(HeadTarget, loaded.model).hidden_rows
        assert self._response is not None
        self._response.continues = True
        context = self.require_loaded().context_token_count
        self._most_text_bytes = most_bytes(context, longest_token(self._texts, self._names))

    def set_own_draft(self, draft: OwnDraft) -> None:
        super().set_own_draft(draft)
        self._draft = draft

    async def Tokenize(
        self, request: messages.TokenizeRequest, context: Context
    ) -> messages.TokenizeResponse:
        self.require_model(request.model)
        check_count("texts", len(request.texts))
        byte_count = sum(len(text.encode()) for text in request.texts)
        if byte_count > self._most_text_bytes:
            most = self._most_text_bytes
            raise InvalidRequest("text", f"{byte_count} bytes, at most {most}")
        assert self._model is not None
        # Long texts wait for each other, so that short ones find a thread and the memory is one's.
        async with self._long_texts if byte_count > _LONG_TEXT else nullcontext():
            return await asyncio.to_thread(_tokenize, self._model, request)

    async def CompileGrammar(
        self, request: messages.CompileGrammarRequest, context: Context
    ) -> messages.CompileGrammarResponse:
        self.require_model(request.model)
        assert self._model is not None
        grammar = await asyncio.to_thread(_compile, self._model, request)
        return messages.CompileGrammarResponse(grammar=grammar)

    async def CountCached(
        self, request: messages.CountCachedRequest, context: Context
    ) -> messages.CountCachedResponse:
        self.require_model(request.model)
        salt = wire.read_salt(request.cache_salt)
        count = self.host.cached_count(list(request.token_ids), salt)
        return messages.CountCachedResponse(cached_token_count=count)

    async def Embed(
        self, request: messages.EmbedTokensRequest, context: Context
    ) -> messages.EmbedTokensResponse:
        capacity = self.require_model(request.model).context_token_count
        ids = wire.read_ids("token_ids", request.token_ids, self.vocabulary_size)
        if not 0 < len(ids) <= capacity:
            raise InvalidRequest("token_ids", f"{len(ids)} tokens, at least 1, at most {capacity}")
        values = await asyncio.wrap_future(self.host.embed(ids))
        return messages.EmbedTokensResponse(values=values.tolist())

    async def Score(
        self, request: messages.ScoreRequest, context: Context
    ) -> AsyncIterator[messages.ScoreResponse]:
        self.require_model(request.open.model)
        opening = wire.read_opening(request.open)
        ids = wire.read_ids("token_ids", request.token_ids, self.vocabulary_size)
        if not ids:
            raise InvalidRequest("token_ids", "is empty")
        top_count = opening.logprobs.top_count if opening.logprobs else 0
        ticket = self.host.submit(
            opening.session_id, lambda lease: score(lease, ids, top_count), salt=opening.salt
        )
        try:
            scores = await asyncio.wrap_future(ticket.future)
        except asyncio.CancelledError:
            self.host.cancel(ticket)
            raise
        for first in range(0, len(scores), MAX_SCORES):
            part = scores[first : first + MAX_SCORES]
            yield messages.ScoreResponse(logprobs=[wire.write_logprobs(each) for each in part])

    async def SearchBeams(
        self, request: messages.SearchBeamsRequest, context: Context
    ) -> AsyncIterator[messages.SearchBeamsResponse]:
        most = min(MAX_BEAMS, self.require_model(request.open.model).session_count)
        assert self._model is not None
        if not 1 <= request.beam_count <= most:
            raise InvalidRequest("beam_count", f"must be in [1, {most}], not {request.beam_count}")
        size = self.vocabulary_size
        prompt = wire.read_ids("token_ids", request.token_ids, size)
        if not prompt:
            raise InvalidRequest("token_ids", "is empty")
        ends = frozenset(wire.read_ids("end_token_ids", request.end_token_ids, size))
        search = await asyncio.to_thread(
            BeamSearch,
            self.host,
            self._model,
            wire.read_opening(request.open),
            prompt,
            request.beam_count,
            ends,
        )
        async with aclosing(search.run()) as stream:
            async for found in stream:
                yield messages.SearchBeamsResponse(
                    token_ids=found.token_ids,
                    logprobs=[wire.write_logprobs(each) for each in found.logprobs if each],
                    service_time=wire.write_time(found.spent),
                    cached_token_count=found.cached_count,
                )

    async def Verify(
        self, request_iterator: AsyncIterator[messages.VerifyRequest], context: Context
    ) -> None:
        self.require_loaded()
        assert self._model is not None
        opening, rounds = await self.read_opening(request_iterator)
        # A grammar, or what DRY needs to know of the vocabulary, may take a while.
        used = self._model, opening, self._draft, self._kept_rows
        verifier = await asyncio.to_thread(Verifier, *used)
        owner = self.take(opening.session_id, opening.attempt)
        stream = _VerifyStream(self, opening, owner, verifier)
        try:
            await run_stream(owner, stream.read(rounds), stream.answer(context))
        finally:
            stream.close()
            self.release(opening.session_id, owner)

    @property
    def session_count(self) -> int:
        """Sessions with an open stream."""
        return len(self._owners)

    # --- the last reply of a session, for a round that is sent again ---

    def kept_reply(
        self, opening: SessionParameters, asked: messages.VerifyRound
    ) -> list[messages.VerifyResponse] | None:
        """Return the last reply if the very same was asked, sampled in the same way."""
        kept = self._replies.get(opening.session_id)
        if kept is None or kept.asked.round != asked.round or kept.asked != asked:
            return None
        return kept.reply if kept.sampled_by == _sampled_by(opening) else None

    def keep_reply(
        self,
        opening: SessionParameters,
        asked: messages.VerifyRound,
        reply: list[messages.VerifyResponse],
    ) -> None:
        """Keep a reply, unless it is large."""
        self._replies.pop(opening.session_id, None)
        if sum(message.ByteSize() for message in reply) <= _KEPT_REPLY_BYTES:
            self._replies[opening.session_id] = _Kept(_sampled_by(opening), asked, reply)
        while len(self._replies) > _MOST_REPLIES:
            del self._replies[next(iter(self._replies))]

    def forget_reply(self, session_id: bytes) -> None:
        self._replies.pop(session_id, None)


def _tokenize(model: Model, request: messages.TokenizeRequest) -> messages.TokenizeResponse:
    """Return the ids of every text; only the first is given BOS and EOS."""
    response = messages.TokenizeResponse()
    for i, text in enumerate(request.texts):
        add_special = request.add_special and i == 0
        ids = model.tokenize(text.encode(), add_special, request.parse_special)
        response.texts.add(token_ids=ids)
    return response


def _compile(model: Model, request: messages.CompileGrammarRequest) -> str:
    """Return the grammar that is asked for. Raises InvalidRequest where no session could use it."""
    grammar = request.grammar
    if request.WhichOneof("source") == "json_schema":
        grammar = grammar_of_schema(request.json_schema)
    model.sampler(SamplingParameters(grammar=grammar))
    return grammar


class _VerifyStream:
    """One open stream: rounds come in, replies go out in the same order."""

    def __init__(
        self,
        servicer: TargetServicer,
        opening: SessionParameters,
        owner: Ownership,
        verifier: Verifier,
    ) -> None:
        self._servicer = servicer
        self._opening = opening
        self._owner = owner
        self._verifier = verifier
        self._has_reported_cached = False  # the first answer, which says what was cached, is out
        self._waiting: deque[_Waiting] = deque()  # rounds that are not answered, oldest first
        self._newest: _Waiting | None = None  # round that was read, answered or not
        self._room = asyncio.Semaphore(_MOST_UNANSWERED)  # of `_waiting`
        self._arrived = asyncio.Event()  # set when there is a round to answer, or the end
        self._round_count = 0

    async def read(self, requests: AsyncIterator[messages.VerifyRequest]) -> None:
        """Queue every round; end when the client does."""
        async for request in requests:
            if request.WhichOneof("request") != "round":
                raise InvalidRequest("request", "is no round")
            await self._room.acquire()
            self._receive(request.round)

    def _receive(self, message: messages.VerifyRound) -> None:
        round_ = wire_rounds.read_round(message, self._servicer.vocabulary_size)
        if round_.mirostat_mu is not None and not self._opening.sampling.mirostat:
            raise InvalidRequest("mirostat_mu", "the session has no mirostat")
        check_tree_round(round_, self._servicer.require_loaded())
        if self._says_nothing_new(message):
            self._room.release()
            return
        waiting = self._newest = _Waiting(round_, message)
        self._round_count += 1
        if tracing.is_sampled(self._round_count):
            drafted, length = len(round_.draft), round_.prefix.end
            waiting.span = tracing.begin("verify", round=round_.number)
            waiting.span.note(drafted=drafted, length=length, may_write=round_.continue_count)
        kept = self._servicer.kept_reply(self._opening, message)
        if kept is not None:
            waiting.kept = kept
        elif round_.number < self._owner.last:
            waiting.kept = [_superseded(round_.number)]
        else:
            self._supersede(round_)
            self._submit(waiting)
        self._waiting.append(waiting)
        self._arrived.set()

    def _says_nothing_new(self, message: messages.VerifyRound) -> bool:
        """Whether this is the newest round once more, which the engine continues, or has done so.

        Its answers come once: what it lets the target write now would follow them.
        """
        newest = self._newest
        if newest is None or newest.ticket is None or not newest.round.continue_count:
            return False
        return (newest.is_answered or newest in self._waiting) and newest.asked == message

    def _supersede(self, round_: Round) -> None:
        """Cancel the rounds that this one contradicts, or takes the place of."""
        self._owner.last = round_.number
        for waiting in self._waiting:
            if waiting.ticket is None or waiting.is_answered:
                continue  # what only continues gives way by itself
            if contradicts(waiting.round, round_):
                self._servicer.host.cancel(waiting.ticket)
            elif waiting.round.continue_count:
                self._servicer.host.cancel_unstarted(waiting.ticket)

    def _submit(self, waiting: _Waiting) -> None:
        round_, loop = waiting.round, asyncio.get_running_loop()

        def emit(answer: Answer) -> None:
            # In the engine's thread. A loop that is woken takes the interpreter from its next
            # decode, so it is not while it writes or gathers: it looks again by itself.
            waiting.answers.append(answer)
            if waiting.is_watched:
                loop.call_soon_threadsafe(waiting.news.set)

        wanted = round_.prefix.token_ids if round_.prefix.position == 0 else ()
        with suppress(EngineBusy):
            waiting.ticket = self._servicer.host.submit(
                self._opening.session_id,
                lambda lease: self._verifier.verify(lease, round_, emit),
                wanted,
                self._opening.salt,
                self._verifier.most_held,
            )

    async def answer(self, context: Context) -> None:
        """Write the answers in order, as they are ready."""
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            waiting = self._waiting[0]
            if waiting.kept:
                await _write(context, waiting.kept)
            else:
                await self._answer_round(waiting, context)
            waiting.span.end()
            self._waiting.popleft()
            self._room.release()

    async def _answer_round(self, waiting: _Waiting, context: Context) -> None:
        """Write what a round brings, until it is over; what can happen in one is an answer too."""
        over = _over(waiting)
        over.add_done_callback(lambda _: waiting.news.set())
        try:
            while True:
                waiting.news.clear()
                waiting.is_watched = True
                if waiting.answers:
                    waiting.is_watched = False
                    await self._write_answers(waiting, context)
                    await gather(waiting.round, over, self._servicer.session_count)
                elif over.done():
                    break
                else:
                    await waiting.news.wait()
        finally:
            over.cancel()
        outcome = _outcome(waiting.round.number, over)
        if outcome is not None:
            await context.write(outcome)

    async def _write_answers(self, waiting: _Waiting, context: Context) -> None:
        answer = next_answer(waiting.answers)
        if waiting.span.is_recorded:
            _note_spent(waiting, answer.spent)
        reply = list(_pack(waiting.round, answer))
        if not self._has_reported_cached and self._verifier.cached_count:
            reply[0].cached_token_count = self._verifier.cached_count
        self._has_reported_cached = waiting.is_answered = True
        await _write(context, reply)
        if not waiting.round.continue_count:
            self._servicer.keep_reply(self._opening, waiting.asked, reply)

    def close(self) -> None:
        """Stop what is in flight."""
        for waiting in self._waiting:
            waiting.span.end()
            if waiting.ticket is not None:
                self._servicer.host.cancel(waiting.ticket)


def _note_spent(waiting: _Waiting, more: ServiceTime) -> None:
    """Let a round's span say what the engine did for it so far."""
    spent = waiting.spent
    spent.add(more)
    waiting.span.note(
        decodes=spent.steps or 0,
        rows=spent.rows,
        queue_seconds=round(spent.queue, 6),
        decode_seconds=round(spent.decode, 6),
        sample_seconds=round(spent.sample, 6),
        own_draft_seconds=round(spent.draft, 6),
    )


def _superseded(number: int) -> messages.VerifyResponse:
    return messages.VerifyResponse(round=number, superseded=common.Superseded())


async def _write(context: Context, reply: Sequence[messages.VerifyResponse]) -> None:
    for message in reply:
        await context.write(message)


def _over(waiting: _Waiting) -> asyncio.Future[None]:
    """Return what is done when nothing more comes of a round."""
    if waiting.ticket is not None:
        return asyncio.wrap_future(waiting.ticket.future)
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    over.set_exception(EngineBusy("the engine's queue is full", 0.1))
    return over


async def gather(round_: Round, over: asyncio.Future[None], session_count: int) -> None:
    """Let a round that continues bring more before it is looked at again; not once it is over.

    It is one of so many sessions.

    Rounds of all sessions are looked at in the same moments, half as far away as that at least:
    every time that event loops wake they take the cores from the decodes.
    """
    if round_.continue_count and round_.gathers:
        period = _GATHER_SECONDS if session_count < _SEVERAL else 2 * _GATHER_SECONDS
        pause = period - asyncio.get_running_loop().time() % period
        await asyncio.wait([over], timeout=pause if pause > period / 2.0 else pause + period)


def _outcome(number: int, over: asyncio.Future[None]) -> messages.VerifyResponse | None:
    """Return what to answer a round that is over and may have had no rows; None for nothing."""
    response = messages.VerifyResponse(round=number)
    try:
        over.result()
    except PositionPastCache as error:
        response.missing.held_token_count = error.held
    except ContextExhausted as error:
        response.context_full.context_token_count = error.capacity
    except EngineBusy as error:
        response.busy.retry_delay_duration.FromMilliseconds(int(error.retry_seconds * 1000))
    except RoundSuperseded:
        return _superseded(number)
    else:
        return None
    return response


def next_answer(answers: deque[Answer]) -> Answer:
    """Take the first answer and, as one with it, those that follow without the round's draft.

    Not where candidates are reported: they belong to one decode. What verified a draft of the
    round's comes by itself: of an answer that repeats known text, rows are skipped by position.
    """
    joined = [answers.popleft()]
    joins = joined[0].drafted == 0 and not joined[0].rows.candidates
    while joins and answers and answers[0].drafted == 0:
        joined.append(answers.popleft())
    return _joined(joined)


def _joined(answers: Sequence[Answer]) -> Answer:
    """Return answers that follow each other as one."""
    first = answers[0]
    if len(answers) == 1:
        return first
    own: list[OwnTokens] = []
    if any(each.token_ids for answer in answers for each in answer.own_drafts):
        for answer in answers:
            own += answer.own_drafts or [OwnTokens(spent=answer.spent)]
    return replace(
        first,
        rows=Rows.join([answer.rows for answer in answers]),
        own_drafts=own,
        spent=ServiceTime.of_all(answer.spent for answer in answers),
        hidden=reduce(RowWindow.followed_by, (answer.hidden for answer in answers)),
    )


def _pack(round_: Round, answer: Answer) -> Iterator[messages.VerifyResponse]:
    """Spread rows over messages: one if they fit a quarter of the limit, else one per row."""
    rows = answer.rows
    answered = len(rows) if len(rows) < round_.row_count else 0
    if round_.form is Form.SAMPLED:
        yield wire_rounds.write_answer(answer, answered)
        return
    whole = wire_rounds.write_rows(rows, 0, answered)
    if whole.ByteSize() <= MESSAGE_BYTES // 4:
        parts = [whole]
    else:
        parts = [wire_rounds.write_rows(rows[i : i + 1], i, answered) for i in range(len(rows))]
    for i, part in enumerate(parts):
        yield messages.VerifyResponse(
            round=round_.number,
            rows=part,
            service_time=wire.write_time(answer.spent) if i == 0 else None,
            hidden_rows=wire.write_hidden_rows(answer.hidden) if i == 0 else None,
        )
