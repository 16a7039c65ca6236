"""The orchestrator's memory with 32 open generations, and what each model service holds."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import psutil  # type: ignore[import-untyped]

from benchmarks.generations import PROMPTS
from benchmarks.processes import DRAFT, TARGET
from outrider.client import Delta, OutriderClient, Request, Status
from outrider.model_service.config import ModelOptions
from outrider_cli.services.local import HostedModel, LocalPlan, local_services

GENERATIONS = 32
CONTEXT = 512


async def main() -> None:
    """Measure and print."""
    options = ModelOptions(sessions=GENERATIONS, context=CONTEXT)
    draft = HostedModel(DRAFT, replace(options, threads=1))
    plan = LocalPlan(target=HostedModel(TARGET, options), draft=draft)
    async with (
        local_services(plan) as services,
        OutriderClient(await services.start()) as client,
    ):
        pids = services.pids
        own = pids["orchestrator"]
        await _wait_until_speculating(client)
        print(f"orchestrator, idle                 {_megabytes(own):6.1f} MB")
        readers = await _open_generations(client)
        print(f"orchestrator, {GENERATIONS} generations open  {_megabytes(own):6.1f} MB")
        for role, model in (("target", TARGET), ("draft", DRAFT)):
            size = model.stat().st_size / 1e6
            print(f"{role:6} of {size:5.1f} MB                 {_megabytes(pids[role]):6.1f} MB")
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _wait_until_speculating(client: OutriderClient) -> Status:
    status = await client.status()
    if not status.speculating:
        await asyncio.sleep(0.1)
        return await _wait_until_speculating(client)
    return status


async def _open_generations(client: OutriderClient) -> list[asyncio.Task[None]]:
    """Return when every generation has begun to give text; all of them stay open."""
    begun = [asyncio.Event() for _ in range(GENERATIONS)]

    async def read(number: int) -> None:
        request = Request(PROMPTS[number % len(PROMPTS)], token_limit=-1)
        async for event in client.generate(request):
            if isinstance(event, Delta):
                begun[number].set()

    readers = [asyncio.create_task(read(number)) for number in range(GENERATIONS)]
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.gather(*(event.wait() for event in begun)), 120)
    assert all(event.is_set() for event in begun), "not every generation began"
    return readers


def _megabytes(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss / 1e6)


if __name__ == "__main__":
    asyncio.run(main())
