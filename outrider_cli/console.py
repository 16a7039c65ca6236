"""Rich's console, on which a text is shown and never obeyed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from outrider_cli.terminal import CONTROLS

_DROPPED = dict.fromkeys(CONTROLS)


class SafeConsole(Console):
    """Drops control characters of texts, which have no width, and reads no markup in them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield what a console writes; the terminal's orders in it are rich's own."""
        for segment in super().render(renderable, options):
            own = segment.control is not None
            yield segment if own else segment._replace(text=segment.text.translate(_DROPPED))
