"""The command that shows an orchestrator and its peers."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer


def status(
    orchestrator: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The orchestrator to ask.")
    ] = "127.0.0.1:50060",
) -> None:
    """Show what an orchestrator has and what it waits for."""
    asyncio.run(_show(orchestrator))


async def _show(address: str) -> None:
    from outrider.cli.render import status_lines
    from outrider.cli.screen import open_screen, show_lines
    from outrider.client import OutriderClient

    async with OutriderClient(address) as client:
        show_lines(open_screen(), status_lines(address, await client.status()))
