"""Regular languages as expressions: joined, intersected, negated, and written as GBNF. Pure.

What GBNF has no word for, `both` and `no`, becomes an automaton by derivatives: what may follow a
character is an expression again, and each of these is a rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from outrider.grammar.json_texts import either

Ranges = tuple[tuple[int, int], ...]

LAST = 0x10FFFF  # the last code point of Unicode
ALL: Ranges = ((0, LAST),)
_MOST_STATES = 600  # of one automaton; its grammar has 64 kB at most anyway
_MOST_TEXT = 1 << 16  # what a grammar may have
_MOST_WORK = 600_000  # expressions looked at, for all questions together: about 2 s
_ESCAPED: Ranges = ((0, 31), (34, 34), (92, 92), (127, 127), (0xD800, 0xDFFF))
# What JSON escapes with one letter, as in a class of GBNF.
_SHORT = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '\\"', 92: "\\\\"}
_DIGITS = tuple((ord(digit), ord(digit)) for digit in "0123456789")
_SMALL_LOSS = 0.1  # of the length that is allowed; an exact grammar would be an automaton


class TooLarge(Exception):
    """An automaton has too many states for a grammar, or is too much work."""


class NodeKind(Enum):
    """What an expression is made of; `parts` are the arguments."""

    NEVER = auto()
    EMPTY = auto()
    CHARS = auto()  # ranges
    SEQUENCE = auto()  # first, rest
    EITHER = auto()  # expressions
    BOTH = auto()  # expressions
    NO = auto()  # an expression
    REPEATED = auto()  # an expression, how few, how many or None
    MULTIPLE = auto()  # digits that are a multiple: see `Expressions.multiple`


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Expression:
    """A set of texts. Those of one `Expressions` that are written alike are one object."""

    kind: NodeKind
    parts: tuple[Any, ...]
    can_be_empty: bool
    shortest: int
    longest: float  # characters, at most; infinite where there is no bound


_Way = tuple[str, str | None]
"""GBNF, and the rule after it."""
_Edges = dict[Expression, dict[Expression, str]]
"""By state and by the state that follows, GBNF for the characters between."""


class Expressions:
    """Makes expressions, and asks what they let. Any question may raise TooLarge."""

    def __init__(self) -> None:
        self._made: dict[object, Expression] = {}
        self._work = 0
        self._found: dict[Expression, _Edges] = {}
        self._derived: dict[tuple[Expression, int], Expression] = {}
        self.never = self._make(NodeKind.NEVER, (), False, 0, 0)
        self.empty = self._make(NodeKind.EMPTY, (), True, 0, 0)
        self.anything = self.repeated(self.chars(ALL), 0, None)

    def _make(
        self,
        kind: NodeKind,
        parts: tuple[Any, ...],
        can_be_empty: bool,
        shortest: int,
        longest: float,
    ) -> Expression:
        many = kind in (NodeKind.EITHER, NodeKind.BOTH)
        key = kind, frozenset(parts) if many else parts
        if key not in self._made:
            self._made[key] = Expression(kind, parts, can_be_empty, shortest, longest)
        return self._made[key]

    def chars(self, ranges: Iterable[tuple[int, int]]) -> Expression:
        """Return one character of the ranges."""
        found = _joined(ranges)
        return self._make(NodeKind.CHARS, found, False, 1, 1) if found else self.never

    def text(self, text: str) -> Expression:
        """Return one text."""
        return self.sequence(self.chars([(ord(char), ord(char))]) for char in text)

    def sequence(self, parts: Iterable[Expression]) -> Expression:
        """Return one after the other."""
        whole = self.empty
        for part in reversed([*parts]):
            whole = self._then(part, whole)
        return whole

    def _then(self, first: Expression, rest: Expression) -> Expression:
        if self.never in (first, rest):
            return self.never
        if first is self.empty:
            return rest
        if rest is self.empty:
            return first
        steps = []
        while first.kind is NodeKind.SEQUENCE:
            steps.append(first.parts[0])
            first = first.parts[1]
        for step in (first, *reversed(steps)):
            head, tail = rest.parts if rest.kind is NodeKind.SEQUENCE else (rest, self.empty)
            if head is self.anything and _is_any_number(step):
                continue
            if step is self.anything and _is_any_number(head):
                rest = self._then(step, tail)
                continue
            rest = self._make(
                NodeKind.SEQUENCE,
                (step, rest),
                step.can_be_empty and rest.can_be_empty,
                step.shortest + rest.shortest,
                step.longest + rest.longest,
            )
        return rest

    def either(self, parts: Iterable[Expression]) -> Expression:
        """Return any of several."""
        found = self._flat(NodeKind.EITHER, parts, self.never)
        if self.anything in found:
            return self.anything
        if len(found) < 2:
            return found[0] if found else self.never
        return self._make(
            NodeKind.EITHER,
            tuple(found),
            any(part.can_be_empty for part in found),
            min(part.shortest for part in found),
            max(part.longest for part in found),
        )

    def both(self, parts: Iterable[Expression]) -> Expression:
        """Return the texts that all of several have."""
        found = self._flat(NodeKind.BOTH, parts, self.anything)
        if self.never in found:
            return self.never
        if self.empty in found:
            return self.empty if all(part.can_be_empty for part in found) else self.never
        if len(found) < 2:
            return found[0] if found else self.anything
        return self._make(
            NodeKind.BOTH,
            tuple(found),
            all(part.can_be_empty for part in found),
            max(part.shortest for part in found),
            min(part.longest for part in found),
        )

    def _flat(
        self, kind: NodeKind, parts: Iterable[Expression], neutral: Expression
    ) -> list[Expression]:
        found: dict[Expression, None] = {}
        for part in parts:
            found |= dict.fromkeys(part.parts if part.kind is kind else [part])
        self._work += len(found)
        found.pop(neutral, None)
        return [*found]

    def no(self, part: Expression) -> Expression:
        """Return all other texts."""
        if part.kind is NodeKind.NO:
            inner: Expression = part.parts[0]
            return inner
        if part is self.never:
            return self.anything
        if part is self.anything:
            return self.never
        return self._make(NodeKind.NO, (part,), not part.can_be_empty, 0, math.inf)

    def repeated(self, part: Expression, low: int, high: int | None) -> Expression:
        """Return it `low` to `high` times, or any number of times from `low`."""
        if high == 0 or part in (self.empty, self.never):
            return self.empty if low == 0 or part is self.empty else self.never
        if (low, high) == (1, 1):
            return part
        longest = part.longest * (math.inf if high is None else high)
        can_be_empty = low == 0 or part.can_be_empty
        return self._make(
            NodeKind.REPEATED, (part, low, high), can_be_empty, low * part.shortest, longest
        )

    def multiple(self, step: int, places: int) -> Expression:
        """Return the decimals with up to `places` that are a multiple of step / 10**places.

        Only of what is a number anyway: signs and points are let anywhere.
        """
        return self._multiple(step, places, 0, None)

    def _multiple(self, step: int, places: int, rest: int, place: int | None) -> Expression:
        weight = 10 ** (places - (place or 0))
        rest %= step // math.gcd(step, weight)  # by which what follows differs
        is_one = rest * weight % step == 0
        return self._make(
            NodeKind.MULTIPLE, (step, places, rest, place), is_one, int(not is_one), math.inf
        )

    # --- what a text has to be ---

    def limited(self, part: Expression, low: int, high: float) -> Expression:
        """Return the texts that are `low` to `high` characters long, or most of them."""
        if low <= part.shortest and part.longest <= high:
            return part
        if low > part.longest or high < part.shortest:
            return self.never
        if part.kind is NodeKind.EITHER:
            return self.either(self.limited(each, low, high) for each in part.parts)
        if part.kind is NodeKind.REPEATED:
            unit, few, many = part.parts
            if unit.shortest == unit.longest:
                most = None if math.isinf(high) else int(high // unit.longest)
                many = most if many is None else many if most is None else min(many, most)
                few = max(few, -(-low // unit.shortest))
                fits = many is None or few <= many
                return self.repeated(unit, few, many) if fits else self.never
        if part.kind is NodeKind.SEQUENCE:
            first, rest = part.parts
            for one, other, turned in ((first, rest, False), (rest, first, True)):
                loss = one.longest - one.shortest
                if loss <= _SMALL_LOSS * high and high - one.longest >= other.shortest:
                    left = self.limited(other, max(0, low - one.shortest), high - one.longest)
                    return self._then(left, one) if turned else self._then(one, left)
        most = None if math.isinf(high) else int(high)
        return self.both([part, self.repeated(self.chars(ALL), low, most)])

    def lets(self, part: Expression, text: str) -> bool:
        """Return whether a text is one of the expression's."""
        for char in text:
            part = self._after(part, ord(char))
        return part.can_be_empty

    def lets_nothing(self, part: Expression) -> bool:
        """Return whether there surely is no text; where that takes long to find out, False."""
        alphabet = _alphabet(part)
        seen = {part}
        todo = [part]
        while todo:
            state = todo.pop()
            if state.can_be_empty:
                return False
            following = {self._after(state, ranges[0][0]) for ranges in alphabet} - seen
            todo += following - {self.never}
            seen |= following
            if len(seen) > _MOST_STATES:
                return False
        return True

    def _after(self, part: Expression, char: int) -> Expression:
        """Return what may follow a character."""
        key = part, char
        if key not in self._derived:
            self._derived[key] = self._derive(part, char)
            self._work += 1
            if self._work > _MOST_WORK:
                raise TooLarge
        return self._derived[key]

    def _derive(self, part: Expression, char: int) -> Expression:
        match part.kind:
            case NodeKind.CHARS:
                return self.empty if _holds(part.parts, char) else self.never
            case NodeKind.SEQUENCE:
                first, rest = part.parts
                whole = self._then(self._after(first, char), rest)
                return (
                    self.either([whole, self._after(rest, char)]) if first.can_be_empty else whole
                )
            case NodeKind.EITHER:
                return self.either(self._after(each, char) for each in part.parts)
            case NodeKind.BOTH:
                return self.both(self._after(each, char) for each in part.parts)
            case NodeKind.NO:
                return self.no(self._after(part.parts[0], char))
            case NodeKind.REPEATED:
                unit, low, high = part.parts
                more = self.repeated(unit, max(0, low - 1), None if high is None else high - 1)
                return self._then(self._after(unit, char), more)
            case NodeKind.MULTIPLE:
                step, places, rest, place = part.parts
                if char == ord("."):
                    return self._multiple(step, places, rest, 0) if place is None else self.never
                if not ord("0") <= char <= ord("9"):
                    return part
                if place == places:
                    return self.never
                place = None if place is None else place + 1
                return self._multiple(step, places, 10 * rest + char - ord("0"), place)
        return self.never

    # --- GBNF ---

    def write(self, part: Expression, rules: dict[str, str], prefix: str) -> str | None:
        """Return GBNF for the texts as they stand in a JSON string; None where there are none.

        What it refers to is added to the rules, each name with the prefix. Raises TooLarge.
        """
        match part.kind:
            case NodeKind.NEVER:
                return None
            case NodeKind.EMPTY:
                return '""'
            case NodeKind.CHARS:
                return _written_chars(part.parts)
            case NodeKind.EITHER:
                found = [self.write(each, rules, prefix) for each in part.parts]
                bodies = [body for body in found if body is not None]
                return either(bodies) if bodies else None
            case NodeKind.REPEATED:
                unit, low, high = part.parts
                body = self.write(unit, rules, prefix)
                if body is None:
                    return None if low else '""'
                return (body if unit.kind is NodeKind.CHARS else f"( {body} )") + often(low, high)
            case NodeKind.SEQUENCE:
                words = ""
                while part is not self.empty:
                    first, part = (
                        part.parts if part.kind is NodeKind.SEQUENCE else (part, self.empty)
                    )
                    body = self.write(first, rules, prefix)
                    if body is None:
                        return None
                    words += f" {body}"
                    if len(words) > _MOST_TEXT:  # parts of it may come again and again
                        raise TooLarge
                return words.strip()
        return self._write_automaton(part, rules, prefix)

    def _write_automaton(self, root: Expression, rules: dict[str, str], prefix: str) -> str | None:
        if root not in self._found:
            self._found[root] = self._edges(root)
        edges = self._found[root]
        if root not in edges:
            return None

        names: dict[Expression, str] = {}
        for state, targets in edges.items():
            is_step = len(targets) + state.can_be_empty == 1
            if not is_step and [*targets] != [state]:
                names[state] = f"{prefix}{len(rules)}"
                rules[names[state]] = ""

        def way(state: Expression) -> _Way:
            words: list[str] = []
            while state not in names and edges[state]:
                ((target, chars),) = edges[state].items()
                if target is state:  # and any number of them ends the text
                    return " ".join([*words, f"{chars}*"]), None
                words.append(chars)
                state = target
            return " ".join(words), names.get(state)

        ways: dict[str, list[_Way]] = {}
        for state, name in names.items():
            after = [(chars, way(target)) for target, chars in edges[state].items()]
            ways[name] = [(f"{chars} {words}".strip(), target) for chars, (words, target) in after]
            ways[name] += [('""', None)] if state.can_be_empty else []
        for circle in _circles(ways):
            _unroll(circle, ways)
        for name, found in ways.items():
            rules[name] = " | ".join(map(_joined_way, found))
        return _joined_way(way(root)) or '""'

    def _edges(self, root: Expression) -> _Edges:
        """Return which characters lead from where to where, if to the end of a text at last."""
        alphabet = [ranges for ranges in _alphabet(root) if _written_chars(ranges)]
        reached: dict[Expression, dict[Expression, list[tuple[int, int]]]] = {}
        users: dict[Expression, list[Expression]] = {}
        todo = [root]
        while todo:
            state = todo.pop()
            if state in reached:
                continue
            if len(reached) == _MOST_STATES:
                raise TooLarge
            reached[state] = {}
            for ranges in alphabet:
                target = self._after(state, ranges[0][0])
                if target is not self.never:
                    reached[state].setdefault(target, []).extend(ranges)
                    users.setdefault(target, []).append(state)
                    todo.append(target)
        live: dict[Expression, None] = {}
        todo = [state for state in reached if state.can_be_empty]
        while todo:
            state = todo.pop()
            if state not in live:
                live[state] = None
                todo += users.get(state, [])
        return {
            state: {
                target: _written_chars(_joined(ranges)) or ""
                for target, ranges in targets.items()
                if target in live
            }
            for state, targets in reached.items()
            if state in live
        }


def _joined_way(way: _Way) -> str:
    return " ".join(word for word in way if word)


def _circles(ways: Mapping[str, list[_Way]]) -> list[list[str]]:
    """Return the rules that come back to themselves through each other, two or more together."""
    after = {name: [target for _, target in found if target] for name, found in ways.items()}
    before: dict[str, list[str]] = {name: [] for name in ways}
    for name, targets in after.items():
        for target in targets:
            before[target].append(name)
    ended: list[str] = []
    seen: set[str] = set()
    for start in ways:
        path = [(start, iter(after[start]))] if start not in seen else []
        seen.add(start)
        while path:
            following = next((each for each in path[-1][1] if each not in seen), None)
            if following is None:
                ended.append(path.pop()[0])
            else:
                seen.add(following)
                path.append((following, iter(after[following])))
    circles = []
    seen = set()
    for name in reversed(ended):
        circle = [] if name in seen else [name]
        seen.add(name)
        for each in circle:
            new = [other for other in before[each] if other not in seen]
            seen |= {*new}
            circle += new
        circles += [circle] if len(circle) > 1 else []
    return circles


def _unroll(circle: Sequence[str], ways: dict[str, list[_Way]]) -> None:
    """Write rules so that each refers only to itself, those before it and what is outside.

    A parser completes all levels of a recursion through another rule after every character; one
    through the same rule is a loop to it.
    """
    for last in reversed(circle):
        loops = [words for words, target in ways[last] if target == last]
        others = [(words, target) for words, target in ways[last] if target != last]
        loop = f"( {' | '.join(loops)} )* " if loops else ""
        for name in circle[: circle.index(last)]:
            entries = [words for words, target in ways[name] if target == last]
            if entries:
                entry = f"{either(entries)} {loop}"
                ways[name] = [way for way in ways[name] if way[1] != last]
                ways[name] += [(f"{entry}{words}", target) for words, target in others]
                if sum(len(words) for words, _ in ways[name]) > _MOST_TEXT:
                    raise TooLarge


def without(ranges: Iterable[tuple[int, int]], holes: Iterable[tuple[int, int]]) -> Ranges:
    """Return what is left of the ranges."""
    left: list[tuple[int, int]] = []
    for low, high in ranges:
        start = low
        for first, last in sorted(holes):
            if start < first <= high:
                left.append((start, first - 1))
            if first <= high:
                start = max(start, last + 1)
        if start <= high:
            left.append((start, high))
    return tuple(left)


def _is_any_number(part: Expression) -> bool:
    """Return whether it is any number of one character's; before or after anything, that is all."""
    is_any = part.kind is NodeKind.REPEATED and part.parts[1:] == (0, None)
    return is_any and part.parts[0].kind is NodeKind.CHARS


def _joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the same characters as ascending ranges that do not touch."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    return tuple(found)


def _holds(ranges: Ranges, char: int) -> bool:
    return any(low <= char <= high for low, high in ranges)


def _alphabet(root: Expression) -> list[Ranges]:
    """Return characters in groups, all of which are alike to an expression."""
    classes: set[Ranges] = set()
    seen = {root}
    todo = [root]
    while todo:
        part = todo.pop()
        if part.kind is NodeKind.CHARS:
            classes.add(part.parts)
        elif part.kind is NodeKind.MULTIPLE:
            classes |= {(digit,) for digit in _DIGITS} | {((46, 46),)}
        else:
            new = {each for each in part.parts if isinstance(each, Expression)} - seen
            seen |= new
            todo += new
    edges = sorted({0} | {edge for ranges in classes for a, b in ranges for edge in (a, b + 1)})
    groups: dict[tuple[bool, ...], list[tuple[int, int]]] = {}
    ordered = sorted(classes)
    for low, end in zip(edges, [*edges[1:], LAST + 1], strict=True):
        if low < end:
            alike = tuple(_holds(ranges, low) for ranges in ordered)
            groups.setdefault(alike, []).append((low, end - 1))
    return [_joined(ranges) for ranges in groups.values()]


def often(low: int, high: int | None) -> str:
    """Return how often what stands before it comes, in GBNF."""
    known = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    return known.get((low, high), f"{{{low},{'' if high is None else high}}}")


def _written_chars(ranges: Ranges) -> str | None:
    """Return GBNF for one character in a JSON string; None where none can be written."""
    if ranges == ALL:
        return "short"
    plain = without(ranges, _ESCAPED)
    spans = "".join(_span(low, high) for low, high in plain)
    parts = [f"[{spans}]"] if spans else []
    short = "".join(escape for code, escape in _SHORT.items() if _holds(ranges, code))
    parts += [f'( "\\\\" [{short}] )'] if short else []
    return either(parts) if parts else None


def _span(low: int, high: int) -> str:
    ends = [
        chr(end) if chr(end).isalnum() and end < 128 else f"\\U{end:08X}" for end in (low, high)
    ]
    return ends[0] if low == high else "-".join(ends)
