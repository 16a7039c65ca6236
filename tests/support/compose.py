"""Containers that Docker Compose runs, and generations through the port that they publish."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider.client import (
    Delta,
    Finished,
    Origin,
    OutriderClient,
    Request,
    Started,
    Statistics,
)
from outrider.rpc.security import ClientSecurity

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
ADDRESS = "127.0.0.1:50060"
PROMPT = "def read_config(path):"
PATIENCE = 300.0  # seconds, on a busy machine; else a few


def run(*words: str, environment: dict[str, str] | None = None) -> str:
    """Return what a command prints; fail with what it complains of."""
    done = subprocess.run(
        words, capture_output=True, text=True, env=os.environ | (environment or {}), check=False
    )
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}"
    return done.stdout.strip()


def insist(*words: str) -> None:
    """Run a command up to five times.

    On cgroup v1, runc gives up freezing a process that a busy machine does not let run.
    """
    for _ in range(4):
        with suppress(AssertionError):
            run(*words)
            return
    run(*words)


@dataclass(frozen=True)
class Project:
    """Containers under a project name of their own, from files in deploy/."""

    name: str
    files: tuple[str, ...] = ("compose.yaml",)

    def compose(self, *words: str, **environment: str) -> str:
        """Return what `docker compose` prints; `environment` fills in the files' variables."""
        chosen = [word for file in self.files for word in ("-f", str(DEPLOY / file))]
        return run("docker", "compose", "-p", self.name, *chosen, *words, environment=environment)

    def containers(self, service: str) -> list[str]:
        """Return the ids of a service's containers, those that have ended too."""
        return self.compose("ps", "--all", "--quiet", service).split()

    def container(self, service: str) -> str:
        """Return the id of a service's one container."""
        [identifier] = self.containers(service)
        return identifier

    def inspect(self, service: str) -> dict[str, Any]:
        """Return what Docker knows of a service's one container."""
        return inspect(self.container(service))

    def healthy(self, service: str) -> bool:
        """Return whether a service's one container is."""
        return healthy(self.container(service))

    def wait_until_healthy(self, service: str) -> None:
        """Wait for a service's one container."""
        wait_until(lambda: self.healthy(service), f"the {service} does not become healthy")

    def read_token(self, folder: Path) -> Path:
        """Write the token of the services into a file of the folder; return its path."""
        path = folder / "token"
        path.write_text(self.compose("exec", "-T", "orchestrator", "cat", "/run/outrider/token"))
        return path


def inspect(container: str) -> dict[str, Any]:
    """Return what Docker knows of a container."""
    known: dict[str, Any] = json.loads(run("docker", "inspect", container))[0]
    return known


def healthy(container: str) -> bool:
    """Return whether a container's health check says so."""
    return bool(inspect(container)["State"]["Health"]["Status"] == "healthy")


def wait_until(holds: Callable[[], bool], complaint: str) -> None:
    """Wait until something holds."""
    started = time.monotonic()
    while not holds():
        assert time.monotonic() - started < PATIENCE, complaint
        time.sleep(0.5)


# --- generations ---


@dataclass
class Generation:
    """What a generation gave."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    failed_at: int | None = None  # tokens that were there when the disturbance was over
    statistics: Statistics | None = None

    def drafted(self) -> int:
        """Return how many tokens came from a draft."""
        return self.origins.count(Origin.DRAFTED)


@asynccontextmanager
async def connected(token_file: Path) -> AsyncIterator[OutriderClient]:
    """Yield a client of the published port."""
    async with OutriderClient(ADDRESS, ClientSecurity(token_file=token_file)) as client:
        yield client


async def generate(
    client: OutriderClient,
    request: Request,
    midway: Callable[[], object] | None = None,
    at: int = 0,
) -> Generation:
    """Generate; `midway` runs in a thread beside it from the token `at` on."""
    made, disturbance = Generation(), None
    async for event in client.generate(request, timeout_seconds=PATIENCE):
        match event:
            case Started():
                pass
            case Finished(statistics=statistics):
                made.statistics = statistics
            case Delta():
                made.text += "".join(piece.text for piece in event.pieces)
                made.token_ids += event.token_ids
                made.origins += event.origins
        if midway is not None and disturbance is None and len(made.token_ids) >= at:
            disturbance = asyncio.create_task(asyncio.to_thread(midway))
        if made.failed_at is None and disturbance is not None and disturbance.done():
            made.failed_at = len(made.token_ids)
    if disturbance is not None:
        await disturbance
    return made
