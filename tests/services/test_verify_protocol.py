"""The target's side of the protocol, message by message."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2

from outrider.engine.hosting import HostOptions
from outrider.engine.model import Numerics
from outrider.v1 import common_pb2 as common
from outrider.v1 import target_service_pb2 as messages
from tests.support.services import (
    CONTEXT,
    TARGET,
    Gate,
    ModelProcess,
    all_idle,
    eventually,
    running,
    toy,
)
from tests.support.streams import SAMPLING, RawStream, VerifyStream, opening, sampled, session
from tests.support.toy import ToyModel

TEXT = [0, 12, 40, 7]
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT


def model() -> ToyModel:
    return toy(seed=1)


@pytest_asyncio.fixture(loop_scope="session")
async def service() -> AsyncIterator[ModelProcess]:
    async with running(ModelProcess(TARGET, model)) as process:
        yield process


def rows_of(answer: Any) -> list[int]:
    assert answer.WhichOneof("outcome") == "rows", answer
    assert answer.rows.first_row == 0
    return list(answer.rows.token_ids)


def expected(text: Sequence[int], drafted: Sequence[int] = ()) -> list[int]:
    return sampled(model(), [*text, *drafted], len(drafted) + 1)


async def works(service: ModelProcess, number: int = 99) -> bool:
    """Return whether a fresh session is answered rightly."""
    async with VerifyStream(service, session_id=session(number)) as stream:
        return rows_of(await stream.verify(1, 0, TEXT)) == expected(TEXT)


async def refused(service: ModelProcess, *requests: Any) -> grpc.StatusCode:
    """Send messages on a stream of their own; return how it ends."""
    async with RawStream(service.stub.Verify()) as stream:
        for message in requests:
            await stream.send(message)
        return await stream.end()


def opened(**changes: Any) -> messages.VerifyRequest:
    return messages.VerifyRequest(open=opening(**changes))


def round_of(**fields: Any) -> messages.VerifyRequest:
    span = common.TokenSpan(position=fields.pop("position", 0), token_ids=fields.pop("ids", TEXT))
    whole = {"round": 1, "prefix": span, "row_form": common.ROW_FORM_SAMPLED, **fields}
    return messages.VerifyRequest(round=messages.VerifyRound(**whole))


# --- the span rule ---


async def test_position_0_opens_an_unknown_session(service: ModelProcess) -> None:
    async with VerifyStream(service) as stream:
        assert rows_of(await stream.verify(1, 0, TEXT)) == expected(TEXT)


async def test_a_round_yields_a_row_after_the_prefix_and_after_each_draft_token(
    service: ModelProcess,
) -> None:
    async with VerifyStream(service) as stream:
        answer = await stream.verify(1, 0, TEXT, [5, 9, 30])
        assert rows_of(answer) == expected(TEXT, [5, 9, 30])
        assert answer.round == 1


async def test_the_next_span_cuts_what_was_rejected(service: ModelProcess) -> None:
    async with VerifyStream(service) as stream:
        await stream.verify(1, 0, TEXT, [5, 9, 30])
        answer = await stream.verify(2, 5, [33], [8])
        assert rows_of(answer) == expected([*TEXT, 5, 33], [8])


async def test_a_span_past_what_is_held_is_missing(service: ModelProcess) -> None:
    async with VerifyStream(service) as stream:
        assert (await stream.verify(1, 3, [7])).missing.held_token_count == 0
        await stream.verify(2, 0, TEXT)
        answer = await stream.verify(3, 6, [7])
        assert answer.WhichOneof("outcome") == "missing"
        assert answer.missing.held_token_count == 4
        assert rows_of(await stream.verify(4, 4, [9, 9, 7])) == expected([*TEXT, 9, 9, 7])


async def test_the_same_opening_once_more_says_nothing_new(service: ModelProcess) -> None:
    async with VerifyStream(service) as stream:
        await stream.send(opened())
        assert rows_of(await stream.verify(1, 0, TEXT, [5])) == expected(TEXT, [5])
        await stream.send(opened())
        assert rows_of(await stream.verify(2, 4, [5], [8])) == expected([*TEXT, 5], [8])


async def test_another_opening_is_refused_and_its_place_is_named(service: ModelProcess) -> None:
    call = service.stub.Verify()
    async with RawStream(call) as stream:
        for message in (opened(), opened(), opened(seed=12)):
            await stream.send(message)
        assert await stream.end() is INVALID_ARGUMENT
        assert await call.details() == (
            "open: message 3 of the stream opens it otherwise than the first one did"
        )
    assert await works(service)


async def test_an_empty_span_asks_about_what_is_held(service: ModelProcess) -> None:
    async with VerifyStream(service) as stream:
        await stream.verify(1, 0, TEXT, [5, 9])
        assert rows_of(await stream.verify(2, 5, [], [8])) == expected([*TEXT, 5], [8])


async def test_a_changed_early_token_changes_everything_after_it(service: ModelProcess) -> None:
    async with VerifyStream(service) as stream:
        await stream.verify(1, 0, TEXT, [5])
        changed = [0, 13, *TEXT[2:], 5]
        assert rows_of(await stream.verify(2, 0, changed)) == expected(changed)


async def test_a_session_is_remembered_after_its_stream(service: ModelProcess) -> None:
    async with VerifyStream(service) as stream:
        await stream.verify(1, 0, TEXT)
    before = service.decode_count
    async with VerifyStream(service, attempt=2) as stream:
        assert rows_of(await stream.verify(2, 4, [5])) == expected([*TEXT, 5])
    assert service.decode_count == before + 1


# --- rounds again, late and contradicted ---


@pytest.mark.parametrize("attempt", [1, 2])
async def test_an_identical_round_is_answered_identically_without_a_decode(
    service: ModelProcess, attempt: int
) -> None:
    async with VerifyStream(service) as stream:
        first = await stream.verify(1, 0, TEXT, [5, 9])
        before = service.decode_count
        assert await stream.verify(1, 0, TEXT, [5, 9]) == first
    async with VerifyStream(service, attempt=1 + attempt) as stream:
        assert await stream.verify(1, 0, TEXT, [5, 9]) == first
    assert service.decode_count == before


async def test_an_identical_round_is_answered_identically_after_an_eviction(
    service: ModelProcess,
) -> None:
    async with VerifyStream(service) as stream:
        first = await stream.verify(1, 0, TEXT, [5, 9])
        await service.close_sessions()
        again = await stream.verify(1, 0, TEXT, [5, 9])
        assert rows_of(again) == rows_of(first)


async def test_a_round_with_another_distribution_is_not_answered_from_the_last_reply(
    service: ModelProcess,
) -> None:
    async with VerifyStream(service) as stream:
        await stream.verify(1, 0, TEXT, [5, 9])
    greedy = common.SamplingParameters(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
    async with VerifyStream(service, attempt=2, sampling=greedy) as stream:
        answer = await stream.verify(1, 0, TEXT, [5, 9])
    from outrider.sampling import GREEDY

    assert rows_of(answer) == sampled(model(), [*TEXT, 5, 9], 3, GREEDY)


async def test_a_repeated_round_is_decoded_again_where_its_rows_are_wanted(
    service: ModelProcess,
) -> None:
    async with VerifyStream(service) as stream:
        await stream.verify(1, 0, TEXT, [5, 9])
        assert rows_of(await stream.verify(2, 0, TEXT, [5, 9])) == expected(TEXT, [5, 9])


async def test_a_lower_round_is_superseded(service: ModelProcess) -> None:
    async with VerifyStream(service) as stream:
        await stream.verify(5, 0, TEXT)
        answer = await stream.verify(4, 0, [*TEXT, 5])
        assert (answer.round, answer.WhichOneof("outcome")) == (4, "superseded")
        assert rows_of(await stream.verify(6, 4, [5])) == expected([*TEXT, 5])


async def test_a_contradicting_round_supersedes_what_is_not_decoded(service: ModelProcess) -> None:
    async with VerifyStream(service) as stream, VerifyStream(service, session_id=session(2)) as two:
        await stream.verify(1, 0, TEXT)
        gate = Gate(service.model)
        await two.send_round(1, 0, TEXT)
        await gate.reached()
        await stream.send_round(2, 4, [5], [9, 9])
        await stream.send_round(3, 4, [6], [8])
        await asyncio.sleep(0.1)
        await gate.open()
        answer = await stream.receive()
        assert (answer.round, answer.WhichOneof("outcome")) == (2, "superseded")
        assert rows_of(await stream.receive()) == expected([*TEXT, 6], [8])
        assert rows_of(await two.receive()) == expected(TEXT)


async def test_rounds_that_agree_are_all_answered_in_order(service: ModelProcess) -> None:
    async with VerifyStream(service) as stream, VerifyStream(service, session_id=session(2)) as two:
        gate = Gate(service.model)
        await two.send_round(1, 0, TEXT)
        await gate.reached()
        await stream.send_round(1, 0, TEXT, [5])
        await stream.send_round(2, 5, [], [9])
        await stream.send_round(3, 5, [9], [8])
        await asyncio.sleep(0.1)
        await gate.open()
        assert rows_of(await stream.receive()) == expected(TEXT, [5])
        assert rows_of(await stream.receive()) == expected([*TEXT, 5], [9])
        assert rows_of(await stream.receive()) == expected([*TEXT, 5, 9], [8])


async def test_a_repeated_round_that_is_still_queued_is_answered_twice(
    service: ModelProcess,
) -> None:
    async with VerifyStream(service) as stream, VerifyStream(service, session_id=session(2)) as two:
        gate = Gate(service.model)
        await two.send_round(1, 0, TEXT)
        await gate.reached()
        await stream.send_round(1, 0, TEXT, [5])
        await stream.send_round(1, 0, TEXT, [5])
        await gate.open()
        assert rows_of(await stream.receive()) == expected(TEXT, [5])
        assert rows_of(await stream.receive()) == expected(TEXT, [5])


# --- rollback and close ---


async def roll_back(service: ModelProcess, count: int, **fields: Any) -> int:
    whole = {"session_id": session(), "attempt": 1, "round": 1, **fields}
    request = common.RollbackRequest(token_count=count, **whole)
    return int((await service.stub.Rollback(request, timeout=20)).held_token_count)


async def test_rollback_is_idempotent(service: ModelProcess) -> None:
    async with VerifyStream(service) as stream:
        await stream.verify(1, 0, TEXT, [5, 9])
        assert await roll_back(service, 5) == 5
        assert await roll_back(service, 5) == 5
        assert await roll_back(service, 100) == 5
        assert rows_of(await stream.verify(2, 5, [9], [8])) == expected([*TEXT, 5, 9], [8])


async def test_a_round_that_was_rolled_back_yields_its_rows_again(service: ModelProcess) -> None:
    async with VerifyStream(service) as stream:
        first = await stream.verify(1, 0, TEXT, [5, 9])
        assert await roll_back(service, 0) == 0
        assert rows_of(await stream.verify(1, 0, TEXT, [5, 9])) == rows_of(first)


@pytest.mark.parametrize("late", [{"round": 1}, {"attempt": 0, "round": 9}])
async def test_a_late_rollback_changes_nothing(service: ModelProcess, late: dict[str, int]) -> None:
    async with VerifyStream(service) as stream:
        await stream.verify(1, 0, TEXT)
        await stream.verify(2, 4, [5], [9])
        assert await roll_back(service, 2, **late) == 6
        assert rows_of(await stream.verify(3, 5, [9], [8])) == expected([*TEXT, 5, 9], [8])


async def test_rollback_cancels_the_round_under_way(service: ModelProcess) -> None:
    async with VerifyStream(service) as stream, VerifyStream(service, session_id=session(2)) as two:
        await stream.verify(1, 0, TEXT)
        gate = Gate(service.model)
        await two.send_round(1, 0, TEXT)
        await gate.reached()
        await stream.send_round(2, 4, [5])
        await asyncio.sleep(0.1)
        cut = asyncio.create_task(roll_back(service, 2, round=2))
        await asyncio.sleep(0.1)
        await gate.open()
        assert await cut == 2
        answer = await stream.receive()
        assert (answer.round, answer.WhichOneof("outcome")) == (2, "superseded")
        assert rows_of(await stream.verify(3, 2, [9, 9])) == expected([*TEXT[:2], 9, 9])


async def test_an_unknown_session_is_rolled_back_and_closed_with_success(
    service: ModelProcess,
) -> None:
    assert await roll_back(service, 3) == 0
    request = common.CloseSessionRequest(session_id=session())
    await service.stub.CloseSession(request, timeout=20)
    await service.stub.CloseSession(request, timeout=20)
    assert (await service.activity()).session_count == 0


async def test_a_closed_session_is_gone(service: ModelProcess) -> None:
    async with VerifyStream(service) as stream:
        await stream.verify(1, 0, TEXT)
    await eventually(partial(all_idle, service))
    await service.stub.CloseSession(common.CloseSessionRequest(session_id=session()), timeout=20)
    assert (await service.activity()).session_count == 0
    async with VerifyStream(service, attempt=2) as stream:
        assert (await stream.verify(2, 4, [5])).missing.held_token_count == 0


@pytest.mark.parametrize("session_id", [b"", b"short", bytes(17)])
async def test_session_ids_are_16_bytes(service: ModelProcess, session_id: bytes) -> None:
    calls = [
        service.stub.Rollback(common.RollbackRequest(session_id=session_id)),
        service.stub.CloseSession(common.CloseSessionRequest(session_id=session_id)),
    ]
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is INVALID_ARGUMENT
    assert await refused(service, opened(session_id=session_id)) is INVALID_ARGUMENT
    assert await works(service)


async def test_a_negative_rollback_is_refused(service: ModelProcess) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await roll_back(service, -1)
    assert caught.value.code() is INVALID_ARGUMENT


# --- attempts ---


async def test_an_older_attempt_ends_aborted_when_a_newer_one_comes(service: ModelProcess) -> None:
    async with VerifyStream(service) as old:
        await old.verify(1, 0, TEXT)
        async with VerifyStream(service, attempt=2) as new:
            assert rows_of(await new.verify(2, 4, [5])) == expected([*TEXT, 5])
            assert await old.end() is grpc.StatusCode.ABORTED
            assert rows_of(await new.verify(3, 5, [6])) == expected([*TEXT, 5, 6])
            async with VerifyStream(service) as late:
                assert await late.end() is grpc.StatusCode.ABORTED
            assert rows_of(await new.verify(4, 6, [7])) == expected([*TEXT, 5, 6, 7])


async def test_the_end_of_a_stream_makes_its_session_evictable(service: ModelProcess) -> None:
    for number in range(20):
        async with VerifyStream(service, session_id=session(number)) as stream:
            assert rows_of(await stream.verify(1, 0, TEXT)) == expected(TEXT)
            assert (await service.activity()).open_session_count >= 1
            assert await stream.finish() is grpc.StatusCode.OK
    await eventually(partial(all_idle, service))


async def test_streams_that_ask_nothing_leave_no_sessions(service: ModelProcess) -> None:
    for number in range(20):
        async with VerifyStream(service, session_id=session(number)) as stream:
            await stream.finish()
    await eventually(partial(all_idle, service))
    assert (await service.activity()).session_count <= service.model.sequence_count


# --- bad input ---


@pytest.mark.parametrize(
    "round_",
    [
        round_of(ids=[64]),
        round_of(ids=[5, -1]),
        round_of(ids=[2**31 - 1]),
        round_of(draft={"token_ids": [64]}),
        round_of(draft={"token_ids": [-5]}),
        round_of(draft={"token_ids": [5] * 65}),
        round_of(position=-1),
        round_of(position=-(2**31)),
        round_of(ids=[]),
        round_of(round=0),
        round_of(round=-1),
        round_of(row_form=0),
        round_of(row_form=77),
        round_of(mirostat_mu=5.0),  # a session without mirostat has no state of it
        opened(attempt=2),
        messages.VerifyRequest(),
    ],
)
async def test_a_bad_round_ends_the_stream_and_nothing_else(
    service: ModelProcess, round_: messages.VerifyRequest
) -> None:
    assert await refused(service, opened(), round_) is INVALID_ARGUMENT
    assert await works(service)


@pytest.mark.parametrize(
    "changes",
    [
        {"attempt": -1},
        {"acceptance_rule": 0},
        {"acceptance_rule": 42},
        {"choice_index": -1},
        {"prompt_token_count": 0},
        {"token_limit": -1},
        {"vocabulary_token_count": 0},
        *(
            {"sampling": common.SamplingParameters(**bad)}
            for bad in (
                {"temperature": float("nan")},
                {"temperature": float("inf")},
                {"temperature": -1.0},
                {"top_k": -1},
                {"top_p": -0.5},
                {"top_p": 1.5},
                {"min_p": float("nan")},
                {"min_p": -0.1},
            )
        ),
    ],
    ids=str,
)
async def test_a_bad_opening_is_refused(service: ModelProcess, changes: dict[str, Any]) -> None:
    assert await refused(service, opened(**changes)) is INVALID_ARGUMENT
    assert await works(service)


async def test_the_first_message_must_open(service: ModelProcess) -> None:
    assert await refused(service, round_of()) is INVALID_ARGUMENT
    assert await refused(service, messages.VerifyRequest()) is INVALID_ARGUMENT
    assert await works(service)


async def test_64_draft_tokens_are_verified(service: ModelProcess) -> None:
    drafted = [3 + i % 60 for i in range(64)]
    async with VerifyStream(service) as stream:
        assert rows_of(await stream.verify(1, 0, TEXT, drafted)) == expected(TEXT, drafted)


async def test_positions_past_the_context_are_missing_or_full(service: ModelProcess) -> None:
    async with VerifyStream(service) as stream:
        answer = await stream.verify(1, 2**31 - 1, [5])
        assert answer.WhichOneof("outcome") == "missing"
        answer = await stream.verify(2, 0, [5] * (CONTEXT + 1))
        assert answer.context_full.context_token_count == CONTEXT
        answer = await stream.verify(3, 0, [5] * (CONTEXT - 2), [5] * 3)
        assert answer.context_full.context_token_count == CONTEXT
        full = [5] * CONTEXT
        assert rows_of(await stream.verify(4, 0, full)) == expected(full)


async def test_malformed_protobuf_is_refused(service: ModelProcess) -> None:
    path = "/outrider.v1.TargetService/"
    garbage = b"\xff\xff\xff\xff garbage"
    for method in ("Rollback", "CloseSession", "GetModel", "Tokenize"):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.channel.unary_unary(path + method)(garbage, timeout=20)
        assert caught.value.code() is INVALID_ARGUMENT
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in service.channel.unary_stream(path + "ListVocabulary")(garbage, timeout=20):
            pass
    assert caught.value.code() is INVALID_ARGUMENT
    async with RawStream(service.channel.stream_stream(path + "Verify")()) as stream:
        await stream.send(garbage)
        assert await stream.end() is INVALID_ARGUMENT
    async with RawStream(service.channel.stream_stream(path + "Verify")()) as stream:
        await stream.send(opened().SerializeToString())
        await stream.send(garbage)
        assert await stream.end() is INVALID_ARGUMENT
    assert await works(service)


async def test_a_text_of_10_mb_is_refused(service: ModelProcess) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.stub.Tokenize(messages.TokenizeRequest(texts=["a" * 10 * 2**20]), timeout=20)
    assert caught.value.code() in (INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert await works(service)


async def test_a_message_over_the_limit_is_refused(service: ModelProcess) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        call = service.channel.unary_unary("/outrider.v1.TargetService/Tokenize")
        await call(b"\x0a" + bytes(17 * 2**20), timeout=20)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await works(service)


async def test_tokenize_adds_and_parses_special_tokens_when_asked(service: ModelProcess) -> None:
    async def ids(text: str, **how: bool) -> list[int]:
        request = messages.TokenizeRequest(texts=[text], **how)
        return list((await service.stub.Tokenize(request, timeout=20)).texts[0].token_ids)

    assert await ids("a</s>") == model().tokenize(b"a</s>", False, False)
    assert await ids("a</s>", parse_special=True) == model().tokenize(b"a</s>", False, True)
    assert await ids("a", add_special=True) == model().tokenize(b"a", True, False)
    assert await ids("") == []


# --- forms ---


async def test_logits_are_the_models_own(service: ModelProcess) -> None:
    import numpy as np

    from outrider.sampling import distribution_of

    async with VerifyStream(service) as stream:
        await stream.send_round(1, 0, TEXT, [5], common.ROW_FORM_LOGITS)
        answer = await stream.receive()
    rows = [np.frombuffer(row, "<f4") for row in answer.rows.logits]
    distributions = [distribution_of(row, SAMPLING) for row in rows]
    assert [
        distribution.race(11, 0, 4 + i)[0] for i, distribution in enumerate(distributions)
    ] == expected(TEXT, [5])


async def test_wide_answers_come_one_row_a_message() -> None:
    def wide() -> ToyModel:
        return toy(seed=1, vocabulary_size=40_000, order=8, context=64)

    async with (
        running(ModelProcess(TARGET, wide)) as service,
        VerifyStream(service, vocabulary_token_count=40_000) as stream,
    ):
        await stream.send_round(1, 0, TEXT, [5] * 40, common.ROW_FORM_LOGITS)
        for i in range(41):
            answer = await stream.receive()
            assert (answer.round, answer.rows.first_row) == (1, i)
            assert [len(row) for row in answer.rows.logits] == [160_000]


# --- room ---


async def test_a_full_queue_answers_busy() -> None:
    options = HostOptions(numerics=Numerics.EXACT, queue_limit=1)
    async with (
        running(ModelProcess(TARGET, model, options)) as service,
        VerifyStream(service) as one,
        VerifyStream(service, session_id=session(2)) as two,
        VerifyStream(service, session_id=session(3)) as three,
    ):
        gate = Gate(service.model)
        await one.send_round(1, 0, TEXT)
        await gate.reached()
        await two.send_round(1, 0, TEXT)
        await asyncio.sleep(0.1)
        answer = await three.verify(1, 0, TEXT)
        assert answer.WhichOneof("outcome") == "busy"
        assert answer.busy.retry_delay_duration.ToMilliseconds() > 0
        await gate.open()
        assert rows_of(await one.receive()) == expected(TEXT)
        assert rows_of(await two.receive()) == expected(TEXT)
        assert rows_of(await three.verify(2, 0, TEXT)) == expected(TEXT)


async def test_no_free_sequence_answers_busy_and_evicts_nobody() -> None:
    def narrow() -> ToyModel:
        return toy(seed=1, sequence_count=2)

    options = HostOptions(numerics=Numerics.EXACT, room_seconds=0.05)
    async with running(ModelProcess(TARGET, narrow, options)) as service:
        async with (
            VerifyStream(service) as one,
            VerifyStream(service, session_id=session(2)) as two,
        ):
            await one.verify(1, 0, TEXT)
            await two.verify(1, 0, TEXT)
            async with VerifyStream(service, session_id=session(3)) as three:
                answer = await three.verify(1, 0, TEXT)
                assert answer.WhichOneof("outcome") == "busy"
                await two.finish()
                assert rows_of(await three.verify(2, 0, TEXT)) == expected(TEXT)
            assert rows_of(await one.verify(2, 4, [5])) == expected([*TEXT, 5])
        await eventually(partial(all_idle, service))


@pytest.mark.parametrize("microseconds", [20, 50, 100, 200])
async def test_waiting_for_room_up_to_the_very_moment_harms_nobody(microseconds: int) -> None:
    """The wait may end between looking for room and looking at the clock."""

    def narrow() -> ToyModel:
        return toy(seed=1, sequence_count=1)

    options = HostOptions(
        numerics=Numerics.EXACT,
        room_seconds=microseconds / 1e6,
        stream_idle_seconds=600.0,  # the first session keeps its sequence, however slow this is
    )
    async with (
        running(ModelProcess(TARGET, narrow, options)) as service,
        VerifyStream(service) as one,
        VerifyStream(service, session_id=session(2)) as two,
    ):
        await one.verify(1, 0, TEXT)
        for number in range(1, 200):
            assert (await two.verify(number, 0, TEXT)).WhichOneof("outcome") == "busy"
        assert rows_of(await one.verify(2, 4, [5])) == expected([*TEXT, 5])


async def test_a_decode_without_room_is_split_and_fails_nobody() -> None:
    async with running(ModelProcess(TARGET, model)) as service:
        service.model.no_room_after = 4
        streams = [VerifyStream(service, session_id=session(i)) for i in range(4)]
        gate = Gate(service.model)
        for stream in streams:
            await stream.__aenter__()
            await stream.send_round(1, 0, TEXT, [5])
        await gate.reached()
        await gate.open()
        for stream in streams:
            assert rows_of(await stream.receive()) == expected(TEXT, [5])
            await stream.finish()


# --- health ---


async def test_health_is_serving_only_once_the_model_is_loaded() -> None:
    service, proceed = ModelProcess(TARGET, model), threading.Event()

    def load() -> ToyModel:
        assert proceed.wait(20)
        service.model = model()
        return service.model

    await service.listen(load)
    loading = asyncio.create_task(service.load())
    try:
        await asyncio.sleep(0.05)
        assert await service.health() == NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.stub.GetModel(common.GetModelRequest(), timeout=20)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await refused(service, opened()) is grpc.StatusCode.UNAVAILABLE
        proceed.set()
        await loading
        assert await service.health() == SERVING
        assert await works(service)
    finally:
        proceed.set()
        await service.close()


async def test_the_model_is_described(service: ModelProcess) -> None:
    described = await service.stub.GetModel(common.GetModelRequest(), timeout=20)
    assert described.context_token_count == CONTEXT
    assert described.session_count == 4
    assert described.vocabulary.token_count == 64
    assert described.rollback_capability == common.ROLLBACK_CAPABILITY_FULL
    assert described.numerics_profile == common.NUMERICS_PROFILE_EXACT
    assert described.round_draft_token_limit == 64
    texts: list[bytes] = []
    async for part in service.stub.ListVocabulary(common.ListVocabularyRequest(), timeout=20):
        assert part.first_token_id == len(texts)
        texts += part.token_texts
    assert texts == model().token_texts()


# rounds sent ahead


async def test_a_round_sent_ahead_that_assumed_right_is_answered(service: ModelProcess) -> None:
    [first, second] = expected(TEXT, expected(TEXT)[:1])
    async with VerifyStream(service) as stream:
        await stream.send_round(1, 0, TEXT, [first])
        await stream.send_round(2, 5, [second], [9], sent_ahead=True)
        assert rows_of(await stream.receive()) == [first, second]
        assert rows_of(await stream.receive()) == expected([*TEXT, first, second], [9])


async def test_a_round_sent_ahead_whose_premise_fell_is_not_decoded(service: ModelProcess) -> None:
    [first, second] = expected(TEXT, expected(TEXT)[:1])
    wrong = (second + 1) % 60 + 3
    async with VerifyStream(service) as stream:
        await stream.verify(1, 0, TEXT, [first])
        decodes = len(service.model.decodes)
        answer = await stream.verify(2, 5, [wrong], [9], sent_ahead=True)
        assert answer.WhichOneof("outcome") == "superseded"
        assert len(service.model.decodes) == decodes
        again = await stream.verify(3, 5, [wrong], [9])
        assert rows_of(again) == expected([*TEXT, first, wrong], [9])


async def test_survivals_that_do_not_fit_the_draft_are_refused(service: ModelProcess) -> None:
    bad = messages.VerifyRound(
        round=1,
        prefix=common.TokenSpan(token_ids=TEXT),
        draft={"token_ids": [5, 9], "survivals": b"\x80"},
        row_form=common.ROW_FORM_SAMPLED,
    )
    code = await refused(
        service, messages.VerifyRequest(open=opening()), messages.VerifyRequest(round=bad)
    )
    assert code is INVALID_ARGUMENT
