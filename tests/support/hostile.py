"""Messages and behaviour of a peer that keeps to nothing but the encoding, drawn from the protocol.

`RandomMessages` walks the descriptor of a message and fills every field with what is usual, at a
limit, or absurd. `HostileDraft` is a draft service that answers with such messages, and
`hostile_process` runs it apart from this process. `Vitals` watches what it must not do to this one.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from draft_service.servicer import DraftServicer
from outrider.rpc.server import keep_collections_short
from outrider.v1 import draft_service_pb2 as draft
from tests.support.services import DRAFT, ModelProcess, Role, running, toy
from tests.support.toy import NEVER

ROOT = Path(__file__).resolve().parent.parent.parent
_INTEGERS = (0, 1, 2, 3, 7, 16, 63, 64, 65, 255, 256, 1000, 2**20, 2**31 - 1, -1, -2, -(2**31))
_FLOATS = (0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, math.nan, math.inf, -math.inf)
_LENGTHS = (0, 1, 1, 1, 2, 3, 8, 64, 65, 300)


class RandomMessages:
    """Draws messages of any kind; the same seed draws the same ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def message(self, kind: Any, depth: int = 0) -> Any:
        """Return a message with about half of its fields set."""
        message = kind()
        descriptor: Descriptor = kind.DESCRIPTOR
        for field in descriptor.fields:
            if field.containing_oneof is None and self.random.random() < 0.5:
                self.fill(message, field, depth)
        for oneof in descriptor.oneofs:
            if self.random.random() < 0.9:
                self.fill(message, self.random.choice(oneof.fields), depth)
        return message

    def fill(self, message: Any, field: FieldDescriptor, depth: int = 0) -> None:
        """Set one field, or add to it where it is repeated."""
        if field.message_type is not None:
            self._fill_message(message, field, depth)
        elif field.is_repeated:
            length = self.random.choice(_LENGTHS)
            getattr(message, field.name).extend(self._value(field) for _ in range(length))
        else:
            setattr(message, field.name, self._value(field))

    def _fill_message(self, message: Any, field: FieldDescriptor, depth: int) -> None:
        kind = field.message_type._concrete_class
        if depth > 4:
            return
        if not field.is_repeated:
            getattr(message, field.name).CopyFrom(self.message(kind, depth + 1))
        elif field.message_type.GetOptions().map_entry:
            getattr(message, field.name)["key"]  # an entry of no value
        else:
            for _ in range(self.random.choice((0, 1, 2, 5))):
                getattr(message, field.name).append(self.message(kind, depth + 1))

    def _value(self, field: FieldDescriptor) -> Any:
        choose = self.random.choice
        kind = field.cpp_type
        if kind == FieldDescriptor.CPPTYPE_STRING:
            text = choose(("", "a", "x" * 300, "\u00e9\U0001f600", "1", "model.gguf"))
            is_bytes = field.type == FieldDescriptor.TYPE_BYTES
            return self.random.randbytes(choose((0, 1, 16, 32, 500))) if is_bytes else text
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return choose((True, False))
        if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
            return choose(_FLOATS)
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return choose([value.number for value in field.enum_type.values] + [99])
        value = choose(_INTEGERS) if self.random.random() < 0.5 else self.random.randrange(200)
        if kind in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64):
            return abs(value)
        return value


class LyingOfItsTime:
    """The context of a stream whose frames are honest, and what they say of their time random."""

    def __init__(self, context: Any, messages: RandomMessages) -> None:
        self._context, self._messages = context, messages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, response: draft.DraftResponse) -> None:
        """Send a frame, at times with another time."""
        if self._messages.random.random() < 0.5:
            response.service_time.CopyFrom(self._messages.message(type(response.service_time)))
        await self._context.write(response)


class HostileDraft(DraftServicer):
    """Answers orders with random messages, floods, silence, or the work of an honest draft.

    `seed` decides everything; it rises with every stream.
    """

    seed = 0
    describes_itself = True  # honestly; else at random, now and then

    async def GetModel(self, request: Any, context: Any) -> Any:
        honest = await super().GetModel(request, context)
        if self.describes_itself:
            return honest
        HostileDraft.seed += 1
        messages = RandomMessages(self.seed)
        if messages.random.random() < 0.4:
            return honest
        strange = messages.message(type(honest))
        if messages.random.random() < 0.7:  # one thing wrong with it
            name = messages.random.choice([field.name for field, _ in strange.ListFields()])
            mixed = type(honest)()
            mixed.CopyFrom(honest)
            mixed.ClearField(name)
            one = type(honest)()
            one.CopyFrom(strange)
            for field, _ in strange.ListFields():
                if field.name != name:
                    one.ClearField(field.name)
            mixed.MergeFrom(one)
            return mixed
        return strange

    async def Draft(self, request_iterator: Any, context: Any) -> None:
        HostileDraft.seed += 1
        messages = RandomMessages(self.seed)
        way = messages.random.choice(
            (self._answer, self._answer, self._answer, self._flood, self._sleep, self._miss)
        )
        dice = messages.random.random()
        if dice < 0.15:
            await super().Draft(request_iterator, context)
        elif dice < 0.3:
            await super().Draft(request_iterator, LyingOfItsTime(context, messages))
        else:
            await way(messages, request_iterator, context)

    async def _answer(self, messages: RandomMessages, requests: Any, context: Any) -> None:
        """Answer every order with a few messages, most of which look like frames."""
        async for request in requests:
            for _ in range(messages.random.choice((0, 1, 1, 2, 5))):
                await context.write(self._strange(messages, request))
            if messages.random.random() < 0.05:
                return

    def _strange(self, messages: RandomMessages, request: Any) -> draft.DraftResponse:
        response: draft.DraftResponse = messages.message(draft.DraftResponse)
        order = request.order
        if messages.random.random() < 0.7:  # near enough to an answer to be looked at
            end = order.committed.position + len(order.committed.token_ids)
            count = messages.random.choice((1, 2, 4, 8, 64))
            response.frame.base = response.frame.position = end
            response.frame.token_ids[:] = [messages.random.randrange(70) for _ in range(count)]
            response.frame.confidences = messages.random.randbytes(count)
            del response.frame.distributions[:], response.frame.candidates[:]
            response.completed_order = messages.random.choice((0, order.order))
        return response

    async def _flood(self, messages: RandomMessages, requests: Any, context: Any) -> None:
        """Send frames without end."""
        first = await _first_order(requests)
        response = self._strange(messages, first) if first else draft.DraftResponse()
        if messages.random.random() < 0.5:
            response.frame.token_ids.extend([5] * 500_000)
        while True:
            await context.write(response)

    async def _sleep(self, messages: RandomMessages, requests: Any, context: Any) -> None:
        """Read nothing, say nothing."""
        await asyncio.sleep(60.0)

    async def _miss(self, messages: RandomMessages, requests: Any, context: Any) -> None:
        """Hold nothing, whatever is sent."""
        async for request in requests:
            response = draft.DraftResponse(completed_order=request.order.order)
            response.missing.held_token_count = messages.random.choice((0, 0, -1, 5, 2**31 - 1))
            await context.write(response)


async def _first_order(requests: AsyncIterator[Any]) -> Any:
    async for request in requests:
        if request.WhichOneof("request") == "order":
            return request
    return None


def _mistaken_at_times() -> type[HostileDraft]:
    class Mistaken(HostileDraft):
        describes_itself = False

    return Mistaken


async def _serve(seed: int, is_honest: bool) -> None:
    """Print an address and serve a hostile draft there until stdin ends."""
    HostileDraft.seed = seed
    servicer = HostileDraft if is_honest else _mistaken_at_times()
    make = partial(servicer, alias="", support=64, tail=0.0)
    role = Role("Draft", make, DRAFT.register, DRAFT.stub)
    async with running(ModelProcess(role, partial(toy, seed=2, like=1, eos_bias=NEVER))) as process:
        print(process.address, flush=True)
        await asyncio.to_thread(sys.stdin.read)


@asynccontextmanager
async def hostile_process(seed: int, describes_itself: bool) -> AsyncIterator[str]:
    """Run a hostile draft in a process of its own and yield its address.

    Its work is then not taken for that of this process's event loop.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.hostile", str(seed), str(int(describes_itself))),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.stdin.close()
        await process.wait()


class Vitals:
    """How much this process grew, and for how long its event loop was not free, at most.

    A gap counts by the processor's time that the loop's own thread took in it: on a busy machine a
    thread may not run for long, and that is nobody's fault. With `clock=time.process_time` the work
    of other threads counts too: what they do in C may keep the loop from its turn.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self.longest_block = 0.0
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._process = psutil.Process()
        self._bytes = 0

    async def __aenter__(self) -> Vitals:
        keep_collections_short()  # as every service does that serves
        self._bytes = self._process.memory_info().rss
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()

    @property
    def growth(self) -> int:
        """Bytes more than at the start."""
        return int(self._process.memory_info().rss) - self._bytes

    async def _watch(self) -> None:
        while True:
            begin, worked = time.monotonic(), self._clock()
            await asyncio.sleep(0.02)
            blocked = min(time.monotonic() - begin - 0.02, self._clock() - worked)
            self.longest_block = max(self.longest_block, blocked)


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), bool(int(sys.argv[2]))))
