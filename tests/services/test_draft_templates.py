"""A draft reads a conversation in its own chat template; the text is the target's all the same."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest

from orchestrator.own_prompts import OwnPrompts
from orchestrator.peers import Peer
from outrider.engine.model import Layout, Rollback
from outrider.speculation import DraftTemplate, Policy, Speculation
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.services.test_rejection_over_the_wire import (
    ALARM,
    COUNT,
    PROMPT,
    SEEDS,
    exact_distribution,
    p_value,
)
from tests.services.test_rejection_over_the_wire import target as small_target
from tests.services.test_translated_drafts import (
    LETTERS,
    STRINGS,
    pairs_of_letters,
    until_translated,
)
from tests.support.renamed import Renamed
from tests.support.services import (
    TARGET,
    Interruption,
    JoiningDraft,
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
from tests.support.templated import OWN, Templated
from tests.support.toy import BOS, NEVER, ToyModel

OWN_TEMPLATE, TARGETS_TEMPLATE = messages.DRAFT_TEMPLATE_OWN, messages.DRAFT_TEMPLATE_TARGET
CHAT = [{"role": "user", "content": "what is it"}]
RENDERED = "so user says what is it\nand then "
"""The chat by the draft's template; the target's has other words, and more of them."""
PROMPT_TEXT = "user. what is it, user, what is it. answer. "
OPTIONS = {"vocabulary_size": LETTERS, "eos_bias": NEVER}


def target() -> ToyModel:
    return toy(**OPTIONS)


def ids_of(text: str, **options: Any) -> tuple[int, ...]:
    return tuple(toy(**{**OPTIONS, **options}).tokenize(text.encode(), True, True))


def templated(**changes: Any) -> Templated:
    """Return a draft that is nearly always right behind its own prompt, and else never."""
    agrees: dict[str, Any] = {"seed": 2, "like": 1, "agreement": 0.999}
    prompts = {"own": ids_of(RENDERED), "theirs": ids_of(PROMPT_TEXT)}
    made: ToyModel = toy(**OPTIONS)
    shape = {"context": made.context, "order": made.order, "batch_rows": made.batch_rows}
    return Templated(**{**OPTIONS, **shape, **agrees, **prompts, **changes})


def renamed() -> Renamed:
    return Renamed(templated())


def pairs() -> Any:
    """Return a draft with other tokens than the target's, and a template."""
    model = pairs_of_letters()
    described = model.describe

    def describe() -> Any:
        return replace(described(), chat_template=OWN)

    model.describe = describe  # type: ignore[method-assign]
    return model


def asked(template: int = OWN_TEMPLATE, chat: Any = None, **options: Any) -> Any:
    """Return a request whose prompt is a conversation."""
    message = request(PROMPT_TEXT, **{"token_limit": 60, **options}, draft_template=template)
    message.conversation.chat.messages_json = json.dumps(CHAT if chat is None else chat)
    return message


@asynccontextmanager
async def services(make_draft: Callable[[], Any], **options: Any) -> AsyncIterator[Trio]:
    """Start the three; the template is compiled when this begins, and texts are no shorter than
    the time that a rendering takes."""
    async with three_services(target, make_draft, **{"pace": 0.002, **options}) as trio:
        await eventually(lambda: not trio.orchestrator.pool.obstacle())
        await generate(trio.orchestrator, asked(token_limit=8))
        yield trio


def share_of(completion: Any) -> float:
    statistics = completion.statistics
    return float(statistics.accepted_token_count / max(1, statistics.drafted_token_count))


async def text_is_the_targets(trio: Trio, message: Any) -> Any:
    return await drafted_text(trio.orchestrator, message)


async def drafted_text(orchestrator: OrchestratorProcess, message: Any) -> Any:
    """Generate; again where the text was over before there was a draft, as on a busy machine."""
    for _ in range(10):
        completion = await generate(orchestrator, message)
        assert completion.token_ids == written_alone(target(), message)
        if completion.statistics.drafted_token_count >= 20:
            break
    return completion


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("make_draft", [templated, renamed, pairs])
async def test_the_text_is_the_targets_own(
    make_draft: Callable[[], Any], temperature: float
) -> None:
    async with services(make_draft) as trio:
        if make_draft is not templated:
            await until_translated(trio.orchestrator, STRINGS if make_draft is pairs else 1)
        for template in (OWN_TEMPLATE, TARGETS_TEMPLATE):
            for seed in (1, 2):
                message = asked(template, seed=seed, temperature=temperature)
                completion = await text_is_the_targets(trio, message)
                assert completion.statistics.drafted_token_count > 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("make_draft", [templated, renamed])
async def test_a_draft_that_knows_its_own_template_alone_is_accepted_with_it(
    make_draft: Callable[[], Any], temperature: float
) -> None:
    async with services(make_draft) as trio:
        own = await text_is_the_targets(trio, asked(temperature=temperature))
        other = await text_is_the_targets(trio, asked(TARGETS_TEMPLATE, temperature=temperature))
        assert share_of(own) > 0.6
        assert share_of(other) < 0.3
        assert own.token_ids == other.token_ids


async def test_the_orchestrators_own_option_says_it_where_the_request_does_not() -> None:
    default = Speculation(
        n_max=4, policy=Policy.FIXED, run_ahead=False, draft_template=DraftTemplate.OWN
    )
    async with services(templated, speculation=default) as trio:
        assert share_of(await text_is_the_targets(trio, asked(0))) > 0.6
        assert share_of(await text_is_the_targets(trio, asked(TARGETS_TEMPLATE))) < 0.3
        plain = request(PROMPT_TEXT, token_limit=60)
        assert share_of(await text_is_the_targets(trio, plain)) < 0.3


async def test_what_is_continued_stands_behind_the_rendered_conversation() -> None:
    continued = RENDERED + "well, "

    def draft() -> Templated:
        return templated(own=ids_of(continued))

    async with services(draft) as trio:
        message = asked()
        assert share_of(await text_is_the_targets(trio, message)) < 0.3
        message.conversation.continuation = "well, "
        assert share_of(await text_is_the_targets(trio, message)) > 0.6


async def test_each_of_several_completions_is_drafted_with_it() -> None:
    async with services(templated) as trio:
        message = asked()
        message.completion_count = 3
        written: dict[int, list[int]] = {}
        accepted = drafted = 0
        async for response in trio.orchestrator.stub.Generate(message):
            written.setdefault(response.choice_index, []).extend(response.delta.token_ids)
            accepted += response.finished.statistics.accepted_token_count
            drafted += response.finished.statistics.drafted_token_count
        assert accepted > 0.6 * drafted > 0
        assert written[0] == written_alone(target(), message)
        assert len(written) == 3


async def test_a_draft_that_dies_in_the_middle_leaves_the_text() -> None:
    message = asked(token_limit=120)
    for make_draft in (templated, renamed):
        async with services(make_draft) as trio:
            dies = Interruption(20, trio.draft.kill)
            completion = await generate(trio.orchestrator, message, [dies])
            assert completion.token_ids == written_alone(target(), message)


async def test_a_draft_that_starts_anew_is_told_the_conversation_again() -> None:
    message = asked(token_limit=180)
    async with services(templated, pace=0.004) as trio:
        anew = Interruption(20, trio.draft.restart)
        completion = await generate(trio.orchestrator, message, [anew])
        assert completion.token_ids == written_alone(target(), message)
        assert completion.statistics.draft_fault_count > 0
        assert share_of(completion) > 0.6


async def test_rollback_calls_cut_no_session_that_reads_its_own_prompt() -> None:
    async with services(templated) as trio:
        message = asked(rollback=messages.ROLLBACK_MODE_RPC)
        assert share_of(await text_is_the_targets(trio, message)) > 0.6


@pytest.mark.parametrize(
    "changes",
    [{"rollback": Rollback.CHECKPOINTS}, {"layouts": (Layout(is_pool=True),)}],
    ids=["checkpoints", "pool"],
)
async def test_every_kind_of_draft_reads_its_own_prompt(changes: dict[str, Any]) -> None:
    async with services(lambda: templated(**changes)) as trio:
        for options in ({}, {"run_ahead": True, "n_parallel": 4, "p_split": 0.01}):
            before = len(trio.draft.model.decodes)
            completion = await text_is_the_targets(trio, asked(**options))
            assert share_of(completion) > 0.5
            decodes = trio.draft.model.decodes[before:]
            assert sum(each.token_count for each in decodes) < 900  # no text is read again


async def test_the_next_turn_finds_the_conversation_in_the_drafts_cache() -> None:
    """The draft decodes its own tokens, and reads no more of them than are new."""
    async with services(templated) as trio:
        await generate(trio.orchestrator, asked())
        before = len(trio.draft.model.decodes)
        await generate(trio.orchestrator, asked())
        counts = [each.token_count for each in trio.draft.model.decodes[before:]]
        assert max(counts) < 8


async def test_a_prompt_of_its_own_that_does_not_fit_leaves_the_targets() -> None:
    def longer() -> Templated:
        return templated(template="{{ 'a, ' * 300 }}")

    async with services(longer) as trio:
        completion = await text_is_the_targets(trio, asked())
        assert completion.statistics.drafted_token_count > 0


async def test_behind_a_shifted_context_the_draft_reads_the_target() -> None:
    async with services(templated) as trio:
        message = asked(token_limit=400)
        message.overflow.shift = True
        completion = await generate(trio.orchestrator, message)
        message.speculative.enabled = False
        alone = await generate(trio.orchestrator, message)
        assert completion.token_ids == alone.token_ids
        assert len(alone.token_ids) == 400


REFUSALS = {
    "": "it has no chat template",
    "{% nonsense %}": "does not compile",
    "{{ raise_exception('secret words') }}": "refuses a conversation (messages)",
    "{% for i in range(99999999) %}a{% endfor %}": "refuses a conversation (chat_template)",
}


@pytest.mark.parametrize("template", REFUSALS)
async def test_a_template_that_is_missing_or_wrong_is_said_once_and_the_targets_used(
    template: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "outrider.orchestrator")
    async with services(lambda: templated(template=template)) as trio:
        for _ in range(2):
            completion = await text_is_the_targets(trio, asked())
            assert completion.statistics.drafted_token_count > 0
    [line] = [each for each in caplog.records if "reads the target's template" in each.message]
    detail = line.fields["detail"]  # type: ignore[attr-defined]
    assert REFUSALS[template] in detail
    assert "secret" not in detail
    assert "\n" not in detail


async def test_a_conversation_that_is_no_json_is_refused_by_name() -> None:
    async with services(templated) as trio:
        message = asked()
        message.conversation.chat.tools_json = "{"
        for template in (message.speculative.draft_template, TARGETS_TEMPLATE):
            message.speculative.draft_template = template
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await generate(trio.orchestrator, message)
            assert (refusal.value.details() or "").startswith("conversation.chat.tools_json")


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_a_draft_that_joined_reads_its_own_template_where_it_is_trusted(
    is_trusted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A template is a program, and the draft a stranger."""
    options: dict[str, Any] = {"accept_drafts": True, "trust_drafts": is_trusted}
    async with (
        running(ModelProcess(TARGET, target, pace=0.002)) as process,
        running(OrchestratorProcess(process.address, **options)) as orchestrator,
    ):
        await orchestrator.until_ready()
        async with running(JoiningDraft(orchestrator.address, templated)):
            await eventually(lambda: not orchestrator.pool.obstacle())
            await generate(orchestrator, asked(token_limit=8))
            message = asked()
            completion = await drafted_text(orchestrator, message)
            assert (share_of(completion) > 0.6) == is_trusted
            assert completion.statistics.drafted_token_count > 0
            assert (await orchestrator.status()).peers[1].model.chat_template == ""
    said = [each for each in caplog.records if "reads the target's template" in each.message]
    assert len(said) == (0 if is_trusted else 1)


async def test_rejection_with_a_prompt_of_the_drafts_own_has_the_targets_distribution() -> None:
    """Odds of a false alarm: ALARM."""
    rendered = toy(vocabulary_size=7).tokenize(RENDERED.encode(), True, True)

    def draft() -> Templated:
        options = {"vocabulary_size": 7, "spread": 1.0, "sequence_count": 16, "eos_bias": 0.0}
        agrees = {"seed": 5, "like": 4, "agreement": 0.5}
        return templated(**options, **agrees, own=tuple(rendered), theirs=tuple(PROMPT))

    counts: Counter[tuple[int, ...]] = Counter()
    async with three_services(small_target, draft, draft_seconds=30.0) as trio:
        slots = asyncio.Semaphore(8)

        async def one(seed: int) -> Any:
            message = request(
                prompt_tokens=PROMPT,
                seed=seed,
                token_limit=8,
                n_max=2,
                acceptance=common.ACCEPTANCE_RULE_REJECTION,
                draft_template=OWN_TEMPLATE,
            )
            message.conversation.chat.messages_json = json.dumps(CHAT)
            async with slots:
                return await generate(trio.orchestrator, message)

        completions = await asyncio.gather(*(one(seed) for seed in range(SEEDS)))
    counts.update(tuple(each.token_ids[:COUNT]) for each in completions)
    assert p_value(counts, exact_distribution(small_target(), COUNT)) > ALARM
    accepted = sum(each.statistics.accepted_token_count for each in completions)
    drafted = sum(each.statistics.drafted_token_count for each in completions)
    assert 0.3 < accepted / drafted < 0.95
    assert rendered[0] == BOS


@pytest.mark.fault(
    "restart",
    "The record of a draft goes while a conversation is rendered in its template, as in a rolling "
    "replacement",
    before="a bug was logged, and the text ended with an internal error",
    now="the text is written, without that draft",
)
async def test_a_draft_that_is_left_while_its_template_renders_costs_no_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reached, gate = asyncio.Event(), asyncio.Event()

    async def render(self: OwnPrompts, draft: object) -> str:
        reached.set()
        await gate.wait()
        return RENDERED

    async with services(templated) as trio:
        monkeypatch.setattr(OwnPrompts, "prompt_for", render)
        pool, message = trio.orchestrator.pool, asked(token_limit=200)
        [draft] = pool.drafts
        writing = asyncio.create_task(generate(trio.orchestrator, message))
        await reached.wait()
        assert isinstance(draft.peer, Peer)
        pool.leave(draft.peer)
        await eventually(lambda: not pool._closing)
        gate.set()
        assert (await writing).token_ids == written_alone(target(), message)
