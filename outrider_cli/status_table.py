"""What is said of an orchestrator's state, as values: words with styles."""

from __future__ import annotations

from outrider.client import Model, Peer, PeerState, RefusedDraft, Status
from outrider_cli.memories import show_memory
from outrider_cli.numerics import show_kernels, show_layout, show_profile
from outrider_cli.render import Line, Words

_STATE_STYLES = {PeerState.READY: "green", PeerState.REFUSED: "bold red", PeerState.LOST: "red"}


def status_lines(address: str, status: Status) -> list[Line]:
    """Return the state of an orchestrator and its peers."""
    in_flight = _count(status.active_generation_count, "generation") + " in flight"
    stopping = ", stopping" if status.draining else ""
    first = Words(f"orchestrator  {address}  version {status.version}, {in_flight}{stopping}")
    peers = [_peer_line(peer) for peer in status.peers]
    refused = [_refused_line(draft) for draft in status.refused_drafts]
    return [[first], *peers, *refused, [Words(_speculation(status))]]


def _refused_line(draft: RefusedDraft) -> Line:
    model = f"{draft.model_name}: " if draft.model_name else ""
    attempts = _count(draft.attempt_count, "attempt")
    return [
        Words(f"{'draft':<12}  {draft.address}  "),
        Words(f"{'sent away':<10}", _STATE_STYLES[PeerState.REFUSED]),
        Words(f"  {model}{draft.reason} ({attempts}, {draft.since_seconds:.0f} s ago)"),
    ]


def _peer_line(peer: Peer) -> Line:
    state = Words(f"{peer.state.value:<10}", _STATE_STYLES.get(peer.state, "yellow"))
    about = peer.detail or (_describe(peer) if peer.model else "")
    return [Words(f"{peer.role:<12}  {peer.address}  "), state, Words(f"  {about}")]


def _describe(peer: Peer) -> str:
    model = peer.model
    assert model is not None
    costs = model.plain_costs
    numerics = show_profile(
        model.numerics_profile, costs.native_milliseconds, costs.exact_milliseconds
    )
    return (
        f"{model.name} ({model.identity[:8]}), {model.context_token_count} tokens of context, "
        f"{_count(model.session_count, 'session')}, {_count(model.thread_count, 'thread')}, "
        f"numerics {numerics}, round trip {1e3 * peer.round_trip_seconds:.1f} ms"
        f"{show_kernels(model.cpu_kernels)}{show_layout(model.cache_layout)}"
        f"{f', drafts itself with {model.own_draft}' if model.own_draft else ''}"
        f"{_memory(model)}{_decoding(peer)}{_work(peer)}"
    )


def _memory(model: Model) -> str:
    """Return the memory's kind and what that limits."""
    costs = model.snapshot_token_count, model.checkpoint_milliseconds
    shown = show_memory(model.rollback_capability, *costs)
    return f", memory {shown}" if shown else ""


def _decoding(peer: Peer) -> str:
    """Return the share of the time with open streams that a target's engine spent in decodes."""
    if peer.role != "target" or peer.model is None or not peer.model.activity.open_seconds:
        return ""
    activity = peer.model.activity
    return f", {activity.decode_seconds / activity.open_seconds:.0%} of its time in decodes"


def _work(peer: Peer) -> str:
    """Return what a peer does now; of a target only where it writes anything."""
    if peer.role != "draft":
        writes = _count(peer.generation_count, "generation")
        return f", writes {writes}" if peer.generation_count else ""
    joined = ", joined" if peer.joined else ""
    joined += "" if peer.trusted or not peer.joined else ", not for rejection (--trust-drafts)"
    if peer.level != "native":
        joined += f", translates at {peer.level} level ({peer.shared_mass:.0%} shared)"
    rate = f"{peer.tokens_per_second:.0f} tokens/s"
    return f"{joined}, {rate} for {_count(peer.generation_count, 'generation')}"


def _speculation(status: Status) -> str:
    return "speculating" if status.speculating else f"not speculating: {status.reason}"


def waiting_line(status: Status) -> str:
    """Return what an orchestrator waits for before it can do its best."""
    return "; ".join(peer.detail for peer in status.peers if peer.detail) or "waiting"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
