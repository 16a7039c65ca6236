"""A draft or a target that hosts the real model and keeps to nothing but the encoding.

    python -m tests.hostile.peers draft|target SEED OPTIONS...

takes the options of `outrider draft` and `outrider target`.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import draft_service.main
import target_service.main
from outrider.v1 import target_service_pb2 as messages
from outrider_cli import run
from target_service.servicer import TargetServicer
from tests.support.hostile import HostileDraft, RandomMessages

STREAM = "hostile stream\n"
"""What such a process prints for each of its streams."""

_SLEEP_SECONDS = 20.0


class CountedDraft(HostileDraft):
    """A hostile draft whose streams are counted."""

    async def Draft(self, request_iterator: Any, context: Any) -> None:
        """Serve a session in one of the ways."""
        print(STREAM, end="", flush=True)
        await super().Draft(request_iterator, context)


class HostileTarget(TargetServicer):
    """Answers rounds with random messages, floods, silence, or honest rows with something changed.

    `seed` decides everything; it rises with every stream.
    """

    seed = 0

    async def GetModel(self, request: Any, context: Any) -> Any:
        """Describe the model, now and then another."""
        honest = await super().GetModel(request, context)
        HostileTarget.seed += 1
        drawn = RandomMessages(self.seed)
        return honest if drawn.random.random() < 0.7 else drawn.message(type(honest))

    async def Tokenize(self, request: Any, context: Any) -> Any:
        """Tokenize, now and then at random."""
        honest = await super().Tokenize(request, context)
        HostileTarget.seed += 1
        drawn = RandomMessages(self.seed)
        return honest if drawn.random.random() < 0.8 else drawn.message(type(honest))

    async def Verify(self, request_iterator: Any, context: Any) -> None:
        """Serve a session in one of the ways."""
        print(STREAM, end="", flush=True)
        HostileTarget.seed += 1
        drawn = RandomMessages(self.seed)
        dice = drawn.random.random()
        if dice < 0.5:
            await super().Verify(request_iterator, _Meddling(context, drawn))
        elif dice < 0.75:
            await self._answer(drawn, request_iterator, context)
        elif dice < 0.9:
            await self._flood(drawn, request_iterator, context)
        else:
            await asyncio.sleep(_SLEEP_SECONDS)

    async def _answer(self, drawn: RandomMessages, requests: Any, context: Any) -> None:
        """Answer every round with a few messages of its number."""
        async for request in requests:
            for _ in range(drawn.random.choice((0, 1, 1, 2, 5))):
                await context.write(_strange(drawn, request))

    async def _flood(self, drawn: RandomMessages, requests: Any, context: Any) -> None:
        """Send answers without end."""
        response = messages.VerifyResponse()
        async for request in requests:
            if request.HasField("round"):
                response = _strange(drawn, request)
                break
        while True:
            await context.write(response)


def _strange(drawn: RandomMessages, request: Any) -> messages.VerifyResponse:
    response: messages.VerifyResponse = drawn.message(messages.VerifyResponse)
    if drawn.random.random() < 0.9:
        response.round = request.round.round
    return response


class _Meddling:
    """The context of an honest stream, with a field of some answers drawn at random."""

    def __init__(self, context: Any, drawn: RandomMessages) -> None:
        self._context, self._drawn = context, drawn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, response: messages.VerifyResponse) -> None:
        """Send an answer."""
        if self._drawn.random.random() < 0.1:
            changed = messages.VerifyResponse()
            changed.CopyFrom(response)
            strange = self._drawn.message(messages.VerifyResponse)
            fields = [field.name for field, _ in strange.ListFields()]
            if fields:
                name = self._drawn.random.choice(fields)
                changed.ClearField(name)
                only = messages.VerifyResponse()
                only.CopyFrom(strange)
                for other in fields:
                    if other != name:
                        only.ClearField(other)
                changed.MergeFrom(only)
            response = changed
        await self._context.write(response)


def main() -> int:
    """Serve as the command line says, with hostile servicers in the place of the honest ones."""
    role, seed, *options = sys.argv[1:]
    HostileDraft.seed = HostileTarget.seed = int(seed)
    HostileDraft.describes_itself = int(seed) % 2 == 0
    draft_service.main.DraftServicer = CountedDraft  # type: ignore[misc]
    target_service.main.TargetServicer = HostileTarget  # type: ignore[misc]
    return run([role, *options])


if __name__ == "__main__":
    sys.exit(main())
