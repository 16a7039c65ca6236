"""Starts the three services as children of this process, and leaves none of them behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from outrider.cli.options import ModelOptions, arguments
from outrider.errors import OutriderError

T = TypeVar("T")
Tell = Callable[[str, str], None]
"""Takes a role and a line of its log."""

ANY_PORT = "127.0.0.1:0"

_GRACE_SECONDS = 2.0  # for what is under way when a service is stopped
_STOP_SECONDS = 3.0  # a service that takes longer is killed
_SETTLE_SECONDS = 0.2
_LINE_BYTES = 1 << 20
_ERROR_PREFIX = "outrider: "
_PLAIN = "plain://"  # never TLS between processes of one machine


def _ignore(role: str, line: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Hosted:
    """A model to host here."""

    model: Path
    options: ModelOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPlan:
    """What to start: each model here, or reached at its address; no draft for the target alone."""

    target: Hosted | str
    draft: Hosted | str | None
    listen: str = ANY_PORT  # of the orchestrator
    orchestrator: tuple[str, ...] = ()  # more of its options

    @property
    def is_its_own_draft(self) -> bool:
        """Whether one model plays both parts, as a demonstration."""
        both = (self.target, self.draft)
        hosted = [one.model for one in both if isinstance(one, Hosted)]
        return len(hosted) == 2 and hosted[0] == hosted[1]


class ServiceStopped(OutriderError):
    """A local service ended by itself; the message has its own last words."""

    reason = "SERVICE_STOPPED"
    status = "UNAVAILABLE"


class LocalServices:
    """Target, draft and orchestrator; the models on ports of the system's choice."""

    def __init__(self, plan: LocalPlan, tell: Tell = _ignore) -> None:
        self._plan = plan
        self._tell = tell
        self.target: Child | None = None
        self.draft: Child | None = None
        self.orchestrator: Child | None = None
        self._draft_address = ""

    async def start(self) -> str:
        """Return the orchestrator's address; the models may still be loading."""
        plan = self._plan
        if isinstance(plan.target, Hosted):
            self.target = await self._start_model("target", plan.target)
        if isinstance(plan.draft, Hosted):
            self.draft = await self._start_model("draft", plan.draft)
        target, draft = await asyncio.gather(
            _address(self.target, plan.target), _address(self.draft, plan.draft)
        )
        self._draft_address = draft.removeprefix(_PLAIN)
        peers = ("--target", target, *(("--draft", draft) if draft else ("--no-draft",)))
        words = (*peers, *plan.orchestrator)
        self.orchestrator = await Child.start("orchestrator", plan.listen, words, self._tell)
        return await self.watch(self.orchestrator.address())

    async def http_address(self) -> str:
        """Return where the orchestrator serves HTTP, which it was told to do."""
        assert self.orchestrator is not None
        return await self.watch(self.orchestrator.address())

    async def _start_model(self, role: str, hosted: Hosted, listen: str = ANY_PORT) -> Child:
        words = (f"--model={hosted.model}", *arguments(hosted.options))
        return await Child.start(role, listen, words, self._tell)

    async def restart_draft(self) -> None:
        """Start the draft again where it was."""
        assert isinstance(self._plan.draft, Hosted)
        self.draft = await self._start_model("draft", self._plan.draft, self._draft_address)

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
async def local_services(plan: LocalPlan, tell: Tell = _ignore) -> AsyncIterator[LocalServices]:
    """Give services that are stopped at the end, however it comes; `tell` gets their log lines."""
    services = LocalServices(plan, tell)
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

    def __init__(self, role: str, process: Process, tell: Tell) -> None:
        self.role = role
        self._process = process
        self._tell = tell
        self._last_line = ""
        self._last_error = ""
        self._reader = asyncio.create_task(self._read_errors())

    @classmethod
    async def start(cls, role: str, listen: str, options: Sequence[str], tell: Tell) -> Child:
        """Start a service."""
        # -P: a file in the working directory must not stand for a module of ours.
        command = (sys.executable, "-P", "-m", "outrider.cli", role, *options)
        # What the environment says was said to this process; the child is told by flags alone.
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("OUTRIDER_")}
        process = await asyncio.create_subprocess_exec(
            *command,
            "--listen",
            listen,
            "--stop-on-stdin-end",
            f"--grace={_GRACE_SECONDS}",
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=inherited,
            limit=_LINE_BYTES,
            start_new_session=True,
        )
        return cls(role, process, tell)

    async def address(self) -> str:
        """Return HOST:PORT once it listens, of each port in turn. Raises ServiceStopped."""
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
            if text and not text.startswith("{"):  # what is logged is no reason
                self._last_line = text
            self._tell(self.role, text)
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


async def _address(child: Child | None, place: Hosted | str | None) -> str:
    """Return where a peer is, for the orchestrator; empty when there is none."""
    if child is not None:
        return _PLAIN + await child.address()
    return place if isinstance(place, str) else ""


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
