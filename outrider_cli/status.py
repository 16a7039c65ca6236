"""The command that shows an orchestrator and its peers."""

from __future__ import annotations

import asyncio
import json
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
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as one JSON object.")
    ] = False,
    connection: ClientOptions = ClientOptions(),
) -> None:
    """Show what an orchestrator has and what it waits for."""
    asyncio.run(_show(orchestrator, connection.security(), as_json))


async def _show(address: str, security: ClientSecurity, as_json: bool) -> None:
    from outrider.client import CallFailed, OutriderClient
    from outrider.errors import PeerUnavailable
    from outrider_cli.screen import show_view
    from outrider_cli.status_table import status_object, status_view

    async with OutriderClient(address, security) as client:
        try:
            status = await client.status()
        except CallFailed as error:
            if error.status == "UNAVAILABLE" and address == ORCHESTRATOR_ADDRESS:
                raise PeerUnavailable(f"{error}; `outrider up` starts one") from None
            raise
    if as_json:
        print(json.dumps(status_object(address, status)))
    else:
        show_view(status_view(address, status))
