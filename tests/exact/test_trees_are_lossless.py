"""A tree of guesses changes how many samples there are already, never the text.

Exactly: over all that the target may sample after the text and after every node. And by the real
noise through the target's own verifier, in a pool of cells; the seeds are fixed, and with fresh
ones a test would raise a false alarm once in a million runs.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from outrider.distribution import Distribution
from outrider.engine.host import EngineHost, HostOptions
from outrider.engine.model import Layout, Numerics
from outrider.messages import Answer, Form, Round, Rule, SessionParameters, Span
from outrider.sampling import SamplingParameters
from outrider.trees import ROOT, Tree, Walk
from target_service.verifier import Verifier
from tests.exact.enumeration import (
    Context,
    Model,
    TextDistribution,
    chi_square_p_value,
    random_model,
    target_distribution,
    total_variation,
)
from tests.support.toy import NEVER, ToyModel, generate_alone
from tests.unit.test_trees import TREES

EXACT = 1e-12
VISIBLE = 1e-6
Take = Callable[[Tree, Sequence[int]], Walk]


def chance(model: Model, context: Context, token_id: int) -> float:
    return float(model(context).probability(token_id))


def emitted(target: Model, vocabulary: int, tree: Tree, count: int, take: Take) -> TextDistribution:
    """Return the distribution of the first tokens after one round, completed by the target."""
    contexts = [tuple(tree.tokens(tree.path(node))) for node in range(ROOT, len(tree))]
    found: dict[Context, float] = defaultdict(float)
    for sampled in itertools.product(range(vocabulary), repeat=len(tree) + 1):
        mass = np.prod([chance(target, c, y) for c, y in zip(contexts, sampled, strict=True)])
        walk = take(tree, sampled)
        text = (*tree.tokens(walk.nodes), walk.next_token_id)[:count]
        for rest in itertools.product(range(vocabulary), repeat=count - len(text)):
            whole = (*text, *rest)
            ends = range(len(text), count)
            more = np.prod([chance(target, whole[:end], whole[end]) for end in ends])
            found[whole] += float(mass * more)
    return dict(found)


def error_of(tree: Tree, take: Take, seed: int) -> float:
    target = random_model(seed, 2, 0.2)
    wanted = target_distribution(target, 3)
    its = emitted(target, 2, tree, 3, take)
    return total_variation({key: its.get(key, 0.0) for key in wanted}, wanted)


def test_no_tree_changes_the_distribution() -> None:
    for seed in range(3):
        assert max(error_of(tree, Tree.walk, seed) for tree in TREES[seed::3]) < EXACT


def by_the_row_before(tree: Tree, sampled: Sequence[int]) -> Walk:
    """Walk with the row of the node before, in place of the node's own."""
    walk = tree.walk(sampled)
    last = (walk.nodes or [ROOT])[-1]
    return Walk(walk.nodes, sampled[max(0, last)])


def with_a_second_try(tree: Tree, sampled: Sequence[int]) -> Walk:
    """Where nothing that was drafted is right, take the first of it if a second sample says so."""
    walk = tree.walk(sampled)
    line = tree.line(walk.nodes)
    if len(line) > len(walk.nodes) and tree.token_ids[line[len(walk.nodes)]] == sampled[-1]:
        return Walk(line, sampled[line[-1] + 1])
    return walk


@pytest.mark.parametrize("take", [by_the_row_before, with_a_second_try])
def test_a_walk_that_looks_at_other_rows_is_seen(take: Take) -> None:
    assert max(error_of(tree, take, 0) for tree in TREES) > VISIBLE


# --- with the real noise, through the verifier ---


SAMPLING = SamplingParameters(temperature=0.9)
PROMPT = [0, 5, 4]
COUNT = 24


@pytest.fixture(scope="module")
def host() -> Iterator[EngineHost]:
    options: dict[str, Any] = {"vocabulary_size": 8, "order": 2, "spread": 1.0}
    model = ToyModel(sequence_count=2, layouts=(Layout(is_pool=True),), eos_bias=NEVER, **options)
    host = EngineHost(lambda: model, HostOptions(numerics=Numerics.NATIVE))
    host.start().result(30)
    yield host
    host.stop()


def opening(seed: int) -> SessionParameters:
    return SessionParameters(
        session_id=bytes(16),
        attempt=1,
        rule=Rule.SHARED_NOISE,
        sampling=SAMPLING,
        seed=seed,
        choice=0,
        prompt_count=len(PROMPT),
        token_limit=100,
        vocabulary=8,
    )


def write(host: EngineHost, seed: int, count: int, guess: Callable[[list[int]], Tree]) -> list[int]:
    """Return a text that is written in rounds of trees, decided by their rows as anyone would."""
    verifier = Verifier(host._model, opening(seed))
    text = list(PROMPT)
    answers: list[Answer] = []
    number = 0
    while len(text) < len(PROMPT) + count:
        number += 1
        tree = guess(text)
        round_ = Round(number, Span(0, text), tree.token_ids, Form.SAMPLED, parents=tree.parents)

        def job(lease: Any, asked: Round = round_) -> Any:
            return verifier.verify(lease, asked, answers.append)

        host.submit(bytes(16), job, text).future.result(30)
        answer = answers.pop()
        assert answer.position == len(text) and not answers
        walk = tree.first(answer.drafted).walk(answer.rows.sampled)
        text = [*text, *tree.tokens(walk.nodes), walk.next_token_id]
    return text[len(PROMPT) :][:count]


def informed(alone: Sequence[int], dice: Random) -> Callable[[list[int]], Tree]:
    """Return a guesser that hides a part of the right text among other branches."""

    def guess(text: list[int]) -> Tree:
        right = [*alone][len(text) - len(PROMPT) :][: dice.randrange(5)]
        tokens, parents = list[int](), list[int]()
        way = ROOT
        for token_id in right:
            for other in dice.sample([each for each in range(8) if each != token_id], 1):
                tokens, parents = [*tokens, other], [*parents, way]
            tokens, parents = [*tokens, token_id], [*parents, way]
            way = len(tokens) - 1
        return Tree.checked(tokens, parents)

    return guess


def wild(dice: Random) -> Callable[[list[int]], Tree]:
    """Return a guesser of anything."""

    def guess(text: list[int]) -> Tree:
        tokens, parents = list[int](), list[int]()
        for _ in range(dice.randrange(9)):
            parent, token_id = dice.randrange(ROOT, len(tokens)), dice.randrange(8)
            if (parent, token_id) not in zip(parents, tokens, strict=True):
                tokens, parents = [*tokens, token_id], [*parents, parent]
        return Tree(tokens, parents).within(8)

    return guess


def test_a_text_is_the_same_whatever_trees_are_drafted(host: EngineHost) -> None:
    model = ToyModel(vocabulary_size=8, order=2, spread=1.0, eos_bias=NEVER)
    for seed in range(40):
        alone = generate_alone(model, PROMPT, COUNT, SAMPLING, seed)
        assert write(host, seed, COUNT, informed(alone, Random(seed))) == alone
        assert write(host, seed, COUNT, wild(Random(seed))) == alone


def test_texts_of_trees_have_the_targets_distribution(host: EngineHost) -> None:
    model = ToyModel(vocabulary_size=8, order=2, spread=1.0, eos_bias=NEVER)
    sampler = model.sampler(SAMPLING)

    def target(context: Context) -> Distribution:
        history = (*PROMPT, *context)[-2:]
        return sampler.distribution(model._logits(history))

    distribution = {key: p for key, p in target_distribution(target, 2).items() if p > 0.0}
    dice = Random(7)
    texts = [tuple(write(host, seed, 2, wild(dice))) for seed in range(3000)]
    assert chi_square_p_value(texts, distribution) > 1e-6
