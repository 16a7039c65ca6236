"""Sources without a model, through services on real ports: the same text, fewer rounds.

The seeds are fixed; a correct change of the noise fails the chi-square test with odds of 1e-4.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
import pytest_asyncio

from outrider import wire
from outrider.messages import ServiceTime
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.support.services import Trio, generate, request, three_services, toy, written_alone
from tests.support.thorough import cells
from tests.support.toy import NEVER, ToyModel

LENGTH = 96
GREEDY, SHARED = 0.0, 0.8

WAITING = {"rollback": messages.ROLLBACK_MODE_RPC}
"""The target writes nothing by itself, and so nothing before a line comes, however late it is."""


def target() -> ToyModel:
    return toy(seed=1, eos_bias=NEVER)


def draft() -> ToyModel:
    return toy(seed=2, like=1, agreement=0.8, eos_bias=NEVER)


@pytest_asyncio.fixture(loop_scope="session")
async def trio() -> AsyncIterator[Trio]:
    async with three_services(target, draft, pace=0.003) as services:
        yield services


def asked(
    temperature: float, prediction: list[int], **speculative: Any
) -> messages.GenerateRequest:
    made = request(temperature=temperature, token_limit=LENGTH, **speculative)
    if prediction:
        made.prediction.tokens.token_ids.extend(prediction)
    return made


def counts(completion: Any) -> dict[str, messages.SourceStatistics]:
    return {each.name: each for each in completion.statistics.sources}


@pytest.mark.parametrize("temperature", [GREEDY, SHARED])
async def test_the_text_is_the_same_whoever_drafts(trio: Trio, temperature: float) -> None:
    truth = written_alone(target(), asked(temperature, []))
    edited = [*truth[:40], 5, *truth[45:]]
    wrong = [(token_id + 1) % 20 for token_id in truth]
    every = ["model", "suffix", "prediction"]
    chosen = [["suffix"], ["prediction"], ["model"], every, []]
    for drafters, prediction in cells(chosen, [[], truth, edited, wrong, [9] * 300], together=1):
        completion = await generate(
            trio.orchestrator, asked(temperature, prediction, drafters=drafters)
        )
        assert completion.token_ids == truth, (drafters, prediction[:3])
        assert set(counts(completion)) <= {*(drafters or every)}


@pytest.mark.parametrize("temperature", [GREEDY, SHARED])
async def test_a_right_prediction_saves_rounds_and_is_counted(
    trio: Trio, temperature: float, every_line_pays: None
) -> None:
    truth = written_alone(target(), asked(temperature, []))
    only = {"drafters": ["prediction"], **WAITING}
    without = await generate(trio.orchestrator, asked(temperature, [], **only))
    completion = await generate(trio.orchestrator, asked(temperature, truth, **only))
    statistics = completion.statistics
    assert statistics.round_count < 0.9 * without.statistics.round_count
    assert statistics.accepted_prediction_token_count > 0.9 * LENGTH
    assert counts(completion)["prediction"].accepted_token_count == statistics.accepted_token_count


async def test_a_prediction_of_text_is_tokenized_as_the_target_does(
    trio: Trio, every_line_pays: None
) -> None:
    first = await generate(trio.orchestrator, asked(GREEDY, []))
    again = asked(GREEDY, [], drafters=["prediction"], **WAITING)
    again.prediction.text = first.text
    completion = await generate(trio.orchestrator, again)
    assert completion.token_ids == first.token_ids
    assert completion.statistics.accepted_token_count > 0
    assert completion.statistics.accepted_prediction_token_count > LENGTH / 2


async def test_reports_name_the_source_of_each_draft_token(
    trio: Trio, every_line_pays: None
) -> None:
    truth = written_alone(target(), asked(GREEDY, []))
    told = asked(GREEDY, truth, drafters=["prediction"], **WAITING)
    told.round_detail = messages.ROUND_DETAIL_TOKENS
    completion = await generate(trio.orchestrator, told)
    drafted = [report for report in completion.reports if report.draft]
    assert drafted
    for report in drafted:
        assert [*report.draft_sources] == ["prediction"] * len(report.draft)


@pytest.mark.parametrize("temperature", [GREEDY, SHARED])
async def test_what_each_source_did_and_cost_is_told(trio: Trio, temperature: float) -> None:
    drafters = ["model", "suffix", "prediction"]
    told = asked(temperature, [9] * 300, drafters=drafters, policy=messages.DRAFT_POLICY_FIXED)
    completion = await generate(trio.orchestrator, told)
    statistics, by_name = completion.statistics, counts(completion)
    assert list(by_name) == ["model", "prediction", "suffix"]
    for name in ("drafted_token_count", "accepted_token_count"):
        assert getattr(statistics, name) == sum(getattr(each, name) for each in by_name.values())
    for each in by_name.values():
        assert each.duration.ToNanoseconds() > 0
        assert each.agreed_token_count <= each.decided_token_count
    model, engine = by_name["model"], statistics.draft_time
    assert 0 < model.accepted_token_count <= model.agreed_token_count
    assert engine.step_count >= model.drafted_token_count  # in the toy one token comes of a step
    work = engine.decode_duration.ToNanoseconds() + engine.sample_duration.ToNanoseconds()
    assert model.duration.ToNanoseconds() == pytest.approx(work, abs=2000)


async def test_of_a_draft_that_counts_no_steps_none_are_told(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_steps(spent: ServiceTime) -> common.ServiceTime:
        return wire.write_time(replace(spent, steps=None))

    monkeypatch.setattr("draft_service.servicer.write_time", without_steps)
    pinned = {"drafters": ["model"], "policy": messages.DRAFT_POLICY_FIXED}
    completion = await generate(trio.orchestrator, asked(GREEDY, [], **pinned))
    assert counts(completion)["model"].drafted_token_count > 0
    assert not completion.statistics.draft_time.HasField("step_count")
    assert completion.statistics.target_time.HasField("step_count")


async def test_of_the_target_alone_no_source_is_told(trio: Trio) -> None:
    completion = await generate(trio.orchestrator, asked(GREEDY, [], enabled=False))
    assert not completion.statistics.sources
    assert not completion.statistics.draft_time.HasField("step_count")
    assert completion.statistics.target_time.step_count >= LENGTH


async def test_a_stop_sequence_takes_back_what_a_source_had_accepted(trio: Trio) -> None:
    whole = await generate(trio.orchestrator, asked(GREEDY, []))
    told = asked(GREEDY, whole.token_ids, drafters=["prediction"])
    told.stop_sequences.append(whole.text[40:44])
    completion = await generate(trio.orchestrator, told)
    statistics = completion.statistics
    assert statistics.generated_token_count < LENGTH
    assert counts(completion)["prediction"].accepted_token_count == statistics.accepted_token_count


async def test_an_unknown_drafter_is_refused(trio: Trio) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="drafters") as refused:
        await generate(trio.orchestrator, request(drafters=["oracle"]))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
