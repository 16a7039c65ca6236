"""Model services and orchestrators as children of this process, which do not outlive it."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from outrider.errors import ServiceStopped

T = TypeVar("T")
OnLogLine = Callable[[str, str], None]
"""Takes a role and a line of its log."""


def no_log(role: str, line: str) -> None:
    """Take a line of a log that nobody reads."""


ANY_PORT = "127.0.0.1:0"

GRACE_SECONDS = 2.0  # for what is in flight when a service is stopped, where nothing else is said
_LATE_SECONDS = 1.0  # s after that; a service that takes longer is killed
_SETTLE_SECONDS = 0.2  # s; for others to fail too, after one process has
_LINE_BYTES = 1 << 20  # bytes of a line that a process writes
_ERROR_PREFIX = "outrider: "


class Child:
    """One service as a subprocess.

    It stops when its standard input ends, so not even a SIGKILL of this
    process leaves it running; and it is in a session of its own, so that
    Ctrl-C reaches it through `stop` alone.
    """

    def __init__(
        self, role: str, process: Process, on_log_line: OnLogLine, grace_seconds: float
    ) -> None:
        self.role = role
        self._process = process
        self._grace_seconds = grace_seconds  # that it was started with
        self._on_log_line = on_log_line
        self._last_line = ""  # of standard error, kept to say why it ended
        self._last_error = ""
        self._reader = asyncio.create_task(self._read_errors())

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        role: str,
        listen: str,
        options: Sequence[str],
        on_log_line: OnLogLine = no_log,
        grace_seconds: float = GRACE_SECONDS,
    ) -> Child:
        """Start a service; `command` is what runs any role, without the role."""
        # What the environment says was said to this process; the child has flags alone.
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("OUTRIDER_")}
        process = await asyncio.create_subprocess_exec(
            *(*command, role, *options),
            *("--listen", listen),
            "--stop-on-stdin-end",
            f"--grace={grace_seconds}",
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=inherited,
            limit=_LINE_BYTES,
            start_new_session=True,
        )
        return cls(role, process, on_log_line, grace_seconds)

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
            self._on_log_line(self.role, text)
            if text.startswith(_ERROR_PREFIX):
                self._last_error = text.removeprefix(_ERROR_PREFIX)

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the service is gone."""
        return self._process.returncode is not None

    async def stop(self) -> None:
        """Stop the service; what is in flight has its time to end."""
        await stop_process(self._process, self._grace_seconds)


async def stop_process(process: Process, grace_seconds: float = GRACE_SECONDS) -> None:
    """Ask a process to stop; kill it when it does not, some time after that grace."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), grace_seconds + _LATE_SECONDS)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def watch(work: Coroutine[Any, Any, T], children: Sequence[Child]) -> T:
    """Return the result of `work`; raise ServiceStopped as soon as one of the children ends."""
    task = asyncio.ensure_future(work)
    ends = [asyncio.create_task(child.end()) for child in children]
    try:
        await asyncio.wait([task, *ends], return_when=asyncio.FIRST_COMPLETED)
        if task.done() and task.exception() is None:
            return task.result()
        # What failed may have one cause: let all of it be seen, then report the first service's.
        ended, _ = await asyncio.wait(ends, timeout=_SETTLE_SECONDS)
        if ended:
            raise next(end.result() for end in ends if end in ended)
        return task.result()
    finally:
        for other in (task, *ends):
            other.cancel()
        await asyncio.gather(task, *ends, return_exceptions=True)
