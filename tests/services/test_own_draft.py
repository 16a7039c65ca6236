"""A target that drafts in its own process, through real services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from outrider.engine.hosting import HostOptions
from outrider.engine.model import Chunk, Numerics, Rollback
from outrider.errors import DecodeFailed, InvalidRequest
from outrider.sampling import SamplingParameters
from outrider.speculation import MODEL, Policy, Speculation
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.support.renamed import Renamed
from tests.support.services import (
    DRAFT,
    TARGET,
    Interruption,
    ModelProcess,
    OrchestratorProcess,
    generate,
    request,
    running,
    toy,
    written_alone,
)
from tests.support.streams import VerifyStream, sampled
from tests.support.toy import NEVER, ToyModel

PACE = 0.002
TEXT = [0, 12, 40, 7]


def target() -> ToyModel:
    return toy(seed=1)


def good() -> ToyModel:
    """A draft that mostly agrees, and costs nothing."""
    return toy(seed=2, like=1, agreement=0.98)


def slow() -> ToyModel:
    """The target at a price, so that drafts pay; a decode of more rows costs the same."""
    return toy(seed=1, step_seconds=PACE)


@asynccontextmanager
async def drafting(
    make_draft: Any = good, **options: Any
) -> AsyncIterator[tuple[ModelProcess, OrchestratorProcess]]:
    """Start a target with a draft of its own, and an orchestrator with no other."""
    options = {"speculation": Speculation(), **options}
    async with (
        running(ModelProcess(TARGET, slow, own_draft=make_draft)) as process,
        running(OrchestratorProcess(process.address, **options)) as orchestrator,
    ):
        await orchestrator.until_ready()
        yield process, orchestrator


async def warm(orchestrator: OrchestratorProcess) -> None:
    """Let the orchestrator learn."""
    await generate(orchestrator, request(temperature=0.0, token_limit=120))


async def drafted_text(orchestrator: OrchestratorProcess, asked: Any, least: int = 1) -> Any:
    """Generate; again where too little was drafted: on a busy machine it seems not to pay."""
    for _ in range(20):
        done = await generate(orchestrator, asked)
        if done.statistics.drafted_token_count >= least:
            break
    return done


async def written(stream: VerifyStream, length: int) -> tuple[list[int], list[Any]]:
    """Return the text, by what each decode of each answer accepts, once it has so many tokens."""
    text, answers = list(TEXT), []
    while len(text) < length:
        answer = await stream.receive()
        assert answer.WhichOneof("outcome") == "rows", answer
        assert answer.position == len(text)
        rows = list(answer.rows.token_ids)
        own = [list(each.token_ids) for each in answer.own_drafts] or [[]] * len(rows)
        for draft in own:
            its_rows, rows = rows[: len(draft) + 1], rows[len(draft) + 1 :]
            same = next((i for i, d in enumerate(draft) if d != its_rows[i]), len(draft))
            text += its_rows[: same + 1]
        assert not rows
        answers.append(answer)
    return text, answers


def expected(count: int) -> list[int]:
    text, model = list(TEXT), target()
    while len(text) < len(TEXT) + count:
        text += sampled(model, text, 1)
    return text


async def test_a_round_lets_it_draft_and_the_answer_says_what_it_drafted():
    async with (
        running(ModelProcess(TARGET, target, own_draft=good)) as service,
        VerifyStream(service) as stream,
    ):
        await stream.send_round(
            1, 0, TEXT, continuation={"token_count": 30, "own_draft_token_count": 3}
        )
        text, answers = await written(stream, len(TEXT) + 30)
        assert text[: len(TEXT) + 30] == expected(30)
        drafts = [own for answer in answers for own in answer.own_drafts]
        assert sum(len(own.token_ids) for own in drafts) > 10
        assert all(len(own.confidences) == len(own.token_ids) <= 3 for own in drafts)
        assert not answers[0].own_drafts  # the decode that reads the prompt has none


async def test_it_drafts_after_a_rejection_where_the_text_is_partly_decoded_again():
    def recurrent() -> ToyModel:
        return toy(seed=1, rollback=Rollback.CHECKPOINTS)

    def wrong() -> ToyModel:
        return toy(seed=9)

    native = HostOptions(numerics=Numerics.NATIVE)
    async with (
        running(ModelProcess(TARGET, recurrent, native, own_draft=wrong)) as service,
        VerifyStream(service) as stream,
    ):
        await stream.send_round(
            1, 0, TEXT, continuation={"token_count": 30, "own_draft_token_count": 3}
        )
        text, answers = await written(stream, len(TEXT) + 30)
    assert text[: len(TEXT) + 30] == expected(30)
    drafts = [own for answer in answers for own in answer.own_drafts]
    decodes = sum(len(answer.own_drafts) or len(answer.rows.token_ids) for answer in answers)
    # All but the first, which reads the prompt, and the last, which may have no room for a draft.
    assert decodes > 20 and len(drafts) >= decodes - 4


async def test_a_target_without_a_draft_of_its_own_is_asked_in_vain():
    async with running(ModelProcess(TARGET, target)) as service, VerifyStream(service) as stream:
        await stream.send_round(
            1, 0, TEXT, continuation={"token_count": 8, "own_draft_token_count": 3}
        )
        text, answers = await written(stream, len(TEXT) + 8)
        assert text == expected(8)
        assert not any(answer.own_drafts for answer in answers)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("agreement", [0.98, 0.5])
async def test_the_text_is_the_targets_own(temperature: float, agreement: float):
    async with drafting(lambda: toy(seed=2, like=1, agreement=agreement)) as (_, orchestrator):
        await warm(orchestrator)
        for seed in range(3):
            asked = request(seed=seed, temperature=temperature, token_limit=60)
            done = await generate(orchestrator, asked)
            assert done.token_ids == written_alone(target(), asked)


async def test_a_good_one_is_used_and_counted_as_the_model():
    async with drafting() as (process, orchestrator):
        await warm(orchestrator)
        asked = request(temperature=0.0, token_limit=100)
        for _ in range(20):  # on a busy machine it seems not to pay
            before = process.decode_count
            done = await generate(orchestrator, asked)
            assert done.token_ids == written_alone(target(), asked)
            statistics = done.statistics
            if statistics.drafted_token_count > 20:
                break
        assert statistics.drafted_token_count > 20
        assert process.decode_count - before < 80
        assert done.origin_count(messages.TOKEN_ORIGIN_DRAFTED) == statistics.accepted_token_count
        [model] = [each for each in statistics.sources if each.name == MODEL]
        assert model.drafted_token_count == statistics.drafted_token_count
        assert model.accepted_token_count == statistics.accepted_token_count
        assert statistics.draft_fault_count == 0


async def test_one_that_is_always_wrong_is_left_alone():
    async with drafting(lambda: toy(seed=9)) as (_, orchestrator):
        for _ in range(2):
            await warm(orchestrator)
        done = await generate(orchestrator, request(temperature=0.0, token_limit=100))
        assert done.statistics.drafted_token_count < 30


async def test_one_whose_decodes_fail_costs_nothing_but_its_drafts():
    draft = good()

    def fail(chunks: Sequence[Chunk]) -> None:
        raise DecodeFailed("a bad moment")

    async with drafting(lambda: draft) as (_, orchestrator):
        await warm(orchestrator)
        asked = request(temperature=0.0, token_limit=80)

        async def break_it() -> None:
            draft.before_decode = fail

        done = await generate(orchestrator, asked, [Interruption(20, break_it)])
        assert done.token_ids == written_alone(target(), asked)


async def test_sessions_share_the_drafts_decodes_and_have_their_own_texts():
    draft = good()
    async with drafting(lambda: draft) as (_, orchestrator):
        await warm(orchestrator)
        # A fixed length: whether it pays for four at once goes by what decodes took here.
        fixed = {"policy": messages.DRAFT_POLICY_FIXED, "n_max": 3}
        asked = [request(f"text {i}", seed=i, token_limit=60, **fixed) for i in range(4)]
        done = await asyncio.gather(*(generate(orchestrator, each) for each in asked))
        for each, completion in zip(asked, done, strict=True):
            assert completion.token_ids == written_alone(target(), each)
        assert any(len(decode.chunks) > 1 for decode in draft.decodes)


async def test_a_watched_text_has_a_report_for_every_drafted_round():
    async with drafting() as (_, orchestrator):
        await warm(orchestrator)
        asked = request(temperature=0.0, token_limit=60)
        asked.round_detail = messages.ROUND_DETAIL_TOKENS
        done = await drafted_text(orchestrator, asked, least=6)
        drafted = sum(len(report.draft) for report in done.reports)
        assert drafted == done.statistics.drafted_token_count > 5
        for report in done.reports:
            kept = [token.token_id for token in report.draft][: report.accepted_token_count]
            begin = report.committed_token_count - len(done.prompt)
            text = done.token_ids[begin : begin + len(kept) + 1]
            assert text == [*kept, report.target.token_id][: len(text)]


async def test_a_stop_sequence_takes_back_what_was_accepted_after_it():
    async with drafting() as (_, orchestrator):
        await warm(orchestrator)
        whole = await generate(orchestrator, request(temperature=0.0, token_limit=80))
        stop = whole.text[30:33]
        asked = request(temperature=0.0, token_limit=80, stop_sequences=[stop])
        done = await generate(orchestrator, asked)
        assert done.text == whole.text[: whole.text.index(stop)]
        count = done.origin_count(messages.TOKEN_ORIGIN_DRAFTED)
        assert done.statistics.accepted_token_count <= count
        assert done.statistics.accepted_token_count >= count - 3


async def test_log_probabilities_are_those_of_the_tokens():
    async with drafting() as (_, orchestrator):
        await warm(orchestrator)
        asked = request(temperature=0.0, token_limit=60)
        asked.logprobs.top_count = 2
        done = await drafted_text(orchestrator, asked)
        asked.speculative.enabled = False
        plain = await generate(orchestrator, asked)
        assert done.statistics.drafted_token_count and not plain.statistics.drafted_token_count
        assert done.token_ids == plain.token_ids
        assert done.logprobs == plain.logprobs


async def test_a_target_that_restarts_writes_on():
    async with drafting() as (process, orchestrator):
        await warm(orchestrator)
        asked = request(temperature=0.0, token_limit=100)
        done = await generate(orchestrator, asked, [Interruption(30, process.restart)])
        assert done.token_ids == written_alone(target(), asked)


async def test_under_rejection_it_drafts_unless_tokens_are_judged_one_by_one():
    async with drafting() as (_, orchestrator):
        asked = request(token_limit=60, acceptance=common.ACCEPTANCE_RULE_REJECTION)
        done = await drafted_text(orchestrator, asked)
        assert 0 < done.statistics.accepted_token_count < done.statistics.drafted_token_count
        asked.speculative.verification = messages.VERIFICATION_TOKEN
        done = await generate(orchestrator, asked)
        assert done.statistics.drafted_token_count == 0


async def test_under_rejection_a_target_that_restarts_writes_on():
    def endless() -> ToyModel:
        return toy(seed=1, step_seconds=10 * PACE, eos_bias=NEVER)

    async with (
        running(ModelProcess(TARGET, endless, own_draft=good)) as process,
        running(OrchestratorProcess(process.address, speculation=Speculation())) as orchestrator,
    ):
        await orchestrator.until_ready()
        asked = request(token_limit=100, acceptance=common.ACCEPTANCE_RULE_REJECTION)
        done = await generate(orchestrator, asked, [Interruption(30, process.restart)])
        assert len(done.token_ids) == 100 and done.statistics.target_fault_count > 0
        assert done.statistics.drafted_token_count > 0


@asynccontextmanager
async def on_the_same_cores(
    make_own: Any, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[list[bytes], OrchestratorProcess]]:
    """Start a target with a draft of its own, and a good draft that takes turns with it.

    Yields the sessions that a stream to that draft was opened for.
    """
    monkeypatch.setattr("orchestrator.first_estimates._take_turns", lambda *_: True)
    async with (
        running(ModelProcess(TARGET, slow, own_draft=make_own)) as process,
        running(ModelProcess(DRAFT, good)) as draft,
        running(
            OrchestratorProcess(process.address, draft.address, speculation=Speculation())
        ) as orchestrator,
    ):
        await orchestrator.until_ready()
        opened, pin = list[bytes](), draft.host.pin

        def noted(session_id: bytes, pinned: bool) -> None:
            opened.extend([session_id] * pinned)
            pin(session_id, pinned)

        monkeypatch.setattr(draft.host, "pin", noted)
        yield opened, orchestrator


async def test_a_draft_on_the_same_cores_is_not_even_called(monkeypatch: pytest.MonkeyPatch):
    async with on_the_same_cores(good, monkeypatch) as (opened, orchestrator):
        asked = request(temperature=0.0, token_limit=120)
        done = await generate(orchestrator, asked)
        assert done.token_ids == written_alone(target(), asked)
        assert done.statistics.drafted_token_count > 0
        assert opened == []


async def test_it_is_called_once_the_targets_own_falls_silent(monkeypatch: pytest.MonkeyPatch):
    def unfit() -> Refusing:
        return Refusing(seed=2, context=256)

    async with on_the_same_cores(unfit, monkeypatch) as (opened, orchestrator):
        asked = request(temperature=0.0, token_limit=200)
        for _ in range(10):  # it is asked only where a draft seems to pay, as on no busy machine
            done = await generate(orchestrator, asked)
            assert done.token_ids == written_alone(target(), asked)
            if opened:
                break
        assert len(opened) == 1


class Refusing(ToyModel):
    """A draft with whose vocabulary no sampling goes."""

    def sampler(self, parameters: SamplingParameters, seed: int = 0, choice: int = 0) -> Any:
        raise InvalidRequest("logit_bias", "names a token that it does not have")


@pytest.mark.parametrize("draft", [toy(seed=2, vocabulary_size=60), Refusing(seed=2, context=256)])
async def test_what_the_draft_does_not_have_does_not_end_a_text(draft: ToyModel):
    async with drafting(lambda: draft) as (_, orchestrator):
        await warm(orchestrator)
        asked = request(temperature=0.0, token_limit=40, prompt_tokens=[0, 12, 63, 7])
        done = await generate(orchestrator, asked)
        assert done.token_ids == written_alone(target(), asked)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_a_draft_with_other_ids_drafts_in_the_targets(temperature: float) -> None:
    """Its vocabulary is of single letters, so that a text has one encoding."""

    def alone() -> ToyModel:
        return toy(seed=1, vocabulary_size=32)

    def renamed() -> Renamed:
        return Renamed(toy(seed=2, like=1, agreement=0.98, vocabulary_size=32))

    fixed = Speculation(policy=Policy.FIXED, n_max=3)  # whatever it gains on a busy machine
    async with (
        running(ModelProcess(TARGET, alone, own_draft=renamed)) as process,
        running(OrchestratorProcess(process.address, speculation=fixed)) as orchestrator,
    ):
        await orchestrator.until_ready()
        await warm(orchestrator)
        asked = request(temperature=temperature, token_limit=120)
        completion = await generate(orchestrator, asked)
        assert completion.token_ids == written_alone(toy(seed=1, vocabulary_size=32), asked)
        assert completion.origin_count(messages.TOKEN_ORIGIN_DRAFTED) > 20
