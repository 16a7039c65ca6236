"""The command `outrider jsonrpc`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outrider_cli.options import ServerOptions, spread
from outrider_cli.services.commands import ORCHESTRATOR_ADDRESS, Listen, serve, shown


@spread
def jsonrpc(
    listen: Listen = "127.0.0.1:8090",
    orchestrator: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The orchestrator.")
    ] = ORCHESTRATOR_ADDRESS,
    tls_ca: Annotated[
        Path | None, typer.Option(metavar="PEM", help="Reach it by TLS; trust this.")
    ] = None,
    orchestrator_token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The token that it wants, for what no caller asks.",
            show_default="the one in --token-file",
        ),
    ] = None,
    allow_init: Annotated[
        bool,
        typer.Option(
            "--allow-init",
            help="Let init load models here: a caller may name any file of this machine.",
        ),
    ] = False,
    cors: Annotated[
        str, typer.Option(metavar="ORIGIN,...", help="Web pages from there may call; *: all.")
    ] = "",
    server: ServerOptions = ServerOptions(),
) -> None:
    """Answer JSON-RPC at /rpc with the methods of a C++ library, in front of an orchestrator.

    A caller's token is the orchestrator's to judge, too: give both the same --token-file or
    --tokens.
    """
    from gateway.config import HttpConfig
    from outrider_jsonrpc.main import JsonRpcConfig, run

    config = JsonRpcConfig(
        server=server.config(listen),
        http=HttpConfig(
            listen=listen,
            key_file=server.token_file,
            key_option="--token-file",
            tokens=server.tokens,
            allow_remote=server.allow_remote,
            tls_cert=server.tls_cert,
            tls_key=server.tls_key,
            tls_client_ca=server.tls_client_ca,
            cors_origins=tuple(filter(None, cors.split(","))),
            stall_seconds=server.stall_timeout,
        ),
        orchestrator=orchestrator,
        shown=shown(server, tls_ca, orchestrator_token_file),
        allow_init=allow_init,
    )
    serve("jsonrpc", config, run)
