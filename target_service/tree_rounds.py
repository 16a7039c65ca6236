"""Rounds whose draft is a tree: what of it is left, and who refuses it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.errors import InvalidRequest
from outrider.messages import Round
from outrider.trees import Tree
from outrider.v1 import common_pb2 as common

_WHY = {
    common.NUMERICS_PROFILE_EXACT: "under `exact` numerics only chains are verified: llama.cpp"
    " shares no token between the streams of sessions, and the cells of branches would change the"
    " order of sums, and so bits",
    common.NUMERICS_PROFILE_NATIVE: "without a pool of cells (--kv-cache pool) only chains are"
    " verified: llama.cpp shares no token between the streams of sessions",
}


def check_tree_round(round_: Round, target: common.GetModelResponse) -> None:
    """Raise InvalidRequest for a tree that a target does not verify."""
    if not round_.parents:
        return
    most, leaves = target.tree_leaf_limit, len(round_.tree.leaves)
    if not most:
        raise InvalidRequest("draft.parents", _WHY[target.numerics_profile])
    if leaves > most:
        raise InvalidRequest("draft.parents", f"{leaves} leaves, at most {most}")


def tree_after(round_: Round, text: Sequence[int], room: int) -> tuple[Tree, list[float]]:
    """Return what is left of a round's tree after a text, and what each node is expected to add.

    The text begins with the round's prefix, and may be further: then it is what the target went on
    to write by itself. `room` is for so many nodes at most.
    """
    whole = round_.tree
    node = whole.node_after(text[round_.prefix.end :])
    if node is None:
        return Tree((), ()), []
    tree = whole.subtree(node).first(max(0, room))
    survivals = [round_.survivals[each] for each in whole.below(node)] if round_.survivals else []
    certain = round_.survivals[node] if survivals and node >= 0 else 255
    gains = [min(1.0, each / max(1, certain)) for each in survivals[: len(tree)]]
    return tree, gains
