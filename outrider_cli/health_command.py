"""The command that asks one service whether it serves, as probes and scripts do."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from outrider_cli.options import ClientOptions, spread


@spread
def health(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The service to ask.")],
    live: Annotated[
        bool, typer.Option("--live", help="Ask whether the process is alive, ready or not.")
    ] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Wait this long.")] = 5.0,
    connection: ClientOptions = ClientOptions(),
) -> None:
    """Say whether a service is ready for work; the exit code is 0 only if it is."""
    from outrider.rpc.health_check import check
    from outrider.rpc.server import LIVENESS

    service = LIVENESS if live else ""
    answer = asyncio.run(check(address, connection.security(), timeout, service))
    print(answer)
    if answer != "serving":
        raise typer.Exit(1)
