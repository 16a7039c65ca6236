"""Starts the processes that a benchmark measures, and stops them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from orchestrator.peers import Pair, Peer

MODELS = Path(__file__).resolve().parent.parent / "models"
TARGET = MODELS / "stdlib-target-q8_0.gguf"
DRAFT = MODELS / "stdlib-draft-q8_0.gguf"


@asynccontextmanager
async def process(*arguments: str) -> AsyncIterator[str]:
    """Run `python -m ARGUMENTS`; yield the address that it prints."""
    async with process_with_pid(*arguments) as (address, _):
        yield address


@asynccontextmanager
async def process_with_pid(*arguments: str) -> AsyncIterator[tuple[str, int]]:
    """Run `python -m ARGUMENTS`; yield the address that it prints, and its process id."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert child.stdout is not None and child.stdin is not None
    line = (await child.stdout.readline()).decode()
    if " listening on " not in line:
        raise SystemExit(f"{' '.join(arguments)}: did not start")
    try:
        yield line.split()[-1], child.pid
    finally:
        child.stdin.close()
        await child.wait()


def model_service(role: str, model: Path, *options: str) -> tuple[str, ...]:
    """Return the arguments that run a model service on a free port."""
    listen = ("--listen", "127.0.0.1:0", "--stop-on-stdin-end")
    return ("outrider_cli", role, "--model", str(model), *listen, *options)


@asynccontextmanager
async def running_pair(
    target_options: Sequence[str] = (), draft_options: Sequence[str] = ()
) -> AsyncIterator[Pair]:
    """Run the bundled pair in two processes; yield it connected and ready."""
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(
            process(*model_service("target", TARGET, *target_options))
        )
        draft = await stack.enter_async_context(
            process(
                *model_service("draft", DRAFT, "--threads", "1", "--nice", "19", *draft_options)
            )
        )
        pair = Pair(Peer("target", target), Peer("draft", draft))
        pair.start()
        try:
            for peer in pair.peers:
                if not await peer.wait_until_ready(60.0):
                    raise SystemExit(f"the {peer.role} did not become ready: {peer.detail}")
            yield pair
        finally:
            await pair.stop()
