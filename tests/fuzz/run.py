"""Fuzzes for a while, and keeps what makes a fault or reaches lines that nothing else reached.

    python -m tests.fuzz.run --minutes 10 --seed 3 gguf calls

Each subject gets its share of the time. The corpus is replayed first, so that what it reaches is
known; then inputs are changed at random, the newest ones more often. It fails where there was a
fault, which `test_fuzz.py` then shows until it is mended.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.fuzz.corpus import FAULT, FOUND, keep, read_corpus
from tests.fuzz.services import Answers, Calls
from tests.fuzz.subjects import Bodies, Gguf, Lookup, Subject

SUBJECTS: dict[str, Callable[[], Subject]] = {
    each.name: each for each in (Gguf, Lookup, Bodies, Calls, Answers)
}
_ROOT = Path(__file__).resolve().parents[2]
_READERS = ("outrider", "orchestrator", "gateway", "draft_service", "target_service")
_MOST_KEPT = 60
"""Inputs of a subject that one run keeps because they reached something."""


class Reached:
    """Which lines of the product ran. `take_new` says whether there were new ones since then."""

    def __init__(self) -> None:
        self._seen: set[tuple[CodeType, int]] = set()
        self._count = 0
        self._is_ours: dict[str, bool] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note lines, in all threads that start from now on."""
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]

    def take_new(self) -> bool:
        """Return whether lines ran that had not before."""
        before, self._count = self._count, len(self._seen)
        return self._count > before

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        name = frame.f_code.co_filename
        if name not in self._is_ours:
            parts = Path(name).parts
            below = parts[len(_ROOT.parts)] if name.startswith(str(_ROOT)) else ""
            self._is_ours[name] = below in _READERS
        return self._line if self._is_ours[name] else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self._seen.add((frame.f_code, frame.f_lineno))
        return self._line


async def fuzz(
    subject: Subject,
    inputs: Sequence[bytes],
    seed: int,
    is_over: Callable[[int], bool],
    note: Callable[[bytes, str, Exception | None], bool],
) -> None:
    """Feed changed inputs until it is over; those that `note` returns true for are changed, too."""
    rng = random.Random(f"{seed} {subject.name}")
    known = list(inputs)
    number = 0
    while not is_over(number):
        number += 1
        first = rng.choice(known[-20:] if rng.random() < 0.3 else known)
        data = subject.mutate(first, rng.sample(known, min(3, len(known))), rng)
        if note(data, *await outcome(subject, data)):
            known.append(data)


async def outcome(subject: Subject, data: bytes) -> tuple[str, Exception | None]:
    """Return what came of an input, and the fault if it was one."""
    try:
        return await subject.feed(data), None
    except Exception as error:
        return "FAULT", error


async def run(name: str, seconds: float, seed: int) -> int:
    """Fuzz a subject for so long; return how many faults there were."""
    reached, said, kept = Reached(), Counter[str](), Counter[str]()
    corpus = read_corpus(name)
    deadline = time.monotonic() + seconds
    with reached.watching():
        async with SUBJECTS[name]() as subject:

            def note(data: bytes, word: str, fault: Exception | None) -> bool:
                said[word] += 1
                is_new = reached.take_new()
                why = FAULT if fault is not None else FOUND
                if fault is not None and kept[FAULT] < _MOST_KEPT:
                    path = keep(name, data, FAULT)
                    print(f"{name}: {type(fault).__name__}: {fault} [{path}]", flush=True)
                elif is_new and kept[FOUND] < _MOST_KEPT and keep(name, data, FOUND) is None:
                    return False
                kept[why] += is_new or fault is not None
                return is_new

            for file, data in corpus.items():
                word, fault = await outcome(subject, data)
                said[word] += 1
                if fault is not None:
                    print(f"{name}: {file}: {type(fault).__name__}: {fault}", flush=True)
            reached.take_new()
            await fuzz(
                subject, list(corpus.values()), seed, lambda _: time.monotonic() > deadline, note
            )
            if hasattr(subject, "check"):
                await subject.check()
    words = ", ".join(f"{count} {word}" for word, count in said.most_common())
    print(f"{name}: {said.total()} inputs ({words}); {kept[FOUND]} reached new lines", flush=True)
    return said["FAULT"]


def main() -> int:
    """Fuzz what the command line names; the exit status is 1 where there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subjects", nargs="*", default=[], help=f"of {', '.join(SUBJECTS)}")
    parser.add_argument("--minutes", type=float, default=10.0, help="of all of them together")
    parser.add_argument("--seed", type=int, default=None, help="by default another each time")
    options = parser.parse_args()
    names = options.subjects or list(SUBJECTS)
    for name in names:
        if name not in SUBJECTS:
            parser.error(f"{name} is none of {', '.join(SUBJECTS)}")
    seed = random.randrange(1 << 20) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    seconds = 60.0 * options.minutes / len(names)
    return min(1, sum(asyncio.run(run(name, seconds, seed)) for name in names))


if __name__ == "__main__":
    sys.exit(main())
