"""Puts the commands together. Their modules import what they need only when they run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from outrider.extensions import load_extensions
from outrider_cli import settings
from outrider_cli.bench.command import bench
from outrider_cli.certs.command import certs
from outrider_cli.chat.command import chat
from outrider_cli.demo.command import demo
from outrider_cli.doctor.command import doctor
from outrider_cli.generate.command import generate
from outrider_cli.health import health
from outrider_cli.help import Command, Group, help_of
from outrider_cli.lookup.command import create, merge, stats
from outrider_cli.plan import plan
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
for command in (
    generate,
    chat,
    demo,
    up,
    status,
    top,
    plan,
    bench,
    health,
    doctor,
    target,
    draft,
    orchestrator,
    certs,
):
    app.command(cls=Command, help=help_of(command))(command)
lookup = typer.Typer(
    cls=Group, no_args_is_help=True, help="Make n-gram caches, and say what they would draft."
)
for command in (create, merge, stats):
    lookup.command(cls=Command, help=help_of(command))(command)
app.add_typer(lookup, name="lookup")
for name, command in load_extensions("outrider.commands").items():
    app.command(name, cls=Command, help=help_of(command))(command)
config = typer.Typer(cls=Group, no_args_is_help=True, help="Look at where options come from.")
config.command(
    "show", cls=Command, context_settings={"ignore_unknown_options": True}, help=help_of(show)
)(show)
app.add_typer(config, name="config")


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
