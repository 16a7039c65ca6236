"""Trees through services on real ports: the same text, whatever the target says of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest
import pytest_asyncio

from outrider.engine.host import HostOptions
from outrider.engine.model import Layout, Numerics
from outrider.errors import InvalidRequest
from outrider.messages import Round
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.support.services import Trio, generate, request, three_services, toy, written_alone
from tests.support.toy import NEVER, ToyModel

LENGTH = 80
START = [20, 30, 40]
NATIVE = HostOptions(numerics=Numerics.NATIVE)


def target() -> ToyModel:
    return alone(layouts=(Layout(is_pool=True),), step_seconds=0.004)


def alone(**options: Any) -> ToyModel:
    """Return a target whose text follows from its last tokens, so that a prompt can have it."""
    return toy(seed=1, order=3, eos_bias=NEVER, **options)


def draft() -> ToyModel:
    return toy(seed=2, like=1, agreement=0.8, order=3, eos_bias=NEVER)


@pytest_asyncio.fixture(loop_scope="session")
async def trio() -> AsyncIterator[Trio]:
    async with three_services(target, draft, NATIVE) as services:
        yield services


@pytest.fixture(autouse=True)
def _rows_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all nodes pay, and the target wait: times are measured, and others may use the cores."""
    whole = "outrider.core.branching.best_count"
    monkeypatch.setattr(whole, lambda survivals, seconds, rate: (len(survivals), 1e9))
    credit = "outrider.core.asking.Asking._continue_count"
    monkeypatch.setattr(credit, lambda asking, wanted: 0)


def asked(temperature: float, seed: int) -> Any:
    """Return a request for a text of which two sources know versions, wrong in other places."""
    dice = Random(seed)
    start = [each + seed for each in START]
    plain = request(prompt_tokens=[0, *start], temperature=0.0, token_limit=LENGTH)
    right = written_alone(alone(), plain)

    def version() -> list[int]:
        return [(each + 1) % 60 + 3 if dice.random() < 0.3 else each for each in right]

    made = request(
        prompt_tokens=[0, *start, *version(), *start],
        temperature=temperature,
        token_limit=LENGTH,
        seed=seed,
        drafters=["model", "suffix", "prediction"],
        policy=messages.DRAFT_POLICY_MEASURED,
        n_parallel=8,
    )
    made.prediction.tokens.token_ids.extend(version())
    return made


def trees(model: ToyModel) -> int:
    return sum(any(chunk.parents for chunk in each.chunks) for each in model.decodes)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_the_text_is_the_targets_own_and_trees_were_verified(
    trio: Trio, temperature: float
) -> None:
    before = trees(trio.target.model)
    for seed in range(16):
        made = asked(temperature, seed)
        completion = await generate(trio.orchestrator, made)
        assert completion.token_ids == written_alone(alone(), made)
        statistics = completion.statistics
        assert statistics.accepted_token_count <= statistics.drafted_token_count
        if seed >= 3 and (temperature or trees(trio.target.model) > before):
            break
    # At a temperature the noise of a position has a say: there nobody knows the text.
    assert trees(trio.target.model) > before or temperature
    branches = trio.target.model.describe().branch_sequences
    assert not any(map(trio.target.model.held, branches))


async def test_a_target_that_takes_no_trees_after_all_is_asked_for_chains(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = 0

    def refuse(round_: Round, response: object) -> None:
        nonlocal refused
        if round_.parents:
            refused += 1
            raise InvalidRequest("draft.parents", "not any more")

    monkeypatch.setattr("target_service.servicer.check_tree_round", refuse)
    for seed in range(16):
        made = asked(0.0, seed)
        completion = await generate(trio.orchestrator, made)
        assert completion.token_ids == written_alone(alone(), made)
        if seed >= 3 and refused:
            break
    assert refused == 1
