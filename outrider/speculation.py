"""How a request wants to speculate, as a value, checked. Pure.

Nothing here changes the distribution of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from outrider.errors import InvalidRequest
from outrider.messages import MAX_DRAFT, MAX_LINES, Rule


class Policy(Enum):
    """Who decides how many tokens to draft."""

    MEASURED = "measured"  # what pays by the measured times and acceptance
    FIXED = "fixed"  # n_max, always
    CLASSIC = "classic"  # the rule of llama.cpp's example


class Verification(Enum):
    """What the rejection rule accepts or rejects as one."""

    BLOCK = "block"  # the draft of a round, never fewer tokens on average
    TOKEN = "token"  # one token after the other, as in the first papers


class DraftTemplate(Enum):
    """In whose chat template a draft reads a conversation."""

    TARGET = "target"  # it reads the prompt as it is
    OWN = "own"  # where it has one


class HeadKind(Enum):
    """How a head drafts from the target's hidden rows; its value is its name among the drafters."""

    MTP = "mtp"
    """A block of the target's kind, chained on its own hidden row."""
    EAGLE3 = "eagle3"
    """A small decoder over three of the target's layers, chained like MTP."""
    DFLASH = "dflash"
    """Drafts a whole block in one pass, from layers of the target that are put in its cache."""
    DSPARK = "dspark"
    """DFlash with a Markov head, so that each token of a block sees the one before."""

    @property
    def words(self) -> str:
        """What it is, for people."""
        return {
            HeadKind.MTP: "an MTP head",
            HeadKind.EAGLE3: "an EAGLE-3 head",
            HeadKind.DFLASH: "a DFlash head",
            HeadKind.DSPARK: "a DSpark head",
        }[self]


MODEL = "model"
"""The draft model, among the names of drafters."""

MODELS = (MODEL, *(kind.value for kind in HeadKind))
"""What drafts with a model: only these where lengths are pinned and none are named."""

LOCAL_DRAFTERS = ("prediction", "forced", "suffix", "copy", "ngram", "past")
"""Sources without a model: what the caller expects, what a grammar leaves, the text itself, what it
copies and what n-gram caches say of it, and past texts where the operator shares them."""

DRAFTERS = (*MODELS, *LOCAL_DRAFTERS)


class _Usual(int):
    """A length that nobody asked for: it is the model's. One that is asked for binds them all."""


_USUAL_N_MAX = _Usual(16)
_MOST_LOCAL = 59
"""Draft tokens of a round that no option limits. Its rows, one more and padded to a multiple of
four, stay below the 64 from which llama.cpp's flash attention on a CPU rounds in another way: a
text with drafts would then differ from the one without at near-ties."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """The options of one request, under the names that every surface uses.

    Raises InvalidRequest with the field's name.
    """

    enabled: bool = True
    n_max: int = _USUAL_N_MAX  # draft tokens of a round at most; with CLASSIC, of the first one
    n_min: int = 0  # a shorter draft is not verified
    p_min: float = 0.0  # drafting stops at a token less probable than this to the draft
    run_ahead: bool | None = None  # draft while the target verifies; None is as it pays
    policy: Policy = Policy.MEASURED
    n_parallel: int | None = None  # lines that a draft which runs ahead writes at once; None: one
    p_split: float = 0.02  # the chance of a second choice from which it gets a line of its own
    verification: Verification = Verification.BLOCK  # matters under the rejection rule alone
    drafters: frozenset[str] | None = None  # None: all, or MODELS where the policy pins lengths
    draft_template: DraftTemplate = DraftTemplate.TARGET  # matters where a prompt is a conversation

    def __post_init__(self) -> None:
        if not 0 <= self.n_max <= MAX_DRAFT:
            raise InvalidRequest("n_max", f"must be in [0, {MAX_DRAFT}], not {self.n_max}")
        if not 0 <= self.n_min <= self.n_max:
            raise InvalidRequest("n_min", f"must be in [0, n_max], not {self.n_min}")
        if unknown := sorted(self.may_draft.difference(DRAFTERS)):
            raise InvalidRequest("drafters", f"{unknown[0]!r} is none of {', '.join(DRAFTERS)}")
        if not 0.0 <= self.p_min <= 1.0:
            raise InvalidRequest("p_min", f"must be in [0, 1], not {self.p_min}")
        if self.n_parallel is not None and not 1 <= self.n_parallel <= MAX_LINES:
            raise InvalidRequest("n_parallel", f"must be in [1, {MAX_LINES}]")
        if not 0.0 <= self.p_split <= 1.0:
            raise InvalidRequest("p_split", f"must be in [0, 1], not {self.p_split}")

    def check_rule(self, rule: Rule) -> None:
        """Raise InvalidRequest for options that would bias an acceptance rule.

        Under rejection nothing that looks at a drafted token may end a block.
        """
        if rule is Rule.REJECTION and self.p_min > 0.0:
            raise InvalidRequest("p_min", "does not go with acceptance rejection")
        if rule is Rule.REJECTION and self.policy is Policy.CLASSIC:
            raise InvalidRequest("policy", "classic does not go with acceptance rejection")

    @property
    def may_draft(self) -> frozenset[str]:
        """The drafters that may draft, where they are there."""
        if self.drafters is not None:
            return self.drafters
        return frozenset(DRAFTERS if self.policy is Policy.MEASURED else MODELS)

    @property
    def drafts(self) -> bool:
        """Whether a draft model or a head may draft."""
        return any(map(self.lets_draft, MODELS))

    def lets_draft(self, name: str) -> bool:
        """Return whether a drafter may draft, where it is there."""
        return self.enabled and self.n_max > 0 and name in self.may_draft

    @property
    def local_drafters(self) -> Sequence[str]:
        """The sources without a model that may draft."""
        return list(filter(self.lets_draft, LOCAL_DRAFTERS))

    @property
    def local_n_max(self) -> int:
        """Draft tokens of a round of theirs at most, and of one that branches."""
        return _MOST_LOCAL if isinstance(self.n_max, _Usual) else self.n_max


DEFAULT = Speculation()
