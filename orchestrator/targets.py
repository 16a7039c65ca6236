"""One target of several: whether it may be used, what was learned of it, who writes there."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from orchestrator.first_estimates import (
    costs_of_target,
    measured_of,
    process_of,
    take_measured_costs,
    take_own_draft,
)
from orchestrator.leases import PooledPeer
from orchestrator.peers import DialledPeer
from outrider import logs, wire
from outrider.core.route import seconds_of_target
from outrider.core.target_costs import TargetCosts
from outrider.messages import ANY_MODEL, ModelReference
from outrider.v1 import common_pb2 as common


class PooledTarget(PooledPeer):
    """A target in a pool; what is learned of it is kept for as long as it is there."""

    peer: DialledPeer

    def __init__(self, peer: DialledPeer) -> None:
        super().__init__(peer)
        self.costs = TargetCosts()
        """What is learned of it, with any draft."""
        self.is_leaving = False
        """Nothing new comes here; when the last text is over, it is left."""
        self.refused = ""
        """Why it hosts nothing that this pool serves; empty where it does."""
        self._busy_until = 0.0  # of the monotonic clock: until then it said that it has no room
        # Whose estimates these are, what it had measured, and what drafted in its process.
        self._model = self._measured = self._own = b""

    @property
    def reference(self) -> ModelReference:
        """The model that it hosts, or hosted last; any, before it described itself."""
        return wire.hosted_model(self.peer.model) if self.peer.model is not None else ANY_MODEL

    @property
    def identity(self) -> bytes:
        """Of the weights that it hosts, or hosted last; empty before it described itself."""
        return bytes(self.peer.model.identity) if self.peer.model is not None else b""

    @property
    def read_seconds(self) -> float:
        """The time of each token that it reads: of a row in the largest decode that is known."""
        largest = self.costs.table.points[-1]
        return largest.seconds / largest.rows

    @property
    def unread_count(self) -> int:
        """Tokens of the prompts there that it has still to read."""
        return sum(each.unread_count for each in self.leases)

    @property
    def is_served(self) -> bool:
        """Whether it hosts, or hosted last, what this pool serves: the one rule for all work."""
        return bool(self.identity) and not self.refused

    @property
    def is_usable(self) -> bool:
        """Whether a text may be begun or continued here."""
        return self.peer.ready and self.is_served and not self.is_leaving

    @property
    def is_full(self) -> bool:
        """Whether it said lately that it has no room."""
        return time.monotonic() < self._busy_until

    @property
    def token_seconds(self) -> float:
        """The time of a token, as many texts as now and one more written at once."""
        costs = self.costs.table
        # An engine that pads does so with the rows of each text.
        return costs.seconds((self.generation_count + 1) * costs.padded(1))

    def note_described(self, siblings: Sequence[PooledTarget]) -> None:
        """Take in what it says of itself; `siblings` are the others of the pool."""
        model = self.peer.model
        if model is None:
            return
        process, measured = process_of(model), measured_of(model)
        own = model.own_draft.SerializeToString(deterministic=True)
        if process != self._model:
            self.costs = costs_of_target(self.peer, self.costs.generation_count)
            for each in siblings:
                if each.identity == self.identity:  # what drafts without a model is of the text
                    self.costs.sources = each.costs.sources
                    break
            self.held.clear()
        else:
            if measured != self._measured:
                take_measured_costs(self.costs, model)
            if own != self._own:
                take_own_draft(self.costs, model)
        self._model, self._measured, self._own = process, measured, own

    def compare(self, served: ModelReference, serving: common.GetModelResponse) -> None:
        """Refuse it, by name, where it hosts other weights than the pool serves.

        So it does with another context than the one that is `serving`, which may change logits.
        Under `exact`, where a text continues with the same bits at another target, it must compute
        with the same kernels too.
        """
        refused, model, context = "", self.peer.model, serving.context_token_count
        if model is not None and self.identity != served.identity:
            refused = f"it hosts {self.reference} and not {served}, which is served"
            if model.context_token_count != context:
                its = f"its context has {model.context_token_count} tokens, and not {context}"
                refused += f"; {its}: targets of a pool need the same --ctx"
        elif model is not None and _have_other_bits(model, serving):
            its, those = _kernels(model), _kernels(serving)
            refused = f"it computes with {its} and not with {those}: exact numerics differ"
            refused += "; targets of a pool need the same --cpu-kernels, or --numerics native"
        if refused and refused != self.refused:
            logs.warning("outrider.orchestrator", "target refused", detail=refused)
        self.refused = refused

    def seconds(self, text_count: int, digests: Sequence[bytes] = ()) -> float:
        """Return the time until a text of so many tokens, by digests, is written here."""
        return seconds_of_target(
            text_count=self.generation_count,
            session_count=self.session_count,
            token_seconds=self.token_seconds,
            read_seconds=self.read_seconds,
            queued_count=self.unread_count,
            unread_count=text_count - self.held.count(digests),
        )

    @property
    def decode_seconds(self) -> float:
        """The time of the decode in flight there, whose tokens it says: until it ends, no more."""
        model = self.peer.model
        decoding = model.activity.decoding_token_count if model is not None else 0
        return self.token_seconds + decoding * self.read_seconds

    def answer_seconds(self, length: int) -> float:
        """Return the time until a round after a text of `length` tokens is answered.

        That is its queue, the whole text to read, and some tokens; inf where it is overbooked.
        """
        model = self.peer.model
        is_full = model is not None and model.activity.open_session_count > model.session_count
        return math.inf if is_full else self.decode_seconds + self.seconds(length)

    def note_busy(self, seconds: float) -> None:
        """It says that it has no room, and to ask again after this time."""
        self._busy_until = time.monotonic() + seconds

    def misfit(self) -> str:
        """Return why it writes nothing new for this pool; empty where it may."""
        if self.is_leaving and not self.refused:
            return "its name has it no more: it ends what it has"
        return self.refused


def _have_other_bits(one: common.GetModelResponse, other: common.GetModelResponse) -> bool:
    """Say whether two targets of the same weights promise equal bits, and compute others."""
    exact = common.NUMERICS_PROFILE_EXACT
    promise = one.numerics_profile == other.numerics_profile == exact
    return promise and one.system_info != other.system_info


def _kernels(model: common.GetModelResponse) -> str:
    """Return in words what a target computes with."""
    return f"the kernels {model.cpu_kernels.partition(':')[0]} ({model.system_info})"
