"""What three services write together is what the target writes alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
import pytest_asyncio

from outrider.v1 import orchestrator_service_pb2 as messages
from tests.support.services import (
    CONTEXT,
    Completion,
    OrchestratorProcess,
    Trio,
    generate,
    request,
    running,
    three_services,
    toy,
    written_alone,
)
from tests.support.toy import BOS, EOS, NEVER, ToyModel

DRAFTED, CORRECTED = messages.TOKEN_ORIGIN_DRAFTED, messages.TOKEN_ORIGIN_CORRECTED
BONUS, PLAIN = messages.TOKEN_ORIGIN_BONUS, messages.TOKEN_ORIGIN_PLAIN


def target() -> ToyModel:
    return toy(seed=1)


def endless() -> ToyModel:
    return toy(seed=1, eos_bias=NEVER)


def drafter(agreement: float, eos_bias: float = 0.0) -> Callable[[], ToyModel]:
    return lambda: toy(seed=2, like=1, agreement=agreement, eos_bias=eos_bias)


@pytest_asyncio.fixture(loop_scope="session")
async def trio() -> AsyncIterator[Trio]:
    async with three_services(target, drafter(0.95)) as services:
        yield services


@pytest_asyncio.fixture(loop_scope="session")
async def endless_trio() -> AsyncIterator[Trio]:
    async with three_services(endless, drafter(0.95, NEVER)) as services:
        yield services


def shown(token_ids: list[int]) -> str:
    texts = target().token_texts()
    return b"".join(texts[token_id] for token_id in token_ids).decode("utf-8", "replace")


def assert_consistent(completion: Completion) -> None:
    """Check the statistics against the tokens that were sent."""
    statistics, count = completion.statistics, completion.origin_count
    assert len(completion.origins) == len(completion.token_ids)
    assert statistics.generated_token_count == len(completion.token_ids)
    assert statistics.prompt_token_count == len(completion.prompt)
    assert statistics.accepted_token_count == count(DRAFTED)
    assert statistics.drafted_token_count == sum(statistics.drafted_by_position)
    assert statistics.drafted_token_count == sum(statistics.drafted_by_round)
    assert statistics.accepted_token_count == sum(statistics.accepted_by_round)
    assert statistics.drafted_round_count == len(statistics.drafted_by_round)
    assert statistics.accepted_token_count == sum(statistics.accepted_by_position)
    # The last round may end in its draft.
    plain_rounds = statistics.round_count - statistics.drafted_round_count
    assert count(PLAIN) == plain_rounds
    own = count(CORRECTED) + count(BONUS)
    assert statistics.drafted_round_count - 1 <= own <= statistics.drafted_round_count


@pytest.mark.parametrize("agreement", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_the_text_is_the_targets_own(agreement: float, temperature: float) -> None:
    async with three_services(target, drafter(agreement)) as trio:
        for draft_length in (0, 1, 4, 8):
            for seed in range(3):
                asked = request(seed=seed, temperature=temperature, n_max=draft_length)
                completion = await generate(trio.orchestrator, asked)
                assert completion.token_ids == written_alone(target(), asked)
                assert completion.text == shown(completion.token_ids)
                assert_consistent(completion)


@pytest.mark.parametrize(
    "speculative",
    [
        {"policy": messages.DRAFT_POLICY_MEASURED},
        {"policy": messages.DRAFT_POLICY_MEASURED, "run_ahead": True},
        {"policy": messages.DRAFT_POLICY_MEASURED, "run_ahead": False, "n_min": 2},
        {"policy": messages.DRAFT_POLICY_FIXED, "run_ahead": True, "n_max": 3},
        {"policy": messages.DRAFT_POLICY_CLASSIC, "n_max": 8},
        {"policy": messages.DRAFT_POLICY_FIXED, "n_max": 8, "p_min": 0.3},
    ],
    ids=["measured", "ahead", "serial", "fixed-ahead", "classic", "p_min"],
)
async def test_no_policy_changes_the_text(speculative: dict[str, Any]) -> None:
    async with three_services(target, drafter(0.9)) as trio:
        for temperature in (0.0, 0.8):
            for seed in range(3):
                asked = request(seed=seed, temperature=temperature, token_limit=96, **speculative)
                completion = await generate(trio.orchestrator, asked)
                assert completion.token_ids == written_alone(target(), asked)
                assert_consistent(completion)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"acceptance": 3, "p_min": 0.5}, "p_min"),
        ({"acceptance": 3, "policy": messages.DRAFT_POLICY_CLASSIC}, "policy"),
        ({"n_min": 5, "n_max": 4}, "n_min"),
        ({"p_min": 1.5}, "p_min"),
        ({"policy": 99}, "policy"),
        ({"verification": 99}, "verification"),
    ],
)
async def test_options_that_do_not_go_together_are_refused_by_name(
    trio: Trio, change: dict[str, Any], field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(trio.orchestrator, request(**change))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert field in (caught.value.details() or "")


async def test_the_statistics_and_the_status_say_what_the_controller_goes_by(trio: Trio) -> None:
    completion = await generate(trio.orchestrator, request(token_limit=48))
    status = await trio.orchestrator.status()
    for view in (completion.statistics.controller, status.controller):
        assert view.target_alone_token_rate > 0
        assert view.plain_token_rate > 0 and 0 < view.acceptance < 1
        assert not view.forecast_token_rate, "the length is fixed here"
        assert view.draft_token_duration.ToNanoseconds() > 0
        assert [cost.row_count for cost in view.decode_costs]
    assert completion.statistics.controller.token_rate > 0
    asked = request(token_limit=48, policy=messages.DRAFT_POLICY_MEASURED)
    known = (await generate(trio.orchestrator, asked)).statistics.controller
    assert known.forecast_token_rate > 0.99 * known.plain_token_rate


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("draft_length", [1, 4, 8])
async def test_a_draft_with_the_targets_own_distribution_is_always_right(
    temperature: float, draft_length: int
) -> None:
    async with three_services(endless, drafter(1.0, NEVER)) as trio:
        for seed in range(5):
            asked = request(seed=seed, temperature=temperature, n_max=draft_length)
            completion = await generate(trio.orchestrator, asked)
            statistics = completion.statistics
            assert completion.token_ids == written_alone(endless(), asked)
            assert statistics.accepted_token_count == statistics.drafted_token_count
            # One round reads the prompt, every other one is full.
            rounds = 1 + -(-(48 - 1) // (draft_length + 1))
            assert statistics.round_count <= rounds + 1


async def test_a_repeated_request_drafts_as_well_as_the_first(endless_trio: Trio) -> None:
    """What a cancelled order leaves behind must not spoil the rest of the line.

    .95 of the variance is shared, which makes 2 of 3 tokens equal.
    """
    for seed in range(20):
        completion = await generate(endless_trio.orchestrator, request(seed=seed, n_max=8))
        assert completion.statistics.accepted_token_count >= 12


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_matching_by_equality_writes_the_targets_own_text_too(
    trio: Trio, temperature: float
) -> None:
    asked = request(temperature=temperature, acceptance=1)
    completion = await generate(trio.orchestrator, asked)
    assert completion.token_ids == written_alone(target(), asked)


async def test_explicit_rollbacks_change_nothing(trio: Trio) -> None:
    asked = request(rollback=messages.ROLLBACK_MODE_RPC)
    completion = await generate(trio.orchestrator, asked)
    assert completion.token_ids == written_alone(target(), asked)
    assert completion.origin_count(DRAFTED) > 0
    assert_consistent(completion)


async def test_an_end_token_ends_the_text() -> None:
    def ending() -> ToyModel:
        return toy(seed=1, eos_bias=3.0)

    async with three_services(ending, drafter(0.95, 3.0)) as trio:
        for seed in range(5):
            asked = request(seed=seed, token_limit=200)
            completion = await generate(trio.orchestrator, asked)
            assert completion.token_ids == written_alone(ending(), asked)
            assert completion.token_ids[-1] == EOS
            assert completion.finished is not None
            assert completion.finished.reason == messages.FINISH_REASON_END_OF_TEXT
            assert_consistent(completion)


@pytest.mark.parametrize("limit", [0, 1, 2, 5, 6, 17])
async def test_the_token_limit_is_kept(endless_trio: Trio, limit: int) -> None:
    asked = request(token_limit=limit)
    completion = await generate(endless_trio.orchestrator, asked)
    assert completion.token_ids == written_alone(endless(), asked)
    # A character that the limit would cut is finished.
    assert limit <= len(completion.token_ids) <= limit + 3
    assert limit or not completion.token_ids
    assert completion.finished is not None
    assert completion.finished.reason == messages.FINISH_REASON_TOKEN_LIMIT


async def test_a_full_context_ends_the_text(endless_trio: Trio) -> None:
    asked = request(token_limit=-1)
    completion = await generate(endless_trio.orchestrator, asked)
    asked.token_limit = CONTEXT - len(completion.prompt)
    assert completion.token_ids == written_alone(endless(), asked)
    assert completion.finished is not None
    assert completion.finished.reason == messages.FINISH_REASON_CONTEXT_FULL


@pytest.mark.parametrize("draft_length", [0, 1, 4, 8])
async def test_a_stop_sequence_ends_the_text_and_is_not_part_of_it(
    endless_trio: Trio, draft_length: int
) -> None:
    whole = await generate(endless_trio.orchestrator, request(n_max=0))
    for start in range(3, 15):
        stop = whole.text[start : start + 4]
        if "\ufffd" in stop:
            continue
        asked = request(stop_sequences=["never", stop], n_max=draft_length)
        completion = await generate(endless_trio.orchestrator, asked)
        assert completion.text == whole.text[: whole.text.index(stop)]
        assert completion.finished is not None
        assert completion.finished.reason == messages.FINISH_REASON_STOP_SEQUENCE
        count = len(completion.token_ids)
        assert completion.token_ids == whole.token_ids[:count]
        # The token that completes the stop sequence is the last one.
        assert stop in shown(whole.token_ids[:count])
        assert stop not in shown(whole.token_ids[: count - 1])
        assert_consistent(completion)


async def test_why_a_text_ended_does_not_depend_on_the_draft() -> None:
    """A stop sequence and the end token in one round: the earlier one ended the text."""

    def ending() -> ToyModel:
        return toy(seed=1, eos_bias=3.0)

    async with three_services(ending, drafter(1.0, 3.0)) as trio:
        for seed in range(6):
            whole = await generate(trio.orchestrator, request(seed=seed, token_limit=200, n_max=0))
            stop = whole.text[-4:-2]
            if len(stop) < 2 or "\ufffd" in stop or whole.text.index(stop) < len(whole.text) - 4:
                continue
            outcomes = []
            for draft_length in (0, 8):
                asked = request(
                    seed=seed, token_limit=200, stop_sequences=[stop], n_max=draft_length
                )
                completion = await generate(trio.orchestrator, asked)
                assert completion.finished is not None
                outcomes.append((completion.text, completion.token_ids, completion.finished.reason))
            assert outcomes[0] == outcomes[1]


async def test_prompt_token_ids_are_taken_as_they_are(trio: Trio) -> None:
    asked = request(prompt_tokens=[9, BOS, 9, EOS, 60])
    completion = await generate(trio.orchestrator, asked)
    assert completion.prompt == [9, BOS, 9, EOS, 60]
    assert completion.token_ids == written_alone(target(), asked)


async def test_a_long_prompt_is_read_in_chunks(trio: Trio) -> None:
    asked = request(prompt_tokens=[3 + i * i % 60 for i in range(200)])
    completion = await generate(trio.orchestrator, asked)
    assert completion.token_ids == written_alone(target(), asked)


async def test_a_seed_is_chosen_and_told_when_none_is_given(trio: Trio) -> None:
    asked = request()
    asked.ClearField("seed")
    started = None
    async for response in trio.orchestrator.stub.Generate(asked, timeout=20):
        started = started or response.started
    assert started is not None
    again = request(seed=started.seed)
    completion = await generate(trio.orchestrator, again)
    assert completion.token_ids == written_alone(target(), again)


async def test_many_generations_at_once_do_not_mix(endless_trio: Trio) -> None:
    import asyncio

    asked = [request(f"{'abcdefgh'[i]} prompt", seed=i, n_max=i) for i in range(8)]
    completions = await asyncio.gather(*(generate(endless_trio.orchestrator, a) for a in asked))
    for one, completion in zip(asked, completions, strict=True):
        assert completion.token_ids == written_alone(endless(), one)


async def test_without_a_draft_every_token_is_plain(trio: Trio) -> None:
    async with running(OrchestratorProcess(trio.target.address)) as orchestrator:
        asked = request()
        completion = await generate(orchestrator, asked)
        assert completion.token_ids == written_alone(target(), asked)
        assert set(completion.origins) == {PLAIN}
        off = await generate(trio.orchestrator, request(enabled=False))
        assert off.token_ids == completion.token_ids
        assert set(off.origins) == {PLAIN}


@pytest.mark.parametrize(
    "change",
    [
        {"prompt_tokens": [64]},
        {"prompt_tokens": [-1]},
        {"prompt_tokens": [5] * (CONTEXT + 1)},
        {"prompt": "a b " * (10 * 2**18)},
        {"temperature": float("nan")},
        {"temperature": -0.5},
        {"token_limit": -2},
        {"n_max": 65},
        {"n_max": -1},
        {"acceptance": 99},
        {"row_form": 3},
        {"stop_sequences": [""]},
        {"stop_sequences": ["x" * 4097]},
        {"stop_sequences": ["x"] * 257},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_a_wrong_request_is_refused_and_the_next_one_works(
    trio: Trio, change: dict[str, object]
) -> None:
    wrong = request(**change)  # type: ignore[arg-type]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(trio.orchestrator, wrong)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    asked = request(token_limit=8)
    completion = await generate(trio.orchestrator, asked)
    assert completion.token_ids == written_alone(target(), asked)
