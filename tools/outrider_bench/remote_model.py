"""Puts a draft or a target at the far end of a shaped link."""

from __future__ import annotations

import asyncio
import secrets
import statistics
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from outrider.processes import Child
from outrider_bench.cores import pinned
from outrider_bench.shaper import Link, Shape
from outrider_cli import COMMAND
from outrider_cli.options import arguments
from outrider_cli.services.local import HostedModel

_PINGS = 3


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A draft or target at the other end of a link, and the token that it demands."""

    role: str
    address: str
    token_file: Path
    child: Child
    link: Link

    async def reshape(self, round_trip_ms: float) -> None:
        """Give the link another round trip, in milliseconds."""
        self.link.reshape(Shape(delay_ms=round_trip_ms / 2.0))

    async def round_trip(self) -> float:
        """Measure a round trip, in seconds: connecting takes exactly one."""
        host, _, port = self.address.rpartition(":")
        times = []
        for _ in range(_PINGS):
            begin = time.perf_counter()
            _, writer = await asyncio.open_connection(host, int(port))
            times.append(time.perf_counter() - begin)
            writer.close()
            await writer.wait_closed()
        return statistics.median(times)


@asynccontextmanager
async def remote_model(
    role: str, hosted: HostedModel, cores: Mapping[str, Sequence[int]]
) -> AsyncIterator[RemoteModel]:
    """Give a draft or target over a link without delay; both are gone at the end."""
    with TemporaryDirectory() as folder, Link(Shape()) as link:
        token_file = write_token(Path(folder, "token"))
        child = await start_remote(link, role, hosted, token_file, cores)
        try:
            yield RemoteModel(role, await child.address(), token_file, child, link)
        finally:
            await child.stop()


def write_token(path: Path) -> Path:
    """Write a new token that only this user can read."""
    path.touch(0o600)
    path.write_text(secrets.token_hex(16))
    return path


async def start_remote(
    link: Link,
    role: str,
    hosted: HostedModel,
    token_file: Path,
    cores: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> Child:
    """Start a model service at the far end of a link, on the cores of its role if it has any."""
    options = ("--allow-remote", f"--token-file={token_file}", f"--model={hosted.model}")
    return await Child.start(
        link.inside(pinned(COMMAND, cores, role)),
        role,
        f"{link.far_address}:0",
        (*options, *arguments(hosted.options)),
    )
