"""The targets of one set of weights and the drafts for them: who is usable, who leases whom."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TypeVar

from orchestrator.calls import Calls
from orchestrator.leases import PeerLease, PooledPeer
from orchestrator.names import Name
from orchestrator.paired_drafts import PairedDraft
from orchestrator.peers import DialledPeer, Hosted
from orchestrator.targets import PooledTarget
from outrider.core.health import TIMEOUT, admitted
from outrider.core.route import digests_of, weights_served
from outrider.core.target_costs import Pair
from outrider.errors import PeerUnavailable
from outrider.messages import ANY_MODEL, MAX_DRAFT, ModelReference, Rule, SessionParameters
from outrider.request_scope import nobodys
from outrider.v1 import common_pb2 as common

P = TypeVar("P", bound=PooledPeer)

_KEY_BYTES = 16
_MOST_ROUND = 2 * MAX_DRAFT
"""Tokens of a round after the committed text, and pad rows, with some to spare."""


class Pool:
    """Targets that host the same weights, and every draft that there is for them.

    The drafts are the configured ones and those that joined. A target that hosts other weights
    than the first is in the pool, and not used.
    """

    def __init__(
        self,
        targets: Sequence[DialledPeer],
        drafts: Sequence[DialledPeer] = (),
        same_vocabulary: bool = False,
    ) -> None:
        """With `same_vocabulary` drafts whose ids are not the targets' are not used."""
        self.targets = [PooledTarget(peer) for peer in targets]
        """In the order of the configuration; never empty."""
        self.same_vocabulary = same_vocabulary
        self.drafts: list[PairedDraft] = []
        """The configured ones, then those that joined, oldest first."""
        self.accepts_drafts = False
        """Whether drafts may join, so that there may be one later."""
        self.names: list[Name] = []
        """The configured addresses, whose records are followed from `start` to `stop`."""
        self.on_change: Callable[[], None] = lambda: None
        """Called whenever the state of a target may be another."""
        self.target_seconds = TIMEOUT
        """A target that a call waits for, and that decodes nothing, has at least so long."""
        self._weights = ANY_MODEL  # what is served, once a target has described itself
        self._has_written = False  # a text was begun: from then on the order says nothing
        self._key = secrets.token_bytes(_KEY_BYTES)  # of the digests of texts
        self._changed = asyncio.Event()  # set whenever the state of a target may be another
        self._writing_count = 0  # generations that are being written, at all targets
        self._is_started = False
        self._tasks: dict[DialledPeer | Name, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()  # of peers that were left
        for target in self.targets:
            target.peer.on_change = self._note_change
        for peer in drafts:
            self.dial(peer)

    # --- who is there ---

    @property
    def standing(self) -> PooledTarget:
        """The target that is asked what all would answer: the first that is usable, if any is."""
        targets = self.targets
        served = [each for each in targets if each.is_served]
        return next((each for each in targets if each.is_usable), (served or targets)[0])

    @property
    def is_single(self) -> bool:
        """Whether there is nothing to choose between."""
        return len(self.targets) == 1

    @property
    def target(self) -> DialledPeer:
        """The service of that one."""
        return self.standing.peer

    @property
    def dialled(self) -> list[DialledPeer]:
        """The configured peers, the targets first."""
        drafts = [each.peer for each in self.drafts if isinstance(each.peer, DialledPeer)]
        return [*(each.peer for each in self.targets), *drafts]

    @property
    def closed(self) -> bool:
        """Whether no target will ever be usable again."""
        return self.target.closed

    @property
    def ready(self) -> bool:
        """Whether any target is usable."""
        return any(target.is_usable for target in self.targets)

    @property
    def detail(self) -> str:
        """Why no target is usable, in one line; empty where one is."""
        if self.ready:
            return ""
        return "; ".join(filter(None, (target.obstacle() for target in self.targets)))

    @property
    def session_count(self) -> int:
        """Sessions that the usable targets can hold at the same time; at least one."""
        return sum(each.session_count for each in self.targets if each.is_served) or 1

    @property
    def target_drafts(self) -> bool:
        """Whether the targets have a draft in their own process."""
        model = self.target.model
        return model is not None and model.HasField("own_draft")

    @property
    def expects_drafts(self) -> bool:
        """Whether drafts are configured, though a name may lead to none now."""
        roles = [each.role for each in self.names] + [each.role for each in self.dialled]
        return "draft" in roles

    @property
    def may_have_draft(self) -> bool:
        """Whether there is a draft service, or may be one later."""
        return self.expects_drafts or self.accepts_drafts

    # --- watching ---

    def start(self) -> None:
        """Start to watch the peers, and to follow the names."""
        self._is_started = True
        for peer in self.dialled:
            self._begin(peer)
        for name in self.names:
            self._begin(name)

    def _begin(self, watched: DialledPeer | Name) -> None:
        """Watch a peer, or follow a name, once the pool has started."""
        if self._is_started:
            if isinstance(watched, DialledPeer):
                work = watched.watch(self._check)
            else:
                work = watched.follow(self.dial, self.leave)
            self._tasks[watched] = asyncio.create_task(work, context=nobodys())

    def _stop(self, watched: DialledPeer | Name) -> None:
        if task := self._tasks.pop(watched, None):
            task.cancel()

    def follow(self, name: Name) -> None:
        """Dial one more configured address, and follow its records."""
        self.names.append(name)
        for peer in name.services:
            self.dial(peer)
        self._begin(name)

    def unfollow(self, name: Name) -> None:
        """Leave the services of an address that is configured no more."""
        self.names.remove(name)
        self._stop(name)
        for peer in name.services:
            self.leave(peer)

    async def stop(self) -> None:
        """Stop watching and close the channels; what is in flight ends with PeerUnavailable."""
        for task in self._tasks.values():
            task.cancel()
        for draft in self.drafts:
            draft.close()
        for peer in self.dialled:
            await peer.close()
        self._note_change()
        await asyncio.gather(*self._closing)

    def _note_change(self) -> None:
        self._changed.set()
        self.on_change()

    def _check(self) -> None:
        """Compare what is hosted; called whenever a peer has described itself."""
        for target in self.targets:
            others = [each for each in self.targets if each is not target]
            target.note_described(others)
        self._compare_weights()
        for draft in list(self.drafts):
            self.check_draft(draft)

    def _compare_weights(self) -> None:
        """Say which weights are served; those of targets that leave say nothing of it."""
        staying = [target for target in self.targets if not target.is_leaving] or self.targets
        hosted = [target.identity for target in staying]
        current = self._weights.identity if self._has_written else b""
        identity = weights_served(current, hosted)
        if identity in hosted:
            self._weights = staying[hosted.index(identity)].reference
        serving = (each.peer.model for each in self.targets if each.identity == identity)
        served = next((each for each in serving if each), common.GetModelResponse())
        for target in self.targets:
            target.compare(self._weights, served)

    def check_draft(self, draft: PairedDraft) -> None:
        """Compare a draft's vocabulary with the targets', once they have described themselves."""
        draft.note_described(self._weights.identity)
        self._share_out()
        if self.target.hosted is not None:
            draft.check(self.target.hosted)

    # --- who comes and goes ---

    def add(self, draft: PairedDraft) -> None:
        """Take in a draft that joined; one that does not fit is not used."""
        self.drafts.append(draft)
        self.check_draft(draft)

    def remove(self, draft: PairedDraft) -> None:
        """Forget a draft that left."""
        draft.close()
        if draft in self.drafts:
            self.drafts.remove(draft)

    def dial(self, peer: DialledPeer) -> None:
        """Take in a service that a name leads to by now, a target or a draft."""
        if peer.role == "target":
            peer.on_change = self._note_change
            self.targets.append(PooledTarget(peer))
        else:
            draft = PairedDraft(peer, is_trusted=True, same_vocabulary=self.same_vocabulary)
            self.drafts = sorted([*self.drafts, draft], key=lambda each: each.peer.has_joined)
        self._begin(peer)

    def leave(self, peer: DialledPeer) -> None:
        """Use a service no more whose record is gone; texts that are written there end there."""
        for draft in [each for each in self.drafts if each.peer is peer]:
            self.remove(draft)
            self._close(peer)
        for target in self.targets:
            if target.peer is peer:
                target.is_leaving = True
        self._let_go()
        self._check()  # others may serve now
        self._note_change()

    def _let_go(self) -> None:
        """Close the targets that leave and write nothing any more, but for the last one."""
        for target in list(self.targets):
            if target.is_leaving and not target.generation_count and not self.is_single:
                self.targets.remove(target)
                self._close(target.peer)

    def _close(self, peer: DialledPeer) -> None:
        self._stop(peer)
        closing = asyncio.create_task(peer.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    # --- targets ---

    async def wait_for_model(self, seconds: float) -> Hosted:
        """Return what is served once a target is usable. Raises PeerUnavailable."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.ready and not self.closed:
                    self._changed.clear()
                    await self._changed.wait()
        hosted = self.target.hosted
        if hosted is None or not self.ready:
            raise PeerUnavailable(self.detail)
        return hosted

    def lease_target(
        self,
        text: Sequence[int],
        opening: SessionParameters,
        besides: Collection[PooledTarget] = (),
    ) -> PeerLease[PooledTarget] | None:
        """PeerLease the target where a text is expected to end first; None if none is usable.

        It hosts the model of the opening, if any target does: one that hosts another one refuses
        that by name. The caller ends the lease.
        """
        usable = self._usable_for(opening.model, besides)
        if not usable:
            return None
        digests = self._digests(self.targets, text, opening.salt)
        self._has_written = True
        lease = _lease(usable, lambda each: each.seconds(len(text), digests), digests, len(text))
        self._share_out()
        return lease

    def _digests(
        self, peers: Sequence[object], text: Sequence[int], salt: bytes
    ) -> tuple[bytes, ...]:
        """Return what a text is known by, where there is a peer to choose."""
        return digests_of(text, salt, self._key) if len(peers) > 1 else ()

    def likely_target(self, text: Sequence[int], opening: SessionParameters) -> DialledPeer | None:
        """Return the target that would be leased for a text now; None if none is usable."""
        usable = self._usable_for(opening.model, ())
        if self.is_single or not usable:
            return None
        digests = digests_of(text, opening.salt, self._key)
        return _best(usable, lambda each: each.seconds(len(text), digests)).peer

    def end(self, lease: PeerLease[PooledTarget], text: Sequence[int], salt: bytes) -> None:
        """Give a target back that holds this text now."""
        lease.end(self._digests(self.targets, text, salt))
        self._share_out()
        self._let_go()

    def has_another(self, besides: Collection[PooledTarget]) -> bool:
        """Return whether another target hosts what is served, though it may not be ready now."""
        others = (each for each in self.targets if each not in besides)
        return any(each.is_served and not each.is_leaving for each in others)

    def has_room(self, model: ModelReference, besides: PooledTarget) -> bool:
        """Return whether another target hosts a model, and can take a text of it now."""
        return any(
            not each.is_full and each.generation_count < each.session_count
            for each in self._usable_for(model, [besides])
        )

    def may_be_full(self, length: int, context: int) -> bool:
        """Return whether a round of a text of `length` tokens may fill a context of the targets.

        They have the same one, which may be less than `context`, what was planned.
        """
        model = self.target.model
        described = model.context_token_count if model is not None else context
        return length + _MOST_ROUND >= min(context, described)

    def _usable_for(
        self, model: ModelReference, besides: Collection[PooledTarget]
    ) -> list[PooledTarget]:
        hosting = [each for each in self.targets if each.identity == model.identity]
        # A text of weights that are served no more ends where they are. Where nobody hosts them
        # any more, the one that is asked says so.
        known = [each for each in hosting if each.is_served] or hosting or self.targets
        there = [each for each in known if each.peer.ready and each not in besides]
        usable = [each for each in there if not each.is_leaving] or there
        if len(usable) < 2:
            return usable
        peers = [(each.health, each.generation_count) for each in usable]
        chosen = admitted(peers, time.monotonic())
        return [usable[i] for i in chosen]

    # --- calls ---

    def calls(self, first: DialledPeer | None = None) -> Calls:
        """Return what makes idempotent calls at the targets, at `first` if it is usable."""
        return Calls(self, self.target_seconds, first)

    def choose_to_call(
        self, first: DialledPeer | None, failed: Collection[PooledTarget]
    ) -> PooledTarget | None:
        """Return the target to call, if possible none of those that failed.

        None where none is usable now.
        """
        usable = [each for each in self.targets if each.is_usable]
        rather = [each for each in usable if each not in failed] or usable
        wanted = [each for each in rather if each.peer is first] if not failed else []
        return min(wanted or rather, key=_load, default=None)

    # --- drafts ---

    def lease_draft(
        self,
        rule: Rule,
        besides: Collection[PairedDraft] = (),
        text: Sequence[int] = (),
        salt: bytes = b"",
    ) -> PeerLease[PairedDraft] | None:
        """PeerLease the best draft that can draft now; None if there is none.

        It is leased for one generation, of this text. Those in `besides` are left out.
        """
        usable = _rather([d for d in self._usable(rule) if d not in besides])
        if not usable:
            return None
        digests = self._digests(usable, text, salt)
        return _lease(usable, lambda each: each.seconds(rule, digests), digests)

    def _usable(self, rule: Rule) -> list[PairedDraft]:
        return [d for d in self.drafts if d.may_draft(rule)] if self.ready else []

    @property
    def pair(self) -> Pair:
        """What is known of the standing target and of the draft that would be leased now."""
        return self.pair_at(self.standing)

    def pair_at(self, target: PooledTarget) -> Pair:
        """Return what is known of a target and of the draft that would be leased now.

        That is the first one while none can be; without one, it is the target's alone.
        """
        usable = _rather(self._usable(Rule.MATCH))
        if usable:
            best = _best(usable, lambda each: each.seconds(Rule.MATCH))
            return best.pair_beside(target)
        return self.drafts[0].pair_beside(target) if self.drafts else Pair(target.costs)

    def count_generations(self, count: int) -> None:
        """Take note of how many generations are being written."""
        if count != self._writing_count:
            self._writing_count = count
            self._share_out()

    def _share_out(self) -> None:
        """Let each target's costs know of how many share its decodes."""
        count = self._writing_count
        for target in self.targets:
            most = target.session_count if self.is_single else target.generation_count
            there = min(count, most)
            target.costs.generation_count = max(1, there)

    def obstacle(self) -> str:
        """Return why drafts are not used, in one line; empty when they are."""
        if not self.expects_drafts and self.ready and self.target_drafts:
            return ""
        if not self.may_have_draft:
            return "no draft is configured"
        obstacles = [draft.obstacle() for draft in self.drafts]
        waiting = [] if self.ready else [self.detail]
        if not obstacles:
            waiting.append("no draft has joined (outrider draft --join)")
        elif all(obstacles):
            waiting += obstacles
        return "; ".join(waiting)


def _best(usable: Sequence[P], seconds: Callable[[P], float]) -> P:
    """Return the peer that a text would lease, by what each is expected to take."""
    return min(usable, key=lambda each: each.ranked(seconds(each)))


def _lease(
    usable: Sequence[P],
    seconds: Callable[[P], float],
    digests: tuple[bytes, ...],
    token_count: int = 0,
) -> PeerLease[P]:
    """PeerLease the best peer for a text; what is known of the others grows old."""
    chosen = _best(usable, seconds)
    for each in usable:
        each.passed_over += 1
    return PeerLease(chosen, digests, token_count)


def _load(target: PooledTarget) -> tuple[bool, bool, int]:
    return target.is_ejected, target.is_full, target.generation_count


def _rather(drafts: list[PairedDraft]) -> list[PairedDraft]:
    """Return the drafts with a model, or else those without one.

    These are quick and right where they propose something, which a text may never let them do.
    """
    return [d for d in drafts if d.has_model] or drafts
