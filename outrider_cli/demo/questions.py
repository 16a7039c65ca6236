"""What the demo asks for, and what came of it, as values. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

ROUND_TRIP_MS = 20  # ms; of the demo's simulated link

_QUESTION = "What is the capital of France, and what is it known for?"
_EDIT = """Correct the mistakes in this letter:

Dear Ms Miller,

Thank you for your letter of 3 May. We have recieved the broken lamp and will send you a new one \
this week. You do not have to pay for the postage. The new lamp comes with a cable of two metres \
and a bulb that lasts for ten years. If the lamp does not work, please call our shop in Leeds \
between nine and five o'clock. We are sorry for the trouble, and we hopes that you will enjoy the \
lamp for many years.

Yours sincerely,
Tom Baker"""

_CODE = "def read_config(path):"
_REPEATED = '''\
def read_lines(path):
    """Return the lines of a file."""
    with open(path) as file:
        return [line.strip() for line in file]

def read_words(path):
    """Return the words of a file."""
    with open(path) as file:
'''


@dataclass(frozen=True, slots=True)
class DemoRequest:
    """One of the three requests."""

    name: str
    prompt: str
    token_limit: int
    is_chat: bool
    is_linked: bool = False
    """Whether another process drafts, at the far end of a link, and nothing else does."""


def requests_for(has_chat_template: bool) -> tuple[DemoRequest, DemoRequest, DemoRequest]:
    """Return the three requests; a model that cannot chat continues code instead."""
    if has_chat_template:
        first = DemoRequest("a question", _QUESTION, 128, True)
        second = DemoRequest("an edit", _EDIT, 192, True)
    else:
        first = DemoRequest("code", _CODE, 96, False)
        second = DemoRequest("repeats", _REPEATED, 96, False)
    third = replace(second, name=f"{second.name}, {ROUND_TRIP_MS} ms", is_linked=True)
    return first, second, third


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One generation."""

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    has_ended: bool
    """By an end of the text, not by a limit."""
    total_seconds: float
    seconds: float
    """From the first tokens to the last."""
    later_count: int
    """Tokens that came in them."""
    accepted: Counter[str]
    """Draft tokens by source."""
    drafted_count: int

    @property
    def rate(self) -> float | None:
        """Tokens per second after the first ones; None where they came all at once."""
        return self.later_count / self.seconds if self.later_count else None


@dataclass(slots=True)
class Row:
    """A request and its runs, in pairs of one without and one with drafts."""

    request: DemoRequest
    pairs: list[tuple[Run, Run]] = field(default_factory=list)
    near_tie: str = ""
    """Where the texts part and why, where they do."""

    @property
    def ratios(self) -> list[float]:
        """Times as many tokens per second with drafts, of each pair that says so."""
        ratios = [ratio_of(pair) for pair in self.pairs]
        return [ratio for ratio in ratios if ratio is not None]

    @property
    def typical(self) -> tuple[Run, Run] | None:
        """The pair with the median ratio; None where none has one."""
        known = [pair for pair in self.pairs if ratio_of(pair) is not None]
        known.sort(key=lambda pair: ratio_of(pair) or 0.0)
        return known[len(known) // 2] if known else None

    @property
    def drafted_count(self) -> int:
        """Draft tokens that the target verified."""
        return sum(drafted.drafted_count for _, drafted in self.pairs)

    @property
    def accepted(self) -> Counter[str]:
        """Accepted draft tokens by source."""
        return sum((drafted.accepted for _, drafted in self.pairs), Counter[str]())


def ratio_of(pair: tuple[Run, Run]) -> float | None:
    """Return times as many tokens per second the second run had; None where not known."""
    slow, fast = (run.rate for run in pair)
    return fast / slow if slow and fast else None


def parting(row: Row) -> tuple[Run, Run] | None:
    """Return the first pair whose texts differ, as far as both were written."""
    return next((pair for pair in row.pairs if _differ(*pair)), None)


def _differ(one: Run, other: Run) -> bool:
    shorter, longer = sorted((one, other), key=lambda run: len(run.token_ids))
    count = common_count(one.token_ids, other.token_ids)
    lengths = len(shorter.token_ids), len(longer.token_ids)
    return count < lengths[0] or (shorter.has_ended and lengths[0] < lengths[1])


def common_count(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many first tokens two texts have in common."""
    both = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(both) if a != b), min(len(one), len(other)))


def together(rows: Sequence[Row]) -> list[float]:
    """Return how many times as fast all requests together are: geometric means, by pair."""
    means = zip(*(row.ratios for row in rows), strict=False)
    return [math.prod(ratios) ** (1 / len(ratios)) for ratios in means]
