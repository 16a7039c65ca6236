"""Drafts with other vocabularies: the target and its text notice nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outrider.engine.model import Rollback
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_service_pb2 as draft_messages
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.services.test_rejection_over_the_wire import (
    ALARM,
    COUNT,
    SEEDS,
    exact_distribution,
    p_value,
    starts,
    texts,
)
from tests.services.test_rejection_over_the_wire import target as small_target
from tests.support.renamed import Renamed
from tests.support.services import (
    DRAFT_WITH_SUFFIXES,
    TARGET,
    Interruption,
    JoiningDraft,
    ModelProcess,
    OrchestratorProcess,
    eventually,
    generate,
    request,
    running,
    three_services,
    toy,
    written_alone,
)
from tests.support.toy import NEVER, ToyModel

DRAFTED = messages.TOKEN_ORIGIN_DRAFTED
LETTERS = 32
"""Tokens of a vocabulary of single characters, in which a text has one encoding."""

TOKENS = draft_messages.TRANSLATION_LEVEL_TOKENS
STRINGS = draft_messages.TRANSLATION_LEVEL_STRINGS


def target() -> ToyModel:
    return toy(vocabulary_size=LETTERS, eos_bias=NEVER)


def renamed() -> Renamed:
    """Return a draft that is nearly always right, in ids of its own."""
    return Renamed(toy(seed=2, like=1, agreement=0.98, vocabulary_size=LETTERS, eos_bias=NEVER))


def pairs_of_letters() -> ToyModel:
    """Return a draft that has few of the target's tokens: most of its own are two letters."""
    two = {i: b"%c%c" % (97 + i % 26, 97 + i * 7 % 26) for i in range(4, LETTERS)}
    return toy(seed=2, vocabulary_size=LETTERS, changed_texts=two, eos_bias=NEVER)


def larger() -> Renamed:
    """Return a draft with ten times the tokens, those of the target among them."""
    return Renamed(toy(seed=2, vocabulary_size=400, eos_bias=NEVER))


FOREIGN: dict[str, tuple[Callable[[], Any], int]] = {
    "renamed": (renamed, TOKENS),
    "pairs": (pairs_of_letters, STRINGS),
    "larger": (larger, STRINGS),
}


async def until_translated(orchestrator: OrchestratorProcess, level: int = TOKENS) -> None:
    """Wait until the configured draft has learned the target's vocabulary."""
    [draft] = orchestrator.pool.drafts
    await eventually(lambda: draft.translation is not None)
    assert draft.translation is not None
    assert draft.translation.level == level
    assert not draft.obstacle()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("foreign", FOREIGN)
async def test_the_text_is_the_targets_own(foreign: str, temperature: float) -> None:
    make_draft, level = FOREIGN[foreign]
    async with three_services(target, make_draft) as trio:
        await until_translated(trio.orchestrator, level)
        for seed in (1, 2):
            asked = request(seed=seed, temperature=temperature, token_limit=80)
            completion = await generate(trio.orchestrator, asked)
            assert completion.token_ids == written_alone(target(), asked)
            assert completion.statistics.drafted_token_count > 0
            if foreign == "renamed":
                assert completion.origin_count(DRAFTED) > 20


@pytest.mark.parametrize("foreign", FOREIGN)
async def test_a_foreign_draft_that_dies_in_the_middle_leaves_the_text(foreign: str) -> None:
    make_draft, level = FOREIGN[foreign]
    asked = request(token_limit=120)
    async with three_services(target, make_draft, pace=0.002) as trio:
        await until_translated(trio.orchestrator, level)
        dies = Interruption(20, trio.draft.kill)
        completion = await generate(trio.orchestrator, asked, [dies])
        assert completion.token_ids == written_alone(target(), asked)


async def test_a_draft_that_starts_anew_is_told_the_vocabulary_again() -> None:
    asked = request(token_limit=200)
    async with three_services(target, renamed, pace=0.002) as trio:
        await until_translated(trio.orchestrator)
        completion = await generate(
            trio.orchestrator, asked, [Interruption(20, trio.draft.restart)]
        )
        assert completion.token_ids == written_alone(target(), asked)
        await eventually(lambda: not trio.orchestrator.pool.obstacle())
        await until_translated(trio.orchestrator)
        again = await generate(trio.orchestrator, asked)
        assert again.origin_count(DRAFTED) > 50


async def test_no_message_more_is_sent_for_a_token() -> None:
    asked = request(token_limit=60, temperature=0.0)
    counts = []
    for make_draft in (renamed, lambda: renamed().inner):
        async with three_services(target, make_draft) as trio:
            if isinstance(trio.draft.model, Renamed):
                await until_translated(trio.orchestrator)
            completion = await generate(trio.orchestrator, asked)
            counts.append((completion.statistics.round_count, completion.origins))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("kind", ["renamed", "pairs"])
async def test_a_recurrent_draft_that_translates_reads_no_text_again_at_each_rejection(
    kind: str,
) -> None:
    def make() -> Any:
        if kind == "renamed":
            options = {"seed": 2, "like": 1, "agreement": 0.9, "vocabulary_size": LETTERS}
            return Renamed(toy(**options, eos_bias=NEVER, rollback=Rollback.CHECKPOINTS))
        model = pairs_of_letters()
        model.rollback = Rollback.CHECKPOINTS
        model.open(model.layout)
        return model

    asked = request(token_limit=100, temperature=0.0)
    async with three_services(target, make) as trio:
        await until_translated(trio.orchestrator, TOKENS if kind == "renamed" else STRINGS)
        before = len(trio.draft.model.decodes)
        completion = await generate(trio.orchestrator, asked)
        assert completion.token_ids == written_alone(target(), asked)
        read = sum(each.token_count for each in trio.draft.model.decodes[before:])
        rejected = completion.statistics.drafted_token_count
        rejected -= completion.statistics.accepted_token_count
        assert rejected > 50
        assert read < 1000  # a text of 50 tokens on average, at each of them, is 2,500 and more


async def test_what_was_said_before_the_model_goes_on_in_the_targets_ids() -> None:
    """Local sources propose the target's tokens, in between those of the draft."""
    asked = request("the rain the rain the rain the ", token_limit=60, drafters=["model"])
    for make_draft, level in FOREIGN.values():
        async with (
            running(ModelProcess(TARGET, target)) as process,
            running(ModelProcess(DRAFT_WITH_SUFFIXES, make_draft)) as draft,
            running(OrchestratorProcess(process.address, draft.address)) as orchestrator,
        ):
            await orchestrator.until_ready()
            await until_translated(orchestrator, level)
            completion = await generate(orchestrator, asked)
            assert completion.token_ids == written_alone(target(), asked)


async def test_a_foreign_draft_may_join() -> None:
    asked = request(token_limit=120)
    async with (
        running(ModelProcess(TARGET, target, pace=0.002)) as process,
        running(OrchestratorProcess(process.address, accept_drafts=True)) as orchestrator,
    ):
        await orchestrator.until_ready()
        async with running(JoiningDraft(orchestrator.address, renamed)):
            await eventually(lambda: bool(orchestrator.pool.drafts))
            await until_translated(orchestrator)
            completion = await generate(orchestrator, asked)
            assert completion.token_ids == written_alone(target(), asked)
            assert completion.origin_count(DRAFTED) > 20


async def test_other_ids_are_refused_where_the_same_are_asked_for() -> None:
    async with three_services(target, renamed, same_vocabulary=True) as trio:
        pair = trio.orchestrator.pool
        await eventually(lambda: pair.drafts[0].mismatch is not None)
        assert "differs" in pair.obstacle()
        completion = await generate(trio.orchestrator, request())
        assert completion.origin_count(DRAFTED) == 0


async def test_a_session_of_an_unknown_vocabulary_is_refused() -> None:
    async with running(ModelProcess(DRAFT_WITH_SUFFIXES, renamed)) as draft:
        opening = common.OpenSession(
            session_id=bytes(16),
            acceptance_rule=common.ACCEPTANCE_RULE_MATCH,
            prompt_token_count=1,
            vocabulary_token_count=LETTERS,
            vocabulary_key=bytes(32),
        )
        call = draft.stub.Draft()
        await call.write(draft_messages.DraftRequest(open=opening))
        assert "is not known" in (await call.details() or "")


@pytest.mark.parametrize(
    "lesson",
    [
        [],
        [draft_messages.LearnVocabularyRequest(tokens=common.ListVocabularyResponse())],
        [
            draft_messages.LearnVocabularyRequest(
                introduction=draft_messages.VocabularyIntroduction(key=b"short")
            )
        ],
        [
            draft_messages.LearnVocabularyRequest(
                introduction=draft_messages.VocabularyIntroduction(
                    key=bytes(32), vocabulary=common.Vocabulary(token_count=count)
                )
            )
            for count in (3, 3)
        ],
        [
            draft_messages.LearnVocabularyRequest(
                introduction=draft_messages.VocabularyIntroduction(
                    key=bytes(32), vocabulary=common.Vocabulary(token_count=1)
                )
            ),
            draft_messages.LearnVocabularyRequest(
                tokens=common.ListVocabularyResponse(token_texts=[b"a"] * 9, token_names=[b"a"] * 9)
            ),
        ],
    ],
)
async def test_a_vocabulary_that_is_none_is_refused(lesson: list[Any]) -> None:
    async with running(ModelProcess(DRAFT_WITH_SUFFIXES, renamed)) as draft:
        call = draft.stub.LearnVocabulary(iter(lesson))
        assert (await call.code()).name == "INVALID_ARGUMENT"
        assert not (await draft.stub.GetModel(common.GetModelRequest())).known_vocabulary_keys


async def test_rejection_with_few_tokens_in_common_has_the_targets_distribution() -> None:
    """Half of the draft's tokens are not the target's. Odds of a false alarm: ALARM."""

    def other() -> Renamed:
        changed = {3: b"??", 4: b"\n\n"}
        return Renamed(
            toy(seed=5, vocabulary_size=7, spread=1.0, sequence_count=16, changed_texts=changed)
        )

    async with three_services(small_target, other, draft_seconds=30.0) as trio:
        [draft] = trio.orchestrator.pool.drafts
        await eventually(lambda: draft.translation is not None)
        written = await texts(trio.orchestrator, range(SEEDS))
    assert p_value(starts(written), exact_distribution(small_target(), COUNT)) > ALARM
