"""An hour of mixed work: what the processes hold at rest must not grow.

    python -m tests.chaos.soak --minutes 60

Clients work for a while, then all of them end, and memory, files, threads and sessions are counted
at rest. What is counted after the first ten minutes (a third of a shorter run) is the measure.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import grpc
import httpx
import psutil

from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.chaos.work import SHIFTING, Asked, work_job, write
from tests.chaos.world import World

GROWTH = 0.02
"""The share by which anything may be more than after the first minutes."""

_WORK_SECONDS = 20.0
_CLIENTS = 6
_SETTLE_MINUTES = 10.0
_REST_SECONDS = 120.0
_PROMPTS = ("def read_config(path):", "class Matrix:", "import os\n", "def parse(text):\n")
_RULES = (
    common.ACCEPTANCE_RULE_MATCH,
    common.ACCEPTANCE_RULE_SHARED_NOISE,
    common.ACCEPTANCE_RULE_REJECTION,
)

Work = Callable[[World, random.Random], Awaitable[None]]


@dataclass(frozen=True)
class Count:
    """What a process holds at rest."""

    memory: int  # bytes
    files: int
    threads: int


@dataclass(frozen=True)
class Sample:
    """What all of them held, some minutes after the start."""

    minutes: float
    sessions: int
    counts: dict[str, Count]
    texts: int  # written so far


# --- work ---


async def _note(count: int) -> None:
    """Nothing goes wrong here."""


def _asked(rng: random.Random) -> Asked:
    return Asked(f"{rng.choice(_PROMPTS)}{rng.randrange(50)}", rng.randrange(8, 120))


async def _grpc(world: World, rng: random.Random) -> None:
    left = await write(world, _asked(rng), False, _note)
    assert not left.error, left.error


async def _http(world: World, rng: random.Random) -> None:
    left = await write(world, _asked(rng), True, _note)
    assert not left.error, left.error


async def _job(world: World, rng: random.Random) -> None:
    left = await work_job(world, _asked(rng), False, _note)
    assert not left.error, left.error


async def _shift(world: World, rng: random.Random) -> None:
    left = await write(world, Asked(rng.choice(_PROMPTS), SHIFTING, shifts=True), False, _note)
    assert not left.error, left.error


def sampled_request(rng: random.Random) -> messages.GenerateRequest:
    """Return a request under any rule, with what pays or a fixed draft."""
    request = _asked(rng).message()
    request.sampling.temperature = rng.choice((0.2, 0.8, 1.2))
    request.seed = rng.randrange(1 << 32)
    request.speculative.acceptance = rng.choice(_RULES)
    if rng.random() < 0.5:
        request.speculative.policy = messages.DRAFT_POLICY_MEASURED
    return request


async def _sampled(world: World, rng: random.Random) -> None:
    async for _ in world.stub.Generate(sampled_request(rng)):
        pass


async def _cancelled(world: World, rng: random.Random) -> None:
    """A client that goes away in the middle."""
    call = world.stub.Generate(_asked(rng).message())
    left = rng.randrange(1, 12)
    async for _ in call:
        left -= 1
        if not left:
            call.cancel()
            return


async def _refused(world: World, rng: random.Random) -> None:
    """What is no request."""
    with suppress(grpc.aio.AioRpcError):
        request = _asked(rng).message()
        request.sampling.temperature = -1.0
        async for _ in world.stub.Generate(request):
            pass
    async with world.http() as http:
        answer = await http.post("/completion", content=rng.randbytes(64))
        assert 400 <= answer.status_code < 500


async def _looked(world: World, rng: random.Random) -> None:
    """Somebody looks at the figures."""
    async with world.http() as http:
        for path in ("/metrics", "/status", "/props", "/v1/models"):
            (await http.get(path)).raise_for_status()


WORK: dict[str, tuple[Work, int]] = {
    "gRPC": (_grpc, 4),
    "HTTP": (_http, 4),
    "job": (_job, 2),
    "shift": (_shift, 1),
    "sampled": (_sampled, 4),
    "cancelled": (_cancelled, 3),
    "refused": (_refused, 1),
    "looked": (_looked, 1),
}


async def _client(world: World, rng: random.Random, until: float, failed: list[str]) -> int:
    """Work until a time; return how many pieces of work. What fails is noted, and is the end."""
    names, weights = list(WORK), [weight for _, weight in WORK.values()]
    done = 0
    while time.monotonic() < until:
        [name] = rng.choices(names, weights)
        try:
            await WORK[name][0](world, rng)
        except (AssertionError, grpc.aio.AioRpcError, httpx.HTTPError) as error:
            failed.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[:3]}")
            print(failed[-1], flush=True)
            return done
        done += 1
    return done


# --- counting ---


async def _at_rest(world: World) -> int:
    """Wait until no session is open; return how many are."""
    deadline = time.monotonic() + _REST_SECONDS
    while (count := await world.sessions()) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    return count


def _counts(world: World) -> dict[str, Count]:
    found = {}
    for name, process in world.processes.items():
        its = psutil.Process(process.pid)
        found[name] = Count(its.memory_info().rss, its.num_fds(), its.num_threads())
    return found


def problems(samples: Sequence[Sample], settle_minutes: float) -> list[str]:
    """Return what grew: of the samples after so many minutes, the last fifth against the first."""
    kept = [sample for sample in samples if sample.minutes >= settle_minutes]
    part = max(1, len(kept) // 5)
    if len(kept) < 2:
        return ["too short to say anything"]
    first, last = kept[:part], kept[-part:]
    left = [each for each in kept if each.sessions]
    found = [f"{each.sessions} sessions left at {each.minutes:.1f} min" for each in left]
    for name in kept[0].counts:
        for what, slack in (("memory", 0), ("files", 1), ("threads", 1)):
            before = fmean(getattr(each.counts[name], what) for each in first)
            after = fmean(getattr(each.counts[name], what) for each in last)
            if after > before * (1.0 + GROWTH) + slack:
                found.append(f"{what} of the {name} grew from {before:.0f} to {after:.0f}")
    return found


def line(sample: Sample) -> str:
    """Return one line of what was counted."""
    said = "  ".join(
        f"{name} {count.memory / 2**20:.1f} MiB {count.files} files {count.threads} threads"
        for name, count in sample.counts.items()
    )
    return f"{sample.minutes:6.1f} min  {sample.texts:6d} done  {sample.sessions} sessions  {said}"


async def run(minutes: float, seed: int) -> list[str]:
    """Work for so long; return what grew."""
    samples: list[Sample] = []
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="outrider-soak-") as folder:
        async with World(Path(folder), "plain") as world:
            await world.until_well()
            begin, done, number = time.monotonic(), 0, 0
            while time.monotonic() < begin + 60.0 * minutes:
                number += 1
                until = time.monotonic() + _WORK_SECONDS
                rngs = [random.Random(f"{seed} {number} {i}") for i in range(_CLIENTS)]
                work: list[Any] = [_client(world, rng, until, failed) for rng in rngs]
                done += sum(await asyncio.gather(*work))
                sessions = await _at_rest(world)
                past = (time.monotonic() - begin) / 60.0
                samples.append(Sample(past, sessions, _counts(world), done))
                print(line(samples[-1]), flush=True)
            if any(process.starts > 1 for process in world.processes.values()):
                failed.append("a process ended")
    return failed + problems(samples, min(_SETTLE_MINUTES, minutes / 3.0))


def main() -> int:
    """Run what the command line says; the exit status is 1 where anything grew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    found = asyncio.run(run(options.minutes, options.seed))
    for problem in found:
        print(problem)
    print("GREW" if found else f"flat within {GROWTH:.0%}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
