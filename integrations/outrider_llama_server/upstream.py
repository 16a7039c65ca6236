"""The llama-server that drafts: whether it is there, which model it serves, and asking it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from outrider import logs
from outrider.errors import InvalidRequest, PeerUnavailable
from outrider.messages import SessionParameters
from outrider_llama_server.answers import (
    Said,
    Served,
    completion_body,
    read_completion,
    read_content,
    read_served,
    read_token_milliseconds,
)
from outrider_llama_server.http import HttpServer

_LOOK_SECONDS = 2.0
_CALL_SECONDS = 5.0
_COMPLETION_SECONDS = 30.0
"""For a few tokens after a prompt that may be long; the order is replaced long before."""
_TRIED_TOKENS = 4
_SAMPLE = "def main():\n"


class Upstream:
    """One llama-server. `watch` keeps what is known of it true for the life of the process."""

    def __init__(self, http: HttpServer) -> None:
        self._http = http
        self.served: Served | None = None
        """What it served last; None before it was first there."""
        self.is_up = False
        self.detail = f"waiting for {http.url}"
        """Why it cannot be asked; empty where it can."""
        self.token_milliseconds = 0.0
        """What a token took when the model was first tried; 0 if it did not say."""
        self._places = asyncio.Semaphore(1)  # as many as it has slots: more would queue there
        self._look = asyncio.Event()  # set where a call failed: look at once
        self._changed = asyncio.Event()

    async def watch(self, on_change: Callable[[], object]) -> None:
        """Look at it again and again, until this is cancelled."""
        try:
            while True:
                if await self._looked():
                    on_change()
                    self._changed.set()
                    self._changed = asyncio.Event()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._look.wait(), _LOOK_SECONDS)
                if self._look.is_set():
                    self._look.clear()
                    await asyncio.sleep(0.1)  # one that refuses at once is not asked all the time
        finally:
            self._http.close()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds that `watch` may change."""
        while not holds():
            await self._changed.wait()

    async def _looked(self) -> bool:
        """Look once; return whether anything is another."""
        before = self.is_up, self.served
        try:
            served = await self._describe()
        except (PeerUnavailable, InvalidRequest) as error:
            detail = str(error)
            if self.is_up or detail != self.detail:
                logs.warning("outrider.draft", "llama-server is not used", detail=detail)
            self.is_up, self.detail = False, detail
        else:
            self._take(served)
        return before != (self.is_up, self.served)

    def _take(self, served: Served) -> None:
        """Take note that it is there; with another model it counts as away until the next look.

        So who watches this process sees that something changed, and asks again what it is.
        """
        is_other = self.served not in (None, served)
        if served != self.served:
            self._places = asyncio.Semaphore(served.slots)
        if is_other:
            self._look.set()
        elif not self.is_up:
            logs.event("outrider.draft", "llama-server is used", model=served.name)
        self.is_up, self.served = not is_other, served
        self.detail = "llama-server has another model" if is_other else ""

    async def _describe(self) -> Served:
        await self._http.call("GET", "/health", seconds=_CALL_SECONDS)
        props = await self._http.call("GET", "/props", seconds=_CALL_SECONDS)
        models = await self._http.call("GET", "/v1/models", seconds=_CALL_SECONDS)
        served = read_served(props, models)
        if not self.is_up or served != self.served:
            await self._try(served)
        return served

    async def _try(self, served: Served) -> None:
        """Let it write a few tokens: whether it says their ids, and how long they take."""
        body = {
            "prompt": _SAMPLE,
            "n_predict": _TRIED_TOKENS,
            "temperature": 0.0,
            "return_tokens": True,
            "ignore_eos": True,
        }
        answer = await self._http.call("POST", "/completion", body, seconds=_COMPLETION_SECONDS)
        if not read_completion(answer, _TRIED_TOKENS, served.vocabulary):
            raise InvalidRequest("tokens", "llama-server says no ids of what it wrote")
        self.token_milliseconds = read_token_milliseconds(answer)

    async def complete(
        self, text: Sequence[int], count: int, session: SessionParameters, served: Served
    ) -> list[Said]:
        """Return at most `count` greedy tokens after a text.

        Raises PeerUnavailable, also for an answer that is wrong.
        """
        body = completion_body(text, count, session, served.vocabulary)
        async with self._places:
            try:
                answer = await self._http.call(
                    "POST", "/completion", body, seconds=_COMPLETION_SECONDS
                )
                return read_completion(answer, count, served.vocabulary)
            except InvalidRequest as error:
                self._look.set()
                raise PeerUnavailable(f"llama-server answers wrongly: {error}") from None
            except PeerUnavailable:
                self._look.set()
                raise

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, control tokens by name. Raises PeerUnavailable."""
        body = {"tokens": list(token_ids)}
        answer = await self._http.call("POST", "/detokenize", body, seconds=_CALL_SECONDS)
        try:
            return read_content(answer)
        except InvalidRequest as error:
            raise PeerUnavailable(f"llama-server answers wrongly: {error}") from None
