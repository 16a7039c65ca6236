"""The command that generates text: its options, and what they mean."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

import outrider
from outrider.cli.local import LocalModels

DEFAULT_PROMPT = "def read_config(path):"
BUNDLED = Path(outrider.__file__).parents[1] / "models"
BUNDLED_TARGET = BUNDLED / "stdlib-target-q8_0.gguf"
BUNDLED_DRAFT = BUNDLED / "stdlib-draft-2m-q8_0.gguf"

_MODELS, _SAMPLING, _SPECULATION = "Models", "Sampling", "Speculation"

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
    list[str] | None, typer.Option(metavar="TEXT", help="End before this text. Repeatable.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Orchestrator = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="Ask this one; start nothing here.", rich_help_panel=_MODELS
    ),
]
TargetModel = Annotated[
    Path | None,
    typer.Option(
        "--model",
        "-m",
        metavar="GGUF",
        help="The target. Without --draft-model it drafts for itself.",
        show_default="the bundled pair",
        rich_help_panel=_MODELS,
    ),
]
DraftModel = Annotated[
    Path | None, typer.Option(metavar="GGUF", help="The draft.", rich_help_panel=_MODELS)
]
NoDraft = Annotated[
    bool, typer.Option("--no-draft", help="Use the target alone.", rich_help_panel=_MODELS)
]
Threads = Annotated[
    int, typer.Option(help="Threads of the target; 0: all.", rich_help_panel=_MODELS)
]
DraftThreads = Annotated[
    int, typer.Option(help="Threads of the draft; 0: all.", rich_help_panel=_MODELS)
]
Context = Annotated[
    int,
    typer.Option(
        "--ctx", help="Tokens of context; 0: as trained, at most 4096.", rich_help_panel=_MODELS
    ),
]
Temperature = Annotated[float, typer.Option(help="0: greedy.", rich_help_panel=_SAMPLING)]
TopK = Annotated[int, typer.Option(help="0: off.", rich_help_panel=_SAMPLING)]
TopP = Annotated[float, typer.Option(help="1: off.", rich_help_panel=_SAMPLING)]
MinP = Annotated[float, typer.Option(help="0: off.", rich_help_panel=_SAMPLING)]
Seed = Annotated[int, typer.Option(help="-1: a random one.", rich_help_panel=_SAMPLING)]
DraftLength = Annotated[
    int | None,
    typer.Option(
        "--n-draft",
        help="Draft tokens per round, 0 to 64.",
        show_default="4",
        rich_help_panel=_SPECULATION,
    ),
]
Acceptance = Annotated[
    Literal["match", "shared-noise", "rejection"] | None,
    typer.Option(
        metavar="RULE",
        help="How drafts are judged: match, shared-noise or rejection. None changes the law.",
        show_default="match if greedy, else shared-noise",
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


def generate(
    prompt: Prompt = None,
    n_predict: Count = 100,
    stop: Stop = None,
    as_json: Json = False,
    orchestrator: Orchestrator = None,
    model: TargetModel = None,
    draft_model: DraftModel = None,
    no_draft: NoDraft = False,
    threads: Threads = 0,
    draft_threads: DraftThreads = 1,
    context: Context = 0,
    temperature: Temperature = 0.8,
    top_k: TopK = 40,
    top_p: TopP = 0.95,
    min_p: MinP = 0.05,
    seed: Seed = -1,
    n_draft: DraftLength = None,
    acceptance: Acceptance = None,
    rows: Rows = None,
    rollback: Rollback = None,
) -> None:
    """Generate text: exactly the target's, sooner.

    Without --orchestrator, the three services are started for this one text and stopped after it.
    """
    from outrider import client, messages
    from outrider.cli import completion, screen
    from outrider.sampling import SamplingParameters

    if no_draft and draft_model:
        raise typer.BadParameter("--no-draft and --draft-model exclude each other")
    options = client.GenerateOptions(
        token_limit=n_predict,
        sampling=SamplingParameters(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p),
        seed=None if seed == -1 else seed,
        stop_sequences=tuple(stop or ()),
        speculate=not no_draft,
        draft_length=n_draft,
        acceptance=messages.Rule(acceptance) if acceptance else None,
        rows=messages.Form(rows) if rows else None,
        rollback=client.Rollback(rollback) if rollback else None,
    )
    text = read_prompt(prompt)
    reader = (
        completion.JsonReader() if as_json else completion.TextReader(screen.open_screen(), text)
    )
    order = completion.Order(text, options, reader)
    if orchestrator:
        if model or draft_model or (threads, draft_threads, context) != (0, 1, 0):
            raise typer.BadParameter("--orchestrator excludes models, threads and --ctx of our own")
        asyncio.run(completion.run_remotely(order, orchestrator))
        return
    models = LocalModels(
        target=choose_target(model),
        draft=None if no_draft else choose_draft(model, draft_model),
        threads=threads,
        draft_threads=draft_threads,
        context=context,
    )
    asyncio.run(completion.run_locally(order, models))


def choose_target(model: Path | None) -> Path:
    """Return the target's file: the one given, or the bundled one."""
    return _check_file("model", model or BUNDLED_TARGET)


def choose_draft(model: Path | None, draft_model: Path | None) -> Path:
    """Return the draft's file: a target of the user's own is its own draft."""
    return _check_file("draft-model", draft_model or model or BUNDLED_DRAFT)


def _check_file(option: str, path: Path) -> Path:
    """Return the path, or refuse it before anything is started."""
    from outrider.errors import InvalidConfig

    if not path.is_file():
        hint = ": this install has no bundled models" if BUNDLED in path.parents else ""
        raise InvalidConfig(option, f"there is no file {path}{hint}")
    return path


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
