"""What is learned of a pair of models and the links to them. Pure.

Estimates only: what to do with them is the controller's. Everything that was learned can be
unlearned, since newer values outweigh older ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import pairwise

from orchestrator.core.forecast import frame_size
from orchestrator.core.gains import Gain
from outrider.costs import KERNEL_ROWS, NO_REJECTION_COST, Attended, CostTable, RejectionCost
from outrider.messages import Rule

_UNKNOWN_COSTS = ((1, 0.03), (64, 0.06))
_UNKNOWN_ACCEPTANCE = (4.0, 5.0)
"""Accepted of tried: high, so that a new draft is tried at once, and of so many that the first good
rounds are not taken for a draft that is always right."""
FIRST_PROBE = 16
"""Rounds without a draft before it is first tried again."""

_OWN_HOPE = 0.3  # of what a token of a target's own draft took at load it may take in truth
_READ_DOUBLING = 2048.0  # tokens of a text of which each takes twice as long to read, until seen
_LEAST_LENGTH = 256  # tokens of a text that say what each takes more for those before it
_LEAST_READ = 0.2
"""Of the time of a token of a text, as timed when others may have used the cores, at least."""
_OWN_PROBE_STEP, _LAST_OWN_PROBE = 4, 512
"""Times as many rounds before the next probe as before one in vain, and at most."""

_GAP = 0.0001  # seconds of a target's own work between two decodes, before it is known
_OWN_GAP = 0.0005  # and after one that its own draft drafted for
_GATHER_MS, _SEVERAL = 100, 3  # milliseconds, and writers from which on it is twice as long

_MOST_SHARING = 16.0
"""Sessions in a decode of a target that does not count them: more were a piece of a prompt."""

_HOPED = 0.85  # of the time of a decode that is only roughly known

FIRST_CREDIT, MOST_CREDIT = 64, 512
"""Tokens that a target may write by itself: at first, and at most.

It is renewed when half of it is used, and a message costs 2 ms of the processor.
"""

_CREDIT_SECONDS = 2.0  # that the tokens last, within these bounds


def credit_for(token_seconds: float, round_trip: float) -> int:
    """Return what a target may write by itself at first that takes so long for a token."""
    tokens = math.ceil((_CREDIT_SECONDS + 2.0 * round_trip) / token_seconds)
    return min(MOST_CREDIT, max(FIRST_CREDIT, tokens))


class Mean:
    """A mean of the latest values, weighted exponentially; `prior` until there is one."""

    _FADING, _DOUBT = 0.005, 0.01

    def __init__(self, prior: float, weight: float = 0.1) -> None:
        self.value = prior
        self.count = 0  # of the values so far
        self._prior = prior
        self._most = 1.0 / weight  # values that a new one is weighed against
        self._known = 0.0  # how many it is weighed against now, itself included

    @property
    def prior(self) -> float:
        """What it was before the first value."""
        return self._prior

    def note(self, value: float, most_rise: float = math.inf) -> None:
        """Take in a value, at most `most_rise` above this one; the first ones count in full."""
        value = min(value, self.value + most_rise)
        self.count += 1
        self._known = min(self._most, self._known + 1.0)
        self.value += (value - self.value) / self._known

    def hope_for(self, value: float) -> None:
        """Fall back towards this value from now on, where nothing is seen."""
        self._prior = value

    def restart(self, value: float) -> None:
        """Forget the values so far; `value` stands until the next one, which counts in full."""
        self.value, self._known = value, 0.0

    def doubt(self, rounds: int) -> None:
        """Let the next values count for more, since there were so many rounds without any."""
        self._known *= (1.0 - self._DOUBT) ** rounds

    def fade(self, rounds: int = 1) -> None:
        """Fall back towards the prior, since nothing was seen; the next values count for more.

        So a high value does not keep away for good what would show that it is lower now.
        """
        kept = (1.0 - self._FADING) ** rounds
        self._known *= kept
        self.value -= max(0.0, self.value - self._prior) * (1.0 - kept)


class Acceptance:
    """How often draft tokens are accepted, overall and by how sure the draft was.

    Only tokens that were decided count: the accepted ones and the first
    rejected one of a round (a censored geometric sample). Older rounds fade.
    """

    _EDGES = (8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 244, 253)
    _MEMORY, _SOURCE_MEMORY = 0.97, 0.99
    """How a count fades with each token. A source without a model drafts more than 33 tokens at
    once, as many as .97 remembers: then a copied stretch that long would promise no end at all."""
    _LONG_MEMORY = 0.99
    _LASTING_MEMORY = 0.998
    """Of what is forecast of further texts: 33 tokens say how good a draft is now, by .08 or so."""
    _SHRINKAGE = 4.0
    _CERTAIN = 30.0  # tokens: as many as count at all, about
    _TRUSTED = 12.0  # tokens: what a source says of itself counts for so many of each confidence
    _UNKNOWN_SOURCE = (0.8, 2.0)  # accepted of tried

    def __init__(self, before: Acceptance | None = None, weight: float = 12.0) -> None:
        """Start as `before` ended, as if that had been at most `weight` tokens."""
        bins = len(self._EDGES) + 1
        self._accepted, self._tried = [0.0] * bins, [0.0] * bins
        self._seen = [0.0] * bins
        self._all_accepted, self._all_tried = _UNKNOWN_ACCEPTANCE
        self._lasting_accepted = self._lasting_tried = 0.0
        self._memory = self._MEMORY
        if before is not None:
            self._memory = before._memory
            share = min(1.0, weight / before._all_tried)
            self._accepted = [share * count for count in before._accepted]
            self._tried = [share * count for count in before._tried]
            self._seen = [share * count for count in before._seen]
            self._all_accepted = share * before._all_accepted
            self._all_tried = share * before._all_tried

    @classmethod
    def trusting(cls, goes_by_matches: bool) -> Acceptance:
        """Return what is known of a source of which only its own confidences speak.

        One that goes by matches and says c is right with c squared, about: in texts and code .15
        to .27 of the tokens after a match of one (.5) stand, .35 to .55 of two (.67), .72 to .80
        of six to nine.
        """
        new = cls()
        new._memory = cls._SOURCE_MEMORY
        edges = (0, *cls._EDGES, 256)
        power = 2.0 if goes_by_matches else 1.0
        chances = [((low + high) / 512) ** power for low, high in pairwise(edges)]
        new._tried = [cls._TRUSTED] * len(chances)
        new._accepted = [cls._TRUSTED * chance for chance in chances]
        new._all_accepted, new._all_tried = cls._UNKNOWN_SOURCE
        return new

    @property
    def mean(self) -> float:
        """The chance of a token of which nothing is known, and some more while few were decided.

        Where a draft may just pay it costs next to nothing to find out (optimism in the face of
        uncertainty); one that was never tried waits for its first probe.
        """
        mean = (self._all_accepted + 0.1) / (self._all_tried + 0.2)
        doubt = max(0.0, self._all_tried**-0.5 - self._CERTAIN**-0.5)
        error = 0.5 * (mean * (1.0 - mean)) ** 0.5 * doubt
        return mean if self.is_untried else min(0.99, mean + error)

    @property
    def is_untried(self) -> bool:
        """Whether nothing was ever decided of a draft, neither here nor before."""
        return self._all_tried <= _UNKNOWN_ACCEPTANCE[1] and not any(self._tried)

    def note(self, confidences: Sequence[int], accepted: int) -> None:
        """Take in decided tokens by their confidences, of which the first `accepted` stood."""
        for i, confidence in enumerate(confidences):
            stood = float(i < accepted)
            bin_ = self._bin(confidence)
            self._accepted[bin_] = self._memory * self._accepted[bin_] + stood
            self._tried[bin_] = self._memory * self._tried[bin_] + 1.0
            self._seen = [self._LONG_MEMORY * count for count in self._seen]
            self._seen[bin_] += 1.0
            self._all_accepted = self._memory * self._all_accepted + stood
            self._all_tried = self._memory * self._all_tried + 1.0
            self._lasting_accepted = self._LASTING_MEMORY * self._lasting_accepted + stood
            self._lasting_tried = self._LASTING_MEMORY * self._lasting_tried + 1.0

    def lasting(self) -> Acceptance:
        """Return the same with the mean of many more tokens, as soon as it is of as many."""
        its = copy(self)
        if self._lasting_tried > self._all_tried:
            its._all_accepted, its._all_tried = self._lasting_accepted, self._lasting_tried
        return its

    def chance(self, confidence: int) -> float:
        """Return the chance of a token of this confidence, drawn towards the mean."""
        bin_ = self._bin(confidence)
        return (self._accepted[bin_] + self._SHRINKAGE * self.mean) / (
            self._tried[bin_] + self._SHRINKAGE
        )

    @property
    def confidences(self) -> list[tuple[int, float, float]]:
        """What is known by confidence: (least confidence, share of the tokens, chance)."""
        whole = sum(self._seen)
        return [
            (edge, seen / whole, self.chance(edge))
            for edge, seen in zip((0, *self._EDGES), self._seen, strict=True)
            if whole > 0.0
        ]

    def survival(self, confidences: Sequence[int], count: int) -> list[float]:
        """Return for each of `count` tokens the chance that it and all before it stand.

        Those beyond the known confidences are not drafted yet.
        """
        chances = [self.chance(confidence) for confidence in confidences[:count]]
        chances += [self.mean] * (count - len(chances))
        survival, product = [], 1.0
        for chance in chances:
            product *= chance
            survival.append(product)
        return survival

    def _bin(self, confidence: int) -> int:
        return sum(confidence >= edge for edge in self._EDGES)


@dataclass(slots=True)
class OwnDraftEstimates:
    """What is known of the draft in a target's own process."""

    token_time: Mean
    """Seconds of a drafted token, those of other sessions in the same decodes included."""
    read_time: float
    """Seconds of each token of a short text that it reads."""
    read_slope: float = 0.0
    """Seconds that each of them takes more for every token of the text."""
    unused_rounds: float = 0.0
    """Decodes since it was last seen to draft, in the latest generation to have any."""
    probe_after: int = FIRST_PROBE
    """After so many of them it is tried again."""
    gap: Mean = field(default_factory=lambda: Mean(_OWN_GAP))
    """Of the target's own work after a decode that it drafted for: what it adds is often sent at
    once, and the event loop then takes the interpreter from the engine."""
    gain: Gain = field(default_factory=Gain)
    """Of what it drafted, in truth."""
    least_read_time: float = 0.0
    """What `read_time` does not fall below: it may have been timed in a busy moment."""

    @classmethod
    def of_load(cls, token_seconds: float, read_seconds: float) -> OwnDraftEstimates:
        """Return what was timed at load, when others may have used the cores."""
        token_time = Mean(_OWN_HOPE * token_seconds)
        token_time.note(token_seconds)
        new = cls(token_time, read_seconds, read_seconds / _READ_DOUBLING)
        new.least_read_time = _LEAST_READ * read_seconds
        return new

    def reading_seconds(self, length: int) -> float:
        """Return the expected time of reading a text of so many tokens."""
        return length * (self.read_time + length * self.read_slope)

    def reading_at_load(self, length: int) -> float:
        """Return the same by what was timed at load alone."""
        each = self.least_read_time / _LEAST_READ
        return length * (each + length * each / _READ_DOUBLING)

    def note_reading(self, seconds: float, length: int) -> None:
        """It has read a text of so many tokens. Some may have been cached: half is believed.

        So is twice what was expected: the machine may have been busy. What is missing is shared out
        by the squares of the parts, as in `CostTable.note`, but a short text says little of long
        ones: else its noise would add up there.
        """
        expected = self.reading_seconds(length)
        missing = min(2.0 * expected, max(0.5 * expected, seconds)) - expected
        base, reach = length * self.read_time, length * length * self.read_slope
        doubled = length / _READ_DOUBLING if length >= _LEAST_LENGTH else 0.0
        whole = base**2 + (reach + base * doubled) ** 2  # a slope of 0 can rise
        if whole <= 0.0:
            return
        share = min(1.0, doubled) * (reach + base * doubled) ** 2 / whole
        self.read_time = max(self.least_read_time, (base + (1.0 - share) * missing) / length)
        self.read_slope = max(0.0, reach + share * missing) / length**2

    def note(self, seconds: float, count: int, pays: bool) -> None:
        """Learn from a draft of `count` tokens. It may have read some of the text before them.

        `pays` says whether it is used for more than to see how good it is.
        """
        if count and seconds > 0.0:
            self.token_time.note(seconds / count, self.token_time.value)
            self.token_time.hope_for(_HOPED * self.token_time.value)
        again = min(_LAST_OWN_PROBE, _OWN_PROBE_STEP * self.probe_after)
        self.unused_rounds, self.probe_after = 0, FIRST_PROBE if pays else again

    def note_silence(self) -> None:
        """It was asked again and again and drafted nothing: it is tried again, but later."""
        again = min(_LAST_OWN_PROBE, _OWN_PROBE_STEP * self.probe_after)
        self.unused_rounds, self.probe_after = 0, again

    def note_unused(self, rounds: int, sessions: float = 1.0) -> None:
        """Rounds had no draft of its own: what was once slow may be quicker now.

        So many sessions shared their decodes; each of them notes those.
        """
        self.unused_rounds += rounds / sessions
        self.token_time.fade(rounds)


OWN = "own"
"""The target's own draft, where acceptance is kept by source; people know it as the model."""


@dataclass(slots=True)
class PairEstimates:
    """What was learned about a pair of models and the links to them; outlives the sessions."""

    costs: CostTable = field(default_factory=lambda: CostTable(_UNKNOWN_COSTS))
    alone_share: float = 0.0
    """A token of the target alone, without padding and messages, over a decode of one row of ours,
    as measured together; 0 where not reported. What such decodes take in service follows."""
    same_host: bool = False  # draft and target share their cores
    takes_turns: bool = False  # and never decode at the same time
    sharing: Mean = field(default_factory=lambda: Mean(1.0))
    """Rows of a decode over the session's own: above 1 when others share it."""
    others_length: Mean = field(default_factory=lambda: Mean(0.0))
    """Tokens that a row of the others who share a decode attends to."""
    overhead: Mean = field(default_factory=lambda: Mean(0.002))
    """Of a round, what the target's decode does not explain, nor the others' before it."""
    queue: Mean = field(default_factory=lambda: Mean(0.0))
    """What a round that the target waited for waits for the others' decodes; 0 in turns."""
    continues: bool = False
    """The target writes by itself where it may."""
    rejection: RejectionCost = NO_REJECTION_COST
    """What rejected draft tokens cost at the target, beside decodes."""
    tree_leaves: int = 0
    """Leaves of a tree that the target verifies; 0: chains alone."""
    gap: Mean = field(default_factory=lambda: Mean(_GAP))
    """Of its own work between two decodes where it writes by itself, as it says: news of them comes
    late and several at once, so when they come says nothing of a few milliseconds."""
    own_draft: OwnDraftEstimates | None = None
    """Of the draft in the target's own process; None where it has none."""
    credit: int = FIRST_CREDIT
    """Tokens that it may write by itself: enough until news of them was answered."""
    latency: Mean = field(default_factory=lambda: Mean(0.002))
    """From an order to its first frame, what the draft's own time does not explain."""
    turn: Mean = field(default_factory=lambda: Mean(0.0))
    """What a draft that takes turns with its target waits for its own."""
    token_time: Mean = field(default_factory=lambda: Mean(0.005))
    """The draft's own time for one token."""
    loaded_token_time: float = 0.0
    """The same as measured when it was loaded; 0 if that was not reported."""
    is_roughly_loaded: bool = False
    """That was only a look in passing, perhaps beside others who loaded a model, too."""
    read_time: Mean = field(default_factory=lambda: Mean(0.0))
    """And for one token of a text that it reads."""
    slowdown: Mean = field(default_factory=lambda: Mean(1.0))
    """A decode of the target while the draft is busy, over one while it is not."""
    line_ratios: Sequence[float] = (1.0,)
    """A token's time while the draft writes 1, 2, ... lines, over one alone; as many as it can."""
    gain: Gain = field(default_factory=Gain)
    """Of what was drafted by this draft, in truth."""
    acceptance: dict[Rule, Acceptance] = field(default_factory=dict)
    """Of the draft's own tokens, by rule."""
    of_sources: dict[tuple[Rule, str], Acceptance] = field(default_factory=dict)
    """By rule and source, of what drafts without this draft: shared by all drafts of a target."""
    generation_count: int = 1
    """Generations that are being written."""
    unprobed_rounds: int = 0
    """Rounds since the draft was last seen to draft, in the latest generation to have any."""
    probe_after: int = FIRST_PROBE
    """After so many of them it is tried again."""

    def take_measured(self, of_target: PairEstimates) -> None:
        """Take over what was measured anew of the target; the costs are shared anyway."""
        self.alone_share, self.rejection = of_target.alone_share, of_target.rejection
        self.tree_leaves = of_target.tree_leaves

    def beside_another_draft(self) -> PairEstimates:
        """Return what is known of a pair of this target and a draft that was never tried.

        What is learned of the target is shared by both.
        """
        new = PairEstimates()
        return replace(
            self,
            same_host=False,
            takes_turns=False,
            latency=new.latency,
            turn=new.turn,
            token_time=new.token_time,
            loaded_token_time=0.0,
            is_roughly_loaded=False,
            read_time=new.read_time,
            slowdown=new.slowdown,
            line_ratios=new.line_ratios,
            gain=new.gain,
            acceptance={},
            unprobed_rounds=0,
            probe_after=FIRST_PROBE,
        )

    def gap_of(self, is_own: bool) -> Mean:
        """Return the gap after decodes that the target's own draft drafted for, or after others."""
        return self.own_draft.gap if is_own and self.own_draft is not None else self.gap

    @property
    def frame_tokens(self) -> int:
        """Tokens of a frame of a draft that runs ahead."""
        return frame_size(self.token_time.value)

    @property
    def gather_ms(self) -> int:
        """For how long a target may gather text that no draft needs at once.

        A message costs some 2 ms of the processor, for each who writes.
        """
        return _GATHER_MS if self.generation_count < _SEVERAL else 2 * _GATHER_MS

    @property
    def sessions_together(self) -> float:
        """Sessions that share a decode, ours included.

        That is the mean of the newest decodes, and at least all in flight where the target writes
        by itself, since each is then ready for every decode. Where draft and target take turns a
        decode is best shared by all; whether it was depends on what was chosen before.
        """
        together = self.generation_count if self.takes_turns or self.continues else 1
        return max(self.sharing.value, float(together))

    def sharing_of(self, spent: ServiceTime, row_count: int) -> float:
        """Return how many sessions were in a decode, where ours had so many rows.

        An older target reports rows alone: then it is how many like ours would have had those.
        """
        return max(1.0, spent.sessions or spent.rows / self.costs.padded(row_count))

    def note_sharing(self, spent: ServiceTime, row_count: int, length: int) -> Attended | None:
        """Learn who shared a decode with `row_count` rows of ours after `length` tokens.

        Returns what its rows attended to; None where its time says nothing of what so many rows
        cost, since others read a prompt in it or had other numbers of rows than ours.
        """
        own = self.costs.padded(row_count)
        if not spent.rows:
            return [(own, float(length))]
        sharing, is_alike = self.sharing_of(spent, row_count), self.is_alike(spent, own)
        if is_alike or spent.sessions:
            self.sharing.note(sharing)
        if not is_alike:
            return None
        if spent.rows <= own:
            return [(own, float(length))]
        others = float(length)
        if spent.attended:
            others = max(0.0, spent.attended - own * length) / (spent.rows - own)
        self.others_length.note(others)
        return [(own, float(length)), (spent.rows - own, others)]

    def is_alike(self, spent: ServiceTime, own: float) -> bool:
        """Return whether a decode had as many rows of each session as of ours, and no prompt's.

        Some rows more may have filled it.
        """
        if not spent.sessions:
            return spent.rows <= _MOST_SHARING * own
        least = spent.sessions * own
        return least <= spent.rows < least + (KERNEL_ROWS if spent.sessions > 1 else 1)

    def decode_seconds(self, row_count: int, length: int = 0) -> float:
        """Return the expected time of a decode with so many rows of a session, after its text.

        What was only measured roughly is hoped to take less, for one generation: else nobody would
        see that it does.
        """
        sharing = self.sessions_together
        own = self.costs.padded(row_count)
        seconds = self._shared_seconds(own, sharing, length)
        is_plain = own == self.costs.padded(1)  # and seen without any hope
        if is_plain or sharing > 1.0 or self.costs.is_known(own):
            return seconds
        return _HOPED * seconds

    def _shared_seconds(self, own: float, sharing: float, length: int) -> float:
        """Return the mean time of decodes with `own` rows of ours and as many of some others.

        Whole sessions share a decode, and a cost is no line between their row counts.
        """
        fewest = math.floor(sharing)

        def beside(sessions: int) -> float:
            others = ((sessions - 1) * own, self.others_length.value)
            return self.costs.seconds(sessions * own, ((own, length), others))

        seconds = beside(fewest)
        if sharing > fewest:
            seconds += (sharing - fewest) * (beside(fewest + 1) - seconds)
        return seconds


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """What the target says of a round: seconds, and rows of its decodes, others' included."""

    decode: float
    queue: float = 0.0  # waited for other sessions' decodes
    rows: int = 0
    attended: int = 0  # tokens that these rows attended to, summed over the rows
    draft: float = 0.0  # of the target's own draft
    sample: float = 0.0  # of its own work between decodes
    sessions: int = 0  # that generate in its decodes, ours included; 0 where it does not say

    def shared(self, decode_count: int) -> ServiceTime:
        """Return what one of so many decodes took."""
        if decode_count == 1:
            return self
        queue, rows = self.queue / decode_count, self.rows // decode_count
        decode, attended = self.decode / decode_count, self.attended // decode_count
        draft, sample = self.draft / decode_count, self.sample / decode_count
        sessions = self.sessions // decode_count
        return ServiceTime(decode, queue, rows, attended, draft, sample, sessions)


UNREPORTED = ServiceTime(0.0)


def plain_share(costs: CostTable, row_count: int, length: int) -> float:
    """Return what one row costs after a text as a share of what `row_count` rows cost there."""
    whole, one = (
        costs.seconds(count, ((costs.padded(count), length),)) for count in (row_count, 1)
    )
    return min(1.0, one / whole) if whole > 0 else 1.0
