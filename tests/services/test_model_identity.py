"""One text is by one model: whatever comes back in a service's place, nothing is mixed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import grpc
import httpx
import pytest

from orchestrator.calls import Calls
from outrider.client import CallFailed, OutriderClient, Request
from outrider.rpc.statuses import read_error_info
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_service_pb2, target_service_pb2
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.support.gateway import serving
from tests.support.services import (
    DRAFT,
    PATIENCE,
    TARGET,
    Completion,
    Interruption,
    ModelProcess,
    OrchestratorProcess,
    Trio,
    eventually,
    generate,
    request,
    running,
    three_services,
    toy,
    written_alone,
)
from tests.support.toy import NEVER, ToyModel

LENGTH = 60
PACE = 0.003  # of the target's decodes: leaves time to swap its model


def first() -> ToyModel:
    return toy(seed=1, eos_bias=NEVER)


def second() -> ToyModel:
    return toy(seed=9, eos_bias=NEVER)


def with_two_texts_exchanged() -> ToyModel:
    texts = first().token_texts()
    return toy(seed=1, eos_bias=NEVER, changed_texts={20: texts[21], 21: texts[20]})


def drafter() -> ToyModel:
    return toy(seed=2, like=1, agreement=0.9, eos_bias=NEVER)


def services() -> AbstractAsyncContextManager[Trio]:
    return three_services(first, drafter, pace=PACE)


def swapped_at(trio: Trio, count: int, make: Callable[[], ToyModel]) -> list[Interruption]:
    return [Interruption(count, lambda: trio.target.restart(make))]


def asked(**options: Any) -> messages.GenerateRequest:
    return request(token_limit=LENGTH, **options)


def searching() -> messages.GenerateRequest:
    whole = asked()
    whole.beam_count = 2
    return whole


def shifting() -> messages.GenerateRequest:
    whole = request(token_limit=600, temperature=0.0)
    whole.overflow.shift = True
    return whole


def reason_of(error: grpc.aio.AioRpcError) -> str:
    info = read_error_info(error.trailing_metadata())
    return info.reason if info is not None else ""


async def test_a_target_that_comes_back_with_the_same_model_goes_on() -> None:
    async with services() as trio:
        completion = await generate(trio.orchestrator, asked(), swapped_at(trio, 20, first))
    assert completion.token_ids == written_alone(first(), asked())


@pytest.mark.fault(
    "restart",
    "A target came back as another model while it wrote",
    before="The text continued under the new weights and ended normally.",
    now="The generation ends with MODEL_CHANGED, which names both models.",
)
@pytest.mark.parametrize(
    "request_",
    [
        asked(temperature=0.0, n_max=0),
        asked(temperature=0.8, n_max=4),
        asked(temperature=0.8, acceptance=common.ACCEPTANCE_RULE_REJECTION),
        searching(),
        shifting(),
    ],
    ids=["greedy", "shared noise", "rejection", "beams", "a context that shifts"],
)
async def test_a_target_that_comes_back_as_another_model_ends_the_text(
    request_: messages.GenerateRequest,
) -> None:
    completion = Completion()
    async with services() as trio:
        with pytest.raises(grpc.aio.AioRpcError, match=r"with toy-1 \(\w{8}\).* toy-9") as caught:
            swap = swapped_at(trio, 8, second)
            await generate(trio.orchestrator, request_, swap, into=completion)
    assert reason_of(caught.value) == "MODEL_CHANGED"
    assert completion.finished is None


@pytest.mark.fault(
    "restart",
    "A target came back with two tokens exchanged",
    before="The new model's ids were read with the vocabulary of the old one.",
    now="The generation ends with MODEL_CHANGED.",
)
async def test_ids_are_never_read_with_the_vocabulary_of_another_model() -> None:
    async with services() as trio:
        with pytest.raises(grpc.aio.AioRpcError, match="the model changed"):
            swap = swapped_at(trio, 20, with_two_texts_exchanged)
            await generate(trio.orchestrator, asked(temperature=0.0), swap)
        completion = await generate(trio.orchestrator, asked(temperature=0.0))
    texts = with_two_texts_exchanged().token_texts()
    assert {20, 21} & set(completion.token_ids), "the prompt leads past the exchanged tokens"
    written = b"".join(texts[i] for i in completion.token_ids)
    assert completion.text == written.decode("utf-8", "replace")


async def test_a_job_ends_with_the_typed_error() -> None:
    async with services() as trio:
        stub = trio.orchestrator.stub
        submission = messages.SubmitGenerationRequest(request=asked())
        job = await stub.SubmitGeneration(submission, timeout=PATIENCE)
        await trio.target.restart(second)
        poll = messages.PollGenerationRequest(job_id=job.job_id)

        async def is_over() -> bool:
            return bool((await stub.PollGeneration(poll, timeout=PATIENCE)).finished)

        await eventually(is_over)
        polled = await stub.PollGeneration(poll, timeout=PATIENCE)
    assert polled.error.reason == "MODEL_CHANGED"
    assert polled.error.metadata["begunModel"].startswith("toy-1 (")
    assert polled.error.metadata["hostedModel"].startswith("toy-9 (")


async def test_the_python_client_names_the_error() -> None:
    async with services() as trio, OutriderClient(trio.orchestrator.address) as client:
        count = 0
        with pytest.raises(CallFailed, match="toy-9") as caught:
            async for _ in client.generate(Request("the rain")):
                count += 1
                if count == 3:
                    await trio.target.restart(second)
    assert caught.value.reason == "MODEL_CHANGED"


@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
async def test_over_http_the_error_has_a_type_of_its_own(path: str) -> None:
    body = {"prompt": "the rain", "max_tokens": LENGTH, "n_predict": LENGTH}
    async with (
        services() as trio,
        serving(trio.orchestrator.orchestrator) as url,
        httpx.AsyncClient(timeout=PATIENCE) as client,
    ):
        whole = asyncio.create_task(client.post(url + path, json=body))
        async with client.stream("POST", url + path, json=body | {"stream": True}) as streamed:
            lines = streamed.aiter_lines()
            await anext(lines)
            await trio.target.restart(second)
            events = [json.loads(line[6:]) async for line in lines if line.startswith("data: {")]
        answer = await whole
    error = answer.json()["error"]
    assert answer.status_code == 503
    assert error["type"] == "unavailable_error"
    assert "the model changed" in error["message"]
    assert events[-1]["error"] == error


@pytest.mark.fault(
    "restart",
    "A target came back as another model between a prompt and its text",
    before="The ids of the old model's vocabulary were read by the new model.",
    now="A request may name its model, a chat does, and another model refuses it.",
)
async def test_a_request_that_names_its_model_is_refused_by_another() -> None:
    async with services() as trio:
        rendered = trio.orchestrator.pool.target.hosted
        assert rendered is not None
        whole = asked()
        whole.model.identity = rendered.model.identity
        whole.model.name = rendered.model.model_name
        await generate(trio.orchestrator, whole)
        await trio.target.restart(second)
        with pytest.raises(grpc.aio.AioRpcError, match="with toy-1") as caught:
            await generate(trio.orchestrator, whole)
    assert reason_of(caught.value) == "MODEL_CHANGED"


def another_model() -> common.ModelReference:
    return common.ModelReference(identity=b"x" * 32, name="another")


@pytest.mark.parametrize(
    "method, message",
    [
        ("Tokenize", target_service_pb2.TokenizeRequest(model=another_model())),
        ("CountCached", target_service_pb2.CountCachedRequest(model=another_model())),
        ("Embed", target_service_pb2.EmbedTokensRequest(model=another_model())),
        ("CompileGrammar", target_service_pb2.CompileGrammarRequest(model=another_model())),
        ("ListVocabulary", common.ListVocabularyRequest(model=another_model())),
        ("Score", target_service_pb2.ScoreRequest(open={"model": another_model()})),
        ("SearchBeams", target_service_pb2.SearchBeamsRequest(open={"model": another_model()})),
        ("Verify", target_service_pb2.VerifyRequest(open={"model": another_model()})),
    ],
)
async def test_a_target_refuses_every_call_for_another_model(method: str, message: Any) -> None:
    async with running(ModelProcess(TARGET, first)) as target:
        assert await refusal(target, method, message) == "MODEL_CHANGED"


async def test_a_draft_refuses_a_session_for_another_model() -> None:
    opening = draft_service_pb2.DraftRequest(open={"model": another_model()})
    async with running(ModelProcess(DRAFT, drafter)) as draft:
        assert await refusal(draft, "Draft", opening) == "MODEL_CHANGED"


async def refusal(process: ModelProcess | OrchestratorProcess, method: str, message: Any) -> str:
    """Return the reason that a call, or a stream that begins with the message, ends with."""
    make = getattr(process.stub, method)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        if method in ("Verify", "Draft"):
            async for _ in make(iter([message]), timeout=PATIENCE):
                pass
        elif method in ("ListVocabulary", "Score", "SearchBeams", "Generate"):
            async for _ in make(message, timeout=PATIENCE):
                pass
        else:
            await make(message, timeout=PATIENCE)
    return reason_of(caught.value)


EMBEDS = messages.EmbedRequest(
    inputs=[messages.PromptParts(parts=[messages.PromptPart(text="rain")])] * 2
)


@pytest.mark.parametrize(
    "after, method, message",
    [("Tokenize", "Generate", asked()), ("Tokenize", "Embed", EMBEDS), ("Embed", "Embed", EMBEDS)],
)
async def test_no_answer_is_put_together_from_two_models(
    after: str, method: str, message: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with services() as trio:
        call = Calls.call

        async def call_and_swap(its: Calls, name: str, *arguments: Any) -> Any:
            answer = await call(its, name, *arguments)
            if name == after and trio.target.model.seed == first().seed:
                await trio.target.restart(second)
            return answer

        monkeypatch.setattr(Calls, "call", call_and_swap)
        assert await refusal(trio.orchestrator, method, message) == "MODEL_CHANGED"


@pytest.mark.fault(
    "restart",
    "The target became another model between the parts of one HTTP answer",
    before="Embeddings, or the completions of several prompts, were by two models.",
    now="The answer is the error MODEL_CHANGED.",
)
@pytest.mark.parametrize(
    "path, body",
    [
        ("/v1/embeddings", {"input": ["rain"] * 65}),
        ("/v1/completions", {"prompt": ["rain", "spain"], "max_tokens": 4}),
    ],
)
async def test_no_http_answer_is_put_together_from_two_models(
    path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        services() as trio,
        serving(trio.orchestrator.orchestrator) as url,
        httpx.AsyncClient(timeout=PATIENCE) as client,
    ):
        orchestrator = trio.orchestrator.orchestrator
        embed, generate_ = orchestrator.embed, orchestrator.generate

        async def embed_and_swap(asked: messages.EmbedRequest) -> messages.EmbedResponse:
            answer = await embed(asked)
            await trio.target.restart(second)
            return answer

        async def generate_after_swap(asked: Request, **options: Any) -> Any:
            if asked.prompt == "spain":
                await first_is_written.wait()
                await trio.target.restart(second)
            async for response in generate_(asked, **options):
                yield response
            first_is_written.set()

        first_is_written = asyncio.Event()
        monkeypatch.setattr(orchestrator, "embed", embed_and_swap)
        monkeypatch.setattr(orchestrator, "generate", generate_after_swap)
        answer = await client.post(url + path, json=body)
    assert answer.json().get("error", {}).get("code") == "model_changed", answer.text


@pytest.mark.parametrize("acceptance", [0, common.ACCEPTANCE_RULE_REJECTION])
async def test_a_draft_that_comes_back_as_another_model_drafts_on(acceptance: int) -> None:
    options = {"acceptance": acceptance} if acceptance else {}
    whole = asked(temperature=0.0, **options)
    async with services() as trio:

        async def swap() -> None:
            await trio.draft.restart(lambda: toy(seed=5, like=1, agreement=0.5, eos_bias=NEVER))
            await trio.orchestrator.until_ready()

        completion = await generate(trio.orchestrator, whole, [Interruption(20, swap)])
    assert completion.token_ids == written_alone(first(), whole)
    assert completion.statistics.draft_fault_count >= 1


@pytest.mark.fault(
    "restart",
    "A request waited for a target that came back as another model",
    before="The answer over HTTP had the name of the old model.",
    now="An answer has the name of the model that wrote it.",
)
async def test_an_answer_names_the_model_that_wrote_it() -> None:
    async with (
        services() as trio,
        serving(trio.orchestrator.orchestrator) as url,
        httpx.AsyncClient(timeout=PATIENCE) as client,
    ):
        await trio.target.kill()
        await eventually(lambda: not trio.orchestrator.pool.target.ready)
        body = {"prompt": "the rain", "max_tokens": 4}
        waiting = asyncio.create_task(client.post(f"{url}/v1/completions", json=body))
        orchestrator = trio.orchestrator.orchestrator
        await eventually(lambda: orchestrator.status().active_generation_count == 1)
        await trio.target.restart(second)
        answer = await waiting
    assert answer.json()["model"] == "toy-9"
