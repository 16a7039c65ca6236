"""The drafts for the targets of a pool: which are usable, what was learned of them, who leases."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from orchestrator.first_estimates import (
    measured_of,
    pair_of,
    process_of,
    rates_of_draft,
    take_measured_rates,
)
from orchestrator.leases import PooledPeer
from orchestrator.lessons import Lesson
from orchestrator.peers import Hosted, Peer
from orchestrator.targets import PooledTarget
from outrider import logs
from outrider.core.health import Health
from outrider.core.rates import Acceptance, DraftRates
from outrider.core.route import BLOCK, seconds_of_draft
from outrider.core.target_costs import Pair
from outrider.errors import VocabularyMismatch
from outrider.handshake import check_rollback
from outrider.messages import Rule
from outrider.v1.draft_service_pb2 import LearnVocabularyResponse


@dataclass(slots=True)
class Learned:
    """What was learned of a draft beside one target."""

    rates: DraftRates = field(default_factory=DraftRates)
    """Started again when either model is another; shared beside targets of equal weights."""
    models: tuple[bytes, bytes] = (b"", b"")
    """Whose rates these are: target and draft, by process; empty before it is known."""
    measured: bytes = b""  # what the draft had measured of itself


@dataclass(slots=True)
class DraftRecord:
    """What was learned of a draft. It outlives the draft's connection."""

    beside: dict[str, Learned] = field(default_factory=dict)
    """By the address of the target, in the order of the pool."""
    health: Health = field(default_factory=Health)


class PairedDraft(PooledPeer):
    """A draft beside the targets: whether it fits, what was learned of them, who leases it."""

    def __init__(
        self,
        peer: Peer,
        is_trusted: bool,
        on_mismatch: Callable[[VocabularyMismatch], None] = lambda _: None,
        record: DraftRecord | None = None,
        same_vocabulary: bool = False,
    ) -> None:
        """With `same_vocabulary` a draft whose ids are not the target's is not used."""
        self.record = record or DraftRecord()
        super().__init__(peer, self.record.health)
        self._lesson = Lesson(peer, same_vocabulary)
        self.is_trusted = is_trusted
        """Whether it may draft under the rejection rule, whose proof needs an honest draft."""
        self.mismatch: VocabularyMismatch | None = None
        """Why it cannot draft for this target."""
        self._on_mismatch = on_mismatch  # called when the target became one that it does not fit

    @property
    def rates(self) -> DraftRates:
        """What is known of it beside the first target."""
        learned = next(iter(self.record.beside.values()), None)
        return learned.rates if learned is not None else DraftRates()

    def pair_beside(self, target: PooledTarget) -> Pair:
        """Return what is known of it and this target."""
        learned = self.record.beside.get(target.address)
        if learned is None:
            return Pair(target.costs)
        return pair_of(target.costs, learned.rates, target.peer.model, self.peer.model)

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

    def begin_experience(self, targets: Sequence[PooledTarget]) -> None:
        """Forget what was learned when another model, or another process, came in its place.

        One that only measured again is the same: what it measured is taken over.
        """
        before = self.record.beside
        beside = {each.address: before.get(each.address) or Learned() for each in targets}
        for target in targets:
            alike = [beside[t.address] for t in targets if t.identity == target.identity]
            self._begin_beside(target, beside[target.address], alike)
        self.record.beside = beside

    def _begin_beside(self, target: PooledTarget, known: Learned, alike: Sequence[Learned]) -> None:
        """Begin beside one target; `alike` is of those with its weights, itself included."""
        its = self.peer.model
        process = process_of(its) if its is not None else b""
        models = (process_of(target.peer.model) if target.peer.model is not None else b"", process)
        if models != known.models:
            if process != known.models[1]:
                self.held.clear()
            known.rates = rates_of_draft(self.peer)
            for other in alike:
                if other is not known and process and other.models[1] == process:
                    known.rates = other.rates
                    break
        elif its is not None and measured_of(its) != known.measured:
            take_measured_rates(known.rates, its)
        known.models = models
        known.measured = measured_of(its) if its is not None else b""

    def misfit(self) -> str:
        """Return why it cannot draft for these targets, or not yet; empty where it can."""
        return str(self.mismatch) if self.mismatch is not None else self._lesson.obstacle

    def may_draft(self, rule: Rule) -> bool:
        """Return whether it can be leased for a generation under this rule."""
        if rule is Rule.REJECTION and not self.is_trusted:
            return False
        is_admitted = self.health.admits(time.monotonic(), self.generation_count)
        return is_admitted and not self.obstacle()

    def seconds(self, rule: Rule, target: PooledTarget, text: Sequence[bytes] = ()) -> float:
        """Return the time of an accepted token; `text` is what it would read, by digests."""
        rates = self.pair_beside(target).rates
        unread = BLOCK * len(text) - self.held.count(text)
        return seconds_of_draft(
            text_count=self.generation_count,
            token_seconds=rates.token_time.value,
            latency_seconds=rates.latency.value,
            acceptance=rates.acceptance.get(rule, Acceptance()).mean,
            unread_seconds=unread * rates.read_time.value,
        )
