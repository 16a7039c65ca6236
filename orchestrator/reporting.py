"""From what a generation did to the events that report it, and to their messages."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from orchestrator.timings import Timings
from outrider.core.actions import Commit, Report, TokenLogprob
from outrider.core.counts import Counts, SourceCounts
from outrider.core.generation import Generation
from outrider.core.plan import Plan
from outrider.core.text import Piece, TextAssembler
from outrider.drafters.prediction import PredictionSource
from outrider.messages import Candidates, Origin, Rule, ServiceTime
from outrider.response import (
    Candidate,
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
from outrider.speculation import DRAFTERS, LOCAL_DRAFTERS
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.wire_responses import write_pages


def started(
    plan: Plan, cached_token_count: int = 0, prompt_logprobs: tuple[Logprob, ...] = ()
) -> Started:
    """Return how the prompt was read and how the text will be made."""
    opening = plan.opening
    return Started(
        prompt_token_ids=tuple(plan.prompt),
        seed=opening.seed,
        acceptance=opening.rule,
        cached_token_count=cached_token_count,
        truncated=plan.is_truncated,
        context_token_count=plan.target_context,
        model=opening.model,
        token_limit=opening.token_limit,
        sampling=opening.sampling,
        prompt_logprobs=prompt_logprobs,
        untruncated_token_count=plan.whole_count,
    )


def delta_of(event: Commit, plan: Plan, text: TextAssembler[Origin]) -> Delta:
    """Return what a commit adds; tokens after a stop sequence are not part of it."""
    ids: list[int] = []
    origins: list[Origin] = []
    texts: list[bytes] = []
    pieces: list[TextPiece] = []
    for origin, token_ids in _runs(event, plan, text.may_stop):
        if text.stopped_by:
            break
        ids += token_ids
        origins += [origin] * len(token_ids)
        its_texts = [_text_of(each, plan) for each in token_ids]
        texts += its_texts
        pieces += pieces_of(_shown(token_ids[0], its_texts, plan, text, origin))
    return Delta(
        token_ids=tuple(ids),
        origins=tuple(origins),
        pieces=tuple(pieces),
        logprobs=logprobs_of(event.logprobs[: len(ids)], plan.token_texts),
        choice=plan.opening.choice,
        token_texts=tuple(texts),
    )


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
    text: TextAssembler[Origin],
    origin: Origin,
) -> list[Piece[Origin]]:
    """Return what can be shown of a run of tokens, of which a control token is the only one."""
    if first_id in plan.control_names and first_id not in plan.end_token_ids:
        return text.add_control(plan.control_names[first_id], origin)
    return text.add(b"".join(texts), origin)


def _text_of(token_id: int, plan: Plan) -> bytes:
    """Return what a token adds to the text."""
    is_none = token_id in plan.end_token_ids or token_id in plan.control_names
    return b"" if is_none else plan.token_texts[token_id]


def pieces_of(pieces: Iterable[Piece[Origin]]) -> tuple[TextPiece, ...]:
    """Return runs of text with the origins of the tokens that completed them."""
    return tuple(TextPiece(piece.text, piece.tag, piece.control) for piece in pieces)


def logprobs_of(logprobs: Sequence[TokenLogprob], texts: Sequence[bytes]) -> tuple[Logprob, ...]:
    """Return what is known of the probabilities of some tokens; of many it takes its time."""
    return tuple(
        Logprob(each.value, tuple((Token(i, texts[i]), value) for i, value in each.alternatives))
        for each in logprobs
    )


async def pages_of(event: Event) -> Sequence[messages.GenerateResponse]:
    """Return the messages of an event, made in a thread where they are large."""
    if isinstance(event, Started) and event.prompt_logprobs:
        return await asyncio.to_thread(lambda: list(write_pages(event)))
    return list(write_pages(event))


def report_of(report: Report, texts: Sequence[bytes]) -> RoundReport:
    """Return what a round did, with the texts of its tokens."""

    def token(token_id: int) -> Token:
        return Token(token_id, texts[token_id])

    def candidates(lists: Sequence[Candidates], i: int) -> tuple[Candidate, ...]:
        listed = lists[i] if i < len(lists) else ()
        return tuple(Candidate(token(one), probability) for one, probability in listed)

    return RoundReport(
        round=report.round,
        committed_token_count=report.committed_count,
        draft=tuple(map(token, report.draft)),
        accepted_token_count=report.accepted_count,
        target=token(report.next_token_id),
        draft_end=report.draft_end,
        draft_sources=tuple(report.sources),
        draft_lines=tuple(report.line_numbers) if any(report.line_numbers) else (),
        positions=tuple(
            Position(
                candidates(report.target_candidates, i), candidates(report.draft_candidates, i)
            )
            for i in range(len(report.target_candidates))
        ),
    )


def finished(generation: Generation, numbers: Statistics, stop_sequence: str) -> Finished:
    """Return why a completion ended, in its last generation, and what all of it took."""
    assert generation.finished is not None
    plan = generation.plan
    return Finished(
        reason=generation.finished,
        statistics=numbers,
        stop_sequence=stop_sequence,
        truncated=plan.is_truncated or bool(plan.opening.dropped.token_ids),
        choice=plan.opening.choice,
    )


def statistics(
    generation: Generation, counts: Counts, timings: Timings, byte_count: int
) -> Statistics:
    """Return what a completion took so far."""
    plan, opening = generation.plan, generation.plan.opening
    length = len(generation.committed) + len(opening.dropped.token_ids)
    first = timings.first_token or time.perf_counter()
    accepted, rejected = _predicted(plan)
    return Statistics(
        prompt_token_count=opening.prompt_count,
        generated_token_count=length - opening.prompt_count,
        drafted_token_count=counts.drafted,
        accepted_token_count=counts.accepted,
        round_count=counts.rounds,
        drafted_round_count=counts.drafted_rounds,
        draft_length=generation.draft_length,
        accepted_by_position=tuple(counts.accepted_by_position),
        drafted_by_position=tuple(counts.drafted_by_position),
        accepted_by_round=tuple(counts.accepted_by_round),
        drafted_by_round=tuple(counts.drafted_by_round),
        first_token_seconds=first - timings.begin,
        prompt_seconds=timings.prompt,
        generation_seconds=max(0.0, timings.last_token - first),
        draft_wait_seconds=timings.draft_wait,
        verify_wait_seconds=timings.verify_wait,
        target_time=_engine_time(timings.target, timings.target_prompt),
        draft_time=_engine_time(timings.draft, timings.draft_prompt, own=timings.target.draft),
        wire_byte_count=byte_count,
        draft_fault_count=counts.draft_faults,
        forked_miss_count=counts.misses,
        foreseen_miss_count=counts.foreseen,
        target_fault_count=counts.target_faults,
        verify_network_seconds=timings.verify_network,
        draft_network_seconds=timings.draft_network,
        plain_round_seconds=timings.plain / timings.plain_rounds if timings.plain_rounds else 0.0,
        controller=plan.control.view(),
        cached_token_count=counts.cached,
        sources=tuple(_sources(plan, counts, timings)),
        accepted_prediction_token_count=accepted,
        rejected_prediction_token_count=rejected,
    )


def _predicted(plan: Plan) -> tuple[int, int]:
    """Return how many of the tokens that the caller expected were accepted, and rejected."""
    source = plan.sources.get("prediction")
    if not isinstance(source, PredictionSource):
        return 0, 0
    return source.accepted_token_count, source.rejected_token_count


def _sources(plan: Plan, counts: Counts, timings: Timings) -> Iterator[SourceStatistics]:
    """Yield what each source did; a model's time is that of its service or of the target's own."""
    known, seconds = dict(counts.sources), defaultdict[str, float](float)
    seconds[plan.control.rates.source] += timings.draft.work
    seconds[plan.control.own_source] += timings.target.draft
    for name in [each for each in seconds if seconds[each]]:
        known.setdefault(name, SourceCounts())
    for name in (each for each in DRAFTERS if each in known):
        its = known[name]
        says_agreed = name in LOCAL_DRAFTERS or plan.opening.rule is not Rule.REJECTION
        yield SourceStatistics(
            name=name,
            drafted_token_count=its.drafted,
            accepted_token_count=its.accepted,
            decided_token_count=its.decided if says_agreed else None,
            agreed_token_count=its.agreed if says_agreed else None,
            seconds=its.seconds + seconds[name],
        )


def _engine_time(spent: ServiceTime, prompt: float, own: float = 0.0) -> EngineTime:
    """Return what a service took; `own` seconds of drafts are the target's own draft's."""
    return EngineTime(
        queue_seconds=spent.queue,
        decode_seconds=spent.decode + own,
        sample_seconds=spent.sample,
        prompt_seconds=prompt,
        step_count=spent.steps,
        runner_up_seconds=spent.runner_ups,
    )
