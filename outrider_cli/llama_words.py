"""Reads a command line that is written for llama.cpp, before click reads it as ours."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import typer

from outrider_cli.llama_options import FORMS, SPEC_TYPES, refusals

_RUNS_SOMETHING = {"n-gpu-layers", "http"}
"""Options of the commands that stand for a program of llama.cpp: of a model, or of a server."""

_SPEC_TYPE = "--spec-type"
_HOST, _PORT = "--host", "--port"
_HTTP_HOST, _HTTP_PORT = "127.0.0.1", "8080"
"""llama-server's own defaults."""

_LAYERS = ("--n-gpu-layers", "--draft-n-gpu-layers")
_ALL_LAYERS = (("all",), ("auto",))  # of -ngl; -1 here


@dataclass(frozen=True, slots=True)
class _Typed:
    """What was typed for one option, or a word that is none: then the name is empty."""

    words: tuple[str, ...]
    name: str = ""
    value: str = ""


def our_words(args: Sequence[str], params: Sequence[Any]) -> list[str]:
    """Return a command line with llama.cpp's options as those that a command has.

    Raises BadParameter for one that has no counterpart.
    """
    ours = {flag: each for each in params for flag in (*each.opts, *each.secondary_opts)}
    names = {flag.removeprefix("--") for flag in ours}
    end = list(args).index("--") if "--" in args else len(args)
    typed, kept = list(_typed(args[:end], ours)), list[str]()
    for each in typed:
        if each.name in ours or not each.name:
            kept += each.words
        elif (form := FORMS.get(each.name)) and form[0] in names:
            kept.append(f"--{form[0]}={form[1].format(each.value)}")
        elif not _stands_for_others(each.name, names):
            _refuse(each.name, names)
            kept += each.words
    # Last, so that `none` of --spec-type goes before a number of tokens.
    return [*_address(typed, names), *kept, *_drafters(typed, names), *args[end:]]


def _typed(args: Sequence[str], ours: Mapping[str, Any]) -> Iterator[_Typed]:
    """Yield what was typed, each option with its value."""
    words = iter(args)
    for word in words:
        name, is_given, value = word.partition("=")
        if not word.startswith("-"):
            yield _Typed((word,))
        elif is_given or not _takes_value(name, ours):
            yield _Typed((word,), name, value)
        else:
            yield _with_value(name, tuple(islice(words, 1)), ours)


def _with_value(name: str, value: tuple[str, ...], ours: Mapping[str, Any]) -> _Typed:
    """Return an option with the word after it, if there is one."""
    is_layers = name in ours and any(each in ours[name].opts for each in _LAYERS)
    value = ("-1",) if is_layers and value in _ALL_LAYERS else value
    return _Typed((name, *value), name, "".join(value))


def _takes_value(name: str, ours: Mapping[str, Any]) -> bool:
    if name in ours:
        return not (getattr(ours[name], "is_flag", False) or getattr(ours[name], "count", False))
    return name in (_HOST, _PORT, _SPEC_TYPE) or "{}" in FORMS.get(name, ("", ""))[1]


def _stands_for_others(name: str, names: Collection[str]) -> bool:
    """Return whether `_address` or `_drafters` says in our words what an option says."""
    if name == _SPEC_TYPE:
        return "n-max" in names or "own-draft" in names
    return name in (_HOST, _PORT) and "http" in names


def _refuse(name: str, names: Collection[str]) -> None:
    """Raise BadParameter for an option of llama.cpp that has no counterpart."""
    if _RUNS_SOMETHING.intersection(names) and name in refusals():
        raise typer.BadParameter(refusals()[name])


def _address(typed: Sequence[_Typed], names: Collection[str]) -> list[str]:
    """Return llama-server's --host and --port as --http."""
    given = {each.name: each.value for each in typed if each.name in (_HOST, _PORT)}
    if not given or "http" not in names:
        return []
    return [f"--http={given.get(_HOST, _HTTP_HOST)}:{given.get(_PORT, _HTTP_PORT)}"]


def _drafters(typed: Sequence[_Typed], names: Collection[str]) -> list[str]:
    """Return --spec-type as options that a command has. Raises BadParameter."""
    types = [one for each in typed if each.name == _SPEC_TYPE for one in each.value.split(",")]
    if not types:
        return []
    if unknown := [each for each in types if each not in SPEC_TYPES]:
        known = ", ".join(SPEC_TYPES)
        raise typer.BadParameter(f"{_SPEC_TYPE}: {unknown[0]!r} is none of {known}")
    drafters = [name for each in types for name in SPEC_TYPES[each]]
    words = []
    if "n-max" in names:
        words.append(f"--drafters={','.join(drafters)}" if drafters else "--n-max=0")
    if "own-draft" in names and not any(each.startswith("draft-") for each in types):
        words.append("--no-own-draft")
    return words
