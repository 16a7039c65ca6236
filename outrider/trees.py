"""Draft tokens that branch: what follows what, what is left of them, what is accepted. Pure.

A tree is a list of nodes, a draft token each, and for every node the one that it follows. A node
stands after the one that it follows, so the first so many nodes of a tree are a tree as well: where
they stand in falling order of their chances, where there is room for fewer, the end is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outrider.errors import InvalidRequest

ROOT = -1
"""What the first tokens of a tree follow: the text."""

MAX_LEAVES = 8
"""Nodes of one tree at most that nothing follows: each takes a sequence of the target's cache."""


class NoTree(ValueError):
    """Tokens and parents that are no tree."""


@dataclass(frozen=True, slots=True)
class Walk:
    """What is accepted of a tree: `nodes`, each following the one before; then another token."""

    nodes: Sequence[int]
    next_token_id: int


@dataclass(frozen=True, slots=True)
class Tree:
    """Draft tokens, and for each the node that it follows: an earlier one, or ROOT.

    No two nodes that follow the same one have the same token.
    """

    token_ids: Sequence[int]
    parents: Sequence[int]

    @classmethod
    def chain(cls, token_ids: Sequence[int]) -> Tree:
        """Return tokens that follow one another."""
        return cls(token_ids, range(ROOT, len(token_ids) - 1))

    @classmethod
    def checked(cls, token_ids: Sequence[int], parents: Sequence[int]) -> Tree:
        """Return a tree of tokens and parents from another process. Raises NoTree."""
        if len(token_ids) != len(parents):
            raise NoTree(f"{len(parents)} parents of {len(token_ids)} tokens")
        for node, parent in enumerate(parents):
            if not ROOT <= parent < node:
                raise NoTree(f"node {node} follows node {parent}, which is not before it")
        if len(set(zip(parents, token_ids, strict=True))) != len(token_ids):
            raise NoTree("a token follows the same node twice")
        tree = cls(token_ids, parents)
        if len(tree.leaves) > MAX_LEAVES:
            raise NoTree(f"{len(tree.leaves)} leaves, at most {MAX_LEAVES}")
        return tree

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def is_chain(self) -> bool:
        """Whether every token follows the one before it."""
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    @property
    def leaves(self) -> list[int]:
        """The nodes that nothing follows, in order."""
        inner = set(self.parents)
        return [node for node in range(len(self)) if node not in inner]

    @property
    def depths(self) -> list[int]:
        """How many nodes lead to each, itself included."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return depths

    def path(self, node: int) -> list[int]:
        """Return the nodes that lead to one, itself last; none for ROOT."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def tokens(self, nodes: Iterable[int]) -> list[int]:
        """Return the tokens of some nodes."""
        return [self.token_ids[node] for node in nodes]

    def child(self, node: int, token_id: int) -> int | None:
        """Return the node of a token that follows another one, if there is one."""
        for each, parent in enumerate(self.parents):
            if parent == node and self.token_ids[each] == token_id:
                return each
        return None

    def first(self, count: int) -> Tree:
        """Return the first nodes."""
        return Tree(self.token_ids[:count], self.parents[:count])

    def within(self, leaf_count: int) -> Tree:
        """Return as many of the first nodes as have at most so many leaves."""
        count = len(self)
        while len(self.first(count).leaves) > leaf_count:
            count -= 1
        return self.first(count)

    def node_after(self, token_ids: Sequence[int]) -> int | None:
        """Return the node that some tokens lead to, ROOT for none of them; None if none does."""
        node: int | None = ROOT
        for token_id in token_ids:
            if node is None:
                return None
            node = self.child(node, token_id)
        return node

    def below(self, node: int) -> list[int]:
        """Return the nodes that stand below one, in order; all of them below ROOT."""
        found: list[int] = []
        inside = {node}
        for each, parent in enumerate(self.parents):
            if parent in inside:
                inside.add(each)
                found.append(each)
        return found

    def subtree(self, node: int) -> Tree:
        """Return what stands below a node, as a tree of its own."""
        nodes = self.below(node)
        places = {node: ROOT} | {each: place for place, each in enumerate(nodes)}
        return Tree(self.tokens(nodes), [places[self.parents[each]] for each in nodes])

    def walk(self, sampled: Sequence[int]) -> Walk:
        """Return what is accepted by samples: the text's own, then one after every node.

        A node stands if it is what was sampled after the one that it follows, so that no tree has
        a say in what is written: it only says how many of the samples there are already.
        """
        nodes: list[int] = []
        token_id = sampled[0]
        while (node := self.child(nodes[-1] if nodes else ROOT, token_id)) is not None:
            nodes.append(node)
            token_id = sampled[node + 1]
        return Walk(nodes, token_id)

    def line(self, nodes: Sequence[int]) -> list[int]:
        """Return a path with what would have come after it: always the first that follows."""
        line = list(nodes)
        while True:
            last = line[-1] if line else ROOT
            follower = next((i for i, parent in enumerate(self.parents) if parent == last), None)
            if follower is None:
                return line
            line.append(follower)


def read_parents(data: bytes, token_ids: Sequence[int], may_branch: bool) -> Sequence[int]:
    """Return what each token of a round follows, of a byte for each; nothing for a chain.

    Raises InvalidRequest for what is no tree, or for any where none may be.
    """
    if data and not may_branch:
        raise InvalidRequest("draft.parents", "with SAMPLED only, without decode_token_limit")
    try:
        return Tree.checked(token_ids, [each - 1 for each in data]).parents if data else ()
    except NoTree as error:
        raise InvalidRequest("draft.parents", str(error)) from None


def write_parents(parents: Sequence[int]) -> bytes:
    """Return a byte for each token: 0 where it follows the text, 1 where the first token."""
    return bytes(parent + 1 for parent in parents)
