"""Both models behind a link that loses, delays and reorders packets: the text stays the target's.

TCP mends what is lost, late: frames and rows come in bursts, long after they
were wanted, and several rounds are in flight at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
import pytest_asyncio

from outrider.client import Delta, Finished, OutriderClient, Request
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.model_service.config import ModelOptions
from outrider.sampling import GREEDY, SamplingParameters
from outrider.speculation import Policy
from outrider_bench.remote_model import start_remote, write_token
from outrider_bench.shaper import Link, Shape, why_not
from outrider_cli.generate.execute import wait_for_pair
from outrider_cli.screen import Progress
from outrider_cli.services.local import HostedModel, LocalPlan, local_services
from tests.support.processes import DRAFT, TARGET
from tests.support.prompts import held_out_prompts
from tests.support.thorough import THOROUGH
from tests.support.toy import generate_alone

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.asyncio(loop_scope="module"),
]

LIMIT = 48
SEED = 5
PROMPTS = held_out_prompts()[:3]
ROUGH = Shape(delay_ms=5.0, jitter_ms=3.0, loss=0.02, may_reorder=True)
ONE_THREAD = ModelOptions(threads=1)
EQUAL_BITS = ModelOptions(threads=1, numerics="exact")  # texts are compared
AHEAD = {"policy": Policy.FIXED, "n_max": 3, "run_ahead": True}
WAYS = {"measured": {}, "far ahead": AHEAD, "serial": {**AHEAD, "run_ahead": False}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OutriderClient]:
    """An orchestrator here; target and draft at the far end."""
    token = write_token(tmp_path_factory.mktemp("link") / "token")

    with Link(ROUGH) as link:
        children = [
            await start_remote(link, "target", HostedModel(TARGET, EQUAL_BITS), token),
            await start_remote(link, "draft", HostedModel(DRAFT, ONE_THREAD), token),
        ]
        try:
            target, draft = [await child.address() for child in children]
            options = ("--draft-timeout", "5")
            plan = LocalPlan(
                target=target, draft=draft, orchestrator=options, peer_token_file=token
            )
            async with (
                local_services(plan) as services,
                OutriderClient(await services.start()) as client,
            ):
                await wait_for_pair(client, Progress())
                yield client
        finally:
            await asyncio.gather(*(child.stop() for child in children))


async def _generate(
    client: OutriderClient, prompt: str, sampling: SamplingParameters, way: str
) -> tuple[list[int], Finished]:
    options = Request(prompt, token_limit=LIMIT, sampling=sampling, seed=SEED, **WAYS[way])
    token_ids: list[int] = []
    async with aclosing(client.generate(options)) as events:
        async for event in events:
            if isinstance(event, Delta):
                token_ids += event.token_ids
            elif isinstance(event, Finished):
                finished = event
    return token_ids, finished


@pytest.mark.parametrize(
    "sampling", [GREEDY, SamplingParameters()] if THOROUGH else [SamplingParameters()]
)
async def test_a_rough_link_changes_nothing(
    client: OutriderClient, sampling: SamplingParameters
) -> None:
    model = LlamaModel(
        LlamaConfig(path=TARGET, context=0, sequence_count=1, thread_count=1, pad_multiple=4)
    )
    expected = [
        generate_alone(model, model.tokenize(p.encode(), True, False), LIMIT, sampling, SEED)
        for p in PROMPTS
    ]
    model.close()
    for way in WAYS:
        # All prompts at once, so that the sessions share decodes as well.
        found = await asyncio.gather(*(_generate(client, p, sampling, way) for p in PROMPTS))
        assert [token_ids for token_ids, _ in found] == expected, way
        if way != "measured":
            assert all(finished.statistics.accepted_token_count for _, finished in found), way
