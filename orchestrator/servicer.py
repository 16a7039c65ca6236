"""The orchestrator's gRPC edge: reads requests, drives generations, writes text."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

import outrider
from orchestrator.config import OrchestratorConfig
from orchestrator.control import CLASSIC_RATIO, Control, control
from orchestrator.driver import Driver, EngineSeconds, Timings
from orchestrator.generation import (
    Commit,
    DraftEnd,
    End,
    Finish,
    Generation,
    Origin,
    Plan,
    Report,
)
from orchestrator.peers import Pair, Peer, State
from orchestrator.text import Piece, TextAssembler
from outrider import logs, wire
from outrider.errors import EngineBusy, InvalidRequest, PeerUnavailable, PromptTooLong
from outrider.messages import Candidates, Form, Opening, Rule
from outrider.rpc.errors import describe
from outrider.speculation import Policy, Speculation
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.v1 import target_service_pb2
from outrider.v1.orchestrator_service_pb2_grpc import OrchestratorServiceServicer

Context = grpc.aio.ServicerContext[Any, Any]

DEFAULT_LIMIT = 128
PROMPT_RESERVE = 4
"""A prompt leaves at least this many tokens of the context free."""

_MARGIN_SECONDS = 0.2
_ORIGINS = {
    Origin.DRAFTED: messages.TOKEN_ORIGIN_DRAFTED,
    Origin.CORRECTED: messages.TOKEN_ORIGIN_CORRECTED,
    Origin.BONUS: messages.TOKEN_ORIGIN_BONUS,
    Origin.PLAIN: messages.TOKEN_ORIGIN_PLAIN,
}
_REASONS = {
    Finish.END_OF_TEXT: messages.FINISH_REASON_END_OF_TEXT,
    Finish.TOKEN_LIMIT: messages.FINISH_REASON_TOKEN_LIMIT,
    Finish.STOP_SEQUENCE: messages.FINISH_REASON_STOP_SEQUENCE,
    Finish.CONTEXT_FULL: messages.FINISH_REASON_CONTEXT_FULL,
}
_DRAFT_ENDS = {
    DraftEnd.LENGTH: messages.DRAFT_END_LENGTH,
    DraftEnd.END_OF_TEXT: messages.DRAFT_END_END_OF_TEXT,
    DraftEnd.TOKEN_LIMIT: messages.DRAFT_END_TOKEN_LIMIT,
    DraftEnd.CONTEXT: messages.DRAFT_END_CONTEXT,
    DraftEnd.SHORT: messages.DRAFT_END_SHORT,
    DraftEnd.LATE: messages.DRAFT_END_LATE,
    DraftEnd.PAUSED: messages.DRAFT_END_PAUSED,
    DraftEnd.ABSENT: messages.DRAFT_END_ABSENT,
    DraftEnd.OFF: messages.DRAFT_END_OFF,
    DraftEnd.PROMPT: messages.DRAFT_END_PROMPT,
    DraftEnd.DOUBT: messages.DRAFT_END_DOUBT,
    DraftEnd.ENOUGH: messages.DRAFT_END_ENOUGH,
}
_PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""What a call ends with when its service restarts."""

_RETRY_SECONDS = 0.05
_CANDIDATES = 8
"""Candidates of a position in a detailed report."""

_STATES = {
    State.CONNECTING: messages.PEER_STATE_CONNECTING,
    State.LOADING: messages.PEER_STATE_LOADING,
    State.READY: messages.PEER_STATE_READY,
    State.REFUSED: messages.PEER_STATE_REFUSED,
    State.LOST: messages.PEER_STATE_LOST,
}


class OrchestratorServicer(OrchestratorServiceServicer):
    """OrchestratorService over a pair of model services."""

    def __init__(self, config: OrchestratorConfig, pair: Pair) -> None:
        self._config = config
        self._pair = pair
        self._active = 0

    async def Generate(
        self, request: messages.GenerateRequest, context: Context
    ) -> AsyncIterator[messages.GenerateResponse]:
        if self._active >= self._config.generations:
            raise EngineBusy(f"{self._active} generations are under way", 1.0)
        self._count_active(1)
        begin = time.perf_counter()
        try:
            deadline = self._deadline(context)
            stops = _read_stops(request.stop_sequences)
            plan = await self._plan(request, deadline)
            yield messages.GenerateResponse(started=_started(plan))
            generation = Generation(plan)
            driver = Driver(generation, self._pair, deadline)
            driver.timings.begin = begin
            wants_report = request.round_detail != messages.ROUND_DETAIL_UNSPECIFIED
            text = TextAssembler[messages.TokenOrigin](stops)
            async for response in self._stream(generation, driver, text, wants_report):
                yield response
        finally:
            self._count_active(-1)

    def _count_active(self, more: int) -> None:
        self._active += more
        self._pair.experience.generation_count = max(1, self._active)

    async def GetStatus(
        self, request: messages.GetStatusRequest, context: Context
    ) -> messages.GetStatusResponse:
        obstacle = self._pair.obstacle()
        return messages.GetStatusResponse(
            service_version=outrider.__version__,
            active_generation_count=self._active,
            peers=[self._peer_status(peer) for peer in self._pair.peers],
            speculating=not obstacle,
            reason=obstacle,
            controller=_view(self._controller_of_a_newcomer()),
        )

    def _controller_of_a_newcomer(self) -> Control:
        experience = self._pair.experience
        return control(self._config.speculation, Rule.MATCH, experience, self._config.draft_seconds)

    def _peer_status(self, peer: Peer) -> messages.PeerStatus:
        state, detail = _STATES[peer.state], peer.detail
        if peer is self._pair.draft and peer.ready and self._pair.mismatch is not None:
            state, detail = messages.PEER_STATE_REFUSED, str(self._pair.mismatch)
        return messages.PeerStatus(
            role=peer.role,
            address=peer.address,
            state=state,
            detail=detail,
            model=peer.model,
            round_trip_duration=_duration(peer.round_trip),
        )

    def _deadline(self, context: Context) -> float:
        """Return when to give up, a little before the client does."""
        left = context.time_remaining()
        seconds = self._config.request_seconds
        if left is not None:
            seconds = min(seconds, max(0.0, left - min(_MARGIN_SECONDS, 0.1 * left)))
        return time.monotonic() + seconds

    # --- from a request to a plan ---

    async def _plan(self, request: messages.GenerateRequest, deadline: float) -> Plan:
        sampling = wire.read_sampling(request.sampling)
        rule, form = _read_rule_and_form(request.speculative, sampling.greedy)
        speculation = self._speculation(request.speculative, rule)
        target = self._pair.target
        if not await target.wait_until_ready(deadline - time.monotonic()):
            raise PeerUnavailable(target.detail)
        assert target.model is not None
        vocabulary = target.model.vocabulary
        prompt = await self._prompt(request, vocabulary.token_count, deadline)
        capacity = target.model.context_token_count
        if len(prompt) > capacity - PROMPT_RESERVE:
            raise PromptTooLong(len(prompt), capacity - PROMPT_RESERVE)
        limit, reason = _read_limit(request, capacity - len(prompt))
        return Plan(
            opening=Opening(
                session_id=secrets.token_bytes(wire.SESSION_ID_BYTES),
                attempt=0,
                rule=rule,
                sampling=sampling,
                seed=request.seed if request.HasField("seed") else secrets.randbits(31),
                choice=0,
                prompt_count=len(prompt),
                token_limit=limit,
                vocabulary=vocabulary.token_count,
                candidate_count=_candidate_count(request.round_detail),
                min_probability=speculation.p_min,
                min_ratio=CLASSIC_RATIO if speculation.policy is Policy.CLASSIC else 0.0,
            ),
            prompt=prompt,
            control=control(speculation, rule, self._pair.experience, self._config.draft_seconds),
            form=form,
            rollback_calls=request.speculative.rollback == messages.ROLLBACK_MODE_RPC,
            end_token_ids=frozenset(vocabulary.end_token_ids),
            target_context=capacity,
            limit_reason=reason,
        )

    def _speculation(self, options: messages.SpeculativeOptions, rule: Rule) -> Speculation:
        """Return the request's options over the orchestrator's own.

        Raises InvalidRequest for what does not go together.
        """
        known = {
            name: getattr(options, name)
            for name in ("enabled", "n_max", "n_min", "p_min", "run_ahead")
            if options.HasField(name)
        }
        if options.policy:
            known["policy"] = wire.read_policy(options.policy)
        if self._pair.draft is None:
            known["enabled"] = False
        default = self._config.speculation
        known.setdefault("n_min", min(default.n_min, known.get("n_max", default.n_max)))
        speculation = replace(default, **known)
        speculation.check_rule(rule)
        return speculation

    async def _prompt(
        self, request: messages.GenerateRequest, size: int, deadline: float
    ) -> list[int]:
        kind = request.WhichOneof("prompt")
        if kind is None:
            raise InvalidRequest("prompt", "is missing")
        if kind == "prompt_tokens":
            ids = wire.read_ids("prompt_tokens", request.prompt_tokens.token_ids, size)
        else:
            ids = await self._tokenize(request.prompt_text, deadline)
        if not ids:
            raise InvalidRequest("prompt", "is empty, and the model adds no BOS")
        return ids

    async def _tokenize(self, text: str, deadline: float) -> list[int]:
        """Have the target tokenize, again when it restarts meanwhile."""
        target = self._pair.target
        request = target_service_pb2.TokenizeRequest(text=text, add_special=True)
        while True:
            seconds = max(0.0, deadline - time.monotonic())
            try:
                response = await target.stub.Tokenize(
                    request, timeout=seconds, metadata=target.metadata
                )
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                    raise InvalidRequest("prompt", error.details() or "refused") from None
                lost = PeerUnavailable(f"the target cannot tokenize: {describe(error)}")
                if error.code() not in _PASSING:
                    raise lost from None
            else:
                return list(response.token_ids)
            # Its state is seen a moment late: without the pause this would not wait at all.
            await asyncio.sleep(_RETRY_SECONDS)
            if not await target.wait_until_ready(deadline - time.monotonic()):
                raise lost

    # --- from commits to responses ---

    async def _stream(
        self,
        generation: Generation,
        driver: Driver,
        text: TextAssembler[messages.TokenOrigin],
        wants_report: bool,
    ) -> AsyncIterator[messages.GenerateResponse]:
        assert self._pair.target.vocabulary is not None
        texts = self._pair.target.vocabulary.texts
        last = messages.TOKEN_ORIGIN_PLAIN
        length = generation.plan.opening.prompt_count
        async for event in driver.run():
            if isinstance(event, End):
                rest = text.finish(last)
                if rest:
                    yield _delta([], [], rest)
                break
            delta = _delta_of(event, texts, text)
            length += len(delta.token_ids)
            if text.stopped and generation.finished is not Finish.STOP_SEQUENCE:
                generation.stop(length)
            last = delta.origins[-1]
            if wants_report and event.report is not None:
                delta.report.CopyFrom(_report(event.report, texts))
            yield messages.GenerateResponse(delta=delta)
        assert generation.finished is not None
        numbers = statistics(generation, driver)
        _log(generation, numbers)
        yield messages.GenerateResponse(
            finished=messages.GenerationFinished(
                reason=_REASONS[generation.finished], statistics=numbers
            )
        )


def _delta_of(
    event: Commit, texts: list[bytes], text: TextAssembler[messages.TokenOrigin]
) -> messages.GenerationDelta:
    """Return what a commit adds; tokens after a stop sequence are not part of it."""
    ids, origins, pieces = [], [], []
    for token_id, origin in zip(event.token_ids, event.origins, strict=True):
        if text.stopped:
            break
        ids.append(token_id)
        origins.append(_ORIGINS[origin])
        pieces += text.add(texts[token_id], _ORIGINS[origin])
    return _delta(ids, origins, pieces).delta


def _delta(
    ids: list[int],
    origins: list[messages.TokenOrigin],
    pieces: list[Piece[messages.TokenOrigin]],
) -> messages.GenerateResponse:
    return messages.GenerateResponse(
        delta=messages.GenerationDelta(
            token_ids=ids,
            origins=origins,
            pieces=[messages.TextPiece(text=piece.text, origin=piece.tag) for piece in pieces],
        )
    )


def _started(plan: Plan) -> messages.GenerationStarted:
    return messages.GenerationStarted(
        prompt_token_ids=plan.prompt,
        seed=plan.opening.seed,
        acceptance_rule=wire.write_rule(plan.opening.rule),
    )


def _read_rule_and_form(options: messages.SpeculativeOptions, greedy: bool) -> tuple[Rule, Form]:
    """Return the acceptance rule and the row form, refusing what does not go together."""
    rule = Rule.MATCH if greedy else Rule.SHARED_NOISE
    if options.acceptance:
        rule = wire.read_rule(options.acceptance)
    form = Form.DISTRIBUTIONS if rule is Rule.REJECTION else Form.SAMPLED
    if options.row_form:
        form = wire.read_form(options.row_form)
    if (form is Form.SAMPLED) == (rule is Rule.REJECTION):
        raise InvalidRequest(
            "speculative.row_form", f"{form.value} does not go with acceptance {rule.value}"
        )
    return rule, form


def _candidate_count(detail: messages.RoundDetail) -> int:
    return _CANDIDATES if detail == messages.ROUND_DETAIL_CANDIDATES else 0


def _report(report: Report, texts: list[bytes]) -> messages.RoundReport:
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
        draft_end=_DRAFT_ENDS[report.draft_end],
        positions=[
            messages.PositionCandidates(
                target=candidates(report.target_candidates, i),
                draft=candidates(report.draft_candidates, i),
            )
            for i in range(len(report.target_candidates))
        ],
    )


def _read_limit(request: messages.GenerateRequest, room: int) -> tuple[int, Finish]:
    """Return the token limit, and what it means when it is reached."""
    limit = request.token_limit if request.HasField("token_limit") else DEFAULT_LIMIT
    if limit < -1:
        raise InvalidRequest("token_limit", f"must be at least -1, not {limit}")
    if limit == -1 or limit > room:
        return room, Finish.CONTEXT_FULL
    return limit, Finish.TOKEN_LIMIT


def _read_stops(sequences: Any) -> list[str]:
    stops = list(sequences)
    if len(stops) > 16 or any(not 1 <= len(stop.encode()) <= 256 for stop in stops):
        raise InvalidRequest("stop_sequences", "at most 16 texts of 1 to 256 bytes")
    return stops


def statistics(generation: Generation, driver: Driver) -> messages.GenerationStatistics:
    """Return what a generation took so far."""
    counts, timings = generation.counts, driver.timings
    generated = len(generation.committed) - generation.plan.opening.prompt_count
    first = timings.first_token or time.perf_counter()
    return messages.GenerationStatistics(
        prompt_token_count=generation.plan.opening.prompt_count,
        generated_token_count=generated,
        drafted_token_count=counts.drafted,
        accepted_token_count=counts.accepted,
        round_count=counts.rounds,
        drafted_round_count=counts.drafted_rounds,
        draft_length=generation.draft_length,
        accepted_by_position=counts.accepted_by_position,
        drafted_by_position=counts.drafted_by_position,
        first_token_duration=_duration(first - timings.begin),
        prompt_duration=_duration(timings.prompt),
        generation_duration=_duration(max(0.0, timings.last_token - first)),
        draft_wait_duration=_duration(timings.draft_wait),
        verify_wait_duration=_duration(timings.verify_wait),
        target_time=_engine_time(timings.target),
        draft_time=_engine_time(timings.draft),
        wire_byte_count=driver.wire_bytes,
        draft_fault_count=counts.draft_faults,
        target_fault_count=counts.target_faults,
        verify_network_duration=_duration(timings.verify_network),
        draft_network_duration=_duration(timings.draft_network),
        plain_round_duration=_plain_round(timings),
        controller=_view(generation.plan.control),
    )


def _engine_time(seconds: EngineSeconds) -> messages.EngineTime:
    return messages.EngineTime(
        queue_duration=_duration(seconds.queue),
        decode_duration=_duration(seconds.decode),
        sample_duration=_duration(seconds.sample),
        prompt_duration=_duration(seconds.prompt),
    )


def _log(generation: Generation, numbers: messages.GenerationStatistics) -> None:
    """Log the end of a generation; counts and times, never text."""
    assert generation.finished is not None
    logs.event(
        "outrider.orchestrator",
        "generated",
        session=generation.plan.opening.session_id.hex()[:8],
        reason=generation.finished.value,
        prompt_tokens=numbers.prompt_token_count,
        tokens=numbers.generated_token_count,
        drafted=numbers.drafted_token_count,
        accepted=numbers.accepted_token_count,
        rounds=numbers.round_count,
        first_token_ms=numbers.first_token_duration.ToMilliseconds(),
        generation_ms=numbers.generation_duration.ToMilliseconds(),
        draft_faults=numbers.draft_fault_count,
        target_faults=numbers.target_fault_count,
    )


def _view(its_control: Control) -> messages.ControllerView:
    """Return what the controller of a generation goes by."""
    view = its_control.view()
    return messages.ControllerView(
        token_rate=view.rate,
        plain_token_rate=view.plain_rate,
        acceptance=view.acceptance,
        draft_token_duration=_duration(view.draft_token_seconds),
        draft_latency_duration=_duration(view.latency_seconds),
        round_overhead_duration=_duration(view.overhead_seconds),
        slowdown=view.slowdown,
        run_ahead=view.run_ahead,
        takes_turns=view.takes_turns,
        decode_costs=[
            common.DecodeCost(row_count=rows, milliseconds=1e3 * seconds)
            for rows, seconds in view.costs
        ],
    )


def _plain_round(timings: Timings) -> Duration | None:
    return _duration(timings.plain / timings.plain_rounds) if timings.plain_rounds else None


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromMicroseconds(round(seconds * 1e6))
    return duration
