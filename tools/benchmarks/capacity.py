"""What one orchestrator carries: rounds a second, its CPU a round, its memory a generation.

python -m benchmarks.capacity [--targets 1,10,100] [--users 100,1000] [--tokens 64]

The orchestrator is a process of its own, as it is run. Targets and drafts are toys (a hash in place
of a model) in other processes, several to each, over real gRPC on loopback; so what is counted is
the orchestrator's part, and how many rounds a second there are is this machine's, where all of them
share the cores. Each user writes a text, and they begin one after the other. With drafts a round
carries up to four draft tokens; without, a target writes on by itself, and a decode is a round.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]

from outrider.client import CallFailed, Finished, OutriderClient, PeerState, Request
from outrider.engine.hosting import HostOptions
from outrider.engine.model import Numerics
from outrider.processes import ANY_PORT, Child, stop_process
from outrider.sampling import SamplingParameters
from outrider.speculation import Policy
from outrider_cli import COMMAND
from tests.support.services import DRAFT, TARGET, ModelProcess
from tests.support.toy import NEVER, ToyModel

DECODE_SECONDS = 0.03  # of a target, as a large model's takes
PER_PROCESS = 25  # toys that share a process, and so a core
DRAFT_COUNT = 10
PROMPT = "abcdefgh" * 8
BEGINNING = 50  # texts without a token yet: gRPC cancels a call that nobody took up for 30 s
PATIENCE = 600.0


@dataclass(frozen=True)
class Measured:
    """Of one run: counts, and the orchestrator's own CPU seconds and bytes."""

    rounds: int
    tokens: int
    in_flight: int  # at most, at the same time
    seconds: float
    cpu_seconds: float
    byte_count: float  # for each generation, above what it holds when idle


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--targets", default="1,10,100")
    parser.add_argument("--users", default="100,1000")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--serve", nargs=3, metavar=("ROLE", "COUNT", "SESSIONS"))
    options = parser.parse_args()
    if options.serve:
        role, count, sessions = options.serve
        await serve(role, int(count), int(sessions))
        return
    print(
        "| targets | drafts | in flight | rounds/s | tokens/s | us of CPU a round | a token | kB |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for target_count in map(int, options.targets.split(",")):
        for users in map(int, options.users.split(",")):
            for draft_count in (DRAFT_COUNT, 0):
                it = await measure(target_count, draft_count, users, options.tokens)
                print(
                    f"| {target_count} | {draft_count} | {it.in_flight}"
                    f" | {it.rounds / it.seconds:.0f} | {it.tokens / it.seconds:.0f}"
                    f" | {1e6 * it.cpu_seconds / it.rounds:.0f}"
                    f" | {1e6 * it.cpu_seconds / it.tokens:.0f} | {it.byte_count / 1e3:.0f} |",
                    flush=True,
                )


async def measure(target_count: int, draft_count: int, users: int, tokens: int) -> Measured:
    """Start everything, let every user write a text, and return what the orchestrator took."""
    async with AsyncExitStack() as stack:
        room = 2 * users // target_count + 8
        targets = await stack.enter_async_context(toys("target", target_count, room))
        room = 2 * users // max(1, draft_count) + 8
        drafts = await stack.enter_async_context(toys("draft", draft_count, room))
        words = [word for each in targets for word in ("--target", each)]
        words += [word for each in drafts for word in ("--draft", each)]
        words += ["--generations", str(users), "--stall-timeout", str(PATIENCE)] + (
            [] if drafts else ["--no-draft"]
        )
        child = await Child.start(COMMAND, "orchestrator", ANY_PORT, words)
        stack.push_async_callback(child.stop)
        client = await stack.enter_async_context(OutriderClient(await child.address()))
        await until_ready(client, target_count + draft_count)
        process = psutil.Process(child.pid)
        idle = process.memory_info().rss
        before, began = sum(process.cpu_times()[:2]), time.perf_counter()
        writers = Writers(client, tokens)
        work = asyncio.gather(*(writers.write(seed) for seed in range(users)))
        most = idle
        while not work.done():
            await asyncio.wait([work], timeout=0.25)
            most = max(most, process.memory_info().rss)
        written = work.result()
        return Measured(
            rounds=sum(rounds for rounds, _ in written),
            tokens=sum(count for _, count in written),
            in_flight=writers.most,
            seconds=time.perf_counter() - began,
            cpu_seconds=sum(process.cpu_times()[:2]) - before,
            byte_count=(most - idle) / users,
        )


class Writers:
    """Users who write a text each; `most` is how many did so at the same time."""

    def __init__(self, client: OutriderClient, tokens: int) -> None:
        self._client, self._tokens = client, tokens
        self._beginning = asyncio.Semaphore(BEGINNING)
        self._now = self.most = 0

    async def write(self, seed: int) -> tuple[int, int]:
        """Return the rounds and the tokens of one text."""
        options = Request(
            PROMPT,
            token_limit=self._tokens,
            policy=Policy.FIXED,
            n_max=4,
            seed=seed,
            sampling=SamplingParameters(temperature=0.8),
        )
        await self._beginning.acquire()
        has_begun = False
        self._now += 1
        self.most = max(self.most, self._now)
        async for event in self._client.generate(options, timeout_seconds=PATIENCE):
            if not has_begun:
                has_begun = True
                self._beginning.release()
            if isinstance(event, Finished):
                self._now -= 1
                return event.statistics.round_count, event.statistics.generated_token_count
        raise AssertionError("a text without an end")


async def until_ready(client: OutriderClient, count: int) -> None:
    """Wait until all model services are in use."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with suppress(CallFailed):  # it may be late on a busy machine
            peers = (await client.status()).peers
            if sum(peer.state is PeerState.READY for peer in peers) == count:
                return
        await asyncio.sleep(0.2)
    raise AssertionError("the services do not become ready")


# --- toys ---


@asynccontextmanager
async def toys(role: str, count: int, sessions: int) -> AsyncIterator[Sequence[str]]:
    """Run so many toys in processes of their own; yield their addresses."""
    addresses: list[str] = []
    async with AsyncExitStack() as stack:
        for first in range(0, count, PER_PROCESS):
            here = min(PER_PROCESS, count - first)
            words = ("-m", "benchmarks.capacity", "--serve", role, str(here), str(sessions))
            pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
            process = await asyncio.create_subprocess_exec(sys.executable, *words, **pipes)
            stack.push_async_callback(stop_process, process)
            assert process.stdout is not None
            addresses += [(await process.stdout.readline()).decode().strip() for _ in range(here)]
        yield addresses


async def serve(role: str, count: int, sessions: int) -> None:
    """Run toys until standard input ends, and print where each listens."""
    options = HostOptions(numerics=Numerics.EXACT, queue_limit=4096, room_seconds=PATIENCE)
    is_target = role == "target"

    def make() -> ToyModel:
        return ToyModel(
            seed=1 if is_target else 2,
            like=None if is_target else 1,
            agreement=1.0 if is_target else 0.9,
            sequence_count=sessions,
            batch_rows=1024,
            wanted_rows=1024,
            eos_bias=NEVER,
            keeps_decodes=False,
        )

    pace = DECODE_SECONDS if is_target else DECODE_SECONDS / 20
    for _ in range(count):
        process = ModelProcess(TARGET if is_target else DRAFT, make, options, pace)
        await process.start()
        print(process.address, flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
