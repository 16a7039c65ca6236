"""Targets that send what makes no sense, or refuse a text: it goes on elsewhere, or there again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from outrider.core.generation import Generation
from outrider.core.health import MOST_FAILURES
from outrider.costs import CostTable, Point
from outrider.errors import DecodeFailed, InvalidRequest
from outrider.rpc.statuses import read_error_info
from outrider.v1 import common_pb2 as common
from outrider.v1 import target_service_pb2 as target_messages
from target_service.servicer import TargetServicer
from tests.support.pools import LONG, over, role_of, target
from tests.support.services import (
    CONTEXT,
    TARGET,
    Completion,
    Interruption,
    OrchestratorProcess,
    Role,
    eventually,
    generate,
    request,
    written_alone,
)

LENGTH = 60
ENDLESS = 1000
PACE = 0.001  # seconds of a decode

Message = target_messages.VerifyResponse
Fault = Callable[[Any, Message], Awaitable[None]]
"""What is done in place of writing a message."""


async def answer_without_rows(context: Any, message: Message) -> None:
    rows = target_messages.Rows()
    await context.write(Message(round=message.round, position=message.position, rows=rows))


async def skip_tokens(context: Any, message: Message) -> None:
    message.position += 3
    await context.write(message)


async def take_less_than_no_time(context: Any, message: Message) -> None:
    message.service_time.decode_us = -5
    await context.write(message)


async def forget(context: Any, message: Message) -> None:
    lost = Message(round=message.round)
    lost.missing.held_token_count = 0
    await context.write(lost)


async def refuse(context: Any, message: Message) -> None:
    raise InvalidRequest("open", "opens the session otherwise")


async def be_another_service(context: Any, message: Message) -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "what is Verify?")


async def lose_the_text(context: Any, message: Message) -> None:
    await context.abort(grpc.StatusCode.UNAVAILABLE, "something between closed the stream")


async def repeat_itself(context: Any, message: Message) -> None:
    message.round -= 1  # the newest round but one, or none
    while True:
        await context.write(message)


async def fail(context: Any, message: Message) -> None:
    raise DecodeFailed("llama_decode returned -3")


async def call_its_context_full(context: Any, message: Message) -> None:
    full = Message(round=message.round)
    full.context_full.context_token_count = CONTEXT
    await context.write(full)


async def let_rounds_fall(context: Any, message: Message) -> None:
    await context.write(Message(round=message.round, superseded=common.Superseded()))


async def say_nothing(context: Any, message: Message) -> None:
    await context.write(Message(round=message.round))


async def answer_other_rounds(context: Any, message: Message) -> None:
    message.round += 1000
    await context.write(message)


async def say_again_what_is_known(context: Any, message: Message) -> None:
    known = context.said or Message()
    known.round = message.round
    while True:
        await context.write(known)


async def contradict_itself(context: Any, message: Message) -> None:
    message.position -= 1
    while True:
        for token_id in (1, 2):
            rows = target_messages.Rows(token_ids=[token_id])
            other = Message(round=message.round, position=message.position, rows=rows)
            await context.write(other)


async def forget_older_rounds(context: Any, message: Message) -> None:
    lost = Message(round=message.round)
    lost.missing.held_token_count = 0
    while True:
        await context.write(lost)


async def blame_the_caller(context: Any, message: Message) -> None:
    raise InvalidRequest("sampling", "is not to its liking")


FAULTS = [
    call_its_context_full,
    let_rounds_fall,
    say_nothing,
    answer_other_rounds,
    repeat_itself,
    say_again_what_is_known,
    contradict_itself,
    forget_older_rounds,
    answer_without_rows,
    skip_tokens,
    take_less_than_no_time,
    forget,
    refuse,
    be_another_service,
    lose_the_text,
    fail,
]
LAST_WORDS = {
    forget: "loses what it is sent",
    skip_tokens: "cannot be",
    refuse: "refused the session: INVALID_ARGUMENT: open: opens the session otherwise",
    fail: "failed the session: INTERNAL: llama_decode returned -3",
}
"""Of a text whose targets all do one of each kind: lose, send what cannot be, refuse, fail."""


class _Honest:
    """A call's context, and the newest message that was written as it should be, if any."""

    def __init__(self, context: Any) -> None:
        self.write, self.abort = context.write, context.abort
        self.said: Message | None = None


class _Odd:
    """A call's context that has a fault from the message on that comes after `honest` ones."""

    def __init__(self, context: Any, fault: Fault, left: list[int], honest: int) -> None:
        self._context, self._fault = _Honest(context), fault
        self._left, self._honest = left, honest
        self._has_begun = False

    async def write(self, message: Message) -> None:
        self._honest -= 1
        if self._honest < 0 and not self._has_begun and self._left[0]:
            self._has_begun = True
            self._left[0] -= 1
        await (self._fault(self._context, message) if self._has_begun else self._pass(message))

    async def _pass(self, message: Message) -> None:
        self._context.said = message
        await self._context.write(message)


class Odd(TargetServicer):
    """Has a fault in as many streams as `left` says, of all targets that share it."""

    def __init__(
        self, *arguments: Any, fault: Fault, left: list[int], honest: int, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._fault, self._left, self._honest = fault, left, honest

    async def Verify(self, request_iterator: Any, context: Any) -> None:
        its = _Odd(context, self._fault, self._left, self._honest)
        await super().Verify(request_iterator, its)


def odd(fault: Fault, left: list[int], honest: int = 1) -> Role:
    return role_of(Odd, fault=fault, left=left, honest=honest)


def assert_right(completion: Completion) -> None:
    assert completion.token_ids == written_alone(target(), request(token_limit=LENGTH))


async def write_until(condition: Callable[[], bool], orchestrator: OrchestratorProcess) -> int:
    """Write texts until something has happened; return the faults of the last one.

    A whole text may come in one message where a machine is busy.
    """
    for _ in range(200):
        completion = await generate(orchestrator, request(token_limit=LENGTH), timeout=LONG)
        assert_right(completion)
        if condition():
            return completion.statistics.target_fault_count
    raise AssertionError("it did not happen")


async def ends_with_decode_failed(orchestrator: OrchestratorProcess) -> str:
    """Return the details of a text's end."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await generate(orchestrator, request(token_limit=LENGTH), timeout=LONG)
    info = read_error_info(failure.value.trailing_metadata())
    assert info is not None and info.reason == "DECODE_FAILED"
    return failure.value.details() or ""


@pytest.mark.fault(
    "restart",
    "A target sends rows that cannot be, says that it lost the text again and again, that its "
    "context is full when it is not, or drops each round, or refuses to continue it",
    before="the text ended with DECODE_FAILED, in the middle, or at its deadline, although other "
    "targets could continue it",
    now="it continues at another one, or at the same one: only eight such faults without a token "
    "between them end it",
)
@pytest.mark.parametrize(
    ("fault", "count"), [*((each, 2) for each in FAULTS), *((each, 1) for each in LAST_WORDS)]
)
async def test_a_text_goes_on_after_what_no_target_should_do(fault: Fault, count: int) -> None:
    left = [1]
    roles = [odd(fault, left, honest=count - 1)] * count
    async with over(*roles, pace=PACE) as (orchestrator, _):
        assert await write_until(lambda: not left[0], orchestrator) >= 1
        assert sum(bool(each.health.reason) for each in orchestrator.pool.targets) == 1


@pytest.mark.fault(
    "restart",
    "A target of several blames the caller for what is right: INVALID_ARGUMENT for its sampling",
    before="every text that came there ended with INVALID_ARGUMENT, and as it was never busy, many "
    "came there",
    now="the text continues at another target: what all refuse is refused",
)
async def test_a_text_is_refused_once_a_second_target_refuses_it() -> None:
    left = [1]
    async with over(*[odd(blame_the_caller, left, honest=0)] * 2, pace=PACE) as (orchestrator, _):
        await write_until(lambda: not left[0], orchestrator)
    for count in (1, 2):
        left = [ENDLESS]
        async with over(*[odd(blame_the_caller, left, honest=0)] * count) as (orchestrator, _):
            with pytest.raises(grpc.aio.AioRpcError, match="not to its liking") as failure:
                await generate(orchestrator, request(token_limit=LENGTH), timeout=LONG)
            assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert ENDLESS - left[0] == count


@pytest.mark.parametrize("fault", LAST_WORDS)
async def test_a_target_alone_that_always_does_it_ends_the_text_soon_and_says_why(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.backoff.LONGEST_PAUSE", 0.1)
    left = [ENDLESS]
    async with over(odd(fault, left, honest=0), pace=PACE) as (orchestrator, _):
        details = await ends_with_decode_failed(orchestrator)
    assert LAST_WORDS[fault] in details
    assert ENDLESS - left[0] == MOST_FAILURES


@pytest.mark.fault(
    "hang",
    "A target says what is known again and again, contradicts itself, or says that it has no room "
    "for years, thousands of times",
    before="every word put off when it was taken for stuck, and only answers of rounds that are "
    "over were counted, to 10,000: the text waited for its deadline, with a timer for each word; "
    "no text came to that target for those years",
    now="more words than the rounds asked for are nonsense, and none of them puts anything off; a "
    "target without room is believed once for each round, and for 10 s",
)
@pytest.mark.parametrize("honest", [0, 1])
async def test_words_that_say_nothing_new_are_no_sign_of_work(
    honest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.peers.DESCRIBE_SECONDS", 0.1)
    monkeypatch.setattr("orchestrator.driver.LOOK_SECONDS", 0.1)

    async def murmur(context: Any, message: Message) -> None:
        known = context.said or Message()
        known.round = max(1, message.round - (context.said is None))
        while True:
            await asyncio.sleep(0.1)
            await context.write(known)

    left = [1]
    roles = [odd(murmur, left, honest)] * 2
    async with over(*roles, pace=PACE, target_seconds=1.0) as (orchestrator, _):
        for each in orchestrator.pool.targets:  # what a toy measures is noise
            each.costs.table = CostTable([Point(1, 0.002), Point(8, 0.004)])
        assert await write_until(lambda: not left[0], orchestrator) >= 1


async def test_a_target_that_has_no_room_for_years_is_asked_again_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orchestrator.driver._MOST_BUSY_SECONDS", 0.05)
    asked_again = list[int]()
    target_busy = Generation.target_busy

    def note_busy(self: Generation, number: int) -> None:
        asked_again.append(number)
        target_busy(self, number)

    monkeypatch.setattr(Generation, "target_busy", note_busy)

    async def have_no_room(context: Any, message: Message) -> None:
        full = Message(round=message.round)
        full.busy.retry_delay_duration.FromSeconds(10**9)
        for _ in range(1000):
            await context.write(full)

    left = [1]
    async with over(*[odd(have_no_room, left, 0)] * 2, pace=PACE) as (orchestrator, _):
        await write_until(lambda: not left[0], orchestrator)
        await eventually(lambda: not any(each.is_full for each in orchestrator.pool.targets))
    assert len(asked_again) == len(set(asked_again))


@pytest.mark.fault(
    "restart",
    "A target answers with a message that is larger than any may be",
    before="it was taken for lost, and asked again until the text's deadline",
    now="it is nonsense, as what cannot be read",
)
@pytest.mark.parametrize("excess", [0, 1])
async def test_answers_as_large_as_a_message_may_be_and_larger(
    excess: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 1 << 16
    monkeypatch.setattr("orchestrator.peers.MESSAGE_BYTES", most)
    monkeypatch.setattr("outrider.backoff.LONGEST_PAUSE", 0.1)

    async def fill(context: Any, message: Message) -> None:
        large = Message(round=message.round, position=message.position + 3)
        large.rows.token_ids.extend([1] * (most - 100))
        large.rows.token_ids.extend([1] * (most + excess - large.ByteSize()))
        assert large.ByteSize() == most + excess
        await context.write(large)

    left = [1]
    async with over(*[odd(fill, left)] * 2, pace=PACE) as (orchestrator, _):
        assert await write_until(lambda: not left[0], orchestrator) >= 1
    left = [ENDLESS]
    async with over(odd(fill, left, honest=0), pace=PACE) as (orchestrator, _):
        details = await ends_with_decode_failed(orchestrator)
    assert ("larger than one may be" if excess else "cannot be") in details
    assert ENDLESS - left[0] == MOST_FAILURES


async def test_every_target_is_tried_before_the_text_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.backoff.LONGEST_PAUSE", 0.1)
    left = [[ENDLESS] for _ in range(6)]
    async with over(*[odd(refuse, its, honest=0) for its in left], pace=PACE) as (orchestrator, _):
        await ends_with_decode_failed(orchestrator)
    assert all(its[0] < ENDLESS for its in left)


async def test_a_text_that_grows_between_its_targets_faults_goes_on_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("outrider.backoff.LONGEST_PAUSE", 0.1)
    left = [ENDLESS]
    async with over(odd(skip_tokens, left, honest=1), pace=PACE) as (orchestrator, _):
        await write_until(lambda: ENDLESS - left[0] > 8, orchestrator)


async def test_another_target_that_is_about_to_come_back_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orchestrator.fail_over.MOST_FAILURES", ENDLESS)
    monkeypatch.setattr("outrider.backoff.LONGEST_PAUSE", 0.1)
    left = [ENDLESS]
    async with over(odd(refuse, left, honest=0), TARGET, pace=PACE) as (orchestrator, [_, good]):
        await good.kill()
        await eventually(lambda: not orchestrator.pool.targets[1].peer.ready, LONG)
        asked = request(token_limit=LENGTH)
        writing = asyncio.create_task(generate(orchestrator, asked, timeout=LONG))
        await eventually(lambda: ENDLESS - left[0] > 6, LONG)
        await good.start()
        assert_right(await writing)


@pytest.mark.parametrize("fault", [skip_tokens, forget, fail])
async def test_the_other_target_may_be_killed_meanwhile(fault: Fault) -> None:
    left = [3]
    async with over(*[odd(fault, left)] * 2, pace=PACE) as (orchestrator, targets):

        async def restart() -> None:
            counts = [each.generation_count for each in orchestrator.pool.targets]
            if 1 in counts:
                await targets[counts.index(1)].restart()

        breaks = [Interruption(20, restart), Interruption(40, restart)]
        asked = request(token_limit=LENGTH)
        assert_right(await generate(orchestrator, asked, breaks, timeout=LONG))
