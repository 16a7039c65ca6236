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
    Callable,
    Collection,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol, TypeVar

import grpc

from orchestrator.fail_over import PeerFailed, TargetFailOver
from orchestrator.peers import DialledPeer
from orchestrator.streams import FAILURES, is_cancelled, is_too_large, model_changed
from orchestrator.targets import PooledTarget
from outrider.backoff import FIRST_PAUSE
from outrider.core.health import LOOK_SECONDS
from outrider.errors import (
    RETRY_SECONDS,
    DeadlinePassed,
    DecodeFailed,
    EngineBusy,
    InvalidRequest,
    PeerUnavailable,
)
from outrider.rpc.statuses import describe, read_error_info

_OF_THE_ENGINE = ("CountCached", "Embed", "Score", "SearchBeams")
"""Methods that nothing but a working engine answers."""

_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""What a call ends with when its target restarts."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Reader(Protocol[T_co]):
    """Reads what one attempt of a call streams, from its beginning."""

    def read(self, part: Any) -> Sequence[T_co]:
        """Return what the next part brings. Raises InvalidRequest for what cannot be."""

    def finish(self) -> None:
        """The stream is at its end. Raises InvalidRequest where something is missing."""


class Targets(Protocol):
    """Those that may be called."""

    @property
    def closed(self) -> bool:
        """Whether none will ever be usable again."""

    @property
    def detail(self) -> str:
        """Why none is usable, in one line."""

    def choose_to_call(
        self, first: DialledPeer | None, failed: Collection[PooledTarget]
    ) -> PooledTarget | None:
        """Return the one to call, if possible none of those that failed; None: none is usable."""

    def has_another(self, besides: Collection[PooledTarget]) -> bool:
        """Return whether there is another one, though it may not be usable now."""


class Calls:
    """Makes calls; one that is lost, late or answered with nonsense, again at another target."""

    def __init__(self, targets: Targets, timeout: float, first: DialledPeer | None = None) -> None:
        """A target that decodes nothing has at least `timeout`; `first` is asked where usable."""
        self._targets, self._timeout, self._first = targets, timeout, first

    async def call(self, method: str, request: Any, deadline: float, read: Callable[[Any], T]) -> T:
        """Return what `read` makes of a call's answer, by `deadline`.

        The call is made again when its target restarts meanwhile, is stuck or late, or answers what
        `read` refuses with InvalidRequest.

        Raises InvalidRequest for what the targets refuse, ModelChanged when they host
        another model than `request` names, DeadlinePassed when no target is away, DecodeFailed
        where the answers cannot be read, else PeerUnavailable; that names a stuck target.
        """
        attempts = self._attempts(method, request, deadline)
        while True:
            async with attempts.begun() as call:
                return read(await call)

    async def whole(
        self, method: str, request: Any, deadline: float, begin: Callable[[], Reader[T]]
    ) -> list[T]:
        """Return all that a call streams; else like `call`.

        `begin` returns a reader for one attempt. What comes of one target is never put together
        with what came of another.
        """
        attempts = self._attempts(method, request, deadline)
        while True:
            async with attempts.begun() as call:
                reader, items = begin(), list[T]()
                async for part in call:
                    fresh = reader.read(part)
                    attempts.note_word(len(fresh))
                    items += fresh
                reader.finish()
                return items

    async def stream(
        self,
        method: str,
        request: Any,
        deadline: float,
        begin: Callable[[], Reader[T]],
        content: Callable[[T], object],
    ) -> AsyncGenerator[Sequence[T]]:
        """Yield what comes of a call's stream, part by part; else like `whole`.

        Another attempt continues after what was yielded: it has to bring the same. Where the
        `content` of anything is another one, the call is made again; raises PeerUnavailable where
        it stays so.
        """
        attempts = self._attempts(method, request, deadline)
        contents: list[object] = []  # of what was yielded
        while True:
            async with attempts.begun() as call:
                reader, count = begin(), 0  # of what this attempt brought
                async for part in call:
                    items = reader.read(part)
                    attempts.note_word(len(items))
                    known = contents[count : count + len(items)]
                    count += len(items)
                    if known != [content(each) for each in items[: len(known)]]:
                        raise attempts.difference()
                    if fresh := items[len(known) :]:
                        contents.extend(content(each) for each in fresh)
                        with attempts.taken():
                            yield fresh
                reader.finish()
                return

    def _attempts(self, method: str, request: Any, deadline: float) -> _Attempts:
        watch = TargetFailOver(self._timeout, method)
        return _Attempts(self._targets, method, request, deadline, watch, self._first)


class _Attempts:
    """One call, at one target after the other."""

    def __init__(
        self,
        targets: Targets,
        method: str,
        request: Any,
        deadline: float,
        fail_over: TargetFailOver,
        first: DialledPeer | None,
    ) -> None:
        self._targets = targets
        self._method, self._request = method, request
        self._deadline = deadline
        self._fail_over = fail_over
        self._first = first
        self._target: PooledTarget  # of the newest attempt
        self._overdue: PeerFailed | None = None  # why that was cancelled
        self._is_waiting = True  # for the target, and not for who takes what came

    @asynccontextmanager
    async def begun(self) -> AsyncIterator[Any]:
        """Make the call once more; what fails within is raised where it is not to be made again."""
        self._target = target = await self._chosen()
        make = getattr(target.peer.stub, self._method)
        call = make(self._request, timeout=self._left, metadata=target.peer.metadata)
        watching = asyncio.create_task(self._watch(call))
        try:
            yield call
            if self._method in _OF_THE_ENGINE:
                target.health.note_success()
            return
        except InvalidRequest as fault:
            failed = self._nonsense(str(fault))
        except PeerFailed as failure:
            failed = failure
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            # The channel was closed under the call, or it was given up.
            closed = PeerFailed(PeerUnavailable(target.peer.detail), is_counted=False)
            failed = self._overdue or closed
        except grpc.aio.AioRpcError as error:
            failed = self._failure(error)
        finally:
            watching.cancel()
            call.cancel()
        await self._leave(failed)

    async def _chosen(self) -> PooledTarget:
        """Return the target to call, once one is usable. Raises PeerUnavailable."""
        while (target := self._choice()) is None:
            if self._targets.closed or not self._left:
                raise PeerUnavailable(self._targets.detail)
            await asyncio.sleep(min(FIRST_PAUSE, self._left))
        return target

    def _choice(self) -> PooledTarget | None:
        return self._targets.choose_to_call(self._first, self._fail_over.failed)

    async def _leave(self, failed: PeerFailed) -> None:
        """Return when the call may be made again. Raises what it ends with."""
        self._fail_over.note(self._target, failed)
        other = self._choice()
        if other is not None and other not in self._fail_over.failed:
            return
        is_another_left = self._targets.has_another(self._fail_over.failed)
        pause = self._fail_over.pause(failed, is_another_left)
        if not self._left:
            raise failed.error
        await asyncio.sleep(min(pause, self._left))

    async def _watch(self, call: Any) -> None:
        """Cancel the call once it has waited for long enough."""
        self._overdue = None
        while self._overdue is None:
            await asyncio.sleep(LOOK_SECONDS)
            self._fail_over.look(self._is_waiting)
            self._overdue = self._fail_over.overdue(self._target)
        call.cancel()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Within, the target is not waited for: what it brought is taken."""
        self._is_waiting = False
        self._fail_over.note_progress()
        try:
            yield
        finally:
            self._is_waiting = True

    def note_word(self, count: int) -> None:
        """The target sent a part with so much in it; one with nothing in it says nothing."""
        if count:
            self._fail_over.note_word()

    def difference(self) -> PeerFailed:
        """Return that this attempt streams something else than the one before."""
        its = f"the target at {self._target.address} answers it otherwise"
        return PeerFailed(PeerUnavailable(f"{self._method} was interrupted, and {its}: ask again"))

    def _nonsense(self, fault: str) -> PeerFailed:
        why = f"the target answers {self._method} with what cannot be read: {fault}"
        return PeerFailed(DecodeFailed(why), is_ejected=True)

    def _failure(self, error: grpc.aio.AioRpcError) -> PeerFailed:
        """Return what a call's status says. Raises DeadlinePassed for that of this side's clock."""
        code, details, target = error.code(), error.details() or "", self._target
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            # What one target refuses another one may take: of another build, say.
            field, _, message = details.partition(": ")
            return PeerFailed(InvalidRequest(field, message or "refused"), is_asked_again=False)
        if is_too_large(code, details):
            return self._nonsense("the answer is larger than a message may be")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and not self._left and target.is_usable:
            raise DeadlinePassed(f"{self._method} took longer than the request's deadline")
        lost = model_changed(error.trailing_metadata()) or PeerUnavailable(
            f"the {target.peer.role} cannot {self._method}: {describe(error)}"
        )
        if _is_busy(error):
            target.note_busy(RETRY_SECONDS)
        is_away = _is_busy(error) or code in _AWAY
        is_asked_again = is_away or code in FAILURES
        return PeerFailed(lost, is_asked_again=is_asked_again, is_counted=not is_away)

    @property
    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())


def _is_busy(error: grpc.aio.AioRpcError) -> bool:
    """Return whether a call found no room, which another time it may."""
    info = read_error_info(error.trailing_metadata())
    return info is not None and info.reason == EngineBusy.reason
