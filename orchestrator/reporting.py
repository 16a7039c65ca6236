"""From what a generation did to the messages that report it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, takewhile

from google.protobuf.duration_pb2 import Duration

from orchestrator.timings import Timings
from outrider import wire
from outrider.core.actions import Commit, Report, TokenLogprob
from outrider.core.control import Control
from outrider.core.counts import Counts, SourceCounts
from outrider.core.generation import Generation
from outrider.core.plan import Plan
from outrider.core.text import Piece, TextAssembler
from outrider.drafters.prediction import PredictionSource
from outrider.messages import Candidates, Origin, Rule, ServiceTime
from outrider.speculation import DRAFTERS, MODEL
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages

PAGE_BYTES = 2 * 2**20
"""What goes into one message at most, unless a single part of it is larger."""

PAGE_RESPONSES = 4096
"""Responses in one answer at most: more would keep the event loop for longer than 10 ms."""


def leading(sizes: Iterable[int]) -> int:
    """Return how many parts of these sizes, from the first on, go into one message; at least 1."""
    sums = accumulate(sizes)
    return max(1, sum(1 for _ in takewhile(lambda size: size <= PAGE_BYTES, sums)))


def in_pages(response: messages.GenerateResponse) -> Iterator[messages.GenerateResponse]:
    """Yield a response; of a large `started` what is too much follows in deltas."""
    left = list(response.started.prompt_logprobs)
    count = leading(each.ByteSize() for each in left)
    if count < len(left):
        del response.started.prompt_logprobs[count:]
    yield response
    while left := left[count:]:
        count = leading(each.ByteSize() for each in left)
        delta = messages.GenerationDelta(prompt_logprobs=left[:count])
        yield messages.GenerateResponse(delta=delta)


def started(plan: Plan) -> messages.GenerationStarted:
    """Return how the prompt was read and how the text will be made."""
    return messages.GenerationStarted(
        prompt_token_ids=plan.prompt,
        seed=plan.opening.seed,
        acceptance_rule=wire.RULES.write(plan.opening.rule),
        truncated=plan.is_truncated,
        untruncated_token_count=plan.whole_count,
        context_token_count=plan.target_context,
        sampling=wire.write_sampling(plan.opening.sampling),
        token_limit=plan.opening.token_limit,
        model_name=plan.opening.model.name,
        model_identity=plan.opening.model.identity,
    )


def delta_of(
    event: Commit, plan: Plan, text: TextAssembler[messages.TokenOrigin]
) -> messages.GenerationDelta:
    """Return what a commit adds; tokens after a stop sequence are not part of it."""
    delta = messages.GenerationDelta()
    for member, token_ids in _runs(event, plan, text.may_stop):
        if text.stopped_by:
            break
        origin = wire.ORIGINS.write(member)
        delta.token_ids.extend(token_ids)
        delta.origins.extend([origin] * len(token_ids))
        texts = [_text_of(each, plan) for each in token_ids]
        delta.token_texts.extend(texts)
        delta.pieces.extend(pieces_of(_shown(token_ids[0], texts, plan, text, origin)))
    for logprob in event.logprobs[: len(delta.token_ids)]:
        delta.logprobs.append(logprob_of(logprob, plan.token_texts))
    return delta


def _runs(event: Commit, plan: Plan, may_stop: bool) -> Iterator[tuple[Origin, list[int]]]:
    """Yield the tokens of a commit that are shown at once: those of one origin in a row.

    Control tokens and the end come by themselves, and so does each token where the text may stop
    at any.
    """
    run: list[int] = []
    last = Origin.PLAIN  # of the run
    for token_id, origin in zip(event.token_ids, event.origins, strict=True):
        is_single = may_stop or token_id in plan.end_token_ids or token_id in plan.control_names
        if run and (is_single or origin is not last):
            yield last, run
            run = []
        last = origin
        if is_single:
            yield origin, [token_id]
        else:
            run.append(token_id)
    if run:
        yield last, run


def _shown(
    first_id: int,
    texts: Sequence[bytes],
    plan: Plan,
    text: TextAssembler[messages.TokenOrigin],
    origin: messages.TokenOrigin,
) -> list[Piece[messages.TokenOrigin]]:
    """Return what can be shown of a run of tokens, of which a control token is the only one."""
    if first_id in plan.control_names and first_id not in plan.end_token_ids:
        return text.add_control(plan.control_names[first_id], origin)
    return text.add(b"".join(texts), origin)


def _text_of(token_id: int, plan: Plan) -> bytes:
    """Return what a token adds to the text."""
    is_none = token_id in plan.end_token_ids or token_id in plan.control_names
    return b"" if is_none else plan.token_texts[token_id]


def pieces_of(pieces: Iterable[Piece[messages.TokenOrigin]]) -> list[messages.TextPiece]:
    """Return runs of text with the origins of the tokens that completed them."""
    return [
        messages.TextPiece(text=piece.text, origin=piece.tag, control=piece.control)
        for piece in pieces
    ]


def logprob_of(logprob: TokenLogprob, texts: Sequence[bytes]) -> messages.TokenLogprob:
    """Return what is known of one token's probability."""
    return messages.TokenLogprob(
        log_probability=logprob.value,
        alternatives=[
            messages.Alternative(
                token=messages.Token(token_id=token_id, text=texts[token_id]),
                log_probability=value,
            )
            for token_id, value in logprob.alternatives
        ],
    )


def report_of(report: Report, texts: Sequence[bytes]) -> messages.RoundReport:
    """Return what a round did, with the texts of its tokens."""

    def token(token_id: int) -> messages.Token:
        return messages.Token(token_id=token_id, text=texts[token_id])

    def candidates(lists: Sequence[Candidates], i: int) -> list[messages.Candidate]:
        listed = lists[i] if i < len(lists) else ()
        return [messages.Candidate(token=token(one), probability=p) for one, p in listed]

    return messages.RoundReport(
        round=report.round,
        committed_token_count=report.committed_count,
        draft=[token(token_id) for token_id in report.draft],
        accepted_token_count=report.accepted_count,
        target=token(report.next_token_id),
        draft_end=wire.DRAFT_ENDS.write(report.draft_end),
        draft_sources=report.sources,
        draft_lines=report.line_numbers if any(report.line_numbers) else (),
        positions=[
            messages.PositionCandidates(
                target=candidates(report.target_candidates, i),
                draft=candidates(report.draft_candidates, i),
            )
            for i in range(len(report.target_candidates))
        ],
    )


def finished(
    generation: Generation, numbers: messages.GenerationStatistics
) -> messages.GenerationFinished:
    """Return why a completion ended, in its last generation, and what all of it took."""
    assert generation.finished is not None
    plan = generation.plan
    return messages.GenerationFinished(
        reason=wire.FINISH_REASONS.write(generation.finished),
        statistics=numbers,
        truncated=plan.is_truncated or bool(plan.opening.dropped.token_ids),
    )


def statistics(
    generation: Generation, counts: Counts, timings: Timings, byte_count: int
) -> messages.GenerationStatistics:
    """Return what a completion took so far."""
    opening = generation.plan.opening
    length = len(generation.committed) + len(opening.dropped.token_ids)
    first = timings.first_token or time.perf_counter()
    return messages.GenerationStatistics(
        prompt_token_count=opening.prompt_count,
        generated_token_count=length - opening.prompt_count,
        drafted_token_count=counts.drafted,
        accepted_token_count=counts.accepted,
        round_count=counts.rounds,
        drafted_round_count=counts.drafted_rounds,
        draft_length=generation.draft_length,
        accepted_by_position=counts.accepted_by_position,
        drafted_by_position=counts.drafted_by_position,
        accepted_by_round=counts.accepted_by_round,
        drafted_by_round=counts.drafted_by_round,
        first_token_duration=duration(first - timings.begin),
        prompt_duration=duration(timings.prompt),
        generation_duration=duration(max(0.0, timings.last_token - first)),
        draft_wait_duration=duration(timings.draft_wait),
        verify_wait_duration=duration(timings.verify_wait),
        target_time=_engine_time(timings.target, timings.target_prompt),
        draft_time=_engine_time(timings.draft, timings.draft_prompt),
        wire_byte_count=byte_count,
        draft_fault_count=counts.draft_faults,
        forked_miss_count=counts.misses,
        foreseen_miss_count=counts.foreseen,
        target_fault_count=counts.target_faults,
        verify_network_duration=duration(timings.verify_network),
        draft_network_duration=duration(timings.draft_network),
        plain_round_duration=_plain_round(timings),
        controller=view(generation.plan.control),
        cached_token_count=counts.cached,
        sources=_sources(generation.plan, counts, timings),
        **_prediction(generation.plan),
    )


def _prediction(plan: Plan) -> dict[str, int]:
    """Return what became of the tokens that the caller expected."""
    source = plan.sources.get("prediction")
    if not isinstance(source, PredictionSource):
        return {}
    return {
        "accepted_prediction_token_count": source.accepted_token_count,
        "rejected_prediction_token_count": source.rejected_token_count,
    }


def _sources(plan: Plan, counts: Counts, timings: Timings) -> list[messages.SourceStatistics]:
    """Return what each source did; the draft model's time is that of its service."""
    known = dict(counts.sources)
    if timings.draft.work:
        known.setdefault(MODEL, SourceCounts())
    reported = [_source(name, known[name]) for name in DRAFTERS if name in known]
    for each in reported:
        if each.name == MODEL:
            each.duration.CopyFrom(duration(timings.draft.work))
            if plan.opening.rule is Rule.REJECTION:
                each.ClearField("decided_token_count")
                each.ClearField("agreed_token_count")
    return reported


def _source(name: str, counts: SourceCounts) -> messages.SourceStatistics:
    return messages.SourceStatistics(
        name=name,
        drafted_token_count=counts.drafted,
        accepted_token_count=counts.accepted,
        decided_token_count=counts.decided,
        agreed_token_count=counts.agreed,
        duration=duration(counts.seconds),
    )


def _engine_time(spent: ServiceTime, prompt: float) -> messages.EngineTime:
    return messages.EngineTime(
        queue_duration=duration(spent.queue),
        decode_duration=duration(spent.decode),
        sample_duration=duration(spent.sample),
        prompt_duration=duration(prompt),
        step_count=spent.steps,
        runner_up_duration=duration(spent.runner_ups) if spent.runner_ups else None,
    )


def view(its_control: Control) -> messages.ControllerView:
    """Return what the controller of a generation goes by."""
    view = its_control.view()
    return messages.ControllerView(
        token_rate=view.rate,
        plain_token_rate=view.plain_rate,
        forecast_token_rate=view.forecast_rate,
        target_alone_token_rate=view.alone_rate,
        acceptance=view.acceptance,
        draft_token_duration=duration(view.draft_token_seconds),
        draft_latency_duration=duration(view.latency_seconds),
        round_overhead_duration=duration(view.overhead_seconds),
        run_ahead=view.run_ahead,
        takes_turns=view.takes_turns,
        decode_costs=[
            common.DecodeCost(row_count=rows, milliseconds=1e3 * seconds)
            for rows, seconds in view.costs
        ],
    )


def _plain_round(timings: Timings) -> Duration | None:
    return duration(timings.plain / timings.plain_rounds) if timings.plain_rounds else None


def duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromMicroseconds(round(seconds * 1e6))
    return duration
