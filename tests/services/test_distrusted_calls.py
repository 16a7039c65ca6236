"""Targets that answer a call with what cannot be, or not at all: another one is asked."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest

from orchestrator import fail_over
from outrider.core.health import overdue
from outrider.costs import CostTable, Point
from outrider.errors import InvalidRequest
from outrider.rpc.statuses import read_error_info
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.v1 import target_service_pb2 as target_messages
from outrider.wire_requests import read_request
from outrider.wire_responses import write_event
from target_service.servicer import TargetServicer
from tests.support.pools import LONG, over, role_of, target
from tests.support.services import (
    TARGET,
    OrchestratorProcess,
    Role,
    eventually,
    generate,
    request,
    written_alone,
)

ENDLESS = 1000
LENGTH = 12
GRAMMAR = 'root ::= "a"'

Call = Callable[[OrchestratorProcess], Awaitable[object]]


async def write(orchestrator: OrchestratorProcess) -> object:
    return (await generate(orchestrator, request(token_limit=LENGTH), timeout=LONG)).token_ids


async def embed(orchestrator: OrchestratorProcess) -> object:
    part = messages.PromptPart(text="the rain in spain")
    asked = messages.EmbedRequest(inputs=[messages.PromptParts(parts=[part])])
    answer = await orchestrator.stub.Embed(asked, timeout=LONG)
    return list(answer.embeddings[0].values)


async def started(
    orchestrator: OrchestratorProcess, asked: messages.GenerateRequest, **options: Any
) -> messages.GenerationStarted:
    async for event in orchestrator.orchestrator.generate(read_request(asked), LONG, **options):
        return write_event(event).started
    raise AssertionError("nothing came")


async def score(orchestrator: OrchestratorProcess) -> object:
    asked = request(prompt_tokens=[1 + i % 60 for i in range(100)], token_limit=1)
    asked.prompt_logprobs = True
    asked.logprobs.top_count = 1
    logprobs = (await started(orchestrator, asked)).prompt_logprobs
    return [round(each.log_probability, 6) for each in logprobs]


async def search(orchestrator: OrchestratorProcess) -> object:
    asked = request(token_limit=LENGTH)
    asked.beam_count = 3
    return (await generate(orchestrator, asked, timeout=LONG)).token_ids


async def count_cached(orchestrator: OrchestratorProcess) -> object:
    begun = await started(orchestrator, request(token_limit=1), counts_cached=True)
    assert 0 <= begun.cached_token_count < len(begun.prompt_token_ids)
    return None


async def keep_to_a_grammar(orchestrator: OrchestratorProcess) -> object:
    asked = request(token_limit=1)
    asked.sampling.grammar = GRAMMAR
    return await started(orchestrator, asked) is not None


class Odd(TargetServicer):
    """Answers one method with something else, as often as `left` says, with all that share it."""

    def __init__(
        self, *arguments: Any, method: str, answers: list[Any], left: list[int], **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._method, self._answers, self._left = method, answers, left

    def _is_odd(self, method: str) -> bool:
        if method != self._method or not self._left[0]:
            return False
        self._left[0] -= 1
        return True

    async def _answer(self, method: str, honest: Awaitable[Any]) -> Any:
        if not self._is_odd(method):
            return await honest
        honest.close()  # type: ignore[attr-defined]
        return self._answers[0]

    async def _stream(self, method: str, honest: AsyncIterator[Any]) -> AsyncIterator[Any]:
        if self._is_odd(method):
            for each in self._answers:
                yield each
            return
        async for each in honest:
            yield each

    async def Tokenize(self, request: Any, context: Any) -> Any:
        return await self._answer("Tokenize", super().Tokenize(request, context))

    async def CompileGrammar(self, request: Any, context: Any) -> Any:
        if self._is_odd("CompileGrammar"):
            return self._answers[0]
        return target_messages.CompileGrammarResponse(grammar=request.grammar)  # a toy has none

    async def CountCached(self, request: Any, context: Any) -> Any:
        return await self._answer("CountCached", super().CountCached(request, context))

    async def Embed(self, request: Any, context: Any) -> Any:
        return await self._answer("Embed", super().Embed(request, context))

    async def Score(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for each in self._stream("Score", super().Score(request, context)):
            yield each

    async def SearchBeams(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for each in self._stream("SearchBeams", super().SearchBeams(request, context)):
            yield each


def odd(method: str, answers: list[Any], left: list[int]) -> Role:
    return role_of(Odd, method=method, answers=answers, left=left)


def tokens(*ids: int) -> target_messages.TokenizeResponse:
    return target_messages.TokenizeResponse(texts=[target_messages.TokenizedText(token_ids=ids)])


def scores(*token_ids: int, value: float = -1.0) -> target_messages.ScoreResponse:
    rows = [common.Logprobs(token_ids=[each], log_probabilities=[value]) for each in token_ids]
    return target_messages.ScoreResponse(logprobs=rows)


def found(*token_ids: int, cached: int = 0) -> target_messages.SearchBeamsResponse:
    return target_messages.SearchBeamsResponse(token_ids=token_ids, cached_token_count=cached)


NONSENSE: list[tuple[Call, str, list[Any]]] = [
    (write, "Tokenize", [target_messages.TokenizeResponse()]),
    (write, "Tokenize", [tokens(64)]),
    (write, "Tokenize", [tokens()]),
    (embed, "Tokenize", [tokens(-1)]),
    (keep_to_a_grammar, "CompileGrammar", [target_messages.CompileGrammarResponse()]),
    (embed, "Embed", [target_messages.EmbedTokensResponse(values=[math.nan, 1.0])]),
    (embed, "Embed", [target_messages.EmbedTokensResponse()]),
    (score, "Score", [scores(2)]),
    (score, "Score", [scores(2, 3, 4), scores(64)]),
    (score, "Score", [scores(2, 3, value=math.nan)]),
    (score, "Score", []),
    (search, "SearchBeams", [found(64)]),
    (search, "SearchBeams", [found(1, cached=-1)]),
    (search, "SearchBeams", []),
    (count_cached, "CountCached", [target_messages.CountCachedResponse(cached_token_count=999)]),
    (count_cached, "CountCached", [target_messages.CountCachedResponse(cached_token_count=-1)]),
]

ONE_OF_EACH_KIND = [NONSENSE[0], NONSENSE[7], NONSENSE[12]]
"""A single answer, a stream that is taken as a whole, and one that is taken part by part."""


@pytest.mark.fault(
    "restart",
    "A target answers a call that is no round with what cannot be: tokens, a grammar, an "
    "embedding, log probabilities, beams, a count",
    before="the text ended with DECODE_FAILED, although another target had the same weights; a "
    "count was passed on, and an empty tokenization blamed on the caller",
    now="another target is asked at once, or the same one up to seven times more, and the odd one "
    "is ejected for a while",
)
@pytest.mark.parametrize(
    ("call", "method", "answers", "count"),
    [*((*each, 2) for each in NONSENSE), *((*each, 1) for each in ONE_OF_EACH_KIND)],
)
async def test_after_nonsense_another_target_is_asked(
    call: Call, method: str, answers: list[Any], count: int
) -> None:
    async with over(odd("none", [], [0])) as (orchestrator, _):
        right = await call(orchestrator)
    left = [1]
    async with over(*[odd(method, answers, left)] * count) as (orchestrator, _):
        assert await call(orchestrator) == right
        assert left == [0]
        reasons = [each.health.reason for each in orchestrator.pool.targets]
    assert sum("cannot be read" in reason for reason in reasons) == 1


@pytest.mark.parametrize("count", [1, 2])
async def test_an_answer_that_is_too_large_is_nonsense(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.peers.MESSAGE_BYTES", 1 << 16)
    left = [1]
    large = target_messages.EmbedTokensResponse(values=[1.0] * (1 << 16))
    async with over(*[odd("Embed", [large], left)] * count) as (orchestrator, _):
        assert await embed(orchestrator)
        reasons = [each.health.reason for each in orchestrator.pool.targets]
    assert sum("larger than a message may be" in reason for reason in reasons) == 1


class Hasty(Odd):
    """Ends a beam search after the first part that has anything in it."""

    async def SearchBeams(self, request: Any, context: Any) -> AsyncIterator[Any]:
        is_hasty = self._is_odd("SearchBeams")
        async for each in TargetServicer.SearchBeams(self, request, context):
            yield each
            if is_hasty and each.token_ids:
                return


@pytest.mark.fault(
    "text",
    "A target ends a beam search before its limit, an end of text or a full context",
    before="the text ended there, with CONTEXT_FULL, as if it had no room",
    now="another target is asked, or the same one again: its beams have to begin as the text does",
)
@pytest.mark.parametrize("count", [1, 2])
async def test_a_beam_search_that_ends_early_is_made_again(count: int) -> None:
    async with over(odd("none", [], [0])) as (orchestrator, _):
        right = await search(orchestrator)
    assert isinstance(right, list) and len(right) == LENGTH
    left = [1]
    hasty = role_of(Hasty, method="SearchBeams", answers=[], left=left)
    async with over(*[hasty] * count) as (orchestrator, _):
        assert await search(orchestrator) == right
    assert left == [0]


@pytest.mark.parametrize(("call", "method", "answers"), ONE_OF_EACH_KIND)
async def test_where_every_target_answers_nonsense_the_call_says_so(
    call: Call, method: str, answers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.backoff.LONGEST_PAUSE", 0.1)
    left = [[ENDLESS] for _ in range(2)]
    async with over(*[odd(method, answers, its) for its in left]) as (orchestrator, _):
        with pytest.raises(Exception, match="cannot be read") as caught:
            await call(orchestrator)
        if isinstance(caught.value, grpc.aio.AioRpcError):
            info = read_error_info(caught.value.trailing_metadata())
            assert info is not None and info.reason == "DECODE_FAILED"
        else:
            assert getattr(caught.value, "reason", "") == "DECODE_FAILED"
    assert all(its[0] < ENDLESS for its in left)


class Refusing(TargetServicer):
    """Refuses to tokenize, as if its caller had asked for what cannot be."""

    async def Tokenize(self, request: Any, context: Any) -> Any:
        raise InvalidRequest("texts", "are not to its liking")


@pytest.mark.fault(
    "restart",
    "A target refuses a call that is right with INVALID_ARGUMENT, or says that its deadline passed",
    before="the caller was blamed, or got to know that its time was over, although another target "
    "had the same weights",
    now="other targets are asked first: what all refuse is the caller's fault, and time is over "
    "by the orchestrator's own clock",
)
async def test_a_refusal_is_believed_once_another_target_says_the_same() -> None:
    asked = request(token_limit=LENGTH)
    async with over(role_of(Refusing), TARGET) as (orchestrator, _):
        for _ in range(3):
            assert await write(orchestrator) == written_alone(target(), asked)
    for count in (1, 2):
        async with over(*[role_of(Refusing)] * count) as (orchestrator, _):
            with pytest.raises(grpc.aio.AioRpcError, match="not to its liking") as caught:
                await write(orchestrator)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


class OutOfTime(TargetServicer):
    """Says that it had too little time, at once."""

    async def Tokenize(self, request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "too late")


async def test_a_deadline_is_over_by_the_orchestrators_own_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = request(token_limit=LENGTH)
    async with over(role_of(OutOfTime), TARGET) as (orchestrator, _):
        for _ in range(3):
            assert await write(orchestrator) == written_alone(target(), asked)
    monkeypatch.setattr("outrider.backoff.LONGEST_PAUSE", 0.1)
    async with over(role_of(OutOfTime)) as (orchestrator, _):
        with pytest.raises(grpc.aio.AioRpcError, match="too late") as caught:
            await write(orchestrator)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


class Silent(TargetServicer):
    """Never answers one method, with any engine and link; counts how often it was asked."""

    def __init__(self, *arguments: Any, method: str, calls: list[str], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._method, self._calls = method, calls

    async def _answer(self, method: str, honest: Awaitable[Any]) -> Any:
        if method == self._method:
            honest.close()  # type: ignore[attr-defined]
            self._calls.append(method)
            await asyncio.Event().wait()
        return await honest

    async def Tokenize(self, request: Any, context: Any) -> Any:
        return await self._answer("Tokenize", super().Tokenize(request, context))

    async def Embed(self, request: Any, context: Any) -> Any:
        return await self._answer("Embed", super().Embed(request, context))


def silent(method: str, calls: list[str]) -> Role:
    return role_of(Silent, method=method, calls=calls)


@pytest.mark.fault(
    "hang",
    "A target never answers a call, while its engine works for others and its link is alive",
    before="the call waited for it until its deadline, of ten minutes, though another target had "
    "the same weights",
    now="after twice `--target-timeout`, or several times what is expected if that is more, "
    "another target is asked, or the same one again; the late one works, and is not ejected",
)
@pytest.mark.parametrize(("call", "method"), [(write, "Tokenize"), (embed, "Embed")])
async def test_a_call_that_is_never_answered_is_made_at_another_target(
    call: Call, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.calls.LOOK_SECONDS", 0.1)
    # Its engine works.
    monkeypatch.setattr(
        fail_over,
        "overdue",
        lambda waited, _, timeout, **rest: overdue(waited, 0.0, timeout, **rest),
    )
    calls = list[str]()
    async with over(silent(method, calls), TARGET, target_seconds=0.2) as (orchestrator, _):
        measure_alike(orchestrator)
        while not calls:
            assert await call(orchestrator)
        assert not any(each.health.reason for each in orchestrator.pool.targets)
    async with over(*[silent(method, calls)] * 2, target_seconds=0.2) as (orchestrator, _):
        measure_alike(orchestrator)
        waiting = asyncio.create_task(call(orchestrator))
        before = len(calls)
        await eventually(lambda: len(calls) >= before + 3, LONG)
        waiting.cancel()


def measure_alike(orchestrator: OrchestratorProcess) -> None:
    for each in orchestrator.pool.targets:  # what a toy measures is noise
        each.costs.table = CostTable([Point(1, 1e-4), Point(8, 2e-4)])
