"""llama.cpp's sampler chains with the state of one session.

What llama.cpp draws inside `apply` (XTC, mirostat) is written anew here: it
cuts as llama.cpp does, and the draw is the caller's own. What llama.cpp no
longer has (tail-free sampling) is here too. All else are its own samplers.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from outrider.distribution import Distribution, certain, from_logits, largest, ranked
from outrider.engine.grammar_matcher import GrammarMatcher, GrammarVocabulary
from outrider.engine.llama_candidates import Candidates
from outrider.engine.llama_library import ll
from outrider.engine.model import Row
from outrider.errors import InvalidRequest
from outrider.grammar.gbnf import read_grammar
from outrider.noise import Purpose, uniform
from outrider.sampling import SCORING, SamplingParameters, Stage

_FEW = 16_384  # candidates that llama.cpp's own top-p cuts as fast
_NO_TOKEN = -1  # as llama.cpp names it
_NOTHING_POSSIBLE = "leaves no token possible here"
_MIROSTAT_TOKENS = 100
"""Tokens that mirostat 1 estimates the slope from: llama.cpp's own number."""


class _Link(Protocol):
    """One or more stages of a chain."""

    def apply(self, candidates: Candidates) -> None:
        """Change the candidates' logits, or drop some."""

    def accept(self, token_id: int) -> None:
        """Advance the state by a token."""

    def clone(self) -> _Link:
        """Return a copy that goes its own way."""


class _Native:
    """A sampler of llama.cpp. One without a state serves every copy of a chain."""

    def __init__(self, handle: Any, has_state: bool = False) -> None:
        self._handle = handle
        self._has_state = has_state

    def apply(self, candidates: Candidates) -> None:
        candidates.apply(self._handle)

    def probabilities(self, candidates: Candidates) -> NDArray[np.float32]:
        return candidates.probabilities(self._handle)

    def accept(self, token_id: int) -> None:
        if self._has_state:
            ll.llama_sampler_accept(self._handle, token_id)

    def clone(self) -> _Native:
        return _Native(ll.llama_sampler_clone(self._handle), True) if self._has_state else self

    def __del__(self) -> None:
        ll.llama_sampler_free(self._handle)


class _Score(Protocol):
    """A stage that changes logits one by one, so that it may stand before the grammar."""

    def change(self, logits: Row) -> None:
        """Change the logits of some ids, in place."""

    def accept(self, token_id: int) -> None:
        """Advance the state by a token."""

    def clone(self) -> _Score:
        """Return a copy that goes its own way."""


class _Bias:
    """Adds to the logits of a few ids."""

    def __init__(self, biases: Sequence[tuple[int, float]]) -> None:
        self._ids = np.array([token_id for token_id, _ in biases], np.int32)
        self._added = np.array([bias for _, bias in biases], np.float32)

    def change(self, logits: Row) -> None:
        np.add.at(logits, self._ids, self._added)  # an id that is named twice gets both

    def accept(self, token_id: int) -> None:
        return None

    def clone(self) -> _Bias:
        return self


class _Repetition:
    """Penalties or DRY: a sampler that changes only tokens among the text's last ones.

    So of a whole vocabulary it is shown no others. The exempt token keeps its logit.
    """

    def __init__(self, sampler: _Native, window: int, exempt: int = _NO_TOKEN) -> None:
        self._sampler = sampler
        self._exempt = exempt
        self._last = np.empty(window, np.int32)  # a ring
        self._count = 0  # tokens that were accepted; the next one goes to `_count % window`

    def change(self, logits: Row) -> None:
        ids = self._last[: self._count]
        seen = Candidates(len(ids))
        seen.fill(logits[ids], ids)
        self.apply(seen)
        logits[ids] = seen.logits

    def apply(self, candidates: Candidates) -> None:
        spared = candidates.ids == self._exempt
        logits = candidates.logits[spared]
        self._sampler.apply(candidates)
        candidates.logits[spared] = logits

    def accept(self, token_id: int) -> None:
        self._sampler.accept(token_id)
        self._last[self._count % len(self._last)] = token_id
        self._count += 1

    def clone(self) -> _Repetition:
        copy = _Repetition(self._sampler.clone(), 0, self._exempt)
        copy._last, copy._count = self._last.copy(), self._count
        return copy


class _TopP:
    """Keeps the fewest tokens with the mass p, the very ones that llama.cpp's own sampler keeps.

    Its own sorts a whole vocabulary where they are more than 256. Here only those are sorted that
    are likely enough. Where two that are equal stand on either side of the cut, its own decides.
    """

    def __init__(self, parameters: SamplingParameters) -> None:
        self._p = np.float32(parameters.top_p)
        self._least = parameters.min_keep
        self._whole = _Native(ll.llama_sampler_init_top_p(parameters.top_p, parameters.min_keep))
        self._best = _Native(ll.llama_sampler_init_top_p(0.0, 0))

    def apply(self, candidates: Candidates) -> None:
        is_small = len(candidates) <= _FEW
        kept = None if is_small or candidates.is_sorted else self._kept(candidates)
        if kept is None:
            self._whole.apply(candidates)
        else:
            candidates.select(kept)

    def _kept(self, candidates: Candidates) -> NDArray[np.int64] | None:
        """Return where the kept ones are, the largest first, or None where that is not clear."""
        p = self._best.probabilities(candidates)
        likely = _likely(p, self._p)
        likely = likely[ranked(candidates.logits[likely])]
        mass = np.cumsum(p[likely])  # in float32 and one by one, as llama.cpp adds
        count = max(int(np.searchsorted(mass, self._p)) + 1, self._least)
        around = candidates.logits[likely[count - 1 : count + 1]]
        is_clear = count <= len(likely) and (len(around) == 1 or around[0] > around[1])
        return likely[:count] if is_clear else None

    def accept(self, token_id: int) -> None:
        return None

    def clone(self) -> _TopP:
        return self


def _likely(p: NDArray[np.float32], mass: np.float32) -> NDArray[np.int64]:
    """Return, rising, where the largest probabilities are, so many that they have this mass."""
    slots = np.flatnonzero(p > (1 - mass) / len(p))  # all others together have less than the rest
    p = p[slots]
    steps = (p.view(np.uint32) >> 19).astype(np.int64)  # 16 for each power of two
    masses = np.cumsum(np.bincount(steps, p)[::-1])
    # One step more, since this sum and llama.cpp's are not rounded alike.
    lowest = len(masses) - 2 - int(np.searchsorted(masses, mass))
    return slots[steps >= lowest]


class _Xtc:
    """Exclude top choices: with some probability, all but the last of the likely tokens go.

    The coin is keyed by the position in the text, so that a row has one distribution.
    """

    def __init__(
        self, parameters: SamplingParameters, seed: int, choice: int, position: int
    ) -> None:
        self._parameters = parameters
        self._seed, self._choice = seed, choice
        self._position = position

    def apply(self, candidates: Candidates) -> None:
        its = self._parameters
        coin = uniform(self._seed, self._choice, Purpose.XTC, 0, self._position)
        if len(candidates) < 2 or coin > its.xtc_probability:
            return
        p = candidates.sorted_probabilities()
        likely = int(np.count_nonzero(p >= np.float32(its.xtc_threshold)))
        excluded = max(0, likely - 1)
        if excluded and len(candidates) - excluded >= its.min_keep:
            candidates.keep(excluded, len(candidates))

    def accept(self, token_id: int) -> None:
        self._position += 1

    def clone(self) -> _Xtc:
        return _Xtc(self._parameters, self._seed, self._choice, self._position)


class _TailFree:
    """Cuts where the curvature of the sorted probabilities is used up.

    Source: Phénix and Egan, "Tail Free Sampling" (2019), as llama.cpp had it.
    """

    def __init__(self, parameters: SamplingParameters) -> None:
        self._z = np.float32(parameters.tfs_z)
        self._least = max(1, parameters.min_keep)

    def apply(self, candidates: Candidates) -> None:
        if len(candidates) <= 2:
            return
        curvature = np.abs(np.diff(candidates.sorted_probabilities(), 2))
        total = curvature.sum()
        share = curvature / total if total > 1e-6 else np.full_like(curvature, 1 / len(curvature))
        beyond = self._least + np.flatnonzero(np.cumsum(share)[self._least :] > self._z)
        if beyond.size:
            candidates.keep(0, int(beyond[0]))

    def accept(self, token_id: int) -> None:
        return None

    def clone(self) -> _TailFree:
        return self


class Mirostat:
    """Keeps the surprise of the text near tau, by how many of the sorted tokens it keeps.

    Its state `mu` follows from the drawn tokens and their probabilities, not
    from the text alone, so another session that continues it must be given it. Source:
    Basu et al. 2007.14966, in llama.cpp's form.
    """

    def __init__(self, parameters: SamplingParameters, vocabulary: int) -> None:
        self._parameters = parameters
        self._vocabulary = vocabulary

    @property
    def start(self) -> float:
        """What mu is before the first token."""
        return 2.0 * self._parameters.mirostat_tau

    def cut(self, candidates: Candidates, mu: float) -> None:
        """Keep the likely tokens, at least one."""
        logits = candidates.logits
        best = logits.max()
        weights = np.exp(logits - best, dtype=np.float64)
        total = float(weights.sum())
        if self._parameters.mirostat == 1:
            likely = largest(weights, _MIROSTAT_TOKENS)
            top = np.sort(weights[likely])[::-1][:_MIROSTAT_TOKENS] / total
            count = self._slope_cut(top, mu)
        else:
            count = int(np.count_nonzero(weights >= total * 2.0**-mu))
        candidates.keep_largest(max(1, min(count, len(candidates))))

    def _slope_cut(self, top: NDArray[np.float64], mu: float) -> int:
        """Return how many tokens reach mu if the probabilities fall as a power of the rank."""
        if len(top) < 2 or top[-1] == 0:
            return 1  # no slope: what llama.cpp's casts make of it
        ranks = np.arange(1, len(top))
        t, b = np.log((ranks + 1) / ranks), np.log(top[:-1] / top[1:])
        s = float((t * b).sum() / (t * t).sum())
        epsilon = s - 1.0
        try:
            return int(((epsilon * 2.0**mu) / (1.0 - self._vocabulary**-epsilon)) ** (1.0 / s))
        except (OverflowError, ZeroDivisionError):
            return 1

    def moved(self, mu: float, probability: float) -> float:
        """Return mu after a token of this probability among the kept ones was drawn."""
        its = self._parameters
        surprise = -math.log2(max(probability, 1e-300))
        return mu - its.mirostat_eta * (surprise - its.mirostat_tau)


def _texts_for_grammars(vocabulary: Any, size: int) -> GrammarVocabulary:
    """Return what a grammar sees of a vocabulary.

    llama.cpp's own sampler is not asked: there are grammars with which it ends
    the process, or never ends (docs/decisions/0015). As there, a token's text is
    also what a control token is named, and the ends of a text are no text.
    """
    is_end = np.array([ll.llama_vocab_is_eog(vocabulary, i) for i in range(size)], np.bool_)
    texts = [b"" if is_end[i] else _text_with_control(vocabulary, i) for i in range(size)]
    return GrammarVocabulary(texts, is_end)


def _text_with_control(vocabulary: Any, token_id: int) -> bytes:
    """Return a token's text, where a control token has its name."""
    buffer = ctypes.create_string_buffer(256)
    while True:
        length = ll.llama_token_to_piece(vocabulary, token_id, buffer, len(buffer), 0, True)
        if length >= 0:
            return buffer.raw[:length]
        buffer = ctypes.create_string_buffer(-length)


class GrammarMask:
    """The stage that leaves only the tokens that a grammar allows."""

    def __init__(self, matcher: GrammarMatcher) -> None:
        self._matcher = matcher

    def mask(self, logits: Row) -> None:
        """Make what is not allowed impossible. Raises InvalidRequest for what is too complex."""
        np.copyto(logits, -np.inf, where=~self._matcher.allowed())

    def accept(self, token_id: int) -> None:
        """Advance by a token. Raises InvalidRequest if it is not allowed."""
        if not self._matcher.accept(token_id):
            raise InvalidRequest("grammar", f"does not allow token {token_id} where it stands")

    def clone(self) -> GrammarMask:
        return GrammarMask(self._matcher.clone())


@dataclass(frozen=True, slots=True)
class Links:
    """What a chain is made of, in the order in which it is applied."""

    scores: Sequence[_Score]
    grammar: GrammarMask | None
    cuts: Sequence[_Link]
    mirostat: Mirostat | None

    def clone(self) -> Links:
        """Return copies that go their own way."""
        return Links(
            [link.clone() for link in self.scores],
            self.grammar.clone() if self.grammar else None,
            [link.clone() for link in self.cuts],
            self.mirostat,
        )


class _Desk(threading.local):
    """The candidates that all chains of a model fill anew for each row; each thread has its own."""

    def __init__(self, size: int) -> None:
        """Called in each thread that uses it."""
        self.candidates = Candidates(size)


class ChainSampler:
    """One session's chain and its state. Implements `Sampler`."""

    def __init__(self, parameters: SamplingParameters, desk: _Desk, links: Links) -> None:
        self.has_state: bool = parameters.has_state
        self._parameters = parameters
        self._desk = desk
        self._links = links
        self.mirostat_mu = links.mirostat.start if links.mirostat else None
        self._last_distribution: Distribution | None = None
        self._takes_the_best = parameters.greedy and not (links.cuts or links.mirostat)
        cuts = [stage for stage in parameters.active_stages() if stage not in SCORING]
        self._begins_with_top_k = cuts[:1] == [Stage.TOP_K]

    def distribution(self, row: Row) -> Distribution:
        if self._takes_the_best:
            return certain(self._best(row))
        candidates, links = self._desk.candidates, self._links
        if self._begins_with_top_k:
            candidates.fill_with_largest(self._scored(row), self._parameters.top_k)
        else:
            candidates.fill(self._scored(row))
        for link in links.cuts:
            link.apply(candidates)
        if links.mirostat and self.mirostat_mu is not None and not self._parameters.greedy:
            links.mirostat.cut(candidates, self.mirostat_mu)
        self._last_distribution = self._read(candidates)
        return self._last_distribution

    def _best(self, row: Row) -> int:
        scored = self._scored(row)
        best = int(scored.argmax())  # the first of equals
        if not scored[best] > -np.inf:
            raise InvalidRequest("sampling", _NOTHING_POSSIBLE)
        return best

    def _scored(self, row: Row) -> Row:
        """Return the row as the cuts see it."""
        links = self._links
        if not (links.scores or links.grammar):
            return row
        row = row.copy()
        for score in links.scores:
            score.change(row)
        if links.grammar:
            links.grammar.mask(row)
        return row

    def _read(self, candidates: Candidates) -> Distribution:
        ids, logits = candidates.ids, candidates.logits
        best = logits[logits.argmax()]
        if best == -np.inf:
            raise InvalidRequest("sampling", _NOTHING_POSSIBLE)
        if self._parameters.greedy or best == np.inf:
            return certain(int(ids[logits == best].min()))
        possible = logits > -np.inf
        return from_logits(ids[possible], logits[possible])

    def accept(self, token_id: int, is_prompt: bool = False) -> None:
        links = self._links
        if links.grammar and not is_prompt:
            links.grammar.accept(token_id)
        if links.mirostat and self.mirostat_mu is not None and self._last_distribution is not None:
            probability = self._last_distribution.probability(token_id)
            self.mirostat_mu = links.mirostat.moved(self.mirostat_mu, probability)
        self._last_distribution = None
        for score in links.scores:
            score.accept(token_id)
        for cut in links.cuts:
            cut.accept(token_id)

    def clone(self) -> ChainSampler:
        copy = ChainSampler(self._parameters, self._desk, self._links.clone())
        copy.mirostat_mu = self.mirostat_mu
        copy._last_distribution = self._last_distribution
        return copy


class Samplers:
    """Makes the chains of one model's sessions. `sampler` may be called from any thread."""

    def __init__(self, vocabulary: Any, size: int, context: int) -> None:
        self._vocabulary = vocabulary
        self._size = size
        self._context = context
        self._desk = _Desk(size)
        self._newline = int(ll.llama_vocab_nl(vocabulary))
        self._suppressed = _suppressed(vocabulary)
        # These read the whole vocabulary, or a long text.
        self._new_dry = lru_cache(8)(self._make_dry)
        self._new_grammar = lru_cache(8)(self._make_grammar)
        # Now, while the model loads: it takes .4 s at 150,000 tokens, and nothing else runs then.
        self._texts = _texts_for_grammars(vocabulary, size)

    def sampler(self, parameters: SamplingParameters, seed: int, choice: int) -> ChainSampler:
        """Return the chain of a new session.

        Raises InvalidRequest for a grammar that is not sound and for ids
        outside the vocabulary.
        """
        stages = parameters.active_stages()
        scoring = list(takewhile(lambda stage: stage in SCORING, stages))
        grammar = None
        if parameters.grammar:
            grammar = self._new_grammar(parameters.grammar).clone()
        return ChainSampler(
            parameters,
            self._desk,
            Links(
                [
                    *self._bias(parameters),
                    *(self._repetition(each, parameters) for each in scoring),
                ],
                grammar,
                [self._link(each, parameters, seed, choice) for each in stages[len(scoring) :]],
                Mirostat(parameters, self._size) if parameters.mirostat else None,
            ),
        )

    def _bias(self, parameters: SamplingParameters) -> list[_Bias]:
        biases = [*parameters.logit_bias, *((i, -math.inf) for i in self._suppressed)]
        if not biases:
            return []
        for token_id, _ in biases:
            if not 0 <= token_id < self._size:
                raise InvalidRequest(
                    "logit_bias", f"token id {token_id} is outside [0, {self._size})"
                )
        return [_Bias(biases)]

    def _link(self, stage: Stage, its: SamplingParameters, seed: int, choice: int) -> _Link:
        if stage is Stage.XTC:
            return _Xtc(its, seed, choice, 0)
        if stage is Stage.TFS_Z:
            return _TailFree(its)
        if stage is Stage.TOP_P:
            return _TopP(its)
        if stage in SCORING:
            return self._repetition(stage, its)
        make: dict[Stage, Callable[[], Any]] = {
            Stage.TOP_N_SIGMA: lambda: ll.llama_sampler_init_top_n_sigma(its.top_n_sigma),
            Stage.TOP_K: lambda: ll.llama_sampler_init_top_k(its.top_k),
            Stage.TYPICAL_P: lambda: ll.llama_sampler_init_typical(its.typical_p, its.min_keep),
            Stage.MIN_P: lambda: ll.llama_sampler_init_min_p(its.min_p, its.min_keep),
            Stage.TEMPERATURE: lambda: ll.llama_sampler_init_temp_ext(
                its.temperature, its.dynatemp_range, its.dynatemp_exponent
            ),
        }
        return _Native(make[stage]())

    def _repetition(self, stage: Stage, its: SamplingParameters) -> _Repetition:
        if stage is Stage.DRY:
            window = self._within_context(its.dry_penalty_last_n)
            dry = self._new_dry(
                its.dry_multiplier,
                its.dry_base,
                its.dry_allowed_length,
                window,
                its.dry_sequence_breakers,
            )
            return _Repetition(dry.clone(), window)
        window = self._within_context(its.repeat_last_n)
        penalties = ll.llama_sampler_init_penalties(
            self._size,
            window,
            its.repeat_penalty,
            its.frequency_penalty,
            its.presence_penalty,
        )
        exempt = _NO_TOKEN if its.penalize_newline else self._newline
        return _Repetition(_Native(penalties, has_state=True), window, exempt)

    def _make_dry(
        self, multiplier: float, base: float, length: int, window: int, breakers: Sequence[str]
    ) -> _Native:
        texts = (ctypes.c_char_p * len(breakers))(*(breaker.encode() for breaker in breakers))
        return _Native(
            ll.llama_sampler_init_dry(
                self._vocabulary, multiplier, base, length, window, texts, len(breakers)
            ),
            has_state=True,
        )

    def _make_grammar(self, text: str) -> GrammarMask:
        return GrammarMask(self._texts.matcher(read_grammar(text)))

    def _within_context(self, window: int) -> int:
        return self._context if window < 0 else min(window, self._context)


def _suppressed(vocabulary: Any) -> list[int]:
    """Return the ids that the model's file says are never to be drawn."""
    count = ctypes.c_int32(0)
    ids = ll.llama_vocab_get_suppress_tokens(vocabulary, ctypes.byref(count))
    return list(ids[: count.value]) if ids else []
