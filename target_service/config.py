"""The settings of a target service."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.engine.row_keeper import Keeping
from outrider.model_service.config import ModelConfig
from outrider.rpc.server import ServerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """One target process."""

    server: ServerConfig
    model: ModelConfig
    draft: ModelConfig | None = None
    """Of a small model that drafts in the target's own process, between two of its decodes."""
    keeping: Keeping | None = None
    """How what it decodes is written down, to teach a head from; None: it is not."""
    head: ModelConfig | None = None
    """Without such a draft, of a head in a file that may come while the target runs."""
    same_vocabulary: bool = False  # leave that one out where its ids are not the target's
