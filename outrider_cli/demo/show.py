"""What the demo prints: two texts as they are written, a line about each pair, a table, a verdict.

On a terminal the texts are side by side; elsewhere the one without drafts is enough.
"""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Sequence
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from outrider.client import ModelInfo, Origin
from outrider.speculation import MODEL
from outrider_cli import verdict
from outrider_cli.demo.questions import (
    ROUND_TRIP_MS,
    DemoRequest,
    Row,
    Run,
    parting,
    ratio_of,
    together,
)
from outrider_cli.phrases import plural
from outrider_cli.render import FAINT, STYLES, Words
from outrider_cli.screen import open_console, own_command
from outrider_cli.terminal import visible

_LEGEND = {
    Origin.DRAFTED: "accepted draft",
    Origin.CORRECTED: "correction",
    Origin.BONUS: "bonus token",
}
_FRAMES_PER_SECOND = 12  # redraws of the screen a second
_ROOM = 6  # lines of a terminal that are left to what stands around two long texts
_ENOUGH = 3  # pairs of each request for a verdict without reserve
_NEAR = 0.05  # between the probabilities of two tokens that are called a near-tie


class Show:
    """Prints the demo on a console."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def open(self, model: ModelInfo) -> None:
        """Say who writes and, where there are colours, what they mean."""
        self._console.print(
            f"{model.name}, {plural(model.thread_count, 'thread')}:"
            " each request without and with drafts"
        )
        if self._console.is_terminal:
            line = Text("colours: ")
            for origin, meaning in _LEGEND.items():
                line.append(meaning, STYLES[origin])
                line.append(", ")
            self._console.print(line.append("plain: the target alone"))

    def scene(self, place: str, request: DemoRequest) -> Scene:
        """Return what shows the first pair of a request."""
        asked = f"the same, drafted by a second process, {ROUND_TRIP_MS} ms round trip"
        if not request.is_linked:
            asked = " ".join(request.prompt.split())
        head = f"{place}, {request.name}: {asked}"
        head = textwrap.shorten(head, self._console.width - 1, placeholder=" ...")
        self._console.print(Text(f"\n{head}", "bold"))
        return Scene(self._console)

    def end_of_request(self, row: Row) -> None:
        """Say whether the texts are the same."""
        same = "same text" if row.typical else "cut before there was a text to compare"
        self._console.print(Text(row.near_tie or same, FAINT))

    def close(self, rows: Sequence[Row]) -> None:
        """Print the table, the verdict and what to do next."""
        self._console.print()
        self._console.print(table(rows))
        self._console.print()
        self._console.print(Text(verdict_line(rows), "bold"))
        command = own_command()
        for what, words in (
            ("your model", "chat -m MODEL.gguf"),
            ("page, API", "up -m MODEL.gguf --port 8080"),
            ("2 machines", "draft --model SMALL.gguf --join HOST:50060  # README.md"),
        ):
            self._console.print(Text(f"{what:<12}{command} {words}"), soft_wrap=True)


class Scene:
    """The first run of a request without drafts, then the one with them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._heads = ["without drafts", "with drafts"]
        self._texts = [Text(), Text()]
        self._is_whole = False
        self._live = None
        if console.is_terminal:
            self._live = Live(
                console=console,
                get_renderable=self.side_by_side,
                refresh_per_second=_FRAMES_PER_SECOND,
                redirect_stdout=False,
                redirect_stderr=False,
            )

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._is_whole = True
            self._live.stop()

    def plain(self, words: Words) -> None:
        """Add words that were written without drafts."""
        self._texts[0].append(visible(words.text))
        if not self._live:
            self._console.out(visible(words.text), end="")

    def drafted(self, words: Words) -> None:
        """Add words that were written with drafts."""
        self._texts[1].append(visible(words.text), words.style)

    def finish_plain(self, run: Run) -> None:
        """Say how fast that was."""
        self._heads[0] += f": {_rate(run.rate)} tokens/s"
        if not self._live:
            self._console.print()

    def finish_drafted(self, run: Run) -> None:
        """Say how fast that was."""
        self._heads[1] += f": {_rate(run.rate)} tokens/s"

    def side_by_side(self) -> Table:
        """Return both texts, each under its speed; while they grow, what fits of their ends."""
        width = (self._console.width - 3) // 2
        most = None if self._is_whole else max(1, self._console.height - _ROOM)
        grid = Table.grid(padding=(0, 1))
        for _ in range(2):
            grid.add_column(width=width)
        grid.add_row(*(Text(head, FAINT) for head in self._heads))
        grid.add_row(*(_last_lines(self._console, text, width, most) for text in self._texts))
        return grid


def open_show() -> Show:
    """Return a show on standard output."""
    return Show(open_console())


def _last_lines(console: Console, text: Text, width: int, most: int | None) -> Text:
    """Return the end of a text, so that what is being written can be seen."""
    lines = text.wrap(console, width)
    return Text("\n").join(lines[-most:] if most else lines)


def table(rows: Sequence[Row]) -> Table:
    """Return one line for each request: its pair with the median ratio, and what drafted."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("request", "without", "with drafts", "times", "drafted by", "text"):
        is_number = head in ("without", "with drafts", "times")
        made.add_column(head, justify="right" if is_number else "left", header_style=FAINT)
    for row in rows:
        rates = [f"{_rate(run.rate)} tok/s" for run in row.typical or ()]
        ratio = ratio_of(row.typical) if row.typical else None
        made.add_row(
            row.request.name,
            *(rates or ("n/a", "n/a")),
            f"{ratio:.2f}" if ratio else "n/a",
            _drafted_by(row),
            "other" if parting(row) else "same" if row.typical else "n/a",
        )
    return made


def _drafted_by(row: Row) -> str:
    """Return which sources drafted, the best first, and which share was accepted."""
    if not row.drafted_count:
        return "nothing"
    names = {MODEL: "remote"} if row.request.is_linked else {}
    accepted = row.accepted
    shown = [names.get(name, name) for name, count in accepted.most_common() if count]
    return f"{', '.join(shown) or 'none accepted'} ({accepted.total() / row.drafted_count:.0%})"


def verdict_line(rows: Sequence[Row]) -> str:
    """Return in one sentence what drafts gain over all requests."""
    ratios = together(rows)
    if not ratios:
        return (
            "This machine is too slow or too busy to measure anything so soon: try --seconds 300."
        )
    drafted = any(row.drafted_count for row in rows)
    low, high = (min(ratios), max(ratios)) if len(ratios) > 1 else (None, None)
    said = verdict.sentence(statistics.median(ratios), low, high, drafted)
    if len(ratios) >= _ENOUGH:
        return said
    return f"{said} Few runs on a slow or busy machine; --seconds 300 takes more."


def near_tie(count: int, logarithms: Sequence[float]) -> str:
    """Return where two texts part, and why.

    `logarithms` are of the probabilities of the two best tokens there; none where a text ends.
    """
    where = f"The texts part after {plural(count, 'token')}"
    if not logarithms:
        return f"{where}, where one of them ends."
    first, second = sorted(map(math.exp, logarithms), reverse=True)[:2]
    shown = f"{first:.3f} and {second:.3f}".replace("0.", ".")
    if first - second > _NEAR:
        return f"{where}, where the two best have p {shown}."
    return (
        f"{where}, where the two best have p {shown}: a near-tie, which native numerics decide"
        " by the size of a decode. --numerics exact keeps the texts the same."
    )


def _rate(value: float | None) -> str:
    return f"{value:.0f}" if value else "n/a"
