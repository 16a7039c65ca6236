"""The sampling parameters as a value, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import Field, dataclass, fields, replace
from enum import Enum
from typing import Any

from outrider.errors import InvalidRequest
from outrider.option_fields import option

MAX_TEMPERATURE = 1000.0  # beyond, a distribution is flat
MAX_BIAS = 1e6
"""The largest finite bias: more would leave the range of a float once divided by a temperature."""

MAX_BIASES = 4096  # biased tokens of one request
MAX_BREAKERS = 16  # texts at which DRY ends a repetition
BREAKER_BYTES = 40
"""llama.cpp's own limit on a text that ends what DRY counts as one repetition."""

_INT32 = 2**31 - 1

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingNumbers:
    """The numbers of how to sample; the defaults are llama.cpp's.

    Messages, HTTP bodies, the page, JSON-RPC and the options of commands have them under these
    names and take what is in these ranges.
    """

    temperature: float = option(0.8, "0: greedy.", low=0, high=MAX_TEMPERATURE)
    dynatemp_range: float = option(
        0.0,
        "The temperature moves so far, with the entropy; 0: off.",
        low=0,
        high=MAX_TEMPERATURE,
    )
    dynatemp_exponent: float = option(1.0, "How it follows the entropy.", low=0, high=100)
    top_k: int = option(40, "0: off.", low=0, high=_INT32)
    top_p: float = option(0.95, "1: off.", low=0, high=1)
    min_p: float = option(0.05, "0: off.", low=0, high=1)
    top_n_sigma: float = option(-1.0, "-1: off.", low=-1, high=1e6)  # off unless above 0
    tfs_z: float = option(1.0, "Tail-free sampling; 1: off.", low=0, high=1)
    xtc_probability: float = option(0.0, "0: off.", low=0, high=1)
    xtc_threshold: float = option(0.1, "The probability of a top choice.", low=0, high=1)
    typical_p: float = option(1.0, "1: off.", low=0, high=1)
    repeat_last_n: int = option(
        64, "Tokens that penalties look at; -1: the context.", low=-1, high=_INT32
    )
    repeat_penalty: float = option(1.0, "1: off.", low=1e-3, high=1e3)
    presence_penalty: float = option(0.0, "0: off.", low=-1e3, high=1e3)
    frequency_penalty: float = option(0.0, "0: off.", low=-1e3, high=1e3)
    dry_multiplier: float = option(0.0, "0: off.", low=0, high=1e3)
    dry_base: float = option(1.75, "Below 1: off.", low=0, high=1e3)
    dry_allowed_length: int = option(2, "Longer repetitions cost.", low=0, high=_INT32)
    dry_penalty_last_n: int = option(
        -1, "Tokens that DRY looks at; -1: the context.", low=-1, high=_INT32
    )
    mirostat: int = option(0, "1 or 2, its version; 0: off.", low=0, high=2)
    mirostat_tau: float = option(5.0, "The surprise to aim at, in bits.", low=0, high=100)
    mirostat_eta: float = option(0.1, "How fast it is corrected.", low=0, high=1)
    min_keep: int = option(
        0,
        "Tokens that top-p, min-p, typical-p, tail-free and XTC leave at least.",
        low=0,
        high=_INT32,
    )


NUMBERS = tuple(each.name for each in fields(SamplingNumbers))


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParameters(SamplingNumbers):
    """How a row of logits becomes a distribution.

    The grammar masks the row before everything else. Then follow
    `logit_bias` and the `stages`. With mirostat they are the penalties that
    `stages` names, the temperature and mirostat. Raises InvalidRequest when a
    value is outside its range or not a number.
    """

    penalize_newline: bool = True
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, what is added); -inf: never
    grammar: str = ""  # GBNF
    stages: tuple[Stage, ...] = DEFAULT_STAGES

    def __post_init__(self) -> None:
        for each in fields(SamplingNumbers):
            _check(each, getattr(self, each.name))
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


def _check(number: Field[Any], value: float) -> None:
    low, high = number.metadata["low"], number.metadata["high"]
    if not low <= value <= high:
        raise InvalidRequest(number.name, f"must be in [{low:g}, {high:g}], not {value!r}")
    if isinstance(number.default, int) and value != int(value):
        raise InvalidRequest(number.name, f"must be a whole number, not {value!r}")


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
