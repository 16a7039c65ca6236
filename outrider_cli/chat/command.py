"""The command for a chat in the terminal: its options, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outrider.model_service.config import ModelOptions
from outrider_cli.drafting import DraftingOptions
from outrider_cli.generate.command import (
    ONE_SESSION,
    Acceptance,
    Count,
    NoDraft,
    Orchestrator,
    Seed,
    Stop,
)
from outrider_cli.options import ClientOptions, Prefix, SamplingOptions, spread
from outrider_cli.services.pair import (
    DraftModel,
    TargetModel,
    choose_draft,
    choose_target,
    plan_pair,
    refuse_models,
)

_SAMPLING, _SPECULATION = "Sampling", "Speculation"

System = Annotated[
    str, typer.Option(metavar="TEXT", help="The system message, which comes before the chat.")
]
History = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Keep the lines that are typed there, for the next time.",
        show_default="only until the end",
    ),
]


@spread
def chat(
    command_line: typer.Context,
    system: System = "",
    n_predict: Count = -1,
    stop: Stop = None,
    history: History = None,
    model: TargetModel = None,
    draft_model: DraftModel = None,
    no_draft: NoDraft = False,
    orchestrator: Orchestrator = None,
    seed: Seed = -1,
    sampling: Annotated[SamplingOptions, Prefix(panel=_SAMPLING)] = SamplingOptions(),
    drafting: Annotated[DraftingOptions, Prefix(panel=_SPECULATION)] = DraftingOptions(),
    acceptance: Acceptance = None,
    engine: Annotated[ModelOptions, Prefix(panel="Target")] = ONE_SESSION,
    draft_engine: Annotated[ModelOptions, Prefix("draft", panel="Draft")] = ONE_SESSION,
    connection: Annotated[ClientOptions, Prefix(panel="Connection")] = ClientOptions(),
) -> None:
    """Chat with a model; /help in it lists its commands.

    Without --orchestrator, the three services are started for this one chat and stopped after it.
    Lines that are piped in are asked one after the other.
    """
    from outrider import client, messages
    from outrider_cli.chat import session
    from outrider_cli.chat.state import ChatState

    if no_draft and draft_model:
        raise typer.BadParameter("--no-draft excludes --draft-model")
    options = client.Request(
        "",
        token_limit=n_predict,
        **sampling.request(),
        seed=None if seed == -1 else seed,
        stop_sequences=tuple(stop or ()),
        enabled=not no_draft,
        **drafting.known(),
        acceptance=messages.Rule(acceptance) if acceptance else None,
    )
    talk = ChatState(options, system)
    if orchestrator:
        refuse_models(command_line)
        went_well = session.chat_remotely(talk, orchestrator, connection.security(), history)
    else:
        own = None if no_draft else choose_draft(model, draft_model)
        plan = plan_pair(choose_target(model), own, engine, draft_engine)
        went_well = session.chat_locally(talk, plan, history)
    if not went_well:
        raise typer.Exit(1)
