"""The sampling parameters as a value, checked, and the distribution they give a row of logits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from outrider.distribution import Distribution, certain, from_logits
from outrider.errors import InvalidRequest

MAX_TEMPERATURE = 1000.0
MAX_BIAS = 1e6
"""The largest finite bias: more would leave the range of a float once divided by a temperature."""

MAX_BIASES = 4096
MAX_BREAKERS = 16
BREAKER_BYTES = 40
"""llama.cpp's own limit on a text that ends what DRY counts as one repetition."""

_NEAR_ZERO = 1e-5
"""Below this temperature the distribution is greedy: logits divided by less would overflow."""


_SURE_OF = 40
"""How many of the best tokens a distribution consists of that says how sure the best one is."""


class Stage(Enum):
    """One link of the sampler chain, under llama.cpp's names."""

    PENALTIES = "penalties"
    DRY = "dry"
    TOP_N_SIGMA = "top_n_sigma"
    TOP_K = "top_k"
    TFS_Z = "tfs_z"
    TYPICAL_P = "typ_p"
    TOP_P = "top_p"
    MIN_P = "min_p"
    XTC = "xtc"
    TEMPERATURE = "temperature"


_OTHER_NAMES = {"typical_p": Stage.TYPICAL_P, "typical": Stage.TYPICAL_P, "temp": Stage.TEMPERATURE}


def read_stages(names: Sequence[str]) -> tuple[Stage, ...]:
    """Return the stages of these names. Raises InvalidRequest for one that is not known."""
    known = {stage.value: stage for stage in Stage} | _OTHER_NAMES
    for name in names:
        if name not in known:
            raise InvalidRequest("samplers", f"{name!r} is none of {', '.join(known)}")
    return tuple(known[name] for name in names)


DEFAULT_STAGES = tuple(Stage)
"""llama.cpp's order; tail-free sampling, which it no longer has, stands after top-k as it did."""

SCORING = frozenset({Stage.PENALTIES, Stage.DRY})
"""The stages that change each logit by itself, and drop none."""

_KEEP_THE_BEST = {Stage.TOP_N_SIGMA, Stage.TOP_K, Stage.TOP_P, Stage.MIN_P}


def _real(default: float, low: float, high: float) -> float:
    """Return the field of a number in [low, high]."""
    made: float = field(default=default, metadata={"low": low, "high": high, "whole": False})
    return made


def _whole(default: int, low: int, high: int = 2**31 - 1) -> int:
    """Return the field of a whole number in [low, high]."""
    made: int = field(default=default, metadata={"low": low, "high": high, "whole": True})
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParameters:
    """How a row of logits becomes a distribution; the defaults are llama.cpp's.

    The grammar masks the row before everything else. Then follow
    `logit_bias` and the `stages`. With mirostat they are the penalties that
    `stages` names, the temperature and mirostat. Raises InvalidRequest when a
    value is outside its range or not a number.
    """

    temperature: float = _real(0.8, 0.0, MAX_TEMPERATURE)
    dynatemp_range: float = _real(0.0, 0.0, MAX_TEMPERATURE)
    """By so much the temperature moves, with the entropy."""
    dynatemp_exponent: float = _real(1.0, 0.0, 100.0)
    top_k: int = _whole(40, 0)
    top_p: float = _real(0.95, 0.0, 1.0)
    min_p: float = _real(0.05, 0.0, 1.0)
    top_n_sigma: float = _real(-1.0, -1.0, 1e6)  # off unless above 0
    tfs_z: float = _real(1.0, 0.0, 1.0)
    xtc_probability: float = _real(0.0, 0.0, 1.0)
    xtc_threshold: float = _real(0.1, 0.0, 1.0)
    typical_p: float = _real(1.0, 0.0, 1.0)
    repeat_last_n: int = _whole(64, -1)  # tokens that penalties look at; -1 is the context
    repeat_penalty: float = _real(1.0, 1e-3, 1e3)
    presence_penalty: float = _real(0.0, -1e3, 1e3)
    frequency_penalty: float = _real(0.0, -1e3, 1e3)
    penalize_newline: bool = True
    dry_multiplier: float = _real(0.0, 0.0, 1e3)
    dry_base: float = _real(1.75, 0.0, 1e3)
    dry_allowed_length: int = _whole(2, 0)
    dry_penalty_last_n: int = _whole(-1, -1)  # -1 is the context
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = _whole(0, 0, 2)  # 1 and 2 are its versions
    mirostat_tau: float = _real(5.0, 0.0, 100.0)
    mirostat_eta: float = _real(0.1, 0.0, 1.0)
    min_keep: int = _whole(0, 0)
    """Tokens that top-p, min-p, typical-p, tail-free and XTC leave at least."""
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, what is added); -inf: never
    grammar: str = ""  # GBNF
    stages: tuple[Stage, ...] = DEFAULT_STAGES

    def __post_init__(self) -> None:
        for each in _NUMBERS:
            _check(each.name, getattr(self, each.name), **each.metadata)
        _check_breakers(self.dry_sequence_breakers)
        check_biases(self.logit_bias)
        if "\0" in self.grammar:
            raise InvalidRequest("grammar", "holds a NUL character")
        if len(set(self.stages)) != len(self.stages):
            raise InvalidRequest("samplers", "names one twice")

    @property
    def greedy(self) -> bool:
        """Whether the distribution is always one token."""
        if self.temperature >= _NEAR_ZERO:
            return False
        return bool(self.mirostat) or (
            self.dynatemp_range < _NEAR_ZERO and Stage.TEMPERATURE in self.stages
        )

    @property
    def penalizes(self) -> bool:
        """Whether repetition, presence or frequency counts."""
        return self.repeat_last_n != 0 and (
            (self.repeat_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)
        )

    @property
    def repeats_are_penalized(self) -> bool:
        """Whether DRY counts."""
        return self.dry_multiplier > 0 and self.dry_base >= 1 and self.dry_penalty_last_n != 0

    @property
    def has_state(self) -> bool:
        """Whether the distribution of a row depends on the text besides."""
        stateful = {Stage.PENALTIES, Stage.DRY, Stage.XTC}
        return bool(self.grammar or self.mirostat or stateful & set(self.active_stages()))

    def active_stages(self) -> list[Stage]:
        """Return the stages that change anything, in order; mirostat itself is none of them.

        At temperature 0 what follows the temperature changes nothing, and what
        keeps the best token in any case may go where no other cut would see it.
        """
        active = {
            Stage.PENALTIES: self.penalizes,
            Stage.DRY: self.repeats_are_penalized,
            Stage.TOP_N_SIGMA: self.top_n_sigma > 0,
            Stage.TOP_K: self.top_k > 0,
            Stage.TFS_Z: self.tfs_z < 1,
            Stage.TYPICAL_P: self.typical_p < 1,
            Stage.TOP_P: self.top_p < 1,
            Stage.MIN_P: self.min_p > 0,
            Stage.XTC: self.xtc_probability > 0 and self.xtc_threshold <= 0.5,
            Stage.TEMPERATURE: True,
        }
        if self.mirostat:
            kept: Sequence[Stage] = [stage for stage in self.stages if stage in SCORING] + [
                Stage.TEMPERATURE
            ]
        else:
            kept = self.stages
        stages = [stage for stage in kept if active[stage]]
        if not self.greedy:
            return stages
        stages = stages[: stages.index(Stage.TEMPERATURE)]
        cuts = set(stages) - SCORING
        return [s for s in stages if s not in cuts] if cuts <= _KEEP_THE_BEST else stages

    def unsure(self) -> SamplingParameters:
        """Return parameters with the same best token, whose distribution says how sure it is."""
        if not self.greedy:
            return self
        cuts = self.active_stages()
        sure_of = () if Stage.TOP_K in cuts else (Stage.TOP_K,)
        return replace(
            self,
            temperature=1.0,
            top_k=self.top_k or _SURE_OF,
            mirostat=0,
            stages=(*cuts, *sure_of, Stage.TEMPERATURE),
        )

    def beyond_basic(self) -> list[str]:
        """Return the names of what has an effect besides top-k, top-p, min-p and temperature."""
        basic = (Stage.TOP_K, Stage.TOP_P, Stage.MIN_P, Stage.TEMPERATURE)
        named = {
            "logit_bias": bool(self.logit_bias),
            "grammar": bool(self.grammar),
            "mirostat": bool(self.mirostat),
            "dynatemp_range": self.dynatemp_range > 0,
            "min_keep": self.min_keep > 1,
            "samplers": tuple(stage for stage in self.stages if stage in basic) != basic,
        }
        effective = [name for name, is_set in named.items() if is_set]
        stages = [stage for stage in self.active_stages() if stage not in basic]
        return effective + [stage.name.lower() for stage in stages]


_NUMBERS = tuple(each for each in fields(SamplingParameters) if each.metadata)

NUMBERS = tuple(each.name for each in _NUMBERS)
"""The numbers among the parameters; messages, HTTP bodies and CLI options call them the same."""


def _check(name: str, value: float, low: float, high: float, whole: bool) -> None:
    if not low <= value <= high:
        raise InvalidRequest(name, f"must be in [{low:g}, {high:g}], not {value!r}")
    if whole and value != int(value):
        raise InvalidRequest(name, f"must be a whole number, not {value!r}")


def _check_breakers(breakers: Sequence[str]) -> None:
    name = "dry_sequence_breakers"
    if len(breakers) > MAX_BREAKERS:
        raise InvalidRequest(name, f"{len(breakers)}, at most {MAX_BREAKERS}")
    for breaker in breakers:
        if not 1 <= len(breaker.encode()) <= BREAKER_BYTES or "\0" in breaker:
            raise InvalidRequest(name, f"each has 1 to {BREAKER_BYTES} bytes and no NUL")


def check_bias_count(count: int) -> None:
    """Raise InvalidRequest for more logit biases than a chain takes."""
    if count > MAX_BIASES:
        raise InvalidRequest("logit_bias", f"{count} of them, at most {MAX_BIASES}")


def check_biases(biases: Sequence[tuple[int | str, float]]) -> None:
    """Raise InvalidRequest for too many, or for one that is neither finite nor -inf."""
    check_bias_count(len(biases))
    for token, bias in biases:
        if not (bias == -math.inf or -MAX_BIAS <= bias <= MAX_BIAS):
            raise InvalidRequest(
                "logit_bias", f"{bias!r} for token {token!r} is neither finite nor -inf"
            )


GREEDY = SamplingParameters(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)


def distribution_of(row: NDArray[np.float32], parameters: SamplingParameters) -> Distribution:
    """Return the distribution of a row of logits, float32[vocabulary].

    The chain is llama.cpp's (top-k, top-p, min-p, temperature), written
    anew for those who hold no model: the orchestrator in LOGITS form and the
    toy model. Equal logits rank by lowest id. Raises InvalidRequest where the
    parameters ask for more than these four.
    """
    more = parameters.beyond_basic()
    if more:
        raise InvalidRequest(more[0], "needs the target's own sampler chain")
    if parameters.greedy:
        return certain(int(row.argmax()))
    order = _top(row, parameters.top_k)
    logits = row[order]
    keep = min(_top_p(logits, parameters.top_p), _min_p(logits, parameters.min_p))
    return from_logits(order[:keep], logits[:keep] / np.float32(parameters.temperature))


def _top(row: NDArray[np.float32], count: int) -> NDArray[np.int32]:
    """Return the ids of the `count` largest logits, largest first; 0 means all."""
    order = np.argsort(-row, kind="stable").astype(np.int32)
    return order[:count] if count else order


def _top_p(logits: NDArray[np.float32], top_p: float) -> int:
    """Return how many of the sorted logits reach the mass `top_p`."""
    if top_p >= 1.0:
        return len(logits)
    weights = np.exp(logits.astype(np.float64) - float(logits[0]))
    mass = np.cumsum(weights)
    return int(np.searchsorted(mass, np.float32(top_p) * mass[-1])) + 1


def _min_p(logits: NDArray[np.float32], min_p: float) -> int:
    """Return how many of the sorted logits reach `min_p` times the best probability."""
    if min_p <= 0.0:
        return len(logits)
    floor = logits[0] + np.float32(math.log(min_p))
    return int(np.count_nonzero(logits >= floor))
