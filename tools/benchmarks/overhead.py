"""What a round costs outside the models on loopback, beside two raw echoes in the same run.

Both are measured in turn, several times, because the machine is shared.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from contextlib import AsyncExitStack

from benchmarks.echo import EchoClient
from benchmarks.generations import PROMPTS, TimedDriver, drive, make_generation
from benchmarks.processes import process, running_pair
from orchestrator.pool import Pool
from outrider.sampling import GREEDY, SamplingParameters

REPEATS = 8
TOKENS = 128
ECHOES = 200
ECHO_BYTES = 64
ROUND_SECONDS = 0.003
"""Idle time before an echo, as long as a decode of the bundled target: a thread that slept
that long wakes more slowly, and every round of ours has slept."""


async def main() -> None:
    """Measure and print."""
    async with AsyncExitStack() as stack:
        pair = await stack.enter_async_context(running_pair())
        running = [process("benchmarks.echo", command=(sys.executable, "-m")) for _ in range(2)]
        echoes = [EchoClient(await stack.enter_async_context(each)) for each in running]
        overheads: list[float] = []
        raw: list[float] = []
        spaced: list[float] = []
        for repeat in range(REPEATS):
            overheads += await _round_overheads(pair, repeat)
            raw += [await _two_echoes(echoes, pause=0.0) for _ in range(ECHOES)]
            spaced += [await _two_echoes(echoes, pause=ROUND_SECONDS) for _ in range(ECHOES)]
        for echo in echoes:
            await echo.close()
        _print_times(overheads, raw, spaced)
        await _print_bytes(pair, "shared noise, T=0.8", SamplingParameters(), 4)
        await _print_bytes(pair, "greedy", GREEDY, 4)
        await _print_bytes(pair, "plain rounds", SamplingParameters(), 0)


async def _round_overheads(pair: Pool, repeat: int) -> list[float]:
    """Return, per drafted round of one generation, the seconds outside both models."""
    prompt = PROMPTS[repeat % len(PROMPTS)]
    generation = await make_generation(
        pair, prompt, sampling=GREEDY, draft_length=4, token_limit=TOKENS, seed=repeat
    )
    driver = TimedDriver(generation, pair)
    await drive(driver)
    # The first one includes the prompts of both models, side by side.
    return driver.overheads[1:]


async def _two_echoes(echoes: list[EchoClient], pause: float) -> float:
    """Return the seconds of one echo each, after a pause as long as a decode."""
    await asyncio.sleep(pause)
    return sum([await echo.round_trip(ECHO_BYTES) for echo in echoes])


def _print_times(overheads: list[float], raw: list[float], spaced: list[float]) -> None:
    ours = statistics.median(overheads)
    print(f"rounds measured                {len(overheads)}")
    print(f"outside the models, median     {1e3 * ours:.3f} ms a round (both exchanges)")
    print(f"  quartiles                    {_quartiles(overheads)}")
    for name, echo in (("back to back", raw), ("a decode's time apart", spaced)):
        median = statistics.median(echo)
        print(f"two raw echoes, {name}, median {1e3 * median:.3f} ms, ratio {ours / median:.2f}")
        print(f"  quartiles                    {_quartiles(echo)}")


def _quartiles(seconds: list[float]) -> str:
    low, _, high = statistics.quantiles(seconds, n=4)
    return f"{1e3 * low:.3f} - {1e3 * high:.3f} ms"


async def _print_bytes(pair: Pool, name: str, sampling: SamplingParameters, length: int) -> None:
    sent, tokens, rounds, drafted, accepted = 0, 0, 0, 0, 0
    for seed, prompt in enumerate(PROMPTS):
        generation = await make_generation(
            pair, prompt, sampling=sampling, draft_length=length, token_limit=TOKENS, seed=seed
        )
        driver = TimedDriver(generation, pair)
        await drive(driver)
        sent += driver.wire_bytes
        tokens += TOKENS
        rounds += generation.counts.rounds
        drafted += generation.counts.drafted
        accepted += generation.counts.accepted
    rate = f", acceptance {accepted / drafted:.2f}" if drafted else ""
    print(f"{name:<30} {sent / tokens:.1f} B a token, {sent / rounds:.1f} B a round{rate}")


if __name__ == "__main__":
    asyncio.run(main())
