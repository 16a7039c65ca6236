"""Where a text, or a call, goes when its target or draft fails: one rule for all."""

from __future__ import annotations

import time
from typing import Generic, TypeVar

from orchestrator.leases import PooledPeer
from orchestrator.targets import PooledTarget
from outrider.backoff import Backoff
from outrider.core.health import LOOK_SECONDS, MOST_FAILURES, Overdue, Silence, overdue
from outrider.errors import OutriderError, PeerUnavailable

P = TypeVar("P", bound=PooledPeer)


class PeerFailed(Exception):
    """A peer failed. `error` is what the text, or the call, ends with if it fails everywhere."""

    def __init__(
        self,
        error: OutriderError,
        *,
        is_ejected: bool = False,
        is_asked_again: bool = True,
        is_counted: bool = True,
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.is_ejected = is_ejected
        """It did what no peer should do."""
        self.is_asked_again = is_asked_again
        """It may do better another time."""
        self.is_counted = is_counted
        """It ends a text after some in a row; what is away, or has no room, is waited for."""


class FailOver(Generic[P]):
    """What failed of the targets or drafts of one text, or call, since it last grew.

    Another one, none of those that failed, is asked at once. Where none is left, any is asked after
    a pause, until enough have failed.
    """

    def __init__(self) -> None:
        self.failed: list[P] = []
        """Asked after all others."""
        self._count = 0  # failures that count
        self._backoff = Backoff()

    def note_progress(self) -> None:
        """A peer brought what was asked for, or a part of it."""
        self.failed = []
        self._count = 0
        self._backoff.reset()

    def note(self, peer: P, failed: PeerFailed) -> None:
        """A peer failed."""
        if failed.is_ejected:
            peer.note_failure(str(failed))
        if peer not in self.failed:
            self.failed.append(peer)
        self._count += failed.is_counted

    def pause(self, failed: PeerFailed, is_another_left: bool) -> float:
        """Return in how many seconds any is asked again, where all usable ones failed.

        Raises what the text, or the call, ends with where that does not help: enough failed, or
        the peer would fail again and there is no other one.
        """
        if self._count >= MOST_FAILURES or not (failed.is_asked_again or is_another_left):
            raise failed.error
        return self._backoff.next()


class TargetFailOver(FailOver[PooledTarget]):
    """The same of targets, which may also leave what they are asked for unanswered."""

    def __init__(self, timeout: float, asked: str = "a round") -> None:
        """A target that decodes nothing has at least `timeout`; `asked` is what it is asked for."""
        super().__init__()
        self._wait = Silence(LOOK_SECONDS)  # of the target that is asked
        self._late_count = 0  # answers in a row that were overdue
        self._timeout = timeout
        self._asked = asked

    def note_progress(self) -> None:
        super().note_progress()
        self._late_count = 0
        self._wait.note_word()

    def note(self, peer: PooledTarget, failed: PeerFailed) -> None:
        super().note(peer, failed)
        self._wait.end()

    def note_word(self) -> None:
        """The target that is asked said something new."""
        self._wait.note_word()

    def look(self, is_waiting: bool) -> None:
        """See how long a target has been waited for, where one is at all."""
        self._wait.note_look(time.monotonic()) if is_waiting else self._wait.end()

    def overdue(self, target: PooledTarget, length: int = 0) -> PeerFailed | None:
        """Return that an answer for a text of `length` tokens is overdue; None where it is not.

        A stuck target is ejected; one that is late works, and is not.
        """
        found = overdue(
            self._wait.seconds,
            target.peer.idle.seconds,
            self._timeout,
            decode=target.decode_seconds,
            answer=target.answer_seconds(length),
            tries=self._late_count,
        )
        if found is None:
            return None
        why = f"left {self._asked} unanswered for {self._wait.seconds:.0f} s"
        is_stuck = found is Overdue.STUCK
        if is_stuck:
            why = f"is stuck: it {why} and decoded nothing"
        self._late_count += 1
        self._wait.end()
        error = PeerUnavailable(f"the target at {target.address} {why}")
        return PeerFailed(error, is_ejected=is_stuck, is_asked_again=not is_stuck)
