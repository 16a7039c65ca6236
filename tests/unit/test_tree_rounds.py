"""Rounds whose draft is a tree: on the wire, after a text that went on, with too few sequences."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from outrider import wire_rounds
from outrider.engine.batching import nodes_within
from outrider.errors import InvalidRequest
from outrider.messages import Form, Round, Span, contradicts
from outrider.trees import MAX_LEAVES, ROOT, Tree
from outrider.v1 import common_pb2 as common
from outrider.v1 import target_service_pb2 as target
from target_service.tree_rounds import check_tree_round, tree_after
from tests.unit.test_trees import FORK, TREES

SIZE = 64
TEXT = (3, 4)


def round_of(tree: Tree, survivals: bytes = b"") -> Round:
    return Round(
        1, Span(0, TEXT), tree.token_ids, Form.SAMPLED, survivals=survivals, parents=tree.parents
    )


def message(**changes: Any) -> target.VerifyRound:
    whole = wire_rounds.write_round(round_of(FORK)).round
    whole.MergeFrom(target.VerifyRound(**changes))
    return whole


# --- on the wire ---


def test_a_tree_is_read_as_it_was_written() -> None:
    for tree in TREES:
        sent = wire_rounds.write_round(round_of(tree)).round
        read = wire_rounds.read_round(target.VerifyRound.FromString(sent.SerializeToString()), SIZE)
        assert read.tree == Tree(list(tree.token_ids), list(tree.parents)) or not len(tree)
        assert read.row_count == len(tree) + 1


def test_a_chain_is_as_compact_as_it_was() -> None:
    chain = Round(1, Span(0, TEXT), [5, 6], Form.SAMPLED)
    assert not wire_rounds.write_round(chain).round.draft.parents
    assert wire_rounds.read_round(wire_rounds.write_round(chain).round, SIZE).parents == ()
    assert chain.tree == Tree.chain([5, 6])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"draft": {"parents": b"\0"}}, "1 parents of 5"),
        ({"draft": {"parents": b"\0" * 64}}, "64 parents of 5"),
        ({"draft": {"parents": b"\0\2\1\0\3"}}, "node 1 follows node 1"),
        ({"draft": {"parents": b"\0\1\1\0\xff"}}, "node 4 follows node 254"),
        ({"draft": {"token_ids": [5], "parents": b"\0\1\1\0\3\0"}}, "twice"),
        ({"row_form": common.ROW_FORM_LOGITS}, "SAMPLED only"),
        ({"draft": {"decode_token_limit": 2}}, "without decode_token_limit"),
    ],
)
def test_a_tree_that_is_none_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        wire_rounds.read_round(message(**changes), SIZE)
    assert refused.value.field == "draft.parents"


def test_a_tree_with_more_leaves_than_any_target_takes_is_refused() -> None:
    wide = Tree(list(range(MAX_LEAVES + 1)), [ROOT] * (MAX_LEAVES + 1))
    with pytest.raises(InvalidRequest, match="9 leaves, at most 8"):
        wire_rounds.read_round(wire_rounds.write_round(round_of(wide)).round, SIZE)


@pytest.mark.parametrize(
    ("profile", "limit", "why"),
    [
        (common.NUMERICS_PROFILE_EXACT, 0, "under `exact` numerics only chains"),
        (common.NUMERICS_PROFILE_NATIVE, 0, "without a pool of cells"),
        (common.NUMERICS_PROFILE_NATIVE, 2, "3 leaves, at most 2"),
    ],
)
def test_who_takes_no_trees_says_why(profile: Any, limit: int, why: str) -> None:
    response = common.GetModelResponse(numerics_profile=profile, tree_leaf_limit=limit)
    with pytest.raises(InvalidRequest, match=why):
        check_tree_round(round_of(FORK), response)
    check_tree_round(Round(1, Span(0, TEXT), [5, 6], Form.SAMPLED), response)
    response.tree_leaf_limit = 3
    check_tree_round(round_of(FORK), response)


def test_a_tree_contradicts_no_text_that_begins_with_its_prefix() -> None:
    later = Round(2, Span(0, (*TEXT, 9)), (), Form.SAMPLED)
    assert not contradicts(round_of(FORK), later)
    assert contradicts(round_of(FORK), Round(2, Span(0, (3, 9)), (), Form.SAMPLED))


# --- after a text that went on ---


def test_what_is_left_of_a_tree_is_what_stands_below_the_text() -> None:
    round_ = round_of(FORK, bytes([200, 100, 50, 40, 25]))
    assert tree_after(round_, TEXT, 99) == (FORK, [each / 255 for each in (200, 100, 50, 40, 25)])
    below, gains = tree_after(round_, [*TEXT, 5], 99)
    assert below == Tree([6, 7, 9], [ROOT, ROOT, 1])
    assert gains == [0.5, 0.25, 0.125]
    for other in ([*TEXT, 6], [*TEXT, 5, 8], [*TEXT, 8, 8]):
        assert tree_after(round_, other, 99) == (Tree((), ()), [])
    cut, gains = tree_after(round_, [*TEXT, 5], 2)
    assert len(cut) == len(gains) == 2
    assert len(tree_after(round_, [*TEXT, 5], -1)[0]) == 0


# --- too few sequences ---


def test_trees_share_the_sequences_that_there_are() -> None:
    some = [tree for tree in TREES if len(tree) >= 2]
    for trees in itertools.product(some[::9], repeat=2):
        for spare in range(5):
            counts = nodes_within(trees, spare)
            cut = [tree.first(count) for tree, count in zip(trees, counts, strict=True)]
            assert sum(len(each.leaves) - 1 for each in cut) <= spare
            assert len(cut[0]) == len(trees[0].within(1 + spare))
            if sum(len(tree.leaves) - 1 for tree in trees) <= spare:
                assert counts == [len(tree) for tree in trees]
