"""The raw protocol by hand: streams to a model service, and what has to come back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import grpc

from outrider.engine.model import Chunk
from outrider.sampling import SamplingParameters
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_service_pb2 as draft
from outrider.v1 import target_service_pb2 as target
from tests.support.services import PATIENCE, ModelProcess
from tests.support.toy import ToyModel

SAMPLING = SamplingParameters(temperature=0.8)
SEED = 11


def session(number: int = 1) -> bytes:
    """Return a session id."""
    return number.to_bytes(16, "big")


def opening(**changes: Any) -> common.OpenSession:
    """Return a message that opens session 1, attempt 1, under shared noise."""
    fields: dict[str, Any] = {
        "session_id": session(),
        "attempt": 1,
        "acceptance_rule": common.ACCEPTANCE_RULE_SHARED_NOISE,
        "sampling": common.SamplingParameters(
            temperature=SAMPLING.temperature,
            top_k=SAMPLING.top_k,
            top_p=SAMPLING.top_p,
            min_p=SAMPLING.min_p,
        ),
        "seed": SEED,
        "prompt_token_count": 4,
        "token_limit": 100,
        "vocabulary_token_count": 64,
    }
    return common.OpenSession(**fields | changes)


class RawStream:
    """One bidirectional stream, its messages sent and read by hand."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._call.cancel()

    async def send(self, message: Any) -> None:
        """Send any message; a stream that was refused meanwhile says so where it is read."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            await self._call.write(message)

    async def receive(self) -> Any:
        """Return the next message; raise what ended the stream."""
        message = await asyncio.wait_for(self._call.read(), PATIENCE)
        assert message is not grpc.aio.EOF, "the stream ended"
        return message

    async def end(self) -> grpc.StatusCode:
        """Read to the end of the stream and return its status."""
        try:
            while await asyncio.wait_for(self._call.read(), PATIENCE) is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError:
            pass
        code: grpc.StatusCode = await self._call.code()
        return code

    async def finish(self) -> grpc.StatusCode:
        """End the client's side and return the status of the stream."""
        await self._call.done_writing()
        return await self.end()


class VerifyStream(RawStream):
    """A stream to the target, open."""

    def __init__(self, service: ModelProcess, **changes: Any) -> None:
        super().__init__(service.stub.Verify())
        self._opening = opening(**changes)

    async def __aenter__(self) -> VerifyStream:
        await self.send(target.VerifyRequest(open=self._opening))
        return self

    async def send_round(
        self,
        number: int,
        position: int,
        token_ids: Sequence[int],
        drafted: Sequence[int] = (),
        form: int = common.ROW_FORM_SAMPLED,
        draft: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Send a round, with more of its fields and of its draft's."""
        span = common.TokenSpan(position=position, token_ids=token_ids)
        await self.send(
            target.VerifyRequest(
                round=target.VerifyRound(
                    round=number,
                    prefix=span,
                    row_form=form,
                    draft=target.RoundDraft(token_ids=drafted, **(draft or {})),
                    **more,
                )
            )
        )

    async def verify(
        self,
        number: int,
        position: int,
        token_ids: Sequence[int],
        drafted: Sequence[int] = (),
        **more: Any,
    ) -> Any:
        """Send a round and return its answer."""
        await self.send_round(number, position, token_ids, drafted, **more)
        return await self.receive()


class DraftStream(RawStream):
    """A stream to the draft, open."""

    def __init__(self, service: ModelProcess, **changes: Any) -> None:
        super().__init__(service.stub.Draft())
        self._opening = opening(**changes)

    async def __aenter__(self) -> DraftStream:
        await self.send(draft.DraftRequest(open=self._opening))
        return self

    async def send_order(
        self, number: int, position: int, token_ids: Sequence[int], until: int
    ) -> None:
        """Send an order."""
        span = common.TokenSpan(position=position, token_ids=token_ids)
        await self.send(
            draft.DraftRequest(
                order=draft.DraftOrder(order=number, committed=span, draft_until=until)
            )
        )

    async def until_completed(self, number: int) -> list[Any]:
        """Return the messages up to the one that completes an order."""
        messages = [await self.receive()]
        while messages[-1].completed_order != number:
            messages.append(await self.receive())
        return messages

    async def draft(self, number: int, position: int, token_ids: Sequence[int], until: int) -> Any:
        """Send an order; return its only message, or its frames put together."""
        await self.send_order(number, position, token_ids, until)
        messages = await self.until_completed(number)
        if messages[-1].WhichOneof("outcome") != "frame":
            return messages[-1]
        return joined([message.frame for message in messages])


def joined(frames: Sequence[draft.DraftFrame]) -> draft.DraftFrame:
    """Return the frames of one line as one; they must follow each other."""
    whole = draft.DraftFrame()
    whole.CopyFrom(frames[0])
    for frame in frames[1:]:
        assert frame.base == whole.base
        assert frame.position == whole.position + len(whole.token_ids)
        whole.token_ids.extend(frame.token_ids)
        whole.confidences += frame.confidences
        whole.distributions.extend(frame.distributions)
    return whole


def sampled(
    model: ToyModel,
    token_ids: Sequence[int],
    row_count: int,
    parameters: SamplingParameters = SAMPLING,
) -> list[int]:
    """Return what follows the last `row_count` tokens, each by its own noise."""
    model.truncate(0, 0)
    head = len(token_ids) - row_count
    for start in range(0, head, 32):
        model.decode([Chunk(0, start, token_ids[start : min(start + 32, head)], 0)])
    sampler = model.sampler(parameters)
    ids = []
    for position in range(head, len(token_ids)):
        [[row]] = model.decode([Chunk(0, position, token_ids[position : position + 1], 1)])
        ids.append(sampler.distribution(row).race(SEED, 0, position + 1)[0])
    return ids


def line_after(model: ToyModel, token_ids: Sequence[int], until: int) -> list[int]:
    """Return what a drafter that is `model` adds to a text."""
    line = list(token_ids)
    while len(line) < until:
        line += sampled(model, line, 1)
    return line[len(token_ids) :]
