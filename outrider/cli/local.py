"""Starts the three services as children of this process, and leaves none of them behind."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from outrider.errors import OutriderError

T = TypeVar("T")

_STOP_SECONDS = 3.0  # a service that takes longer to drain is killed
_SETTLE_SECONDS = 0.2
_LINE_BYTES = 1 << 20
_ERROR_PREFIX = "outrider: "


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModels:
    """What the local services host. `draft` is None to use the target alone."""

    target: Path
    draft: Path | None
    threads: int = 0  # of the target; 0 is all
    draft_threads: int = 1  # more would fight with the target's over the same cores
    context: int = 0


class ServiceStopped(OutriderError):
    """A local service ended by itself; the message has its own last words."""

    reason = "SERVICE_STOPPED"
    status = "UNAVAILABLE"


class LocalServices:
    """Target, draft and orchestrator on ports of the system's choice."""

    def __init__(self, models: LocalModels) -> None:
        self._models = models
        self.target: Child | None = None
        self.draft: Child | None = None
        self.orchestrator: Child | None = None

    async def start(self) -> str:
        """Return the orchestrator's address; the models may still be loading."""
        peers = await self._start_models()
        # One user at a terminal: Ctrl-C is the deadline.
        patience = ("--request-timeout", "1000000")
        self.orchestrator = await Child.start("orchestrator", *peers, *patience)
        return await self.watch(self.orchestrator.address())

    async def _start_models(self) -> list[str]:
        """Start target and draft at the same time; return where they listen, as options."""
        models = self._models
        context = ("--ctx", str(models.context), "--sessions", "1")
        self.target = await Child.start(
            "target", f"--model={models.target}", "--threads", str(models.threads), *context
        )
        if models.draft is None:
            return ["--no-draft", "--target", await self.target.address()]
        threads = ("--threads", str(models.draft_threads), "--nice", "19")
        self.draft = await Child.start("draft", f"--model={models.draft}", *threads, *context)
        addresses = await asyncio.gather(self.target.address(), self.draft.address())
        return ["--target", addresses[0], "--draft", addresses[1]]

    async def watch(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`; raise ServiceStopped as soon as any service ends."""
        return await _watch(work, self._children())

    async def watch_without_draft(self, work: Coroutine[Any, Any, T]) -> T:
        """As `watch`, for work that goes on without the draft."""
        return await _watch(work, [c for c in self._children() if c is not self.draft])

    async def stop(self) -> None:
        """Stop all services."""
        await asyncio.gather(*(child.stop() for child in self._children()))

    def _children(self) -> list[Child]:
        return [c for c in (self.target, self.draft, self.orchestrator) if c is not None]


@asynccontextmanager
async def local_services(models: LocalModels) -> AsyncIterator[LocalServices]:
    """Give services that are stopped at the end, however it comes."""
    services = LocalServices(models)
    try:
        yield services
    finally:
        await services.stop()


class Child:
    """One service as a subprocess.

    It stops when its standard input ends, so not even a SIGKILL of this
    process leaves it behind; and it is in a session of its own, so that
    Ctrl-C reaches it through `stop` alone.
    """

    def __init__(self, role: str, process: Process) -> None:
        self.role = role
        self._process = process
        self._last_line = ""
        self._last_error = ""
        self._reader = asyncio.create_task(self._read_errors())

    @classmethod
    async def start(cls, role: str, *options: str) -> Child:
        """Start a service on a free port."""
        # -P: a file in the working directory must not stand for a module of ours.
        command = (sys.executable, "-P", "-m", "outrider.cli", role, *options)
        process = await asyncio.create_subprocess_exec(
            *command,
            "--listen",
            "127.0.0.1:0",
            "--stop-on-stdin-end",
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            limit=_LINE_BYTES,
            start_new_session=True,
        )
        return cls(role, process)

    async def address(self) -> str:
        """Return HOST:PORT once it listens. Raises ServiceStopped."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            _, found, address = line.decode().partition(" listening on ")
            if found:
                return address.strip()
        raise await self.end()

    async def end(self) -> ServiceStopped:
        """Wait until the service ends and return why."""
        code = await self._process.wait()
        await asyncio.wait([self._reader])
        return ServiceStopped(f"{self.role}: {self._last_error or self._describe(code)}")

    def _describe(self, code: int) -> str:
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        return f"ended unexpectedly ({how}) {self._last_line}".strip()

    async def _read_errors(self) -> None:
        """Keep the last line of standard error, and the last one meant for users."""
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            text = line.decode(errors="replace").strip()
            self._last_line = text or self._last_line
            if text.startswith(_ERROR_PREFIX):
                self._last_error = text.removeprefix(_ERROR_PREFIX)

    @property
    def ended(self) -> bool:
        """Whether the service is gone."""
        return self._process.returncode is not None

    async def stop(self) -> None:
        """Ask the service to stop; kill it when it does not."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), _STOP_SECONDS)
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


async def _watch(work: Coroutine[Any, Any, T], children: Sequence[Child]) -> T:
    task = asyncio.ensure_future(work)
    ends = [asyncio.create_task(child.end()) for child in children]
    try:
        await asyncio.wait([task, *ends], return_when=asyncio.FIRST_COMPLETED)
        if task.done() and task.exception() is None:
            return task.result()
        # What failed may have one cause: let all of it be seen, then tell the first service's.
        ended, _ = await asyncio.wait(ends, timeout=_SETTLE_SECONDS)
        if ended:
            raise next(end.result() for end in ends if end in ended)
        return task.result()
    finally:
        for other in (task, *ends):
            other.cancel()
        await asyncio.gather(task, *ends, return_exceptions=True)
