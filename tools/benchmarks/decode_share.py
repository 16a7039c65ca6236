"""The share of a target's time that is inside decodes, where they take as long as on a GPU.

    python -m benchmarks.decode_share [--vocabulary 32000 152064] [--repeats 3] [--only 'own draft']

Target and draft are of two layers and one. Where llama.cpp would wait for a GPU, as CUDA does by
polling, the engine's thread polls without the interpreter for what is left of a decode's time. So
the rest is what Python does between two decodes. It says nothing of a GPU itself.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from hashlib import pbkdf2_hmac
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.processes import TARGET, process
from model_making.synthetic import SAMPLING, SHAPES, Pair, write_pair
from outrider.client import Delta, OutriderClient, Request
from outrider.engine.core_lock import NoCoreLock
from outrider.model_service import run
from outrider.sampling import GREEDY, SamplingParameters
from outrider_cli import main as run_command
from outrider_cli.generate.execute import wait_for_target
from outrider_cli.screen import Progress

ROWS, MILLISECONDS = (1, 2, 4, 8, 16, 32), (2.8, 3.0, 3.6, 5.2, 6.4, 7.9)
"""Of a 7B's decodes on an H200."""

DRAFT_MILLISECONDS = 0.5
"""Of each decode of the draft."""

RESIDUAL = 0.25
"""Of the target's second layer: about half of the drafts are accepted."""

PROMPT_TOKENS, TOKENS = 64, 384
SAMPLINGS = {"greedy": GREEDY, "T .8": SAMPLING}
CELLS = {"1 user": (1, False), "8 users": (8, False), "16 users": (16, False)}
CELLS["1 user, own draft"] = 1, True
"""By name, how many users, and whether the target's own draft drafts for them."""

_BUSY = "--busy"


def main() -> None:
    """Measure and print, or serve a target for that."""
    if sys.argv[1:2] == [_BUSY]:
        _slow_down(Path(sys.argv[2]))
        del sys.argv[1:3]
        run_command()
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vocabulary", type=int, nargs="+", default=(32_000, 152_064))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", metavar="PART", help="cells with this in their names")
    asked = parser.parse_args()
    for size in asked.vocabulary:
        asyncio.run(_measure(size, asked.repeats, asked.only))


# --- the target's process ---


def _slow_down(busy_file: Path) -> None:
    """Let decodes take as long as on a GPU; sum up their seconds in a file."""
    from outrider.engine import llama

    engine, service = cast(Any, llama), cast(Any, run)
    library = engine.ll
    busy = np.memmap(busy_file, np.float64, "r+", shape=1)
    decode, address, ends = library.llama_decode, engine.logits_address, dict[int, float]()
    milliseconds = np.interp(range(1 + ROWS[-1]), ROWS, MILLISECONDS).tolist()
    weights = 0  # bytes of the larger model, the target

    def slow_decode(context: int, batch: Any) -> int:
        nonlocal weights
        begin = time.perf_counter()
        size = library.llama_model_size(library.llama_get_model(context))
        weights = max(weights, size)
        rows = min(batch.n_tokens, ROWS[-1])
        seconds = 1e-3 * (DRAFT_MILLISECONDS if size < weights else milliseconds[rows])
        ends[context] = begin + seconds
        busy[0] += seconds
        return int(decode(context, batch))

    def wait(context: int) -> int:
        _poll(ends.get(context, 0.0))
        return int(address(context))

    library.llama_decode, engine.logits_address = slow_decode, wait
    service.find_core_lock = lambda *_: NoCoreLock()


def _poll(end: float) -> None:
    """Keep the thread's core busy up to a time, and leave the interpreter to others."""
    while (left := end - time.perf_counter()) > 0.0:
        pbkdf2_hmac("sha1", b"", b"", max(1, int(1e6 * left)))  # each round takes .3 to .5 us


# --- the benchmark's process ---


async def _measure(size: int, repeats: int, part: str) -> None:
    with _pair(size) as pair:
        busy_file = pair.target.with_name("busy")
        busy = np.memmap(busy_file, np.float64, "w+", shape=1)
        async with _serving(pair, busy_file) as client:
            print(f"\n{size:,} tokens: share of the time inside decodes, and tokens/s")
            for name, (users, drafts) in CELLS.items():
                for kind, sampling in SAMPLINGS.items():
                    cell = _Cell(client, busy, size, users, drafts, sampling)
                    if part in f"{name}, {kind}":
                        print(f"{name}, {kind}".ljust(28), await cell.measure(repeats), flush=True)


@contextmanager
def _pair(size: int) -> Iterator[Pair]:
    with TemporaryDirectory() as folder:
        shape = replace(SHAPES["tiny"], layers=2, vocabulary=size)
        yield write_pair(shape, RESIDUAL, TARGET, Path(folder))


@asynccontextmanager
async def _serving(pair: Pair, busy_file: Path) -> AsyncIterator[OutriderClient]:
    options = [f"--model={pair.target}", f"--draft-model={pair.draft}", "--numerics=native"]
    for prefix in ("", "draft-"):
        options += [f"--{prefix}threads=1", f"--{prefix}ctx=1024", f"--{prefix}sessions=16"]
    command = (sys.executable, "-m", "benchmarks.decode_share", _BUSY, str(busy_file))
    async with (
        process("target", *options, command=command) as target,
        process("orchestrator", f"--target={target}", "--no-draft") as address,
        OutriderClient(address) as client,
    ):
        await wait_for_target(client, Progress())
        await asyncio.sleep(5.0)  # what is left to measure of the models is measured now
        yield client


@dataclass(frozen=True, slots=True)
class _Cell:
    """Users who write at once, whose decodes are measured while all of them do."""

    client: OutriderClient
    busy: NDArray[np.float64]
    vocabulary: int
    users: int
    drafts: bool
    sampling: SamplingParameters

    async def measure(self, repeats: int) -> str:
        """Return the median share and its range, and the median rate; the first texts warm up."""
        random = np.random.default_rng(1)
        found = [await self._texts(seed, random) for seed in range(1 + repeats)][1:]
        shares, rates = zip(*found, strict=True)
        span = f"({min(shares):.3f} - {max(shares):.3f})"
        return f"{statistics.median(shares):.3f} {span} {statistics.median(rates):7.0f}"

    async def _texts(self, seed: int, random: np.random.Generator) -> tuple[float, float]:
        """Return the share of a text of each user, and the tokens a second of all of them."""
        texts = [self._text(seed, random) for _ in range(self.users)]
        first, last = zip(*await asyncio.gather(*texts), strict=True)
        (begin, busy_before), (end, busy_after) = max(first), min(last)
        seconds = max(last)[0] - min(first)[0]
        return (busy_after - busy_before) / (end - begin), self.users * TOKENS / seconds

    async def _text(self, seed: int, random: np.random.Generator) -> list[tuple[float, float]]:
        """Return when the first and the last tokens of a text came, and what was busy then."""
        prompt = [1, *random.integers(300, self.vocabulary - 10, PROMPT_TOKENS - 1).tolist()]
        request = Request(
            prompt,
            token_limit=TOKENS,
            sampling=self.sampling,
            seed=seed,
            enabled=self.drafts,
            ignore_eos=True,
        )
        stream = self.client.generate(request)
        marks = [
            (time.perf_counter(), float(self.busy[0]))
            async for event in stream
            if isinstance(event, Delta)
        ]
        return [marks[0], marks[-1]]


if __name__ == "__main__":
    main()
