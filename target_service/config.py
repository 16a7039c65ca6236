"""The settings of a target service."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.model_service.config import ModelConfig
from outrider.rpc.server import ServerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """One target process."""

    server: ServerConfig
    model: ModelConfig
