"""The asyncio client of one orchestrator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Any, Self

import grpc

from outrider import wire
from outrider.client.convert import read_polled, read_status
from outrider.client.values import CallFailed, Polled, Status
from outrider.request import INT32_MAX, Conversation, Request, check_text
from outrider.response import Event, Started, Token
from outrider.rpc.channel import explain_refusal, open_channel, why_unreachable
from outrider.rpc.security import ANONYMOUS, ClientSecurity, metadata_of
from outrider.rpc.statuses import describe, read_error_info
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.v1.orchestrator_service_pb2_grpc import OrchestratorServiceStub
from outrider.wire_requests import write_chat, write_request
from outrider.wire_responses import read_event, read_started, read_token

_CALL_SECONDS = 30.0  # s; deadline of a call that generates nothing
_REDIAL_SECONDS = 2.0
"""Longer than the longest pause between two attempts to connect, which is 1 s and a fifth."""

_AWAY = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.CONNECTING)
_NO_ANSWER = {
    grpc.StatusCode.CANCELLED: "the orchestrator at {address} is stopping",
    grpc.StatusCode.UNAVAILABLE: "no orchestrator answers at {address}",
    grpc.StatusCode.DEADLINE_EXCEEDED: "the orchestrator at {address} did not answer in time",
    grpc.StatusCode.UNIMPLEMENTED: "what answers at {address} is not an orchestrator",
}


class OutriderClient:
    """A client of one orchestrator. Make it inside a running event loop, and close it.

    `name` is the host that its certificate must be for, where that is not the address's. Raises
    InvalidConfig for an address, a token or a certificate that cannot be used.
    """

    def __init__(self, address: str, security: ClientSecurity = ANONYMOUS, name: str = "") -> None:
        self.address = address
        self._security = security
        self._metadata = metadata_of(security)
        self._channel = open_channel(address, security, name=name)
        self._stub: Any = OrchestratorServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def with_metadata(self, metadata: Mapping[str, str]) -> OutriderClient:
        """Return this client with other metadata of its calls, such as the token of its caller.

        Both use one connection, which `close` of either closes.
        """
        other, pairs = copy(self), tuple(metadata.items())
        other._metadata = lambda: pairs
        return other

    async def close(self) -> None:
        """Close the channel; generations in flight end."""
        await self._channel.close()

    async def generate(
        self, request: Request, timeout_seconds: float | None = None
    ) -> AsyncGenerator[Event, None]:
        """Yield one Started, any number of Delta and one Finished.

        Closing this iterator stops the work at both models. Raises CallFailed.
        """
        asked = write_request(request)
        await self._redial()
        call = self._stub.Generate(asked, timeout=timeout_seconds, metadata=self._metadata())
        try:
            async for response in call:
                yield read_event(response)
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from None
        finally:
            call.cancel()

    async def submit(self, request: Request, idempotency_key: str = "") -> tuple[str, Started]:
        """Start a job that continues by itself; return its id and how the prompt was read.

        Submitted again with the same key (1 to 255 printable characters) it is the same job, for as
        long as that is known. Raises like `generate`.
        """
        submission = messages.SubmitGenerationRequest(
            request=write_request(request), idempotency_key=idempotency_key
        )
        response = await self._call("SubmitGeneration", submission, None)
        return response.job_id, read_started(response.started)

    async def poll(self, job_id: str, cursor: int = 0, wait_seconds: float = 0.0) -> Polled:
        """Return what a job has brought after a cursor, waiting up to 30 s for it.

        Raises CallFailed.
        """
        request = messages.PollGenerationRequest(job_id=job_id, cursor=cursor)
        request.wait_duration.FromMilliseconds(int(1e3 * wait_seconds))
        seconds = _CALL_SECONDS + wait_seconds
        return read_polled(await self._call("PollGeneration", request, seconds))

    async def cancel(self, job_id: str) -> None:
        """End a job early; it still has a last event. Raises CallFailed."""
        request = messages.CancelGenerationRequest(job_id=job_id)
        await self._call("CancelGeneration", request, _CALL_SECONDS)

    async def tokenize(
        self, text: str, add_special: bool = True, parse_special: bool = False
    ) -> tuple[Token, ...]:
        """Return the tokens of a text. Raises CallFailed."""
        request = messages.TokenizeTextRequest(
            text=check_text("text", text), add_special=add_special, parse_special=parse_special
        )
        response = await self._call("Tokenize", request, _CALL_SECONDS)
        return tuple(read_token(token) for token in response.tokens)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids. Raises CallFailed."""
        ids = wire.read_ids("token_ids", token_ids, INT32_MAX)
        request = messages.DetokenizeRequest(token_ids=ids)
        return str((await self._call("Detokenize", request, _CALL_SECONDS)).text)

    async def apply_template(
        self,
        chat: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Return the prompt of a chat, for `generate` with `parse_special`. Raises CallFailed.

        Messages and tools are the objects of OpenAI's API.
        """
        asked = Conversation(
            chat=chat,
            tools=tools,
            variables=variables,
            add_generation_prompt=add_generation_prompt,
        )
        request = write_chat(asked)
        return str((await self._call("ApplyTemplate", request, _CALL_SECONDS)).prompt)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return the embeddings of texts, each of length 1. Raises CallFailed."""
        request = messages.EmbedRequest()
        for text in texts:
            request.inputs.add().parts.add().text = check_text("texts", text)
        response = await self._call("Embed", request, None)
        return [list(each.values) for each in response.embeddings]

    async def status(self) -> Status:
        """Return the state of the orchestrator. Raises CallFailed."""
        return read_status(await self._call("GetStatus", messages.GetStatusRequest(), 5.0))

    async def _call(self, method: str, request: Any, seconds: float | None) -> Any:
        make = getattr(self._stub, method)
        await self._redial()
        try:
            return await make(request, timeout=seconds, metadata=self._metadata())
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from None

    async def _redial(self) -> None:
        """Give a connection that failed before the time to be made again.

        Without it, a call in the pause between two attempts would fail at once,
        also when the orchestrator is back by then.
        """
        state = self._channel.get_state(try_to_connect=True)
        if state is not grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_REDIAL_SECONDS):
                while state in _AWAY:
                    await self._channel.wait_for_state_change(state)
                    state = self._channel.get_state(try_to_connect=True)

    def _failure(self, error: grpc.aio.AioRpcError) -> CallFailed:
        status = error.code().name
        refusal = explain_refusal(error, "orchestrator", self.address, self._security)
        if refusal is not None:
            return CallFailed(status, status, str(refusal), {})
        info = read_error_info(error.trailing_metadata())
        if info is not None:
            return CallFailed(info.reason, status, error.details() or "", dict(info.metadata))
        message = _NO_ANSWER.get(error.code(), describe(error))
        message = message.format(address=self.address)
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            why = why_unreachable(error, self.address)
            message += f": {why}" if why else ""
        return CallFailed(status, status, message, {})
