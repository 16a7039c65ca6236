"""Limits, stops, several completions, prompts of every form, a full context that shifts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from outrider.rpc.statuses import read_error_info
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.support.services import (
    PATIENCE,
    Completion,
    Interruption,
    Trio,
    generate,
    request,
    three_services,
    toy,
    written_alone,
)
from tests.support.toy import BOS, NEVER, ToyModel, generate_alone

FULL, LIMIT = messages.FINISH_REASON_CONTEXT_FULL, messages.FINISH_REASON_TOKEN_LIMIT
END = messages.FINISH_REASON_END_OF_TEXT


def target() -> ToyModel:
    return toy(seed=1, eos_bias=NEVER)


def drafter() -> ToyModel:
    return toy(seed=2, like=1, agreement=0.95, eos_bias=NEVER)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def trio() -> AsyncIterator[Trio]:
    async with three_services(target, drafter) as services:
        yield services


async def test_a_limit_of_0_reads_the_prompt_and_writes_nothing(trio: Trio) -> None:
    before = trio.target.decode_count
    asked = request("a prompt that nobody has read before, as long as it is", token_limit=0)
    completion = await generate(trio.orchestrator, asked)
    assert completion.token_ids == []
    assert completion.finished is not None and completion.finished.reason == LIMIT
    assert trio.target.decode_count > before
    again = await generate(trio.orchestrator, asked)
    assert again.statistics.cached_token_count == len(again.prompt) - 1


async def test_what_the_target_holds_is_counted(trio: Trio) -> None:
    first = request("one of the longer prompts, so that it is worth a copy", seed=5)
    completion = await generate(trio.orchestrator, first)
    turn = [*completion.prompt, *completion.token_ids, 9, 8, 7]
    second = await generate(trio.orchestrator, request(prompt_tokens=turn, token_limit=4))
    assert second.statistics.cached_token_count >= len(turn) - 4
    assert second.token_ids == written_alone(target(), request(prompt_tokens=turn, token_limit=4))


@pytest.mark.fault(
    "text",
    "a token limit that leaves a character unfinished",
    before="up to 3 tokens more than `max_tokens` were written, although the API promises a limit",
    now="the limit is one; `finish_character` asks for the rest of the character",
)
async def test_the_limit_is_exceeded_only_to_finish_a_character_that_shall_be(trio: Trio) -> None:
    exceeded = 0
    for seed in range(12):
        asked = request("a text", seed=seed, token_limit=8)
        alone = written_alone(target(), asked)
        assert (await generate(trio.orchestrator, asked)).token_ids == alone and len(alone) <= 8
        asked.finish_character = True
        finished = (await generate(trio.orchestrator, asked)).token_ids
        assert finished[: len(alone)] == alone and len(finished) <= 8 + 3
        exceeded += len(finished) > 8
    assert exceeded, "no text of the twelve ended inside a character"


async def test_a_stop_id_ends_the_text_and_is_not_shown(trio: Trio) -> None:
    asked = request(seed=11, token_limit=40)
    whole = await generate(trio.orchestrator, asked)
    stop = whole.token_ids[12]
    first = whole.token_ids.index(stop)
    asked.stop_token_ids.append(stop)
    completion = await generate(trio.orchestrator, asked)
    assert completion.token_ids == whole.token_ids[: first + 1]
    assert completion.finished is not None and completion.finished.reason == END
    texts = target().token_texts()
    shown = b"".join(texts[i] for i in whole.token_ids[:first]).decode("utf-8", "replace")
    assert completion.text == shown


async def test_too_many_names_of_control_tokens_are_refused(trio: Trio) -> None:
    asked = request(token_limit=4)
    asked.control_token_names.extend(map(str, range(64)))
    assert len((await generate(trio.orchestrator, asked)).token_ids) == 4
    asked.control_token_names.append("64")
    with pytest.raises(grpc.aio.AioRpcError, match="control_token_names: 65, at most 64"):
        await generate(trio.orchestrator, asked)


async def test_the_stop_sequence_that_was_found_is_told(trio: Trio) -> None:
    whole = await generate(trio.orchestrator, request(seed=3))
    stop = whole.text[10:13]
    completion = await generate(
        trio.orchestrator, request(seed=3, stop_sequences=["never there", stop])
    )
    assert completion.finished is not None
    assert completion.finished.stop_sequence == stop
    assert whole.text.startswith(completion.text) and stop not in completion.text


async def test_several_completions_are_those_of_their_own_noise(trio: Trio) -> None:
    prompt = "a prompt that is long enough to be copied from one session to another"
    asked = request(prompt, seed=9, token_limit=24)
    asked.completion_count = 4
    each: dict[int, Completion] = {}
    async for response in trio.orchestrator.stub.Generate(asked, timeout=PATIENCE):
        for choice in range(4) if response.HasField("started") else [response.choice_index]:
            each.setdefault(choice, Completion()).add(response)
    assert sorted(each) == [0, 1, 2, 3]
    model = target()
    ids = model.tokenize(prompt.encode(), add_special=True, parse_special=False)
    for choice, completion in each.items():
        expected = generate_alone(model, ids, 24, _sampling(), seed=9, choice=choice)
        assert completion.token_ids == expected
        assert completion.finished is not None
    assert len({tuple(completion.token_ids) for completion in each.values()}) == 4
    assert all(each[i].statistics.cached_token_count > 16 for i in (1, 2, 3))


def _sampling() -> Any:
    from outrider.wire import read_sampling

    return read_sampling(common.SamplingParameters(temperature=0.8))


async def test_too_many_completions_are_refused(trio: Trio) -> None:
    asked = request()
    asked.completion_count = 17
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await generate(trio.orchestrator, asked)
    assert str(refused.value.details()).startswith("completion_count: ")


async def test_a_prompt_of_parts_has_a_bos_only_before_a_text(trio: Trio) -> None:
    def parts(*values: str | int) -> messages.GenerateRequest:
        asked = request(token_limit=2)
        asked.ClearField("prompt_text")
        for value in values:
            part = asked.prompt_parts.parts.add()
            if isinstance(value, str):
                part.text = value
            else:
                part.token_id = value
        return asked

    model = target()

    def ids(text: str) -> list[int]:
        return model.tokenize(text.encode(), add_special=False, parse_special=False)

    for values, expected in (
        (("the ", 9, "rain"), [BOS, *ids("the "), 9, *ids("rain")]),
        ((9, "rain", 8), [9, *ids("rain"), 8]),
        (("the rain",), [BOS, *ids("the rain")]),
    ):
        completion = await generate(trio.orchestrator, parts(*values))
        assert completion.prompt == expected


@pytest.mark.fault(
    "crash",
    "log probabilities of a prompt that are larger than a gRPC message",
    before="the generation failed, from 16 MB on",
    now="they come in as many messages as it takes",
)
async def test_prompt_logprobs_come_in_as_many_messages_as_it_takes(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.wire_responses.PAGE_BYTES", 500)
    asked = request("a prompt that takes several messages " * 5, token_limit=3)
    asked.logprobs.top_count = 4
    asked.prompt_logprobs = True
    stub = trio.orchestrator.stub
    streamed = [each async for each in stub.Generate(asked, timeout=PATIENCE)]
    assert all(sum(p.ByteSize() for p in each.delta.prompt_logprobs) <= 500 for each in streamed)
    started, found = streamed[0].started, list(streamed[0].started.prompt_logprobs)
    found += [p for each in streamed for p in each.delta.prompt_logprobs]
    assert len(streamed[0].started.prompt_logprobs) < len(started.prompt_token_ids) == len(found)

    submission = messages.SubmitGenerationRequest(request=asked)
    submitted = await stub.SubmitGeneration(submission, timeout=PATIENCE)
    polled, cursor, finished = list(submitted.started.prompt_logprobs), 0, False
    while not finished:
        poll = messages.PollGenerationRequest(job_id=submitted.job_id, cursor=cursor)
        poll.wait_duration.FromSeconds(5)
        page = await stub.PollGeneration(poll, timeout=PATIENCE)
        polled += [p for each in page.responses for p in each.delta.prompt_logprobs]
        cursor, finished = page.next_cursor, page.finished
    assert polled == found


async def test_prompt_logprobs_are_there_for_all_but_the_first_token(trio: Trio) -> None:
    asked = request(token_limit=3)
    asked.logprobs.top_count = 2
    asked.prompt_logprobs = True
    started = None
    async for response in trio.orchestrator.stub.Generate(asked, timeout=PATIENCE):
        started = response.started if response.HasField("started") else started
    assert started is not None
    assert len(started.prompt_logprobs) == len(started.prompt_token_ids)
    assert all(each.log_probability < 0 for each in started.prompt_logprobs[1:])
    assert all(len(each.alternatives) == 2 for each in started.prompt_logprobs[1:])
    asked.ClearField("logprobs")
    with pytest.raises(grpc.aio.AioRpcError, match="prompt_logprobs: needs logprobs"):
        await generate(trio.orchestrator, asked)


# a context that is full


def shifted_alone(asked: messages.GenerateRequest, keep: int, count: int) -> list[int]:
    """Return what the target writes alone when it drops half behind `keep` of a full context."""
    model = target()
    context = model.tokenize(asked.prompt_text.encode(), add_special=True, parse_special=False)
    written: list[int] = []
    dropped = 0
    while len(written) < count:
        # As many as fit, one more of which is not decoded any more.
        room = min(256 + 1 - len(context), count - len(written))
        for token_id in _alone(model, context, room, asked.seed, dropped):
            written.append(token_id)
            context.append(token_id)
        drop = (len(context) - keep) // 2
        del context[keep : keep + drop]
        dropped += drop
    return written


def _alone(model: ToyModel, context: list[int], count: int, seed: int, dropped: int) -> list[int]:
    from outrider.engine.model import Chunk

    model.truncate(0, 0)
    sampler = model.sampler(_sampling())
    text, written = list(context), list[int]()
    held = 0
    while len(written) < count:
        while held < len(text):
            part = text[held : held + 64]
            [rows] = model.decode([Chunk(0, held, part, 1)])
            held += len(part)
        token_id, _ = sampler.distribution(rows[0]).race(seed, 0, len(text) + dropped)
        written.append(token_id)
        text.append(token_id)
    return written


@pytest.mark.parametrize("keep", [0, 5, -1])
@pytest.mark.parametrize("drafts", [False, True])
async def test_a_full_context_shifts_and_the_text_goes_on(
    trio: Trio, keep: int, drafts: bool
) -> None:
    asked = request("the start of it all", seed=21, token_limit=500, enabled=drafts)
    asked.overflow.shift = True
    asked.overflow.keep_token_count = keep
    completion = await generate(trio.orchestrator, asked)
    kept = len(completion.prompt) if keep == -1 else keep
    assert completion.token_ids == shifted_alone(asked, kept, len(completion.token_ids))
    assert completion.finished is not None
    assert completion.finished.reason == LIMIT and completion.finished.truncated
    assert 500 <= completion.statistics.generated_token_count <= 503
    if drafts:
        assert completion.statistics.accepted_token_count > 100


async def test_a_shifted_text_survives_restarts(trio: Trio) -> None:
    asked = request("the start of it all", seed=22, token_limit=400)
    asked.overflow.shift = True
    completion = await generate(
        trio.orchestrator,
        asked,
        [
            Interruption(250, trio.target.restart),
            Interruption(300, trio.target.close_sessions),
            Interruption(320, trio.draft.restart),
        ],
    )
    assert completion.token_ids == shifted_alone(asked, 0, len(completion.token_ids))
    await trio.orchestrator.until_ready()


async def test_without_a_shift_a_full_context_ends_the_text(trio: Trio) -> None:
    completion = await generate(trio.orchestrator, request(token_limit=-1))
    assert completion.finished is not None
    assert completion.finished.reason == FULL and not completion.finished.truncated


async def test_a_long_prompt_loses_its_middle_if_that_is_wanted(trio: Trio) -> None:
    ids = [3 + i % 50 for i in range(700)]
    asked = request(prompt_tokens=ids, token_limit=4)
    with pytest.raises(grpc.aio.AioRpcError, match="too long"):
        await generate(trio.orchestrator, asked)
    asked.overflow.truncate_prompt = True
    asked.overflow.keep_token_count = 10
    completion = await generate(trio.orchestrator, asked)
    prompt = completion.prompt
    assert prompt[:10] == ids[:10]
    assert prompt[10:] == ids[-len(prompt[10:]) :]
    assert 125 < len(prompt) <= 252
    assert completion.finished is not None and completion.finished.truncated


async def test_other_calls(trio: Trio) -> None:
    stub = trio.orchestrator.stub
    tokens = await stub.Tokenize(
        messages.TokenizeTextRequest(text="the rain", add_special=True), timeout=PATIENCE
    )
    assert tokens.tokens[0].token_id == BOS
    assert b"".join(token.text for token in tokens.tokens) == b"the rain"
    text_ids = [token.token_id for token in tokens.tokens[1:]]
    text = await stub.Detokenize(messages.DetokenizeRequest(token_ids=[BOS, *text_ids]))
    assert text.text == "the rain"
    marked = await stub.Detokenize(
        messages.DetokenizeRequest(token_ids=[BOS, *text_ids], show_special=True)
    )
    assert marked.text.endswith("the rain") and len(marked.text) > len("the rain")
    with pytest.raises(grpc.aio.AioRpcError, match="token id 64 is outside"):
        await stub.Detokenize(messages.DetokenizeRequest(token_ids=[64]))
    asked = messages.EmbedRequest()
    for words in ("the rain in spain", "the rain in spain", "a plain"):
        asked.inputs.add().parts.add().text = words
    embedded = await stub.Embed(asked, timeout=PATIENCE)
    one, same, other = [list(each.values) for each in embedded.embeddings]
    assert one == same != other
    assert sum(value * value for value in one) == pytest.approx(1.0, abs=1e-5)
    assert all(each.norm > 0 for each in embedded.embeddings)
    asked.inputs[1].parts[0].text = "rain " * 5000
    with pytest.raises(grpc.aio.AioRpcError, match="prompt too long") as caught:
        await stub.Embed(asked, timeout=PATIENCE)
    info = read_error_info(caught.value.trailing_metadata())
    assert info is not None and info.metadata["field"] == "inputs[1]"


async def test_a_disconnect_amid_several_completions_frees_everything(trio: Trio) -> None:
    asked = request(token_limit=-1)
    asked.completion_count = 3
    call = trio.orchestrator.stub.Generate(asked, timeout=PATIENCE)
    for _ in range(10):
        await call.read()
    call.cancel()
    for _ in range(200):
        status = await trio.orchestrator.status()
        if not status.active_generation_count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("generations continue")
