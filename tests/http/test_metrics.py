"""The metrics against what generations really brought."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics import Metrics
from outrider.errors import PeerUnavailable
from outrider.messages import FinishReason
from outrider.response import EngineTime, Event, Finished, SourceStatistics, Statistics
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_service_pb2 as draft_messages
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.support.fake_orchestrator import FakeOrchestrator
from tests.support.gateway import serving

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def scrape(client: httpx.AsyncClient, url: str) -> Samples:
    return samples((await client.get(f"{url}/metrics")).text)


def samples(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_counters_agree_with_the_answers_and_their_tokens():
    asked: list[dict[str, Any]] = [
        {"prompt": "ab", "max_tokens": 7},
        {"prompt": "c", "n": 2, "max_tokens": 5},
        {"prompt": ["a", "b"], "stop": [","], "max_tokens": 50},
    ]
    async with serving() as url, httpx.AsyncClient() as client:
        usages = []
        for body in asked:
            answer = await client.post(f"{url}/v1/completions", json=body)
            usages.append(answer.json()["usage"])
        found = await scrape(client, url)

    def total(name: str, **labels: str) -> float:
        return found[f"outrider_{name}", tuple(sorted(labels.items()))]

    completion = sum(usage["completion_tokens"] for usage in usages)
    details = [usage["completion_tokens_details"] for usage in usages]
    accepted = sum(each["accepted_prediction_tokens"] for each in details)
    rejected = sum(each["rejected_prediction_tokens"] for each in details)
    assert total("generated_tokens_total") == completion
    by_origin = [v for (name, _), v in found.items() if name == "outrider_tokens_by_origin_total"]
    assert sum(by_origin) == completion
    assert total("tokens_by_origin_total", origin="drafted") == accepted
    assert total("spec_decode_num_accepted_tokens_total") == accepted
    assert total("spec_decode_num_draft_tokens_total") == accepted + rejected
    name = "outrider_spec_decode_num_accepted_tokens_per_pos_total"
    assert sum(v for (one, _), v in found.items() if one == name) == accepted
    assert total("prompt_tokens_total") == sum(usage["prompt_tokens"] for usage in usages)
    assert total("requests_total", outcome="token_limit") == 2
    assert total("requests_total", outcome="stop_sequence") == 2
    assert total("time_to_first_token_seconds_count") == 5
    assert total("inter_token_latency_seconds_count") == completion - 5 * 3
    assert total("request_seconds_count") == 4
    assert total("running_requests") == 0


async def finish(statistics: Statistics, *, times: int = 1) -> Samples:
    """Return the samples after so many generations that ended with these statistics."""
    metrics = Metrics(messages.GetStatusResponse)

    async def events() -> AsyncGenerator[Event]:
        yield Finished(FinishReason.UNSPECIFIED, statistics)

    for _ in range(times):
        async for _ in metrics.watch(events()):
            pass
    return samples(metrics.exposition().decode())


async def test_misses_that_were_foreseen_are_counted_apart():
    draft = EngineTime(step_count=7, runner_up_seconds=0.25)
    numbers = Statistics(
        forked_miss_count=5, foreseen_miss_count=3, draft_time=draft, drafted_token_count=20
    )
    found = await finish(numbers, times=2)
    misses = {
        dict(labels)["foreseen"]: value
        for (name, labels), value in found.items()
        if name == "outrider_draft_misses_total"
    }
    assert misses == {"true": 6, "false": 4}
    assert found["outrider_runner_up_seconds_total", ()] == 0.5
    # Steps of the draft and tokens drafted are not the same.
    assert found["outrider_steps_total", (("role", "draft"),)] == 14
    assert found["outrider_spec_decode_num_draft_tokens_total", ()] == 40


async def test_numbers_below_zero_are_not_counted():
    numbers = Statistics(draft_time=EngineTime(step_count=-1000), cached_token_count=-3)
    found = await finish(numbers)
    assert found["outrider_steps_total", (("role", "draft"),)] == 0
    assert found["outrider_requests_total", (("outcome", "unknown"),)] == 1


async def test_each_source_of_draft_tokens_has_its_counters():
    suffix = SourceStatistics(
        name="suffix",
        drafted_token_count=40,
        accepted_token_count=30,
        decided_token_count=80,
        agreed_token_count=60,
        seconds=0.0015,
    )
    model = SourceStatistics(  # under rejection
        name="model",
        drafted_token_count=8,
        accepted_token_count=0,
        decided_token_count=None,
        agreed_token_count=None,
        seconds=None,
    )
    found = await finish(Statistics(sources=(model, suffix)), times=2)
    of_sources = {key: value for key, value in found.items() if "_source_" in key[0]}
    assert {
        (name.removeprefix("outrider_source_"), dict(labels)["source"]): value
        for (name, labels), value in of_sources.items()
        if name.endswith("_total")
    } == {
        ("draft_tokens_total", "model"): 16,
        ("accepted_tokens_total", "model"): 0,
        ("draft_tokens_total", "suffix"): 80,
        ("accepted_tokens_total", "suffix"): 60,
        ("decided_tokens_total", "suffix"): 160,
        ("agreed_tokens_total", "suffix"): 120,
        ("seconds_total", "suffix"): 0.003,
    }


async def test_draft_steps_are_counted_apart_and_only_where_they_are_told():
    found = await finish(Statistics(target_time=EngineTime(step_count=9)))
    steps = {key[1]: value for key, value in found.items() if key[0] == "outrider_steps_total"}
    assert steps == {(("role", "target"),): 9}
    found = await finish(Statistics(draft_time=EngineTime(step_count=0)))
    assert found["outrider_steps_total", (("role", "draft"),)] == 0


async def test_failures_count_by_their_reason():
    fake = FakeOrchestrator()
    fake.error = PeerUnavailable("gone")
    async with serving(fake) as url, httpx.AsyncClient() as client:
        await client.post(f"{url}/completion", json={"prompt": "a"})
        fake.error = ZeroDivisionError()
        await client.post(f"{url}/completion", json={"prompt": "a"})
        found = await scrape(client, url)
    assert found["outrider_requests_total", (("outcome", "peer_unavailable"),)] == 1
    assert found["outrider_requests_total", (("outcome", "internal"),)] == 1


@pytest.mark.parametrize(
    ("server", "tokens"), [("vllm", "generation_tokens"), ("llamacpp", "tokens_predicted")]
)
async def test_other_servers_names_are_there_on_request(server: str, tokens: str):
    async with serving(metrics_names=(server,)) as url, httpx.AsyncClient() as client:
        await client.post(f"{url}/completion", json={"prompt": "a"})
        found = await scrape(client, url)
    for suffix in ("drafts", "draft_tokens", "accepted_tokens"):
        name = f"spec_decode_num_{suffix}_total"
        assert found[f"{server}:{name}", ()] == found[f"outrider_{name}", ()]
    assert found[f"{server}:spec_decode_num_accepted_tokens_per_pos_total", (("position", "0"),)]
    assert found[f"{server}:{tokens}_total", ()] == found["outrider_generated_tokens_total", ()]


async def test_nothing_of_a_text_is_in_the_metrics():
    async with serving(FakeOrchestrator("canary")) as url, httpx.AsyncClient() as client:
        await client.post(f"{url}/completion", json={"prompt": "another canary"})
        text = (await client.get(f"{url}/metrics")).text
    assert "canary" not in text
    assert "outrider_build_info" in text


async def test_each_draft_that_is_ready_has_gauges_of_its_own():
    def status(of_orchestrator: FakeOrchestrator) -> messages.GetStatusResponse:
        ready, lost = messages.PEER_STATE_READY, messages.PEER_STATE_LOST
        model = common.GetModelResponse(model_name='a "small" one')
        near = messages.PeerStatus(
            role="draft",
            address="10.0.0.9:4711",
            state=ready,
            model=model,
            joined=True,
            generation_count=2,
            tokens_per_second=310.0,
        )
        near.round_trip_duration.FromMilliseconds(5)
        near.translation.level = draft_messages.TRANSLATION_LEVEL_STRINGS
        gone = messages.PeerStatus(role="draft", address="10.0.0.8:1", state=lost, model=model)
        target = messages.PeerStatus(role="target", state=ready, model=model)
        refused = [messages.RefusedDraft(address="10.0.0.7:1", reason="token 17 differs")] * 3
        return messages.GetStatusResponse(peers=[target, near, gone], refused_drafts=refused)

    fake = type("WithDrafts", (FakeOrchestrator,), {"status": status})()
    async with serving(fake) as url, httpx.AsyncClient() as client:
        found = await scrape(client, url)
    labels = (("address", "10.0.0.9:4711"), ("joined", "true"), ("model", 'a "small" one'))
    drafts = {key: value for key, value in found.items() if key[0].startswith("outrider_draft_")}
    used = {("10.0.0.9:4711", "true"): 1.0, ("10.0.0.8:1", "false"): 0.0}
    assert drafts == {
        **{
            ("outrider_draft_used", (("address", address), ("joined", joined))): value
            for (address, joined), value in used.items()
        },
        ("outrider_draft_generations", labels): 2.0,
        ("outrider_draft_tokens_per_second", labels): 310.0,
        ("outrider_draft_round_trip_seconds", labels): 0.005,
        ("outrider_draft_level", tuple(sorted((*labels, ("level", "string"))))): 1.0,
    }
    assert found["outrider_drafts_refused", ()] == 3.0


async def test_each_target_is_shown_and_the_time_that_it_spends_in_decodes():
    def status(of_orchestrator: FakeOrchestrator) -> messages.GetStatusResponse:
        model = common.GetModelResponse(model_name="large", session_count=4)
        model.activity.open_session_count = 3
        model.activity.open_duration.FromMilliseconds(2000)
        model.activity.decode_duration.FromMilliseconds(1900)
        ready = messages.PEER_STATE_READY
        target = messages.PeerStatus(role="target", address="a:1", state=ready, model=model)
        target.generation_count = 3
        target.round_trip_duration.FromMilliseconds(2)
        lost = messages.PeerStatus(role="target", address="b:1", state=messages.PEER_STATE_LOST)
        return messages.GetStatusResponse(peers=[target, lost])

    fake = type("WithTarget", (FakeOrchestrator,), {"status": status})()
    async with serving(fake) as url, httpx.AsyncClient() as client:
        found = await scrape(client, url)
    first, second = (("address", "a:1"),), (("address", "b:1"),)
    assert {
        key: value for key, value in found.items() if key[0].startswith("outrider_target_")
    } == {
        ("outrider_target_used", first): 1.0,
        ("outrider_target_used", second): 0.0,
        ("outrider_target_generations", first): 3.0,
        ("outrider_target_generations", second): 0.0,
        ("outrider_target_round_trip_seconds", first): 0.002,
        ("outrider_target_sessions", first): 4.0,
        ("outrider_target_open_sessions", first): 3.0,
        ("outrider_target_open_seconds_total", first): 2.0,
        ("outrider_target_decode_seconds_total", first): 1.9,
    }
