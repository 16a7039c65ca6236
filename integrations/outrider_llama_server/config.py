"""The settings of a draft service over a llama-server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outrider.rpc.channel import read_address
from outrider.rpc.security import ANONYMOUS, ClientSecurity
from outrider.rpc.server import ServerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaServerConfig:
    """One such process. Raises InvalidConfig."""

    server: ServerConfig
    url: str  # of the llama-server
    key_file: Path | None = None  # with its API key
    alias: str = ""  # the name that others see; empty: llama-server's own
    nice: int = 0
    join: str = ""  # HOST:PORT of an orchestrator to dial; empty: wait to be dialled
    join_security: ClientSecurity = ANONYMOUS  # what that one is shown

    def __post_init__(self) -> None:
        if self.join:
            read_address("join", self.join)
