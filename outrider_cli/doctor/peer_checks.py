"""What is wrong with a service that was probed, and how to mend it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from orchestrator.chat.template import ChatTemplate
from outrider.descriptions import own_source, rollback_kind
from outrider.errors import InvalidRequest
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider_cli.doctor.checks import (
    Finding,
    Severity,
    judge_expiry,
    median_of,
)
from outrider_cli.forecasting import LIKELY, on_one_machine, reach
from outrider_cli.phrases import (
    show_kernels,
    show_layout,
    show_memory,
    show_profile,
    show_size,
    show_time,
)

_HERE = ("127.", "localhost:", "[::1]:")  # where addresses begin that are on their own machine


class CallFailure(Enum):
    """Why a service could not be talked to, and what to do about it."""

    REFUSED = "start it there (outrider {role}), or correct the port"
    TIMEOUT = "correct the address; let the firewall pass the port; look at its --listen"
    UNKNOWN_HOST = "correct the host name, or give a numerical address"
    UNREACHABLE = "look at the network between the two machines"
    TOKEN = "--token-file with the token that the service was started with"
    TRUST = "--tls-ca with what signed the service's certificate, and an address that it names"
    EXPIRED = (
        "have a new certificate issued for it, and start it again; or set this machine's clock"
    )
    NOT_YET = "set the clock of this machine, or of the one that issued the certificate"
    OTHER_SERVICE = "correct the address: {role} listens on another port"
    OPTIONS = "correct the option"
    BROKEN = "look at the log of the service"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedPeer:
    """What a probe of a service found; with a `failure`, nothing after it is known."""

    role: str
    address: str
    failure: CallFailure | None = None
    detail: str = ""
    serving: bool = True
    round_trips: tuple[float, ...] = ()  # seconds
    expiry_seconds: float | None = None  # from now, of its certificate
    model: common.GetModelResponse | None = None  # what a model service says
    status: messages.GetStatusResponse | None = None  # what an orchestrator says


def judge_peer(peer: ProbedPeer, own_version: str = "") -> list[Finding]:
    """Return whether a service can be used, and how far away it is."""
    place = f"{peer.role} at {peer.address}"
    if peer.failure is not None:
        remedy = peer.failure.value.format(role=peer.role)
        return [Finding("peers", Severity.PROBLEM, f"{place}: {peer.detail}", remedy)]
    findings = [_judge_distance(peer, place)]
    said = peer.model or peer.status
    if said and own_version and said.service_version != own_version:
        message = f"{place} is version {said.service_version}, this is {own_version}"
        findings.append(Finding("peers", Severity.NOTE, message, "install the same everywhere"))
    if peer.expiry_seconds is not None:
        expires = judge_expiry(f"the certificate of the {place}", peer.expiry_seconds)
        findings += [expires] if expires else []
    if peer.model is not None and peer.role == "target":
        between = f"this machine and the {place}"
        findings += _judge_link(peer.address, between, median_of(peer.round_trips), peer.model)
        findings += [judge_chat_template(peer.model)] if peer.model.chat_template else []
    return findings + (_judge_orchestrator(peer.status) if peer.status else [])


def _judge_distance(peer: ProbedPeer, place: str) -> Finding:
    words = [place]
    if peer.model is not None:
        words.append(_describe(peer.model))
    if peer.round_trips:
        middle, worst = median_of(peer.round_trips), max(peer.round_trips)
        words.append(f"round trip {show_time(middle)}, at worst {show_time(worst)}")
    message = ", ".join(words)
    if peer.serving:
        return Finding("peers", Severity.OK, message)
    remedy = "wait until it has loaded its model; its log says how far it is"
    return Finding("peers", Severity.NOTE, f"{message}; it is not serving yet", remedy)


def _describe(model: common.GetModelResponse) -> str:
    name = common.NumericsProfile.Name(model.numerics_profile)
    profile = name.removeprefix("NUMERICS_PROFILE_").lower()
    costs = model.plain_costs
    shown = show_profile(profile, costs.native_milliseconds, costs.exact_milliseconds)
    memory = show_memory(
        rollback_kind(model), model.snapshot_token_count, model.checkpoint_milliseconds
    )
    said = f"{model.model_name}, numerics {shown}"
    said += show_kernels(model.cpu_kernels) + show_layout(model.cache_layout)
    said += f", {model.thread_choice}" if model.thread_choice else ""
    said += f", memory {memory}" if memory else ""
    return said + _describe_own(model.own_draft) if model.HasField("own_draft") else said


def _describe_own(draft: common.OwnDraft) -> str:
    token, size = show_time(draft.token_milliseconds / 1e3), show_size(draft.weight_byte_count)
    return f", drafts with {own_source(draft)} ({draft.model_name}, {token} a token, {size})"


def judge_chat_template(model: common.GetModelResponse) -> Finding:
    """Return what the chat template of a model shows of how it writes."""
    name = f"the chat template of {model.model_name}"
    try:
        template = ChatTemplate(model.chat_template)
        shown = template.form.summary()
    except InvalidRequest as error:
        return Finding(
            "chats", Severity.NOTE, f"{name}: {error}", "--chat-template-file with a better one"
        )
    calls = (
        f"calls in {shown['calls']} after {shown['call_opening']!r}"
        if shown["calls"]
        else "no calls"
    )
    message = f"{name}: {calls}, thoughts in {shown['thoughts']}, ids of calls: {shown['ids']}"
    if template.takes_tools and not shown["calls"]:
        remedy = "tools are refused; --chat-template-file with one that shows calls"
        return Finding("chats", Severity.NOTE, message, remedy)
    return Finding("chats", Severity.OK, message)


def _judge_link(
    address: str, between: str, round_trip: float, target: common.GetModelResponse
) -> list[Finding]:
    """Return that a link costs more than the work after it, where it does."""
    decode = target.decode_costs[0].milliseconds / 1e3 if target.decode_costs else 0.0
    if not 0 < decode < round_trip:
        return []
    message = (
        f"a round trip between {between} takes {show_time(round_trip)}, more than a decode of the "
        f"target, {show_time(decode)}"
    )
    if address.removeprefix("plain://").startswith(_HERE):
        message += ": it is so quick that messages take longer, and drafts gain little"
        return [Finding("peers", Severity.OK, message)]
    remedy = "run the orchestrator beside the target, or draft more per round (--n-draft)"
    return [Finding("peers", Severity.NOTE, f"{message}: the link sets the speed", remedy)]


def judge_head(
    address: str, target: common.GetModelResponse, head: common.GetModelResponse, trip: float
) -> list[Finding]:
    """Return up to which round trip a head in a draft service pays; nothing for other drafts."""
    if not head.head or not target.decode_costs or not head.decode_costs:
        return []
    measured = replace(
        on_one_machine(),
        decode_costs=tuple((e.row_count, e.milliseconds / 1e3) for e in target.decode_costs),
        draft_token_seconds=head.decode_costs[0].milliseconds / 1e3,
        head=True,
    )
    far = reach(measured, LIKELY)
    message = f"the head at {address} drafts after each round of its target: it pays up to a round "
    message += f"trip of {show_time(far)}, at {100 * LIKELY:.0f} % accepted"
    if not far:
        message = f"the head at {address} does not pay, at {100 * LIKELY:.0f} % accepted"
    if trip < far:
        return [Finding("pair", Severity.OK, f"{message}; it is {show_time(trip)} away")]
    remedy = "run it nearer, or in the target's own process (outrider target --draft-model)"
    return [Finding("pair", Severity.NOTE, f"{message}; it is {show_time(trip)} away", remedy)]


def _judge_orchestrator(status: messages.GetStatusResponse) -> list[Finding]:
    """Return what an orchestrator says of its own peers."""
    ready = [peer for peer in status.peers if peer.state == messages.PEER_STATE_READY]
    waits = [peer for peer in status.peers if peer.state != messages.PEER_STATE_READY]
    findings = [_judge_wait(peer) for peer in waits]
    for peer in ready:
        trip = peer.round_trip_duration.ToNanoseconds() / 1e9
        distance = f", round trip {show_time(trip)}" if trip else ""
        message = f"its {peer.role} at {peer.address}, {_describe(peer.model)}{distance}"
        findings.append(Finding("peers", Severity.OK, message))
        if peer.role == "target" and peer.model.chat_template:
            findings.append(judge_chat_template(peer.model))
        if peer.role == "draft":
            targets = [each.model for each in ready if each.role == "target"]
            findings += judge_head(peer.address, targets[0], peer.model, trip) if targets else []
        if peer.role == "target":
            between = f"the orchestrator and its target at {peer.address}"
            findings += _judge_link(peer.address, between, trip, peer.model)
    if waits:
        return findings
    if status.speculating:
        return [*findings, Finding("pair", Severity.OK, "the orchestrator uses its draft")]
    if len(ready) < 2:
        message = f"the orchestrator works without a draft model: {status.reason}"
        return [
            *findings,
            Finding("pair", Severity.NOTE, message, "start it with --draft HOST:PORT"),
        ]
    message = f"the orchestrator refuses its pair: {status.reason}"
    remedy = "take a draft of the target's own family, made with the same tokenizer"
    return [*findings, Finding("pair", Severity.PROBLEM, message, remedy)]


def _judge_wait(peer: messages.PeerStatus) -> Finding:
    state = messages.PeerState.Name(peer.state).removeprefix("PEER_STATE_").lower()
    level = Severity.PROBLEM if state in ("refused", "lost") else Severity.NOTE
    role = peer.role
    remedy = f"outrider doctor --{role} with its address says more, run beside the orchestrator"
    return Finding("peers", level, f"its {role} is {state}: {peer.detail}", remedy)
