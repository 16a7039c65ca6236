"""The draft's gRPC edge: reads orders, has them drafted, writes frames."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import grpc

from draft_service.drafter import Drafter
from draft_service.helpers import Helpers
from draft_service.local_sources import INSTEAD, LocalSources, acceptances
from draft_service.own_prompt_reader import OwnPromptReader, own_prompt_ids
from draft_service.translations import LearnedTranslation, Translations, VocabularyLesson
from draft_service.translators import (
    MOST_FOR_EACH,
    NoTranslator,
    StringTranslator,
    TokenTranslator,
    Translator,
)
from outrider import tracing, wire_drafts
from outrider.engine.guesser import Guesser, guesser
from outrider.engine.head_model import HeadModel
from outrider.engine.host import EngineHost
from outrider.engine.hosting import Loaded
from outrider.engine.job import Lease, Ticket
from outrider.engine.model import Model
from outrider.engine.string_guesser import StringGuesser
from outrider.errors import (
    ContextExhausted,
    EngineBusy,
    InvalidRequest,
    PositionPastCache,
    RoundSuperseded,
)
from outrider.messages import (
    MAX_DRAFT,
    MAX_LINES,
    VOCABULARY_SLACK,
    Frame,
    Order,
    Rule,
    SessionParameters,
    Span,
)
from outrider.model_service.servicer import (
    ModelService,
    Ownership,
    run_stream,
)
from outrider.row_window import NO_ROWS
from outrider.texts import longest_token, most_bytes
from outrider.translation import Level
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_service_pb2 as messages
from outrider.v1 import draft_service_pb2_grpc as stubs
from outrider.wire import microseconds, write_time

_MOST_TRANSLATED = 4096

_MOST_UNREAD = 256
"""Frames of one stream that may wait to be read; no more orders are read until they went."""

Context = grpc.aio.ServicerContext[Any, Any]
MakeReader = Callable[[], Any]
"""Makes a reader of a session's texts, as its translator takes it."""

ReadText = Callable[[Span], Sequence[int]]
"""Returns what the engine is to hold of a text that is sent as a whole."""

Write = Callable[[messages.DraftResponse], Awaitable[None]]


class DraftServicer(ModelService, stubs.DraftServiceServicer):
    """DraftService over one engine."""

    def __init__(
        self,
        host: EngineHost,
        alias: str,
        support: int,
        tail: float,
        drafters: Sequence[str] = (),
    ) -> None:
        super().__init__(host, alias)
        self._acceptances = acceptances(drafters)  # the engine's thread alone uses them
        self._model: Model | None = None
        self._support = support
        self._tail = tail
        self._ends: tuple[int, ...] = ()
        self._most_prompt_bytes = 0  # of a prompt of a session's own; set with the model
        # The newest sessions that read other tokens; the cache holds fewer, open or not.
        self._translated: OrderedDict[bytes, None] = OrderedDict()

    def set_loaded(self, loaded: Loaded) -> None:
        super().set_loaded(loaded)
        self._model = loaded.model
        self._translations = Translations(self.host, loaded.model)
        described, longest = loaded.model.describe(), longest_token(self._texts, self._names)
        self._ends = described.vocabulary.end_token_ids
        self._most_prompt_bytes = most_bytes(described.context, longest)

    def description(self) -> common.GetModelResponse:
        response = super().description()
        assert self._model is not None
        if self._model.describe().layout.is_pool:
            response.parallel_line_count = MAX_LINES
        response.translates = not response.head
        response.known_vocabulary_keys[:] = self._translations.keys
        return response

    def counts_own_tokens(self, session_id: bytes) -> bool:
        """Return whether a session's text has as many tokens here as at the target."""
        return session_id not in self._translated

    def _note_translated(self, session_id: bytes, is_translated: bool) -> None:
        self._translated.pop(session_id, None)
        if is_translated:
            self._translated[session_id] = None
        if len(self._translated) > _MOST_TRANSLATED:
            self._translated.popitem(last=False)

    def lesson(self) -> VocabularyLesson:
        """Return what takes in the messages of a vocabulary."""
        self.require_loaded()
        return VocabularyLesson(self._translations)

    async def LearnVocabulary(
        self, request_iterator: AsyncIterator[messages.LearnVocabularyRequest], context: Context
    ) -> messages.LearnVocabularyResponse:
        return await self.lesson().take(request_iterator)

    async def Draft(
        self, request_iterator: AsyncIterator[messages.DraftRequest], context: Context
    ) -> None:
        await self.serve(request_iterator, context.write)

    async def serve(self, requests: AsyncIterator[messages.DraftRequest], write: Write) -> None:
        """Serve one session, whichever side opened the stream. Ends when `requests` do."""
        self.require_loaded()
        assert self._model is not None
        opening, rest = await self.read_opening(requests)
        with ExitStack() as used:
            learned = None
            if opening.vocabulary_key:
                learned = used.enter_context(self._translations.use(opening.vocabulary_key))
                check_dropped(opening, len(learned.translation.target.texts))
            await self._serve_session(opening, learned, rest, write)

    async def _serve_session(
        self,
        opening: SessionParameters,
        learned: LearnedTranslation | None,
        requests: AsyncIterator[messages.DraftRequest],
        write: Write,
    ) -> None:
        assert self._model is not None
        most = self._most_prompt_bytes
        own = await asyncio.to_thread(own_prompt_ids, self._model, opening.own_prompt, most)
        reader = self._reader_maker(opening, learned, own)
        guess, translator = await asyncio.to_thread(self._guessers, opening, learned, reader)
        # Under rejection the model drafts alone. If sources continued after a token that it drew,
        # that would be sent sooner than another, so that it would decide if it comes in time.
        known = {} if opening.rule is Rule.REJECTION else self._acceptances
        local = LocalSources(opening, known, INSTEAD)
        ends = self._ends
        if learned is not None:
            ends = (*opening.end_token_ids, *learned.translation.end_token_ids)
        drafter = Drafter(opening, guess, ends, time.perf_counter, local, translator)
        owner = self.take(opening.session_id, opening.attempt)
        self._note_translated(opening.session_id, translator is not None)
        read = None
        if translator is not None and reader is not None:
            read = _text_reader(self._model.describe().context, translator, reader)
        # How many tokens a text in another vocabulary will be is not known.
        rest = opening.token_limit + MAX_DRAFT
        room = (len(own) or opening.prompt_count) + rest if learned is None else None
        size = self.vocabulary_size
        head = self._model if isinstance(self._model, HeadModel) else None
        stream = _DraftStream(self.host, opening, owner, drafter, size, learned, read, room, head)
        try:
            await run_stream(owner, stream.read(requests), stream.answer(write))
        finally:
            stream.end()
            self.release(opening.session_id, owner)

    def _reader_maker(
        self,
        opening: SessionParameters,
        learned: LearnedTranslation | None,
        own_prompt: Sequence[int],
    ) -> MakeReader | None:
        """Return what makes a reader of a session's texts; None where the draft reads them as is.

        With an `own_prompt` it reads that in place of the texts' prompt.
        """
        assert self._model is not None
        capacity, count = self._model.describe().context, opening.prompt_count
        if learned is not None:
            return lambda: learned.translation.reader(count, capacity, own_prompt)
        return (lambda: OwnPromptReader(own_prompt, count)) if own_prompt else None

    def _guessers(
        self,
        opening: SessionParameters,
        learned: LearnedTranslation | None,
        reader: MakeReader | None,
    ) -> tuple[Guesser | None, Translator | None]:
        """Return what picks a session's tokens, and where it reads others what translates them."""
        model, support, tail = self._model, self._support, self._tail
        assert model is not None
        if reader is None:
            return guesser(model, opening, support, tail), None
        if learned is None:
            guess = guesser(model, opening, support, tail)
            return guess, TokenTranslator(guess, reader())
        translation = learned.translation
        if learned.level is Level.STRINGS and opening.rule is not Rule.REJECTION:
            # It is asked through the translator alone.
            translator = StringTranslator(StringGuesser(model, opening, translation))
            translator.take(reader())
            return None, translator
        if not translation.shared_count:
            return None, NoTranslator()
        guess = guesser(model, opening, support, tail, translation)
        return guess, TokenTranslator(guess, reader())


def _text_reader(capacity: int, translator: Translator, make_reader: MakeReader) -> ReadText:
    """Return what reads a text that is sent as a whole in the draft's tokens."""

    def read(span: Span) -> Sequence[int]:
        if span.position or span.end > MOST_FOR_EACH * capacity:
            return ()
        if isinstance(translator, NoTranslator):
            return ()
        reader = make_reader()
        own = reader.read(span.token_ids, span.end)
        translator.take(reader)
        return list(own)

    return read


class _DraftStream:
    """One open stream: each order replaces the one before; frames go out as they come."""

    def __init__(
        self,
        host: EngineHost,
        opening: SessionParameters,
        owner: Ownership,
        drafter: Drafter,
        vocabulary_size: int,
        learned: LearnedTranslation | None,
        read_text: ReadText | None,
        room: int | None,
        head: HeadModel | None,
    ) -> None:
        self._head = head  # None where the model reads tokens alone
        self._rows = NO_ROWS  # hidden ones of the text, that the head was sent
        self._learned = learned  # how it translates; None where the ids are the draft's own
        self._read_text = read_text  # None where the engine holds a text as it is sent
        self._room = room  # tokens that the engine will hold at most; None: not known
        self._host = host
        self._opening = opening
        self._owner = owner
        self._drafter = drafter
        self._size = vocabulary_size
        self._ticket: Ticket | None = None  # of the newest order; None before the first
        self._completed = 0  # the newest order of which all was sent
        # An exception is the end.
        self._outbox: asyncio.Queue[messages.DraftResponse | BaseException] = asyncio.Queue()
        self._has_room = asyncio.Event()  # whether few enough answers wait to be written
        self._has_room.set()
        self._loop = asyncio.get_running_loop()
        self._order_count = 0
        self._helpers = Helpers(host, opening, self._help, room)
        drafter.on_spare = self._helpers.wake

    async def read(self, requests: AsyncIterator[messages.DraftRequest]) -> None:
        """Start every order; end when the client does."""
        size = self._size + VOCABULARY_SLACK
        if self._learned is not None:
            size = self._size = len(self._learned.translation.target.texts)
        async for request in requests:
            order = read_order(request, self._opening, size)
            await self._has_room.wait()
            if order.number > self._owner.last:
                await self._start(order)

    async def _start(self, order: Order) -> None:
        self._owner.last = order.number
        self.close()
        span = self._begin_span(order)
        order = _with_known_ids(order, self._size)
        self._drafter.note_text(order.committed)
        if not order.rows.has_width(self._head.width if self._head is not None else 0):
            raise InvalidRequest("hidden_rows", "the model does not read rows of this width")
        self._rows = self._rows.followed_by(order.rows)
        wanted = order.committed.token_ids if order.committed.position == 0 else ()
        if self._read_text is not None:
            # Beside the engine, which would do nothing else for a long text's sake.
            wanted = await asyncio.to_thread(self._read_text, order.committed)
        try:
            self._ticket = self._host.submit(
                self._opening.session_id,
                lambda lease: self._run(lease, order, span),
                wanted,
                self._opening.salt,
                self._room,
            )
        except EngineBusy as error:
            span.end(error=error.reason)
            self._post(_outcome(order.number, error))
            return
        ticket = self._ticket
        ticket.future.add_done_callback(lambda _: span.end())
        ticket.future.add_done_callback(
            lambda future: self._post(self._outcome(order.number, ticket, future.exception()))
        )

    def _begin_span(self, order: Order) -> tracing.TraceSpan:
        """Begin the span of an order, of few of them."""
        self._order_count += 1
        if not tracing.is_sampled(self._order_count):
            return tracing.NOTHING
        length, until = order.committed.end, order.draft_until
        return tracing.begin("draft", order=order.number, length=length, until=until)

    def _run(self, lease: Lease, order: Order, span: tracing.TraceSpan) -> Any:
        begin, count = time.perf_counter(), 0
        if self._head is not None and lease.session.sequence is not None:
            self._head.give_rows(lease.session.sequence, self._rows)

        def emit(frame: Frame) -> None:
            nonlocal count
            count += len(frame.token_ids)
            span.note(drafted=count, work_seconds=round(time.perf_counter() - begin, 6))
            self._completed = max(self._completed, frame.completed)
            message = wire_drafts.write_frame(frame)
            lease.pause()
            message.service_time.CopyFrom(write_time(lease.take_spent()))
            self._note_runner_ups(message)
            self._post(message)

        return self._drafter.draft(lease, order, emit)

    def _help(self, number: int, lease: Lease) -> Any:
        """Write runner-up lines; decodes that are the line's own, too, are reported with that."""

        def emit(frame: Frame) -> None:
            message = wire_drafts.write_frame(frame)
            self._note_runner_ups(message)
            self._post(message)

        return self._drafter.help(number, lease, emit)

    def _note_runner_ups(self, message: messages.DraftResponse) -> None:
        """Say with a frame what runner-up lines took that nothing else says."""
        if seconds := self._drafter.take_runner_up_seconds():
            message.service_time.runner_up_us = microseconds(seconds)

    def _outcome(
        self, number: int, ticket: Ticket, error: BaseException | None
    ) -> messages.DraftResponse | BaseException | None:
        """Return what is to be written when an order ended."""
        if isinstance(error, RoundSuperseded):
            if ticket.replaced:
                return None
            error = EngineBusy("a Rollback or CloseSession cut the session", 0.0)
        response = _outcome(number, error)
        # What the model reads after it has answered concerns no one else.
        is_late = isinstance(response, messages.DraftResponse) and number <= self._completed
        return None if is_late else response

    def _post(self, item: messages.DraftResponse | BaseException | None) -> None:
        """Hand something over from the engine's thread."""
        if item is not None:
            self._loop.call_soon_threadsafe(self._put, item)

    def _put(self, item: messages.DraftResponse | BaseException) -> None:
        self._outbox.put_nowait(item)
        if self._outbox.qsize() >= _MOST_UNREAD:
            self._has_room.clear()

    async def answer(self, write: Write) -> None:
        """Write what the engine's thread hands over."""
        while True:
            item = await self._outbox.get()
            if isinstance(item, BaseException):
                raise item
            await write(item)
            if self._outbox.qsize() < _MOST_UNREAD:
                self._has_room.set()

    def end(self) -> None:
        """Stop for good, the runner-up lines too."""
        self.close()
        self._helpers.close()

    def close(self) -> None:
        """Stop what is in flight."""
        if self._ticket is not None:
            self._ticket.replaced = True
            self._host.cancel(self._ticket)


def read_order(request: messages.DraftRequest, opening: SessionParameters, size: int) -> Order:
    """Return the order of a stream that is open, of ids in [0, size). Raises InvalidRequest."""
    if request.WhichOneof("request") != "order":
        raise InvalidRequest("request", "is no order")
    order = wire_drafts.read_order(request.order, size)
    if order.stop_below and opening.rule is Rule.REJECTION:
        raise InvalidRequest("stop_below_confidence", "does not go with rejection")
    return order


def check_dropped(opening: SessionParameters, size: int) -> None:
    """Raise InvalidRequest for what was dropped of a text, unless its ids are in [0, size)."""
    if any(token_id >= size for token_id in opening.dropped.token_ids):
        raise InvalidRequest("dropped", f"holds an id outside [0, {size})")


def _outcome(
    number: int, error: BaseException | None
) -> messages.DraftResponse | BaseException | None:
    """Return how an order ended: an answer for what can happen, else the error itself."""
    if isinstance(error, PositionPastCache | ContextExhausted | EngineBusy):
        return outcome(number, error)
    return error


def outcome(
    number: int, error: PositionPastCache | ContextExhausted | EngineBusy
) -> messages.DraftResponse:
    """Return the answer to an order that could not be carried out."""
    response = messages.DraftResponse(completed_order=number)
    if isinstance(error, PositionPastCache):
        response.missing.held_token_count = error.held
    elif isinstance(error, ContextExhausted):
        response.context_full.context_token_count = error.capacity
    else:
        response.busy.retry_delay_duration.FromMilliseconds(int(error.retry_seconds * 1000))
    return response


def _with_known_ids(order: Order, size: int) -> Order:
    """Return the order with a stand-in for ids that only the target knows.

    A draft is only a guess, so a stand-in in its history costs nothing but
    acceptance.
    """
    span = order.committed
    if all(token_id < size for token_id in span.token_ids):
        return order
    ids = [min(token_id, size - 1) for token_id in span.token_ids]
    return replace(order, committed=Span(span.position, ids))
