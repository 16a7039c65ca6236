"""Puts the commands together. Their modules import what they need only when they run."""

from __future__ import annotations

from typing import Annotated

import typer

from outrider.cli.generate import generate
from outrider.cli.services import draft, orchestrator, target
from outrider.cli.status import status

app = typer.Typer(
    name="outrider",
    help="Lossless speculative decoding across machines, on llama.cpp.",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (generate, status, target, draft, orchestrator):
    app.command()(command)


def _tell_version(wanted: bool) -> None:
    if wanted:
        import outrider

        print(f"outrider {outrider.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass
