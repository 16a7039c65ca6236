"""Tokens a second under a JSON schema, with and without speculation, of a running orchestrator.

python -m benchmarks.grammar --orchestrator HOST:PORT
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from dataclasses import replace

from outrider.client import Finished, OutriderClient, Request, Statistics
from outrider.sampling import SamplingParameters

PROMPT = "The inventory, as JSON:\n"
SCHEMA = {
    "type": "array",
    "minItems": 200,  # more than the tokens of a run
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 24},
            "count": {"type": "integer"},
            "kind": {"enum": ["tool", "part", "book"]},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
        },
        "required": ["name", "count", "kind", "tags"],
        "additionalProperties": False,
    },
}


async def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    asked = Request(
        PROMPT,
        token_limit=arguments.tokens,
        sampling=SamplingParameters(temperature=arguments.temperature),
        json_schema=json.dumps(SCHEMA),
    )
    on, off = [], []
    async with OutriderClient(arguments.orchestrator) as client:
        for seed in range(-1, arguments.pairs):  # the first pair warms up
            its = replace(asked, seed=max(0, seed))
            with_draft = await _generate(client, its)
            without = await _generate(client, replace(its, enabled=False))
            if seed >= 0:
                on.append(with_draft)
                off.append(without)
    _print(on, off)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--orchestrator", default="127.0.0.1:50060", metavar="HOST:PORT")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.8)
    return parser.parse_args()


async def _generate(client: OutriderClient, request: Request) -> Statistics:
    async for event in client.generate(request):
        if isinstance(event, Finished):
            return event.statistics
    raise AssertionError("a generation without an end")


def _print(on: list[Statistics], off: list[Statistics]) -> None:
    fast, slow = _rates(on), _rates(off)
    drafted = sum(each.drafted_token_count for each in on)
    accepted = sum(each.accepted_token_count for each in on)
    rate = f", acceptance {accepted / drafted:.2f}" if drafted else ", nothing drafted"
    print(f"speculation on, median   {statistics.median(fast):7.1f} tokens/s{rate}")
    print(f"speculation off, median  {statistics.median(slow):7.1f} tokens/s")
    ratios = sorted(a / b for a, b in zip(fast, slow, strict=True))
    print(f"on over off, median      {statistics.median(ratios):7.2f}", end=" ")
    print(f"({ratios[0]:.2f} - {ratios[-1]:.2f} over {len(ratios)} pairs)")


def _rates(runs: list[Statistics]) -> list[float]:
    return [each.tokens_per_second or 0.0 for each in runs]


if __name__ == "__main__":
    asyncio.run(main())
