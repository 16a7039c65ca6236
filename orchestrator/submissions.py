"""Jobs that are submitted again with the key of their first submission: each is started once.

The start belongs to the key, not to a call: it continues when the call is cut off, and the same
request sent again gets the job that came of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from outrider.errors import KeyReused
from outrider.v1 import orchestrator_service_pb2 as messages

Started = tuple[str, messages.GenerationStarted]
"""The id of a job, and how its prompt was read."""

FIELD = "idempotency_key"


@dataclass(slots=True)
class _Submission:
    request: bytes  # its fingerprint
    started: Started | None = None  # None until there is a job
    task: asyncio.Task[Started] | None = None  # that starts it; None after a restart


class Submissions:
    """What became of each key, for as long as its job is known."""

    def __init__(self) -> None:
        self._by_name: dict[bytes, _Submission] = {}

    def restore(self, name: bytes, request: bytes, started: Started) -> None:
        """A key's job was started before this process."""
        self._by_name[name] = _Submission(request, started)

    def forget(self, name: bytes) -> None:
        """A key's job is forgotten: submitted again it is a new one."""
        self._by_name.pop(name, None)

    async def start_once(
        self, name: bytes, request: bytes, start: Callable[[], Awaitable[Started]]
    ) -> Started:
        """Return the job of a key, which is started now if the key is new.

        Raises KeyReused where it is another request's, and what `start` raises: then the key is
        new again.
        """
        known = self._by_name.get(name)
        if known is None:
            known = self._by_name[name] = _Submission(request)
            known.task = asyncio.create_task(_await(start))
            known.task.add_done_callback(partial(self._note_end, name, known))
        elif known.request != request:
            raise KeyReused(FIELD)
        if known.started is not None:
            return known.started
        assert known.task is not None
        return await asyncio.shield(known.task)

    def _note_end(self, name: bytes, known: _Submission, task: asyncio.Task[Started]) -> None:
        if not task.cancelled() and task.exception() is None:
            known.started = task.result()
        elif self._by_name.get(name) is known:
            self.forget(name)


async def _await(start: Callable[[], Awaitable[Started]]) -> Started:
    return await start()
