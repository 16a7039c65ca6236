"""Serves the gateway."""

from __future__ import annotations

from collections.abc import Collection

from gateway.config import HttpConfig
from gateway.routes import create_app
from gateway.serving import AppServer
from orchestrator.service import Orchestrator
from outrider.access import Access


class HttpServer(AppServer):
    """The gateway on its port. `address` is known once it is started.

    `access` counts what callers use, also at other ports of this process; whom this one lets in,
    `config` says. Raises InvalidConfig.
    """

    def __init__(
        self, config: HttpConfig, orchestrator: Orchestrator, access: Access | None = None
    ) -> None:
        own_access = (access or Access()).with_grants(config.let_in())
        self._app = create_app(orchestrator, config, own_access)
        super().__init__(config, self._app)

    def take(self, config: HttpConfig | None, names: Collection[str]) -> Collection[str]:
        """Go by other limits of bodies from now on; return the names of settings that were taken.

        `config` is None where no gateway is configured any more, which takes a restart.
        """
        taken = set(names) & {"http_body_bytes"} if config is not None else set[str]()
        if config is not None and taken:
            self._app.state.bounds.most = config.body_bytes
        return taken

    async def stop(self, seconds: float = 0.0) -> None:
        """Listen no more, and let what is in flight finish for so long."""
        await super().stop(seconds)
        await self._app.state.answers.close()
