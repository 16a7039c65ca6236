"""What sources without a model make of a text once its draft is gone: killed, and stopped.

    python -m model_making.copying --shape 1.1b --agreement 0.8 --tokenizer GGUF --out DIR
    python -m benchmarks.draft_gone DIR [--texts 4] [--kind rewrite] [--after 64]

A text is begun with a draft and all sources; after some tokens the draft's process is killed, or
stopped and continued at the end. Printed are tokens/s of the rest, from the first token after that
on, beside those of the same tokens where the sources write without a draft from the start, and the
longest time without a token. Medians of the texts, each with services of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.parts import Arrivals, Text, read_texts
from outrider.client import Delta, GenerateOptions, OutriderClient
from outrider.sampling import GREEDY
from outrider.speculation import LOCAL_DRAFTERS
from outrider_cli.generate.run import wait_for_pair
from outrider_cli.options import ModelOptions
from outrider_cli.screen import Progress
from outrider_cli.services.local import Hosted, LocalPlan, LocalServices, local_services

FATES = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
LOCAL = GenerateOptions(drafters=frozenset(LOCAL_DRAFTERS))


async def write(
    services: LocalServices,
    client: OutriderClient,
    text: Text,
    how: GenerateOptions,
    after: int = 0,
    fate: signal.Signals | None = None,
) -> Arrivals:
    """Write a text; with a fate, that comes over the draft once it has `after` tokens."""
    how = replace(how, token_limit=text.count, sampling=GREEDY, seed=1, ignore_eos=True)
    how = replace(how, ignore_cached_prefix=True)
    arrivals = Arrivals()
    async for event in client.generate(text.prompt, how):
        if isinstance(event, Delta):
            arrivals.note(len(event.token_ids))
            if fate is not None and arrivals.counts[-1][0] >= after:
                os.kill(services.pids["draft"], fate)
                fate = None
    return arrivals


async def rest_of(
    folder: Path, text: Text, after: int, fate: signal.Signals | None, options: ModelOptions
) -> tuple[float, float]:
    """Return tokens/s of the rest of a text and the longest wait in it, in services of its own."""
    target = Hosted(folder / "target.gguf", options)
    draft = Hosted(folder / "draft.gguf", options)
    plan = LocalPlan(target=target, draft=draft if fate else None, own_draft=False)
    async with (
        local_services(plan) as services,
        OutriderClient(await services.start()) as client,
    ):
        await services.watch(wait_for_pair(client, Progress()))
        how = GenerateOptions() if fate else LOCAL
        for _ in range(2):  # the first one learns what decodes cost
            await write(services, client, text, how)
        try:
            its = await write(services, client, text, how, after, fate)
        finally:
            if fate is signal.SIGSTOP:
                os.kill(services.pids["draft"], signal.SIGCONT)
    begin = next(i for i, (count, _) in enumerate(its.counts) if count >= after)
    waits = [later - earlier for (_, earlier), (_, later) in pairwise(its.counts[begin:])]
    return its.rate(after, text.count), max(waits)


async def measure(asked: argparse.Namespace, texts: Sequence[Text]) -> None:
    """Measure and print line by line."""
    options = ModelOptions(threads=asked.threads, sessions=1, numerics="native")
    print("| draft | tokens/s afterwards | of the sources alone | longest wait, ms |")
    print("|---|---|---|---|")

    async def rests(fate: signal.Signals | None) -> list[tuple[float, float]]:
        return [await rest_of(asked.folder, each, asked.after, fate, options) for each in texts]

    alone = await rests(None)
    print(f"| never there | {_rate(alone):.1f} | 1.00 | {_wait(alone):.0f} |", flush=True)
    for name, fate in FATES.items():
        its = await rests(fate)
        share = median(mine[0] / other[0] for mine, other in zip(its, alone, strict=True))
        print(f"| {name} | {_rate(its):.1f} | {share:.2f} | {_wait(its):.0f} |", flush=True)


def _rate(rests: Sequence[tuple[float, float]]) -> float:
    return median(rate for rate, _ in rests)


def _wait(rests: Sequence[tuple[float, float]]) -> float:
    return 1000.0 * median(wait for _, wait in rests)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="that model_making.copying wrote")
    parser.add_argument("--kind", default="rewrite")
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--after", type=int, default=64, help="tokens after which the draft goes")
    parser.add_argument("--threads", type=int, default=0)
    asked = parser.parse_args()
    asyncio.run(measure(asked, read_texts(asked.folder, asked.kind)[: asked.texts]))


if __name__ == "__main__":
    main()
