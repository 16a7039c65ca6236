"""The gateway over a fake orchestrator, on a real port."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from gateway.config import HttpConfig
from gateway.http_server import HttpServer
from outrider.access import Access
from tests.support.fake_orchestrator import FakeOrchestrator

JSON = dict[str, Any]


@contextlib.asynccontextmanager
async def serving(
    fake: Any = None, access: Access | None = None, **options: Any
) -> AsyncIterator[str]:
    """Serve a gateway; give its URL."""
    config = HttpConfig(listen="127.0.0.1:0", **options)
    server = HttpServer(config, fake or FakeOrchestrator(), access=access)
    await server.start()
    try:
        yield f"http://{server.address}"
    finally:
        await server.stop()
