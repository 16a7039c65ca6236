"""Help in two forms for commands with many options: -h the common ones, --help all, in groups.

The common options are those in no panel.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

LONG_HELP = {"help_option_names": ["--help"]}
"""The context settings of a command that has a `ShortHelp`."""


def _panel(option: Any) -> str:
    """Return the group in which the help shows an option; empty for a common one."""
    return getattr(option, "rich_help_panel", None) or ""


def _show_short(context: typer.Context, wanted: bool) -> None:
    """Show the help of the command as if it had its common options alone."""
    if not wanted:
        return
    command = copy.copy(context.command)
    command.params = [each for each in context.command.params if not _panel(each)]
    groups = dict.fromkeys(filter(None, map(_panel, context.command.params)))
    command.epilog = f"--help shows all options: also {', '.join(groups)}."
    command.format_help(context, context.make_formatter())
    raise typer.Exit


def help_of(command: Callable[..., None]) -> str:
    """Return a command's docstring with each paragraph on one line, to be wrapped where shown."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


ShortHelp = Annotated[
    bool,
    typer.Option(
        "-h", callback=_show_short, is_eager=True, help="Show these options, without the groups."
    ),
]
"""The last common option of a command."""
