"""The client for programs without asyncio: the same calls, one after the other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

from outrider.client.asynchronous import OutriderClient
from outrider.client.values import Polled, Status
from outrider.request import Request
from outrider.response import Event, Started, Token
from outrider.rpc.security import ANONYMOUS, ClientSecurity

T = TypeVar("T")


class Client:
    """A client of one orchestrator, for use by one thread at a time. Close it.

    Its calls are those of OutriderClient, carried out on an event loop of its own.
    """

    def __init__(self, address: str, security: ClientSecurity = ANONYMOUS) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._client = self._run(lambda: _make(address, security))
        except BaseException:
            self._stop()
            raise

    def _run(self, call: Callable[[], Awaitable[T]]) -> T:
        over = threading.Event()

        async def carry_out() -> T:
            try:
                return await call()
            finally:
                over.set()

        work = asyncio.run_coroutine_threadsafe(carry_out(), self._loop)
        try:
            return work.result()
        except BaseException:
            if work.cancel():  # it was not over: Ctrl-C interrupts who waits, and not the loop
                over.wait()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel; generations in flight end."""
        if self._loop.is_running():
            self._run(self._client.close)
            self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def generate(self, request: Request, timeout_seconds: float | None = None) -> Iterator[Event]:
        """Yield one Started, then Deltas and one Finished of each completion."""
        events = self._client.generate(request, timeout_seconds)
        try:
            while (event := self._run(lambda: anext(events, None))) is not None:
                yield event
        finally:
            self._run(events.aclose)

    def submit(self, request: Request, idempotency_key: str = "") -> tuple[str, Started]:
        """Start a job, once for each key; return its id and how the prompt was read."""
        return self._run(lambda: self._client.submit(request, idempotency_key))

    def poll(self, job_id: str, cursor: int = 0, wait_seconds: float = 0.0) -> Polled:
        """Return what a job has brought after a cursor."""
        return self._run(lambda: self._client.poll(job_id, cursor, wait_seconds))

    def cancel(self, job_id: str) -> None:
        """End a job early."""
        self._run(lambda: self._client.cancel(job_id))

    def tokenize(
        self, text: str, add_special: bool = True, parse_special: bool = False
    ) -> tuple[Token, ...]:
        """Return the tokens of a text."""
        return self._run(lambda: self._client.tokenize(text, add_special, parse_special))

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        return self._run(lambda: self._client.detokenize(token_ids))

    def apply_template(
        self,
        chat: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Return the prompt of a chat, for `generate` with `parse_special`."""
        return self._run(
            lambda: self._client.apply_template(chat, tools, variables, add_generation_prompt)
        )

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return the embeddings of texts, each of length 1."""
        return self._run(lambda: self._client.embed(texts))

    def status(self) -> Status:
        """Return the state of the orchestrator."""
        return self._run(self._client.status)


async def _make(address: str, security: ClientSecurity) -> OutriderClient:
    return OutriderClient(address, security)
