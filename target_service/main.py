"""Starts a target service."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from outrider.engine.gguf_check import is_head
from outrider.engine.hosting import HostOptions
from outrider.engine.model import Model
from outrider.file_values import state_of
from outrider.model_service.new_heads import HeadFile
from outrider.model_service.run import make_host, numerics_of, run_model_service
from outrider.v1.target_service_pb2_grpc import add_TargetServiceServicer_to_server
from target_service.config import TargetConfig
from target_service.servicer import TargetServicer


async def run(config: TargetConfig, load: Callable[[], Model] | None = None) -> None:
    """Serve until SIGTERM; `load` replaces the GGUF model, for tests."""
    os.nice(max(0, config.model.nice))
    options = HostOptions(numerics=numerics_of(config.model, "auto"))
    head = head_of(config)
    host = make_host(
        config.model, options, load, config.draft, config.same_vocabulary, config.keeping
    )
    await run_model_service(
        "Target",
        config.server,
        host,
        partial(TargetServicer, alias=config.model.alias),
        add_TargetServiceServicer_to_server,
        partial(head.watch, host) if head is not None else None,
    )


def head_of(config: TargetConfig) -> HeadFile | None:
    """Return the file of the head that may come or be replaced; None: what drafts stays.

    That is so of a small model, whose sampler chains sessions have. Raises InvalidConfig for a
    draft that is neither.
    """
    if config.draft is None:
        return HeadFile(config.head) if config.head is not None else None
    known = state_of(config.draft.model)  # before it is loaded
    return HeadFile(config.draft, known) if is_head(config.draft.model) else None
