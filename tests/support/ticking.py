"""A generation with a clock that stands still until a test moves it."""

from __future__ import annotations

from outrider.core.actions import Action, Wake
from outrider.core.generation import Generation
from outrider.core.plan import Plan
from outrider.messages import Answer, Frame, Rows


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

    def target_rows(self, round_: int, rows: Rows) -> None:
        """The target answered a round as a whole."""
        answer = Answer(round_, len(self.committed), len(rows) - 1, rows)
        self.target_answered(answer, self.clock)

    def pass_time(self) -> None:
        """Let the time come that the generation waits for."""
        if self.wake is not None:
            self.clock = max(self.clock, self.wake)
