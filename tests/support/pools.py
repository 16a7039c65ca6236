"""An orchestrator over several targets that host the same model, and targets that are odd."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from target_service.servicer import TargetServicer
from tests.support.services import (
    TARGET,
    ModelProcess,
    OrchestratorProcess,
    Role,
    running,
    toy,
)
from tests.support.toy import NEVER, ToyModel

LONG = 90.0
"""Seconds until a test gives up."""


def target() -> ToyModel:
    """Return a model that writes until its limit."""
    return toy(seed=1, eos_bias=NEVER)


def role_of(servicer: Callable[..., TargetServicer], **options: Any) -> Role:
    """Return targets that such a servicer serves."""
    return Role("Target", partial(servicer, alias="", **options), TARGET.register, TARGET.stub)


@contextlib.asynccontextmanager
async def over(
    *roles: Role, make: Callable[[], ToyModel] = target, pace: float = 0.0, **options: Any
) -> AsyncIterator[tuple[OrchestratorProcess, list[ModelProcess]]]:
    """Run an orchestrator over targets that host the same model; `pace` is seconds a decode."""
    async with contextlib.AsyncExitStack() as stack:
        targets = [
            await stack.enter_async_context(running(ModelProcess(role, make, pace=pace)))
            for role in roles
        ]
        addresses = [each.address for each in targets]
        orchestrator = await stack.enter_async_context(
            running(OrchestratorProcess(addresses, **options))
        )
        await orchestrator.until_ready()
        yield orchestrator, targets
