"""The command `outrider draft-llama-server`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outrider_cli.options import ServerOptions, spread
from outrider_cli.services.commands import DRAFT_ADDRESS, DraftListen, Join, JoinCa, serve, shown


@spread
def draft_llama_server(
    url: Annotated[str, typer.Option(metavar="URL", help="The llama-server: http://HOST:PORT.")],
    key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its --api-key, where it wants one.")
    ] = None,
    listen: DraftListen = None,
    join: Join = "",
    tls_ca: JoinCa = None,
    alias: Annotated[str, typer.Option(help="The name that others see; else its own.")] = "",
    nice: Annotated[int, typer.Option(help="Give way to other processes; 19 most.")] = 0,
    server: ServerOptions = ServerOptions(),
) -> None:
    """Run a draft service whose tokens a llama-server writes, as it is.

    The process holds no model. With --join it shows its own token and certificate to the
    orchestrator.
    """
    from outrider_llama_server.config import LlamaServerConfig
    from outrider_llama_server.main import run

    if listen is None:
        listen = "" if join else DRAFT_ADDRESS
    config = LlamaServerConfig(
        server=server.config(listen),
        url=url,
        key_file=key_file,
        alias=alias,
        nice=nice,
        join=join,
        join_security=shown(server, tls_ca),
    )
    serve("draft", config, run)
