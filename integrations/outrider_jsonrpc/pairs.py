"""Puts the pair that `init` names in use: the configured one, or one that is started here."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.peers import Peer
from orchestrator.pool import Pool
from orchestrator.service import Orchestrator
from outrider import logs
from outrider.errors import (
    DeadlinePassed,
    EngineBusy,
    InvalidRequest,
    OutriderError,
    PeerUnavailable,
)
from outrider.messages import PeerState
from outrider.processes import ANY_PORT, Child, watch

MAX_TEXT = 4096
"""Characters of a path or a name, at most."""

_RETURN_SECONDS = 10.0  # for services that are expected to be there
_BESIDE_THE_TARGET = ("--nice=19",)  # as `outrider up` has it


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedPair:
    """What a caller wants to be served; models are files, or names of what is served."""

    model: str = ""
    draft_model: str = ""
    alias: str = ""
    options: tuple[str, ...] = ()  # of both services


def read_wanted_pair(params: Mapping[str, Any]) -> WantedPair:
    """Return what the parameters of `init` say. Raises InvalidRequest."""
    numbers = {"n_threads": "threads", "n_gpu_layers": "n-gpu-layers", "n_ctx": "ctx"}
    said = {name: _read_number(name, params.get(name)) for name in numbers}
    drafts = [_read_text(name, params.get(name)) for name in ("model_draft", "draft_model")]
    return WantedPair(
        model=_read_text("model", params.get("model")),
        draft_model=drafts[0] or drafts[1],
        alias=_read_text("model_alias", params.get("model_alias")),
        options=tuple(
            f"--{numbers[name]}={value}" for name, value in said.items() if value is not None
        ),
    )


def model_name(path: str) -> str:
    """Return what a service names the model of a file."""
    return Path(path).name.removesuffix(".gguf")


@dataclass(frozen=True, slots=True)
class _InUse:
    """What is used, and the pair that was wanted as it was started; none for the configured one."""

    pool: Pool
    wanted: WantedPair | None = None


_Enter = Callable[[AsyncExitStack], Awaitable[_InUse]]
"""Makes a pair ready for use; what it took is undone when the stack is closed."""


class Launcher:
    """Changes the pair of an orchestrator, one `init` at a time.

    Services that it started are stopped when another pair takes their place;
    the configured ones are only left, and come back to.
    """

    def __init__(
        self,
        orchestrator: Orchestrator,
        make_configured: Callable[[], Pool],
        command: Sequence[str],
    ) -> None:
        self._orchestrator = orchestrator
        self._command = command  # runs any service, without the role
        self._make_configured = make_configured
        self._configured = orchestrator.pool  # as it was last seen
        # The pair that is used, and the processes that serve it.
        self._now = _InUse(orchestrator.pool)
        self._services = AsyncExitStack()  # ends these processes
        # Of the `init` in flight, or of the last one.
        self._task: asyncio.Task[OutriderError | None] | None = None
        self.failure: OutriderError | None = None
        """Why the last `init` came to nothing."""

    @property
    def is_loading(self) -> bool:
        """Whether an `init` is in progress."""
        return self._task is not None and not self._task.done()

    def begin(self, wanted: WantedPair) -> asyncio.Task[OutriderError | None] | None:
        """Begin to put a pair in use; None if it is in use. The task returns what it failed of.

        Raises EngineBusy while another `init` is in progress, InvalidRequest for
        a draft without a target, and PeerUnavailable while the configured
        services load, so that nobody knows whether they are meant.
        """
        if self.is_loading:
            raise EngineBusy("another init is in progress", 1.0)
        enter = self._find(wanted)
        self.failure = None
        if enter is None:
            return None
        self._task = asyncio.create_task(self._put_in_use(enter))
        return self._task

    def _find(self, wanted: WantedPair) -> _Enter | None:
        """Return the way to the pair that is wanted; None if it is in use, or none is named."""
        if not wanted.model and not wanted.draft_model:
            return None
        for peer in (self._configured.target, self._configured.draft):
            if peer is not None and peer.model is None and peer.state is PeerState.LOADING:
                raise PeerUnavailable(peer.detail)
        asked = _asked(wanted, self._configured)
        if all(served in (name, model_name(name)) for name, served in asked):
            return self._return if self._now.wanted else None
        if self._serves(wanted):
            return None
        if not wanted.model:
            raise InvalidRequest("model", "must be named, too: a draft is not started alone")
        return partial(self._start, wanted)

    def _serves(self, wanted: WantedPair) -> bool:
        """Return whether what was started here last is wanted again, and still there."""
        pool = self._now.pool
        named = all(served == name for name, served in _asked(wanted, pool))
        return (named or wanted == self._now.wanted) and all(peer.ready for peer in pool.peers)

    async def _put_in_use(self, enter: _Enter) -> OutriderError | None:
        seconds = self._orchestrator.config.request_seconds
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(seconds):
                    now = await enter(stack)
                self._now = now
                await self._orchestrator.use(now.pool)
                before, self._services = self._services, stack.pop_all()
            await before.aclose()
        except OutriderError as error:
            self.failure = error
        except TimeoutError:
            self.failure = DeadlinePassed(f"the models were not ready in {seconds:g} seconds")
        except Exception as error:
            self.failure = logs.internal_error("outrider.orchestrator", error)
        if self.failure is not None:
            logs.warning("outrider.orchestrator", "init failed", detail=str(self.failure))
        return self.failure

    async def _return(self, stack: AsyncExitStack) -> _InUse:
        """Connect to the configured services again. Raises PeerUnavailable."""
        pool = _watched(self._make_configured(), stack)
        if not await pool.wait_until_ready(_RETURN_SECONDS):
            raise PeerUnavailable(pool.detail)
        self._configured = pool
        return _InUse(pool)

    async def _start(self, wanted: WantedPair, stack: AsyncExitStack) -> _InUse:
        """Start services; raise ServiceStopped if one ends, VocabularyMismatch if they differ."""
        words = ["--embeddings", *wanted.options]
        if wanted.alias:
            words.append(f"--alias={wanted.alias}")
        children = [await self._start_child(stack, "target", wanted.model, words)]
        if wanted.draft_model:
            words = [*_BESIDE_THE_TARGET, *wanted.options]
            children.append(await self._start_child(stack, "draft", wanted.draft_model, words))
        seconds = self._orchestrator.config.request_seconds
        insists = self._orchestrator.config.same_vocabulary
        pool = await watch(_ready_pool(children, stack, seconds, insists), children)
        return _InUse(pool, wanted)

    async def _start_child(
        self, stack: AsyncExitStack, role: str, model: str, words: Sequence[str]
    ) -> Child:
        """Start a service; if it ends before it is stopped, say so in the log."""
        child = await Child.start(
            self._command, role, ANY_PORT, (f"--model={model}", *words), _pass_on
        )
        stack.push_async_callback(child.stop)

        async def log_end() -> None:
            logs.warning("outrider.orchestrator", "service ended", detail=str(await child.end()))

        task = asyncio.create_task(log_end())
        stack.callback(task.cancel)
        return child

    async def close(self) -> None:
        """Stop everything that was started here."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._services.aclose()


async def _ready_pool(
    children: Sequence[Child], stack: AsyncExitStack, seconds: float, same_vocabulary: bool
) -> Pool:
    """Return the pair of these services once both can be used together."""
    addresses = await asyncio.gather(*(child.address() for child in children))
    target, *drafts = [Peer(child.role, at) for child, at in zip(children, addresses, strict=True)]
    pool = _watched(Pool([target], drafts, same_vocabulary), stack)
    for peer in pool.peers:
        await peer.wait_until_ready(seconds)
    if pool.mismatch is not None:
        raise pool.mismatch
    return pool


def _watched(pool: Pool, stack: AsyncExitStack) -> Pool:
    """Return the pair, which is watched from now on."""
    stack.push_async_callback(pool.stop)
    pool.start()
    return pool


def _pass_on(role: str, line: str) -> None:
    """Pass on what a service logs."""
    if line.startswith("{"):
        print(line, file=sys.stderr, flush=True)
    elif line:
        logs.warning("outrider.orchestrator", f"{role} says", line=line)


def _asked(wanted: WantedPair, pool: Pool) -> list[tuple[str, str | None]]:
    """Return each model that is asked for, with the name of the one that is served."""
    both = ((wanted.model, pool.target), (wanted.draft_model, pool.draft))
    return [
        (name, peer.model.model_name if peer is not None and peer.model is not None else None)
        for name, peer in both
        if name
    ]


def _read_text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > MAX_TEXT or "\0" in value:
        raise InvalidRequest(name, f"must be a text of at most {MAX_TEXT} characters")
    return value


def _read_number(name: str, value: Any) -> int | None:
    """Return a whole number; a command line has it as a text."""
    if value in (None, ""):
        return None
    try:
        if isinstance(value, bool | float):
            raise ValueError
        return int(value)
    except (TypeError, ValueError):
        raise InvalidRequest(name, "must be a whole number") from None
