"""Beam search at the target: against a naive search, the true optimum, faults, and its bounds."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace

import grpc
import numpy as np
import pytest
import pytest_asyncio

from outrider.engine.model import Chunk, Layout
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from target_service.beam_search import Beam, Next, agreed_count, grow
from tests.support.services import (
    PATIENCE,
    Interruption,
    Trio,
    all_idle,
    eventually,
    generate,
    request,
    three_services,
    toy,
)
from tests.support.toy import EOS, NEVER, ToyModel

LIMIT = 20
END = messages.FINISH_REASON_END_OF_TEXT


def target() -> ToyModel:
    return toy(seed=1, eos_bias=NEVER)


def ending() -> ToyModel:
    return toy(seed=3, eos_bias=4.0)


def drafter() -> ToyModel:
    return toy(seed=2, like=1, agreement=0.95, eos_bias=NEVER)


def asked(count: int, limit: int = LIMIT, **options: object) -> messages.GenerateRequest:
    whole = request(token_limit=limit, **options)  # type: ignore[arg-type]
    whole.beam_count = count
    return whole


def log_softmax(model: ToyModel, text: Sequence[int]) -> np.ndarray:
    """Return what the model says behind a text, decoded from nothing."""
    model.truncate(0, 0)
    for first in range(0, len(text), 64):
        part = tuple(text[first : first + 64])
        row = model.decode([Chunk(0, first, part, 1, model.padded(len(part)))])[0][0]
    values = row.astype(np.float64)
    values -= values.max()
    return values - np.log(np.exp(values).sum())


def searched(
    model: ToyModel,
    prompt: Sequence[int],
    count: int,
    limit: int,
    bias: dict[int, float] | None = None,
) -> tuple[float, list[int]]:
    """Return the best beam of a search that keeps nothing between two steps."""
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(limit):
        if beams[0][1][-1:] == [EOS]:
            break
        grown = []
        for score, ids in beams:
            if ids[-1:] == [EOS]:
                grown.append((score, ids))
                continue
            values = log_softmax(model, [*prompt, *ids])
            best = np.argsort(-values, kind="stable")[:count]
            grown += [(score + values[i], [*ids, int(i)]) for i in best]
        beams = sorted(grown, key=lambda beam: -beam[0])[:count]
    return beams[0]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def trio() -> AsyncIterator[Trio]:
    async with three_services(target, drafter) as services:
        yield services


@pytest.mark.parametrize("count", [2, 3, 4])
async def test_the_text_is_that_of_a_search_that_keeps_nothing(trio: Trio, count: int):
    completion = await generate(trio.orchestrator, asked(count))
    _, ids = searched(target(), completion.prompt, count, LIMIT)
    assert completion.token_ids[:LIMIT] == ids
    assert set(completion.origins) == {messages.TOKEN_ORIGIN_PLAIN}
    assert completion.statistics.drafted_token_count == 0


async def test_more_beams_find_what_is_more_probable(trio: Trio):
    wins = 0
    for prompt in ("the rain", "in spain", "stays mainly", "in the plain"):
        scores = []
        for count in (1, 4):
            completion = await generate(
                trio.orchestrator, asked(count, prompt=prompt, temperature=0.0)
            )
            ids = completion.token_ids[:LIMIT]
            text = [*completion.prompt, *ids]
            first = len(completion.prompt)
            scores.append(
                sum(log_softmax(target(), text[: first + i])[ids[i]] for i in range(LIMIT))
            )
        wins += scores[1] > scores[0] + 1e-6
    assert wins >= 3


async def test_a_beam_that_ended_wins_when_nothing_can_beat_it():
    async with three_services(ending, drafter) as services:
        for prompt in ("one", "two", "three", "four"):
            completion = await generate(services.orchestrator, asked(4, prompt=prompt))
            _, ids = searched(ending(), completion.prompt, 4, LIMIT)
            assert completion.token_ids[:LIMIT] == ids
            ended = ids[-1] == EOS
            assert completion.finished is not None
            assert (completion.finished.reason == END) == ended


async def test_logprobs_are_the_target_s_own(trio: Trio):
    whole = asked(3)
    whole.logprobs.top_count = 2
    completion = await generate(trio.orchestrator, whole)
    assert len(completion.logprobs) == len(completion.token_ids)
    text = list(completion.prompt)
    for token_id, (value, alternatives) in zip(
        completion.token_ids, completion.logprobs, strict=True
    ):
        expected = log_softmax(target(), text)
        best = np.argsort(-expected, kind="stable")[:2]
        assert value == pytest.approx(expected[token_id], abs=1e-5)
        assert [i for i, _ in alternatives] == list(best)
        text.append(token_id)


async def test_how_tokens_would_be_drawn_does_not_count(trio: Trio):
    warm = await generate(trio.orchestrator, asked(3, temperature=1.4, seed=1))
    cold = asked(3, temperature=0.0, seed=2)
    cold.sampling.top_k = 1
    assert (await generate(trio.orchestrator, cold)).token_ids == warm.token_ids


async def test_a_stop_sequence_and_a_limit_of_0(trio: Trio):
    whole = await generate(trio.orchestrator, asked(3))
    stop = whole.text[5:8]
    cut = await generate(trio.orchestrator, asked(3, stop_sequences=[stop]))
    assert cut.text == whole.text[: whole.text.index(stop)]
    nothing = await generate(trio.orchestrator, asked(3, limit=0))
    assert nothing.token_ids == []


async def test_a_full_context_ends_the_text():
    def small() -> ToyModel:
        return toy(seed=1, eos_bias=NEVER, context=48)

    async with three_services(small, drafter) as services:
        completion = await generate(services.orchestrator, asked(2, limit=-1))
        assert completion.finished is not None
        assert completion.finished.reason == messages.FINISH_REASON_CONTEXT_FULL
        room = 48 - len(completion.prompt)
        _, ids = searched(small(), completion.prompt, 2, room)
        assert completion.token_ids == ids


async def test_a_full_context_may_shift_and_the_search_starts_over_behind_what_is_kept():
    def small() -> ToyModel:
        return toy(seed=1, eos_bias=NEVER, context=48)

    async with three_services(small, drafter) as services:
        whole = asked(2, limit=60)
        whole.overflow.shift = True
        completion = await generate(services.orchestrator, whole)
    first = 49 - len(completion.prompt)  # the last token of a full context need not be held
    text = [*completion.prompt, *completion.token_ids[:first]]
    _, ids = searched(small(), completion.prompt, 2, first)
    assert completion.token_ids[:first] == ids
    kept = text[len(text) // 2 :]  # nothing of the start is kept unless that is asked for
    _, ids = searched(small(), kept, 2, 49 - len(kept))
    assert completion.token_ids[first : first + len(ids)] == ids
    assert len(completion.token_ids) >= 60
    assert completion.finished is not None and completion.finished.truncated


async def test_the_text_goes_on_when_the_target_dies():
    async with three_services(target, drafter, pace=0.002) as services:
        whole = asked(3, limit=60)
        deaths = [Interruption(count, services.target.restart) for count in (3, 20)]
        completion = await generate(services.orchestrator, whole, deaths)
    _, ids = searched(target(), completion.prompt, 3, 60)
    assert completion.token_ids[:60] == ids


async def test_sessions_that_are_evicted_meanwhile_change_nothing():
    async with three_services(target, drafter, pace=0.002) as services:
        forgets = [Interruption(count, services.target.close_sessions) for count in (1, 5, 12)]
        completion = await generate(services.orchestrator, asked(4, limit=40), forgets)
    _, ids = searched(target(), completion.prompt, 4, 40)
    assert completion.token_ids[:40] == ids


async def test_searches_that_want_more_sequences_than_there_are_all_end(trio: Trio):
    prompts = [f"prompt number {i}, a little longer" for i in range(3)]
    completions = await asyncio.gather(
        *(generate(trio.orchestrator, asked(4, prompt=prompt)) for prompt in prompts)
    )
    for completion in completions:
        _, ids = searched(target(), completion.prompt, 4, LIMIT)
        assert completion.token_ids[:LIMIT] == ids
    await eventually(lambda: all_idle(trio.target))


async def test_more_beams_than_contexts_share_a_pool_of_cells():
    def pooled(model: ToyModel) -> ToyModel:
        return replace(model, layouts=(Layout(is_pool=True),))

    async with three_services(lambda: pooled(target()), lambda: pooled(drafter())) as services:
        count = 2 * target().sequence_count
        completions = await asyncio.gather(
            generate(services.orchestrator, asked(count)),
            *(generate(services.orchestrator, asked(2, prompt=f"user {i}")) for i in range(count)),
        )
        await eventually(lambda: all_idle(services.target))
    for completion, beams in zip(completions, [count, *[2] * count], strict=True):
        _, ids = searched(target(), completion.prompt, beams, LIMIT)
        assert completion.token_ids[:LIMIT] == ids


async def test_closing_the_call_ends_the_search():
    async with three_services(target, drafter, pace=0.01) as services:
        call = services.orchestrator.stub.Generate(asked(2, limit=200), timeout=PATIENCE)
        async for response in call:
            if response.HasField("delta"):
                break
        call.cancel()
        before = services.target.decode_count

        async def rests() -> bool:
            count = services.target.decode_count
            await asyncio.sleep(0.2)
            return services.target.decode_count == count

        await eventually(rests)
        assert services.target.decode_count - before < 50  # of about 200
        status = await services.orchestrator.status()
        assert status.active_generation_count == 0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda r: setattr(r, "beam_count", 17), "beam_count: must be in [1, 16], not 17"),
        (lambda r: setattr(r, "beam_count", 0), "beam_count: must be in [1, 16], not 0"),
        (lambda r: setattr(r, "beam_count", 5), "beam_count: must be in [1, 4], not 5"),
        (
            lambda r: setattr(r, "completion_count", 2),
            "beam_count: does not go with several completions",
        ),
        (
            lambda r: setattr(r.speculative, "acceptance", common.ACCEPTANCE_RULE_REJECTION),
            "beam_count: does not go with acceptance rejection",
        ),
    ],
)
async def test_what_does_not_go_is_refused_by_name(
    trio: Trio, change: Callable[[messages.GenerateRequest], None], told: str
):
    whole = asked(2)
    change(whole)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await generate(trio.orchestrator, whole)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == told


# --- the choice itself ---


def test_wide_enough_a_search_finds_the_optimum():
    """With as many beams as there are texts nothing is ever dropped."""
    rng = np.random.default_rng(3)
    tables = {
        ids: np.log(rng.dirichlet(np.ones(3)))
        for length in range(4)
        for ids in itertools.product(range(3), repeat=length)
    }

    def texts() -> Iterator[tuple[float, tuple[int, ...]]]:
        for length in range(1, 5):
            for ids in itertools.product(range(3), repeat=length):
                ended = [i for i, token_id in enumerate(ids) if token_id == 2]
                if ended == [length - 1] or (not ended and length == 4):
                    yield sum(tables[ids[:i]][ids[i]] for i in range(length)), ids

    beams = [Beam()]
    for _ in range(4):
        nexts = [
            [] if beam.is_over else [Next(i, tables[beam.token_ids][i]) for i in range(3)]
            for beam in beams
        ]
        beams = grow(beams, nexts, 81, {2})
    score, ids = max(texts())
    assert beams[0].token_ids == ids and beams[0].score == pytest.approx(score)
    assert np.exp([beam.score for beam in beams]).sum() == pytest.approx(1.0)


def test_what_all_beams_agree_on_is_counted():
    beams = [Beam(ids) for ids in ((1, 2, 3), (1, 2), (1, 2, 4, 4))]
    assert agreed_count(beams) == agreed_count(beams, 2) == 2
    assert agreed_count(beams[:1]) == 3
    assert agreed_count([Beam()]) == 0
