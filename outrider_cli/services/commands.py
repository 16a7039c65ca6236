"""The commands that run one service each, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from outrider.model_service.config import ModelOptions
from outrider_cli import rereading
from outrider_cli.drafting import DraftingOptions
from outrider_cli.hub.models import given_file, model_file
from outrider_cli.options import (
    HttpOptions,
    JoiningOptions,
    KeepingOptions,
    Prefix,
    ServerOptions,
    SharingOptions,
    spread,
)

if TYPE_CHECKING:
    from gateway.config import HttpConfig
    from gateway.http_server import HttpServer
    from orchestrator.main import StartGateway
    from orchestrator.service import Orchestrator
    from outrider.rpc.security import ClientSecurity

Made = TypeVar("Made", bound=Any)

TARGET_ADDRESS = "127.0.0.1:50062"
DRAFT_ADDRESS = "127.0.0.1:50061"
ORCHESTRATOR_ADDRESS = "127.0.0.1:50060"

Listen = Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0: any.")]
ChatTemplateFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A jinja2 template for chats; else the target's own."),
]
StateFolder = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Keep jobs here, so that they outlive the process."),
]
JobSeconds = Annotated[float, typer.Option(metavar="SECONDS", help="Keep a job's results so long.")]
RequestSeconds = Annotated[
    float, typer.Option(metavar="SECONDS", help="Deadline of a request that sets none.")
]
PeersCa = Annotated[
    Path | None,
    typer.Option(
        metavar="PEM",
        help="Reach target and draft by TLS, except where the address is plain://HOST:PORT.",
    ),
]
PeerTokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The token that target and draft want.",
        show_default="the one in --token-file",
    ),
]
ModelPath = Annotated[
    Path,
    typer.Option("--model", "-m", metavar="GGUF", help="A file, or hf:ORG/REPO[:QUANT]."),
]

DraftModelPath = Annotated[
    Path | None,
    typer.Option(
        "--model",
        "-m",
        metavar="GGUF",
        help="The model: a file, or hf:ORG/REPO[:QUANT]; none with --drafters alone.",
    ),
]
OwnDraftModel = Annotated[
    Path | None,
    typer.Option(
        metavar="GGUF", help="A small model or a head that drafts in the target's own process."
    ),
]
DraftListen = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Where to listen; port 0: any.",
        show_default=f"{DRAFT_ADDRESS}; with --join nowhere",
    ),
]
Join = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        help="Dial this orchestrator and draft for it, from wherever this is.",
    ),
]
JoinCa = Annotated[Path | None, typer.Option(metavar="PEM", help="Reach it by TLS; trust this.")]
Drafters = Annotated[
    str,
    typer.Option(
        metavar="NAME,...",
        help="Draft from the text itself first: suffix, copy, ngram; lookup: all.",
    ),
]


@spread
def target(
    model: ModelPath,
    draft_model: OwnDraftModel = None,
    own_draft: Annotated[
        bool,
        typer.Option(help="Draft with --draft-model, or else the MTP head in the model's file."),
    ] = True,
    listen: Listen = TARGET_ADDRESS,
    engine: ModelOptions = ModelOptions(),
    draft_engine: Annotated[ModelOptions, Prefix("draft", panel="Own draft")] = ModelOptions(),
    server: ServerOptions = ServerOptions(),
    same_vocabulary: Annotated[
        bool,
        typer.Option("--same-vocabulary", help="Leave out its own draft if that has other tokens."),
    ] = False,
    keeping: Annotated[KeepingOptions, Prefix(panel="Kept texts")] = KeepingOptions(),
) -> None:
    """Run a target service: the model whose text is wanted.

    With --draft-model, or an MTP head in its file, it drafts by itself where no other draft is
    better: in its own process, between two of its decodes, for as many sessions.
    """
    from outrider.kept_rows import HEAD_FILE
    from target_service.config import TargetConfig
    from target_service.main import run

    model, draft_model = model_file("model", model), given_file("draft-model", draft_model)
    taught = keeping.keep_rows / HEAD_FILE if keeping.keep_rows and own_draft else None
    own = replace(
        draft_engine,
        sessions=engine.sessions,
        context=draft_engine.context or engine.context,
        threads=draft_engine.threads or engine.threads,
    )
    config = TargetConfig(
        same_vocabulary=same_vocabulary,
        server=server.config(listen),
        model=replace(engine.config(model), mtp=own_draft and draft_model is None),
        draft=own.config(draft_model, is_draft=True) if draft_model and own_draft else None,
        head=own.config(taught, is_draft=True) if taught else None,
        keeping=keeping.config(),
    )
    serve("target", config, run)


@spread
def draft(
    model: DraftModelPath = None,
    drafters: Drafters = "",
    listen: DraftListen = None,
    join: Join = "",
    tls_ca: JoinCa = None,
    engine: ModelOptions = ModelOptions(),
    server: ServerOptions = ServerOptions(),
) -> None:
    """Run a draft service: a small model that guesses ahead.

    With --drafters lookup and without --model it drafts for any target from what is in its texts.
    With --join it shows its own token and certificate to the orchestrator.
    """
    from draft_service.config import DraftConfig
    from draft_service.local_sources import read_names
    from draft_service.main import run

    if listen is None:
        listen = "" if join else DRAFT_ADDRESS
    model = given_file("model", model)
    config = DraftConfig(
        server=server.config(listen),
        model=engine.config(model, is_draft=True) if model is not None else None,
        drafters=read_names(drafters),
        alias=engine.alias,
        nice=engine.nice,
        join=join,
        join_security=shown(server, tls_ca),
    )
    serve("draft", config, run)


def shown(
    server: ServerOptions, tls_ca: Path | None, token_file: Path | None = None
) -> ClientSecurity:
    """Return what a service shows to those that it dials: a token of theirs, else its own."""
    from outrider.rpc.security import ClientSecurity

    return ClientSecurity(
        token_file=token_file or server.token_file,
        tls_ca=tls_ca,
        # Without TLS to them, the certificate is for its own callers alone.
        tls_cert=server.tls_cert if tls_ca else None,
        tls_key=server.tls_key if tls_ca else None,
    )


@spread
def orchestrator(
    listen: Listen = ORCHESTRATOR_ADDRESS,
    target: Annotated[
        list[str],
        typer.Option(metavar="HOST:PORT", help="The target service; several, of equal weights."),
    ] = [TARGET_ADDRESS],  # noqa: B006 - typer reads it
    draft: Annotated[
        list[str], typer.Option(metavar="HOST:PORT", help="The draft service; several.")
    ] = [DRAFT_ADDRESS],  # noqa: B006
    no_draft: Annotated[bool, typer.Option("--no-draft", help="Use the target alone.")] = False,
    draft_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Wait this long for a draft, then continue.")
    ] = 1.0,
    target_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Leave a target that is stuck for so long.")
    ] = 20.0,
    request_timeout: RequestSeconds = 600.0,
    chat_template_file: ChatTemplateFile = None,
    generations: Annotated[int, typer.Option(help="At most in flight; others are refused.")] = 64,
    jobs: Annotated[int, typer.Option(help="Jobs that run or are kept, at most.")] = 256,
    job_keep: JobSeconds = 600.0,
    state: StateFolder = None,
    tls_ca: PeersCa = None,
    peer_token_file: PeerTokenFile = None,
    drafting: Annotated[DraftingOptions, Prefix(panel="Speculation")] = DraftingOptions(),
    joining: Annotated[JoiningOptions, Prefix(panel="Speculation")] = JoiningOptions(),
    sharing: Annotated[SharingOptions, Prefix(panel="Speculation")] = SharingOptions(),
    http: Annotated[HttpOptions, Prefix(panel="HTTP")] = HttpOptions(),
    server: ServerOptions = ServerOptions(),
) -> None:
    """Run an orchestrator: it joins target and draft, and serves the clients.

    Towards target and draft it uses its own certificate, and its own token or another one.
    """
    from orchestrator.config import OrchestratorConfig
    from orchestrator.main import run
    from outrider.speculation import Speculation

    wanted = http.config(server)
    config = OrchestratorConfig(
        server=server.config(listen),
        peer_security=shown(server, tls_ca, peer_token_file),
        targets=tuple(filter(None, target)),
        drafts=() if no_draft else tuple(filter(None, draft)),
        speculation=Speculation(**drafting.known()),
        draft_seconds=draft_timeout,
        target_seconds=target_timeout,
        request_seconds=request_timeout,
        chat_template=read_template(chat_template_file),
        generations=generations,
        jobs=jobs,
        job_seconds=job_keep,
        state=state,
        gateway=wanted,
        **joining.config(server),
        **sharing.config(),
    )
    serve("orchestrator", config, lambda its: run(its, _gateway(wanted, state)))


def _gateway(wanted: HttpConfig | None, state: Path | None) -> StartGateway | None:
    """Return what starts the gateway, if one is wanted."""
    if wanted is None:
        return None
    config = replace(wanted, state=state)
    from gateway.http_server import HttpServer

    async def start(orchestrator: Orchestrator) -> HttpServer:
        server = HttpServer(config, orchestrator, orchestrator.access)
        await server.start()
        return server

    return start


_TEMPLATE = "chat-template-file"


def read_template(path: Path | None) -> str:
    """Return a template's text; empty without a file. Raises InvalidConfig."""
    from orchestrator.chat.template import ChatTemplate
    from outrider.errors import InvalidConfig, InvalidRequest

    if path is None:
        return ""
    try:
        text = path.read_text(encoding="utf-8")
        ChatTemplate(text)
    except OSError as error:
        raise InvalidConfig(_TEMPLATE, f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidConfig(_TEMPLATE, f"{path} is not UTF-8 text") from None
    except InvalidRequest as error:
        raise InvalidConfig(_TEMPLATE, f"{path}: {error}") from None
    return text


def serve(role: str, config: Made, run: Callable[[Made], Coroutine[Any, Any, None]]) -> None:
    """Run a service to its end, with logs on stderr, and traces where they are wanted.

    Its settings are read again on SIGHUP.
    """
    from outrider import logs, tracing
    from outrider.errors import InvalidConfig
    from outrider.extensions import installing
    from outrider.settings_reload import Settings

    if rereading.takes(config):
        return
    logs.start_logging(config.server.log_level)
    settings = Settings(config, rereading.read)
    config = replace(config, server=replace(config.server, settings=settings))
    try:
        if config.server.traces:
            tracing.start(config.server.traces, f"outrider-{role}")
        asyncio.run(run(config))
    except ModuleNotFoundError as error:
        if error.name != "llama_cpp":
            raise
        message = f"hosting one needs llama.cpp: {installing('llama')}"
        raise InvalidConfig("model", message) from None
    finally:
        tracing.stop()
