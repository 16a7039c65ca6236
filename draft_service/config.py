"""The settings of a draft service."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.model_service.config import ModelConfig
from outrider.rpc.channel import read_address
from outrider.rpc.security import ANONYMOUS, ClientSecurity
from outrider.rpc.server import ServerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """One draft process."""

    server: ServerConfig
    model: ModelConfig
    join: str = ""  # HOST:PORT of an orchestrator to dial; empty: wait to be dialled
    join_security: ClientSecurity = ANONYMOUS  # what that one is shown
    support: int = 64  # entries of a sent distribution at most; about 300 bytes a token
    tail: float = 0.005  # mass a sent distribution may drop; costs as much acceptance

    def __post_init__(self) -> None:
        if self.join:
            read_address("join", self.join)
