"""A target and the drafts that fit it: which are usable, what was learned of each, who leases."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator.core.estimates import (
    Acceptance,
    Mean,
    OwnDraftEstimates,
    PairEstimates,
    RunnerUpEstimates,
    credit_for,
)
from orchestrator.core.leasing import Offer, choose
from orchestrator.lessons import Lesson
from orchestrator.peers import Hosted, Peer
from orchestrator.streams import SessionStream
from outrider import logs
from outrider.costs import CostTable, Point, RejectionCost
from outrider.errors import VocabularyMismatch
from outrider.handshake import check_rollback
from outrider.messages import MAX_LINES, PeerState, Rule, SessionParameters
from outrider.trees import MAX_LEAVES
from outrider.v1 import common_pb2 as common
from outrider.v1.draft_service_pb2 import LearnVocabularyResponse

_LONGEST_PAUSE = 60.0  # of a draft that breaks the protocol
_FORGIVING_SECONDS = 600.0  # without a fault, and the next pause is a short one again


_TOO_MUCH = 3600.0
"""Seconds of a rejection after which a target reads the whole text again: nothing is drafted."""


class DraftPeer(Protocol):
    """A draft service, whoever dialled whom."""

    @property
    def role(self) -> str:
        """Always "draft"."""

    @property
    def address(self) -> str:
        """Where it is, for people."""

    @property
    def state(self) -> PeerState:
        """Where it stands."""

    @property
    def detail(self) -> str:
        """Why it is not ready, in one line; empty when it is."""

    @property
    def hosted(self) -> Hosted | None:
        """What it described last."""

    @property
    def model(self) -> common.GetModelResponse | None:
        """The description, once it is known."""

    @property
    def chat_template(self) -> str:
        """Its model's own chat template; empty where it has none, or is not known."""

    @property
    def ready(self) -> bool:
        """Whether generations may use it."""

    @property
    def round_trip(self) -> float:
        """Seconds of the newest small call; 0 before the first."""

    def open(self, opening: SessionParameters) -> SessionStream:
        """Return a new stream of a session; it fails at its first use if the draft is away."""

    async def roll_back(self, opening: SessionParameters, token_count: int, round_: int) -> None:
        """Truncate a session; a draft that is away has nothing to cut."""

    async def teach(self, key: bytes, target: Hosted) -> LearnVocabularyResponse:
        """Send it a target's vocabulary."""


@dataclass(slots=True)
class Experience:
    """What was learned of a draft beside a target. It outlives the draft's connection."""

    estimates: PairEstimates = field(default_factory=PairEstimates)
    """Of these two models; started again when either is another."""
    models: tuple[bytes, ...] = ()  # whose estimates these are, by process
    measured: bytes = b""  # what the draft had measured of itself
    fault: str = ""  # why the draft is left alone until `paused_until`
    paused_until: float = 0.0  # of the monotonic clock
    fault_count: int = 0  # in a row, each soon after the pause of the one before


class PairedDraft:
    """A draft beside the target: whether it fits, what was learned of both, who leases it."""

    def __init__(
        self,
        peer: DraftPeer,
        is_trusted: bool,
        on_mismatch: Callable[[VocabularyMismatch], None] = lambda _: None,
        experience: Experience | None = None,
        same_vocabulary: bool = False,
    ) -> None:
        """With `same_vocabulary` a draft whose ids are not the target's is not used."""
        self.peer = peer
        self._lesson = Lesson(peer, same_vocabulary)
        self.is_trusted = is_trusted
        """Whether it may draft under the rejection rule, whose proof needs an honest draft."""
        self.mismatch: VocabularyMismatch | None = None
        """Why it cannot draft for this target."""
        self.experience = experience or Experience()
        self.generation_count = 0  # that lease it now
        self.passed_over = 0  # leases of others since its own last one
        self._on_mismatch = on_mismatch  # called when the target became one that it does not fit

    @property
    def estimates(self) -> PairEstimates:
        """What is known of the two models."""
        return self.experience.estimates

    @property
    def has_model(self) -> bool:
        """Whether it can draft for any text, and not only where one repeats itself."""
        return self.peer.model is not None and not self.peer.model.vocabulary.fits_any

    @property
    def vocabulary_key(self) -> bytes:
        """What its sessions name the target's vocabulary by; empty where its ids are the same."""
        return self._lesson.key

    @property
    def translation(self) -> LearnVocabularyResponse | None:
        """How it translates; None where its ids are the target's."""
        return self._lesson.learned

    @property
    def is_learning(self) -> bool:
        """Whether it is being sent the target's vocabulary."""
        return self._lesson.is_under_way

    def check(self, target: Hosted) -> None:
        """Compare the vocabularies, once the draft has described itself."""
        before, self.mismatch = self.mismatch, None
        its = self.peer.hosted
        if its is None:
            return
        try:
            check_rollback("target", target.model)
            check_rollback("draft", its.model)
            self._lesson.begin(its, target)
        except VocabularyMismatch as error:
            self.mismatch = error
            if str(before) != str(error):
                logs.warning("outrider.orchestrator", "pair refused", detail=str(error))
            self._on_mismatch(error)

    def close(self) -> None:
        """Teach it nothing more."""
        self._lesson.close()

    def begin_experience(self, target: Peer, of_target: PairEstimates) -> None:
        """Forget what was learned when another model, or another process, came in its place.

        One that only measured again is the same: what it measured is taken over.
        """
        both = (target.model, self.peer.model)
        models = tuple(_process(model) for model in both if model is not None)
        known = self.experience
        if models != known.models or known.estimates.costs is not of_target.costs:
            known.estimates = _with_draft(of_target, target, self.peer)
        else:
            known.estimates.take_measured(of_target)
            if self.peer.model is not None and _measured(self.peer.model) != known.measured:
                _take_draft_costs(known.estimates, self.peer.model)
        known.models = models
        known.measured = _measured(self.peer.model) if self.peer.model is not None else b""

    def pause(self, fault: str) -> None:
        """Leave a draft that breaks the protocol alone, twice as long as the last time."""
        now, known = time.monotonic(), self.experience
        if now > known.paused_until + _FORGIVING_SECONDS:
            known.fault_count = 0
        pause = min(_LONGEST_PAUSE, 2.0**known.fault_count)
        known.fault_count += 1
        known.fault, known.paused_until = fault, now + pause
        logs.warning("outrider.orchestrator", "draft left alone", seconds=pause, detail=fault)

    def obstacle(self) -> str:
        """Return why it is not used, in one line; empty when it is."""
        if not self.peer.ready:
            return self.peer.detail
        if self.mismatch is not None:
            return str(self.mismatch)
        if self._lesson.obstacle:
            return self._lesson.obstacle
        if time.monotonic() < self.experience.paused_until:
            return f"the draft breaks the protocol and is left alone: {self.experience.fault}"
        return ""

    def may_draft(self, rule: Rule) -> bool:
        """Return whether it can be leased for a generation under this rule."""
        return (self.is_trusted or rule is not Rule.REJECTION) and not self.obstacle()

    def offer(self, rule: Rule) -> Offer:
        """Return what is known of it."""
        estimates, model = self.estimates, self.peer.model
        return Offer(
            token_seconds=estimates.token_time.value,
            latency_seconds=estimates.latency.value,
            acceptance=estimates.acceptance.get(rule, Acceptance()).mean,
            session_count=model.session_count if model is not None else 1,
            generation_count=self.generation_count,
            passed_over=self.passed_over,
        )

    def give_back(self) -> None:
        """End a lease."""
        self.generation_count -= 1


class Pair:
    """The target, and every draft that there is for it: the configured one, those that joined."""

    def __init__(self, target: Peer, draft: Peer | None, same_vocabulary: bool = False) -> None:
        """With `same_vocabulary` drafts whose ids are not the target's are not used."""
        self.target = target
        self.same_vocabulary = same_vocabulary
        self.draft = draft
        """The configured one."""
        self.accepts_drafts = False
        """Whether drafts may join, so that there may be one later."""
        self._configured: PairedDraft | None = None
        if draft is not None:
            self._configured = PairedDraft(draft, is_trusted=True, same_vocabulary=same_vocabulary)
        self.joined: list[PairedDraft] = []
        """Those that joined, oldest first."""
        self._alone = PairEstimates()  # of the target, whatever drafts for it
        self._model = self._measured = b""  # whose estimates these are, and what it had measured
        self._tasks: list[asyncio.Task[None]] = []  # one for each peer, from `start` to `stop`

    @property
    def peers(self) -> list[Peer]:
        """The configured peers, the target first."""
        return [self.target] if self.draft is None else [self.target, self.draft]

    @property
    def drafts(self) -> list[PairedDraft]:
        """All drafts, the configured one first."""
        return ([self._configured] if self._configured is not None else []) + self.joined

    @property
    def mismatch(self) -> VocabularyMismatch | None:
        """Why the configured draft cannot draft for this target."""
        return self._configured.mismatch if self._configured is not None else None

    @property
    def target_drafts(self) -> bool:
        """Whether the target has a draft in its own process."""
        return self.target.model is not None and self.target.model.HasField("own_draft")

    @property
    def may_have_draft(self) -> bool:
        """Whether there is a draft service, or may be one later."""
        return self.draft is not None or self.accepts_drafts

    def start(self) -> None:
        """Start to watch the peers."""
        self._tasks = [asyncio.create_task(peer.watch(self._check)) for peer in self.peers]

    async def stop(self) -> None:
        """Stop watching and close the channels; what is in flight ends with PeerUnavailable."""
        for task in self._tasks:
            task.cancel()
        for draft in self.drafts:
            draft.close()
        for peer in self.peers:
            await peer.close()

    def _check(self) -> None:
        """Compare the vocabularies; called whenever a peer has described itself."""
        if (model := self.target.model) is not None:
            if _process(model) != self._model:
                self._alone = _of_target(self.target, self._alone.generation_count)
            elif _measured(model) != self._measured:
                _take_target_costs(self._alone, model)
            self._model, self._measured = _process(model), _measured(model)
        for draft in list(self.drafts):
            self.check_draft(draft)

    def check_draft(self, draft: PairedDraft) -> None:
        """Compare a draft's vocabulary with the target's, once both have described themselves."""
        draft.begin_experience(self.target, self._alone)
        if self.target.hosted is not None:
            draft.check(self.target.hosted)

    def add(self, draft: PairedDraft) -> None:
        """Take in a draft that joined; one that does not fit is not used."""
        self.joined.append(draft)
        self.check_draft(draft)

    def remove(self, draft: PairedDraft) -> None:
        """Forget a draft that left."""
        draft.close()
        if draft in self.joined:
            self.joined.remove(draft)

    # --- leases ---

    def lease(self, rule: Rule, besides: Collection[DraftPeer] = ()) -> PairedDraft | None:
        """Return the best draft that can draft now, for one generation; None if there is none.

        It is leased until `give_back`. Those in `besides` are left out.
        """
        usable = _rather([d for d in self._usable(rule) if d.peer not in besides])
        if not usable:
            return None
        chosen = usable[choose([draft.offer(rule) for draft in usable])]
        for draft in usable:
            draft.passed_over += 1
        chosen.passed_over = 0
        chosen.generation_count += 1
        return chosen

    def _usable(self, rule: Rule) -> list[PairedDraft]:
        return [d for d in self.drafts if d.may_draft(rule)] if self.target.ready else []

    @property
    def estimates(self) -> PairEstimates:
        """What is known of the target and of the draft that would be leased now.

        That is the configured one while none can be; without one, it is the target's alone.
        """
        usable = _rather(self._usable(Rule.MATCH))
        if usable:
            return usable[choose([draft.offer(Rule.MATCH) for draft in usable])].estimates
        return self._configured.estimates if self._configured is not None else self._alone

    def count_generations(self, count: int) -> None:
        """Take note of how many generations are being written."""
        for estimates in (self._alone, *(draft.estimates for draft in self.drafts)):
            estimates.generation_count = max(1, count)

    @property
    def draft_usable(self) -> bool:
        """Whether generations may draft."""
        return not self.obstacle()

    def obstacle(self) -> str:
        """Return why drafts are not used, in one line; empty when they are."""
        if self.draft is None and self.target.ready and self.target_drafts:
            return ""
        if not self.may_have_draft:
            return "no draft is configured"
        obstacles = [draft.obstacle() for draft in self.drafts]
        waiting = [] if self.target.ready else [self.target.detail]
        if not obstacles:
            waiting.append("no draft has joined (outrider draft --join)")
        elif all(obstacles):
            waiting += obstacles
        return "; ".join(waiting)


def _rather(drafts: list[PairedDraft]) -> list[PairedDraft]:
    """Return the drafts with a model, or else those without one.

    These are quick and right where they propose something, which a text may never let them do.
    """
    return [d for d in drafts if d.has_model] or drafts


def _process(model: common.GetModelResponse) -> bytes:
    """Return what stays the same while the same process hosts the same model."""
    described = common.GetModelResponse()
    described.CopyFrom(model)
    for name in ("activity", "known_vocabulary_keys", *_MEASURED):
        described.ClearField(name)
    return described.SerializeToString(deterministic=True)


_MEASURED = (
    "decode_costs",
    "rough_decode_costs",
    "plain_costs",
    "cache_layout",
    "tree_leaf_limit",
    "checkpoint_milliseconds",
    "restore_milliseconds",
)
"""What a process measures again when nobody waits."""


def _measured(model: common.GetModelResponse) -> bytes:
    """Return what a process has measured of its model."""
    measured = common.GetModelResponse()
    measured.CopyFrom(model)
    for field_ in model.DESCRIPTOR.fields:
        if field_.name not in _MEASURED:
            measured.ClearField(field_.name)
    return measured.SerializeToString(deterministic=True)


def _of_target(target: Peer, generation_count: int) -> PairEstimates:
    """Return what is known before the first round: what the target measured at load."""
    estimates = PairEstimates(generation_count=generation_count)
    if target.model is not None:
        _take_target_costs(estimates, target.model)
        estimates.overhead = Mean(target.round_trip)
        estimates.continues = target.model.continues
        if target.model.HasField("own_draft"):
            own = target.model.own_draft
            seconds = own.token_milliseconds / 1e3, own.read_milliseconds / 1e3
            estimates.own_draft = OwnDraftEstimates.of_load(*seconds)
        estimates.credit = credit_for(estimates.decode_seconds(1), target.round_trip)
    return estimates


def _take_target_costs(estimates: PairEstimates, model: common.GetModelResponse) -> None:
    """Go by what a target measured, in place of what it said before; all else stays learned."""
    if costs := _costs(model):
        estimates.costs.replace(costs, model.rough_decode_costs)
    estimates.alone_seconds = model.plain_costs.alone_milliseconds / 1e3
    estimates.rejection = _rejection_cost(model)
    estimates.tree_leaves = min(MAX_LEAVES, model.tree_leaf_limit)


def _rejection_cost(model: common.GetModelResponse) -> RejectionCost:
    if model.rollback_capability == common.ROLLBACK_CAPABILITY_NONE:
        return RejectionCost(_TOO_MUCH, _TOO_MUCH)
    seconds = model.checkpoint_milliseconds / 1e3, model.restore_milliseconds / 1e3
    return RejectionCost(*seconds, model.snapshot_token_count)


def _with_draft(of_target: PairEstimates, target: Peer, draft: DraftPeer) -> PairEstimates:
    """Return what is known of a draft before its first round, beside what is of the target."""
    estimates = of_target.beside_another_draft()
    if draft.model is None:
        return estimates
    estimates.latency = Mean(draft.round_trip)
    if _costs(draft.model):
        estimates.runner_ups = _runner_ups(draft.model)
        _take_draft_costs(estimates, draft.model)
    if target.model is not None:
        estimates.same_host = shares_cores(target.model, draft.model)
        estimates.takes_turns = _take_turns(target.model, draft.model)
    return estimates


def _take_draft_costs(estimates: PairEstimates, model: common.GetModelResponse) -> None:
    """Go by what a draft measured, but for what was seen of it since."""
    if not (costs := _costs(model)):
        return
    estimates.loaded_token_time = costs[0].seconds
    estimates.is_roughly_loaded = model.rough_decode_costs
    if not estimates.token_time.count:
        estimates.token_time = Mean(costs[0].seconds)
    if not estimates.read_time.count:
        estimates.read_time = Mean(costs[-1].seconds / costs[-1].rows)
    estimates.runner_ups.step_ratio = _runner_ups(model).step_ratio


def _runner_ups(model: common.GetModelResponse) -> RunnerUpEstimates:
    """Return what is known of a draft's runner-up lines: how many, and what rows beside cost."""
    lines, costs = max(1, min(MAX_LINES, model.parallel_line_count)), CostTable(_costs(model))
    return RunnerUpEstimates(lines, max(1.0, costs.seconds(lines) / costs.seconds(1)))


def shares_cores(target: common.GetModelResponse, draft: common.GetModelResponse) -> bool:
    """Return whether a busy draft may slow the target down.

    Not on another machine, nor where both know their cores and those are others.
    """
    if not target.machine_digest or target.machine_digest != draft.machine_digest:
        return False
    both_know = target.cores_digest and draft.cores_digest
    return not both_know or target.cores_digest == draft.cores_digest


def _take_turns(target: common.GetModelResponse, draft: common.GetModelResponse) -> bool:
    """Return whether the two never decode at the same time."""
    together = target.cores_digest and target.cores_digest == draft.cores_digest
    return bool(together) and target.thread_count + draft.thread_count > target.core_count


def _costs(model: common.GetModelResponse) -> list[Point]:
    return [
        Point(cost.row_count, cost.milliseconds / 1e3, cost.microseconds_per_token / 1e6)
        for cost in model.decode_costs
    ]
