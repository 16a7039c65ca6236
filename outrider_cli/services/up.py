"""The command that runs the three services on this machine until Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.model_service.config import ModelOptions
from outrider_cli.drafting import DraftingOptions
from outrider_cli.options import (
    ClientOptions,
    HttpOptions,
    JoiningOptions,
    KeepingOptions,
    Prefix,
    ServerOptions,
    SharingOptions,
    arguments,
    spread,
)
from outrider_cli.services.commands import (
    ORCHESTRATOR_ADDRESS,
    ChatTemplateFile,
    Listen,
    PeerTokenFile,
    RequestSeconds,
    StateFolder,
    read_template,
)
from outrider_cli.services.pair import (
    DraftModel,
    TargetModel,
    choose_draft,
    choose_target,
    host_draft,
)

if TYPE_CHECKING:
    from outrider.processes import OnLogLine
    from outrider_cli.services.local import LocalPlan, LocalServices
    from outrider_cli.services.next_steps import NextSteps

_RESTART_SECONDS = 1.0  # s; before a service that ended is started again

FarTarget = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="A target on another machine, in place of --model."),
]
FarDraft = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="A draft on another machine, not --draft-model."),
]

TrustedFile = Annotated[
    Path | None, typer.Option(metavar="PEM", help="Reach other machines by TLS; trust this.")
]


@spread
def up(
    model: TargetModel = None,
    draft_model: DraftModel = None,
    no_draft: Annotated[bool, typer.Option("--no-draft", help="Use the target alone.")] = False,
    own_draft: Annotated[
        bool,
        typer.Option(
            help="Let the target draft in its own process, too: with that model, or its own head."
        ),
    ] = True,
    target: FarTarget = None,
    draft: FarDraft = None,
    tls_ca: TrustedFile = None,
    peer_token_file: PeerTokenFile = None,
    listen: Listen = ORCHESTRATOR_ADDRESS,
    chat_template_file: ChatTemplateFile = None,
    state: StateFolder = None,
    request_timeout: RequestSeconds = 600.0,
    drafting: Annotated[DraftingOptions, Prefix(panel="Speculation")] = DraftingOptions(),
    joining: Annotated[JoiningOptions, Prefix(panel="Speculation")] = JoiningOptions(),
    sharing: Annotated[SharingOptions, Prefix(panel="Speculation")] = SharingOptions(),
    http: Annotated[HttpOptions, Prefix(panel="HTTP")] = HttpOptions(),
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the services' logs.")] = (
        False
    ),
    engine: Annotated[ModelOptions, Prefix(panel="Target")] = ModelOptions(),
    keeping: Annotated[KeepingOptions, Prefix(panel="Kept texts")] = KeepingOptions(),
    draft_engine: Annotated[ModelOptions, Prefix("draft", panel="Draft")] = ModelOptions(),
    server: Annotated[ServerOptions, Prefix(panel="Orchestrator")] = ServerOptions(),
) -> None:
    """Run target, draft and orchestrator here until Ctrl-C.

    Drafts of other machines may dial in, where they are accepted. The target gets the threads, a
    draft of its own what it leaves. A draft that dies is started again.
    """
    from outrider_cli.services.local import HostedModel, LocalPlan

    _check_exclusive(bool(target and model), (draft, draft_model, no_draft))
    # What is wrong is refused before anything is downloaded or started.
    drafting.known()
    http.config(server)
    read_template(chat_template_file)
    own = None if no_draft or draft else choose_draft(model, draft_model)
    groups = (drafting, joining, sharing, http, server)
    words = [word for group in groups for word in arguments(group)]
    words += _options(
        {"tls-ca": tls_ca, "state": state, "chat-template-file": chat_template_file}
        | {"request-timeout": request_timeout}
    )
    plan = LocalPlan(
        target=target or HostedModel(choose_target(model), engine),
        draft=draft or (host_draft(own, draft_engine, engine) if own else None),
        listen=listen,
        orchestrator=tuple(words),
        grace_seconds=server.grace,
        peer_token_file=peer_token_file or server.token_file,
        own_draft=own_draft and not no_draft,
        target_words=tuple(arguments(keeping)),
    )
    asyncio.run(_stay_up(plan, server, http, verbose))


def _options(given: Mapping[str, Path | float | None]) -> Iterator[str]:
    """Yield these options for a process in another folder; None: not given."""
    for name, value in given.items():
        if value is not None:
            yield f"--{name}={value.resolve() if isinstance(value, Path) else value}"


def _check_exclusive(names_two_targets: bool, drafts: Iterable[object]) -> None:
    """Raise BadParameter for options that exclude each other."""
    if names_two_targets:
        raise typer.BadParameter("--target and --model exclude each other")
    if sum(map(bool, drafts)) > 1:
        raise typer.BadParameter("--draft, --draft-model and --no-draft exclude each other")


def _client_of(server: ServerOptions) -> ClientOptions:
    """Return what the orchestrator wants to be shown; its own certificate will do for ours."""
    demanded = server.tls_client_ca is not None
    return ClientOptions(
        token_file=server.token_file,
        tls_ca=server.tls_cert,
        tls_cert=server.tls_cert if demanded else None,
        tls_key=server.tls_key if demanded else None,
    )


async def _stay_up(
    plan: LocalPlan, server: ServerOptions, http: HttpOptions, verbose: bool
) -> None:
    from outrider.processes import no_log
    from outrider_cli.services.local import local_services
    from outrider_cli.services.next_steps import NextSteps, certified_name, from_here

    client = _client_of(server)
    async with local_services(plan, _log_shower() if verbose else no_log) as services:
        address = from_here(await services.start())
        steps = NextSteps(
            address=address,
            http=from_here(await services.http_address()) if http.http else "",
            name=await asyncio.to_thread(certified_name, address, client),
            shown=client,
            key_file=http.http_key_file or server.token_file,
            tokens=server.tokens,
        )
        await services.watch_without_draft(_serve(services, steps))


async def _serve(services: LocalServices, steps: NextSteps) -> None:
    """Say when everything is ready; then bring the draft back whenever it dies."""
    from outrider.client import CallFailed, OutriderClient
    from outrider_cli.generate.execute import wait_for_pair
    from outrider_cli.screen import Progress, note, show_view
    from outrider_cli.status_table import status_view

    try:
        with Progress() as progress:
            security = steps.shown.security()
            async with OutriderClient(steps.address, security, steps.name) as asked:
                # A draft that cannot even load is a mistake; later on it may come and go.
                status = await services.watch(wait_for_pair(asked, progress))
        show_view(status_view(steps.address, status))
    except CallFailed as error:
        # It wants a token of many, say. Those who are meant to call it, can.
        note(f"it runs, but cannot be asked from here: {error}")
    print("\n".join(steps.lines()), flush=True)
    while True:
        if services.draft is None:
            await asyncio.Event().wait()
        assert services.draft is not None
        stopped = await services.draft.end()
        note(f"{stopped}; starting it again")
        await asyncio.sleep(_RESTART_SECONDS)
        await services.restart_draft()


def _log_shower() -> OnLogLine:
    """Return what prints a service's log lines: as the service would where this process runs."""
    from outrider import logs
    from outrider_cli.terminal import visible

    descriptor = sys.stderr.fileno()
    is_terminal = os.isatty(descriptor)

    def show(role: str, line: str) -> None:
        shown = f"{role}: {visible(line)}"
        if is_terminal:
            with suppress(ValueError, AttributeError, LookupError):  # it is not what a service logs
                shown = logs.renderer(descriptor, role)(json.loads(line))
        print(shown, file=sys.stderr, flush=True)

    return show
