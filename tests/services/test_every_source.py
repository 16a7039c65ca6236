"""Every source of drafts, alone and together, over bad links, and its draft killed: the same text.

Under `rejection`, where another text may be right, the distribution is the target's. The seeds are
fixed; a correct change of the noise fails a chi-square test with odds of 1e-4.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from outrider.engine.model import Layout
from outrider.grammar.schema import grammar_of_schema
from outrider.sampling import SamplingParameters
from outrider.speculation import DRAFTERS, LOCAL_DRAFTERS, MODEL
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.services.test_rejection_over_the_wire import (
    ALARM,
    COUNT,
    exact_distribution,
    p_value,
    starts,
)
from tests.services.test_rejection_over_the_wire import draft as small_draft
from tests.support.copying import JSON_SIGNS, CopyingToy
from tests.support.proxy import Cut, Meddler, Proxy, Way
from tests.support.services import (
    CONTEXT,
    DRAFT,
    TARGET,
    Completion,
    Interruption,
    ModelProcess,
    OrchestratorProcess,
    generate,
    request,
    running,
    three_services,
    written_alone,
)
from tests.support.thorough import THOROUGH, cells
from tests.support.toy import NEVER, generate_alone

LENGTH, KILLED_AT = 64, 16
ATTEMPTS = 30
"""Texts after which a source has to have drafted, however little of the machine is ours."""

PATIENCE = 60.0
KEYS = ["the_outrider_rides", "the_road_is_clear"]
SCHEMA = {"type": "object", "properties": {key: {"enum": ["a", "b"]} for key in KEYS}}
SCHEMA |= {"required": KEYS, "additionalProperties": False}
PINNED = {"n_max": 4, "policy": messages.DRAFT_POLICY_FIXED}


def copying(**options: Any) -> CopyingToy:
    """Return a toy that copies, in which every held token counts."""
    return CopyingToy(
        **{"context": CONTEXT, "order": CONTEXT, "batch_rows": 128, "vocabulary_size": 40},
        **{"changed_texts": JSON_SIGNS, "eos_bias": NEVER, **options},
    )


def target() -> CopyingToy:
    return copying(seed=1)


def draft() -> CopyingToy:
    """Return a draft that is often right, and may write several lines."""
    return copying(seed=2, like=1, agreement=0.8, layouts=(Layout(is_pool=True),))


# --- the links ---


def slow_link() -> Meddler:
    async def meddle(_: Way, message: bytes) -> AsyncIterator[bytes]:
        await asyncio.sleep(0.002)
        yield message

    return meddle


def lossy_link(rng: random.Random, *, is_drafts: bool) -> Meddler:
    """Return what cuts streams, and of a draft's messages loses some and says some twice."""

    async def meddle(way: Way, message: bytes) -> AsyncIterator[bytes]:
        kind = rng.random()
        if kind < 0.01:
            raise Cut
        if not is_drafts or (way is Way.UP and message[:1] == _OPENS):
            yield message
        elif kind < 0.85:
            yield message
            if kind < 0.1:
                yield message

    return meddle


_OPENS = b"\x0a"
"""A message that opens a stream begins with it: field 1 of both requests."""


@dataclass(frozen=True, slots=True)
class World:
    """The services, and what happens to the draft in each text."""

    draft: ModelProcess
    orchestrator: OrchestratorProcess
    kills: bool

    async def write(self, asked: messages.GenerateRequest) -> Completion:
        """Run a generation through whatever happens here."""
        kill = [Interruption(KILLED_AT, self.draft.kill)] if self.kills else []
        completion = await generate(self.orchestrator, asked, kill, timeout=PATIENCE)
        if self.kills:
            await self.draft.restart()
            await self.orchestrator.until_ready()
        return completion


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """Run services whose messages to the draft come late or are lost, or whose draft is killed."""
    rng, kills = random.Random(1), request.param == "killed"
    options = {"share_past_texts": 10_000, "draft_seconds": 0.2}
    async with contextlib.AsyncExitStack() as stack:

        async def start(process: Any) -> Any:
            return await stack.enter_async_context(running(process))

        service = await start(ModelProcess(TARGET, target, pace=0.004))
        drafting = await start(ModelProcess(DRAFT, draft))
        addresses = [service.address, drafting.address]
        if not kills:
            for i, method in enumerate(("Verify", "Draft")):
                link: Callable[[], Meddler] = slow_link
                if request.param == "loss":
                    link = partial(lossy_link, rng, is_drafts=method == "Draft")
                addresses[i] = (await start(Proxy(addresses[i], method, link))).address
        orchestrator = await start(OrchestratorProcess(*addresses, **options))
        await orchestrator.until_ready()
        yield World(drafting, orchestrator, kills)


# --- the sources ---


@dataclass(frozen=True, slots=True)
class Case:
    """How a text is drafted."""

    drafters: Sequence[str]
    predicts: Callable[[list[int]], list[int]] = lambda _: []  # of the text that comes
    options: dict[str, Any] = field(default_factory=dict)

    def request(self, temperature: float, seed: int) -> messages.GenerateRequest:
        made = request(
            "the rain in spain is plain, the rain in spain is",
            temperature=temperature,
            seed=seed,
            token_limit=LENGTH,
            drafters=self.drafters,
            **PINNED | self.options,
        )
        if "forced" in self.drafters:
            made.json_schema = json.dumps(SCHEMA)
        return made

    def has_drafted(self, completion: Completion) -> bool:
        """Return whether what this is about took part in a text."""
        statistics = completion.statistics
        drafted = {each.name for each in statistics.sources if each.drafted_token_count}
        if "n_parallel" in self.options and not statistics.forked_miss_count:
            return False
        return len(drafted) >= 2 if len(self.drafters) > 2 else self.drafters[-1] in drafted


def edited(text: list[int]) -> list[int]:
    return [*text[:20], 5, *text[24:]]


CASES = {
    **{name: Case([name]) for name in LOCAL_DRAFTERS if name != "prediction"},
    "a right prediction": Case(["prediction"], lambda text: text),
    "an edited prediction": Case(["prediction"], edited),
    "a wrong prediction": Case(["prediction"], lambda text: [3 + (i + 1) % 30 for i in text]),
    "a hostile prediction": Case(["prediction"], lambda _: [9] * 300),
    "the model": Case([MODEL]),
    "runner-up lines": Case([MODEL], options={"run_ahead": True, "n_parallel": 4, "p_split": 0.01}),
    "all": Case(sorted(DRAFTERS), edited),
    "all, by what pays": Case(sorted(DRAFTERS), edited, {"policy": 0, "n_max": 16}),
}


def truth(asked: messages.GenerateRequest) -> list[int]:
    """Return what the target writes alone."""
    if not asked.json_schema:
        return written_alone(target(), asked)
    model, grammar = target(), grammar_of_schema(asked.json_schema)
    sampling = SamplingParameters(temperature=asked.sampling.temperature, grammar=grammar)
    prompt = model.tokenize(asked.prompt_text.encode(), add_special=True, parse_special=False)
    return generate_alone(model, prompt, LENGTH, sampling, asked.seed)


@pytest.mark.parametrize(
    ("world", "name", "temperature"),
    cells(["delay", "loss", "killed"], CASES, [0.0, 0.8]),
    indirect=["world"],
)
async def test_the_text_is_the_same_whoever_drafts(
    world: World, name: str, temperature: float, every_line_pays: None
) -> None:
    case, attempt, has_drafted = CASES[name], 0, False
    drafters = [MODEL, *case.drafters] if world.kills and len(case.drafters) == 1 else case.drafters
    while not has_drafted:
        attempt += 1
        assert attempt <= ATTEMPTS
        asked = case.request(temperature, seed=attempt)
        del asked.speculative.drafters[:]
        asked.speculative.drafters.extend(dict.fromkeys(drafters))
        if attempt % 2 == 0:
            # A target that writes by itself may have overtaken every line; so it does not.
            asked.speculative.rollback = messages.ROLLBACK_MODE_RPC
        expected = truth(asked)
        if prediction := case.predicts(expected):
            asked.prediction.tokens.token_ids.extend(prediction)
        completion = await world.write(asked)
        assert completion.token_ids == expected
        has_drafted = case.has_drafted(completion)


# --- the rejection rule ---

SIGNS = 'root ::= ("." "?" [.? ] "?"){4,}'
"""Every other token is forced."""

TEXTS = 200
REPEATS = [0, *[3, 4, 5, 6] * 8]
REJECTED: dict[str, Any] = {
    **{name: [name] for name in (*LOCAL_DRAFTERS, MODEL)},
    "all": sorted(DRAFTERS),
}


def small_target() -> CopyingToy:
    """Return a target of four tokens and the end."""
    return CopyingToy(**SMALL, seed=4, eos_bias=-1.0)


SMALL: dict[str, Any] = {"vocabulary_size": 7, "spread": 1.0, "sequence_count": 16, "copies": 1.0}
SMALL |= {"context": CONTEXT, "order": CONTEXT, "batch_rows": 128}


# A source without a model is sure of each token, whichever it is; what is forced has a grammar too.
@pytest.mark.parametrize("name", REJECTED if THOROUGH else ["forced", "all"])
async def test_under_rejection_every_source_leaves_the_distribution(
    name: str, every_line_pays: None
) -> None:
    """Of the first tokens together, where what a source proposes is a row of one token."""
    sampling = SamplingParameters(temperature=0.8, grammar=SIGNS if name == "forced" else "")
    drafted = 0
    slots = asyncio.Semaphore(8)
    async with three_services(
        small_target, small_draft, draft_seconds=30.0, share_past_texts=10_000
    ) as trio:

        async def one(seed: int) -> tuple[int, ...]:
            nonlocal drafted
            asked = request(
                prompt_tokens=REPEATS,
                seed=seed,
                token_limit=COUNT + 1,
                n_max=2,
                acceptance=common.ACCEPTANCE_RULE_REJECTION,
                drafters=REJECTED[name],
            )
            asked.sampling.grammar = sampling.grammar
            if "prediction" in REJECTED[name]:
                asked.prediction.tokens.token_ids.extend([3, 4, 3, 4, 3])
            async with slots:
                completion = await generate(trio.orchestrator, asked, timeout=PATIENCE)
            drafted += completion.statistics.drafted_token_count
            return tuple(completion.token_ids)

        written = list(await asyncio.gather(*(one(seed) for seed in range(TEXTS))))
    assert drafted > TEXTS / 20
    distribution = exact_distribution(small_target(), COUNT, REPEATS, sampling)
    assert p_value(starts(written), distribution) > ALARM
