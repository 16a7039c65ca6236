"""Runs the cells of the matrix, says what came of each, and writes the table.

    python -m tests.chaos.run --seed 1 --minutes 20 --write

With --write the table of tests/faults.md is rewritten after every cell, and cells of the same seed
that it has already are not run again: the page is filled in several sittings.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.faults import FAULTS, Fault
from tests.chaos.work import SHIFTING, Asked, Left, work_job, write
from tests.chaos.world import SERVICES, World
from tests.support.faults_page import PAGE, read_matrix, with_matrix

MOMENTS = ("prompt", "draft", "verify", "context shift", "job poll", "drain")
_MOST_FILES = 24  # more than before, at rest: channels that were dialled again
_MOST_MEMORY = (
    96 << 20
)  # bytes more than before, at rest; the memory of caches is mapped at a start
_SHIFT = 0.74  # of the text: a little before its context is full
_STANDSTILL_SECONDS = 4.0
_TRIES = 3  # of a cell that failed while nothing here ran
_REST_SECONDS = 90.0  # a server notices within 15 s that a client is gone
_LONG = "\n".join(f"def function_{i}(argument):\n    return argument + {i}" for i in range(9))
_PROMPTS = ("def read_config(path):", "class Matrix:", "import os\n", "def parse(text):\n")


@dataclass(frozen=True)
class Cell:
    """One fault, at one service, at one moment."""

    fault: str
    service: str
    moment: str

    def __str__(self) -> str:
        return f"{self.fault} at {self.service} during {self.moment}"


@dataclass(frozen=True)
class Row:
    """What came of a cell."""

    cell: Cell
    outcome: str
    seconds: float
    is_right: bool


def cells(seed: int, only: Sequence[str] = ()) -> list[Cell]:
    """Return every cell, in an order that the seed gives.

    First each fault comes once at each service, at some moment; then at the others.
    """
    every = [
        Cell(fault.name, service, moment)
        for fault in FAULTS.values()
        for service in fault.services
        for moment in MOMENTS
    ]
    rng = random.Random(seed)
    rng.shuffle(every)
    times = Counter[tuple[str, str]]()
    passes = {}
    for cell in every:
        passes[cell] = times[cell.fault, cell.service]
        times[cell.fault, cell.service] += 1
    kinds = ("plain", "shaped", "tls")
    every.sort(key=lambda cell: (passes[cell], kinds.index(FAULTS[cell.fault].kind)))
    return [cell for cell in every if all(word in str(cell) for word in only)]


class Standstill:
    """Notes when this process did not run at all, as on a machine that is stopped or overloaded."""

    def __init__(self) -> None:
        self.count = 0

    async def watch(self) -> None:
        """Watch until cancelled."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.5)
            self.count += time.monotonic() - before > _STANDSTILL_SECONDS


class Trigger:
    """Lets a fault begin at its moment, and end in time."""

    def __init__(self, world: World, cell: Cell, expected: str, rng: random.Random) -> None:
        self._world, self._cell, self._rng = world, cell, rng
        self._fault: Fault = FAULTS[cell.fault]
        share = _SHIFT if cell.moment == "context shift" else rng.uniform(0.05, 0.4)
        self._at = int(share * len(expected)) if cell.moment != "prompt" else 0
        self._task: asyncio.Task[None] | None = None
        self.begin_time = 0.0

    async def note(self, count: int) -> None:
        """Take note of how many characters the client has."""
        if count >= self._at and self._task is None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        world, cell = self._world, self._cell
        if cell.moment in ("prompt", "draft", "verify"):
            way = world.ways["draft" if cell.moment == "draft" else "target"]
            with suppress(TimeoutError):  # at the next message on its way there
                await asyncio.wait_for(way.next_up(), 1.0)
        if cell.moment == "drain":
            world.process(cell.service).signal(15)
            await asyncio.sleep(0.05)
        self.begin_time = time.monotonic()
        await self._fault.begin(world, cell.service, self._rng)
        await asyncio.sleep(self._fault.seconds)
        await self._fault.end(world, cell.service, self._rng)

    async def finish(self) -> None:
        """Let it happen now if it has not, and wait for its end."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        await self._task


class Matrix:
    """Runs cells in worlds that are kept for as long as they are well."""

    def __init__(self, seed: int, folder: Path) -> None:
        self._seed = seed
        self._standstill = Standstill()
        self._watching = asyncio.create_task(self._standstill.watch())
        self._folder = folder
        self._world: World | None = None
        self._number = 0
        self._right: dict[tuple[Asked, bool], str] = {}

    async def close(self) -> None:
        """End all of it."""
        self._watching.cancel()
        await self._leave_world()

    async def _leave_world(self) -> None:
        if self._world is not None:
            await self._world.__aexit__()
            self._world = None

    async def _in_world(self, kind: str) -> World:
        if self._world is not None and self._world.kind != kind:
            await self._leave_world()
        if self._world is None:
            self._number += 1
            self._world = World(self._folder / str(self._number), kind)
            await self._world.__aenter__()
        await self._world.until_well()
        return self._world

    async def run(self, cell: Cell) -> Row:
        """Run one cell, again if it failed while nothing here ran: that says nothing."""
        for _ in range(_TRIES):
            before = self._standstill.count
            row = await self._try(cell)
            if row.is_right or self._standstill.count == before:
                break
        return row

    async def _try(self, cell: Cell) -> Row:
        """Run one cell; a world that does not get well again is given up."""
        begin = time.monotonic()
        try:
            world = await self._in_world(FAULTS[cell.fault].kind)
            row = await self._run(world, cell)
        except Exception as error:
            row = Row(cell, f"{type(error).__name__}: {error}", time.monotonic() - begin, False)
        if not row.is_right:
            await self._leave_world()
        return row

    async def _run(self, world: World, cell: Cell) -> Row:
        rng = random.Random(f"{self._seed} {cell}")
        over_http = cell.service == "gateway"
        asked = self._asked(cell, rng)
        expected = await self._expected(world, asked, over_http, cell)
        before, sessions = world.held(), await world.sessions()
        trigger = Trigger(world, cell, expected, rng)
        client = work_job if cell.moment == "job poll" else write
        left = await client(world, asked, over_http, trigger.note)
        end = time.monotonic()
        await trigger.finish()
        seconds = end - trigger.begin_time
        await world.until_well()
        again = await client(world, asked, over_http, _ignore)
        problem = (
            _judge(left, expected)
            or _judge(again, expected, "afterwards: ")
            or await self._rest(world, before, sessions)
        )
        said = f"error: {left.error}" if left.error else "text unchanged"
        if seconds < 0.0:  # the fault came when the text was there: nothing was to be seen
            said, seconds = "text unchanged, before the fault", 0.0
        return Row(cell, problem or said, seconds, not problem)

    def _asked(self, cell: Cell, rng: random.Random) -> Asked:
        prompt = rng.choice(_PROMPTS)
        if cell.moment == "prompt":
            return Asked(_LONG + prompt, 24, salt=f"{self._seed} {cell}")
        if cell.moment == "context shift":
            return Asked(prompt, SHIFTING, shifts=True)
        return Asked(prompt, 220)

    async def _expected(self, world: World, asked: Asked, over_http: bool, cell: Cell) -> str:
        """Return the text without a fault."""
        known = Asked(asked.prompt, asked.limit, asked.shifts)
        if known not in self._right:
            left = await write(world, known, over_http, _ignore)
            if left.error:
                raise AssertionError(f"without any fault: {left.error}")
            self._right[known] = left.text
        return self._right[known]

    async def _rest(self, world: World, before: dict, sessions: int) -> str:
        """Return what is left behind; empty if nothing is, a while after."""
        deadline = time.monotonic() + _REST_SECONDS
        while problem := await self._left_behind(world, before, sessions):
            if time.monotonic() > deadline:
                return problem
            await asyncio.sleep(0.25)
        return ""

    async def _left_behind(self, world: World, before: dict, sessions: int) -> str:
        if (count := await world.sessions()) > sessions:
            return f"{count} sessions are left, {sessions} before"
        for name, held in world.held().items():
            if held.starts != before[name].starts:
                continue
            if held.files > before[name].files + _MOST_FILES:
                return f"{name} has {held.files} files open, {before[name].files} before"
            if held.memory > before[name].memory + _MOST_MEMORY:
                more = (held.memory - before[name].memory) >> 20
                return f"{name} holds {more} MiB more"
        return ""


async def _ignore(count: int) -> None:
    """Nothing goes wrong."""


def _judge(left: Left, expected: str, when: str = "") -> str:
    """Return what is wrong with what a client was left with."""
    if left.error:
        return "" if left.is_clear and not when else f"{when}{left.error}"
    if left.text != expected:
        pairs = enumerate(zip(left.text, expected, strict=False))
        same = next((i for i, (a, b) in pairs if a != b), min(len(left.text), len(expected)))
        return f"{when}another text from character {same} on ({len(left.text)}, {len(expected)})"
    return ""


def table(rows: Sequence[Row], seed: int, total: int) -> str:
    """Return the page's section."""
    wrong = sum(not row.is_right for row in rows)
    errors = sum(row.outcome.startswith("error: ") for row in rows)
    lines = [
        f"`make chaos SEED={seed}` ran {len(rows)} of {total} cells: {len(rows) - errors - wrong} "
        f"texts unchanged, {errors} clients got an error, {wrong} faults of ours.",
        "Afterwards each time a further text was right, and no session, file or memory was left.",
        "Seconds are from the fault to the end of the text, or to when the client got the error.",
        "",
        "| fault | moment | service | outcome | seconds |",
        "|---|---|---|---|---|",
    ]
    order = {name: number for number, name in enumerate(FAULTS)}
    for row in sorted(rows, key=lambda row: (order[row.cell.fault], str(row.cell))):
        cell, outcome = row.cell, " ".join(row.outcome.replace("|", "/").split())
        lines.append(
            f"| {cell.fault} | {cell.moment} | {cell.service} | {outcome} | {row.seconds:.1f} |"
        )
    return "\n".join(lines) + "\n"


_HEAD = re.compile(r"`make chaos SEED=(\d+)`")
_ROW = re.compile(r"\| (.+?) \| (.+?) \| (.+?) \| (.*) \| ([0-9.]+) \|")
_WELL = ("error: ", "text unchanged")


def read_rows(matrix: str, seed: int) -> list[Row]:
    """Return the cells that earlier runs of a seed came through, by the table that they wrote.

    What was a fault of ours is not among them: it is to be tried again.
    """
    head = _HEAD.match(matrix)
    if head is None or int(head[1]) != seed:
        return []
    found = [_ROW.fullmatch(line) for line in matrix.splitlines()]
    return [
        Row(Cell(each[1], each[3], each[2]), each[4], float(each[5]), True)
        for each in found
        if each and each[4].startswith(_WELL)
    ]


def write_rows(rows: Sequence[Row], seed: int, total: int) -> None:
    """Write the table into the page, whole at any time."""
    text = with_matrix(PAGE.read_text(encoding="utf-8"), table(rows, seed, total))
    part = PAGE.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, PAGE)


async def run(
    seed: int,
    chosen: Sequence[Cell],
    minutes: float,
    jobs: int,
    note: Callable[[Row], None],
) -> None:
    """Run cells in so many worlds at once, until none is left or the time is over."""
    deadline = time.monotonic() + 60.0 * minutes
    left = list(reversed(chosen))

    async def work(folder: Path) -> None:
        matrix = Matrix(seed, folder)
        try:
            while left and time.monotonic() < deadline:
                row = await matrix.run(left.pop())
                mark = "      " if row.is_right else "FAULT "
                print(f"{mark}{row.seconds:6.1f} s  {row.cell}: {row.outcome}", flush=True)
                note(row)
        finally:
            await matrix.close()

    with tempfile.TemporaryDirectory(prefix="outrider-chaos-") as folder:
        await asyncio.gather(*(work(Path(folder) / f"job{job}") for job in range(jobs)))


def main() -> int:
    """Run what the command line says; the exit status is 1 where there was a fault of ours."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="words that a cell has, with commas")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--jobs", type=int, default=1, help="worlds at once")
    parser.add_argument("--write", action="store_true", help=f"continue the table of {PAGE.name}")
    parser.add_argument("--fresh", action="store_true", help="begin that table anew")
    options = parser.parse_args()
    rows: list[Row] = []
    if options.write and not options.fresh:
        rows = read_rows(read_matrix(PAGE.read_text(encoding="utf-8")), options.seed)
    only = [word.strip() for word in options.only.split(",") if word.strip()]
    chosen = cells(options.seed, only)
    known = {row.cell for row in rows}

    def note(row: Row) -> None:
        rows.append(row)
        if options.write:
            write_rows(rows, options.seed, len(cells(options.seed)))

    new = [cell for cell in chosen if cell not in known]
    asyncio.run(run(options.seed, new, options.minutes, options.jobs, note))
    wrong = [row for row in rows if not row.is_right]
    count = sum(row.cell in chosen for row in rows)
    print(f"{count} of {len(chosen)} cells, {len(wrong)} faults; services: {', '.join(SERVICES)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
