"""The command that shows an orchestrator and its peers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from outrider_cli.options import ClientOptions, spread
from outrider_cli.services.commands import ORCHESTRATOR_ADDRESS

if TYPE_CHECKING:
    from outrider.rpc.security import ClientSecurity


@spread
def status(
    orchestrator: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The orchestrator to ask.")
    ] = ORCHESTRATOR_ADDRESS,
    connection: ClientOptions = ClientOptions(),
) -> None:
    """Show what an orchestrator has and what it waits for."""
    asyncio.run(_show(orchestrator, connection.security()))


async def _show(address: str, security: ClientSecurity) -> None:
    from outrider.client import CallFailed, OutriderClient
    from outrider.errors import PeerUnavailable
    from outrider_cli.screen import open_screen, show_lines
    from outrider_cli.status_table import status_lines

    async with OutriderClient(address, security) as client:
        try:
            status = await client.status()
        except CallFailed as error:
            if error.status == "UNAVAILABLE" and address == ORCHESTRATOR_ADDRESS:
                raise PeerUnavailable(f"{error}; `outrider up` starts one") from None
            raise
    show_lines(open_screen(), status_lines(address, status))
