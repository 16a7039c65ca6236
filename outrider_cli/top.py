"""The command that shows an orchestrator live: its targets, drafts, generations and rates."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from outrider_cli.options import ClientOptions, spread
from outrider_cli.services.commands import ORCHESTRATOR_ADDRESS

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table
    from rich.text import Text

    from outrider.client import OutriderClient, PeerStatus, Status
    from outrider_cli.screen import FirstThatFits

_MOST_GENERATIONS = 20  # generations that are listed
_STYLES = {"ready": "green", "loading": "yellow", "connecting": "yellow"}

_Row: TypeAlias = "tuple[str, Text, str, *tuple[str, ...]]"
"""Address, state and model of a peer, and its numbers."""


@spread
def top(
    orchestrator: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The orchestrator to watch.")
    ] = ORCHESTRATOR_ADDRESS,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", help="Between two looks.", min=0.1, max=3600.0)
    ] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one frame, of two looks, and end.")
    ] = False,
    connection: ClientOptions = ClientOptions(),
) -> None:
    """Watch an orchestrator live, until Ctrl-C."""
    import contextlib

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_watch(orchestrator, connection, interval, once))


async def _watch(address: str, connection: ClientOptions, interval: float, once: bool) -> None:
    from outrider.client import OutriderClient
    from outrider_cli.console import SafeConsole

    console = SafeConsole()
    async with OutriderClient(address, connection.security()) as client:
        view = TopView(address)
        if once:
            view.note(await client.status(), time.monotonic())
            await asyncio.sleep(interval)
            view.note(await client.status(), time.monotonic())
            console.print(view.frame())
        else:
            await _watch_live(client, view, console, interval)


async def _watch_live(
    client: OutriderClient, view: TopView, console: Console, interval: float
) -> None:
    from rich.live import Live

    from outrider.client import CallFailed

    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            try:
                view.note(await client.status(), time.monotonic())
            except CallFailed as error:  # it may come back
                view.lose(str(error))
            live.update(view.frame(), refresh=True)
            await asyncio.sleep(interval)


class TopView:
    """What is shown of an orchestrator, by its two newest states."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._newest: tuple[Status, float] | None = None  # and when it was asked for
        self._before: tuple[Status, float] | None = None
        self._trouble = ""

    def note(self, status: Status, now: float) -> None:
        """Take in a state."""
        self._before, self._newest, self._trouble = self._newest, (status, now), ""

    def lose(self, why: str) -> None:
        """Take in that there is none."""
        self._before = self._newest = None
        self._trouble = why

    def frame(self) -> Group:
        """Return what is shown now."""
        from rich.console import Group
        from rich.text import Text

        if self._newest is None:
            return Group(Text(f"{self._address}  {self._trouble or 'asking'}", style="red"))
        status, _ = self._newest
        return Group(
            self._head(status),
            Text(""),
            self._targets(status),
            Text(""),
            self._drafts(status),
            Text(""),
            _generations(status),
            *_troubles(status),
        )

    def _rate(self, now: float, before: float) -> float | None:
        """Return what a count grew by in a second; None where nothing is known."""
        if self._newest is None or self._before is None:
            return None
        seconds = self._newest[1] - self._before[1]
        # Of an orchestrator that was started again, counts begin anew.
        return (now - before) / seconds if seconds > 0 and now >= before else None

    def _head(self, status: Status) -> Group:
        from rich.console import Group
        from rich.text import Text

        before = self._before[0].generated_token_count if self._before else 0
        rate = self._rate(status.generated_token_count, before)
        at_targets = sum(p.generation_count for p in status.peers if p.role == "target")
        waiting = max(0, status.active_generation_count - at_targets)
        state = "stopping" if status.draining else status.reason or "speculating"
        acceptance = status.controller.acceptance
        return Group(
            Text(f"{self._address}  version {status.version}  {state}", style="bold"),
            Text(
                f"{_number(rate)} tokens/s   {status.active_generation_count} in flight   "
                f"{waiting} waiting   jobs {status.job_count}   "
                f"acceptance {acceptance:.0%}   {status.generated_token_count} tokens so far"
            ),
        )

    def _targets(self, status: Status) -> FirstThatFits:
        rows: list[_Row] = []
        for peer in status.peers:
            if peer.role != "target":
                continue
            its = peer.model
            room = f"{its.activity.open_session_count}/{its.session_count}" if its else ""
            numbers = (str(peer.generation_count), room, self._busy(peer), _trip(peer))
            rows.append((*_named(peer), *numbers))
        return _peers(("target", "state", "model", "texts", "open", "busy", "round trip"), rows)

    def _busy(self, peer: PeerStatus) -> str:
        """Return the share of the time with open streams that went into decodes since before."""
        if peer.model is None:
            return ""
        now = peer.model.activity
        before = None
        for each in self._before[0].peers if self._before else ():
            if (each.role, each.address) == (peer.role, peer.address) and each.model is not None:
                before = each.model.activity
        decoding, opened = now.decode_seconds, now.open_seconds
        if before is not None and opened > before.open_seconds:
            decoding, opened = decoding - before.decode_seconds, opened - before.open_seconds
        return f"{decoding / opened:.0%}" if opened > 0 else ""

    def _drafts(self, status: Status) -> FirstThatFits:
        from rich.text import Text

        rows: list[_Row] = []
        for peer in status.peers:
            if peer.role == "draft":
                how = "joined" if peer.joined else ""
                rate = f"{peer.tokens_per_second:.0f}" if peer.model else ""
                numbers = (str(peer.generation_count), rate, how, _trip(peer))
                rows.append((*_named(peer), *numbers))
        for each in status.refused_drafts:
            away = (each.address, Text("sent away", "red"), each.model_name)
            rows.append((*away, "", "", "", ""))
        return _peers(("draft", "state", "model", "texts", "tokens/s", "", "round trip"), rows)


def _generations(status: Status) -> Table:
    table = _table("in flight since", "prompt", "tokens", "tokens/s", "drafts")
    for each in status.generations[:_MOST_GENERATIONS]:
        rate = each.token_count / each.age_seconds if each.age_seconds > 0 else None
        table.add_row(
            f"{each.age_seconds:.1f} s",
            str(each.prompt_token_count or ""),
            str(each.token_count),
            _number(rate),
            "yes" if each.speculates else "no",
        )
    left = status.active_generation_count - len(status.generations[:_MOST_GENERATIONS])
    if left > 0:
        table.add_row(f"and {left} more")
    return table


def _troubles(status: Status) -> list[Text]:
    """Return what is wrong with peers, a line each."""
    from rich.text import Text

    said = [(each.address, each.detail) for each in status.peers if each.detail]
    said += [(each.address, each.reason) for each in status.refused_drafts]
    lines = [Text(f"{address}: {why}", style="yellow") for address, why in said]
    return [Text(""), *lines] if lines else []


def _peers(names: Sequence[str], rows: Sequence[_Row]) -> FirstThatFits:
    """Return a table of peers; where it is too wide, each model stands below its address."""
    from outrider_cli.screen import FirstThatFits

    wide, narrow = _table(*names), _table(*names[:2], *names[3:])
    for address, state, model, *others in rows:
        wide.add_row(address, state, model, *others)
        narrow.add_row(f"{address}\n  {model}" if model else address, state, *others)
    return FirstThatFits(wide, narrow)


def _table(*names: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", expand=False)
    words = {"target", "draft", "state", "model", "", "drafts", "in flight since"}
    for name in names:
        table.add_column(name, justify="left" if name in words else "right", no_wrap=True)
    return table


def _named(peer: PeerStatus) -> tuple[str, Text, str]:
    from rich.text import Text

    state = peer.state.value
    shown = Text(state, _STYLES.get(state, "red"))
    return peer.address, shown, peer.model.name if peer.model else ""


def _trip(peer: PeerStatus) -> str:
    return f"{1e3 * peer.round_trip_seconds:.1f} ms" if peer.round_trip_seconds else ""


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 10 else f"{value:.1f}"
