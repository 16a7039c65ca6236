"""Looks at how long a generation waits for its target, and takes note of one that is stuck."""

from __future__ import annotations

import time

from orchestrator.core.silence import Fate, RoundWait, is_late, is_stuck, judge
from orchestrator.targets import PooledTarget
from outrider import logs


class TargetWatch:
    """What one generation, or one call, sees of the targets that it is at."""

    def __init__(self, least_seconds: float, asked: str = "a round") -> None:
        """A target that decodes nothing has at least so long; `asked` is what it is asked for."""
        self.wait = RoundWait()
        self.stuck: list[PooledTarget] = []
        """Those that were given up, in order."""
        self.reason = ""
        """Why the newest of them was, for people; names it."""
        self._least = least_seconds
        self._asked = asked

    def look(self, is_waiting: bool, target: PooledTarget | None, length: int) -> Fate:
        """Say what becomes of the round that the target has to answer, if it has one.

        `target` is None while there is none; the text has `length` tokens.
        """
        wait, now = self.wait, time.monotonic()
        wait.note_look(now, is_waiting)
        if target is None or not wait.seconds:
            return Fate.WAIT
        fate = judge(wait, target.peer.signs.still, self._least, target.expected(length))
        if fate is Fate.GIVE_UP:
            self._give_up(target, now)
        elif fate is Fate.ASK_AGAIN:
            detail = f"the target at {target.address} left {self._left_unanswered}"
            logs.warning("outrider.orchestrator", "target asked again", detail=detail)
            wait.note_asked_again()
        return fate

    def finds_stuck(self, is_waiting: bool, target: PooledTarget) -> bool:
        """Say whether the target is stuck that has a call to answer, if it is waited for."""
        wait, now = self.wait, time.monotonic()
        wait.note_look(now, is_waiting)
        found = is_stuck(wait, target.peer.signs.still, self._least, target.expected(0))
        if found:
            self._give_up(target, now)
        return found

    def finds_late(self, is_waiting: bool, target: PooledTarget, is_of_engine: bool) -> bool:
        """Say whether a call has waited for so long that another target is worth asking.

        What an engine has to answer may wait for the texts of others; nothing else does.
        """
        self.wait.note_look(time.monotonic(), is_waiting)
        expected = target.expected(0) if is_of_engine else None
        return is_late(self.wait, self._least, expected)

    def _give_up(self, target: PooledTarget, now: float) -> None:
        its = f"it left {self._left_unanswered} and decoded nothing"
        self.reason = f"the target at {target.address} is stuck: {its}"
        logs.warning("outrider.orchestrator", "target stuck", detail=self.reason)
        target.conduct.note_broken(now, its)
        self.stuck.append(target)
        self.wait.note_word()

    @property
    def _left_unanswered(self) -> str:
        return f"{self._asked} unanswered for {self.wait.seconds:.0f} s"
