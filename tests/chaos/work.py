"""What clients do while something goes wrong, and what they are left with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import httpx

from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.chaos.world import CONTEXT, World

SECONDS = 120.0
"""A client's own limit; one that runs into it was left hanging."""

CLEAR = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.NOT_FOUND,  # a job of a process that is gone
}
"""Statuses that say whose fault it is and what to do."""


@dataclass(frozen=True)
class Asked:
    """One generation."""

    prompt: str
    limit: int
    shifts: bool = False
    salt: str = ""  # so that its prompt is read, whatever was read before

    def message(self) -> messages.GenerateRequest:
        """Return it over gRPC: greedy, with drafts of a fixed length."""
        return messages.GenerateRequest(
            prompt_text=self.prompt,
            token_limit=self.limit,
            sampling=common.SamplingParameters(temperature=0.0),
            ignore_eos=True,
            speculative=messages.SpeculativeOptions(policy=messages.DRAFT_POLICY_FIXED, n_max=3),
            overflow=messages.ContextOverflow(shift=self.shifts),
            cache_salt=self.salt,
        )

    def body(self) -> dict[str, Any]:
        """Return it as `/completion` takes it."""
        return {
            "prompt": self.prompt,
            "n_predict": self.limit,
            "temperature": 0.0,
            "ignore_eos": True,
            "context_shift": self.shifts,
            "stream": True,
            "cache_prompt": not self.salt,
            "speculative": {"policy": "fixed", "n_max": 3},
        }


@dataclass(frozen=True)
class Left:
    """What a client has at the end: a text, or the reason why not. `is_clear` says if it helps."""

    text: str = ""
    error: str = ""
    is_clear: bool = True


Note = Callable[[int], Awaitable[None]]
"""Called with how many characters there are so far."""


async def write(world: World, asked: Asked, over_http: bool, note: Note) -> Left:
    """Generate as a client would; never raises what a client would have to understand."""
    try:
        async with asyncio.timeout(SECONDS):
            texts = _over_http(world, asked) if over_http else _over_grpc(world, asked)
            text = ""
            await note(0)
            async for piece in texts:
                text += piece
                await note(len(text))
            return Left(text)
    except TimeoutError:
        return Left(error=f"nothing for {SECONDS:.0f} s", is_clear=False)
    except grpc.aio.AioRpcError as error:
        return _left_by(error)
    except (httpx.HTTPError, _Told) as error:
        return Left(error=f"HTTP: {str(error) or type(error).__name__}"[:100])


def _left_by(error: grpc.aio.AioRpcError) -> Left:
    reason = f"{error.code().name}: {error.details()}"[:100]
    return Left(error=reason, is_clear=error.code() in CLEAR)


async def _over_grpc(world: World, asked: Asked) -> AsyncIterator[str]:
    is_finished = False
    async for response in world.stub.Generate(asked.message()):
        if response.WhichOneof("event") == "delta":
            yield "".join(piece.text for piece in response.delta.pieces)
        is_finished |= response.WhichOneof("event") == "finished"
    if not is_finished:
        raise AssertionError("a stream that ended without being finished, and without an error")


class _Told(Exception):
    """An error in an answer over HTTP."""


async def _over_http(world: World, asked: Asked) -> AsyncIterator[str]:
    async with world.http() as http, http.stream("POST", "/completion", json=asked.body()) as call:
        if call.status_code != 200:
            raise _Told(f"{call.status_code}: {(await call.aread())[:80].decode(errors='replace')}")
        is_finished = False
        async for line in call.aiter_lines():
            kind, _, said = line.partition(": ")
            if kind == "error" or '"error"' in said[:20]:
                raise _Told(said)
            if kind == "data" and said != "[DONE]":
                event = json.loads(said)
                is_finished |= bool(event.get("stop"))
                yield event.get("content", "")
        if not is_finished:
            raise AssertionError("a stream over HTTP that ended without a word")


async def work_job(world: World, asked: Asked, _: bool, note: Note) -> Left:
    """Submit a job and poll it to its end, over gRPC: HTTP has none."""
    try:
        async with asyncio.timeout(SECONDS):
            poll = _Job(world, asked)
            await poll.submit()
            text, is_over = "", False
            while not is_over:
                piece, is_over = await poll.poll()
                text += piece
                await note(len(text))
                await asyncio.sleep(0.02)
            return Left(text)
    except TimeoutError:
        return Left(error=f"nothing for {SECONDS:.0f} s", is_clear=False)
    except grpc.aio.AioRpcError as error:
        return _left_by(error)
    except _Told as error:
        return Left(error=str(error)[:100])


class _Job:
    def __init__(self, world: World, asked: Asked) -> None:
        self._stub, self._asked = world.stub, asked
        self._cursor = 0

    async def submit(self) -> None:
        request = messages.SubmitGenerationRequest(request=self._asked.message())
        self._id = (await self._stub.SubmitGeneration(request)).job_id

    async def poll(self) -> tuple[str, bool]:
        request = messages.PollGenerationRequest(job_id=self._id, cursor=self._cursor)
        request.wait_duration.FromMilliseconds(50)
        # A poll may be repeated: it has a cursor.
        answer = await self._stub.PollGeneration(request, wait_for_ready=False)
        self._cursor = answer.next_cursor
        if answer.HasField("error"):
            raise _Told(f"{answer.error.reason}: {answer.error.message}")
        deltas = [each.delta for each in answer.responses if each.WhichOneof("event") == "delta"]
        text = "".join(piece.text for delta in deltas for piece in delta.pieces)
        return text, answer.finished


SHIFTING = CONTEXT + 60
"""Tokens after which the context was shifted, whatever the prompt."""
