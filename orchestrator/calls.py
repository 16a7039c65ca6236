"""Idempotent calls at whichever target is chosen for each, until one has answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
)
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc

from orchestrator.core.silence import LOOK_SECONDS
from orchestrator.link import Backoff
from orchestrator.streams import is_cancelled, model_changed
from orchestrator.target_watch import TargetWatch
from orchestrator.targets import PooledTarget
from outrider.errors import DeadlinePassed, EngineBusy, InvalidRequest, PeerUnavailable
from outrider.rpc.errors import describe, read_error_info

_OF_THE_ENGINE = ("CountCached", "Embed", "Score", "SearchBeams")
"""Methods that nothing but a working engine answers."""

_RESTARTED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""What a call ends with when its target restarts."""

_FAILED = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.ABORTED)
"""What a call ends with that went wrong at its target, and need not do so again."""

_MOST_FAILURES = 3
_SEEN_SECONDS = 0.05  # until it shows that a target is lost

Choose = Callable[[Collection[PooledTarget], Collection[PooledTarget]], PooledTarget]
"""Given the targets that failed last, and those that are stuck, returns the one to call."""


def _nothing(part: Any) -> object:
    return None


class Calls:
    """Makes calls; one that is lost, or whose target is stuck, again at another target."""

    def __init__(
        self,
        choose: Choose,
        wait_until_ready: Callable[[float], Awaitable[bool]],
        least_seconds: float,
    ) -> None:
        """`wait_until_ready` is given a time in seconds.

        A target that decodes nothing has at least `least_seconds`.
        """
        self._choose = choose
        self._wait_until_ready = wait_until_ready
        self._least = least_seconds

    async def call(self, method: str, request: Any, deadline: float) -> Any:
        """Make a call by `deadline`, again when its target restarts meanwhile.

        Raises InvalidRequest for what the target refuses, ModelChanged when it hosts
        another model than `request` names, DeadlinePassed when no target is away, else
        PeerUnavailable; that names a stuck target.
        """
        attempts = self._attempts(method, deadline)
        while True:
            call = attempts.begin(request)
            try:
                async with attempts.watched(call):
                    return await call
            except asyncio.CancelledError:
                if is_cancelled():
                    raise  # else the channel was closed under the call, or it was given up
            except grpc.aio.AioRpcError as error:
                await attempts.recover(error)
            finally:
                call.cancel()

    async def stream(
        self,
        method: str,
        request: Any,
        deadline: float,
        content: Callable[[Any], object] = _nothing,
    ) -> AsyncGenerator[Any]:
        """Yield what a call streams; else like `call`.

        When its target restarts meanwhile, another call continues after what was yielded: a
        repeated one has to stream the same. Where the `content` of one of its parts is another
        one, it is made again; raises PeerUnavailable where it stays so.
        """
        attempts = self._attempts(method, deadline)
        contents: list[object] = []  # of what was yielded
        while True:
            call = attempts.begin(request)
            repeated = iter(list(contents))
            try:
                async with attempts.watched(call):
                    async for part in call:
                        attempts.note_word()
                        known = next(repeated, repeated)
                        if known is repeated:
                            contents.append(content(part))
                            with attempts.taken():
                                yield part
                        elif known != content(part):
                            attempts.note_difference()
                            break
                    else:
                        return
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
            except grpc.aio.AioRpcError as error:
                await attempts.recover(error)
            finally:
                call.cancel()

    def _attempts(self, method: str, deadline: float) -> _Attempts:
        watch = TargetWatch(self._least, method)
        return _Attempts(method, deadline, self._choose, self._wait_until_ready, watch)


class _Attempts:
    """One call, at one target after the other."""

    def __init__(
        self,
        method: str,
        deadline: float,
        choose: Choose,
        wait_until_ready: Callable[[float], Awaitable[bool]],
        watch: TargetWatch,
    ) -> None:
        self._method = method
        self._deadline = deadline
        self._choose = choose
        self._wait_until_ready = wait_until_ready
        self._watch = watch
        self._target: PooledTarget  # of the newest attempt
        self._failed: list[PooledTarget] = []  # last
        self._failures = 0
        self._backoff = Backoff()
        self._is_waiting = True  # for the target, and not for who takes what came

    def begin(self, request: Any) -> Any:
        """Make the call. Raises PeerUnavailable where no target is left."""
        self._target = target = self._choose(self._failed, self._watch.stuck)
        if target in self._watch.stuck:
            raise PeerUnavailable(self._watch.reason)
        if target.peer.closed:
            raise PeerUnavailable(target.peer.detail)
        self._watch.wait.note_word()
        make = getattr(target.peer.stub, self._method)
        return make(request, timeout=self._left, metadata=target.peer.metadata)

    @asynccontextmanager
    async def watched(self, call: Any) -> AsyncIterator[None]:
        """Cancel a call within, once it has waited for long enough for an engine that is stuck."""
        if self._method not in _OF_THE_ENGINE:
            yield
            return
        watching = asyncio.create_task(self._give_up(call))
        try:
            yield
        finally:
            watching.cancel()

    async def _give_up(self, call: Any) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._watch.finds_stuck(self._is_waiting, self._target):
                call.cancel()
                return

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Within, the target is not waited for."""
        self._is_waiting = False
        try:
            yield
        finally:
            self._is_waiting = True

    def note_word(self) -> None:
        """The target sent something."""
        self._watch.wait.note_word()

    def note_difference(self) -> None:
        """This attempt streams something else than the one before. Raises PeerUnavailable."""
        self._failed = [self._target]
        self._failures += 1
        if self._failures > _MOST_FAILURES:
            its = f"the target at {self._target.address}"
            detail = f"{self._method} was interrupted, and {its} answers it otherwise: ask again"
            raise PeerUnavailable(detail)

    async def recover(self, error: grpc.aio.AioRpcError) -> None:
        """Return when a call that failed may be made again; else raise what it failed with."""
        if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
            field, _, message = (error.details() or "").partition(": ")
            raise InvalidRequest(field, message or "refused") from None
        role = self._target.peer.role
        lost = PeerUnavailable(f"the {role} cannot {self._method}: {describe(error)}")
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and self._target.is_usable:
            raise DeadlinePassed(f"{self._method} took longer than the request's deadline")
        if not self._may_try_again(error):
            raise model_changed(error.trailing_metadata()) or lost from None
        self._failed = [self._target]
        await asyncio.sleep(min(self._pause(error), self._left))
        if not await self._wait_until_ready(self._left) and not self._target.peer.closed:
            raise lost

    def _may_try_again(self, error: grpc.aio.AioRpcError) -> bool:
        code = error.code()
        if code in _RESTARTED or _is_busy(error):
            return True
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return False
        self._failures += 1
        if self._failures > _MOST_FAILURES:
            return False
        other = self._choose([self._target], self._watch.stuck)
        # What is refused is refused again, unless another target takes it.
        return code in _FAILED or (other is not self._target and other.is_usable)

    def _pause(self, error: grpc.aio.AioRpcError) -> float:
        """Return the seconds until the next attempt."""
        if error.code() in _RESTARTED:
            # Its state is seen a moment late: without the pause this would not wait at all.
            return _SEEN_SECONDS
        pause = self._backoff.next()
        if _is_busy(error):
            self._target.note_busy(pause)
        return pause

    @property
    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())


def _is_busy(error: grpc.aio.AioRpcError) -> bool:
    """Return whether a call found no room, which another time it may."""
    info = read_error_info(error.trailing_metadata())
    return info is not None and info.reason == EngineBusy.reason
