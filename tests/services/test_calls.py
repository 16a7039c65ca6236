"""Calls at targets that are stuck, busy, lost or others than before: embeddings, scores, beams."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

import grpc
import pytest

from orchestrator.resuming import Reported
from outrider.core.health import MOST_FAILURES
from outrider.errors import DecodeFailed, EngineBusy, ModelChanged
from outrider.messages import Origin
from outrider.rpc.statuses import read_error_info
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.v1 import target_service_pb2 as target_messages
from outrider.wire_requests import read_request
from outrider.wire_responses import write_event
from target_service.servicer import TargetServicer
from tests.support.pools import LONG, over, role_of, target
from tests.support.services import (
    TARGET,
    Completion,
    ModelProcess,
    OrchestratorProcess,
    Role,
    eventually,
    generate,
    request,
    written_alone,
)

LEAST = 4.0  # of a target that decodes nothing, where one does; a busy one decodes by then

Call = Callable[[OrchestratorProcess], Awaitable[object]]


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.peers.DESCRIBE_SECONDS", 0.1)
    monkeypatch.setattr("orchestrator.calls.LOOK_SECONDS", 0.1)


async def embed(orchestrator: OrchestratorProcess) -> list[float]:
    part = messages.PromptPart(text="the rain in spain")
    asked = messages.EmbedRequest(inputs=[messages.PromptParts(parts=[part])])
    answer = await orchestrator.stub.Embed(asked, timeout=LONG)
    return list(answer.embeddings[0].values)


async def score(orchestrator: OrchestratorProcess) -> list[float]:
    asked = request(token_limit=1)
    asked.prompt_logprobs = True
    asked.logprobs.top_count = 1
    responses = orchestrator.stub.Generate(asked, timeout=LONG)
    started = [each.started async for each in responses if each.HasField("started")]
    return [each.log_probability for each in started[0].prompt_logprobs]


def beams() -> messages.GenerateRequest:
    asked = request(token_limit=12)
    asked.beam_count = 3
    return asked


async def search(orchestrator: OrchestratorProcess) -> list[int]:
    return (await generate(orchestrator, beams(), timeout=LONG)).token_ids


async def count_cached(orchestrator: OrchestratorProcess) -> list[int]:
    asked = request(token_limit=12)
    completion = Completion()
    async for event in orchestrator.orchestrator.generate(
        read_request(asked), LONG, counts_cached=True
    ):
        completion.add(write_event(event))
    return completion.token_ids


KINDS = [embed, search]
"""A call with a single answer, and one that streams."""


@contextlib.contextmanager
def held_up_when_called(processes: Sequence[ModelProcess], count: int) -> Iterator[list[int]]:
    """Hold up the engines of the first `count` processes that are called; yields their indices."""
    way, held_up = threading.Event(), list[int]()

    def then(index: int, ask: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if index not in held_up and len(held_up) < count:
            held_up.append(index)
            processes[index].host._inbox.put(lambda: way.wait(2 * LONG))
        return ask(*arguments, **options)

    for index, each in enumerate(processes):
        for name in ("embed", "cached_count", "submit"):
            setattr(each.host, name, partial(then, index, getattr(each.host, name)))
    try:
        yield held_up
    finally:
        way.set()


@pytest.mark.fault(
    "hang",
    "The engine of a target is stuck while it embeds, scores a prompt, searches beams, or counts "
    "what it has cached of a prompt",
    before="the call waited for it until its deadline, of ten minutes",
    now="it is made at another target once this one has decoded nothing for `--target-timeout`, or "
    "several of its longest decodes; without another it ends with UNAVAILABLE and its name",
)
@pytest.mark.parametrize("call", KINDS)
async def test_a_call_is_made_at_another_target_when_its_own_is_stuck(call: Call) -> None:
    async with over(TARGET, TARGET, target_seconds=LEAST) as (orchestrator, targets):
        right = await call(orchestrator)
        with held_up_when_called(targets, 1) as held_up:
            assert await call(orchestrator) == right
            reasons = [each.health.reason for each in orchestrator.pool.targets]
        [stuck] = held_up
        assert "decoded nothing" in reasons[stuck] and not reasons[1 - stuck]


@pytest.mark.parametrize(("call", "count"), [(embed, 1), (search, 2)])
async def test_without_another_target_the_call_ends_and_names_a_stuck_one(
    call: Call, count: int
) -> None:
    async with over(*[TARGET] * count, target_seconds=1.0) as (orchestrator, targets):
        with held_up_when_called(targets, count):
            details = await failing(call(orchestrator))
        assert "is stuck" in details and any(each.address in details for each in targets)


async def failing(call: Awaitable[object], status: str = "UNAVAILABLE") -> str:
    """Return what a call says that ends with a status."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        assert error.code().name == status
        return error.details() or ""
    except Exception as error:
        assert getattr(error, "status", "") == status
        return str(error)
    raise AssertionError("it did not fail")


@pytest.mark.fault(
    "hang",
    "The deadline of a request comes while its prompt is scored, or its text embedded",
    before="it ended with UNAVAILABLE, as if the target were away",
    now="it ends with DEADLINE_EXCEEDED, as a text does that takes too long",
)
@pytest.mark.parametrize("call", KINDS)
async def test_a_call_whose_deadline_comes_says_so(call: Call) -> None:
    async with over(TARGET, request_seconds=3.0) as (orchestrator, targets):
        with held_up_when_called(targets, 1):
            assert "deadline" in await failing(call(orchestrator), "DEADLINE_EXCEEDED")


async def test_a_target_says_how_many_tokens_it_decodes_and_an_embedding_counts() -> None:
    async with over(TARGET) as (orchestrator, [only]):
        embedding, way = only.model.embed, threading.Event()

        def embed_slowly(token_ids: Sequence[int]) -> Any:
            assert way.wait(LONG)
            return embedding(token_ids)

        only.model.embed = embed_slowly
        before = await only.activity()
        parts = [messages.PromptPart(token_id=7)] * 200
        asked = messages.EmbedRequest(inputs=[messages.PromptParts(parts=parts)])
        call = orchestrator.stub.Embed(asked, timeout=LONG)
        [pooled] = orchestrator.pool.targets

        def is_known() -> bool:
            model = pooled.peer.model
            return model is not None and model.activity.decoding_token_count == 200

        await eventually(is_known, LONG)
        way.set()
        await call
        after = await only.activity()
        assert after.decoding_token_count == 0
        assert after.decode_count == before.decode_count + 1
        assert after.token_count == before.token_count + 200
        usual, model = pooled.token_seconds, pooled.peer.model
        assert model is not None
        model.activity.decoding_token_count = 5120
        longer = pooled.decode_seconds - usual
        assert longer == pytest.approx(5120 * pooled.read_seconds)


class Failing(TargetServicer):
    """Embeds, scores and searches only after so many failures, on all its targets together."""

    def __init__(self, *arguments: Any, errors: list[Exception], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._errors = errors

    async def Embed(self, request: Any, context: Any) -> Any:
        if self._errors:
            raise self._errors.pop()
        return await super().Embed(request, context)

    async def Score(self, request: Any, context: Any) -> AsyncIterator[Any]:
        if self._errors:
            raise self._errors.pop()
        async for each in super().Score(request, context):
            yield each


@pytest.mark.fault(
    "crash",
    "A target's queue is full, or one decode of it fails, when it is to embed or to score a prompt",
    before="the call ended with UNAVAILABLE at once",
    now="it is made again, at another target where there is one; what fails eight times ends it",
)
@pytest.mark.parametrize("call", [embed, score])
@pytest.mark.parametrize("count", [1, 2])
async def test_a_call_is_made_again_where_a_target_had_no_room_or_a_bad_moment(
    call: Call, count: int
) -> None:
    async with over(TARGET) as (orchestrator, _):
        right = await call(orchestrator)
    left = [DecodeFailed("a bad moment"), *[EngineBusy("the engine's queue is full", 0.1)] * 2]
    async with over(*[role_of(Failing, errors=left)] * count) as (orchestrator, _):
        assert await call(orchestrator) == right
    assert not left


async def test_what_fails_again_and_again_ends_the_call_with_its_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("outrider.backoff.LONGEST_PAUSE", 0.1)
    left: list[Exception] = [DecodeFailed("llama_decode returned -3")] * 100
    async with over(role_of(Failing, errors=left)) as (orchestrator, _):
        assert "llama_decode returned -3" in await failing(embed(orchestrator))
    assert len(left) == 100 - MOST_FAILURES


class Refusing(TargetServicer):
    """Is of a build that cannot embed."""

    async def Embed(self, request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "what is Embed?")


async def test_what_one_target_does_not_know_another_one_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("outrider.backoff.LONGEST_PAUSE", 0.1)
    async with over(role_of(Refusing), TARGET) as (orchestrator, _):
        assert await embed(orchestrator)
    async with over(role_of(Refusing), role_of(Refusing)) as (orchestrator, _):
        assert "what is Embed?" in await failing(embed(orchestrator))


async def test_where_a_target_became_another_model_another_one_is_called() -> None:
    def changed() -> Role:
        return role_of(Failing, errors=[ModelChanged("one", "another")] * 100)

    async with over(changed(), TARGET) as (orchestrator, _):
        assert await embed(orchestrator)
    async with over(changed()) as (orchestrator, _):
        details = await failing(embed(orchestrator), "FAILED_PRECONDITION")
        assert "begun with one" in details


class Finds(TargetServicer):
    """Finds the tokens that the next of its answers has; one that ends early is lost."""

    def __init__(self, *arguments: Any, answers: list[list[int]], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._answers = answers

    async def SearchBeams(self, request: Any, context: Any) -> AsyncIterator[Any]:
        found = self._answers.pop(0)
        for token_id in found:
            yield target_messages.SearchBeamsResponse(token_ids=[token_id])
        if len(found) < 12:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "killed")


WHOLE = list(range(20, 32))


async def test_a_search_that_is_repeated_continues_after_what_was_taken() -> None:
    answers = [WHOLE[:5], WHOLE[:3], WHOLE]
    async with over(role_of(Finds, answers=answers)) as (orchestrator, _):
        assert await search(orchestrator) == WHOLE


OTHER = [*WHOLE[:4], 50, *WHOLE[5:]]


@pytest.mark.fault(
    "restart",
    "A beam search is repeated after its target was lost, and finds another text there",
    before="the text began as the first search found it, and ended as the second one did",
    now="it is repeated up to seven times more; then it ends with UNAVAILABLE, which says so",
)
async def test_a_search_that_finds_another_text_elsewhere_is_repeated_and_then_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("outrider.backoff.LONGEST_PAUSE", 0.1)
    answers = [WHOLE[:5], OTHER, OTHER, WHOLE]
    async with over(role_of(Finds, answers=answers)) as (orchestrator, _):
        assert await search(orchestrator) == WHOLE
    answers = [WHOLE[:5], *[OTHER] * 10]
    async with over(role_of(Finds, answers=answers)) as (orchestrator, _):
        so_far = Completion()
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await generate(orchestrator, beams(), into=so_far, timeout=LONG)
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "answers it otherwise" in (failure.value.details() or "")
        info = read_error_info(failure.value.trailing_metadata())
        assert info is not None and info.reason == "PEER_UNAVAILABLE"
        assert so_far.token_ids == WHOLE[:5]
        assert len(answers) == 10 - MOST_FAILURES


async def continue_after(count: int, orchestrator: OrchestratorProcess) -> list[int]:
    """Continue a job's text after its first tokens, as another orchestrator left it."""
    before = Reported(WHOLE[:count], [Origin.PLAIN] * count)
    completion = Completion()
    asked = read_request(beams())
    async for event in orchestrator.orchestrator.generate(asked, LONG, reported={0: before}):
        completion.add(write_event(event))
    return completion.token_ids


@pytest.mark.fault(
    "restart",
    "A job's beam search, or text with mirostat, is written once more after a restart of the "
    "orchestrator, and begins otherwise",
    before="it ended with INVALID_ARGUMENT, as if its prompt were wrong",
    now="it is written up to three times more; then it ends with UNAVAILABLE, which says so",
)
async def test_a_text_that_begins_otherwise_is_written_again_and_then_says_so() -> None:
    answers = [OTHER, OTHER, WHOLE]
    async with over(role_of(Finds, answers=answers)) as (orchestrator, _):
        assert await continue_after(6, orchestrator) == WHOLE[6:]
    answers = [OTHER] * 10
    async with over(role_of(Finds, answers=answers)) as (orchestrator, _):
        details = await failing(continue_after(6, orchestrator))
        assert "writes its beginning otherwise" in details
        assert len(answers) == 6


async def test_the_text_after_counting_is_right() -> None:
    async with over(TARGET) as (orchestrator, _):
        ids = await count_cached(orchestrator)
        assert ids == written_alone(target(), request(token_limit=12))
