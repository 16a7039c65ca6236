"""A replica of a draft: its process, and the directory that says so to the orchestrators."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Any

from outrider.errors import ServiceStopped
from outrider.processes import ANY_PORT, Child
from outrider_ray import processes
from outrider_ray.directory import BEAT_SECONDS, Drafts, Roll
from outrider_ray.places import here
from outrider_ray.scaling import WANTED
from outrider_ray.settings import Settings

_LOG = logging.getLogger("ray.serve")


class Draft:
    """One draft, which every orchestrator that can reach it dials.

    With a token it listens on its node's address. Without one it listens on loopback, and drafts
    for the orchestrators of its own node.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, settings: Settings, directory: Any
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._place = here()
        listen = f"{self._place.host}:0" if settings.token_file else ANY_PORT
        self._draft: Child = await processes.start("draft", listen, settings.draft_words)
        self._address = await self._draft.address()
        self._in_flight = 0  # generations at all orchestrators
        self._beating = asyncio.create_task(self._beat())

    async def check_health(self) -> None:
        """Raise what ended the draft; Serve then replaces the replica."""
        if self._draft.ended:
            raise await self._draft.end()
        if self._beating.done():
            raise ServiceStopped(f"a task of the replica ended: {self._beating.exception()!r}")

    async def pids(self) -> dict[str, int]:
        """Return the processes, by role, and this one."""
        return {"replica": os.getpid(), "draft": self._draft.pid}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return what Serve's policy goes by: how many drafts there should be."""
        return {WANTED: self._in_flight / self._settings.draft_load}

    async def _beat(self) -> None:
        node = "" if self._settings.token_file else self._place.node
        while True:
            try:
                self._in_flight = await self._directory.draft.remote(
                    self._place.replica, self._address, node
                )
            except Exception as error:  # the directory is only starting, or on its way elsewhere
                _LOG.info("the directory does not answer: %r", error)
            await asyncio.sleep(BEAT_SECONDS)


class Directory:
    """Knows who is there. It may be lost at any time: within seconds all have said so again."""

    def __init__(self) -> None:
        self._roll = Roll(time.monotonic())

    async def draft(self, replica: str, address: str, node: str) -> int:
        """A draft is there; return the generations in flight."""
        return self._roll.note_draft(time.monotonic(), replica, address, node)

    async def serving(self, replica: str, load: int, node: str) -> Drafts:
        """An orchestrator has so many generations in flight; return the drafts for it."""
        return self._roll.note_load(time.monotonic(), replica, load, node)
