"""Runs a llama-server binary on the same models, as something to compare with.

Written against the server in llama.cpp 0c1e57098, as llama-cpp-python 0.3.36
ships it. The draft length is an option of the process there: the fields of a
request for it (`speculative.n_max`) are compiled out. And a draft model alone
does nothing; `--spec-type draft-simple` turns it on.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from outrider.errors import InvalidConfig, PeerUnavailable, ServiceStopped
from outrider.processes import stop_process
from outrider.sampling import SamplingParameters
from outrider_bench.cores import pinned
from outrider_bench.peer_drafters import PeerDrafter, drafting_options
from outrider_bench.records import Generated
from outrider_bench.variants import Variant

_HOST = "127.0.0.1"
_LOAD_SECONDS = 600.0
_POLL_SECONDS = 0.05
_REQUEST_SECONDS = 3600.0
_ENDS_WITH_PARENT = """
import ctypes, os, signal, sys
parent, words = int(sys.argv[1]), sys.argv[2:]
prctl = getattr(ctypes.CDLL(None), "prctl", None)
if prctl is not None:
    prctl(1, int(signal.SIGTERM), 0, 0, 0)  # PR_SET_PDEATHSIG, which stays over the exec
if os.getppid() == parent:
    os.execvp(words[0], words)
"""
"""Lets the system end a process with the one that started it, on Linux, and becomes the server.
In a process of its own: what runs between fork and exec may hang where there are other threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPlan:
    """What to start."""

    binary: Path
    target: Path
    draft: Path | None  # None: the target's file has it
    threads: int
    context: int  # tokens of one session
    users: int
    variants: tuple[Variant, ...]  # a process each
    options: tuple[str, ...] = ()  # more of them, as they are
    cores: Mapping[str, Sequence[int]] = field(default_factory=dict)  # it has the target's


def command_line(plan: PeerPlan, drafters: Sequence[PeerDrafter], port: int) -> list[str]:
    """Return how to start the server with drafters, or without any."""
    return [
        *pinned([str(plan.binary)], plan.cores, "target"),
        *("--model", str(plan.target), "--host", _HOST, "--port", str(port)),
        *("--threads", str(plan.threads), "--parallel", str(plan.users)),
        *("--ctx-size", str(plan.context * plan.users)),  # of all slots together
        *("--cache-ram", "0"),  # every prompt is new; a copy of the last would be for nothing
        *drafting_options(drafters, plan.draft),
        *plan.options,
    ]


def request_body(
    prompt: Sequence[int], token_limit: int, sampling: SamplingParameters, seed: int
) -> dict[str, Any]:
    """Return what asks for the same as our own request does."""
    return {
        "prompt": list(prompt),
        "n_predict": token_limit,
        "stream": True,
        "cache_prompt": False,
        "ignore_eos": True,
        "seed": seed % 2**32,
        "samplers": ["top_k", "top_p", "min_p", "temperature"],
        "temperature": sampling.temperature,
        "top_k": 1 if sampling.greedy else sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
    }


def read_events(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the objects of a stream of server-sent events. Raises PeerUnavailable for an error."""
    for line in lines:
        kind, colon, text = line.decode().partition(":")
        if kind == "error":
            raise PeerUnavailable(f"llama-server: {text.strip()}")
        if kind != "data" or not colon or text.strip() == "[DONE]":
            continue
        event = json.loads(text)
        if "error" in event:
            raise PeerUnavailable(f"llama-server: {event['error']}")
        yield event


def read_trial(
    events: Iterable[dict[str, Any]], clock: Callable[[], float], begun: Callable[[], None]
) -> Generated:
    """Return what a stream of events says; `begun` is called at the first token.

    Tokens are counted by what the server says it has predicted so far: one
    that does not end a character comes with the next.
    """
    begin = clock()
    deltas: list[tuple[float, int]] = []
    known, last = 0, {}
    for event in events:
        last = event
        count = event.get("tokens_predicted", 0)
        if count > known:
            if not known:
                begun()
            deltas.append((clock() - begin, count - known))
            known = count
    timings = last.get("timings", {})
    accepted = timings.get("draft_n_accepted", 0)
    return Generated(
        begin=begin,
        deltas=tuple(deltas),
        finish=last.get("stop_type", ""),
        # Every round adds its accepted tokens and one more.
        round_count=max(0, known - 1 - accepted),
        drafted_count=timings.get("draft_n", 0),
        accepted_count=accepted,
        reported=timings,
    )


def complete(port: int, body: Mapping[str, Any], begun: Callable[[], None]) -> Generated:
    """Ask a server on loopback for a completion: llama-server, or our own, which answers alike.

    Raises PeerUnavailable.
    """
    with closing(http.client.HTTPConnection(_HOST, port, _REQUEST_SECONDS)) as connection:
        try:
            return read_trial(_post(connection, json.dumps(body)), time.perf_counter, begun)
        except (OSError, http.client.HTTPException) as error:
            raise PeerUnavailable(f"port {port}: {error}") from None


class LlamaServer:
    """One llama-server process, with drafters of its own."""

    def __init__(self, variant: Variant, plan: PeerPlan) -> None:
        self.variant = variant
        self.port = _free_port()
        self._plan = plan
        self._process: Process | None = None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._threads = ThreadPoolExecutor(plan.users)

    @property
    def pids(self) -> dict[str, int]:
        """The process that computes."""
        assert self._process is not None
        return {"server": self._process.pid}

    async def start(self) -> None:
        """Start it and wait until it has loaded. Raises ServiceStopped if it ends."""
        words = command_line(self._plan, self.variant.peer_drafters, self.port)
        if shutil.which(words[0]) is None:
            raise InvalidConfig("peer", f"cannot run {words[0]}")
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _ENDS_WITH_PARENT, str(os.getpid())),
                *words,
                stdin=DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
        except OSError as error:
            raise InvalidConfig("peer", f"cannot run {words[0]}: {error.strerror}") from None
        async with asyncio.timeout(_LOAD_SECONDS):
            while not await asyncio.to_thread(self._is_healthy):
                if self._process.returncode is not None:
                    raise ServiceStopped(f"{self.variant.name}: {self._last_line()}")
                await asyncio.sleep(_POLL_SECONDS)

    async def stop(self) -> None:
        """Stop it; requests in flight fail."""
        if self._process is not None:
            await stop_process(self._process)
        self._threads.shutdown()
        self._log.close()

    async def generate(
        self,
        prompt: Sequence[int],
        token_limit: int,
        sampling: SamplingParameters,
        seed: int,
        begun: Callable[[], None],
    ) -> Generated:
        """Generate once, in a thread. Raises PeerUnavailable."""
        body = request_body(prompt, token_limit, sampling, seed)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, complete, self.port, body, begun)

    def _is_healthy(self) -> bool:
        with closing(http.client.HTTPConnection(_HOST, self.port, 5.0)) as connection:
            try:
                connection.request("GET", "/health")
                return connection.getresponse().status == http.client.OK
            except (OSError, http.client.HTTPException):
                return False

    def _last_line(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it ended")


def _post(connection: http.client.HTTPConnection, text: str) -> Iterator[dict[str, Any]]:
    """Send the request once the first event is asked for, and yield all events."""
    connection.request("POST", "/completion", text, {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != http.client.OK:
        raise PeerUnavailable(f"llama-server: {response.read().decode(errors='replace')}")
    yield from read_events(response)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind((_HOST, 0))
        return int(taken.getsockname()[1])


@asynccontextmanager
async def running_peers(
    plan: PeerPlan | None, say: Callable[[str], None]
) -> AsyncIterator[list[LlamaServer]]:
    """Give a loaded server for every variant; none without a plan."""
    async with AsyncExitStack() as stack:
        servers = [LlamaServer(variant, plan) for variant in plan.variants] if plan else []
        for server in servers:
            say(f"starting {server.variant.name}")
            stack.push_async_callback(server.stop)
            await server.start()
        yield servers


def check_binary(text: str) -> Path:
    """Return the path of `llama-server=PATH`. Raises InvalidConfig."""
    name, equals, path = text.partition("=")
    if name != "llama-server" or not equals:
        raise InvalidConfig("peer", f"must be llama-server=PATH, not {text}")
    if not os.access(path, os.X_OK):
        raise InvalidConfig("peer", f"there is no program {path}")
    return Path(path)
