"""How a request wants to speculate, as a value, checked. Pure.

Nothing here changes the distribution of the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from outrider.errors import InvalidRequest
from outrider.messages import MAX_DRAFT, Rule


class Policy(Enum):
    """Who decides how many tokens to draft."""

    MEASURED = "measured"  # what pays by the measured times and acceptance
    FIXED = "fixed"  # n_max, always
    CLASSIC = "classic"  # the rule of llama.cpp's example


class Verification(Enum):
    """What the rejection rule accepts or rejects as one."""

    BLOCK = "block"  # the draft of a round, never fewer tokens on average
    TOKEN = "token"  # one token after the other, as in the first papers


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """The options of one request, under the names that every surface uses.

    Raises InvalidRequest with the field's name.
    """

    enabled: bool = True
    n_max: int = 16  # draft tokens of a round at most; with CLASSIC, of the first one
    n_min: int = 0  # a shorter draft is not verified
    p_min: float = 0.0  # drafting stops at a token less probable than this to the draft
    run_ahead: bool | None = None  # draft while the target verifies; None is as it pays
    policy: Policy = Policy.MEASURED
    verification: Verification = Verification.BLOCK  # matters under the rejection rule alone

    def __post_init__(self) -> None:
        if not 0 <= self.n_max <= MAX_DRAFT:
            raise InvalidRequest("n_max", f"must be in [0, {MAX_DRAFT}], not {self.n_max}")
        if not 0 <= self.n_min <= self.n_max:
            raise InvalidRequest("n_min", f"must be in [0, n_max], not {self.n_min}")
        if not 0.0 <= self.p_min <= 1.0:
            raise InvalidRequest("p_min", f"must be in [0, 1], not {self.p_min}")

    def check_rule(self, rule: Rule) -> None:
        """Raise InvalidRequest for options that would bias an acceptance rule.

        Under rejection nothing that looks at a drafted token may end a block.
        """
        if rule is Rule.REJECTION and self.p_min > 0.0:
            raise InvalidRequest("p_min", "does not go with acceptance rejection")
        if rule is Rule.REJECTION and self.policy is Policy.CLASSIC:
            raise InvalidRequest("policy", "classic does not go with acceptance rejection")

    @property
    def drafts(self) -> bool:
        """Whether there is anything to draft."""
        return self.enabled and self.n_max > 0


DEFAULT = Speculation()
