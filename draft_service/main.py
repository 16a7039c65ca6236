"""Starts a draft service."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from draft_service.config import DraftConfig
from draft_service.joining import Joining
from draft_service.servicer import DraftServicer
from outrider.engine.host import HostOptions
from outrider.engine.model import Model
from outrider.model_service.run import make_host, run_model_service
from outrider.v1.draft_service_pb2_grpc import add_DraftServiceServicer_to_server


async def run(config: DraftConfig, load: Callable[[], Model] | None = None) -> None:
    """Serve until SIGTERM; `load` replaces the GGUF model, for tests."""
    os.nice(config.model.nice)
    options = HostOptions(numerics=config.model.profile("native"))
    host = make_host(config.model, options, load)
    servicer = partial(
        DraftServicer, alias=config.model.alias, support=config.support, tail=config.tail
    )
    await run_model_service(
        "Draft",
        config.server,
        host,
        servicer,
        add_DraftServiceServicer_to_server,
        Joining(config.join, config.join_security).stay if config.join else None,
    )
