"""Looks at how long a generation waits for its target, and takes note of one that is stuck."""

from __future__ import annotations

import time

from orchestrator.core.silence import Fate, RoundWait, judge
from orchestrator.targets import PooledTarget
from outrider import logs


class TargetWatch:
    """What one generation sees of the targets that it is written at."""

    def __init__(self, least_seconds: float) -> None:
        """A target that decodes nothing has at least so long."""
        self.wait = RoundWait()
        self.stuck: list[PooledTarget] = []
        """Those that were given up, in order."""
        self.reason = ""
        """Why the newest of them was, for people; names it."""
        self._least = least_seconds

    def look(self, is_waiting: bool, target: PooledTarget | None, length: int) -> Fate:
        """Say what becomes of the round that the target has to answer, if it has one.

        `target` is None while there is none; the text has `length` tokens.
        """
        wait, now = self.wait, time.monotonic()
        wait.note_look(now, is_waiting)
        if target is None or not wait.seconds:
            return Fate.WAIT
        fate = judge(wait, target.peer.signs.still, self._least, target.expected(length))
        seconds, where = f"for {wait.seconds:.0f} s", f"the target at {target.address}"
        if fate is Fate.GIVE_UP:
            its = f"it left a round unanswered {seconds} and decoded nothing"
            self.reason = f"{where} is stuck: {its}"
            logs.warning("outrider.orchestrator", "target stuck", detail=self.reason)
            target.conduct.note_stuck(now, its)
            self.stuck.append(target)
            wait.note_word()
        elif fate is Fate.ASK_AGAIN:
            detail = f"{where} left a round unanswered {seconds}"
            logs.warning("outrider.orchestrator", "target asked again", detail=detail)
            wait.note_asked_again()
        return fate
