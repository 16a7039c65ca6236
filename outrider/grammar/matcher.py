"""Follows a text through a grammar, with bounded work. Pure.

The steps are llama.cpp's: a set of stacks of positions, each of which waits for a character.
Some grammars let the stacks multiply with every character, and llama.cpp then takes all time
and memory. Here that ends at `MAX_STACKS`.
"""

from __future__ import annotations

from bisect import bisect
from codecs import utf_8_decode
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.errors import InvalidRequest
from outrider.grammar.rules import CharSet, Element, Grammar

MAX_STACKS = 1024
_LEAST = {2: 0x80, 3: 0x800, 4: 0x10000}  # what takes so many bytes
_MAX_KEPT = 200_000  # stacks and steps, about 20 MB


@dataclass(slots=True, eq=False, repr=False)
class _Stack:
    """A position, and where to go on behind its rule. Equal ones are one object."""

    position: int
    below: _Stack | None


@dataclass(slots=True, eq=False, repr=False)
class State:
    """All ways through the grammar that agree with a text so far."""

    stacks: frozenset[_Stack]
    can_end: bool
    next: dict[int, State | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """A state, and the bytes of a character that has begun."""

    state: State
    pending: bytes = b""

    @property
    def can_end(self) -> bool:
        return self.state.can_end and not self.pending


class Matcher:
    """A grammar that texts are followed through. States that were met are kept for a while."""

    def __init__(self, grammar: Grammar) -> None:
        self._elements: list[Element | None] = []  # None ends a sequence
        self._starts = [[self._add(part) for part in rule] for rule in grammar.rules]
        self._root = grammar.root
        sets = [element for element in self._elements if isinstance(element, CharSet)]
        ranges = {bounds for chars in set(sets) for bounds in chars.ranges}
        # Characters between two edges are the same to every rule.
        self._edges = sorted({edge for low, high in ranges for edge in (low, high + 1)})
        self._stacks: dict[tuple[int, _Stack | None], _Stack] = {}
        self._states: dict[tuple[frozenset[_Stack], bool], State] = {}
        self._kept = 0

    def _add(self, part: Sequence[Element]) -> int:
        start = len(self._elements)
        self._elements += (*part, None)
        return start

    def start(self) -> Place:
        """Return the place before a text. Raises InvalidRequest at `MAX_STACKS`."""
        return Place(self._state({self._push(start, None) for start in self._starts[self._root]}))

    def follow(self, place: Place, text: bytes) -> Place | None:
        """Return the place behind `text`, which may end within a character; None if it is not let.

        No grammar lets a zero byte. Raises InvalidRequest at `MAX_STACKS`.
        """
        encoded = place.pending + text
        try:
            chars, size = utf_8_decode(encoded, "strict", False)
        except UnicodeDecodeError:
            return None
        if "\0" in chars:
            return None
        state = place.state
        for char in chars:
            after = self.advance(state, ord(char))
            if after is None:
                return None
            state = after
        pending = encoded[size:]
        if pending and not self._may_complete(state, pending):
            return None
        return Place(state, pending)

    def advance(self, state: State, code_point: int) -> State | None:
        """Return the state after one more character, None if it is not let.

        Raises InvalidRequest at `MAX_STACKS`.
        """
        kind = bisect(self._edges, code_point)
        if kind in state.next:
            return state.next[kind]
        after = self._advance(state, code_point)
        self._kept += 1 + len(state.stacks)
        if self._kept > _MAX_KEPT:
            self._forget()
        state.next[kind] = after
        return after

    def _advance(self, state: State, code_point: int) -> State | None:
        after = {
            self._push(stack.position + 1, stack.below)
            for stack in state.stacks
            if self._waits_for(stack).matches(code_point, code_point)
        }
        return self._state(after) if after else None

    def _waits_for(self, stack: _Stack) -> CharSet:
        element = self._elements[stack.position]
        assert isinstance(element, CharSet)
        return element

    def _may_complete(self, state: State, pending: bytes) -> bool:
        low, high = _completions(pending)
        if 0xD800 <= low < 0xE000:
            return False  # half a character
        return any(self._waits_for(stack).matches(low, high) for stack in state.stacks)

    def _push(self, position: int, below: _Stack | None) -> _Stack | None:
        if self._elements[position] is None:
            return below
        key = position, below
        if key not in self._stacks:
            self._stacks[key] = _Stack(position, below)
        return self._stacks[key]

    def _state(self, seen: set[_Stack | None]) -> State:
        """Enter rules until every stack waits for a character."""
        todo = list(seen)
        waiting = []
        while todo:
            if len(seen) > MAX_STACKS:
                raise InvalidRequest("grammar", f"more than {MAX_STACKS} ways through it at once")
            stack = todo.pop()
            element = self._elements[stack.position] if stack else None
            if stack and isinstance(element, int):
                below = self._push(stack.position + 1, stack.below)
                new = {self._push(start, below) for start in self._starts[element]} - seen
                todo += new
                seen |= new
            elif stack:
                waiting.append(stack)
        stacks, can_end = frozenset(waiting), None in seen
        return self._states.setdefault((stacks, can_end), State(stacks, can_end))

    def _forget(self) -> None:
        for state in self._states.values():
            state.next.clear()
        self._states.clear()
        self._stacks.clear()
        self._kept = 0


def _completions(pending: bytes) -> tuple[int, int]:
    """Return the first and last character that begins with these bytes."""
    size = 2 + (pending[0] >= 0xE0) + (pending[0] >= 0xF0)
    bits = pending[0] & 0x7F >> size
    for byte in pending[1:]:
        bits = bits << 6 | byte & 0x3F
    missing = 6 * (size - len(pending))
    return max(bits << missing, _LEAST[size]), ((bits + 1) << missing) - 1
