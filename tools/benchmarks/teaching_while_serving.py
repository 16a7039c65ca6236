"""Serves users while a head is taught from their texts, and changes in the middle what they ask.

First all continue Python, then prose. Printed for each minute: what is accepted of the head's
drafts of three tokens, the time between a user's events, and whether the watcher computed. In every
fifth minute it is stopped, so that a busy machine slows both kinds alike. Once a minute a greedy
text is written with drafts, and must be the one that the target wrote alone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pydoc_data.topics
import random
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
from rich import box
from rich.console import Console
from rich.table import Table

from outrider.client import Delta, Finished, OutriderClient, Request
from outrider.model_service.config import ModelOptions
from outrider.sampling import SamplingParameters
from outrider.speculation import HeadKind, Policy
from outrider_cli.generate.execute import wait_for_target
from outrider_cli.screen import Progress
from outrider_cli.services.local import HostedModel, LocalPlan, local_services
from outrider_cli.services.pair import choose_target

_PASSAGE = 300  # characters of a prompt
_TOKENS = 128  # of an answer
_COMPUTES = 0.2  # of a core, from which on a watcher is said to compute in a minute
_STOPPED = 5  # of so many minutes, the last one is without a watcher
_EAGLE3 = frozenset({HeadKind.EAGLE3.value})


@dataclass(slots=True)
class Minute:
    """What was seen in a minute."""

    asks: str
    is_stopped: bool
    cpu_seconds: float = 0.0
    """Of the watcher."""
    gaps: list[float] = field(default_factory=list)
    """Seconds between events of one text."""
    drafted: int = 0
    accepted: int = 0
    differs: bool = False
    """Whether the greedy text was another one."""

    @property
    def teaches(self) -> bool:
        """Whether the watcher computed."""
        return self.cpu_seconds > _COMPUTES * 60


class Load:
    """Users who ask one thing after the other."""

    def __init__(self, client: OutriderClient, minutes: int, seed: int = 1) -> None:
        self._client, self._count = client, minutes
        self._random = random.Random(seed)
        self._texts = {"Python": _python(), "prose": _prose()}
        self.minutes: list[Minute] = []

    async def run(self, users: int, watcher: psutil.Process) -> None:
        """Load the target for so many minutes."""
        probe = Request(
            "def main(", token_limit=_TOKENS, sampling=SamplingParameters(temperature=0)
        )
        alone = await self._ids(probe, enabled=False)
        asking = [asyncio.create_task(self._ask()) for _ in range(users)]
        try:
            for number in range(self._count):
                asks = "Python" if number < self._count / 2 else "prose"
                minute = Minute(asks, is_stopped=number % _STOPPED == _STOPPED - 1)
                self.minutes.append(minute)
                watcher.send_signal(signal.SIGSTOP if minute.is_stopped else signal.SIGCONT)
                before = sum(watcher.cpu_times()[:2])
                await asyncio.sleep(50)
                minute.differs = await self._ids(probe) != alone
                await asyncio.sleep(10)
                minute.cpu_seconds = sum(watcher.cpu_times()[:2]) - before
                print(row(minute), flush=True)
        finally:
            watcher.send_signal(signal.SIGCONT)
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _ask(self) -> None:
        while True:
            if not self.minutes:
                await asyncio.sleep(0.1)
                continue
            text = self._random.choice(self._texts[self.minutes[-1].asks])
            at = self._random.randrange(max(1, len(text) - _PASSAGE))
            asked = Request(
                text[at : at + _PASSAGE],
                token_limit=_TOKENS,
                sampling=SamplingParameters(temperature=self._random.choice((0.0, 0.8))),
                seed=self._random.randrange(1 << 31),
                n_max=3,
                policy=Policy.FIXED,
                drafters=_EAGLE3,
            )
            await self._note(asked)

    async def _note(self, asked: Request) -> None:
        last = 0.0
        async with aclosing(self._client.generate(asked)) as events:
            async for event in events:
                now, minute = time.perf_counter(), self.minutes[-1]
                if isinstance(event, Delta) and event.token_ids:
                    if last:
                        minute.gaps.append(now - last)
                    last = now
                elif isinstance(event, Finished):
                    minute.drafted += event.statistics.drafted_token_count
                    minute.accepted += event.statistics.accepted_token_count

    async def _ids(self, asked: Request, enabled: bool = True) -> list[int]:
        """Return the tokens of a text."""
        found: list[int] = []
        async for event in self._client.generate(replace(asked, enabled=enabled)):
            if isinstance(event, Delta):
                found += event.token_ids
        return found


def _python() -> list[str]:
    folder = Path(os.__file__).parent
    return [path.read_text(errors="replace") for path in sorted(folder.glob("*.py"))]


def _prose() -> list[str]:
    return list(pydoc_data.topics.topics.values())


def row(minute: Minute) -> str:
    """Return a minute in a line."""
    accepted = minute.accepted / minute.drafted if minute.drafted else float("nan")
    return (
        f"{minute.asks:<7} accepted {accepted:.3f}, gaps p50 {1e3 * _share(minute.gaps, 50):.1f}"
        f" p99 {1e3 * _share(minute.gaps, 99):.1f} ms, watcher {minute.cpu_seconds:.0f} CPU-s"
        f"{', stopped' if minute.is_stopped else ''}{', OTHER TEXT' if minute.differs else ''}"
    )


def _share(values: Sequence[float], percent: int) -> float:
    if len(values) < 2:
        return float("nan")
    return statistics.quantiles(values, n=100)[percent - 1]


def table(minutes: Sequence[Minute]) -> Table:
    """Return the gaps with and without a lesson beside them."""
    shown = Table(box=box.SIMPLE)
    for title in ("beside", "minutes", "gaps", "p50, ms", "p99, ms"):
        shown.add_column(title, justify="right")
    for name, chosen in (
        ("a lesson", [each for each in minutes if each.teaches]),
        ("a watcher that is stopped", [each for each in minutes if each.is_stopped]),
    ):
        gaps = [gap for each in chosen for gap in each.gaps]
        figures = (f"{1e3 * _share(gaps, percent):.1f}" for percent in (50, 99))
        shown.add_row(name, str(len(chosen)), str(len(gaps)), *figures)
    return shown


@contextmanager
def watching(options: argparse.Namespace, model: Path, kept: Path) -> Iterator[psutil.Process]:
    """Teach from what is kept, by a Python that has PyTorch; its words are printed at the end."""
    words = [f"--model={model}", f"--from-state={kept}", "--watch"]
    words += [f"--new-tokens={options.new_tokens}", f"--minutes={options.lesson}"]
    log = kept.parent / "watcher.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [options.python, "-P", "-m", "outrider_cli", "teach", *words],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()
        print(log.read_text())


async def measure(options: argparse.Namespace, folder: Path) -> list[Minute]:
    """Return what each minute brought."""
    model, kept, progress = choose_target(options.model), folder / "kept", Progress()
    plan = LocalPlan(
        target=HostedModel(model, ModelOptions(sessions=options.users + 1, numerics="exact")),
        draft=None,
        target_words=(f"--keep-rows={kept}",),
    )
    async with local_services(plan) as services, OutriderClient(await services.start()) as client:
        await services.watch(wait_for_target(client, progress))
        progress.clear()
        with watching(options, model, kept) as watcher:
            load = Load(client, options.minutes)
            await services.watch(load.run(options.users, watcher))
        return load.minutes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--users", type=int, default=2)
    parser.add_argument("--new-tokens", type=int, default=20_000)
    parser.add_argument("--lesson", type=float, default=4.0, help="minutes at most")
    parser.add_argument("--python", default=".venv/torch/bin/python")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        minutes = asyncio.run(measure(options, Path(folder)))
    Console().print(table(minutes))
    equal = sum(not each.differs for each in minutes)
    print(f"greedy texts that are the target's own: {equal} of {len(minutes)}")


if __name__ == "__main__":
    main()
