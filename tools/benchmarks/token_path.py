"""Which files a token passes, from an HTTP body to a chunk, with a draft on a stream.

    python -m benchmarks.token_path

All services run in this process, over models without weights. A file counts where one of its
functions runs for a streamed completion that is not the first one: from its body to its last chunk,
and, apart from that, from its first chunk on, when all that a text needs once has been done.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

from tests.support.gateway import serving
from tests.support.services import three_services, toy
from tests.support.toy import NEVER, ToyModel

_ROOT = Path(__file__).resolve().parents[2]
_MAIN = ("outrider", "draft_service", "target_service", "orchestrator", "gateway")
_GENERATED = "outrider/v1"
_BODY = {"prompt": [5, 6, 7], "n_predict": 64, "temperature": 0.0, "stream": True}
_PACE = 0.01  # s of a target's decode, in which a draft writes many tokens


class Watch:
    """Notes the files of functions that are called, in threads begun after it."""

    def __init__(self) -> None:
        self._found = set[str]()
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self._found.add(frame.f_code.co_filename)

    def take(self) -> set[str]:
        """Return those of the main package that were called since this was last asked."""
        taken, self._found = self._found, set()
        paths = [Path(each) for each in taken.copy()]
        found = [p.relative_to(_ROOT).as_posix() for p in paths if p.is_relative_to(_ROOT)]
        return {f for f in found if f.startswith(_MAIN) and not f.startswith(_GENERATED)}


def _target() -> ToyModel:
    return toy(seed=1, eos_bias=NEVER, step_seconds=_PACE)


def _draft() -> ToyModel:
    return toy(seed=2, like=1, agreement=0.9, eos_bias=NEVER)


async def passed() -> tuple[set[str], set[str]]:
    """Return the files that a completion passes, and of them those from its first chunk on.

    Raises ValueError for a text without drafts.
    """
    watch = Watch()
    async with (
        three_services(_target, _draft) as trio,
        serving(trio.orchestrator.orchestrator) as address,
        httpx.AsyncClient(timeout=60) as client,
    ):
        url = f"{address}/completion"
        await client.post(url, json=_BODY)
        await asyncio.sleep(0.5)
        watch.take()
        before, last = set[str](), ""
        async with client.stream("POST", url, json=_BODY) as response:
            async for line in response.aiter_lines():
                if not last:
                    before = watch.take()
                last = line or last
        after = watch.take()
    if not json.loads(last.removeprefix("data: "))["timings"].get("draft_n"):
        raise ValueError("nothing was drafted")
    return before | after, after


def main() -> None:
    """Print the files, and their numbers."""
    whole, after = asyncio.run(passed())
    for file in sorted(whole):
        print("  " if file in after else "1 ", file)
    print(f"{len(whole)} files from body to last chunk; {len(after)} from the first chunk on")


if __name__ == "__main__":
    main()
