"""The drafts for the targets of a pool: which are usable, what was learned of them, who leases."""

from __future__ import annotations

import math
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
from outrider.core.rates import AcceptanceRate, DraftRates
from outrider.core.route import BLOCK, seconds_of_draft
from outrider.core.target_costs import Pair
from outrider.errors import VocabularyMismatch
from outrider.handshake import check_head, check_rollback
from outrider.messages import Rule
from outrider.v1.draft_service_pb2 import LearnVocabularyResponse

_MOST_SILENT = 4
"""Texts in a row that ordered something of a draft and had no token, before it is the last to be
taken. Beside a good one it gets these and each 129th; it got 993 of 1,000, as no time is known of
what never comes."""


@dataclass(slots=True)
class DraftRecord:
    """What was learned of a draft. It outlives the draft's connection."""

    rates: DraftRates = field(default_factory=DraftRates)
    """Beside targets of one model; started again when that, or the draft's process, is another."""
    models: tuple[bytes, bytes] = (b"", b"")
    """Whose rates these are: the targets' weights and the draft's process; empty: not known yet."""
    measured: bytes = b""  # what the draft had measured of itself
    silent_count: int = 0  # texts in a row that ordered something of it and had no token
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
        """What is known of it beside the targets."""
        return self.record.rates

    def pair_beside(self, target: PooledTarget) -> Pair:
        """Return what is known of it and this target."""
        return pair_of(target.costs, self.rates, target.peer.model, self.peer.model)

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
            check_head(target.model, its.model)
            self._lesson.begin(its, target)
        except VocabularyMismatch as error:
            self.mismatch = error
            if str(before) != str(error):
                logs.warning("outrider.orchestrator", "pair refused", detail=str(error))
            self._on_mismatch(error)

    def close(self) -> None:
        """Teach it nothing more."""
        self._lesson.close()

    def note_described(self, weights: bytes) -> None:
        """Forget what was learned where the targets have other weights, or it is another process.

        One that only measured again is the same: what it measured is taken over.
        """
        model, record = self.peer.model, self.record
        process, measured = (process_of(model), measured_of(model)) if model else (b"", b"")
        if (weights, process) != record.models:
            if process != record.models[1]:
                self.held.clear()
            record.rates = rates_of_draft(self.peer)
        elif model is not None and measured != record.measured:
            take_measured_rates(record.rates, model)
        record.models, record.measured = (weights, process), measured

    def misfit(self) -> str:
        """Return why it cannot draft for these targets, or not yet; empty where it can."""
        return str(self.mismatch) if self.mismatch is not None else self._lesson.obstacle

    def may_draft(self, rule: Rule) -> bool:
        """Return whether it can be leased for a generation under this rule."""
        if rule is Rule.REJECTION and not self.is_trusted:
            return False
        is_admitted = self.health.admits(time.monotonic(), self.generation_count)
        return is_admitted and not self.obstacle()

    def note_tokens(self) -> None:
        """It drafted."""
        self.health.note_success()
        self.record.silent_count = 0

    def note_silent(self) -> None:
        """A text ended that had ordered something of it and had no token."""
        self.record.silent_count += 1

    def seconds(self, rule: Rule, text: Sequence[bytes] = ()) -> float:
        """Return the time of an accepted token; `text` is what it would read, by digests.

        It is inf where so many texts in a row had no token.
        """
        if self.record.silent_count >= _MOST_SILENT:
            return math.inf
        rates = self.rates
        unread = BLOCK * len(text) - self.held.count(text)
        return seconds_of_draft(
            text_count=self.generation_count,
            token_seconds=rates.token_time.value,
            latency_seconds=rates.latency.value,
            acceptance=rates.acceptance.get(rule, AcceptanceRate()).mean,
            unread_seconds=unread * rates.read_time.value,
        )
