"""Jobs over JSON-RPC outlive the orchestrator, too: for the caller's latest, and by their ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.gated import load_gated
from tests.support.json_rpc import json_rpc
from tests.support.services import (
    PATIENCE,
    TARGET,
    Gate,
    ModelProcess,
    OrchestratorProcess,
    eventually,
    running,
)
from tests.support.tiny_gguf import Shape, write_model

PARAMS = {
    "prompt": "the rain in spain",
    "n_predict": 40,
    "seed": 5,
    "n_probs": 2,
    "origins": True,
}


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "target.gguf", shape=Shape(layers=1))


class Caller:
    """Calls methods by a name, and keeps what a job has brought."""

    def __init__(self, url: str, name: str = "tests") -> None:
        self.updates: list[dict[str, Any]] = []
        self.is_over = False
        self._url = f"{url}/rpc"
        self._headers = {"Outrider-Client": name}

    async def answer(self, method: str, **params: Any) -> Any:
        asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            return (await client.post(self._url, json=asked, headers=self._headers)).json()

    async def call(self, method: str, **params: Any) -> Any:
        answer = await self.answer(method, **params)
        assert "error" not in answer, answer
        return answer["result"]

    async def poll(self, **params: Any) -> bool:
        polled = await self.call("async_completion_poll", **params)
        self.updates += polled["completion_updates"]
        self.is_over = polled["finished"]
        return self.is_over

    @property
    def text(self) -> str:
        return "".join(each["content"] for each in self.updates)

    def end(self) -> dict[str, Any]:
        """Return the last message without what takes time or draws an id."""
        assert [each["stop"] for each in self.updates].count(True) == 1
        return {key: value for key, value in self.updates[-1].items() if key != "timings"}


def orchestrator_of(target_address: str, state: Path) -> OrchestratorProcess:
    return OrchestratorProcess(target_address, state=state)


async def test_a_job_is_polled_on_after_a_restart_of_the_orchestrator(
    tmp_path: Path, model_path: Path
) -> None:
    async with (
        running(ModelProcess(TARGET, lambda: load_gated(model_path))) as service,
        running(orchestrator_of(service.address, tmp_path)) as orchestrator,
        json_rpc(orchestrator.address) as url,
    ):
        await orchestrator.until_ready()
        whole = Caller(url)
        await whole.call("async_completion_init", **PARAMS)
        await eventually(whole.poll)
        gate = Gate(service.model, passes=12)
        caller = Caller(url)
        job_id = (await caller.call("async_completion_init", **PARAMS))["job_id"]
        await gate.reached()

        async def has_begun() -> bool:
            await caller.poll()
            return len(caller.text) > 0

        await eventually(has_begun)
        assert not caller.is_over
        await orchestrator.close()
        await gate.open()
        refused = await caller.answer("async_completion_poll")
        assert refused["error"]["code"] == -32002
        await orchestrator.start()
        await orchestrator.until_ready()
        await eventually(caller.poll)
        assert caller.text == whole.text
        assert caller.end() == whole.end()
        other = Caller(url, "another")
        assert await other.poll(job_id=job_id)
        assert not other.updates, "all of it was taken"


async def test_a_job_of_before_is_cancelled_and_ends(tmp_path: Path, model_path: Path) -> None:
    async with (
        running(ModelProcess(TARGET, lambda: load_gated(model_path))) as service,
        running(orchestrator_of(service.address, tmp_path)) as orchestrator,
        json_rpc(orchestrator.address) as url,
    ):
        await orchestrator.until_ready()
        gate = Gate(service.model, passes=6)
        caller = Caller(url)
        await caller.call("async_completion_init", **PARAMS)
        await gate.reached()
        await orchestrator.close()
        await orchestrator.start()
        await caller.call("async_completion_cancel")
        await gate.open()
        await eventually(caller.poll)
        assert caller.end()["cancelled"] is True
