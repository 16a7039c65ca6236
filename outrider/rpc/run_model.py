"""Runs a model service: listen, load, say SERVING, drain."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from outrider import logs
from outrider.engine.host import EngineHost, HostOptions
from outrider.engine.model import Model
from outrider.errors import InvalidConfig
from outrider.rpc.model_service import ModelService
from outrider.rpc.server import Server, ServerConfig
from outrider.threads import available_threads


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """How a model service runs its model. Zero means: choose."""

    model: Path
    alias: str = ""  # the name told to others; the file's name if empty
    threads: int = 0  # the smaller of affinity and quota
    context: int = 0  # tokens of one session; the model's training context, at most 4096
    sessions: int = 4  # caches at the same time; each costs the memory of a whole context
    nice: int = 0  # 19 takes what others leave

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("threads", self.threads, 0, 1024),
            ("ctx", self.context, 0, 2**24),
            ("sessions", self.sessions, 1, 256),
            ("nice", self.nice, 0, 19),
        ):
            if not low <= value <= high:
                raise InvalidConfig(name, f"must be in [{low}, {high}], not {value}")


def load_llama(config: ModelConfig) -> Callable[[], Model]:
    """Return a loader of the configured model; llama.cpp is imported when it is called."""

    def load() -> Model:
        from outrider.engine.llama import LlamaConfig, LlamaModel

        return LlamaModel(
            LlamaConfig(
                path=config.model,
                context=config.context,
                sequence_count=config.sessions,
                thread_count=config.threads or available_threads(),
                pad_multiple=4,
            )
        )

    return load


async def run_model_service(
    name: str,
    server_config: ServerConfig,
    load: Callable[[], Model],
    options: HostOptions,
    make_servicer: Callable[[EngineHost], ModelService],
    register: Callable[[ModelService, grpc.aio.Server], None],
) -> None:
    """Serve until SIGTERM. Raises what the loader raises, after saying nothing but that."""
    host = EngineHost(load, options)
    servicer = make_servicer(host)
    server = Server(server_config, f"outrider.v1.{name}Service")
    register(servicer, server.grpc)
    await server.start()
    server.watch_for_stop()
    print(f"outrider {name.lower()} listening on {server.address}", flush=True)
    loading = asyncio.ensure_future(asyncio.wrap_future(host.start()))
    stopping = asyncio.ensure_future(server.stop_requested.wait())
    both: list[asyncio.Future[Any]] = [loading, stopping]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if not loading.done() or loading.exception():
        await server.grpc.stop(None)
        if not loading.done():
            return  # stopped while loading: there is nothing to drain
    loaded = loading.result()
    servicer.set_loaded(loaded)
    await server.set_serving(True)
    model = loaded.model.describe()
    logs.event(
        f"outrider.{name.lower()}",
        "serving",
        address=server.address,
        model=model.name,
        description=model.description,
        context=model.context,
        sessions=model.sequence_count,
        threads=model.thread_count,
        nice=os.nice(0),
        numerics=loaded.numerics.value,
        padding=loaded.model.pad_multiple,
        decode_ms={rows: round(1e3 * seconds, 2) for rows, seconds in loaded.costs},
        load_seconds=round(loaded.seconds, 2),
        system=model.system_info,
    )

    async def stop() -> None:
        await asyncio.to_thread(host.stop)

    serving = asyncio.ensure_future(server.run_until_stopped(stop))
    died = asyncio.ensure_future(asyncio.wrap_future(host.died))
    await asyncio.wait([serving, died], return_when=asyncio.FIRST_COMPLETED)
    died.result() if died.done() else serving.result()
