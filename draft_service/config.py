"""The settings of a draft service."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.errors import InvalidConfig
from outrider.model_service.config import ModelConfig
from outrider.rpc.channel import read_address
from outrider.rpc.security import ANONYMOUS, ClientSecurity
from outrider.rpc.server import ServerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """One draft process."""

    server: ServerConfig
    model: ModelConfig | None = None  # none: the drafters below draft alone
    drafters: tuple[str, ...] = ()  # local sources that draft before the model
    alias: str = ""  # the name that others see where there is no model
    nice: int = 0  # the same as the model's, where there is none
    join: str = ""  # HOST:PORT of an orchestrator to dial; empty: wait to be dialled
    join_security: ClientSecurity = ANONYMOUS  # what that one is shown
    support: int = 64  # entries of a sent distribution at most; about 300 bytes a token
    tail: float = 0.005  # mass a sent distribution may drop; costs as much acceptance

    def __post_init__(self) -> None:
        if self.model is None and not self.drafters:
            raise InvalidConfig("model", "name one, or draft without it by --drafters lookup")
        if self.join:
            read_address("join", self.join)
