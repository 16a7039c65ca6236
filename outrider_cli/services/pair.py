"""Which two models the commands of one machine use, and how they share it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import outrider
from outrider.model_service.config import ModelOptions
from outrider_cli import settings
from outrider_cli.hub.models import model_file
from outrider_cli.options import flags

if TYPE_CHECKING:
    from outrider_cli.services.local import HostedModel, LocalPlan

ROOT = Path(outrider.__file__).parents[1]
"""The checkout, or the folder that the packages are installed in."""

_IN_A_WHEEL = ROOT / "outrider_models"
_TARGET = "stdlib-target-q8_0.gguf"
BUNDLED = ROOT / "models" if (ROOT / "models" / _TARGET).is_file() else _IN_A_WHEEL
BUNDLED_TARGET = BUNDLED / _TARGET
BUNDLED_DRAFT = BUNDLED / "stdlib-draft-q8_0.gguf"

_GIVES_WAY = 19
"""Nice value of a draft on its target's cores, where both take turns: only what is neither of them
goes before it (docs/decisions/0008)."""

_ENGINE_FLAGS = {word + flag for flag in flags(ModelOptions) for word in ("", "draft-")}

TargetModel = Annotated[
    Path | None,
    typer.Option(
        "--model",
        "-m",
        metavar="GGUF",
        help="The target: a file, or hf:ORG/REPO[:QUANT]. Without --draft-model, drafts come from"
        " what texts repeat.",
        show_default="the bundled pair",
    ),
]
DraftModel = Annotated[
    Path | None, typer.Option(metavar="GGUF", help="The draft, or a head; hf:... too.")
]


def choose_target(model: Path | None) -> Path:
    """Return the target's file: the one given, by path or by name, or the bundled one."""
    return _check_file("model", model or BUNDLED_TARGET)


def choose_draft(model: Path | None, draft_model: Path | None) -> Path | None:
    """Return the draft's file; None where a target of the user's own has none."""
    if draft_model is None and model is not None:
        return None
    return _check_file("draft-model", draft_model or BUNDLED_DRAFT)


def host_draft(model: Path, options: ModelOptions, of_target: ModelOptions) -> HostedModel:
    """Return the draft to host; it takes the target's context unless it has its own.

    It gives way to the target, but not to one on a GPU that it is kept off: that leaves it cores.
    """
    from outrider_cli.services.local import HostedModel

    usual = 0 if options.leaves_gpu_to(of_target) else _GIVES_WAY
    nice = options.nice if options.nice >= 0 else usual
    context = options.context or of_target.context
    return HostedModel(model, replace(options, context=context, nice=nice))


def plan_pair(
    target: Path,
    draft: Path | None,
    engine: ModelOptions,
    draft_engine: ModelOptions,
    same_vocabulary: bool = False,
) -> LocalPlan:
    """Return what to start for one user of a pair; no draft for the target alone.

    With `same_vocabulary` a draft whose ids are not the target's is refused.
    """
    from outrider_cli.services.local import HostedModel, LocalPlan

    return LocalPlan(
        target=HostedModel(target, engine),
        draft=host_draft(draft, draft_engine, engine) if draft else None,
        # One user at a terminal: Ctrl-C is the deadline.
        orchestrator=(
            *("--request-timeout", "1000000"),
            *(("--same-vocabulary",) if same_vocabulary else ()),
        ),
    )


def refuse_models(command_line: typer.Context) -> None:
    """Raise BadParameter for options of models beside --orchestrator, which has its own."""
    ours = settings.typed(command_line) & {
        *("model", "draft-model", "same-vocabulary"),
        *_ENGINE_FLAGS,
    }
    if ours:
        raise typer.BadParameter(f"--orchestrator excludes --{min(ours)}")


def _check_file(option: str, path: Path) -> Path:
    """Return the path of a model's file, or refuse it before anything is started."""
    from outrider.errors import InvalidConfig

    path = model_file(option, path)
    if path.is_dir():
        raise InvalidConfig(option, f"{path} is a folder, not a GGUF file")
    if not path.is_file():
        hint = ": this install has no bundled models" if BUNDLED in path.parents else ""
        raise InvalidConfig(option, f"there is no file {path}{hint}")
    return path
