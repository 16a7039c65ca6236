"""The processes of one layout, the ways to them, and what they hold."""

from __future__ import annotations

import asyncio
import datetime
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import trustme

from outrider.rpc.security import ClientSecurity, channel_credentials
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.v1.draft_service_pb2_grpc import DraftServiceStub
from outrider.v1.orchestrator_service_pb2_grpc import OrchestratorServiceStub
from outrider.v1.target_service_pb2_grpc import TargetServiceStub
from tests.chaos.links import ShapedWay, TcpWay
from tests.support.processes import DRAFT, MODELS, TARGET, free_port

SERVICES = ("target", "draft", "orchestrator", "gateway")
CONTEXT = 256
PATIENCE = 240.0
"""Seconds until everything is well again; a start takes one or two on a machine that is free."""

_STUBS = {"target": TargetServiceStub, "draft": DraftServiceStub}

# A client notices within 15 s that nobody answers, as ours do in 5: the machine may be busy.
_CLIENT = [
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]

# Steps what Python says of the wall clock by what is in a file; C and the monotonic clock run on.
_CLOCK = """
import os, time
_time, _file = time.time, os.environ["CHAOS_CLOCK"]
def stepped():
    try:
        with open(_file) as file:
            return _time() + float(file.read() or 0)
    except (OSError, ValueError):
        return _time()
time.time = stepped
"""


@dataclass
class Process:
    """One service. It is started again where it was, as a supervisor would."""

    name: str
    options: Sequence[str]
    folder: Path
    port: int
    environment: dict[str, str] = field(default_factory=dict)
    changed: Sequence[str] = ()  # options in place of others, while a fault lasts
    log: Any = subprocess.DEVNULL
    child: subprocess.Popen[bytes] | None = None
    starts: int = 0

    def start(self) -> None:
        """Run it."""
        words = [sys.executable, "-m", "outrider_cli", self.name, *(self.changed or self.options)]
        words += ["--listen", f"127.0.0.1:{self.port}"]
        kept = {k: v for k, v in os.environ.items() if not k.startswith("OUTRIDER")}
        cache = {"XDG_CACHE_HOME": str(self.folder / "cache"), "PYTHONPATH": str(self.folder)}
        self.child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.log,
            env={**kept, **cache, **self.environment},
            cwd=MODELS.parent,
        )
        self.starts += 1

    @property
    def pid(self) -> int:
        """The process id."""
        assert self.child is not None
        return self.child.pid

    @property
    def is_over(self) -> bool:
        """Whether it ended."""
        return self.child is None or self.child.poll() is not None

    def signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        if not self.is_over:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        if not self.is_over:
            self.signal(signal.SIGKILL)
            assert self.child is not None
            self.child.wait(30)


@dataclass(frozen=True)
class Held:
    """What one process holds."""

    starts: int
    memory: int  # bytes
    files: int


class World:
    """Target, draft, and an orchestrator with its gateway, each behind a way of its own."""

    def __init__(self, folder: Path, kind: str) -> None:
        """`kind` is plain, shaped (links that lose and reorder) or tls."""
        self.kind = kind
        self.folder = folder
        self.processes: dict[str, Process] = {}
        self.ways: dict[str, TcpWay] = {}
        self.links: dict[str, ShapedWay] = {}
        self._stack = AsyncExitStack()
        self._channels: dict[str, grpc.aio.Channel] = {}

    # --- starting ---

    async def __aenter__(self) -> World:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "sitecustomize.py").write_text(_CLOCK)
        if self.kind == "tls":
            write_certificate(self.folder)
        ports = {name: free_port() for name in SERVICES}
        for name, port in ports.items():
            await self._make_way(name, port)
        for name in SERVICES[:3]:
            self._make_process(name, ports)
        for process in self.processes.values():
            process.start()
        self.supervising = asyncio.create_task(self._supervise())
        self._stack.callback(self.supervising.cancel)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.supervising.cancel()
        for process in self.processes.values():
            process.signal(signal.SIGCONT)
            process.kill()
        for channel in self._channels.values():
            await channel.close()
        for way in [*self.ways.values(), *self.links.values()]:
            await way.close()
        await self._stack.aclose()

    async def _make_way(self, name: str, port: int) -> None:
        upstream = ("127.0.0.1", port)
        if self.kind == "shaped":
            link = ShapedWay(upstream)
            await link.start()
            self.links[name], upstream = link, link.upstream
        self.ways[name] = TcpWay(upstream)
        await self.ways[name].start()

    def _make_process(self, name: str, ports: Mapping[str, int]) -> None:
        (self.folder / f"{name}.clock").write_text("0")
        tls: list[str] = []
        if self.kind == "tls":
            tls = ["--tls-cert", str(self.folder / "server.pem")]
            tls += ["--tls-key", str(self.folder / "server.key")]
        options = [*self._options(name, ports), *tls, "--grace", "3"]
        environment = {"CHAOS_CLOCK": str(self.folder / f"{name}.clock")}
        self.processes[name] = Process(name, options, self.folder, ports[name], environment)

    def _options(self, name: str, ports: Mapping[str, int]) -> list[str]:
        if name == "orchestrator":
            words = ["--target", self.ways["target"].address, "--draft", self.ways["draft"].address]
            words += ["--http", f"127.0.0.1:{ports['gateway']}", "--draft-timeout", "0.5"]
            if self.kind == "tls":
                words += ["--tls-ca", str(self.folder / "ca.pem")]
            return words
        model, numerics = (TARGET, "exact") if name == "target" else (DRAFT, "native")
        words = ["--model", str(model), "--threads", "1", "--ctx", str(CONTEXT)]
        return [*words, "--numerics", numerics]

    async def _supervise(self) -> None:
        """Start what ended, a second later."""
        while True:
            await asyncio.sleep(1.0)
            for process in self.processes.values():
                if process.is_over:
                    process.start()

    # --- who is who ---

    def process(self, service: str) -> Process:
        """Return the process of a service: the gateway is in the orchestrator's."""
        return self.processes["orchestrator" if service == "gateway" else service]

    def set_clock(self, service: str, seconds: float) -> None:
        """Step the wall clock of a service's process so far from everybody's."""
        Path(self.process(service).environment["CHAOS_CLOCK"]).write_text(str(seconds))

    @property
    def security(self) -> ClientSecurity:
        """What clients show and trust."""
        return ClientSecurity(tls_ca=self.folder / "ca.pem" if self.kind == "tls" else None)

    def channel(self, name: str, is_direct: bool = False) -> grpc.aio.Channel:
        """Return a channel to a service, by its way or past it."""
        key = f"{name}{is_direct}"
        if key not in self._channels:
            port = self.processes[name].port if is_direct else self.ways[name].port
            credentials = channel_credentials(self.security)
            if credentials is None:
                channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=_CLIENT)
            else:
                channel = grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, _CLIENT)
            self._channels[key] = channel
        return self._channels[key]

    @property
    def stub(self) -> Any:
        """A client of the orchestrator, as users are."""
        return OrchestratorServiceStub(self.channel("orchestrator"))

    def http(self) -> httpx.AsyncClient:
        """Return a client of the gateway, as users are."""
        scheme = "https" if self.kind == "tls" else "http"
        verify: Any = True
        if self.kind == "tls":
            import ssl

            verify = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        return httpx.AsyncClient(
            base_url=f"{scheme}://{self.ways['gateway'].address}",
            timeout=httpx.Timeout(20.0),
            verify=verify,
            trust_env=False,
        )

    # --- how they are ---

    async def until_well(self) -> float:
        """Wait until all serve and the draft is used; return the seconds. Raises TimeoutError."""
        begin = time.monotonic()
        async with asyncio.timeout(PATIENCE):
            while not await self._is_well():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return time.monotonic() - begin

    async def _is_well(self) -> bool:
        with suppress(grpc.aio.AioRpcError, httpx.HTTPError):
            status = await self.stub.GetStatus(messages.GetStatusRequest(), timeout=3.0)
            if status.speculating and not status.draining:
                async with self.http() as http:
                    return (await http.get("/health", timeout=3.0)).status_code == 200
        return False

    async def sessions(self) -> int:
        """Return open sessions at the models, and generations and jobs that run."""
        count = 0
        for name, stub in _STUBS.items():
            model = await stub(self.channel(name, True)).GetModel(
                common.GetModelRequest(), timeout=5.0
            )
            count += model.activity.open_session_count
        orchestrator = OrchestratorServiceStub(self.channel("orchestrator", True))
        status = await orchestrator.GetStatus(messages.GetStatusRequest(), timeout=5.0)
        return count + int(status.active_generation_count)

    def held(self) -> dict[str, Held]:
        """Return what each process holds now."""
        found = {}
        for name, process in self.processes.items():
            its = psutil.Process(process.pid)
            found[name] = Held(process.starts, its.memory_info().rss, its.num_fds())
        return found


def write_certificate(folder: Path, is_expired: bool = False) -> None:
    """Write the services' certificate, and the authority's at the first time."""
    kept = folder / "ca.key"
    if kept.exists():
        ca = trustme.CA.from_pem((folder / "ca.pem").read_bytes(), kept.read_bytes())
    else:
        ca = trustme.CA()
        ca.cert_pem.write_to_path(folder / "ca.pem")
        ca.private_key_pem.write_to_path(kept)
    now = datetime.datetime.now(datetime.UTC)
    times = {"not_before": now - datetime.timedelta(days=2)}
    times["not_after"] = now + datetime.timedelta(days=-1 if is_expired else 1)
    leaf = ca.issue_cert("127.0.0.1", "localhost", **times)
    prefix = "expired" if is_expired else "server"
    leaf.private_key_pem.write_to_path(folder / f"{prefix}.key")
    (folder / f"{prefix}.pem").write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
