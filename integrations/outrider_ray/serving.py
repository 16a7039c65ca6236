"""A replica of target + orchestrator: two processes, and their calls passed on."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from outrider.errors import OutriderError, ServiceStopped
from outrider.processes import ANY_PORT, Child, watch
from outrider.rpc.security import ClientSecurity
from outrider_ray import processes
from outrider_ray.calls import (
    GrpcEnd,
    GrpcRequest,
    HttpHead,
    HttpRequest,
    OrchestratorCalls,
    ProcessLost,
)
from outrider_ray.directory import BEAT_SECONDS, followed
from outrider_ray.places import Place, here
from outrider_ray.routing import Route
from outrider_ray.settings import Settings, orchestrator_file

REPLICA = "x-outrider-replica"
"""The header that names the replica that answered, and asks for it in a request."""

_LOG = logging.getLogger("ray.serve")
_ID = "x-request-id"
_RESTART_SECONDS = 1.0
_BETWEEN_TWO = {  # connections have these of their own
    *("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"),
    *("host", "date", "server", "expect", REPLICA),
}


class Serving:
    """One target and its orchestrator.

    A target that ends is started again where it was, and texts wait for it; a replica whose
    orchestrator ends is replaced by Serve.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, settings: Settings, directory: Any
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._place: Place = here()
        self._folder = tempfile.TemporaryDirectory(prefix="outrider-ray-")
        self._file = Path(self._folder.name) / "settings.toml"
        self._drafts: tuple[str, ...] = ()  # that the orchestrator dials
        self._file.write_text(orchestrator_file(self._drafts))
        self._target: Child = await processes.start("target", ANY_PORT, settings.target_words)
        self._target_address = await self._target.address()
        self._orchestrator: Child = await processes.start(
            "orchestrator",
            ANY_PORT,
            settings.orchestrator_words(self._target_address),
            ("--config", str(self._file)),
        )
        children = (self._target, self._orchestrator)
        address = await watch(self._orchestrator.address(), children)
        self._http = await watch(self._orchestrator.address(), children)
        token = Path(settings.token_file) if settings.token_file else None
        security = ClientSecurity(token_file=token)
        self._calls = OrchestratorCalls(address, security, self._place.replica)
        await watch(self._calls.wait_until_ready(), children)
        self._session = _open_session()
        self._tasks = [asyncio.create_task(part()) for part in (self._keep_target, self._beat)]

    async def check_health(self) -> None:
        """Raise what ended the orchestrator; Serve then replaces the replica."""
        if self._orchestrator.ended:
            raise await self._orchestrator.end()
        for task in self._tasks:
            if task.done():
                raise ServiceStopped(f"a task of the replica ended: {task.exception()!r}")

    async def pids(self) -> dict[str, int]:
        """Return the processes, by role, and this one."""
        return {
            "replica": os.getpid(),
            "target": self._target.pid,
            "orchestrator": self._orchestrator.pid,
        }

    async def http(self, route: Route, request: HttpRequest) -> AsyncIterator[HttpHead | bytes]:
        """Pass a request on to the gateway: yield how its answer begins, then its body.

        Raises ProcessLost.
        """
        import aiohttp

        try:
            async for part in self._answer(request):
                yield part
        except aiohttp.ClientError as error:
            raise ProcessLost(str(error)) from None

    async def _answer(self, request: HttpRequest) -> AsyncIterator[HttpHead | bytes]:
        length = "content-length"  # of the body as it is here, however it came
        headers = [(k, v) for k, v in request.headers if _travels(k) and k.lower() != length]
        # aiohttp would add what the client did not send.
        added = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
        async with self._session.request(
            request.method,
            _url(f"http://{self._http}{request.target}"),
            headers=headers,
            data=request.body or None,
            skip_auto_headers=added,
            allow_redirects=False,
        ) as response:
            names = [
                (key.decode("latin-1"), value.decode("latin-1"))
                for key, value in response.raw_headers
            ]
            # Serve answers with the id of the request that it passed on.
            answer = [(k.lower(), v) for k, v in names if _travels(k) and k.lower() != _ID]
            yield HttpHead(response.status, (*answer, (REPLICA, self._place.replica)))
            async for chunk in response.content.iter_any():
                yield chunk

    async def grpc(self, route: Route, request: GrpcRequest) -> AsyncIterator[bytes | GrpcEnd]:
        """Pass a call on to the orchestrator: yield its messages, then how it ended."""
        async with aclosing(self._calls.call(request)) as messages:  # type: ignore[type-var]
            async for message in messages:
                yield message

    async def _keep_target(self) -> None:
        """Start the target again whenever it ends."""
        while True:
            _LOG.warning("%s; starting it again", await self._target.end())
            await asyncio.sleep(_RESTART_SECONDS)
            try:
                self._target = await processes.start(
                    "target", self._target_address, self._settings.target_words
                )
                await self._target.address()
            except OutriderError as error:
                _LOG.warning("the target did not start: %s", error)

    async def _beat(self) -> None:
        """Report what is in flight and dial the drafts that are there, as long as this runs."""
        while True:
            load = await self._calls.load()
            try:
                drafts = await self._directory.serving.remote(
                    self._place.replica, load or 0, self._place.node
                )
                self._follow(followed(self._drafts, drafts))
            except Exception as error:  # the directory is only starting, or on its way elsewhere
                _LOG.info("the directory does not answer: %r", error)
            await asyncio.sleep(BEAT_SECONDS)

    def _follow(self, drafts: tuple[str, ...]) -> None:
        """Let the orchestrator read which drafts there are."""
        if drafts == self._drafts or self._orchestrator.ended:
            return
        self._file.write_text(orchestrator_file(drafts))
        os.kill(self._orchestrator.pid, signal.SIGHUP)
        self._drafts = drafts


def _travels(header: str) -> bool:
    return header.lower() not in _BETWEEN_TWO


def _open_session() -> Any:
    import aiohttp

    # No limits of its own: the orchestrator has them.
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None),
        connector=aiohttp.TCPConnector(limit=0),
        auto_decompress=False,
    )


def _url(text: str) -> Any:
    import yarl

    return yarl.URL(text, encoded=True)
