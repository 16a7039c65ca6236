"""Starts the processes that a benchmark measures, and stops them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from orchestrator.peers import DialledPeer
from orchestrator.pool import Pool
from outrider.processes import ANY_PORT, Child
from outrider_cli import COMMAND

MODELS = Path(__file__).resolve().parents[2] / "models"
TARGET = MODELS / "stdlib-target-q8_0.gguf"
DRAFT = MODELS / "stdlib-draft-q8_0.gguf"


@asynccontextmanager
async def process(role: str, *options: str, command: Sequence[str] = COMMAND) -> AsyncIterator[str]:
    """Run a service; yield the address that it prints."""
    child = await Child.start(command, role, ANY_PORT, options)
    try:
        yield await child.address()
    finally:
        await child.stop()


@asynccontextmanager
async def running_pair(
    target_options: Sequence[str] = (), draft_options: Sequence[str] = ()
) -> AsyncIterator[Pool]:
    """Run the bundled pair in two processes; yield it connected and ready."""
    beside = ("--threads=1", "--nice=19")
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(
            process("target", f"--model={TARGET}", *target_options)
        )
        draft = await stack.enter_async_context(
            process("draft", f"--model={DRAFT}", *beside, *draft_options)
        )
        pair = Pool([DialledPeer("target", target)], [DialledPeer("draft", draft)])
        pair.start()
        try:
            async with asyncio.timeout(60.0):
                while pair.obstacle():  # noqa: ASYNC110 - drafts are no event
                    await asyncio.sleep(0.1)
            yield pair
        finally:
            await pair.stop()
