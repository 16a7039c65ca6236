"""What is wrong with a service that was probed, and how to mend it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from outrider_cli.doctor.checks import (
    Finding,
    Level,
    judge_expiry,
    median_of,
    show_time,
)


class Failure(Enum):
    """Why a service could not be talked to, and what to do about it."""

    REFUSED = "start it there (outrider {role}), or correct the port"
    TIMEOUT = "correct the address; let the firewall pass the port; look at its --listen"
    UNKNOWN_HOST = "correct the host name, or give a numerical address"
    UNREACHABLE = "look at the network between the two machines"
    TOKEN = "--token-file with the token that the service was started with"
    TRUST = "--tls-ca with what signed the service's certificate, and an address that it names"
    OTHER_SERVICE = "correct the address: {role} listens on another port"
    OPTIONS = "correct the option"
    BROKEN = "look at the log of the service"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerModel:
    """The model of a service, as the service or the orchestrator describes it."""

    role: str
    address: str
    name: str
    profile: str
    decode_seconds: float = 0.0  # of one row; 0 where unknown
    round_trip_seconds: float = 0.0  # from the orchestrator; 0 where unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedPeer:
    """What a visit to a service found; with a `failure`, nothing after it is known."""

    role: str
    address: str
    failure: Failure | None = None
    detail: str = ""
    serving: bool = True
    round_trips: tuple[float, ...] = ()  # seconds
    model: PeerModel | None = None
    models: tuple[PeerModel, ...] = ()  # that an orchestrator has
    obstacle: str = ""  # why an orchestrator does not use its draft
    waits: tuple[tuple[str, str, str], ...] = ()  # role, state, detail of peers that are not ready
    version: str = ""
    expiry_seconds: float | None = None  # from now, of its certificate


def judge_peer(peer: ProbedPeer, own_version: str = "") -> list[Finding]:
    """Return whether a service can be used, and how far away it is."""
    place = f"{peer.role} at {peer.address}"
    if peer.failure is not None:
        remedy = peer.failure.value.format(role=peer.role)
        return [Finding("peers", Level.PROBLEM, f"{place}: {peer.detail}", remedy)]
    findings = [_judge_distance(peer, place)]
    if peer.version and own_version and peer.version != own_version:
        message = f"{place} is version {peer.version}, this is {own_version}"
        findings.append(Finding("peers", Level.NOTE, message, "install the same everywhere"))
    if peer.expiry_seconds is not None:
        findings += judge_expiry(f"the certificate of the {place}", peer.expiry_seconds)
    if peer.model is not None and peer.round_trips:
        findings += _judge_link(
            f"this machine and the {place}",
            median_of(peer.round_trips),
            peer.model.decode_seconds if peer.role == "target" else 0.0,
        )
    return findings + (_judge_orchestrator(peer) if peer.role == "orchestrator" else [])


def _judge_distance(peer: ProbedPeer, place: str) -> Finding:
    told = [place]
    if peer.model is not None:
        told.append(f"{peer.model.name}, numerics {peer.model.profile}")
    if peer.round_trips:
        middle, worst = median_of(peer.round_trips), max(peer.round_trips)
        told.append(f"round trip {show_time(middle)}, at worst {show_time(worst)}")
    message = ", ".join(told)
    if peer.serving:
        return Finding("peers", Level.OK, message)
    remedy = "wait until it has loaded its model; its log says how far it is"
    return Finding("peers", Level.NOTE, f"{message}; it is not serving yet", remedy)


def _judge_link(between: str, round_trip: float, decode: float) -> list[Finding]:
    """Return a note when a link costs more than the work behind it."""
    if not 0 < decode < round_trip:
        return []
    message = (
        f"a round trip between {between} takes {show_time(round_trip)}, more than a decode of the "
        f"target, {show_time(decode)}: the link sets the speed"
    )
    remedy = "run the orchestrator beside the target, or draft more per round (--n-draft)"
    return [Finding("peers", Level.NOTE, message, remedy)]


def _judge_orchestrator(peer: ProbedPeer) -> list[Finding]:
    """Return what an orchestrator says of its own peers."""
    findings = []
    for role, state, detail in peer.waits:
        level = Level.PROBLEM if state in ("refused", "lost") else Level.NOTE
        remedy = f"outrider doctor --{role} with its address says more, run beside the orchestrator"
        findings.append(Finding("peers", level, f"its {role} is {state}: {detail}", remedy))
    for model in peer.models:
        trip = model.round_trip_seconds
        distance = f", round trip {show_time(trip)}" if trip else ""
        message = f"its {model.role} at {model.address}, {model.name}, numerics {model.profile}"
        findings.append(Finding("peers", Level.OK, message + distance))
        if model.role == "target":
            between = f"the orchestrator and its target at {model.address}"
            findings += _judge_link(between, trip, model.decode_seconds)
    if peer.waits:
        return findings
    if not peer.obstacle:
        return [*findings, Finding("pair", Level.OK, "the orchestrator uses its draft")]
    if len(peer.models) < 2:
        message = f"the orchestrator works without a draft: {peer.obstacle}"
        return [*findings, Finding("pair", Level.NOTE, message, "start it with --draft HOST:PORT")]
    message = f"the orchestrator refuses its pair: {peer.obstacle}"
    remedy = "take a draft of the target's own family, made with the same tokenizer"
    return [*findings, Finding("pair", Level.PROBLEM, message, remedy)]
