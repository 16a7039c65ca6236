"""The commands that run one service each, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

Listen = Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0: any.")]
Reflection = Annotated[
    bool, typer.Option("--reflection/--no-reflection", help="Serve gRPC reflection.")
]
StopOnStdinEnd = Annotated[
    bool, typer.Option("--stop-on-stdin-end", hidden=True, help="Stop with the parent.")
]
ModelPath = Annotated[Path, typer.Option("--model", "-m", metavar="GGUF", help="The model's file.")]
Alias = Annotated[str, typer.Option(help="The name told to others; else the file's name.")]
Threads = Annotated[int, typer.Option(help="Threads of the engine; 0: all that may be used.")]
Context = Annotated[
    int, typer.Option("--ctx", help="Tokens of a session; 0: as trained, at most 4096.")
]
Sessions = Annotated[int, typer.Option(help="Sessions that hold a cache at the same time.")]
Nice = Annotated[int, typer.Option(help="Give way to other processes; 19 most.")]


def target(
    model: ModelPath,
    listen: Listen = "127.0.0.1:50062",
    alias: Alias = "",
    threads: Threads = 0,
    context: Context = 0,
    sessions: Sessions = 4,
    nice: Nice = 0,
    reflection: Reflection = False,
    stop_on_stdin_end: StopOnStdinEnd = False,
) -> None:
    """Run a target service: the model whose text is wanted."""
    from outrider.rpc.run_model import ModelConfig
    from outrider.rpc.server import ServerConfig
    from target_service.config import TargetConfig
    from target_service.main import run

    config = TargetConfig(
        server=ServerConfig(
            listen=listen, reflection=reflection, stop_on_stdin_end=stop_on_stdin_end
        ),
        model=ModelConfig(
            model=model,
            alias=alias,
            threads=threads,
            context=context,
            sessions=sessions,
            nice=nice,
        ),
    )
    _serve(run(config))


def draft(
    model: ModelPath,
    listen: Listen = "127.0.0.1:50061",
    alias: Alias = "",
    threads: Threads = 0,
    context: Context = 0,
    sessions: Sessions = 4,
    nice: Nice = 0,
    reflection: Reflection = False,
    stop_on_stdin_end: StopOnStdinEnd = False,
) -> None:
    """Run a draft service: a small model that guesses ahead."""
    from draft_service.config import DraftConfig
    from draft_service.main import run
    from outrider.rpc.run_model import ModelConfig
    from outrider.rpc.server import ServerConfig

    config = DraftConfig(
        server=ServerConfig(
            listen=listen, reflection=reflection, stop_on_stdin_end=stop_on_stdin_end
        ),
        model=ModelConfig(
            model=model,
            alias=alias,
            threads=threads,
            context=context,
            sessions=sessions,
            nice=nice,
        ),
    )
    _serve(run(config))


def orchestrator(
    listen: Listen = "127.0.0.1:50060",
    target: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The target service.")
    ] = "127.0.0.1:50062",
    draft: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The draft service.")
    ] = "127.0.0.1:50061",
    no_draft: Annotated[bool, typer.Option("--no-draft", help="Use the target alone.")] = False,
    n_draft: Annotated[
        int, typer.Option(help="Draft tokens a round, unless a request says otherwise.")
    ] = 4,
    draft_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Wait this long for a draft, then go on.")
    ] = 1.0,
    request_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Deadline of a request that sets none.")
    ] = 600.0,
    reflection: Reflection = False,
    stop_on_stdin_end: StopOnStdinEnd = False,
) -> None:
    """Run an orchestrator: joins the two, serves the clients."""
    from orchestrator.config import OrchestratorConfig
    from orchestrator.main import run
    from outrider.rpc.server import ServerConfig

    config = OrchestratorConfig(
        server=ServerConfig(
            listen=listen, reflection=reflection, stop_on_stdin_end=stop_on_stdin_end
        ),
        target=target,
        draft="" if no_draft else draft,
        draft_length=n_draft,
        draft_seconds=draft_timeout,
        request_seconds=request_timeout,
    )
    _serve(run(config))


def _serve(service: Coroutine[Any, Any, None]) -> None:
    """Run a service to its end, with logs on stderr."""
    from outrider import logs
    from outrider.errors import InvalidConfig

    logs.start_logging()
    try:
        asyncio.run(service)
    except ModuleNotFoundError as error:
        if error.name != "llama_cpp":
            raise
        message = "hosting one needs llama.cpp: pip install 'outrider[llama]'"
        raise InvalidConfig("model", message) from None
