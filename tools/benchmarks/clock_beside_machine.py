"""How far the virtual clock is from the machine: the same loads and policies on both.

    outrider up --model TARGET --draft-model DRAFT --sessions 8 --listen 127.0.0.1:50060
    python -m benchmarks.clock_beside_machine --orchestrator 127.0.0.1:50060 --cell 1:64 --cell 4:64

Each cell is users and tokens of their prompts, which the target holds before the clock starts:
reading is not what is compared. The clock runs with what the orchestrator has learned by then (a
decode by its rows, a token of the draft, what a round takes beside) and with the share of draft
tokens that this target accepted, so a difference is what the clock leaves out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.clock import Cell
from outrider.client import ControllerView, Finished, OutriderClient, Request, Statistics
from outrider.costs import CostTable
from outrider.sampling import GREEDY
from outrider.speculation import Policy, Speculation
from tests.support.simulation import Models

_MODES = {
    "plain": Speculation(enabled=False, n_max=0),
    "fixed 2": Speculation(n_max=2, policy=Policy.FIXED),
    "fixed 3": Speculation(n_max=3, policy=Policy.FIXED),
    "default": Speculation(),
}
_IDS = range(300, 3000)
"""Ids of random prompts: ordinary tokens of every vocabulary that is measured."""
_CLOCK_TEXTS = 6
"""Of each cell and mode: their mean is good to some 2 %."""


def main() -> None:
    """Measure, print, and keep the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--orchestrator", required=True, metavar="HOST:PORT")
    cell = "users and tokens of each prompt; repeatable"
    parser.add_argument("--cell", action="append", required=True, metavar="USERS:TOKENS", help=cell)
    parser.add_argument(
        "--mode", action="append", choices=_MODES, help="all, unless some are named"
    )
    parser.add_argument("--texts", type=int, default=4, help="of each cell and mode")
    parser.add_argument("--tokens", type=int, default=96, help="of a text")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts")
    parser.add_argument("--apart", action="store_true", help="the draft has cores of its own")
    parser.add_argument("--name", default="", help="of the pair and the machine, for --out")
    parser.add_argument("--out", type=Path, help="a JSON file that rows are added to")
    asyncio.run(_compare(parser.parse_args()))


async def _compare(asked: argparse.Namespace) -> None:
    modes = asked.mode or list(_MODES)
    async with OutriderClient(asked.orchestrator) as client:
        for cell in asked.cell:
            users, length = map(int, cell.split(":"))
            found: dict[str, list[float]] = {mode: [] for mode in modes}
            seen: list[Statistics] = []
            for text in range(asked.texts):
                draw = random.Random(f"{asked.seed} {cell} {text}")
                prompts = [draw.choices(_IDS, k=length) for _ in range(users)]
                await _write(client, prompts, _MODES["plain"], 1)
                for mode in draw.sample(modes, len(modes)):
                    those = await _write(client, prompts, _MODES[mode], asked.tokens)
                    found[mode].append(sum(each.tokens_per_second or 0.0 for each in those))
                    seen += those
            view = (await client.status()).controller
            models = _models(view, _acceptance(seen), _gap(seen), asked.apart)
            for mode, rates in found.items():
                clock = _on_clock(models, mode, users, length, asked.tokens)
                _tell(asked, cell, mode, median(rates), clock)


async def _write(
    client: OutriderClient, prompts: Sequence[Sequence[int]], how: Speculation, tokens: int
) -> list[Statistics]:
    """Let all users write at once; return what each text took."""
    options = Request(
        "",
        token_limit=tokens,
        sampling=GREEDY,
        ignore_eos=True,
        enabled=how.enabled,
        policy=how.policy,
    )
    if how.enabled and how.policy is Policy.FIXED:
        options = replace(options, n_max=how.n_max)

    async def one(prompt: Sequence[int]) -> Statistics:
        async for event in client.generate(replace(options, prompt=prompt)):
            if isinstance(event, Finished):
                return event.statistics
        raise AssertionError("a text without an end")

    return list(await asyncio.gather(*map(one, prompts)))


def _acceptance(seen: Sequence[Statistics]) -> float:
    """Return how often a draft token is accepted of which its round decided."""
    accepted = sum(sum(each.accepted_by_round) for each in seen)
    decided = sum(
        min(stood + 1, drafted)
        for each in seen
        for stood, drafted in zip(each.accepted_by_round, each.drafted_by_round, strict=True)
    )
    return accepted / decided if decided else 0.0


def _gap(seen: Sequence[Statistics]) -> float:
    """Return the seconds of the target's own work between two decodes."""
    steps = sum(each.target_time.step_count or 0 for each in seen)
    return sum(each.target_time.sample_seconds for each in seen) / max(1, steps)


def _models(view: ControllerView, acceptance: float, gap: float, apart: bool) -> Models:
    """Return what the clock runs with."""
    return Models(
        costs=CostTable(view.decode_costs),
        draft_token=view.draft_token_seconds,
        acceptance=acceptance,
        own_acceptance=acceptance,
        own_token=0.0 if apart else view.draft_token_seconds,
        draft_round_trip=view.draft_latency_seconds,
        overhead=view.round_overhead_seconds,
        gap=gap,
        same_host=not apart,
        takes_turns=view.takes_turns,
    )


def _on_clock(models: Models, mode: str, users: int, length: int, tokens: int) -> float:
    """Return the tokens per second of all users on the clock, after a text to learn from."""
    has_draft = models.own_token == 0.0
    cell = Cell(name="", models=models, prompt_tokens=length, users=users, has_draft=has_draft)
    known = cell.known()
    cell.seconds(_MODES[mode], known, 0, tokens)
    each = [cell.seconds(_MODES[mode], known, 1 + text, tokens) for text in range(_CLOCK_TEXTS)]
    return len(each) / sum(each)


def _tell(asked: argparse.Namespace, cell: str, mode: str, machine: float, clock: float) -> None:
    users, length = map(int, cell.split(":"))
    row = {"pair": asked.name, "users": users, "prompt_tokens": length, "mode": mode}
    words = f"{asked.name} {users} users, prompts of {length}, {mode:8}"
    print(f"{words} machine {machine:6.1f}  clock {clock:6.1f}  {clock / machine:.3f}", flush=True)
    if asked.out:
        rows = json.loads(asked.out.read_text()) if asked.out.exists() else []
        rows.append({**row, "machine": round(machine, 2), "clock": round(clock, 2)})
        asked.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
