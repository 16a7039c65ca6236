"""Asks a draft service for tokens on behalf of an engine that is none of ours.

Of the protocol it needs sessions, orders and frames: greedy tokens after texts that grow. Anything
the draft sends or does not send, what comes out are ids of the vocabulary, or nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from outrider import logs, wire, wire_drafts
from outrider.descriptions import check_model
from outrider.errors import InvalidRequest, VocabularyMismatch
from outrider.messages import MAX_DRAFT, VOCABULARY_SLACK, Order, Rule, SessionParameters, Span
from outrider.rpc.channel import open_channel
from outrider.rpc.security import ClientSecurity, call_metadata
from outrider.sampling import GREEDY
from outrider.tasks import first_of
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_service_pb2 as messages
from outrider.v1.draft_service_pb2_grpc import DraftServiceStub

_CALL_SECONDS = 5.0
_PAUSE_SECONDS = 1.0
_DRAFT_BYTES = 4 << 20
_MOST_SESSIONS = 1024
_MOST_UNASKED = 4 * MAX_DRAFT
"""Messages between two orders; each has a token, or ends an order. A flood takes vLLM's time."""
_MOST_UNSENT = 16  # orders; a draft that reads them has none of them waiting


class _Session:
    """One text at the draft: what was sent of it, and the draft's line after that.

    `tail` are the tokens of the line of the highest base that was heard of, from that base on.
    """

    def __init__(self, call: Any, opening: SessionParameters) -> None:
        self.text: list[int] = []  # what the draft was sent, or will be
        self.used = 0  # the number of the step that asked for it last
        self.is_over = False
        self._call = call
        self._vocabulary = opening.vocabulary
        self._order = 0
        self._base = -1
        self._tail: list[int] = []
        self._is_completed = False  # the newest order
        self._must_resend = False
        self._unasked = 0  # messages since the newest order
        self._news = asyncio.Event()
        self._outbox: asyncio.Queue[messages.DraftRequest] = asyncio.Queue()
        self._outbox.put_nowait(messages.DraftRequest(open=wire.write_opening(opening)))
        self._running = asyncio.ensure_future(self._run())

    def follows(self, text: Sequence[int]) -> bool:
        """Return whether this session's text, grown, can be this one."""
        return len(self.text) <= len(text) and list(text[: len(self.text)]) == self.text

    def order(self, text: Sequence[int], count: int) -> None:
        """Say what the text is, and let the draft write past `count` tokens after it."""
        if self._outbox.qsize() > _MOST_UNSENT:
            self.is_over = True  # it reads nothing any more
            return
        position = 0 if self._must_resend else len(self.text)
        until = len(text) + min(MAX_DRAFT, 2 * count + 1)
        self._order += 1
        self._is_completed = self._must_resend = False
        self._unasked = 0
        self.text = list(text)
        order = Order(self._order, Span(position, text[position:]), until)
        self._outbox.put_nowait(wire_drafts.write_order(order))

    def proposal(self, count: int) -> list[int]:
        """Return at most `count` tokens after the text, as far as they are here."""
        known = len(self.text) - self._base
        if self._base < 0 or known < 0 or self._tail[:known] != self.text[self._base :]:
            return []
        return self._tail[known : known + count]

    async def until_drafted(self, count: int) -> None:
        """Wait until so many tokens are here, or no more will come."""
        while not self.is_over and not self._is_completed and len(self.proposal(count)) < count:
            self._news.clear()
            await self._news.wait()

    async def _run(self) -> None:
        """Send and take in, until the stream ends or the draft breaks the protocol."""
        try:
            await first_of(self._read(), self._write())
        finally:
            self.is_over = True
            self._news.set()
            self._call.cancel()

    async def _read(self) -> None:
        async for message in self._call:
            self._unasked += 1
            if self._unasked > _MOST_UNASKED:
                raise InvalidRequest("frame", f"more than {_MOST_UNASKED} since the last order")
            self._take(message)
            self._news.set()

    async def _write(self) -> None:
        while True:
            await self._call.write(await self._outbox.get())

    def _take(self, message: messages.DraftResponse) -> None:
        if message.completed_order == self._order:
            self._is_completed = True
        kind = message.WhichOneof("outcome")
        if kind == "missing" and message.completed_order == self._order:
            self._must_resend = True
        if kind != "frame":
            return
        frame = wire_drafts.read_frame(message, self._vocabulary)
        if frame.base > self._base:
            self._base, self._tail = frame.base, []
        if frame.base < self._base or not frame.token_ids:
            return
        end = self._base + len(self._tail)
        # One that goes back, or leaves a gap, is of a line that is not this one any more.
        if frame.position <= end:
            self._tail[frame.position - self._base :] = frame.token_ids
        del self._tail[len(self.text) + 4 * MAX_DRAFT :]

    async def close(self) -> bool:
        """End the stream; return whether it had failed. The draft may reuse what it holds."""
        self._running.cancel()
        await asyncio.wait([self._running])
        return not self._running.cancelled() and self._running.exception() is not None


class RemoteDrafting:
    """A draft service, and a session there for each text. All of it runs in one event loop.

    `is_ready` may be read from any thread. Raises InvalidConfig.
    """

    def __init__(
        self,
        address: str,
        security: ClientSecurity,
        vocabulary: int,
        token_limit: int,
        session_count: int,
    ) -> None:
        """Proposals are below `vocabulary`; texts have at most `token_limit` tokens."""
        self.is_ready = False
        """Whether the draft is there and has this vocabulary."""
        self._address = address
        self._security = security
        self._metadata = call_metadata(security)
        self._vocabulary = vocabulary
        self._token_limit = token_limit
        self._most = min(_MOST_SESSIONS, max(1, session_count))
        self._sessions: list[_Session] = []
        self._model = common.ModelReference()
        self._channel: Any = None
        self._stub: Any = None
        self._task: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self._step = 0

    def start(self) -> None:
        """Begin to look for the draft; from inside the loop."""
        self._channel = open_channel(self._address, self._security, _DRAFT_BYTES)
        self._stub = DraftServiceStub(self._channel)
        self._task = asyncio.ensure_future(self._watch())

    async def close(self) -> None:
        """Close everything."""
        self.is_ready = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._forget(self._sessions)
        if self._channel is not None:
            await self._channel.close()

    async def draft(
        self, texts: Mapping[int, Sequence[int]], count: int, seconds: float
    ) -> dict[int, list[int]]:
        """Return at most `count` tokens after each text, by its key, after `seconds` at most."""
        self._step += 1
        sessions = {}
        for key, text in texts.items():
            sessions[key] = session = await self._session_of(text)
            session.used = self._step
            session.order(text, count)
        waiting = [
            asyncio.ensure_future(session.until_drafted(count)) for session in sessions.values()
        ]
        _, late = await asyncio.wait(waiting, timeout=seconds)
        for task in late:
            task.cancel()
        proposals = {key: session.proposal(count) for key, session in sessions.items()}
        await self._forget([each for each in self._sessions if each.is_over])
        return proposals

    async def _session_of(self, text: Sequence[int]) -> _Session:
        """Return the session whose text this one continues, or else a new one.

        vLLM says no names of requests, and their rows change places.
        """
        free = [each for each in self._sessions if each.used != self._step and not each.is_over]
        if fitting := [each for each in free if each.follows(text)]:
            return max(fitting, key=lambda each: len(each.text))
        if free and len(self._sessions) >= self._most:
            await self._forget([min(free, key=lambda each: each.used)])
        return self._open(text)

    def _open(self, text: Sequence[int]) -> _Session:
        opening = SessionParameters(
            session_id=secrets.token_bytes(wire.SESSION_ID_BYTES),
            attempt=1,
            rule=Rule.MATCH,
            sampling=GREEDY,
            seed=0,
            choice=0,
            prompt_count=len(text),
            token_limit=self._token_limit,
            vocabulary=self._vocabulary,
            model=wire.read_reference(self._model),
        )
        session = _Session(self._stub.Draft(metadata=self._metadata), opening)
        self._sessions.append(session)
        return session

    async def _forget(self, sessions: Sequence[_Session]) -> None:
        for session in list(sessions):
            self._sessions.remove(session)
            if await session.close():
                self._lost.set()

    async def _watch(self) -> None:
        """Describe the draft, and again whenever a stream of it failed."""
        said = ""
        while True:
            try:
                await self._describe()
            except Exception as error:  # a draft may answer anything; it is looked at again
                if str(error) != said:
                    logs.warning("outrider.vllm", "draft is not used", detail=str(error))
                said = str(error)
            else:
                if not self.is_ready:
                    logs.event("outrider.vllm", "draft is used", model=self._model.name)
                self.is_ready, said = True, ""
                await self._lost.wait()
            self.is_ready = False
            self._lost.clear()
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _describe(self) -> None:
        request = common.GetModelRequest()
        model = await self._stub.GetModel(
            request, timeout=_CALL_SECONDS, metadata=self._metadata, wait_for_ready=True
        )
        check_model(model)
        if model.head:
            raise VocabularyMismatch("the draft is a head, and vLLM sends it no hidden rows")
        its = model.vocabulary
        if not its.fits_any and abs(its.token_count - self._vocabulary) > VOCABULARY_SLACK:
            raise VocabularyMismatch(
                f"vocabulary sizes differ by more than {VOCABULARY_SLACK}: "
                f"target {self._vocabulary}, draft {its.token_count}"
            )
        self._model = wire.write_reference(wire.hosted_model(model))
