"""A target that writes by itself, message by message."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from outrider.messages import Answer, Form, Round, Rows, Span
from outrider.v1 import common_pb2 as common
from target_service import servicer
from target_service.servicer import gather, next_answer
from tests.support.services import (
    TARGET,
    Gate,
    ModelProcess,
    eventually,
    generate,
    request,
    running,
    three_services,
    toy,
)
from tests.support.streams import VerifyStream, opening, sampled, session
from tests.support.toy import ToyModel

TEXT = [0, 12, 40, 7]


def model() -> ToyModel:
    return toy(seed=1)


@pytest_asyncio.fixture(loop_scope="session")
async def service() -> AsyncIterator[ModelProcess]:
    async with running(ModelProcess(TARGET, model)) as process:
        yield process


def written(count: int) -> list[int]:
    """Return the target's own text of so many tokens."""
    text = list(TEXT)
    while len(text) < len(TEXT) + count:
        text += sampled(model(), text, 1)
    return text


async def read_until(stream: VerifyStream, length: int) -> tuple[list[int], list[Any]]:
    """Return the text, and the answers, once it has so many tokens; every answer continues it."""
    text, answers = list(TEXT), []
    while len(text) < length:
        answer = await stream.receive()
        assert answer.WhichOneof("outcome") == "rows", answer
        assert answer.position == len(text)
        drafted, ids = answer.drafted_token_count, list(answer.rows.token_ids)
        # In these tests a draft is right or wrong as a whole.
        text += ids if drafted == 0 or ids == written(100)[len(text) :][: len(ids)] else ids[:1]
        answers.append(answer)
    return text, answers


async def nothing_comes(stream: VerifyStream) -> bool:
    """Return whether the target writes no more; a round shows that, which would come after it."""
    try:
        await asyncio.wait_for(stream.receive(), 0.2)
    except TimeoutError:
        return True
    return False


def test_an_answer_to_a_rounds_draft_comes_by_itself() -> None:
    """What follows a rejected row could not be told from the rows after it."""
    drafted = Answer(1, 4, 2, Rows(sampled=[5, 6, 7]))
    plain = [Answer(1, 5 + i, 0, Rows(sampled=[8 + i])) for i in range(2)]
    waiting = deque([drafted, *plain])
    assert next_answer(waiting) == drafted
    assert next_answer(waiting).rows.sampled == [8, 9] and not waiting


async def test_what_is_gathered_does_not_wait_once_the_text_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servicer, "_GATHER_SECONDS", 60.0)
    over = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.01, over.set_result, None)
    writing = Round(1, Span(0, TEXT), (), Form.SAMPLED, continue_count=4, gathers=True)
    async with asyncio.timeout(30):
        await gather(writing, over, 1)


async def test_it_writes_as_far_as_it_may(service: ModelProcess) -> None:
    async with VerifyStream(service) as stream:
        await stream.send_round(1, 0, TEXT, continuation={"token_count": 12})
        text, _ = await read_until(stream, len(TEXT) + 12)
        assert text == written(12)
        assert await nothing_comes(stream)


@pytest.mark.fault(
    "crash",
    "What lies between repeats a round that lets the target continue",
    before="the first of the two was answered `superseded`, or the second one continued after it: "
    "tokens were missing, and the text ended with an internal error",
    now="the round once more says nothing new, before its answers as after them",
)
async def test_the_newest_round_once_more_changes_nothing(service: ModelProcess) -> None:
    right = written(18)
    async with VerifyStream(service) as stream, VerifyStream(service, session_id=session(2)) as two:
        gate = Gate(service.model)
        await two.send_round(1, 0, TEXT)
        await gate.reached()
        for _ in range(3):  # queued, all of them
            await stream.send_round(1, 0, TEXT, continuation={"token_count": 6})
        await gate.open()
        text, _ = await read_until(stream, 10)
        assert text == right[:10]
        for _ in range(2):
            await stream.send_round(1, 0, TEXT, continuation={"token_count": 6})
        await stream.send_round(2, 9, right[9:10], continuation={"token_count": 8})
        answer = await stream.receive()
        assert (answer.round, answer.position) == (2, 10)
        assert answer.rows.token_ids[0] == right[10]


async def test_without_leave_it_writes_nothing_by_itself(service: ModelProcess) -> None:
    async with VerifyStream(service) as stream:
        answer = await stream.verify(1, 0, TEXT)
        assert answer.position == len(TEXT) and len(answer.rows.token_ids) == 1
        assert await nothing_comes(stream)


async def test_it_stops_at_the_token_limit_and_at_an_end_token(service: ModelProcess) -> None:
    text = written(30)
    end = next(i for i in range(8, 30) if text[i] not in text[4:i])
    async with VerifyStream(service, token_limit=5) as stream:
        await stream.send_round(1, 0, TEXT, continuation={"token_count": 50})
        assert (await read_until(stream, len(TEXT) + 5))[0] == written(5)
        assert await nothing_comes(stream)
    async with VerifyStream(service, attempt=2, end_token_ids=[text[end]]) as stream:
        await stream.send_round(1, 0, TEXT, continuation={"token_count": 50})
        assert (await read_until(stream, end + 1))[0] == text[: end + 1]
        assert await nothing_comes(stream)


async def test_a_draft_is_verified_a_part_at_a_time(service: ModelProcess) -> None:
    draft = written(9)[len(TEXT) :]
    async with VerifyStream(service) as stream:
        await stream.send_round(
            1, 0, TEXT, draft, draft={"decode_token_limit": 3}, continuation={"token_count": 12}
        )
        text, answers = await read_until(stream, len(TEXT) + 12)
        assert text[: len(TEXT) + 12] == written(12)
        assert [each.drafted_token_count for each in answers][:3] == [3, 3, 1]


async def test_a_wrong_draft_is_left_at_its_first_wrong_token(service: ModelProcess) -> None:
    right = written(12)[len(TEXT) :]
    wrong = [*right[:3], (right[3] + 1) % 64, *right[4:8]]
    async with VerifyStream(service) as stream:
        await stream.send_round(
            1, 0, TEXT, wrong, draft={"decode_token_limit": 2}, continuation={"token_count": 12}
        )
        text, answers = list(TEXT), []
        while len(text) < len(TEXT) + 12:
            answer = await stream.receive()
            assert answer.position == len(text)
            ids, drafted = list(answer.rows.token_ids), answer.drafted_token_count
            draft = wrong[len(text) - len(TEXT) :][:drafted]
            agreed = next((i for i in range(drafted) if ids[i] != draft[i]), drafted)
            text += ids[: agreed + 1] if drafted else ids
            answers.append(drafted)
        assert text[: len(TEXT) + 12] == written(12)
        assert answers[:2] == [2, 2] and not any(answers[2:])


async def test_a_round_sent_before_the_news_is_used_as_far_as_it_extends_the_text(
    service: ModelProcess,
) -> None:
    right = written(20)
    async with VerifyStream(service) as stream:
        await stream.send_round(1, 0, TEXT, continuation={"token_count": 6})
        text, _ = await read_until(stream, 10)
        # As if only two of the six tokens were known to its sender.
        await stream.send_round(2, 5, right[5:6], right[6:14], continuation={"token_count": 12})
        answer = await stream.receive()
        assert (answer.round, answer.position) == (2, 10)
        assert answer.drafted_token_count == 4
        assert list(answer.rows.token_ids) == right[10:15]
        assert text == right[:10]


async def test_a_late_draft_that_the_text_contradicts_is_not_verified(
    service: ModelProcess,
) -> None:
    right = written(20)
    async with VerifyStream(service) as stream:
        await stream.send_round(1, 0, TEXT, continuation={"token_count": 6})
        await read_until(stream, 10)
        wrong = [(right[6] + 1) % 64, *right[7:14]]
        await stream.send_round(2, 5, right[5:6], wrong, continuation={"token_count": 12})
        answer = await stream.receive()
        assert (answer.position, answer.drafted_token_count) == (10, 0)


async def test_a_span_that_says_otherwise_is_the_truth(service: ModelProcess) -> None:
    async with VerifyStream(service) as stream:
        await stream.send_round(1, 0, TEXT, continuation={"token_count": 6})
        text, _ = await read_until(stream, 10)
        other = [(text[6] + 1) % 64]
        answer = await stream.verify(2, 6, other)
        assert answer.position == 7
        assert list(answer.rows.token_ids) == sampled(model(), [*text[:6], *other], 1)


async def test_a_session_that_is_closed_while_it_writes_says_so(service: ModelProcess) -> None:
    async with VerifyStream(service) as stream:
        await stream.send_round(1, 0, TEXT, continuation={"token_count": 90})
        await stream.receive()
        closing = common.CloseSessionRequest(session_id=opening().session_id)
        await service.stub.CloseSession(closing)
        while (answer := await stream.receive()).WhichOneof("outcome") == "rows":
            if answer.position + len(answer.rows.token_ids) >= len(TEXT) + 90:
                return  # it was quicker
        assert answer.WhichOneof("outcome") == "superseded"
        await stream.send_round(2, 60, [5])
        assert (await stream.receive()).WhichOneof("outcome") == "missing"


async def test_an_orchestrator_knows_how_much_of_its_time_the_target_decodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orchestrator.peers.DESCRIBE_SECONDS", 0.02)
    async with three_services(model, model) as trio:
        await generate(trio.orchestrator, request(token_limit=60, n_max=0))

        async def is_known() -> bool:
            status = await trio.orchestrator.status()
            activity = status.peers[0].model.activity
            spent = activity.decode_duration.ToMicroseconds()
            return 0 < spent <= activity.open_duration.ToMicroseconds()

        await eventually(is_known)


async def test_what_it_may_write_is_bounded(service: ModelProcess) -> None:
    for count in (-1, 5000):
        async with VerifyStream(service, attempt=3) as stream:
            await stream.send_round(1, 0, TEXT, continuation={"token_count": count})
            assert await stream.end() is grpc.StatusCode.INVALID_ARGUMENT
