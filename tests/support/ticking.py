"""A generation with a clock that stands still until a test moves it."""

from __future__ import annotations

from outrider.core.actions import Action, Wake
from outrider.core.generation import Generation
from outrider.core.plan import Plan
from outrider.messages import Frame, Rows, ServiceTime


class Ticking(Generation):
    """Tells `clock`, in seconds, wherever a generation wants to know the time."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.clock = 0.0
        self.wake: float | None = None

    def next_actions(self, now: float | None = None) -> list[Action]:
        """Return what is to be done now, and keep apart when to ask again."""
        actions = super().next_actions(self.clock if now is None else now)
        wakes = [action.time for action in actions if isinstance(action, Wake)]
        self.wake = min(wakes, default=None)
        return [action for action in actions if not isinstance(action, Wake)]

    def draft_frame(
        self, frame: Frame, now: float | None = None, seconds: float = 0.0, queue: float = 0.0
    ) -> None:
        super().draft_frame(frame, self.clock if now is None else now, seconds, queue)

    def target_rows(
        self,
        round_: int,
        rows: Rows,
        now: float | None = None,
        spent: ServiceTime | None = None,
    ) -> None:
        super().target_rows(round_, rows, self.clock if now is None else now, spent)

    def pass_time(self) -> None:
        """Let the time come that the generation waits for."""
        if self.wake is not None:
            self.clock = max(self.clock, self.wake)
