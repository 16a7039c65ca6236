"""Help in two forms for commands with many options: the common ones, and with --help-all all."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

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

SPELLINGS: dict[str, Sequence[str]] = {
    "alias": ("-a",),
    "batch": ("-b", "--batch-size"),
    "cache-type-k": ("-ctk",),
    "cache-type-v": ("-ctv",),
    "ctx": ("-c", "--ctx-size"),
    "draft-ctx": ("-cd", "--ctx-size-draft"),
    "draft-cache-type-k": ("-ctkd", "--cache-type-k-draft", "--spec-draft-type-k"),
    "draft-cache-type-v": ("-ctvd", "--cache-type-v-draft", "--spec-draft-type-v"),
    "draft-model": ("-md", "--model-draft", "--spec-draft-model"),
    "draft-n-gpu-layers": ("-ngld", "--gpu-layers-draft", "--spec-draft-ngl"),
    "draft-threads": ("-td", "--threads-draft", "--spec-draft-threads"),
    "draft-threads-batch": ("-tbd", "--threads-batch-draft", "--spec-draft-threads-batch"),
    "flash-attention": ("-fa", "--flash-attn"),
    "http-key-file": ("--api-key-file",),
    "main-gpu": ("-mg",),
    "n-gpu-layers": ("-ngl", "--gpu-layers"),
    "n-max": ("--draft-max", "--spec-draft-n-max"),
    "n-min": ("--draft-min", "--spec-draft-n-min"),
    "n-predict": ("--predict",),
    "p-min": ("--draft-p-min", "--spec-draft-p-min"),
    "p-split": ("--draft-p-split", "--spec-draft-p-split"),
    "seed": ("-s",),
    "sessions": ("-np", "--parallel"),
    "system": ("-sys", "--system-prompt"),
    "temperature": ("--temp",),
    "tensor-split": ("-ts",),
    "threads": ("-t",),
    "threads-batch": ("-tb",),
}
"""llama.cpp's spellings of options that mean the same here."""

_SPEC_TYPE = "--spec-type"
_TEXT_SOURCES = ("suffix", "copy")
SPEC_TYPES: dict[str, Sequence[str]] = {
    "none": (),
    "draft-simple": ("model",),
    "draft-mtp": ("mtp",),
    "draft-eagle3": ("eagle3",),
    "draft-dflash": ("dflash",),
    "draft-dspark": ("dspark",),
    "ngram-simple": _TEXT_SOURCES,
    "ngram-map-k": _TEXT_SOURCES,
    "ngram-map-k4v": _TEXT_SOURCES,
    "ngram-mod": _TEXT_SOURCES,
    "ngram-cache": ("ngram",),
}
"""What llama-server's --spec-type names, as the drafters that do so here."""

_HTTP_HOST, _HTTP_PORT = "127.0.0.1", "8080"
"""llama-server's own defaults."""


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
        """Take --help-all, and llama-server's --host and --port for --http, and --spec-type."""
        if self._common and "--help-all" in args:
            self._print_help(ctx, ctx.make_formatter(), None)
            raise typer.Exit
        names = {name for parameter in self.params for name in long_flags(parameter)[:1]}
        if "http" in names:
            args = _with_http(args)
        return super().parse_args(ctx, _with_spec_type(args, names))

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
            count = sum(not getattr(each, "hidden", False) for each in self.params)
            shown.epilog = f"--help-all shows all {count} options."
        TyperCommand.format_help(shown, ctx, formatter)


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


def _with_http(args: Sequence[str]) -> list[str]:
    kept, given = [], dict[str, str]()
    words = iter(args)
    for word in words:
        name, is_given, value = word.partition("=")
        if name in ("--host", "--port"):
            given[name] = value if is_given else next(words, "")
        else:
            kept.append(word)
    if given:
        address = f"{given.get('--host', _HTTP_HOST)}:{given.get('--port', _HTTP_PORT)}"
        kept.insert(0, f"--http={address}")
    return kept


def _with_spec_type(args: Sequence[str], names: Collection[str]) -> list[str]:
    """Return words with --spec-type as those of the options that a command has of these names.

    They come last, so that `none` goes before a number of tokens. Raises BadParameter.
    """
    if not {"n-max", "own-draft"}.intersection(names):
        return list(args)
    kept, types = [], list[str]()
    words = iter(args)
    for word in words:
        name, is_given, value = word.partition("=")
        if name == _SPEC_TYPE:
            types += (value if is_given else next(words, "")).split(",")
        else:
            kept.append(word)
    if not types:
        return kept
    if unknown := [each for each in types if each not in SPEC_TYPES]:
        known = ", ".join(SPEC_TYPES)
        raise typer.BadParameter(f"{_SPEC_TYPE}: {unknown[0]!r} is none of {known}")
    drafters = [name for each in types for name in SPEC_TYPES[each]]
    if "n-max" in names:
        kept.append(f"--drafters={','.join(drafters)}" if drafters else "--n-max=0")
    if "own-draft" in names and not any(each.startswith("draft-") for each in types):
        kept.append("--no-own-draft")
    return kept
