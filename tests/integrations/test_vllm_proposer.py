"""A draft for vLLM: it proposes what a draft of ours writes, and no draft stops vLLM's loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme

from outrider.rpc.security import ServerSecurity
from outrider.sampling import GREEDY
from outrider.v1 import common_pb2 as common
from outrider_vllm import ADDRESS, TLS_CA, TLS_CERT, TLS_KEY, WAIT, DraftProposer
from tests.integrations.test_vllm_contract import vllm_config
from tests.support.hostile import hostile_process
from tests.support.llama_server import LlamaServerDraft, LlamaServerStandIn
from tests.support.services import DRAFT, ModelProcess, eventually, running, toy
from tests.support.toy import NEVER, ToyModel, generate_alone

REQUESTS, MOST, COUNT = 3, 96, 4
LONG = 60.0  # seconds; two busy loops may take the machine


def target() -> ToyModel:
    return toy(seed=1, eos_bias=NEVER)


def good_draft() -> ToyModel:
    return toy(seed=2, like=1, agreement=0.95, eos_bias=NEVER)


class Loop:
    """What vLLM's worker does around a proposer: greedy, a few requests, rows that change places.

    `steps` has of each step how many draft tokens were proposed and how many of them accepted.
    """

    def __init__(self, proposer: DraftProposer) -> None:
        self._proposer = proposer
        self._model = target()
        self._tokens = np.zeros((REQUESTS + 1, MOST), np.int64)
        self._counts = np.zeros(REQUESTS + 1, np.int32)
        self.prompts = [[0, 4 + i, 5, 6 + i] for i in range(REQUESTS)]
        self.texts = [list(prompt) for prompt in self.prompts]
        self._rows = list(range(REQUESTS))  # the request of each row
        self._proposed: dict[int, list[int]] = {}  # by request
        self.steps: list[tuple[int, int]] = []

    def step(self) -> None:
        """Verify what was proposed, write a token behind it, and ask for more."""
        proposed = accepted = 0
        sampled = []
        for request in self._rows:
            draft = self._proposed.get(request, [])
            given = self._verified(self.texts[request], draft)
            proposed, accepted = proposed + len(draft), accepted + len(given) - 1
            self.texts[request] += given
            sampled.append(given)
        self.steps.append((proposed, accepted))
        for row, request in enumerate(self._rows):
            text = self.texts[request][:MOST]
            self._tokens[row, : len(text)] = text
            self._counts[row] = len(text)
        answer = self._proposer.propose(sampled, self._counts, self._tokens, slot_mappings=None)
        assert len(answer) == len(sampled)
        assert all(len(each) <= COUNT for each in answer)
        self._proposed = dict(zip(self._rows, answer, strict=True))
        self._rows = self._rows[1:] + self._rows[:1]

    def _verified(self, text: list[int], draft: list[int]) -> list[int]:
        right = generate_alone(self._model, text, len(draft) + 1, GREEDY, 0)
        same = next((i for i, token in enumerate(draft) if token != right[i]), len(draft))
        return right[: same + 1]

    @property
    def accepted_count(self) -> int:
        """Draft tokens that were accepted so far."""
        return sum(accepted for _, accepted in self.steps)

    def assert_right(self) -> None:
        for prompt, text in zip(self.prompts, self.texts, strict=True):
            alone = generate_alone(self._model, prompt, len(text) - len(prompt), GREEDY, 0)
            assert text[len(prompt) :] == alone

    def renew(self) -> None:
        """Begin all texts anew where one comes near its limit."""
        if max(map(len, self.texts)) > MOST - 2 * COUNT:
            self.assert_right()
            self.texts = [list(prompt) for prompt in self.prompts]
            self._proposed = {}


@contextlib.asynccontextmanager
async def proposing(
    address: str, monkeypatch: pytest.MonkeyPatch, wait_ms: float = 5000.0, **changes: Any
) -> AsyncIterator[DraftProposer]:
    monkeypatch.setenv(ADDRESS, address)
    monkeypatch.setenv(WAIT, str(wait_ms))
    config = vllm_config(**{"tokens": COUNT, "most": MOST, "sequences": REQUESTS} | changes)
    proposer = DraftProposer(config)
    try:
        yield proposer
    finally:
        await asyncio.to_thread(proposer.close)


async def stepped(loop: Loop, enough: Callable[[], bool]) -> None:
    """Take steps until something holds."""

    async def holds() -> bool:
        loop.renew()
        await asyncio.to_thread(loop.step)
        return enough()

    await eventually(holds, LONG)


async def test_what_a_draft_writes_is_proposed_and_texts_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        running(ModelProcess(DRAFT, good_draft)) as draft,
        proposing(draft.address, monkeypatch) as proposer,
    ):
        loop = Loop(proposer)
        # At some time every request has all that it may have.
        everything = REQUESTS * COUNT
        await stepped(loop, lambda: loop.accepted_count > 60 and loop.steps[-1][0] == everything)
        loop.assert_right()
        activity = await draft.activity()
        assert activity.open_session_count <= REQUESTS


async def test_a_draft_that_demands_a_certificate_is_shown_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name in ("server", "vllm"):
        leaf = authority.issue_cert("127.0.0.1")
        leaf.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
        leaf.private_key_pem.write_to_path(tmp_path / f"{name}.key")
    security = ServerSecurity(
        tls_cert=tmp_path / "server.pem",
        tls_key=tmp_path / "server.key",
        tls_client_ca=tmp_path / "ca.pem",
    )
    for name, file in ((TLS_CA, "ca.pem"), (TLS_CERT, "vllm.pem"), (TLS_KEY, "vllm.key")):
        monkeypatch.setenv(name, str(tmp_path / file))
    async with (
        running(ModelProcess(DRAFT, good_draft, security=security)) as draft,
        proposing(draft.address, monkeypatch) as proposer,
    ):
        loop = Loop(proposer)
        await stepped(loop, lambda: loop.accepted_count > 8)
        loop.assert_right()


async def test_requests_that_end_leave_no_more_sessions_than_there_are_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        running(ModelProcess(DRAFT, good_draft)) as draft,
        proposing(draft.address, monkeypatch) as proposer,
    ):
        for number in range(6):
            loop = Loop(proposer)
            loop.prompts = [[0, 8 + number, 7 + i] for i in range(REQUESTS)]
            loop.texts = [list(prompt) for prompt in loop.prompts]
            await stepped(loop, lambda loop=loop: loop.accepted_count > 4)
        assert len(proposer._drafting._sessions) <= REQUESTS

        async def few() -> bool:
            return (await draft.activity()).open_session_count <= REQUESTS

        await eventually(few, LONG)
    # The proposer is closed: so are its streams.


async def test_a_draft_that_is_killed_is_done_without_and_used_again_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        running(ModelProcess(DRAFT, good_draft)) as draft,
        proposing(draft.address, monkeypatch, wait_ms=1000.0) as proposer,
    ):
        loop = Loop(proposer)
        await stepped(loop, lambda: loop.accepted_count > 10)
        await draft.kill()
        await stepped(loop, lambda: loop.steps[-1] == (0, 0))
        await draft.start()
        before = loop.accepted_count
        await stepped(loop, lambda: loop.accepted_count > before + 10)
        loop.assert_right()


async def test_a_draft_with_fewer_tokens_than_the_slack_allows_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        running(ModelProcess(DRAFT, good_draft)) as draft,
        proposing(draft.address, monkeypatch, vocabulary=1000) as proposer,
    ):
        loop = Loop(proposer)
        for _ in range(5):
            await asyncio.to_thread(loop.step)
        assert sum(proposed for proposed, _ in loop.steps) == 0
        assert not proposer._drafting.is_ready


async def test_a_head_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads hidden rows, which nobody sends from here."""
    async with running(ModelProcess(DRAFT, good_draft)) as draft:
        draft.servicer.require_loaded().head = common.HEAD_KIND_MTP
        async with proposing(draft.address, monkeypatch) as proposer:
            loop = Loop(proposer)
            for _ in range(5):
                await asyncio.to_thread(loop.step)
            assert sum(proposed for proposed, _ in loop.steps) == 0
            assert not proposer._drafting.is_ready


@pytest.mark.parametrize("describes_itself", [True, False])
async def test_a_hostile_draft_costs_speed_alone(
    describes_itself: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        hostile_process(5, describes_itself) as address,
        proposing(address, monkeypatch, wait_ms=20.0) as proposer,
    ):
        loop = Loop(proposer)
        for _ in range(60):
            loop.renew()
            await asyncio.to_thread(loop.step)
        loop.assert_right()


async def test_a_llama_server_drafts_for_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = LlamaServerStandIn(good_draft())
    stand_in.start()
    try:
        async with (
            running(LlamaServerDraft(stand_in.url)) as draft,
            proposing(draft.address, monkeypatch) as proposer,
        ):
            loop = Loop(proposer)
            await stepped(loop, lambda: loop.accepted_count > 20)
            loop.assert_right()
    finally:
        stand_in.kill()
