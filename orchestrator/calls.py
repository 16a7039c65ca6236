"""Idempotent calls at whichever target is chosen for each, until one has answered.

No other module calls a target, but for its session streams, `Rollback` and what a `Peer` asks of
one to know it: what a target answers is read here, by the reader that comes with each call. So what
cannot be read is always the target's fault, and another one is asked.
"""

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
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol, TypeVar

import grpc

from orchestrator.streams import is_cancelled, is_too_large, model_changed
from orchestrator.targets import PooledTarget, TargetWatch
from outrider.backoff import Backoff
from outrider.core.health import LOOK_SECONDS, MOST_FAILURES, Failures, Overdue
from outrider.errors import (
    DeadlinePassed,
    DecodeFailed,
    EngineBusy,
    InvalidRequest,
    PeerUnavailable,
)
from outrider.rpc.statuses import describe, read_error_info

_OF_THE_ENGINE = ("CountCached", "Embed", "Score", "SearchBeams")
"""Methods that nothing but a working engine answers."""

_RESTARTED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""What a call ends with when its target restarts."""

_FAILED = (
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
"""What a call ends with that went wrong at its target, and need not do so again. So is a deadline
that only the target has come to."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Reader(Protocol[T_co]):
    """Reads what one attempt of a call streams, from its beginning."""

    def read(self, part: Any) -> Sequence[T_co]:
        """Return what the next part brings. Raises InvalidRequest for what cannot be."""

    def finish(self) -> None:
        """The stream is at its end. Raises InvalidRequest where something is missing."""


Choose = Callable[[Collection[PooledTarget], Collection[PooledTarget]], PooledTarget]
"""Returns the target to call, if possible none of those that failed; never a stuck one."""

WaitUntilReady = Callable[[float], Awaitable[bool]]
"""Returns whether any target was usable within so many seconds."""


class Calls:
    """Makes calls; one that is lost, late or answered with nonsense, again at another target."""

    def __init__(self, choose: Choose, wait: WaitUntilReady, timeout: float) -> None:
        """A target that decodes nothing has at least `timeout`."""
        self._choose, self._wait = choose, wait
        self._timeout = timeout

    async def call(self, method: str, request: Any, deadline: float, read: Callable[[Any], T]) -> T:
        """Return what `read` makes of a call's answer, by `deadline`.

        The call is made again when its target restarts meanwhile, is late while another one is
        there, or answers what `read` refuses with InvalidRequest.

        Raises InvalidRequest for what the targets refuse, ModelChanged when they host
        another model than `request` names, DeadlinePassed when no target is away, DecodeFailed
        where the answers cannot be read, else PeerUnavailable; that names a stuck target.
        """

        async def take(call: Any, attempts: _Attempts) -> T:
            async with attempts.watched(call):
                answer = await call
            return read(answer)

        return await self._until_answered(method, request, deadline, take)

    async def whole(
        self, method: str, request: Any, deadline: float, begin: Callable[[], Reader[T]]
    ) -> list[T]:
        """Return all that a call streams; else like `call`.

        `begin` returns a reader for one attempt. What comes of one target is never put together
        with what came of another.
        """

        async def take(call: Any, attempts: _Attempts) -> list[T]:
            reader, items = begin(), list[T]()
            async with attempts.watched(call):
                async for part in call:
                    fresh = reader.read(part)
                    attempts.note_word(len(fresh))
                    items += fresh
            reader.finish()
            return items

        return await self._until_answered(method, request, deadline, take)

    async def _until_answered(
        self,
        method: str,
        request: Any,
        deadline: float,
        take: Callable[[Any, _Attempts], Awaitable[T]],
    ) -> T:
        attempts = self._attempts(method, deadline)
        while True:
            call = attempts.begin(request)
            try:
                answer = await take(call, attempts)
                attempts.note_answered()
                return answer
            except InvalidRequest as fault:
                await attempts.recover_from_nonsense(fault)
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
        begin: Callable[[], Reader[T]],
        content: Callable[[T], object],
    ) -> AsyncGenerator[Sequence[T]]:
        """Yield what comes of a call's stream, part by part; else like `whole`.

        Another attempt continues after what was yielded: it
        has to bring the same. Where the `content` of anything is another one, the call is made
        again; raises PeerUnavailable where it stays so.
        """
        attempts = self._attempts(method, deadline)
        contents: list[object] = []  # of what was yielded
        while True:
            call, reader = attempts.begin(request), begin()
            count = 0  # of what this attempt brought
            try:
                async with attempts.watched(call):
                    async for part in call:
                        items = reader.read(part)
                        attempts.note_word(len(items))
                        known = contents[count : count + len(items)]
                        count += len(items)
                        if known != [content(each) for each in items[: len(known)]]:
                            attempts.note_difference()
                            break
                        if fresh := items[len(known) :]:
                            contents.extend(content(each) for each in fresh)
                            with attempts.taken(len(contents)):
                                yield fresh
                    else:
                        reader.finish()
                        attempts.note_answered()
                        return
            except InvalidRequest as fault:
                await attempts.recover_from_nonsense(fault)
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
            except grpc.aio.AioRpcError as error:
                await attempts.recover(error)
            finally:
                call.cancel()

    def _attempts(self, method: str, deadline: float) -> _Attempts:
        watch = TargetWatch(self._timeout, method)
        return _Attempts(method, deadline, self._choose, self._wait, watch)


class _Attempts:
    """One call, at one target after the other."""

    def __init__(
        self,
        method: str,
        deadline: float,
        choose: Choose,
        wait: WaitUntilReady,
        watch: TargetWatch,
    ) -> None:
        self._method = method
        self._deadline = deadline
        self._choose, self._wait = choose, wait
        self._watch = watch
        self._target: PooledTarget  # of the newest attempt
        self._tried: list[PooledTarget] = []  # that were of no use: others are asked first
        self._failures = Failures[PooledTarget]()
        self._stuck: dict[PooledTarget, str] = {}  # whose engine decoded nothing, in words
        self._count = 0  # of what was taken
        self._backoff = Backoff()
        self._is_waiting = True  # for the target, and not for who takes what came

    def begin(self, request: Any) -> Any:
        """Make the call. Raises PeerUnavailable where no target is left."""
        self._target = target = self._chosen()
        if target in self._stuck:
            raise PeerUnavailable(self._stuck[target])
        if target.peer.closed:
            raise PeerUnavailable(target.peer.detail)
        self._watch.wait.note_word()
        make = getattr(target.peer.stub, self._method)
        return make(request, timeout=self._left, metadata=target.peer.metadata)

    def _chosen(self, *besides: PooledTarget) -> PooledTarget:
        """Return the target to call, none that was of no use so far unless all are."""
        return self._choose({*self._tried, *besides}, self._stuck)

    def _another(self) -> bool:
        """Return whether a usable target is left that was not tried."""
        other = self._chosen(self._target)
        return other.is_usable and other not in {*self._tried, self._target}

    def _leave(self) -> bool:
        """Ask others first, or all again once all were; return whether one was not asked yet."""
        is_left = self._another()
        self._tried = [*(self._tried if is_left else ()), self._target]
        return is_left

    def _note_failure(self) -> bool:
        """The target failed; return whether that is enough, since it was the last of many."""
        return self._failures.note(self._target, self._count) >= MOST_FAILURES

    @asynccontextmanager
    async def watched(self, call: Any) -> AsyncIterator[None]:
        """Cancel a call within, once it has waited for long enough.

        That is for an engine that is stuck; or while another target is there, which may be quicker.
        """
        watching = asyncio.create_task(self._give_up(call))
        try:
            yield
        finally:
            watching.cancel()

    async def _give_up(self, call: Any) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._watch.look(self._is_waiting)
            why = self._watch.overdue(self._target)
            if why is None:
                continue
            if why is Overdue.STUCK:
                self._stuck[self._target] = self._watch.why
            self._leave()
            if why is Overdue.STUCK or self._another():
                call.cancel()
                return

    @contextmanager
    def taken(self, count: int) -> Iterator[None]:
        """Within, the target is not waited for: what it brought is taken, `count` in all."""
        self._is_waiting, self._count = False, count
        try:
            yield
        finally:
            self._is_waiting = True

    def note_word(self, count: int) -> None:
        """The target sent a part with so much in it; one with nothing in it says nothing."""
        if count:
            self._watch.wait.note_word()

    def note_answered(self) -> None:
        """The call came to its end."""
        if self._method in _OF_THE_ENGINE:
            self._target.health.note_success()

    def note_difference(self) -> None:
        """This attempt streams something else than the one before. Raises PeerUnavailable."""
        self._leave()
        if self._note_failure():
            its = f"the target at {self._target.address}"
            detail = f"{self._method} was interrupted, and {its} answers it otherwise: ask again"
            raise PeerUnavailable(detail)

    async def recover_from_nonsense(self, fault: InvalidRequest) -> None:
        """Return when another target may be asked, or this one again; else raise DecodeFailed."""
        its = f"answers {self._method} with what cannot be read: {fault}"
        self._target.note_failure(f"it {its}")
        is_enough = self._note_failure()
        if self._leave():
            return
        if is_enough or not self._left:
            raise DecodeFailed(f"the target {its}")
        await asyncio.sleep(min(self._backoff.next(), self._left))

    async def recover(self, error: grpc.aio.AioRpcError) -> None:
        """Return when a call that failed may be made again; else raise what it failed with."""
        if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
            # What one target refuses another one may take: of another build, say.
            if self._note_failure() or not self._leave():
                field, _, message = (error.details() or "").partition(": ")
                raise InvalidRequest(field, message or "refused") from None
            return
        if is_too_large(error.code(), error.details() or ""):
            its = InvalidRequest(self._method, "the answer is larger than a message may be")
            await self.recover_from_nonsense(its)
            return
        role = self._target.peer.role
        lost = PeerUnavailable(f"the {role} cannot {self._method}: {describe(error)}")
        if self._is_over(error) and self._target.is_usable:
            raise DeadlinePassed(f"{self._method} took longer than the request's deadline")
        if not self._may_try_again(error):
            raise model_changed(error.trailing_metadata()) or lost from None
        self._leave()
        pause = self._backoff.next()
        if _is_busy(error):
            self._target.note_busy(pause)
        await asyncio.sleep(min(pause, self._left))
        if not await self._wait(self._left) and not self._target.peer.closed:
            raise lost

    def _is_over(self, error: grpc.aio.AioRpcError) -> bool:
        """Return whether a call ended with its deadline, by this side's clock."""
        return error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and not self._left

    def _may_try_again(self, error: grpc.aio.AioRpcError) -> bool:
        code = error.code()
        if code in _RESTARTED or _is_busy(error):
            return True
        if self._is_over(error):
            return False
        if self._note_failure():
            return False
        other = self._choose([self._target], self._stuck)
        # What is refused is refused again, unless another target takes it.
        return code in _FAILED or (other is not self._target and other.is_usable)

    @property
    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())


def _is_busy(error: grpc.aio.AioRpcError) -> bool:
    """Return whether a call found no room, which another time it may."""
    info = read_error_info(error.trailing_metadata())
    return info is not None and info.reason == EngineBusy.reason
