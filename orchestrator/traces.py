"""What a generation's trace shows: how it was planned, its prompt, and its rounds, few of them.

The first rounds are spans of their own. After them, twice as many each time are one span, with the
slowest among them as a part of it: a text of any length has few spans, and none hides a stall.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from outrider import request_scope, tracing
from outrider.core.plan import Plan
from outrider.errors import OutriderError
from outrider.messages import Answer
from outrider.response import Finished
from outrider.tracing import TraceSpan

_MOST_SINGLE = 8
"""Rounds of a text that are spans of their own."""


@dataclass(slots=True)
class _Rounds:
    """Answers that follow each other: when, and what their time went to, in seconds."""

    begin: float
    end: float
    answers: int = 1
    decodes: int = 0
    rows: int = 0
    drafted: int = 0
    draft_wait: float = 0.0
    queue: float = 0.0
    decode: float = 0.0
    sample: float = 0.0
    own_draft: float = 0.0
    network: float = 0.0

    def add(self, later: _Rounds) -> None:
        """Take in a later answer."""
        self.end = later.end
        for name in (*_COUNTS, *_TIMES):
            setattr(self, name, getattr(self, name) + getattr(later, name))

    @property
    def seconds(self) -> float:
        """How long they took, with what was between them."""
        return self.end - self.begin

    def attributes(self) -> dict[str, float]:
        """Return what a span says of them."""
        named: dict[str, float] = {name: getattr(self, name) for name in _COUNTS}
        return named | {f"{name}_seconds": round(getattr(self, name), 6) for name in _TIMES}


_COUNTS = ("answers", "decodes", "rows", "drafted")
_TIMES = ("draft_wait", "queue", "decode", "sample", "own_draft", "network")


@dataclass(slots=True)
class CompletionTrace:
    """The spans of one completion, over all parts of its text."""

    span: TraceSpan
    _count: int = 0  # answers so far, after the prompt's
    _block: _Rounds | None = None  # not a span yet
    _slowest: _Rounds | None = None  # of the block

    def current(self) -> AbstractContextManager[None]:
        """Let what is called meanwhile be a part of it."""
        return _within(self.span)

    def note_answer(self, draft_wait: float, waited: float, answer: Answer, is_first: bool) -> None:
        """An answer came just now that was waited for so long, and before that for the draft."""
        now, spent = time.perf_counter(), answer.spent
        rounds = _Rounds(
            now - waited - draft_wait,
            now,
            decodes=answer.decode_count,
            rows=len(answer.rows),
            drafted=answer.drafted,
            draft_wait=draft_wait,
            queue=spent.queue,
            decode=spent.decode,
            sample=spent.sample,
            own_draft=spent.draft,
            network=max(0.0, waited - spent.total),
        )
        if is_first:
            self._record("prompt", rounds, self.span)
            return
        self._count += 1
        if self._count <= _MOST_SINGLE:
            self._record("round", rounds, self.span)
            return
        self._gather(rounds)
        if self._count & (self._count - 1) == 0:
            self._end_block()

    def _gather(self, rounds: _Rounds) -> None:
        if self._block is None or self._slowest is None:
            self._block, self._slowest = replace(rounds), rounds
            return
        self._block.add(rounds)
        if rounds.seconds > self._slowest.seconds:
            self._slowest = rounds

    def _end_block(self) -> None:
        if self._block is not None and self._slowest is not None:
            block = self._record("rounds", self._block, self.span)
            self._record("slowest round", self._slowest, block)
        self._block = self._slowest = None

    def _record(self, name: str, rounds: _Rounds, parent: TraceSpan) -> TraceSpan:
        span = tracing.begin(name, parent=parent, at=rounds.begin)
        span.note(**rounds.attributes())
        span.end(rounds.end)
        return span

    def end(self, finished: Finished | None) -> None:
        """End it, with what came of it; None where nothing did."""
        self._end_block()
        if finished is not None:
            numbers = finished.statistics
            self.span.note(
                reason=finished.reason.name,
                tokens=numbers.generated_token_count,
                cached_tokens=numbers.cached_token_count,
                rounds=numbers.round_count,
                drafted=numbers.drafted_token_count,
                accepted=numbers.accepted_token_count,
                draft_faults=numbers.draft_fault_count,
                target_faults=numbers.target_fault_count,
            )
        self.span.end()


class GenerationTrace:
    """The spans of what one request generates."""

    def __init__(self, begin: float) -> None:
        self.span = tracing.begin("generation", at=begin)
        self._planning = tracing.begin("plan", parent=self.span, at=begin)
        self._waiting: TraceSpan | None = None  # for a job's turn
        self._completions: list[CompletionTrace] = []

    @classmethod
    def begun(cls, begin: float) -> GenerationTrace | None:
        """Return one that began at a time of the performance counter; None where that is off."""
        if not tracing.is_on():
            return None
        trace = cls(begin)
        return trace if trace.span.is_recorded else None

    def planning(self) -> AbstractContextManager[None]:
        """Let what is called meanwhile be a part of the planning."""
        return _within(self._planning)

    def planned(self, plan: Plan, waits: bool) -> None:
        """It is known what is to be written; where it `waits`, not yet when."""
        self._planning.end()
        self.span.note(
            prompt_tokens=len(plan.prompt),
            session=plan.opening.session_id.hex()[:8],
            rule=plan.opening.rule.value,
        )
        if waits:
            self._waiting = tracing.begin("turn", parent=self.span)

    def completion(self, choice: int) -> CompletionTrace:
        """Return the trace of one completion, which begins now."""
        if self._waiting is not None:
            self._waiting.end()
        span = tracing.begin("completion", parent=self.span, choice=choice)
        self._completions.append(CompletionTrace(span))
        return self._completions[-1]

    def end(self, error: BaseException | None) -> None:
        """End it, and what of it did not come to an end."""
        reason = "" if error is None else _reason(error)
        for each in (self._planning, self._waiting):
            if each is not None:
                each.end(error=reason)
        for completion in self._completions:
            completion.end(None)
        self.span.end(error=reason)


@contextmanager
def _within(span: TraceSpan) -> Iterator[None]:
    scope = request_scope.current()
    if scope is None:
        yield
        return
    with request_scope.entered(replace(scope, trace_parent=span.trace_parent)):
        yield


def _reason(error: BaseException) -> str:
    if isinstance(error, OutriderError):
        return error.reason
    return "INTERNAL" if isinstance(error, Exception) else "CANCELLED"
