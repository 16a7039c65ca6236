"""Which draft tokens to have verified as a tree, and whether a chain is worth more. Pure.

Under `match` and `shared-noise` a token is accepted if the target's own sample says it, so several
candidates after one token need no rule of their own: at most one of them is right. A tree is then
best where its nodes are those most likely to be reached (EAGLE-2's rule, 2406.16858), and worth
what they add less what the target makes in the time of their rows.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count as numbers

from outrider.trees import MAX_LEAVES, ROOT, Tree


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens that may follow the text, and the chance of each if those before it stand."""

    token_ids: Sequence[int]
    chances: Sequence[float]


@dataclass(frozen=True, slots=True)
class Grown:
    """A tree in falling order of `survivals`, the chance of each node that it is accepted.

    `origins` says for each node which guess proposed it, and which of its tokens it is.
    """

    tree: Tree
    survivals: Sequence[float]
    origins: Sequence[tuple[int, int]]


@dataclass(slots=True)
class _Node:
    """A token as the tree is put together."""

    token_id: int
    parent: int
    survival: float
    origin: tuple[int, int]
    left: float = 1.0  # the chance that what follows is none of the nodes that follow already


def grow(guesses: Sequence[Guess], most: int, leaf_limit: int = MAX_LEAVES) -> Grown:
    """Return the tree of the nodes most likely to be reached, of all that the guesses say.

    The first guess is the best. One that parts from those before it is right where they are not:
    its chance is of what they leave.
    """
    nodes: list[_Node] = []
    roots = _Node(-1, ROOT, 1.0, (-1, -1))
    for number, guess in enumerate(guesses):
        _add(nodes, roots, number, guess)
    order = _best_first(nodes, min(most, len(nodes)), leaf_limit)
    places = {ROOT: ROOT} | {node: place for place, node in enumerate(order)}
    return Grown(
        Tree([nodes[i].token_id for i in order], [places[nodes[i].parent] for i in order]),
        [nodes[i].survival for i in order],
        [nodes[i].origin for i in order],
    )


def _add(nodes: list[_Node], root: _Node, number: int, guess: Guess) -> None:
    last = ROOT
    for i, (token_id, chance) in enumerate(zip(guess.token_ids, guess.chances, strict=True)):
        known = next(
            (k for k, n in enumerate(nodes) if n.parent == last and n.token_id == token_id), None
        )
        if known is None:
            before = root if last == ROOT else nodes[last]
            share = chance * before.left
            before.left -= share
            known = len(nodes)
            nodes.append(_Node(token_id, last, before.survival * share, (number, i)))
        last = known


def _best_first(nodes: Sequence[_Node], most: int, leaf_limit: int) -> list[int]:
    """Return the nodes by falling survival, each after its parent, with so many leaves at most."""
    order: list[int] = []
    taken = {ROOT}
    followed: set[int] = set()  # nodes that a taken one follows
    leaves = 1  # the text itself, before anything follows it
    for i in sorted(range(len(nodes)), key=lambda i: (-nodes[i].survival, i)):
        parent = nodes[i].parent
        is_fork = parent in followed
        if len(order) == most:
            break
        if parent not in taken or (is_fork and leaves == leaf_limit):
            continue
        leaves += is_fork
        taken.add(i)
        followed.add(parent)
        order.append(i)
    return order


def best_count(
    survivals: Sequence[float], round_seconds: Callable[[int], float], rate: float
) -> tuple[int, float]:
    """Return how many of the nodes are best verified, and what that is worth, in tokens.

    That is what they add and one more, less what is made in the time at `rate` tokens a second;
    `round_seconds` is the time of a round with so many draft tokens. None of them: a plain round.
    """
    best, worth, tokens = 0, 1.0 - rate * round_seconds(0), 1.0
    for count, survival in enumerate(survivals, 1):
        tokens += survival
        value = tokens - rate * round_seconds(count)
        if value > worth:
            best, worth = count, value
    return best, worth


def as_bytes(chances: Iterable[float]) -> bytes:
    """Return chances as a round carries them: one byte each, in 1/255."""
    return bytes(int(255 * each) for each in chances)


def best_survivals(rank_chances: Sequence[float], leaf_limit: int) -> Iterator[float]:
    """Give the chances of the nodes of the best tree, in falling order, without end.

    After every node the k-th candidate is right with the k-th of the chances, after any tokens
    (Sequoia's assumption, 2402.12374). With one chance, or one leaf, that is a chain.
    """
    order = numbers()
    queue = [(-rank_chances[0], next(order), 0, 1.0)]  # survival, tie, rank, its parent's survival
    leaves = 1
    while queue:
        negative, _, rank, above = heapq.heappop(queue)
        if rank and leaves == leaf_limit:
            continue
        leaves += rank > 0
        yield -negative
        heapq.heappush(queue, (negative * rank_chances[0], next(order), 0, -negative))
        if rank + 1 < len(rank_chances):
            heapq.heappush(queue, (-above * rank_chances[rank + 1], next(order), rank + 1, above))
