"""Proposes what followed the longest earlier occurrence of how a text ends. Pure.

A suffix automaton (Blumer et al. 1985), built token by token in amortised constant time, with
counts, and the draft length of SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975): in
proportion to the match, while what is proposed is frequent enough.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from outrider.drafters.source import Proposal, confidence

_ROOT = 0
_NO_STATE = -1
_NO_TOKEN = -2
_NO_EDGE = -1
_CROWDED = -2
_LONGEST_CHAIN = 8
_END = -1
"""Stands between two texts in one automaton; no text holds it."""

_COUNTED = 32  # contexts whose counts a token changes, the longest first
_LOST_AFTER = 64  # steps to shorter contexts, after tokens that are not committed
TAIL = 64  # tokens of a prompt, or of a text, that are looked for in what is new


class SuffixAutomaton:
    """All contexts that occurred in a sequence of tokens, and what followed each.

    A state is a set of contexts with the same ends, the longest of `lengths[state]` tokens. Of its
    edges the best is in the arrays: to the state that occurred most often, then most recently.
    Counts are exact but in runs: of a context that ends there in more than 32 states, the
    shortest are not counted.
    """

    def __init__(self) -> None:
        self.lengths = array("i")
        self.links = array("i")  # the state of the next shorter contexts
        self.counts = array("i")
        self._tokens = array("i")  # of the best edge
        self._targets = array("i")
        # The other edges of a state: a chain of a few, or a dict from token to state.
        self._chains = array("i")  # by state: the first edge
        self._chain_tokens = array("i")
        self._chain_targets = array("i")
        self._chain_nexts = array("i")
        self._crowded: dict[int, dict[int, int]] = {}
        self._crowd_count = 0
        self._last = self._add_state(0, _NO_STATE)

    def __len__(self) -> int:
        """The number of tokens so far."""
        return self.lengths[self._last]

    @property
    def size_bytes(self) -> int:
        """The memory that it holds, about."""
        # Arrays have room for a sixteenth more, and dicts for as much again.
        numbers = 6 * len(self.lengths) + 3 * len(self._chain_tokens)
        return int(4.2 * numbers) + 400 * len(self._crowded) + 100 * self._crowd_count

    @property
    def match(self) -> int:
        """The state of the longest context at the end that occurred before."""
        return max(_ROOT, self.links[self._last])

    def append(self, token_id: int) -> None:
        """Add a token, of at least -1."""
        lengths, links, tokens = self.lengths, self.links, self._tokens
        before = self._last
        self._last = last = self._add_state(lengths[before] + 1, _ROOT)
        state = before
        while state != _NO_STATE and (target := self.step(state, token_id)) is None:
            if tokens[state] == _NO_TOKEN:
                tokens[state], self._targets[state] = token_id, last
            else:
                self._add_edge(state, token_id, last)
            state = links[state]
        if state != _NO_STATE:
            assert target is not None
            if lengths[target] != lengths[state] + 1:
                target = self._split(target, state, token_id)
            links[last] = target
        self._count(before, token_id)

    def step(self, state: int, token_id: int) -> int | None:
        """Return the state after a token; None if it never came there."""
        if self._tokens[state] == token_id:
            return self._targets[state]
        edge = self._chains[state]
        while edge >= 0:
            if self._chain_tokens[edge] == token_id:
                return self._chain_targets[edge]
            edge = self._chain_nexts[edge]
        return self._crowded[state].get(token_id) if edge == _CROWDED else None

    def best(self, state: int) -> tuple[int, int] | None:
        """Return the token that came there most often, then most recently, and the state after."""
        token_id = self._tokens[state]
        return None if token_id == _NO_TOKEN else (token_id, self._targets[state])

    def _add_state(self, length: int, link: int) -> int:
        self.lengths.append(length)
        self.links.append(link)
        self.counts.append(0)
        self._tokens.append(_NO_TOKEN)
        self._targets.append(_NO_STATE)
        self._chains.append(_NO_EDGE)
        return len(self.lengths) - 1

    def _edges(self, state: int) -> list[tuple[int, int]]:
        """Return token and state of all edges but the best."""
        edge = self._chains[state]
        if edge == _CROWDED:
            return [*self._crowded[state].items()]
        found = []
        while edge != _NO_EDGE:
            found.append((self._chain_tokens[edge], self._chain_targets[edge]))
            edge = self._chain_nexts[edge]
        return found

    def _add_edge(self, state: int, token_id: int, target: int) -> None:
        """Add an edge that is not the best."""
        if self._chains[state] != _CROWDED:
            edges = self._edges(state)
            if len(edges) < _LONGEST_CHAIN:
                self._chain_tokens.append(token_id)
                self._chain_targets.append(target)
                self._chain_nexts.append(self._chains[state])
                self._chains[state] = len(self._chain_tokens) - 1
                return
            self._crowded[state] = dict(edges)
            self._chains[state] = _CROWDED
            self._crowd_count += len(edges)
        self._crowded[state][token_id] = target
        self._crowd_count += 1

    def _replace_edge(self, state: int, token_id: int, new_token: int, target: int) -> None:
        """Have another edge in place of one that is not the best."""
        edge = self._chains[state]
        if edge == _CROWDED:
            del self._crowded[state][token_id]
            self._crowded[state][new_token] = target
            return
        while self._chain_tokens[edge] != token_id:
            edge = self._chain_nexts[edge]
        self._chain_tokens[edge], self._chain_targets[edge] = new_token, target

    def _split(self, target: int, state: int, token_id: int) -> int:
        """Part from a state the contexts that now have an end more; return theirs."""
        copy = self._add_state(self.lengths[state] + 1, self.links[target])
        self.counts[copy] = self.counts[target]
        self._tokens[copy], self._targets[copy] = self._tokens[target], self._targets[target]
        for other_token, other_target in reversed(self._edges(target)):
            self._add_edge(copy, other_token, other_target)
        self.links[target] = copy
        while state != _NO_STATE and self.step(state, token_id) == target:
            if self._tokens[state] == token_id:
                self._targets[state] = copy
            else:
                self._replace_edge(state, token_id, token_id, copy)
            state = self.links[state]
        return copy

    def _count(self, before: int, token_id: int) -> None:
        """Count the contexts that end with the newest token, and what came after those before."""
        counts, links, tokens, targets = self.counts, self.links, self._tokens, self._targets
        state = self._last
        for _ in range(_COUNTED):
            if state == _ROOT:
                break
            counts[state] += 1
            state = links[state]
        state = before
        for _ in range(_COUNTED):
            if state == _NO_STATE:
                break
            if tokens[state] != token_id:
                target = self.step(state, token_id)
                assert target is not None
                if counts[target] >= counts[targets[state]]:
                    self._replace_edge(state, token_id, tokens[state], targets[state])
                    tokens[state], targets[state] = token_id, target
            state = links[state]


@dataclass(frozen=True, slots=True)
class LengthRule:
    """How long a draft is for its match, and how sure it is said to be."""

    factor: float = 4.0
    """Tokens at most for each token of the match."""
    min_probability: float = 0.1
    """Of all that is proposed, by the counts; less ends it."""
    doubt: float = 1.0
    """A match of so many tokens is right half as often as the counts say."""


_USUAL = LengthRule()


@dataclass(slots=True)
class Cursor:
    """The longest suffix of a text that occurred in an automaton, which may be of other texts."""

    automaton: SuffixAutomaton
    state: int = _ROOT
    length: int = 0

    def follow(self, token_ids: Iterable[int], steps: int | None = None) -> None:
        """Take in tokens after the text, each in amortised constant time.

        A copy that is followed again and again has no such bound, so `steps` gives it one: after
        so many shorter contexts that did not continue either it starts over with none.
        """
        automaton = self.automaton
        for token_id in token_ids:
            self._settle()
            while (target := automaton.step(self.state, token_id)) is None:
                if self.state == _ROOT:
                    break
                self.state = automaton.links[self.state] if steps != 0 else _ROOT
                self.length = automaton.lengths[self.state]
                steps = steps - 1 if steps else steps
            if target is not None:
                self.state, self.length = target, self.length + 1

    def propose(self, count: int, rule: LengthRule, at_end: bool) -> Proposal:
        """Return what followed. `at_end`: once nothing did, since the automaton's texts end so."""
        self._settle()
        automaton, counts = self.automaton, self.automaton.counts
        state, length = self.state, self.length
        count = min(count, int(rule.factor * length))
        token_ids: list[int] = []
        confidences = bytearray()
        path = 1.0
        while length and len(token_ids) < count:
            if (edge := automaton.best(state)) is None:  # it came last of all: as it came before
                state, at_end = automaton.links[state], True
                length = automaton.lengths[state]
                continue
            token_id, target = edge
            share = min(1.0, counts[target] / max(1, counts[state] - at_end))
            path *= share
            if token_id == _END or path < rule.min_probability:
                break
            token_ids.append(token_id)
            confidences.append(confidence(share * length / (length + rule.doubt)))
            state, length, at_end = target, length + 1, False
        return Proposal(token_ids, bytes(confidences))

    def _settle(self) -> None:
        """Find the state again, which the automaton may have split since."""
        links, lengths = self.automaton.links, self.automaton.lengths
        while self.state != _ROOT and lengths[links[self.state]] >= self.length:
            self.state = links[self.state]


class SuffixSource:
    """Proposes what followed in the text itself, the prompt included.

    The prompt is appended as all else is. It takes some microseconds a token, so one of many
    thousands is better given in pieces, while the target reads it.
    """

    reads_prompt = True

    def __init__(self, rule: LengthRule = _USUAL) -> None:
        self._automaton = SuffixAutomaton()
        self._rule = rule

    @property
    def size_bytes(self) -> int:
        return self._automaton.size_bytes

    def append(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            self._automaton.append(token_id)

    def propose(self, count: int, after: Sequence[int] = ()) -> Proposal:
        automaton, match = self._automaton, self._automaton.match
        cursor = Cursor(automaton, match, automaton.lengths[match])
        cursor.follow(after, _LOST_AFTER)
        return cursor.propose(count, self._rule, at_end=not after)


class PastTexts:
    """The latest texts of an orchestrator, at most `capacity` tokens; the oldest are dropped.

    By how fast its text comes, a caller may learn what is in here: share it only between callers
    who may know each other's texts. An automaton forgets nothing, so there are a few, one after
    the other, and the oldest goes as a whole.
    """

    def __init__(self, capacity: int, part_count: int = 4) -> None:
        self._part_size = max(1, capacity // part_count)
        self._part_count = part_count
        self._waiting: deque[int] = deque(maxlen=self._part_size)
        self.parts = [SuffixAutomaton()]
        """The newest is last and grows. It is another list when one comes or goes."""

    @property
    def size_bytes(self) -> int:
        """The memory that it holds, about."""
        return sum(part.size_bytes for part in self.parts) + 8 * len(self._waiting)

    @property
    def waiting_count(self) -> int:
        """Tokens that `index` has not come to."""
        return len(self._waiting)

    def add(self, token_ids: Sequence[int]) -> None:
        """Take in a text that is over. It is found as soon as `index` has come to it."""
        self._waiting.extend(token_ids)
        self._waiting.append(_END)

    def index(self, count: int) -> None:
        """Make at most `count` waiting tokens known: a text at once would take too long."""
        for _ in range(min(count, len(self._waiting))):
            if len(self.parts[-1]) >= self._part_size:
                self.parts = [*self.parts, SuffixAutomaton()][-self._part_count :]
            self.parts[-1].append(self._waiting.popleft())


class PastSource:
    """Proposes what followed in past texts: where the match is longest, then most recent."""

    reads_prompt = False

    def __init__(
        self, texts: PastTexts, prompt: Sequence[int] = (), rule: LengthRule = _USUAL
    ) -> None:
        """Begin after a prompt, of which the last 64 tokens are matched."""
        self._texts = texts
        self._rule = rule
        self._tail: deque[int] = deque(prompt[-TAIL:], maxlen=TAIL)
        self._parts: list[SuffixAutomaton] = []
        self._cursors: list[Cursor] = []

    def append(self, token_ids: Sequence[int]) -> None:
        self._texts.index(2 * len(token_ids))
        self._keep_up()
        for cursor in self._cursors:
            cursor.follow(token_ids)
        self._tail.extend(token_ids)

    def propose(self, count: int, after: Sequence[int] = ()) -> Proposal:
        self._keep_up()
        cursors = self._cursors
        if after:
            cursors = [replace(cursor) for cursor in cursors]
            for cursor in cursors:
                cursor.follow(after, _LOST_AFTER)
        longest = max(reversed(cursors), key=lambda cursor: cursor.length)
        return longest.propose(count, self._rule, at_end=False)

    def _keep_up(self) -> None:
        """Have a cursor in each part of the past texts; what is new there is old text, too."""
        if self._parts is self._texts.parts:
            return
        known = {id(cursor.automaton): cursor for cursor in self._cursors}
        self._parts = self._texts.parts
        self._cursors = []
        for part in self._parts:
            cursor = known.get(id(part))
            if cursor is None:
                cursor = Cursor(part)
                cursor.follow(self._tail)
            self._cursors.append(cursor)
