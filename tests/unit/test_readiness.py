"""Health follows whether an orchestrator is ready, also with a template that no one can read."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.main import follow_readiness


class Unlearnable:
    """An orchestrator of whose template nothing can be learned, by any error."""

    def __init__(self) -> None:
        self.readiness_changed = asyncio.Event()
        self.ready = False

    async def note_chat_format(self) -> None:
        raise RecursionError


class Health:
    """A server that keeps what its health was set to."""

    def __init__(self) -> None:
        self.set: asyncio.Queue[bool] = asyncio.Queue()

    async def set_serving(self, serving: bool) -> None:
        self.set.put_nowait(serving)


@pytest.mark.fault(
    "hang",
    "A chat template of which nothing can be learned, such as one with 1,000 open braces",
    before="gRPC health never changed again: a load balancer sent requests to what was not ready.",
    now="The error is logged, health follows, and deep braces are passed over.",
)
async def test_health_follows_where_noting_the_template_fails() -> None:
    orchestrator, health = Unlearnable(), Health()
    following = asyncio.ensure_future(follow_readiness(orchestrator, health))  # type: ignore[arg-type]
    for ready in (False, True, False):
        orchestrator.ready = ready
        orchestrator.readiness_changed.set()
        getting = asyncio.ensure_future(health.set.get())
        await asyncio.wait({getting, following}, return_when=asyncio.FIRST_COMPLETED)
        assert not following.done()
        assert await getting is ready
    following.cancel()
