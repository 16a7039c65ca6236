"""Says how often a wrong draft token was foreseen in service, by the number of lines.

    python -m benchmarks.foreseen_served TARGET DRAFT [--round-trip 50] [--tokens 160]

The draft is at the far end of a shaped link and writes as many lines as are given, ahead of the
target. A miss is foreseen if the text continues with a runner-up line that was there in time.
`benchmarks.foreseen` says what the models alone allow.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks.foreseen import PROMPTS
from outrider.client import Finished, GenerateOptions, OutriderClient
from outrider.client.values import Statistics
from outrider.rpc.security import ClientSecurity
from outrider.sampling import GREEDY, SamplingParameters
from outrider.speculation import MODEL, Policy
from outrider_cli.bench.remote_model import remote_model
from outrider_cli.generate.run import wait_for_pair
from outrider_cli.options import ModelOptions
from outrider_cli.screen import Progress
from outrider_cli.services.local import Hosted, LocalPlan, local_services

SAMPLINGS = {"greedy": GREEDY, "T 0.8": SamplingParameters(temperature=0.8)}


async def write(
    client: OutriderClient, prompt: str, sampling: SamplingParameters, lines: int, tokens: int
) -> Statistics:
    """Write a text with so many lines; return its statistics."""
    how = GenerateOptions(
        token_limit=tokens,
        sampling=sampling,
        seed=len(prompt),
        ignore_eos=True,
        policy=Policy.FIXED,
        n_max=4,
        n_parallel=lines,
        run_ahead=True,
        drafters=frozenset({MODEL}),
    )
    async for event in client.generate(prompt, how):
        if isinstance(event, Finished):
            return event.statistics
    raise AssertionError("a generation ends with its statistics")


def report(name: str, lines: int, found: Sequence[Statistics]) -> str:
    """Return a row of the table."""
    misses = sum(each.forked_miss_count for each in found)
    foreseen = sum(each.foreseen_miss_count for each in found)
    rate = sum(each.generated_token_count for each in found) / sum(
        each.generation_seconds for each in found
    )
    share = f"{foreseen / misses:.2f}" if misses else "-"
    return f"| {name} | {lines} | {misses} | {share} | {rate:.1f} |"


async def measure(asked: argparse.Namespace) -> None:
    """Measure and print line by line."""
    line_counts = [int(each) for each in asked.lines.split(",")]
    draft = Hosted(asked.draft, ModelOptions(threads=1, sessions=max(line_counts), kv_cache="pool"))
    target = Hosted(asked.target, ModelOptions(threads=1, sessions=1))
    async with AsyncExitStack() as stack:
        far = await stack.enter_async_context(remote_model("draft", draft, {}))
        await far.reshape(asked.round_trip)
        plan = LocalPlan(
            target=target,
            draft=far.address,
            orchestrator=far.token_options,
            own_draft=False,
        )
        services = await stack.enter_async_context(local_services(plan))
        security = ClientSecurity(token_file=far.token_file)
        client = OutriderClient(await services.start(), security=security)
        await stack.enter_async_context(client)
        await services.watch(wait_for_pair(client, Progress()))
        print("| | lines | misses | foreseen | tokens/s |")
        print("|---|---|---|---|---|")
        for name, sampling in SAMPLINGS.items():
            for lines in line_counts:
                found = [
                    await services.watch(write(client, each, sampling, lines, asked.tokens))
                    for each in PROMPTS
                ]
                print(report(name, lines, found), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--lines", default="2,3,4,8", help="numbers of lines")
    parser.add_argument("--round-trip", type=float, default=50.0, help="to the draft, in ms")
    parser.add_argument("--tokens", type=int, default=160, help="of each text")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
