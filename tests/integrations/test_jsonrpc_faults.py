"""What JSON-RPC answers where the orchestrator is gone, or a client is mistaken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outrider.client import CallFailed, Delta, Started
from outrider.messages import Origin, Rule
from outrider.response import TextPiece
from outrider_jsonrpc.methods import Caller, LibraryRpc
from outrider_jsonrpc.pairs import Pairs
from outrider_jsonrpc.protocol import answer


class Orchestrator:
    """Writes a word, and is gone."""

    def __init__(self) -> None:
        self.is_gone = False
        self.job_count = 0

    def with_metadata(self, metadata: Any) -> Orchestrator:
        return self

    async def generate(self, request: Any) -> AsyncIterator[Started | Delta]:
        yield STARTED
        yield Delta(
            (5,),
            (next(iter(Origin)),),
            (TextPiece("Hello", next(iter(Origin))),),
            token_texts=(b"Hello",),
        )
        self.is_gone = True
        raise CallFailed("UNAVAILABLE", "", "the orchestrator is gone", {})

    async def submit(self, request: Any, key: str) -> tuple[str, Started]:
        self.is_gone = True
        self.job_count += 1
        return f"job-{self.job_count - 1}", STARTED

    async def cancel(self, job_id: str) -> None:
        if job_id == "job-0":  # the others are over at once
            await asyncio.sleep(0)

    async def detokenize(self, ids: Any) -> str:
        if self.is_gone:
            raise CallFailed("UNAVAILABLE", "", "nobody answers", {})
        return ""


STARTED = Started((1, 2), 0, next(iter(Rule)))


async def calls(library: LibraryRpc, *bodies: dict[str, Any]) -> list[Any]:
    """Return the answers to calls that are there at the same time."""

    def report(method: str, error: Exception) -> str:
        raise AssertionError(f"{method}: {error!r}")

    async def one(body: dict[str, Any]) -> Any:
        request = json.dumps({"jsonrpc": "2.0", "id": 1, **body}).encode()
        said = await answer(request, library.methods(Caller("ann")), report)
        return json.loads(said or b"null")

    return await asyncio.gather(*map(one, bodies))


@pytest.fixture
def library() -> LibraryRpc:
    pair = SimpleNamespace(client=Orchestrator(), is_closed=False)
    return LibraryRpc(cast(Pairs, SimpleNamespace(now=pair, is_loading=False, failure=None)))


async def test_the_text_stays_when_the_orchestrator_is_gone(library: LibraryRpc) -> None:
    [said] = await calls(library, {"method": "get_completion", "params": {"prompt": "a"}})
    assert said["result"]["content"] == "Hello"
    assert said["result"]["error"]["reason"] == "UNAVAILABLE"
    assert "prompt_stats" not in said["result"]


async def test_the_id_of_a_job_stays_when_the_orchestrator_is_gone(library: LibraryRpc) -> None:
    [said] = await calls(library, {"method": "async_completion_init", "params": {"prompt": "a"}})
    assert said["result"] == {"success": True, "job_id": "job-0"}


async def test_two_who_end_the_same_jobs_both_succeed(library: LibraryRpc) -> None:
    begin = {"method": "async_completion_init", "params": {"prompt": "a"}}
    await calls(library, begin, begin)
    both = await calls(library, {"method": "deinit"}, {"method": "deinit"})
    assert [said["result"] for said in both] == [{"success": True}] * 2


@pytest.mark.parametrize(
    "params",
    [
        {"prompt": "a", "prediction": {"content": ["abc"]}},
        {"prompt": "a", "prediction": {"content": [["abc"]]}},
        {"prompt": "a", "prediction": {"content": [{"text": 1}]}},
    ],
)
async def test_a_prediction_of_another_shape_is_refused(
    library: LibraryRpc, params: dict[str, Any]
) -> None:
    [said] = await calls(library, {"method": "get_completion", "params": params})
    assert said["error"]["code"] == -32602


@pytest.mark.parametrize("text", ['{"a":' * 5000, '{"a": ' + "1" * 5000 + "}", "{", '{"a": NaN}'])
@pytest.mark.parametrize("method", ["init", "init_async"])
async def test_what_init_cannot_read_is_refused(
    library: LibraryRpc, method: str, text: str
) -> None:
    [said] = await calls(library, {"method": method, "params": [text]})
    assert said["error"]["code"] == -32602
