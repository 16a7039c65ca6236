"""Help in two forms for commands with many options: the common ones, and with --help-all all."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from outrider.model_service.config import ModelOptions
from outrider_cli.llama_options import SPELLINGS
from outrider_cli.llama_words import our_words
from outrider_cli.options import flags

_MODELS = ("model", "draft-model")
_MEMORY = ("n-gpu-layers", "ctx", "sessions", "threads", "flash-attention")
_LISTENING = ("listen", "allow-remote", "token-file")
_TEXT = ("n-predict", "temperature", "seed")

COMMON: dict[str, dict[str, Sequence[str]]] = {
    "generate": {
        "Models": (*_MODELS, "no-draft", "orchestrator"),
        "Memory and threads": ("n-gpu-layers", "ctx", "threads"),
        "Text": ("prompt", *_TEXT),
        "Output": ("compare", "verbose", "json"),
    },
    "chat": {
        "Models": (*_MODELS, "no-draft", "orchestrator"),
        "Memory and threads": ("n-gpu-layers", "ctx", "threads"),
        "Text": ("system", *_TEXT, "history"),
    },
    "up": {
        "Models": _MODELS,
        "Memory and threads": _MEMORY,
        "Serving": ("http", *_LISTENING),
        "Drafting": ("no-draft", "n-draft"),
    },
    "target": {
        "Models": _MODELS,
        "Memory and threads": _MEMORY,
        "Serving": (*_LISTENING, "tls-cert", "tls-key"),
    },
    "draft": {
        "Models": ("model", "drafters"),
        "Memory and threads": ("n-gpu-layers", "ctx", "sessions", "threads"),
        "Joining": ("join", "token-file", "tls-ca"),
        "Serving": ("listen", "allow-remote"),
    },
    "orchestrator": {
        "Target and drafts": ("target", "draft", "no-draft", "accept-drafts"),
        "Serving": ("http", *_LISTENING, "tls-cert", "tls-key"),
        "Drafting": ("n-draft",),
    },
    "doctor": {
        "Models": _MODELS,
        "Services": ("orchestrator", "target", "draft", "token-file", "tls-ca"),
        "Memory and threads": ("n-gpu-layers", "ctx", "threads"),
        "Output": ("json",),
    },
}
"""The options that the short help of a command shows, by groups. Other packages add their own."""

_UNLISTED = {f"draft-{each}" for each in flags(ModelOptions)} - SPELLINGS.keys()
"""Engine options of a draft that no help shows: llama.cpp has none of them either."""

_OF_DRAFT = (
    "Every engine option of `outrider draft` is here, too: --draft-NAME, or [draft] in the file."
)


def help_of(command: Callable[..., None]) -> str:
    """Return a command's docstring with each paragraph on one line, to be wrapped where shown."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def long_flags(parameter: Any) -> list[str]:
    """Return the names of an option, ours first; of an argument none."""
    flags = [flag for flag in parameter.opts if flag.startswith("--")]
    return [flag.removeprefix("--") for flag in flags]


class _PlainFlags:
    """Shows no type for options that take no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in params:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return params


class Group(_PlainFlags, TyperGroup):
    """Several commands."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Take `serve` for `up`, as vLLM, ollama and llama.cpp's own command have it."""
        name, *others = args
        return super().resolve_command(ctx, ["up" if name == "serve" else name, *others])


class Command(_PlainFlags, TyperCommand):
    """A command that takes llama.cpp's spellings, and has a short help if its options are many."""

    def __init__(self, name: str | None, **settings: Any) -> None:
        super().__init__(name, **settings)
        taken = {flag for parameter in self.params for flag in parameter.opts}
        for parameter in self.params:
            for flag in long_flags(parameter)[:1]:
                parameter.opts += [each for each in SPELLINGS.get(flag, ()) if each not in taken]
        self._common = COMMON.get(name or "", {})

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Take --help-all, and options as llama.cpp has them."""
        if self._common and "--help-all" in args:
            self._print_help(ctx, ctx.make_formatter(), None)
            raise typer.Exit
        return super().parse_args(ctx, our_words(args, self.params))

    def format_help(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Print the short help, if there is one."""
        self._print_help(ctx, formatter, dict(self._groups()) if self._common else None)

    def _groups(self) -> Iterator[tuple[str, str]]:
        """Yield option and group, in the order of the short help."""
        for group, names in self._common.items():
            for name in names:
                yield name, group

    def _print_help(self, ctx: Any, formatter: Any, groups: dict[str, str] | None) -> None:
        shown = copy.copy(self)
        params: list[Any] = [_shown(parameter) for parameter in self.params]
        shown.params = params
        if groups is not None:
            known = {name: each for each in params for name in long_flags(each)[:1]}
            for name, group in groups.items():
                known[name].rich_help_panel = group
            shown.params = [known[name] for name in groups]
            shown.add_help_option = False
            count = sum(_is_listed(each) for each in self.params)
            shown.epilog = f"--help-all shows {count} options."
        elif not all(map(_is_listed, self.params)):
            shown.params = [
                one for one, own in zip(params, self.params, strict=True) if _is_listed(own)
            ]
            shown.epilog = _OF_DRAFT
        TyperCommand.format_help(shown, ctx, formatter)


def _is_listed(parameter: Any) -> bool:
    """Return whether the long help has a row for an option."""
    hidden = getattr(parameter, "hidden", False)
    return not hidden and _UNLISTED.isdisjoint(long_flags(parameter)[:1])


def _shown(parameter: Any) -> Any:
    """Return an option as the help shows it: of its long names ours alone, no second column."""
    shown = copy.copy(parameter)
    if no := getattr(parameter, "secondary_opts", ()):
        shown.secondary_opts, shown.help = [], f"{parameter.help} Or {no[0]}."
        if parameter.default is not None:
            shown.show_default = (parameter.opts if parameter.default else no)[0].lstrip("-")
    if ours := long_flags(parameter)[:1]:
        shown.opts = [flag for flag in parameter.opts if flag[2:] in ours or flag[:2] != "--"]
    return shown
