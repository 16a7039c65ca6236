"""What generations bring to protobuf messages and back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import accumulate, takewhile
from typing import Any, TypeVar

from google.protobuf.duration_pb2 import Duration

from outrider import wire
from outrider.messages import DraftEnd, FinishReason, ModelReference, Origin
from outrider.response import (
    Candidate,
    ControllerView,
    Delta,
    EngineTime,
    Event,
    Finished,
    Logprob,
    Position,
    RoundReport,
    SourceStatistics,
    Started,
    Statistics,
    TextPiece,
    Token,
)
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages


def write_event(event: Event) -> messages.GenerateResponse:
    """Return the message of an event."""
    match event:
        case Started():
            return messages.GenerateResponse(started=write_started(event))
        case Delta():
            return messages.GenerateResponse(delta=_write_delta(event), choice_index=event.choice)
        case Finished():
            finished = _write_finished(event)
            return messages.GenerateResponse(finished=finished, choice_index=event.choice)


PAGE_BYTES = 2 * 2**20
"""What goes into one message at most, unless a single part of it is larger."""


def leading(sizes: Iterable[int]) -> int:
    """Return how many parts of these sizes, from the first on, go into one message; at least 1."""
    sums = accumulate(sizes)
    return max(1, sum(1 for _ in takewhile(lambda size: size <= PAGE_BYTES, sums)))


def write_pages(event: Event) -> Iterator[messages.GenerateResponse]:
    """Yield the message of an event; of a large `Started` what is too much follows in deltas."""
    response = write_event(event)
    left = list(response.started.prompt_logprobs)
    count = leading(each.ByteSize() for each in left)
    if count < len(left):
        del response.started.prompt_logprobs[count:]
    yield response
    while left := left[count:]:
        count = leading(each.ByteSize() for each in left)
        delta = messages.GenerationDelta(prompt_logprobs=left[:count])
        yield messages.GenerateResponse(delta=delta)


def write_started(started: Started) -> messages.GenerationStarted:
    """Return the message that says how a prompt was read."""
    return messages.GenerationStarted(
        prompt_token_ids=started.prompt_token_ids,
        seed=started.seed,
        acceptance_rule=wire.RULES.write(started.acceptance),
        cached_token_count=started.cached_token_count,
        truncated=started.truncated,
        context_token_count=started.context_token_count,
        prompt_logprobs=map(_write_logprob, started.prompt_logprobs),
        sampling=wire.write_sampling(started.sampling),
        token_limit=started.token_limit,
        model_name=started.model.name,
        untruncated_token_count=started.untruncated_token_count,
        model_identity=started.model.identity,
    )


def _write_delta(delta: Delta) -> messages.GenerationDelta:
    return messages.GenerationDelta(
        token_ids=delta.token_ids,
        origins=map(wire.ORIGINS.write, delta.origins),
        token_texts=delta.token_texts,
        pieces=[
            messages.TextPiece(
                text=piece.text, origin=wire.ORIGINS.write(piece.origin), control=piece.control
            )
            for piece in delta.pieces
        ],
        report=None if delta.report is None else _write_report(delta.report),
        logprobs=map(_write_logprob, delta.logprobs),
        statistics=None if delta.statistics is None else _write_statistics(delta.statistics),
        prompt_logprobs=map(_write_logprob, delta.prompt_logprobs),
    )


def _write_finished(finished: Finished) -> messages.GenerationFinished:
    return messages.GenerationFinished(
        reason=wire.FINISH_REASONS.write(finished.reason),
        statistics=_write_statistics(finished.statistics),
        stop_sequence=finished.stop_sequence,
        truncated=finished.truncated,
    )


def _write_logprob(logprob: Logprob) -> messages.TokenLogprob:
    return messages.TokenLogprob(
        log_probability=logprob.value,
        alternatives=[
            messages.Alternative(token=write_token(token), log_probability=value)
            for token, value in logprob.alternatives
        ],
    )


def write_token(token: Token) -> messages.Token:
    """Return the message of a token."""
    return messages.Token(token_id=token.token_id, text=token.text)


def _write_report(report: RoundReport) -> messages.RoundReport:
    return messages.RoundReport(
        round=report.round,
        committed_token_count=report.committed_token_count,
        draft=map(write_token, report.draft),
        accepted_token_count=report.accepted_token_count,
        target=write_token(report.target),
        draft_end=wire.DRAFT_ENDS.write(report.draft_end),
        positions=[
            messages.PositionCandidates(
                target=map(_write_candidate, position.target),
                draft=map(_write_candidate, position.draft),
            )
            for position in report.positions
        ],
        draft_sources=report.draft_sources,
        draft_lines=report.draft_lines,
    )


def _write_candidate(candidate: Candidate) -> messages.Candidate:
    return messages.Candidate(token=write_token(candidate.token), probability=candidate.probability)


def _write_statistics(statistics: Statistics) -> messages.GenerationStatistics:
    sources = [_fill(messages.SourceStatistics(), each) for each in statistics.sources]
    message = messages.GenerationStatistics(
        sources=sources, controller=write_view(statistics.controller)
    )
    _fill(message.target_time, statistics.target_time)
    _fill(message.draft_time, statistics.draft_time)
    return _fill(message, statistics)


def write_view(view: ControllerView) -> messages.ControllerView:
    """Return the message of what decides about drafts."""
    costs = [
        common.DecodeCost(row_count=rows, milliseconds=1e3 * seconds)
        for rows, seconds in view.decode_costs
    ]
    return _fill(messages.ControllerView(decode_costs=costs), view)


Message = TypeVar("Message")


def _fill(message: Message, value: Any) -> Message:
    """Give a message the plain numbers and texts of its namesake, and return it.

    `x_seconds` becomes the message's `x_duration`; None leaves a field unset.
    """
    of_message: Any = message
    known = of_message.DESCRIPTOR.fields_by_name
    for name in (each.name for each in fields(value)):
        number = getattr(value, name)
        if name not in known:
            if number is not None:
                duration(number, getattr(of_message, name.removesuffix("seconds") + "duration"))
        elif known[name].message_type is None and number is not None:
            if isinstance(number, tuple):
                getattr(of_message, name).extend(number)
            else:
                setattr(of_message, name, number)
    return message


def duration(seconds: float, into: Duration | None = None) -> Duration:
    """Return a time in microseconds."""
    into = Duration() if into is None else into
    into.FromMicroseconds(round(seconds * 1e6))
    return into


def read_event(response: messages.GenerateResponse) -> Event:
    """Return the event of one message of a generation."""
    if response.HasField("started"):
        return read_started(response.started)
    if response.HasField("finished"):
        return _read_finished(response.finished, response.choice_index)
    return _read_delta(response.delta, response.choice_index)


def read_started(message: messages.GenerationStarted) -> Started:
    """Return how a prompt was read."""
    return made(
        Started,
        message,
        model=ModelReference(message.model_identity, message.model_name),
        acceptance=wire.RULES.read(message.acceptance_rule),
        sampling=wire.read_sampling(message.sampling),
        prompt_logprobs=tuple(_read_logprob(each) for each in message.prompt_logprobs),
    )


def _read_delta(message: messages.GenerationDelta, choice: int) -> Delta:
    return Delta(
        tuple(message.token_ids),
        tuple(_read_origin(value) for value in message.origins),
        tuple(
            TextPiece(piece.text, _read_origin(piece.origin), piece.control)
            for piece in message.pieces
        ),
        _read_report(message.report) if message.HasField("report") else None,
        tuple(_read_logprob(each) for each in message.logprobs),
        choice,
        tuple(_read_logprob(each) for each in message.prompt_logprobs),
        tuple(message.token_texts),
        _read_statistics(message.statistics) if message.HasField("statistics") else None,
    )


def _read_logprob(message: messages.TokenLogprob) -> Logprob:
    return Logprob(
        message.log_probability,
        tuple((read_token(each.token), each.log_probability) for each in message.alternatives),
    )


def _read_report(message: messages.RoundReport) -> RoundReport:
    return made(
        RoundReport,
        message,
        draft=tuple(read_token(token) for token in message.draft),
        target=read_token(message.target),
        draft_end=wire.DRAFT_ENDS.read(message.draft_end, DraftEnd.UNSPECIFIED),
        positions=tuple(
            Position(_read_candidates(position.target), _read_candidates(position.draft))
            for position in message.positions
        ),
    )


def read_token(message: messages.Token) -> Token:
    """Return a token."""
    return Token(message.token_id, message.text)


def _read_candidates(listed: Iterable[messages.Candidate]) -> tuple[Candidate, ...]:
    return tuple(Candidate(read_token(one.token), one.probability) for one in listed)


def _read_finished(message: messages.GenerationFinished, choice: int) -> Finished:
    reason = wire.FINISH_REASONS.read(message.reason, FinishReason.UNSPECIFIED)
    statistics = _read_statistics(message.statistics)
    return Finished(reason, statistics, message.stop_sequence, message.truncated, choice)


def _read_statistics(message: messages.GenerationStatistics) -> Statistics:
    return made(Statistics, message, sources=tuple(map(_read_source, message.sources)))


def _read_source(message: messages.SourceStatistics) -> SourceStatistics:
    unset = {"seconds": None} if _is_unset(message, "duration") else {}
    return made(SourceStatistics, message, **unset)


def _read_origin(value: int) -> Origin:
    return wire.ORIGINS.read(value, Origin.UNSPECIFIED)


Made = TypeVar("Made")


def made(kind: type[Made], message: Any, **given: Any) -> Made:
    """Return a dataclass: what is given, and the other fields from a message's namesakes."""
    known: Any = kind
    names = [each.name for each in fields(known) if each.name not in given]
    return known(**given, **{name: _read_field(message, name) for name in names})  # type: ignore[no-any-return]


def _is_unset(message: Any, name: str) -> bool:
    return message.DESCRIPTOR.fields_by_name[name].has_presence and not message.HasField(name)


def _read_field(message: Any, name: str) -> Any:
    """Return a field; `x_seconds` is the message's `x_duration`. An unset optional is None."""
    known = message.DESCRIPTOR.fields_by_name
    if name not in known:
        taken: Duration = getattr(message, name.removesuffix("seconds") + "duration")
        return taken.ToNanoseconds() / 1e9
    if known[name].message_type is None and _is_unset(message, name):
        return None
    value = getattr(message, name)
    if isinstance(value, messages.EngineTime):
        return made(EngineTime, value)
    if isinstance(value, messages.ControllerView):
        costs = tuple((cost.row_count, cost.milliseconds / 1e3) for cost in value.decode_costs)
        return made(ControllerView, value, decode_costs=costs)
    return value if isinstance(value, int | float | str) else tuple(value)
