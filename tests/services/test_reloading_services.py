"""SIGHUP to a running orchestrator: it follows its file, and what it serves goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from outrider.rpc.channel import open_channel
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.v1.orchestrator_service_pb2_grpc import OrchestratorServiceStub
from tests.support.processes import ServiceProcess, free_port
from tests.support.services import (
    DRAFT,
    PATIENCE,
    TARGET,
    Completion,
    ModelProcess,
    eventually,
    request,
    running,
    toy,
    written_alone,
)
from tests.support.toy import NEVER, ToyModel


def target() -> ToyModel:
    return toy(seed=1, eos_bias=NEVER)


async def test_lists_of_targets_follow_the_file_on_sighup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "outrider.toml"
    monkeypatch.setenv("OUTRIDER_CONFIG", str(file))

    def write(*targets: str) -> None:
        file.write_text(f"[orchestrator]\ntarget = {list(targets)}\n")

    async with (
        running(ModelProcess(TARGET, target)) as first,
        running(ModelProcess(TARGET, target)) as second,
    ):
        write(first.address)
        process = ServiceProcess("orchestrator", "--no-draft")
        process.start()
        try:
            await process.wait_until_serving()
            async with open_channel(process.address) as channel:
                stub: Any = OrchestratorServiceStub(channel)

                async def serves(*addresses: str) -> bool:
                    status = await stub.GetStatus(messages.GetStatusRequest(), timeout=PATIENCE)
                    ready = messages.PEER_STATE_READY
                    found = {each.address for each in status.peers if each.state == ready}
                    return found == set(addresses) and len(status.peers) == len(addresses)

                async def check_text() -> None:
                    asked, completion = request(token_limit=20), Completion()
                    async for response in stub.Generate(asked, timeout=PATIENCE):
                        completion.add(response)
                    assert completion.token_ids == written_alone(target(), asked)

                await check_text()
                for addresses in ((first.address, second.address), (second.address,)):
                    write(*addresses)
                    os.kill(process.pid, signal.SIGHUP)
                    await eventually(lambda those=addresses: serves(*those))
                    await check_text()
                file.write_text("no TOML at all")
                os.kill(process.pid, signal.SIGHUP)
                await check_text()
                assert await serves(second.address)
        finally:
            process.stop()


@pytest.mark.fault(
    "restart",
    "an orchestrator that began with an empty list of drafts reads one with a draft on SIGHUP",
    before="the draft was dialled and never used: `no draft is configured`",
    now="drafts are used, also where the list was empty at the start",
)
async def test_drafts_that_come_later_than_the_orchestrator_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "outrider.toml"
    monkeypatch.setenv("OUTRIDER_CONFIG", str(file))

    def write(*drafts: str) -> None:
        file.write_text(f"[orchestrator]\ndraft = {list(drafts)}\n")

    async with (
        running(ModelProcess(TARGET, target)) as served,
        running(ModelProcess(DRAFT, target)) as draft,
    ):
        write()
        process = ServiceProcess("orchestrator", "--target", served.address)
        process.start()
        try:
            await process.wait_until_serving()
            async with open_channel(process.address) as channel:
                stub: Any = OrchestratorServiceStub(channel)

                async def speculates(wanted: bool, reason: str = "") -> bool:
                    status = await stub.GetStatus(messages.GetStatusRequest(), timeout=PATIENCE)
                    return bool(status.speculating) is wanted and status.reason == reason

                alone = lambda: speculates(False, "no draft is configured")  # noqa: E731
                await eventually(alone)
                write(draft.address)
                os.kill(process.pid, signal.SIGHUP)
                await eventually(lambda: speculates(True))

                async def draws_on_the_draft() -> bool:
                    asked, completion = request(token_limit=40), Completion()
                    asked.speculative.policy = messages.DRAFT_POLICY_FIXED
                    asked.speculative.n_max = 4
                    async for response in stub.Generate(asked, timeout=PATIENCE):
                        completion.add(response)
                    assert completion.token_ids == written_alone(target(), asked)
                    return messages.TOKEN_ORIGIN_DRAFTED in completion.origins

                await eventually(draws_on_the_draft)
                write()
                os.kill(process.pid, signal.SIGHUP)
                await eventually(alone)
        finally:
            process.stop()


@pytest.mark.fault(
    "others",
    "`--http-body-limit` is another in the configuration file, and the orchestrator gets a SIGHUP",
    before="the old limit stayed, and no line said that a restart was needed",
    now="requests that begin then have the new one; what of HTTP needs a restart is named",
)
async def test_the_limit_of_bodies_follows_the_file_on_sighup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "outrider.toml"
    monkeypatch.setenv("OUTRIDER_CONFIG", str(file))
    file.write_text("[orchestrator]\nhttp-body-limit = 100\n")
    address = f"127.0.0.1:{free_port()}"
    options = ("--target", "127.0.0.1:1", "--no-draft", "--http", address)
    process = ServiceProcess("orchestrator", *options)
    process.start()
    try:
        async with httpx.AsyncClient(timeout=PATIENCE) as client:

            async def answers(status: int) -> bool:
                try:
                    body = {"prompt": 3.5, "x": "y" * 200}
                    answer = await client.post(f"http://{address}/v1/completions", json=body)
                except httpx.TransportError:
                    return False  # it does not listen yet
                return answer.status_code == status

            await eventually(lambda: answers(413), 60.0)
            file.write_text("[orchestrator]\nhttp-body-limit = 1000\n")
            os.kill(process.pid, signal.SIGHUP)
            await eventually(lambda: answers(400), 60.0)
    finally:
        process.stop()
