"""Peers of two versions together, as in a rolling upgrade, whichever is the older one.

What an older peer does not know does not get through to it, nor back: then every service has to do
without, and the text is the same.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from outrider.rpc.channel import open_channel
from outrider.speculation import DEFAULT
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.v1.orchestrator_service_pb2_grpc import OrchestratorServiceStub
from tests.support.older_peer import OlderPeer
from tests.support.protocols import NAMES
from tests.support.services import (
    DRAFT,
    PATIENCE,
    TARGET,
    Completion,
    JoiningDraft,
    ModelProcess,
    OrchestratorProcess,
    eventually,
    generate,
    request,
    running,
    toy,
    written_alone,
)
from tests.support.toy import NEVER, ToyModel


def target() -> ToyModel:
    return toy(seed=1, eos_bias=NEVER)


def drafter() -> ToyModel:
    return toy(seed=2, like=1, agreement=0.9, eos_bias=NEVER)


async def check_texts(orchestrator: OrchestratorProcess, **options: Any) -> int:
    """Compare texts with the target's own; return how many draft tokens were accepted."""
    accepted = 0
    for temperature, seed in ((0.0, 1), (0.8, 2)):
        asked = request(temperature=temperature, seed=seed, token_limit=32, **options)
        completion = await generate(orchestrator, asked)
        assert completion.token_ids == written_alone(target(), asked)
        accepted += completion.statistics.accepted_token_count
    return accepted


@pytest.mark.parametrize(
    ("protocol", "older"),
    [
        *(("landed", older) for older in ("target", "draft", "both")),
        ("2026-11-23", "draft"),  # a target of then reads other rounds (docs/decisions/0048)
    ],
)
async def test_an_older_model_service_or_an_older_orchestrator(protocol: str, older: str) -> None:
    """The fields between two peers are those that both know, whichever of them is the older one."""
    async with (
        running(ModelProcess(TARGET, target)) as its_target,
        running(ModelProcess(DRAFT, drafter)) as its_draft,
        running(OlderPeer(its_target.address, protocol)) as older_target,
        running(OlderPeer(its_draft.address, protocol)) as older_draft,
        running(
            OrchestratorProcess(
                its_target.address if older == "draft" else older_target.address,
                its_draft.address if older == "target" else older_draft.address,
            )
        ) as orchestrator,
    ):
        await orchestrator.until_ready()
        accepted = 0

        async def drafts() -> bool:
            nonlocal accepted
            accepted += await check_texts(orchestrator)
            return accepted > 0

        await eventually(drafts)
        asked = request(token_limit=24, acceptance=3, seed=4)
        assert len((await generate(orchestrator, asked)).token_ids) == 24
        # And with all that there is of now, as far as the peers say that they have it.
        addresses = [peer.address for peer in orchestrator.pool.dialled]
        async with running(OrchestratorProcess(*addresses, speculation=DEFAULT)) as usual:
            await usual.until_ready()
            await check_texts(usual, drafters=[])


@pytest.mark.parametrize("protocol", NAMES)
async def test_an_older_draft_dials_in(protocol: str) -> None:
    async with (
        running(ModelProcess(TARGET, target)) as its_target,
        running(OrchestratorProcess(its_target.address, accept_drafts=True)) as orchestrator,
        running(OlderPeer(orchestrator.address, protocol)) as older,
        running(JoiningDraft(older.address, drafter)),
    ):
        await orchestrator.until_ready()
        accepted = 0

        async def drafts() -> bool:
            nonlocal accepted
            accepted += await check_texts(orchestrator)
            return accepted > 0

        await eventually(drafts)


@pytest.mark.parametrize("protocol", NAMES)
async def test_an_older_client_or_a_client_of_an_older_orchestrator(protocol: str) -> None:
    async with (
        running(ModelProcess(TARGET, target)) as its_target,
        running(ModelProcess(DRAFT, drafter)) as its_draft,
        running(OrchestratorProcess(its_target.address, its_draft.address)) as orchestrator,
        running(OlderPeer(orchestrator.address, protocol)) as older,
        open_channel(older.address) as channel,
    ):
        await orchestrator.until_ready()
        stub: Any = OrchestratorServiceStub(channel)
        asked = request(token_limit=32)
        completion = Completion(is_of_older=True)
        async for response in stub.Generate(asked, timeout=PATIENCE):
            completion.add(response)
        assert completion.token_ids == written_alone(target(), asked)
        submission = messages.SubmitGenerationRequest(request=asked)
        job_id = (await stub.SubmitGeneration(submission, timeout=PATIENCE)).job_id
        polled = partial(_poll, stub, job_id)
        found = Completion(is_of_older=True)
        cursor, finished = 0, False
        while not finished:
            page = await polled(cursor)
            for response in page.responses:
                found.add(response)
            cursor, finished = page.next_cursor, page.finished
        assert found.token_ids == completion.token_ids
        status = await stub.GetStatus(messages.GetStatusRequest(), timeout=PATIENCE)
        assert {peer.role for peer in status.peers} == {"target", "draft"}


async def _poll(stub: Any, job_id: str, cursor: int) -> messages.PollGenerationResponse:
    asked = messages.PollGenerationRequest(job_id=job_id, cursor=cursor)
    asked.wait_duration.FromSeconds(5)
    response: messages.PollGenerationResponse = await stub.PollGeneration(asked, timeout=PATIENCE)
    return response


async def test_what_is_newer_does_not_get_through() -> None:
    """Else these tests would show nothing."""
    async with (
        running(ModelProcess(TARGET, target)) as its_target,
        running(ModelProcess(DRAFT, drafter)) as its_draft,
        running(OlderPeer(its_draft.address, "2026-11-23")) as older,
        running(OrchestratorProcess(its_target.address, older.address)) as orchestrator,
    ):
        await orchestrator.until_ready()
        await check_texts(orchestrator)
        assert sum(older.dropped.values()) > 0
