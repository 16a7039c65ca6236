"""What a sliding window's small cache saves, and what rejected drafts cost in it.

    python -m benchmarks.windows [--model GGUF --draft GGUF] [--sessions N] [--ctx N] [--tokens N]

For both sizes of the cache (`--swa-full` and not): the memory that the model takes once it is open
in a process of its own, weights and all sessions' cells included, and the decodes of a text with
drafts beside its rounds and rejections. Without models, tiny ones of random weights are written,
whose window is 24 tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from outrider.client import Delta, Finished, GenerateOptions, Origin, OutriderClient, Rollback
from outrider.sampling import GREEDY
from outrider.speculation import Policy
from outrider_cli.generate.run import wait_for_pair
from outrider_cli.options import ModelOptions
from outrider_cli.screen import Progress
from outrider_cli.services.local import Hosted, LocalPlan, local_services
from tests.support.tiny_architectures import WINDOWED, write_architecture

PROMPT = "for line in lines: print(line)\nfor line in"
DRAFTED = 6


@dataclass(frozen=True, slots=True)
class Written:
    """One text, and what it took."""

    tokens: int
    rounds: int
    rejections: int
    decodes: int | None


async def measure(target: Path, draft: Path, options: ModelOptions, tokens: int) -> Written:
    """Write a text with drafts of a pinned length."""
    plan = LocalPlan(target=Hosted(target, options), draft=Hosted(draft, options))
    how = GenerateOptions(
        token_limit=tokens,
        sampling=GREEDY,
        ignore_eos=True,
        seed=1,
        policy=Policy.FIXED,
        n_max=DRAFTED,
        rollback=Rollback.RPC,  # each round is asked for, and none written by the target alone
    )
    async with (
        local_services(plan) as services,
        OutriderClient(await services.start()) as client,
    ):
        await wait_for_pair(client, Progress())
        origins: list[Origin] = []
        async for event in client.generate(PROMPT, how):
            if isinstance(event, Delta):
                origins += event.origins
            elif isinstance(event, Finished):
                statistics = event.statistics
        return Written(
            statistics.generated_token_count,
            statistics.round_count,
            origins.count(Origin.CORRECTED),
            statistics.target_time.step_count,
        )


def opened_megabytes(path: Path, options: ModelOptions) -> float:
    """Return what this process grows by when it opens a model."""
    from outrider.engine.llama import LlamaModel
    from outrider.engine.llama_loading import LlamaConfig

    process = psutil.Process()
    before = process.memory_info().rss
    model = LlamaModel(
        LlamaConfig(
            path=path,
            context=options.context,
            sequence_count=options.sessions,
            thread_count=1,
            pad_multiple=4,
            batch_rows=options.batch,
            full_window=options.swa_full,
        )
    )
    grown = float(process.memory_info().rss - before) / 1e6
    model.close()
    return grown


def memory(path: Path, options: ModelOptions) -> float:
    """Return the same of a process of its own."""
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawning) as pool:
        return pool.submit(opened_megabytes, path, options).result()


@contextmanager
def models(asked: argparse.Namespace) -> Iterator[Sequence[tuple[str, Path, Path]]]:
    """Give the name, target and draft of each pair to measure."""
    if asked.model is not None:
        yield [(asked.model.stem, asked.model, asked.draft or asked.model)]
        return
    with tempfile.TemporaryDirectory() as folder:
        yield [
            (
                name,
                write_architecture(Path(folder) / f"{name}.gguf", name),
                write_architecture(Path(folder) / f"{name}-draft.gguf", name, last_seed=2),
            )
            for name in sorted(WINDOWED)
        ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--draft", type=Path, help="by default the model itself")
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--ctx", type=int, default=448)
    parser.add_argument("--batch", type=int, default=128, help="a small cache has room for it, too")
    parser.add_argument("--tokens", type=int, default=360)
    asked = parser.parse_args()
    print("| model | cache of the window | MB | tokens | rounds | rejections | decodes |")
    print("|---|---|---|---|---|---|---|")
    with models(asked) as pairs:
        for name, target, draft in pairs:
            for full in (False, True):
                options = ModelOptions(
                    sessions=asked.sessions,
                    context=asked.ctx,
                    batch=asked.batch,
                    swa_full=full,
                    numerics="native",
                )
                its = asyncio.run(measure(target, draft, options, asked.tokens))
                size = "--swa-full" if full else "small"
                shown = (size, f"{memory(target, options):.1f}", its.tokens, its.rounds)
                print(
                    f"| {name}",
                    *shown,
                    its.rejections,
                    its.decodes,
                    sep=" | ",
                    end=" |\n",
                    flush=True,
                )


if __name__ == "__main__":
    main()
