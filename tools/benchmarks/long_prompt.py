"""A long prompt arrives while others generate: how long those wait, and what they were promised.

python -m benchmarks.long_prompt -m TARGET --draft-model DRAFT
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from outrider.client import Delta, Finished, OutriderClient, Request
from outrider.model_service.config import ModelOptions
from outrider.sampling import GREEDY
from outrider_cli.services.local import HostedModel, LocalPlan, local_services
from outrider_cli.services.pair import host_draft

_SHORT_PROMPT, _WARM_UP = 48, 48
_FIRST_ID, _IDS, _STEP = 300, 20_000, 7919


@dataclass(slots=True)
class Seen:
    """One user's tokens: when each came, by the clock."""

    times: list[float] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    end: float = 0.0
    prompt_seconds: float = 0.0

    def gaps(self, since: float, until: float) -> list[float]:
        """Return the seconds between tokens that came in that time; several may come at once."""
        return [b - a for a, b in pairwise(self.times) if b > since and a < until]


class Promised:
    """What the target promises, from its log: milliseconds and tokens by the number of users."""

    def __init__(self) -> None:
        self.by_users: dict[int, dict[str, float]] = {}

    def __call__(self, role: str, line: str) -> None:
        """Take in a line of the log; what is measured later counts."""
        if role == "target" and line.startswith("{") and "prompt_beside" in line:
            told = json.loads(line)["prompt_beside"]
            self.by_users = {int(count): promise for count, promise in told.items()}

    def to(self, users: int) -> dict[str, float]:
        """Return the promise to the largest number of users that it names up to so many."""
        return self.by_users[max(count for count in self.by_users if count <= users)]


def ids(user: int, count: int) -> list[int]:
    """Return a prompt that no other user has, not even its start."""
    return [_FIRST_ID + (1009 * user + _STEP * i) % _IDS for i in range(count)]


async def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    sizes = {"sessions": arguments.users + 1, "context": arguments.prompt + 128}
    target = HostedModel(arguments.model, ModelOptions(**sizes))
    draft = None
    if arguments.draft_model:
        draft = host_draft(arguments.draft_model, target.options, target.options)
    promised = Promised()
    async with (
        local_services(LocalPlan(target=target, draft=draft), promised) as services,
        OutriderClient(await services.start()) as client,
    ):
        await _generate(client, ids(0, _SHORT_PROMPT), _WARM_UP, Seen())
        before = await _together(client, arguments, 0)
        during = await _together(client, arguments, arguments.prompt)
        alone = await _read_alone(client, arguments.prompt)
    _print(arguments, promised.to(arguments.users), alone, before, during)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("--draft-model", type=Path)
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=4000)
    return parser.parse_args()


@dataclass(slots=True)
class Look:
    """What the users saw, from when the long prompt was sent until its first token."""

    gaps: list[float]
    rates: list[float]
    prompt_seconds: float


async def _together(client: OutriderClient, arguments: argparse.Namespace, long: int) -> Look:
    """Let the users generate, and send a prompt of `long` tokens into it; 0 sends none."""
    seen = [Seen() for _ in range(arguments.users)]
    tasks = [
        asyncio.create_task(_generate(client, ids(user + 1, _SHORT_PROMPT), arguments.tokens, one))
        for user, one in enumerate(seen)
    ]
    await asyncio.gather(*(one.begun.wait() for one in seen))
    since, newcomer = time.perf_counter(), Seen()
    if long:
        await _generate(client, ids(99, long), 1, newcomer)
    until = time.perf_counter() if long else math.inf
    await asyncio.gather(*tasks)
    gaps = [gap for one in seen for gap in one.gaps(since, until)]
    rates = [len(one.times) / (one.end - one.times[0]) for one in seen]
    return Look(gaps, rates, newcomer.prompt_seconds)


async def _read_alone(client: OutriderClient, tokens: int) -> float:
    """Return the seconds until the first token of a prompt that nobody else has, read alone."""
    seen = Seen()
    await _generate(client, ids(50, tokens), 1, seen)
    return seen.prompt_seconds


async def _generate(client: OutriderClient, prompt: list[int], tokens: int, seen: Seen) -> None:
    begin = time.perf_counter()
    options = Request(prompt, token_limit=tokens, sampling=GREEDY)
    async for event in client.generate(options):
        if isinstance(event, Delta) and event.token_ids:
            seen.times += [time.perf_counter()] * len(event.token_ids)
            seen.begun.set()
            seen.prompt_seconds = seen.prompt_seconds or seen.times[0] - begin
        elif isinstance(event, Finished):
            seen.end = time.perf_counter()


def _print(
    arguments: argparse.Namespace,
    promise: dict[str, float],
    alone: float,
    before: Look,
    during: Look,
) -> None:
    gaps = sorted(during.gaps)
    round_ = statistics.median(gap for gap in before.gaps if gap > 0.0)
    print(f"{arguments.users} users, {statistics.mean(before.rates):.1f} tokens/s each when alone,")
    print(f"  a round in {1e3 * round_:.0f} ms in the median,", end=" ")
    print(f"{1e3 * max(before.gaps):.0f} ms at most")
    print(f"promised while a prompt is read: {promise['ms']:.0f} ms a decode,", end=" ")
    print(f"{promise['tokens']:.0f} tokens of it")
    print(
        f"a prompt of {arguments.prompt} tokens was read in {during.prompt_seconds:.2f} s,", end=" "
    )
    print(f"{alone:.2f} s alone: {during.prompt_seconds / alone:.2f} times")
    print(f"their time between tokens meanwhile: {len(gaps)} of them,", end=" ")
    print(f"p50 {1e3 * _percentile(gaps, 0.5):.0f} ms, p99 {1e3 * _percentile(gaps, 0.99):.0f} ms,")
    print(
        f"  longest {1e3 * gaps[-1]:.0f} ms: {1e3 * gaps[-1] / promise['ms']:.2f} times the promise"
    )


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


if __name__ == "__main__":
    asyncio.run(main())
