"""Rounds whose draft branches: when one is asked, and how its answer is read."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from outrider.core.branching import branch
from outrider.core.draft_line import ForkedLine, Line
from outrider.core.local_drafters import LocalLine
from outrider.core.speculate import control
from outrider.core.target_costs import Pair, TargetCosts
from outrider.core.target_progress import RoundInFlight, TargetProgress
from outrider.costs import CostTable
from outrider.drafters.source import Proposal, Source
from outrider.messages import Answer, Form, Round, Rows, Rule, Span
from outrider.speculation import MODEL, Policy, Speculation
from outrider.trees import ROOT, Tree
from tests.support.simulation import Models, Result, Script, Simulation, alone
from tests.unit.test_continuing import generation, rounds, wrote
from tests.unit.test_trees import FORK, TREES

FREE = CostTable([(1, 0.0300), (64, 0.0300)])
GPU = CostTable([(1, 0.0300), (64, 0.0552)])
CPU = CostTable([(1, 0.022), (2, 0.034), (4, 0.056), (8, 0.080), (16, 0.130), (64, 0.450)])


ASKED_FOR = Speculation(n_parallel=8)
"""Without it no round branches."""

TEXT = (3, 4)
"""That a round's tree follows."""


def asked_of(tree: Tree, sources: Sequence[str] = ()) -> RoundInFlight:
    round_ = Round(
        1,
        Span(0, TEXT),
        tree.token_ids,
        Form.SAMPLED,
        survivals=bytes(range(200, 200 - len(tree), -1)),
        parents=tree.parents,
    )
    confidences = [] if sources else [100 + node for node in range(len(tree))]
    return RoundInFlight(round_, 2, Line(tree.token_ids, confidences, sources=sources))


# --- reading ---


def test_an_answer_to_a_tree_is_read_as_that_of_the_way_it_took() -> None:
    asked = asked_of(FORK, ["suffix", "suffix", MODEL, "past", MODEL])
    rows = Rows(sampled=[5, 7, 0, 8, 0, 9])  # 5, 7, then 8 where 9 was drafted
    answer = asked.walked(Answer(1, 2, 5, rows), TEXT)
    assert answer == Answer(1, 2, 3, Rows.join([rows[0:1], rows[1:2], rows[3:4], rows[5:6]]))
    assert list(asked.round.draft) == [5, 7, 9] and not asked.round.parents
    assert asked.round.survivals == bytes([200, 198, 196])
    assert list(asked.line.sources) == ["suffix", MODEL, MODEL]
    assert asked.beside == 2 and list(asked.draft_of(answer)) == [5, 7, 9]


def test_what_is_accepted_of_the_way_is_what_the_tree_accepts() -> None:
    for tree in TREES:
        for sampled in itertools.product(range(3), repeat=len(tree) + 1):
            asked = asked_of(tree)
            answer = asked.walked(Answer(1, 2, len(tree), Rows(sampled=sampled)), TEXT)
            walk = tree.walk(sampled)
            draft, samples = list(asked.round.draft), list(answer.rows.sampled)
            count = next((i for i, t in enumerate(draft) if t != samples[i]), len(draft))
            assert [*draft[:count], samples[count]] == [
                *tree.tokens(walk.nodes),
                walk.next_token_id,
            ]
            assert len(asked.line.confidences) == len(draft) == answer.drafted


@pytest.mark.fault(
    "text",
    "a target that writes on by itself while a tree is on its way to it",
    before="what was left of the tree was read as a chain: a token could come that nobody sampled",
    now="the answer is read below the node that the text had come to",
)
def test_what_is_accepted_below_what_was_written_meanwhile_is_what_the_tree_accepts() -> None:
    for tree in TREES:
        for node in range(len(tree)):
            path, left = tree.tokens(tree.path(node)), tree.subtree(node)
            for sampled in itertools.product(range(3), repeat=len(left) + 1):
                asked, text = asked_of(tree), [*TEXT, *path]
                answer = Answer(1, len(text), len(left), Rows(sampled=sampled))
                answer = asked.walked(answer, text)
                walk, draft = left.walk(sampled), list(asked.draft_of(answer))
                samples = list(answer.rows.sampled)
                count = next((i for i, t in enumerate(draft) if t != samples[i]), len(draft))
                added = [*left.tokens(walk.nodes), walk.next_token_id]
                assert [*draft[:count], samples[count]] == added
                assert list(asked.round.draft[: len(path)]) == path
                assert len(asked.line.confidences) == len(path) + answer.drafted
                assert asked.beside == len(left) - answer.drafted


def test_a_text_that_left_the_tree_meanwhile_has_nothing_of_it() -> None:
    asked, text = asked_of(FORK), [*TEXT, 9]
    answer = Answer(1, 3, 0, Rows(sampled=[5]))
    assert asked.walked(answer, text) == answer
    assert list(asked.draft_of(answer)) == []


def test_what_is_committed_behind_a_tree_that_was_overtaken_is_what_was_sampled() -> None:
    """The tree's second node stands where the answer's first draft token would, were it a chain."""
    tree = Tree([6, 8, 7], [ROOT, ROOT, 0])
    begun = generation()
    [first] = rounds(begun)
    wrote(begun, first, 4, 5)
    begun.next_actions(0.2)
    asked = RoundInFlight(
        Round(99, Span(4, (5,)), tree.token_ids, Form.SAMPLED, parents=tree.parents),
        5,
        Line(tree.token_ids, [255] * 3),
        sent_time=0.2,
    )
    begun._target.in_flight.append(asked)
    wrote(begun, first, 5, 6)  # what it wrote until it read the tree
    answer = Answer(99, 6, 1, Rows(sampled=[8, 1]))  # 8 in place of 7; nobody looks at the 1
    begun.target_wrote(answer, now=0.3)
    assert begun.committed == [1, 2, 3, 4, 5, 6, 8]


def test_a_tree_of_which_a_busy_target_left_out_the_end_is_read_as_far_as_it_was_verified() -> None:
    asked = asked_of(FORK)
    answer = asked.walked(Answer(1, 2, 2, Rows(sampled=[5, 7, 0])), TEXT)
    assert (answer.drafted, list(asked.round.draft), asked.beside) == (2, [5, 6], 0)
    alone = asked_of(FORK)
    assert alone.walked(Answer(1, 2, 0, Rows(sampled=[5])), TEXT).drafted == 0
    assert list(alone.round.draft) == []


@pytest.mark.parametrize(
    ("position", "drafted", "count"), [(3, 5, 6), (2, 6, 7), (2, 5, 7), (2, 4, 6), (0, 1, 2)]
)
def test_an_answer_that_is_no_trees_is_left_to_be_refused(
    position: int, drafted: int, count: int
) -> None:
    asked, answer = asked_of(FORK), Answer(1, position, drafted, Rows(sampled=[0] * count))
    assert asked.walked(answer, TEXT) is answer and asked.round.parents


def test_a_round_that_is_asked_again_is_a_chain() -> None:
    target = TargetProgress(is_open=True)
    target.in_flight.append(asked_of(FORK))
    target.ask_again([3, 4])
    [again] = target.in_flight
    assert list(again.round.draft) == [5, 6] and not again.round.parents
    assert len(again.round.survivals) == len(again.line.confidences) == 2


# --- asking ---


class Proposed:
    """What a draft, or the sources without a model, propose after any text."""

    def __init__(self, proposed: Sequence[object]) -> None:
        self._proposed = proposed

    def line_at(self, _: int) -> Line:
        return Line()

    def forks_at(self, _: int) -> Sequence[object]:
        return self._proposed

    lines = forks_at


def branched(
    costs: CostTable,
    lines: Sequence[Sequence[int]],
    chances: Sequence[float],
    leaves: int = 8,
    forks: Sequence[ForkedLine] = (),
    speculation: Speculation = ASKED_FOR,
    **changes: object,
) -> RoundInFlight:
    """Return a round with the first line, once others were there to branch to."""
    pair = Pair(TargetCosts(costs, tree_leaves=leaves))
    its_control = control(speculation, Rule.MATCH, pair, 1.0)
    its_control.note_presence(True)
    main, *others = [
        LocalLine(Line(ids, sources=["suffix"] * len(ids)), [chance] * len(ids), len(ids), 1.0)
        for ids, chance in zip(lines, chances, strict=True)
    ]
    count = main.count
    survivals = bytes(int(255 * chances[0] ** (i + 1)) for i in range(count))
    round_ = Round(1, Span(0, (3, 4)), main.line.token_ids, Form.SAMPLED, survivals=survivals)
    asked = RoundInFlight(replace(round_, **changes), 2, main.line)  # type: ignore[arg-type]
    branch(asked, its_control, Proposed(forks), Proposed(others))  # type: ignore[arg-type]
    return asked


LINES = [[5, 6, 7], [8, 9, 7], [5, 10]]


def test_where_rows_are_free_a_round_branches_to_all_that_is_proposed() -> None:
    asked = branched(FREE, LINES, [0.6, 0.5, 0.5])
    tree = asked.round.tree
    Tree.checked(tree.token_ids, tree.parents)
    assert {tuple(tree.tokens(tree.path(leaf))) for leaf in tree.leaves} == set(map(tuple, LINES))
    assert list(asked.round.survivals) == sorted(asked.round.survivals, reverse=True)
    assert len(asked.line.sources) == len(tree)


def test_where_each_row_costs_as_much_a_round_stays_a_chain() -> None:
    assert branched(CPU, LINES, [0.6, 0.5, 0.5]).round.parents == ()
    assert branched(CPU, LINES, [0.3, 0.9, 0.5]).round.parents == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"leaves": 0},
        {"leaves": 1},
        {"continue_count": 8},
        {"form": Form.DISTRIBUTIONS},
        {"draft": (), "survivals": b""},
        {"speculation": Speculation()},
        {"speculation": Speculation(n_parallel=1)},
    ],
)
def test_a_round_does_not_branch_where_it_may_not(changes: dict[str, object]) -> None:
    assert branched(FREE, LINES, [0.6, 0.5, 0.5], **changes).round.parents == ()  # type: ignore[arg-type]


def test_a_tree_is_no_longer_than_a_draft_may_be() -> None:
    three = Speculation(n_max=3, n_parallel=8)
    assert len(branched(FREE, LINES, [0.6, 0.5, 0.5]).round.tree) == 7
    assert len(branched(FREE, LINES, [0.6, 0.5, 0.5], speculation=three).round.tree) == 3


def test_with_two_leaves_the_likelier_branch_is_taken() -> None:
    tree = branched(FREE, LINES, [0.6, 0.2, 0.9], leaves=2).round.tree
    assert sorted(tree.tokens(tree.path(leaf)) for leaf in tree.leaves) == [[5, 6, 7], [5, 10]]


def test_a_branch_that_hardly_gains_is_not_asked_for() -> None:
    assert branched(FREE, [[5], [8]], [0.9, 0.2]).round.parents == ()  # .02 tokens
    assert branched(FREE, [[5], [8]], [0.5, 0.5]).round.parents == [ROOT, ROOT]  # .25


def test_costs_that_were_only_looked_at_promise_no_tree() -> None:
    rough = CostTable([(1, 0.0300), (64, 0.0300)], is_rough=True)
    assert branched(rough, LINES, [0.6, 0.5, 0.5]).round.parents == ()


def test_a_runner_up_line_counts_with_what_the_token_beside_it_leaves() -> None:
    fork = ForkedLine(Line([5, 8, 9], [250, 40, 250]), 1, 0.6)  # .8 is of any token
    tree = branched(FREE, [[5, 6, 7]], [0.5], forks=[fork]).round
    assert sorted(tree.tree.tokens(tree.tree.path(each)) for each in tree.tree.leaves) == [
        [5, 6, 7],
        [5, 8, 9],
    ]
    [node] = [i for i, token_id in enumerate(tree.draft) if token_id == 8]
    assert tree.survivals[node] == int(255 * 0.5 * (1 - 0.5) * 0.6)
    assert branched(CPU, [[5, 6, 7]], [0.5], forks=[fork]).round.parents == ()


# --- on the virtual clock ---


class Versions:
    """Proposes what one of two versions of a file says next."""

    reads_prompt = False

    def __init__(self, versions: Sequence[Sequence[int]], number: int) -> None:
        self._versions, self._number = versions, number
        self._length = 0

    def append(self, token_ids: Sequence[int]) -> None:
        self._length += len(token_ids)

    def propose(self, count: int, after: Sequence[int] = ()) -> Proposal:
        at = self._length + len(after)
        ids = self._versions[self._number][at : at + count]
        return Proposal(list(ids), b"\xc0" * len(ids))


def two_versions(dice: Random) -> tuple[list[int], list[list[int]]]:
    """Return a text that goes by either of two versions, for a few tokens at a time."""
    text: list[int] = []
    versions: list[list[int]] = [[], []]
    while len(text) < 300:
        part = [dice.randrange(100, 900) for _ in range(dice.randrange(3, 9))]
        right = dice.randrange(2)
        text += part
        versions[right] += part
        versions[1 - right] += [each + 1000 for each in part]
    return text, versions


def written(costs: CostTable, leaves: int, policy: Policy = Policy.MEASURED) -> tuple[Result, int]:
    text, versions = two_versions(Random(3))
    sources: dict[str, Source] = {
        "prediction": Versions(versions, 0),
        "past": Versions(versions, 1),
    }
    models = Models(
        costs=costs, draft_token=0.01, acceptance=0.0, overhead=0.0015, tree_leaves=leaves
    )
    simulation = Simulation(
        models,
        Speculation(policy=policy, n_parallel=8),
        tokens=len(text),
        seed=1,
        language=Script([3, 4], text, 1),
        sources=sources,
        has_draft=False,
    )
    result = simulation.run()
    assert result.text == [3, 4, *text]
    return result, simulation.target.trees


def test_on_a_gpus_costs_trees_write_the_same_text_sooner() -> None:
    for costs in (FREE, GPU):
        chain, none = written(costs, 0)
        tree, some = written(costs, 8)
        assert none == 0 and some > 5
        assert tree.seconds < 0.95 * chain.seconds


def test_on_a_cpus_costs_the_controller_stays_with_the_chain() -> None:
    chain, _ = written(CPU, 0)
    tree, trees = written(CPU, 8)
    assert trees == 0
    assert tree.seconds == chain.seconds and tree.decodes == chain.decodes


def test_a_pinned_length_stays_a_chain() -> None:
    assert written(FREE, 8, Policy.FIXED)[1] == 0


@pytest.mark.parametrize("seed", range(6))
def test_runner_up_lines_are_verified_beside_the_line_where_rows_are_free(seed: int) -> None:
    def written_with(leaves: int, costs: CostTable) -> tuple[Result, int]:
        models = Models(
            costs=costs,
            draft_token=0.003,
            acceptance=0.65,
            draft_round_trip=0.02,
            overhead=0.0015,
            lines=8,
            tree_leaves=leaves,
        )
        speculation = Speculation(n_parallel=8)
        simulation = Simulation(models, speculation, tokens=200, seed=seed)
        result = simulation.run()
        assert result.text == alone(simulation.language, 200)
        return result, simulation.target.trees

    chain, none = written_with(0, FREE)
    tree, some = written_with(8, FREE)
    assert none == 0 and some > 5
    assert tree.decodes < chain.decodes and tree.seconds < chain.seconds
    assert written_with(8, CPU)[1] == 0
