"""Follows texts through a grammar by character, and says what it forces. Pure.

The places in the grammar that a text may have come to are one state, and how states follow each
other is remembered: where a text says nothing new, a character costs one look-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from outrider.grammar.rules import CharSet, Element, Grammar

_MOST_WORK = 100_000  # places looked at for all new states: about .1 s and 30 MB


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _RulePlace:
    """Before an element of a part of a rule, used where `parent` follows; None is the end."""

    symbol: int
    number: int  # of the part
    index: int
    element: Element
    parent: _RulePlace | None


@dataclass(slots=True, eq=False, repr=False)
class GrammarState:
    """The places that a text may have come to, each before a character; the same are one object."""

    places: tuple[_RulePlace, ...]
    can_end: bool
    forced: str | None
    """The character that has to follow; None where it may be one of several, or the end."""
    following: dict[str, GrammarState | None] = field(default_factory=dict)

    @property
    def is_end(self) -> bool:
        """Whether only the end may follow."""
        return self.can_end and not self.places


class GrammarStates:
    """A grammar and the states of all texts that were followed through it.

    What is new is looked at up to a bound for all texts together. Beyond it, one that says
    something new is lost from sight, just like one that the grammar does not let.
    """

    def __init__(self, grammar: Grammar, most_work: int = _MOST_WORK) -> None:
        self._rules: Sequence[Sequence[Sequence[Element]]] = grammar.rules
        self._most_work = most_work
        self._work = 0
        self._places: dict[tuple[int, int, int, _RulePlace | None], _RulePlace] = {}
        self._states: dict[tuple[frozenset[_RulePlace], bool], GrammarState] = {}
        self.start = self._state(self._uses(grammar.root, None))
        """None if it is too large."""

    @property
    def size_bytes(self) -> int:
        """The memory that it holds, about."""
        return 300 * self._work

    def step(self, state: GrammarState, char: str) -> GrammarState | None:
        """Return the state after a character; None if it is not let, or lost from sight."""
        if char not in state.following:
            if self._work >= self._most_work:
                return None
            state.following[char] = self._state(self._through(state, ord(char)))
        return state.following[char]

    def _through(self, state: GrammarState, code: int) -> Iterator[_RulePlace | None]:
        for place in state.places:
            assert isinstance(place.element, CharSet)
            self._work += 1 + len(place.element.ranges) // 8
            if code and place.element.matches(code, code):
                yield self._after(place)

    def _state(self, reached: Iterable[_RulePlace | None]) -> GrammarState | None:
        """Return the state of all places before characters that these lead to."""
        todo = [*reached]
        seen: set[_RulePlace | None] = set()
        found: dict[_RulePlace, None] = {}  # in the order of the grammar, so that runs are alike
        while todo:
            place = todo.pop()
            if place in seen:
                continue
            seen.add(place)
            if self._work >= self._most_work:
                return None
            self._work += 1
            if place is not None:
                if isinstance(place.element, CharSet):
                    found[place] = None
                else:
                    todo += self._uses(place.element, self._after(place))
        if not seen:
            return None
        key = frozenset(found), None in seen
        if key not in self._states:
            self._states[key] = GrammarState(
                tuple(found), None in seen, _forced(found, None in seen)
            )
        return self._states[key]

    def _uses(self, symbol: int, parent: _RulePlace | None) -> Iterator[_RulePlace | None]:
        for number, part in enumerate(self._rules[symbol]):
            yield self._place(symbol, number, 0, parent) if part else parent

    def _after(self, place: _RulePlace) -> _RulePlace | None:
        """Return what follows an element; at the end of its rule, what follows the rule."""
        index = place.index + 1
        if index == len(self._rules[place.symbol][place.number]):
            return place.parent
        return self._place(place.symbol, place.number, index, place.parent)

    def _place(self, symbol: int, number: int, index: int, parent: _RulePlace | None) -> _RulePlace:
        key = symbol, number, index, parent
        if key not in self._places:
            element = self._rules[symbol][number][index]
            self._places[key] = _RulePlace(symbol, number, index, element, parent)
        return self._places[key]


def _forced(places: Iterable[_RulePlace], can_end: bool) -> str | None:
    forced = None
    for place in places:
        assert isinstance(place.element, CharSet)
        spans = place.element.spans()
        if can_end or len(spans) > 1 or (spans and spans[0][0] != spans[0][1]):
            return None
        for low, _ in spans:
            if forced not in (None, chr(low)):
                return None
            forced = chr(low)
    return forced
