"""Four users in a closed loop: how many tokens each decode of the target carries."""

from __future__ import annotations

import asyncio
import time

from benchmarks.generations import PROMPTS, TimedDriver, drive, make_generation
from benchmarks.processes import running_pair
from orchestrator.pool import Pool
from outrider.sampling import GREEDY
from outrider.v1 import common_pb2

USERS = 4
TOKENS = 256


async def main() -> None:
    """Measure and print."""
    async with running_pair() as pair:
        print("users  draft  tokens/s  rounds  decodes  rounds/decode  tokens/decode")
        for length in (0, 4):
            for users in (1, USERS):
                await _measure(pair, users, length)


async def _measure(pair: Pool, users: int, length: int) -> None:
    generations = [
        await make_generation(
            pair,
            PROMPTS[user % len(PROMPTS)],
            sampling=GREEDY,
            draft_length=length,
            token_limit=TOKENS,
            seed=user,
        )
        for user in range(users)
    ]
    before = await _decode_count(pair)
    begin = time.perf_counter()
    await asyncio.gather(*(drive(TimedDriver(generation, pair)) for generation in generations))
    seconds = time.perf_counter() - begin
    decodes = await _decode_count(pair) - before
    rounds = sum(generation.counts.rounds for generation in generations)
    tokens = users * TOKENS
    print(
        f"{users:5}  {length:5}  {tokens / seconds:8.0f}  {rounds:6}  {decodes:7}"
        f"  {rounds / decodes:13.2f}  {tokens / decodes:13.2f}"
    )


async def _decode_count(pair: Pool) -> int:
    model = await pair.target.stub.GetModel(common_pb2.GetModelRequest())
    return int(model.activity.decode_count)


if __name__ == "__main__":
    asyncio.run(main())
