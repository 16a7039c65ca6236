"""Starts a draft service."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from draft_service.config import DraftConfig
from draft_service.joining import Joiner, Joining
from draft_service.lookup import LookupServicer
from draft_service.servicer import DraftServicer
from outrider import logs
from outrider.engine.hosting import HostOptions
from outrider.engine.model import Model
from outrider.model_service.run import make_host, numerics_of, run_model_service
from outrider.rpc.server import Server
from outrider.tasks import first_of
from outrider.v1.draft_service_pb2_grpc import add_DraftServiceServicer_to_server


async def run(config: DraftConfig, load: Callable[[], Model] | None = None) -> None:
    """Serve until SIGTERM; `load` replaces the GGUF model, for tests."""
    join = Joining(config.join, config.join_security).stay if config.join else None
    if config.model is None:
        await _run_lookup(config, join)
        return
    os.nice(max(0, config.model.nice))
    options = HostOptions(numerics=numerics_of(config.model, "native"))
    host = make_host(config.model, options, load)
    servicer = partial(
        DraftServicer,
        alias=config.model.alias,
        support=config.support,
        tail=config.tail,
        drafters=config.drafters,
    )
    await run_model_service(
        "Draft", config.server, host, servicer, add_DraftServiceServicer_to_server, join
    )


async def _run_lookup(
    config: DraftConfig, join: Callable[[Joiner], Coroutine[Any, Any, None]] | None
) -> None:
    """Serve without a model: there is nothing to load."""
    os.nice(max(0, config.nice))
    servicer = LookupServicer(config.alias, config.drafters)
    server = Server(config.server, "outrider.v1.DraftService")
    add_DraftServiceServicer_to_server(servicer, server.grpc)
    await server.start_service("draft")
    await server.set_serving(True)
    name = servicer.description().model_name
    logs.event("outrider.draft", "serving", address=server.address, model=name)
    parts = [server.run_until_stopped()]
    if join is not None:
        parts.append(join(servicer))
    await first_of(*parts)
