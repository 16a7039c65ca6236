"""A target's jobs for one session, step by step in the test's own thread."""

from __future__ import annotations

from typing import Any

from outrider.engine.cache import Session
from outrider.engine.job import Lease, Step
from outrider.engine.model import Chunk, Model
from outrider.engine.own_draft import DraftAsk, DraftLine, OwnDraft
from outrider.engine.workers import Work
from outrider.messages import Answer, Round, SessionParameters
from target_service.verifier import Verifier


class OneSession:
    """A target in whose sequence 0 one session after the other is written."""

    def __init__(self, model: Model, draft: OwnDraft | None = None) -> None:
        """`draft` is the target's own."""
        self.model, self.draft = model, draft
        self.guesses: list[Any] = []  # of each draft
        self.steps: list[Step] = []
        self.answers: list[Answer] = []

    def begin(self, opening: SessionParameters) -> None:
        """Begin with another session."""
        self.model.truncate(0, 0)
        if self.draft is not None:
            self.draft.forget(opening.session_id)
        capacity = self.model.describe().context
        self.lease = Lease(Session(opening.session_id, 0.0, 0), self.model, capacity)
        self.verifier = Verifier(self.model, opening, self.draft)
        self.guesses, self.steps, self.answers = [], [], []

    def write(self, round_: Round) -> None:
        """Run the job of a round to its end."""
        job = self.verifier.verify(self.lease, round_, self.answers.append)
        received: Any = None
        while True:
            try:
                step = job.send(received)
                while isinstance(step, Work):
                    step = step.run_in(job)
            except StopIteration:
                return
            if isinstance(step, DraftAsk):
                assert self.draft is not None
                line = DraftLine(self.lease.session.session_id, b"", step, 0)
                self.draft.draft([line], 1.0)
                received = line.guesses
                self.guesses.append(received)
            else:
                assert isinstance(step, Step)
                self.steps.append(step)
                chunk = Chunk(0, len(self.lease.held), step.token_ids, step.row_count)
                [received] = self.model.decode([chunk])
                self.lease.extend(chunk)
