"""The draft's side of the protocol, message by message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import grpc
import pytest
import pytest_asyncio

from draft_service.servicer import _with_known_ids
from outrider.engine.hosting import HostOptions
from outrider.engine.model import Numerics
from outrider.messages import Order, Span
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_service_pb2 as messages
from tests.support.services import (
    CONTEXT,
    DRAFT,
    Gate,
    ModelProcess,
    all_idle,
    eventually,
    running,
    toy,
)
from tests.support.streams import DraftStream, RawStream, line_after, opening, session
from tests.support.toy import BOS, EOS, NEVER, ToyModel

TEXT = [0, 12, 40, 7]
INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT


def model() -> ToyModel:
    return toy(seed=1, eos_bias=NEVER)


@pytest_asyncio.fixture(loop_scope="session")
async def service() -> AsyncIterator[ModelProcess]:
    async with running(ModelProcess(DRAFT, model)) as process:
        yield process


def line_of(frame: Any, base: int, position: int) -> list[int]:
    assert isinstance(frame, messages.DraftFrame), frame
    assert (frame.base, frame.position) == (base, position)
    assert len(frame.confidences) == len(frame.token_ids)
    return list(frame.token_ids)


def expected(text: Sequence[int], count: int) -> list[int]:
    return line_after(model(), text, len(text) + count)


async def works(service: ModelProcess, number: int = 99) -> bool:
    """Return whether a fresh session is drafted for rightly."""
    async with DraftStream(service, session_id=session(number)) as stream:
        return line_of(await stream.draft(1, 0, TEXT, 7), 4, 4) == expected(TEXT, 3)


async def refused(service: ModelProcess, *requests: Any) -> grpc.StatusCode:
    """Send messages on a stream of their own; return how it ends."""
    async with RawStream(service.stub.Draft()) as stream:
        for message in requests:
            await stream.send(message)
        return await stream.end()


def opened(**changes: Any) -> messages.DraftRequest:
    return messages.DraftRequest(open=opening(**changes))


def order_of(**fields: Any) -> messages.DraftRequest:
    span = common.TokenSpan(position=fields.pop("position", 0), token_ids=fields.pop("ids", TEXT))
    whole = {"order": 1, "committed": span, "draft_until": 8, **fields}
    return messages.DraftRequest(order=messages.DraftOrder(**whole))


# --- the line ---


async def test_an_order_is_drafted_up_to_its_horizon(service: ModelProcess) -> None:
    async with DraftStream(service) as stream:
        assert line_of(await stream.draft(1, 0, TEXT, 14), 4, 4) == expected(TEXT, 10)


async def test_frames_are_small_and_the_last_one_completes_the_order(service: ModelProcess) -> None:
    async with DraftStream(service) as stream:
        await stream.send_order(1, 0, TEXT, 4 + 30)
        frames = await stream.until_completed(1)
    assert all(len(message.frame.token_ids) <= 4 for message in frames)
    assert [message.completed_order for message in frames[:-1]] == [0] * (len(frames) - 1)


async def test_the_line_goes_on_where_the_text_agrees_with_it(service: ModelProcess) -> None:
    async with DraftStream(service) as stream:
        line = line_of(await stream.draft(1, 0, TEXT, 8), 4, 4)
        assert line_of(await stream.draft(2, 4, line[:2], 10), 4, 8) == expected(TEXT, 6)[4:]
        assert service.decode_count == 6


async def test_the_line_starts_over_where_the_text_differs(service: ModelProcess) -> None:
    async with DraftStream(service) as stream:
        line = line_of(await stream.draft(1, 0, TEXT, 8), 4, 4)
        other = next(i for i in range(5, 64) if i != line[1])
        text = [*TEXT, line[0], other]
        assert line_of(await stream.draft(2, 4, text[4:], 9), 6, 6) == expected(text, 3)


async def test_a_horizon_below_the_end_of_the_line_cuts_nothing(service: ModelProcess) -> None:
    async with DraftStream(service) as stream:
        await stream.draft(1, 0, TEXT, 12)
        assert line_of(await stream.draft(2, 4, [], 6), 4, 12) == []
        assert line_of(await stream.draft(3, 4, [], 14), 4, 12) == expected(TEXT, 10)[8:]


async def test_a_text_longer_than_the_line_starts_it_over(service: ModelProcess) -> None:
    async with DraftStream(service) as stream:
        line = line_of(await stream.draft(1, 0, TEXT, 6), 4, 4)
        text = [*TEXT, *line, 9]
        assert line_of(await stream.draft(2, 4, text[4:], 9), 7, 7) == expected(text, 2)


async def test_a_new_stream_has_no_line(service: ModelProcess) -> None:
    async with DraftStream(service) as stream:
        line = line_of(await stream.draft(1, 0, TEXT, 8), 4, 4)
    async with DraftStream(service, attempt=2) as stream:
        assert line_of(await stream.draft(1, 4, line[:2], 8), 6, 6) == line[2:]


async def test_an_order_that_drafts_nothing_still_cuts_what_it_contradicts(
    service: ModelProcess,
) -> None:
    async with DraftStream(service) as stream:
        line = line_of(await stream.draft(1, 0, TEXT, 8), 4, 4)
        other = next(i for i in range(5, 64) if i != line[0])
        assert line_of(await stream.draft(2, 4, [other], 5), 5, 5) == []
    async with DraftStream(service, attempt=2) as stream:
        answer = await stream.draft(1, 5, [], 8)
        if isinstance(answer, messages.DraftResponse):
            assert answer.missing.held_token_count == 4
            answer = await stream.draft(2, 4, [other], 8)
        assert line_of(answer, 5, 5) == expected([*TEXT, other], 3)


async def test_a_span_past_what_is_held_is_missing(service: ModelProcess) -> None:
    async with DraftStream(service) as stream:
        answer = await stream.draft(1, 3, [7], 8)
        assert (answer.WhichOneof("outcome"), answer.completed_order) == ("missing", 1)
        assert answer.missing.held_token_count == 0
        assert line_of(await stream.draft(2, 0, TEXT, 7), 4, 4) == expected(TEXT, 3)


async def test_the_same_opening_once_more_says_nothing_new(service: ModelProcess) -> None:
    async with DraftStream(service) as stream:
        await stream.send(opened())
        line = line_of(await stream.draft(1, 0, TEXT, 8), 4, 4)
        await stream.send(opened())
        assert line_of(await stream.draft(2, 4, line[:2], 10), 4, 8) == expected(TEXT, 6)[4:]


async def test_a_line_outlives_the_cache(service: ModelProcess) -> None:
    async with DraftStream(service) as stream:
        line = line_of(await stream.draft(1, 0, TEXT, 8), 4, 4)
        await service.close_sessions()
        assert line_of(await stream.draft(2, 4, line[:2], 10), 4, 8) == expected(TEXT, 6)[4:]


async def test_a_draft_ends_with_the_end_of_the_text() -> None:
    async with (
        running(ModelProcess(DRAFT, lambda: toy(seed=1, eos_bias=20.0))) as service,
        DraftStream(service) as stream,
    ):
        assert line_of(await stream.draft(1, 0, TEXT, 12), 4, 4) == [EOS]
        assert line_of(await stream.draft(2, 4, [], 12), 4, 5) == []


async def test_a_rejection_block_does_not_end_early() -> None:
    rule = common.ACCEPTANCE_RULE_REJECTION
    async with (
        running(ModelProcess(DRAFT, lambda: toy(seed=1, eos_bias=20.0))) as service,
        DraftStream(service, acceptance_rule=rule) as stream,
    ):
        frame = await stream.draft(1, 0, TEXT, 8)
        assert line_of(frame, 4, 4) == [EOS] * 4
        assert len(frame.distributions) == 4


async def test_a_rejection_block_is_drafted_anew_for_every_text(service: ModelProcess) -> None:
    rule = common.ACCEPTANCE_RULE_REJECTION
    async with DraftStream(service, acceptance_rule=rule) as stream:
        line = line_of(await stream.draft(1, 0, TEXT, 8), 4, 4)
        frame = await stream.draft(2, 4, line[:2], 9)
        assert len(line_of(frame, 6, 6)) == 3
        for token_id, row in zip(frame.token_ids, frame.distributions, strict=True):
            assert token_id in row.token_ids
            assert min(row.weights) >= 1 and max(row.weights) <= 65535


async def test_ids_beyond_the_targets_vocabulary_are_never_drafted(service: ModelProcess) -> None:
    async with DraftStream(service, vocabulary_token_count=5) as stream:
        frame = await stream.draft(1, 0, TEXT, 24)
        assert set(frame.token_ids) <= {3, 4}


async def test_ids_that_only_the_target_knows_do_not_stop_the_draft(service: ModelProcess) -> None:
    async with DraftStream(service, vocabulary_token_count=192) as stream:
        frame = await stream.draft(1, 0, [BOS, 191, 64], 6)
        assert len(line_of(frame, 3, 3)) == 3
    assert await refused(service, opened(), order_of(ids=[192])) is INVALID_ARGUMENT


def test_an_order_with_unknown_ids_keeps_all_else() -> None:
    order = Order(7, Span(4, [63, 64, 191]), 12, 3, 200)
    assert _with_known_ids(order, 64) == Order(7, Span(4, [63, 63, 63]), 12, 3, 200)


# --- orders that replace each other ---


async def test_what_a_replaced_order_drafted_is_sent(service: ModelProcess) -> None:
    """The later order continues where the line ends, so no token of it may be missing."""
    async with DraftStream(service) as stream:
        await stream.draft(1, 0, TEXT, 6)
        gate = Gate(service.model, shut=False)
        for number in range(2, 40):
            # Replace an order after it decoded some tokens, but no whole frame.
            await gate.shut()
            length = 4 + number
            text = [*TEXT, *expected(TEXT, number)]
            await stream.send_order(2 * number, 4, text[4:length], length + 8)
            await gate.reached()
            await gate.open()
            await stream.send_order(2 * number + 1, 4, text[4:length], length + 8)
            await stream.until_completed(2 * number + 1)
        whole = await stream.draft(1000, 4, [], 5)
        assert line_of(whole, 4, 4 + 39 + 8) == []


async def test_every_drafted_token_arrives_though_orders_replace_each_other(
    service: ModelProcess,
) -> None:
    """Three decodes of 5 ms are a frame's time: many orders are replaced before it."""
    service.model.step_seconds = 0.002
    truth = expected(TEXT, 80)
    received: list[int] = []
    async with DraftStream(service) as stream:
        last = 30
        for number in range(1, last + 1):
            span = (0, TEXT) if number == 1 else (4, truth[: number - 1])
            await stream.send_order(number, *span, 4 + number + 40)
            await asyncio.sleep(0.003)
        for message in await stream.until_completed(last):
            frame = message.frame
            assert message.WhichOneof("outcome") == "frame"
            if frame.token_ids:
                # An order that comes before the draft began brings text that is never drafted.
                received = received or truth[: frame.position - 4]
                assert frame.position == 4 + len(received)
                received += frame.token_ids
    assert received == truth[: last + 40]


async def test_the_text_of_an_order_that_was_replaced_before_it_started_is_kept(
    service: ModelProcess,
) -> None:
    async with DraftStream(service) as stream, DraftStream(service, session_id=session(2)) as two:
        line = line_of(await stream.draft(1, 0, TEXT, 8), 4, 4)
        gate = Gate(service.model)
        await two.send_order(1, 0, TEXT, 8)
        await gate.reached()
        other = next(i for i in range(5, 64) if i != line[0])
        await stream.send_order(2, 4, [other], 9)
        await stream.send_order(3, 5, [9], 10)
        await asyncio.sleep(0.1)
        await gate.open()
        frames = [message.frame for message in await stream.until_completed(3)]
    drafted = {frame.position + i: t for frame in frames for i, t in enumerate(frame.token_ids)}
    truth = expected([*TEXT, other, 9], 4)
    assert [drafted[position] for position in range(6, 10)] == truth


async def test_an_order_before_the_first_start_is_kept_too(service: ModelProcess) -> None:
    async with DraftStream(service) as stream, DraftStream(service, session_id=session(2)) as two:
        gate = Gate(service.model)
        await two.send_order(1, 0, TEXT, 8)
        await gate.reached()
        await stream.send_order(1, 0, TEXT, 9)
        await stream.send_order(2, 4, [9], 10)
        await asyncio.sleep(0.1)
        await gate.open()
        [*_, last] = await stream.until_completed(2)
        assert last.WhichOneof("outcome") == "frame"
        assert last.frame.base == 5


async def test_a_repeated_or_lower_order_changes_nothing(service: ModelProcess) -> None:
    async with DraftStream(service) as stream:
        line = line_of(await stream.draft(5, 0, TEXT, 8), 4, 4)
        await stream.send_order(5, 0, TEXT, 8)
        await stream.send_order(4, 0, [5, 5, 5], 6)
        assert line_of(await stream.draft(6, 4, line, 9), 4, 8) == expected(TEXT, 5)[4:]


@pytest.mark.parametrize("call", ["Rollback", "CloseSession"])
async def test_an_order_that_is_cancelled_from_the_side_is_completed(
    service: ModelProcess, call: str
) -> None:
    """Otherwise the orchestrator waits for it until its deadline, and for ever after."""
    async with DraftStream(service) as stream, DraftStream(service, session_id=session(2)) as two:
        await stream.draft(1, 0, TEXT, 8)
        gate = Gate(service.model)
        await two.send_order(1, 0, TEXT, 8)
        await gate.reached()
        await stream.send_order(2, 4, [5], 12)
        await asyncio.sleep(0.1)
        requests = {
            "Rollback": common.RollbackRequest(
                session_id=session(), token_count=2, attempt=1, round=2
            ),
            "CloseSession": common.CloseSessionRequest(session_id=session()),
        }
        cut = asyncio.ensure_future(getattr(service.stub, call)(requests[call], timeout=20))
        await asyncio.sleep(0.1)
        await gate.open()
        await cut
        await asyncio.wait_for(stream.until_completed(2), 5)
        text = [*TEXT, 5, 9]
        assert line_of(await stream.draft(3, 4, [5, 9], 8), 6, 6) == expected(text, 2)


# --- rollback, close, attempts ---


async def roll_back(service: ModelProcess, count: int, **fields: Any) -> int:
    whole = {"session_id": session(), "attempt": 1, "round": 1, **fields}
    request = common.RollbackRequest(token_count=count, **whole)
    return int((await service.stub.Rollback(request, timeout=20)).held_token_count)


async def test_rollback_is_idempotent_and_late_ones_change_nothing(service: ModelProcess) -> None:
    async with DraftStream(service) as stream:
        await stream.draft(1, 0, TEXT, 12)
        held = await roll_back(service, 100)
        assert held >= 11
        assert await roll_back(service, 6) == 6
        assert await roll_back(service, 6) == 6
        assert line_of(await stream.draft(2, 4, [], 14), 4, 12) == expected(TEXT, 10)[8:]
        held = await roll_back(service, 100)
        assert await roll_back(service, 2, round=1) == held
        assert await roll_back(service, 2, attempt=0, round=9) == held


async def test_an_unknown_session_is_rolled_back_and_closed_with_success(
    service: ModelProcess,
) -> None:
    assert await roll_back(service, 3) == 0
    await service.stub.CloseSession(common.CloseSessionRequest(session_id=session()), timeout=20)
    assert (await service.activity()).session_count == 0


async def test_an_older_attempt_ends_aborted_when_a_newer_one_comes(service: ModelProcess) -> None:
    async with DraftStream(service) as old:
        await old.draft(1, 0, TEXT, 8)
        async with DraftStream(service, attempt=2) as new:
            assert line_of(await new.draft(1, 0, TEXT, 8), 4, 4) == expected(TEXT, 4)
            assert await old.end() is grpc.StatusCode.ABORTED
            async with DraftStream(service) as late:
                assert await late.end() is grpc.StatusCode.ABORTED


async def test_streams_leave_no_open_sessions(service: ModelProcess) -> None:
    for number in range(12):
        async with DraftStream(service, session_id=session(number)) as stream:
            if number % 2:
                await stream.draft(1, 0, TEXT, 8)
            await stream.finish()
    await eventually(partial(all_idle, service))


async def test_the_end_of_a_stream_stops_drafting(service: ModelProcess) -> None:
    service.model.step_seconds = 0.02
    async with DraftStream(service) as stream:
        await stream.send_order(1, 0, TEXT, 60)
        await asyncio.sleep(0.1)
    await eventually(partial(all_idle, service))
    done = service.decode_count + 1  # one may be in flight
    await asyncio.sleep(0.1)
    assert service.decode_count <= done < 40


# --- bad input ---


@pytest.mark.parametrize(
    "order",
    [
        order_of(ids=[64 + 128]),
        order_of(ids=[5, -1]),
        order_of(position=-1),
        order_of(ids=[]),
        order_of(order=0),
        order_of(order=-1),
        order_of(draft_until=-1),
        order_of(draft_until=4 + 65),
        order_of(draft_until=2**31 - 1),
        opened(attempt=2),
        messages.DraftRequest(),
    ],
)
async def test_a_bad_order_ends_the_stream_and_nothing_else(
    service: ModelProcess, order: messages.DraftRequest
) -> None:
    assert await refused(service, opened(), order) is INVALID_ARGUMENT
    assert await works(service)


async def test_a_rejection_block_cannot_be_told_to_end_early(service: ModelProcess) -> None:
    stops = order_of(stop_below_confidence=1)
    rejection = opened(acceptance_rule=common.ACCEPTANCE_RULE_REJECTION)
    assert await refused(service, rejection, stops) is INVALID_ARGUMENT
    assert await works(service)


@pytest.mark.parametrize(
    "changes",
    [
        {"session_id": b"short"},
        {"attempt": -1},
        {"acceptance_rule": 0},
        {"vocabulary_token_count": -1},
        {"sampling": common.SamplingParameters(temperature=float("nan"))},
        {"sampling": common.SamplingParameters(top_p=-1.0)},
    ],
    ids=str,
)
async def test_a_bad_opening_is_refused(service: ModelProcess, changes: dict[str, Any]) -> None:
    assert await refused(service, opened(**changes)) is INVALID_ARGUMENT
    assert await works(service)


async def test_the_first_message_must_open(service: ModelProcess) -> None:
    assert await refused(service, order_of()) is INVALID_ARGUMENT
    assert await works(service)


async def test_malformed_protobuf_is_refused(service: ModelProcess) -> None:
    method = "/outrider.v1.DraftService/Draft"
    for first in ([], [opened().SerializeToString()]):
        async with RawStream(service.channel.stream_stream(method)()) as stream:
            for message in (*first, b"\xff\xff\xff\xff garbage"):
                await stream.send(message)
            assert await stream.end() is INVALID_ARGUMENT
    assert await works(service)


async def test_a_text_over_the_context_is_full_and_the_horizon_is_clamped(
    service: ModelProcess,
) -> None:
    async with DraftStream(service) as stream:
        answer = await stream.draft(1, 0, [5] * (CONTEXT + 1), CONTEXT + 8)
        assert (answer.WhichOneof("outcome"), answer.completed_order) == ("context_full", 1)
        assert answer.context_full.context_token_count == CONTEXT
        frame = await stream.draft(2, 0, [5] * (CONTEXT - 3), CONTEXT + 8)
        assert len(line_of(frame, CONTEXT - 3, CONTEXT - 3)) == 3
        frame = await stream.draft(3, 0, [5] * CONTEXT, CONTEXT + 8)
        assert line_of(frame, CONTEXT, CONTEXT) == []


async def test_64_tokens_are_drafted(service: ModelProcess) -> None:
    async with DraftStream(service) as stream:
        assert line_of(await stream.draft(1, 0, TEXT, 68), 4, 4) == expected(TEXT, 64)


# --- room ---


async def test_a_full_queue_answers_busy() -> None:
    options = HostOptions(numerics=Numerics.NATIVE, queue_limit=1)
    async with (
        running(ModelProcess(DRAFT, model, options)) as service,
        DraftStream(service) as one,
        DraftStream(service, session_id=session(2)) as two,
        DraftStream(service, session_id=session(3)) as three,
    ):
        gate = Gate(service.model)
        await one.send_order(1, 0, TEXT, 6)
        await gate.reached()
        await two.send_order(1, 0, TEXT, 6)
        await asyncio.sleep(0.1)
        answer = await three.draft(1, 0, TEXT, 6)
        assert (answer.WhichOneof("outcome"), answer.completed_order) == ("busy", 1)
        await gate.open()
        await one.until_completed(1)
        await two.until_completed(1)
        assert line_of(await three.draft(2, 0, TEXT, 6), 4, 4) == expected(TEXT, 2)


async def test_no_free_sequence_answers_busy() -> None:
    def narrow() -> ToyModel:
        return toy(seed=1, eos_bias=NEVER, sequence_count=1)

    options = HostOptions(numerics=Numerics.NATIVE, room_seconds=0.05)
    async with (
        running(ModelProcess(DRAFT, narrow, options)) as service,
        DraftStream(service) as one,
        DraftStream(service, session_id=session(2)) as two,
    ):
        await one.draft(1, 0, TEXT, 6)
        answer = await two.draft(1, 0, TEXT, 6)
        assert (answer.WhichOneof("outcome"), answer.completed_order) == ("busy", 1)
        await one.finish()
        assert line_of(await two.draft(2, 0, TEXT, 6), 4, 4) == expected(TEXT, 2)
