"""Shows an orchestrator's state: a table of what a person asks first, or all of it as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from outrider.client import PeerState, PeerStatus, Status
from outrider.rpc.channel import PLAIN
from outrider_cli.forecasting import too_slow
from outrider_cli.phrases import plural

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

_NOBODY = "not speculating: "
_ROLE_WIDTH = 8  # columns of a role, the blanks after it included
_STATE_STYLES = {PeerState.READY: "green", PeerState.REFUSED: "bold red", PeerState.LOST: "red"}


def status_object(address: str, status: Status) -> dict[str, Any]:
    """Return everything about an orchestrator and its peers, for json.dumps."""
    peers = [{**asdict(peer), "state": peer.state.value} for peer in status.peers]
    return {"address": address, **asdict(status), "peers": peers}


def status_view(address: str, status: Status) -> Group:
    """Return a line about the orchestrator, a table of its peers and who drafts."""
    from rich.console import Group
    from rich.text import Text

    from outrider_cli.screen import FirstThatFits

    in_flight = plural(status.active_generation_count, "generation") + " in flight"
    stopping = ", stopping" if status.draining else ""
    first = f"orchestrator {address} (version {status.version}), {in_flight}{stopping}"
    rows = list(_rows(status))
    peers = FirstThatFits(_table(rows), _list(rows))
    return Group(Text(first), peers, Text(_drafting(status)))


_Row = tuple[str, str, "Text", str]
"""Role, address, state, and what there is to know."""


def _rows(status: Status) -> Iterator[_Row]:
    """Yield a row for each peer, and for each draft that was sent away."""
    from rich.text import Text

    for peer in status.peers:
        state = Text(peer.state.value, _STATE_STYLES.get(peer.state, "yellow"))
        about = peer.detail or ", ".join(_facts(peer))
        yield peer.role, peer.address.removeprefix(PLAIN), state, about
    for each in status.refused_drafts:
        model = f"{each.model_name}: " if each.model_name else ""
        when = f"{plural(each.attempt_count, 'attempt')}, {each.since_seconds:.0f} s ago"
        about = f"{model}{each.reason} ({when})"
        state = Text("sent away", _STATE_STYLES[PeerState.REFUSED])
        yield "draft", each.address, state, about


def _table(rows: Sequence[_Row]) -> Table:
    """Return a line for each row."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    for role, address, state, about in rows:
        table.add_row(role, Text(address), state, Text(about))
    return table


def _list(rows: Sequence[_Row]) -> Group:
    """Return the rows for a narrow terminal: what there is to know stands below each."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    width = max((len(address) for _, address, _, _ in rows), default=0)
    shown: list[Text | Padding] = []
    for role, address, state, about in rows:
        shown.append(Text.assemble(f"{role:<{_ROLE_WIDTH}}{address:<{width}}  ", state))
        shown += [Padding(Text(about), (0, 0, 0, _ROLE_WIDTH))] if about else []
    return Group(*shown)


def _facts(peer: PeerStatus) -> Iterator[str]:
    """Yield its model, how far away it is, and what it does or why it is not used for all."""
    if peer.model is None:
        return
    yield peer.model.name
    yield f"{1e3 * peer.round_trip_seconds:.1f} ms away"
    if peer.model.thread_choice:
        yield peer.model.thread_choice
    if peer.joined and not peer.trusted:
        yield "joined (untrusted)"
    elif peer.level != "native":
        yield f"translates ({peer.shared_mass:.0%} shared)"
    elif peer.generation_count:
        yield f"{'writes' if peer.role == 'target' else 'drafts for'} {peer.generation_count}"


def _drafting(status: Status) -> str:
    """Return who drafts, or why nobody does."""
    sources = f"the text itself ({', '.join(status.text_sources)})" if status.text_sources else ""
    if not status.speculating:
        return f"drafts from {sources}; {status.reason}" if sources else _NOBODY + status.reason
    ready = [peer for peer in status.peers if peer.state is PeerState.READY and peer.model]
    drafts = [peer.model.name for peer in ready if peer.role == "draft" and peer.model]
    is_known = bool(drafts)  # what a token takes, of a draft service alone
    drafts += [peer.model.own_draft for peer in ready if peer.model and peer.model.own_draft]
    names = sorted(set(drafts))
    models = ", ".join(names) if len(names) <= 2 else f"{len(names)} draft models"
    said = f"speculating with {' and '.join(filter(None, (models, sources))) or 'drafts'}"
    slow = too_slow(status.controller) if is_known else ""
    return f"{said}; {slow}" if slow else said


def waiting_line(status: Status) -> str:
    """Return what an orchestrator waits for before it can do its best."""
    return "; ".join(peer.detail for peer in status.peers if peer.detail) or "waiting"
