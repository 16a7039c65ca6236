"""A grammar as a value, and whether texts can be followed through it. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

# Of llama.cpp, which looks at every way to begin every rule; so it goes 2000 rules deep at most.
_MAX_LEFT_STEPS = 2_000_000
_NEVER_IN_TEXT = ((0, 0), (0xD800, 0xDFFF))
_LAST = 0x10FFFF  # the last code point of Unicode


@dataclass(frozen=True, slots=True)
class CharSet:
    """One character of a text: of one of the ranges, or of none."""

    ranges: tuple[tuple[int, int], ...]
    negated: bool = False

    def matches(self, low: int, high: int) -> bool:
        """Return whether a character of a range is let; if negated, whether all are."""
        return self.negated != any(first <= high and low <= last for first, last in self.ranges)

    def spans(self) -> list[tuple[int, int]]:
        """Return the characters that are let in texts: ascending ranges that do not touch."""
        excluded = self.ranges if self.negated else _complement(self.ranges)
        return _complement((*excluded, *_NEVER_IN_TEXT))


def _complement(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    found = []
    start = 0
    for low, high in sorted(ranges):
        if start < low:
            found.append((start, low - 1))
        start = max(start, high + 1)
    return [*found, (start, _LAST)] if start <= _LAST else found


Element = CharSet | int
"""A character, or the number of a rule."""

Rule = Sequence[Sequence[Element]]
"""Alternatives, each of which is a sequence."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """Rules by number, repetitions written out, and the one where texts begin."""

    rules: Sequence[Rule]
    root: int


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a rule."""

    symbol: int
    reason: str


def find_fault(rules: Sequence[Rule]) -> Fault | None:
    """Return why no text can be followed through the rules, if so."""
    endless = {*range(len(rules))} - _deriving(rules, through_chars=True)
    if endless:
        return Fault(min(endless), "has no end")
    empty = _deriving(rules, through_chars=False)
    first = {symbol: list(_first_rules(rule, empty)) for symbol, rule in enumerate(rules)}
    try:
        order = list(TopologicalSorter(first).static_order())
    except CycleError as error:
        return Fault(
            min(error.args[1]),
            "comes back to itself before any character (or repeats what may be empty)",
        )
    sum_of_steps = 0
    steps: dict[int, int] = {}
    for symbol in order:
        steps[symbol] = 1 + sum(steps[other] for other in first[symbol])
        sum_of_steps += steps[symbol]
        if sum_of_steps > _MAX_LEFT_STEPS:
            return Fault(symbol, "can begin in too many ways")
    return None


def _deriving(rules: Sequence[Rule], through_chars: bool) -> set[int]:
    """Return the rules that can become a text of no rules: any text, or only the empty one."""
    waiting: dict[int, list[tuple[int, set[int]]]] = defaultdict(list)
    todo = []
    for symbol, rule in enumerate(rules):
        for part in rule:
            if through_chars or not any(isinstance(element, CharSet) for element in part):
                missing = {element for element in part if isinstance(element, int)}
                todo += [] if missing else [symbol]
                for other in missing:
                    waiting[other].append((symbol, missing))
    found: set[int] = set()
    while todo:
        symbol = todo.pop()
        if symbol not in found:
            found.add(symbol)
            for user, missing in waiting[symbol]:
                missing.discard(symbol)
                todo += [] if missing else [user]
    return found


def _first_rules(rule: Rule, empty: set[int]) -> Iterator[int]:
    """Yield each place of another rule where nothing need come before it."""
    for part in rule:
        for element in part:
            if isinstance(element, CharSet):
                break
            yield element
            if element not in empty:
                break
