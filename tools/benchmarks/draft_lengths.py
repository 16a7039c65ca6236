"""A table of draft lengths on one prompt, as `make draft-comparison`: what each gains here.

The lengths take turns, so that a busy machine slows all of them alike; the
figures are medians over the turns. The speed-up is over the target alone as llama.cpp
runs it: without padding and messages, as the target measured it when it was loaded.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from outrider.client import Finished, OutriderClient, Request, Statistics
from outrider.sampling import SamplingParameters
from outrider.speculation import Policy
from outrider_cli.generate.command import DEFAULT_PROMPT, ONE_SESSION
from outrider_cli.generate.execute import wait_for_pair
from outrider_cli.screen import Progress
from outrider_cli.services.local import HostedModel, LocalPlan, local_services
from outrider_cli.services.pair import choose_draft, choose_target, host_draft

LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12)
WARM_UP = 4


async def measure(options: argparse.Namespace) -> dict[int, list[Statistics]]:
    """Return the statistics of every turn by draft length."""
    plan = LocalPlan(
        target=HostedModel(choose_target(options.model), ONE_SESSION),
        draft=host_draft(
            choose_draft(options.model, options.draft_model), ONE_SESSION, ONE_SESSION
        ),
    )
    measured: dict[int, list[Statistics]] = {length: [] for length in LENGTHS}
    with Progress() as progress:
        async with (
            local_services(plan) as services,
            OutriderClient(await services.start()) as client,
        ):
            await services.watch(wait_for_pair(client, progress))
            await services.watch(generate(client, options, WARM_UP))
            for turn in range(options.turns):
                for length in LENGTHS:
                    progress.say(f"turn {turn + 1} of {options.turns}, draft length {length}")
                    numbers = await services.watch(generate(client, options, length))
                    measured[length].append(numbers)
    return measured


async def generate(client: OutriderClient, options: argparse.Namespace, length: int) -> Statistics:
    """Run one generation and return what it took."""
    asked = Request(
        options.prompt,
        token_limit=options.n_predict,
        sampling=SamplingParameters(temperature=options.temperature),
        seed=1,
        n_max=length,
        policy=Policy.FIXED,
    )
    async for event in client.generate(asked):
        if isinstance(event, Finished):
            return event.statistics
    raise AssertionError("a generation ended without its end")


def median(values: Sequence[float | None]) -> float | None:
    """Return the median of what is known."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def table(measured: dict[int, list[Statistics]]) -> Table:
    """Return one row per draft length."""
    shown = Table(box=box.SIMPLE)
    titles = ("draft length", "drafted", "acceptance", "tokens a round", "tokens/s", "speed-up")
    for title in titles:
        shown.add_column(title, justify="right")
    alone = measured[0][0].controller.target_alone_token_rate  # in llama.cpp, without messages
    for length, turns in measured.items():
        speed = median([numbers.tokens_per_second for numbers in turns])
        shown.add_row(
            str(length),
            str(turns[0].drafted_token_count),
            written(median([numbers.acceptance_rate for numbers in turns]), 3),
            written(median([numbers.tokens_per_round for numbers in turns]), 2),
            written(speed, 1),
            written(speed / alone if speed and alone else None, 2),
        )
    return shown


def written(value: float | None, digits: int) -> str:
    """Return a number, or that there is none."""
    return "n/a" if value is None else f"{value:.{digits}f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--draft-model", type=Path)
    parser.add_argument("--prompt", default=DEFAULT_PROMPT)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--n-predict", type=int, default=128)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    measured = asyncio.run(measure(options))
    Console().print(table(measured))
    print(f"medians of {options.turns} turns; draft length 0 is the target alone")


if __name__ == "__main__":
    main()
