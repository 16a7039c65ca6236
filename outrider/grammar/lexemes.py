"""Finds what of a grammar a lexer may read at once, and no text is read differently. Pure.

A lexer takes the longest lexeme that it can, so a parser over lexemes lets other texts than one
over characters, unless no lexeme begins with another: then a text splits in one way at most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from outrider.grammar.rules import CharSet, Element, Grammar

# Characters and rules of one lexeme, each repetition written once. Free texts that are read by
# character are too much for one mask of a large vocabulary; 2048 let rules be too deep.
_MAX_SIZE = 512
_MAX_ROUNDS = 8
_MAX_WORK = 1_000_000  # about half a second

Part = tuple[Element, ...]
Sizes = dict[int, int]
Cut = tuple[int, int, int]
"""A place that no lexeme goes across: the symbol of a rule, which part of it, how many elements."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A rule without recursion on its right: `repeated`, up to `most` times, and one of `last`.

    A parser would otherwise complete every level of the recursion after each character.
    """

    repeated: tuple[Part, ...]
    most: int | None
    last: tuple[Part, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        """All that is written in the rule, once."""
        return (*self.repeated, *self.last)


@dataclass(frozen=True, slots=True)
class Lexicon:
    """The rules that a parser needs, with their parts split into lexemes and rules."""

    shapes: dict[int, Shape]
    """By symbol: all that lexemes or the root refer to."""
    splits: dict[int, list[list[tuple[int, Part | int]]]]
    """Where in each part of a rule lexemes and rules begin; a lexeme is a sequence of elements."""
    within: dict[int, Shape]
    """By symbol: all that lexemes are made of."""


def find_lexemes(grammar: Grammar) -> Lexicon:
    """Return the rules with the longest lexemes that are safe; at the least, one a character."""
    shapes = _shapes(grammar)
    sizes = _sizes(shapes)
    cuts: set[Cut] = set()
    for _ in range(_MAX_ROUNDS):
        lexicon = _split(grammar.root, shapes, sizes, cuts)
        clashes = _clashes(lexicon)
        if clashes is None:
            break
        if not clashes:
            return lexicon
        cuts |= clashes
    return _split(grammar.root, shapes, None, set())


# --- shapes ---


def _shapes(grammar: Grammar) -> dict[int, Shape]:
    shapes: dict[int, Shape] = {}
    todo = [grammar.root]
    while todo:
        symbol = todo.pop()
        if symbol not in shapes:
            shapes[symbol] = shape = _shape(grammar, symbol)
            todo += [
                element for part in shape.parts for element in part if isinstance(element, int)
            ]
    return shapes


def _shape(grammar: Grammar, symbol: int) -> Shape:
    rule = tuple(tuple(part) for part in grammar.rules[symbol])
    if count := _nested_options(grammar, symbol):
        return Shape((rule[0][:-1],), count, ((),))
    repeated = tuple(part[:-1] for part in rule if part and part[-1] == symbol)
    last = tuple(part for part in rule if not part or part[-1] != symbol)
    return Shape(repeated, None, last)


def _nested_options(grammar: Grammar, symbol: int) -> int:
    """Return n where a rule is (unit (unit (...)?)?)?, n times; 0 where it is not, or n is 1."""
    unit = list(grammar.rules[symbol][0])[:-1]
    count = 1
    while unit:
        rule = [list(part) for part in grammar.rules[symbol]]
        if len(rule) != 2 or rule[1]:
            return 0
        if rule[0] == unit:
            return count
        if rule[0][:-1] != unit or not isinstance(rule[0][-1], int) or rule[0][-1] == symbol:
            return 0
        symbol = rule[0][-1]
        count += 1
    return 0


def _sizes(shapes: dict[int, Shape]) -> dict[int, int]:
    """Return how large the rules without recursion are when written out."""
    refers = {
        symbol: [e for part in shape.parts for e in part if isinstance(e, int)]
        for symbol, shape in shapes.items()
    }
    users: dict[int, list[int]] = defaultdict(list)
    for symbol, others in refers.items():
        for other in others:
            users[other].append(symbol)
    missing = {symbol: len(others) for symbol, others in refers.items()}
    todo = [symbol for symbol, count in missing.items() if not count]
    sizes: dict[int, int] = {}
    while todo:
        symbol = todo.pop()
        sizes[symbol] = 1 + sum(_size(part, sizes) for part in shapes[symbol].parts)
        for user in users[symbol]:
            missing[user] -= 1
            todo += [] if missing[user] else [user]
    return sizes


def _size(part: Iterable[Element], sizes: dict[int, int]) -> int:
    return sum(1 if isinstance(e, CharSet) else sizes.get(e, _MAX_SIZE + 1) for e in part)


# --- parts as lexemes ---


def _split(root: int, shapes: dict[int, Shape], sizes: Sizes | None, cuts: set[Cut]) -> Lexicon:
    by_part: dict[tuple[int, int], set[int]] = defaultdict(set)
    for symbol, number, place in cuts:
        by_part[symbol, number].add(place)
    found = Lexicon({}, {}, shapes)
    todo = [root]
    while todo:
        symbol = todo.pop()
        if symbol in found.shapes:
            continue
        found.shapes[symbol] = shapes[symbol]
        found.splits[symbol] = [
            list(_pieces(part, sizes, by_part[symbol, number]))
            for number, part in enumerate(shapes[symbol].parts)
        ]
        for pieces in found.splits[symbol]:
            todo += [piece for _, piece in pieces if isinstance(piece, int)]
    return found


def _pieces(part: Part, sizes: Sizes | None, cuts: set[int]) -> Iterator[tuple[int, Part | int]]:
    start = 0
    while start < len(part):
        first = part[start]
        if isinstance(first, int):
            yield start, first
            start += 1
        else:
            end = _end_of_lexeme(part, start, sizes, cuts)
            yield start, part[start:end]
            start = end


def _end_of_lexeme(part: Part, start: int, sizes: Sizes | None, cuts: set[int]) -> int:
    """Return where the longest lexeme from here ends that begins and ends with a character."""
    longest = start + 1
    size = 1
    for end in range(start + 1, len(part)):
        size += _size(part[end : end + 1], sizes) if sizes is not None else _MAX_SIZE
        if size > _MAX_SIZE or end in cuts:
            break
        if isinstance(part[end], CharSet):
            longest = end + 1
    return longest


# --- whether a lexeme begins with another ---


@dataclass(slots=True)
class _Places:
    """Every character of some lexemes as a place, and which may come after which.

    As if every repetition had no bound: what begins with nothing here does not with bounds either.
    """

    shapes: dict[int, Shape]
    spans: list[Sequence[tuple[int, int]]] = field(default_factory=list)
    after: list[set[int]] = field(default_factory=list)

    def sequence(
        self, part: Part, counts: list[int] | None = None
    ) -> tuple[set[int], set[int], bool]:
        """Add a part; return its first and its last places, and whether it may be empty.

        `counts` gets the number of places with every element.
        """
        first: set[int] = set()
        last: set[int] = set()
        empty = True
        for element in part:
            its_first, its_last, its_empty = self._element(element)
            self._join(last, its_first)
            first |= its_first if empty else set()
            last = its_last | (last if its_empty else set())
            empty = empty and its_empty
            if counts is not None:
                counts.append(len(self.spans))
        return first, last, empty

    def _element(self, element: Element) -> tuple[set[int], set[int], bool]:
        if isinstance(element, CharSet):
            self.spans.append(element.spans())
            self.after.append(set())
            place = {len(self.spans) - 1}
            return place, place, False
        shape = self.shapes[element]
        again_first, again_last, _ = self._choice(shape.repeated)
        first, last, empty = self._choice(shape.last)
        self._join(again_last, again_first | first)
        return again_first | first, last | (again_last if empty else set()), empty

    def _choice(self, parts: Iterable[Part]) -> tuple[set[int], set[int], bool]:
        first: set[int] = set()
        last: set[int] = set()
        empty = False
        for part in parts:
            its_first, its_last, its_empty = self.sequence(part)
            first |= its_first
            last |= its_last
            empty = empty or its_empty
        return first, last, empty

    def _join(self, before: set[int], following: set[int]) -> None:
        for place in before:
            self.after[place] |= following


def _clashes(lexicon: Lexicon) -> set[Cut] | None:
    """Return where to cut the lexemes that continue where another one, read alike, has ended.

    None if that takes too long to find out.
    """
    places = _Places(lexicon.within)
    cuts: list[Cut] = []  # by place
    starts: set[int] = set()
    ends: set[int] = set()
    for symbol, number, start, piece in _lexemes(lexicon):
        counts: list[int] = []
        first, last, _ = places.sequence(piece, counts)
        starts |= first
        ends |= last
        for index, element in enumerate(piece):
            cut = symbol, number, start + index + isinstance(element, CharSet)
            cuts += [cut] * (counts[index] - len(cuts))
    found: set[Cut] = set()
    todo = [frozenset(starts)]
    seen = set(todo)
    work = 0
    while todo:
        steps = _steps([(place, places.spans[place]) for place in todo.pop()])
        work += sum(1 + len(reached) for reached in steps)
        if work > _MAX_WORK:
            return None
        for reached in {*steps}:
            longer = reached - ends
            if longer != reached:
                found |= {cuts[place] for place in longer}
            after = frozenset[int]().union(*(places.after[place] for place in longer))
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return found


def _lexemes(lexicon: Lexicon) -> Iterator[tuple[int, int, int, Part]]:
    for symbol, parts in lexicon.splits.items():
        for number, pieces in enumerate(parts):
            for start, piece in pieces:
                if not isinstance(piece, int):
                    yield symbol, number, start, piece


def _steps(places: Iterable[tuple[int, Sequence[tuple[int, int]]]]) -> list[frozenset[int]]:
    """Return which places let a character alike, for all characters in their order."""
    changes: dict[int, set[int]] = defaultdict(set)
    for place, spans in places:
        for low, high in spans:
            changes[low] ^= {place}
            changes[high + 1] ^= {place}
    found = []
    reached: frozenset[int] = frozenset()
    for edge in sorted(changes):
        reached ^= changes[edge]
        if reached:
            found.append(reached)
    return found
