"""Puts the commands together. Their modules import what they need only when they run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.errors import InvalidConfig
from outrider.extensions import load_extensions
from outrider_cli import settings
from outrider_cli.chat.command import chat
from outrider_cli.demo.command import demo
from outrider_cli.doctor.command import doctor
from outrider_cli.generate.command import generate
from outrider_cli.health_command import health
from outrider_cli.help import Command, Group, help_of
from outrider_cli.hub.command import pair
from outrider_cli.services.commands import draft, orchestrator, target
from outrider_cli.services.up import up
from outrider_cli.show_config import show
from outrider_cli.status import status
from outrider_cli.top import top

app = typer.Typer(
    cls=Group,
    name="outrider",
    help="Lossless speculative decoding across machines, on llama.cpp.",
    epilog="Every option can also be set in the environment and in a file: outrider config show.",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
config = typer.Typer(cls=Group, no_args_is_help=True, help="Look at where options come from.")
config.command(
    "show", cls=Command, context_settings={"ignore_unknown_options": True}, help=help_of(show)
)(show)

EXTENSIONS = "outrider.commands"
"""The group of entry points that are sub-commands: a function for Typer, or a Typer of several."""

_COMMANDS = (
    *(generate, chat, demo, up, status, top, "plan", "bench", "teach", health, doctor, pair),
    *(target, draft, orchestrator, "certs", "lookup"),
)
"""In the order of the help. A name stands for a command that comes by an entry point."""


def _add(name: str, command: Any) -> None:
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    elif isinstance(command, InvalidConfig):
        anything = {"ignore_unknown_options": True, "allow_extra_args": True}
        app.command(
            name, help=f"Not there: {command}", add_help_option=False, context_settings=anything
        )(_refusal(command))
    else:
        app.command(name, cls=Command, help=help_of(command))(command)


def _refusal(error: InvalidConfig) -> Any:
    def refuse(context: typer.Context) -> None:
        raise error

    return refuse


def _add_all() -> None:
    extensions = load_extensions(EXTENSIONS)
    for each in _COMMANDS:
        if isinstance(each, str):
            _add(each, extensions.pop(each, InvalidConfig(each, "is not installed")))
        else:
            _add(each.__name__, each)
    for name, command in {**extensions, "config": config}.items():
        _add(name, command)


_add_all()


def _tell_version(wanted: bool) -> None:
    if wanted:
        import outrider

        print(f"outrider {outrider.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="TOML",
            envvar=settings.FILE_VARIABLE,
            help="A file with values for options, below the environment's.",
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    settings.read_environment(context.command, os.environ)
    if config_file is not None:
        file = settings.SettingsFile(config_file, context.command)
        context.meta["outrider.settings"] = file
        context.default_map = file.default_map()
