"""What goes wrong: how each fault begins and ends at a service."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import resource
import signal
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from outrider_bench.shaper import Shape
from tests.chaos.links import SMOOTH
from tests.chaos.world import World, write_certificate
from tests.support.processes import DRAFT, TARGET

Act = Callable[[World, str, random.Random], Awaitable[None]]

_LOSSY = Shape(delay_ms=2.0, loss=0.05)
_REORDERING = Shape(delay_ms=5.0, jitter_ms=5.0, may_reorder=True)
_SPARE_BYTES = 1 << 20  # of addresses, of a process that is out of memory
_SMALLEST_PIPE = 4096


@dataclass(frozen=True)
class Fault:
    """One kind of fault. It lasts for `seconds`, in a world of `kind`, at one of `services`."""

    name: str
    begin: Act
    end: Act
    seconds: float = 2.0
    kind: str = "plain"
    services: tuple[str, ...] = ("target", "draft", "orchestrator", "gateway")


async def _nothing(world: World, service: str, rng: random.Random) -> None:
    """There is nothing to do: a supervisor starts what ended."""


async def _kill(world: World, service: str, rng: random.Random) -> None:
    world.process(service).kill()


async def _stop(world: World, service: str, rng: random.Random) -> None:
    world.process(service).signal(signal.SIGTERM)


async def _pause(world: World, service: str, rng: random.Random) -> None:
    world.process(service).signal(signal.SIGSTOP)


async def _resume(world: World, service: str, rng: random.Random) -> None:
    world.process(service).signal(signal.SIGCONT)


async def _disconnect(world: World, service: str, rng: random.Random) -> None:
    world.ways[service].refuses = True
    world.ways[service].cut()


async def _reconnect(world: World, service: str, rng: random.Random) -> None:
    world.ways[service].refuses = False


async def _partition(world: World, service: str, rng: random.Random) -> None:
    way = world.ways[service]
    rng.choice((way.up, way.down)).shut()


async def _join(world: World, service: str, rng: random.Random) -> None:
    world.ways[service].up.open()
    world.ways[service].down.open()


async def _freeze(world: World, service: str, rng: random.Random) -> None:
    world.ways[service].freeze()


async def _lose(world: World, service: str, rng: random.Random) -> None:
    await asyncio.to_thread(world.links[service].reshape, _LOSSY)


async def _reorder(world: World, service: str, rng: random.Random) -> None:
    await asyncio.to_thread(world.links[service].reshape, _REORDERING)


async def _smoothen(world: World, service: str, rng: random.Random) -> None:
    await asyncio.to_thread(world.links[service].reshape, SMOOTH)


async def _restarted(world: World, service: str) -> None:
    process = world.process(service)
    process.kill()
    process.start()


async def _fill_disk(world: World, service: str, rng: random.Random) -> None:
    """Start it again where no byte of its log, or of what it keeps, can be written."""
    process = world.process(service)
    process.log = os.open("/dev/full", os.O_WRONLY)
    process.environment["XDG_CACHE_HOME"] = "/dev/full"
    await _restarted(world, service)


async def _empty_disk(world: World, service: str, rng: random.Random) -> None:
    process = world.process(service)
    if isinstance(process.log, int) and process.log > 0:
        os.close(process.log)
    process.log = subprocess.DEVNULL
    process.environment.pop("XDG_CACHE_HOME", None)
    await _restarted(world, service)


async def _slow_disk(world: World, service: str, rng: random.Random) -> None:
    """Start it again with a log that takes a page, and nobody reads any more of it."""
    process = world.process(service)
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _SMALLEST_PIPE)
    process.log = writer
    await _restarted(world, service)
    os.close(writer)
    process.environment["CHAOS_PIPE"] = str(reader)  # where `end` finds it


async def _quick_disk(world: World, service: str, rng: random.Random) -> None:
    process = world.process(service)
    process.log = subprocess.DEVNULL
    reader = int(process.environment.pop("CHAOS_PIPE"))
    await _restarted(world, service)
    os.close(reader)


async def _take_memory(world: World, service: str, rng: random.Random) -> None:
    """Let it have hardly more addresses than it has."""
    pid = world.process(service).pid
    with suppress(ProcessLookupError, psutil.NoSuchProcess):
        used = psutil.Process(pid).memory_info().vms + _SPARE_BYTES
        resource.prlimit(pid, resource.RLIMIT_AS, (used, resource.RLIM_INFINITY))


async def _give_memory(world: World, service: str, rng: random.Random) -> None:
    with suppress(ProcessLookupError):
        infinite = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(world.process(service).pid, resource.RLIMIT_AS, infinite)


async def _step_clock(world: World, service: str, rng: random.Random) -> None:
    world.set_clock(service, rng.choice((-86_400.0, 3_600.0, 86_400.0)))


async def _step_back(world: World, service: str, rng: random.Random) -> None:
    world.set_clock(service, 0.0)


async def _exchange_weights(world: World, service: str, rng: random.Random) -> None:
    """Start it again with the other model of the pair."""
    process = world.process(service)
    others = {str(TARGET): str(DRAFT), str(DRAFT): str(TARGET)}
    process.changed = [others.get(word, word) for word in process.options]
    await _restarted(world, service)


async def _restore(world: World, service: str, rng: random.Random) -> None:
    process = world.process(service)
    process.changed = ()
    await _restarted(world, service)


async def _expire(world: World, service: str, rng: random.Random) -> None:
    """Start it again with a certificate of yesterday."""
    write_certificate(world.folder, is_expired=True)
    process = world.process(service)
    process.changed = [
        word.replace("/server.pem", "/expired.pem").replace("/server.key", "/expired.key")
        for word in process.options
    ]
    await _restarted(world, service)


MODELS = ("target", "draft")
FAULTS = {
    fault.name: fault
    for fault in (
        Fault("kill", _kill, _nothing),
        Fault("stop", _stop, _nothing),
        Fault("pause", _pause, _resume, seconds=3.0),
        Fault("disconnect", _disconnect, _reconnect),
        Fault("partition one way", _partition, _join, seconds=3.0),
        Fault("half-open connection", _freeze, _nothing),
        Fault("loss", _lose, _smoothen, kind="shaped"),
        Fault("reorder", _reorder, _smoothen, kind="shaped"),
        Fault("slow disk", _slow_disk, _quick_disk, seconds=4.0),
        Fault("full disk", _fill_disk, _empty_disk, seconds=4.0),
        Fault("out of memory", _take_memory, _give_memory),
        Fault("clock step", _step_clock, _step_back),
        Fault("wrong weights", _exchange_weights, _restore, seconds=4.0, services=MODELS),
        Fault("expired certificate", _expire, _restore, seconds=4.0, kind="tls"),
    )
}
