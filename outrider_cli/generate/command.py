"""The command that generates text: its options, and what they mean."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from outrider.model_service.config import ModelOptions
from outrider_cli.drafting import DraftingOptions
from outrider_cli.options import ClientOptions, Prefix, SamplingOptions, spread
from outrider_cli.services.pair import (
    DraftModel,
    TargetModel,
    choose_draft,
    choose_target,
    plan_pair,
    refuse_models,
)

DEFAULT_PROMPT = "def read_config(path):"

ONE_SESSION = ModelOptions(sessions=1)

_SAMPLING, _SPECULATION = "Sampling", "Speculation"

Prompt = Annotated[
    str | None,
    typer.Option(
        "--prompt",
        "-p",
        help="The text to continue. Else standard input, less one final newline, if piped.",
        show_default="some Python",
    ),
]
Count = Annotated[
    int,
    typer.Option(
        "--n-predict",
        "-n",
        help="Tokens to generate at most; -1: until the text ends or the context is full.",
    ),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT", help="End before this text. Repeatable.", rich_help_panel=_SAMPLING
    ),
]
Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        metavar="",
        help="Show what every round did, and all statistics; -vv: both models' candidates too.",
    ),
]
Compare = Annotated[
    bool,
    typer.Option(
        "--compare",
        help="Generate again with and without drafts, by turns, and say whether drafts pay.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Orchestrator = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Ask this one; start nothing here."),
]
NoDraft = Annotated[bool, typer.Option("--no-draft", help="Use the target alone.")]
Seed = Annotated[int, typer.Option(help="-1: a random one.")]
Acceptance = Annotated[
    Literal["match", "shared-noise", "rejection"] | None,
    typer.Option(
        metavar="RULE",
        help="How drafts are judged: match, shared-noise or rejection, which trusts the draft to"
        " send its own probabilities. All keep the target's distribution.",
        show_default="match if greedy, else shared-noise",
        rich_help_panel=_SPECULATION,
    ),
]
SameVocabulary = Annotated[
    bool,
    typer.Option(
        "--same-vocabulary",
        help="Refuse a draft whose tokens are not the target's.",
        rich_help_panel=_SPECULATION,
    ),
]
Rows = Annotated[
    Literal["sampled", "distributions", "logits"] | None,
    typer.Option(
        metavar="FORM",
        help="What the target answers: sampled, distributions or logits.",
        show_default="what the rule needs",
        rich_help_panel=_SPECULATION,
    ),
]
Rollback = Annotated[
    Literal["span", "rpc"] | None,
    typer.Option(
        metavar="MODE",
        help="How the models learn of a rejection: by the next span, or by an rpc.",
        show_default="span",
        rich_help_panel=_SPECULATION,
    ),
]


@spread
def generate(
    command_line: typer.Context,
    prompt: Prompt = None,
    n_predict: Count = 100,
    model: TargetModel = None,
    draft_model: DraftModel = None,
    no_draft: NoDraft = False,
    orchestrator: Orchestrator = None,
    stop: Stop = None,
    seed: Seed = -1,
    sampling: Annotated[SamplingOptions, Prefix(panel=_SAMPLING)] = SamplingOptions(),
    compare: Compare = False,
    verbose: Verbose = 0,
    as_json: Json = False,
    drafting: Annotated[DraftingOptions, Prefix(panel=_SPECULATION)] = DraftingOptions(),
    acceptance: Acceptance = None,
    same_vocabulary: SameVocabulary = False,
    rows: Rows = None,
    rollback: Rollback = None,
    engine: Annotated[ModelOptions, Prefix(panel="Target")] = ONE_SESSION,
    draft_engine: Annotated[ModelOptions, Prefix("draft", panel="Draft")] = ONE_SESSION,
    connection: Annotated[ClientOptions, Prefix(panel="Connection")] = ClientOptions(),
) -> None:
    """Generate text: exactly the target's, sooner.

    Without --orchestrator, the three services are started for this one text and stopped after it.

    outrider generate --model large.gguf --draft-model small.gguf --temperature 0 --verbose

    outrider generate --orchestrator 127.0.0.1:50060 < prompt.txt
    """
    from outrider import client, messages
    from outrider_cli.generate import execute

    _check_draft(no_draft, draft_model, compare)
    request = client.Request(
        read_prompt(prompt),
        token_limit=n_predict,
        **sampling.request(),
        seed=None if seed == -1 else seed,
        stop_sequences=tuple(stop or ()),
        enabled=not no_draft,
        **drafting.known(),
        acceptance=messages.Rule(acceptance) if acceptance else None,
        row_form=messages.Form(rows) if rows else None,
        rollback=client.RollbackMode(rollback) if rollback else None,
        detail=client.Detail(min(max(verbose, as_json), 2)),  # the reports name the sources
    )
    reader = execute.make_reader(str(request.prompt), as_json, verbose)
    task = execute.GenerateTask(request, reader, compare)
    if orchestrator:
        refuse_models(command_line)
        asyncio.run(execute.run_remotely(task, orchestrator, connection.security()))
    else:
        own = None if no_draft else choose_draft(model, draft_model)
        plan = plan_pair(choose_target(model), own, engine, draft_engine, same_vocabulary)
        asyncio.run(execute.run_locally(task, plan))


def _check_draft(no_draft: bool, draft_model: Path | None, compare: bool) -> None:
    """Raise BadParameter for what needs a draft where there is to be none."""
    if no_draft and (draft_model or compare):
        raise typer.BadParameter("--no-draft excludes --draft-model and --compare")


def read_prompt(given: str | None) -> str:
    """Return the prompt given, else what is piped in, else a default."""
    from outrider.errors import InvalidRequest

    if given is not None:
        return given
    if sys.stdin is None or sys.stdin.isatty():
        return DEFAULT_PROMPT
    try:
        piped = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise InvalidRequest("prompt", "standard input is not UTF-8 text") from None
    return piped.removesuffix("\n") or DEFAULT_PROMPT
