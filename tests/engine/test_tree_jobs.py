"""Jobs with trees on the engine's thread: what they are given, what sessions hold afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from outrider.engine.host import EngineHost, HostOptions
from outrider.engine.job import Lease, Step, Ticket
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk, Layout, Model, NoRoom, Numerics, Row
from outrider.trees import ROOT, Tree
from tests.engine.test_trees import TOLERANCE, random_tree, text_of
from tests.support.tiny_gguf import Shape, write_model
from tests.support.toy import ToyModel
from tests.unit.test_trees import FORK

WAIT = 30.0
POOL = Layout(is_pool=True)

Serve = Callable[..., EngineHost]


@pytest.fixture
def serve() -> Iterator[Serve]:
    hosts = []

    def start(model: Model) -> EngineHost:
        options = HostOptions(numerics=Numerics.NATIVE, room_seconds=0.05)
        hosts.append(EngineHost(lambda: model, options))
        hosts[-1].start().result(WAIT)
        return hosts[-1]

    yield start
    for host in hosts:
        host.stop()


def toy(**options: Any) -> ToyModel:
    whole = {"context": 128, "order": 128, "sequence_count": 2, "vocabulary_size": 300}
    return ToyModel(**whole | {"layouts": (POOL,)} | options)


def verify(
    text: Sequence[int], tree: Tree, path: Sequence[int] | None, gains: Sequence[float] = ()
) -> Callable[[Lease], Generator[Step, list[Row], list[Row]]]:
    """Return a job that decodes a tree behind a text and keeps a path, or keeps nothing."""

    def job(lease: Lease) -> Generator[Step, list[Row], list[Row]]:
        left = lease.reconcile([*text, *tree.token_ids], len(tree) + 1)
        rows = yield Step(left, len(tree) + 1, gains, False, tree.parents)
        copies = [row.copy() for row in rows]
        if path is not None and len(rows) > 1:
            lease.follow(path)
        return copies

    return job


def follow_on(text: Sequence[int]) -> Callable[[Lease], Generator[Step, list[Row], Row]]:
    def job(lease: Lease) -> Generator[Step, list[Row], Row]:
        [row] = yield Step(lease.reconcile(list(text), 1), 1)
        return row.copy()

    return job


def result(ticket: Ticket) -> Any:
    return ticket.future.result(WAIT)


def rows_alone(model: ToyModel, text: Sequence[int], tree: Tree) -> list[Row]:
    """Return what follows a text and the path to each node, by the toy's own hash."""
    paths = [tree.tokens(tree.path(node)) for node in range(ROOT, len(tree))]
    return [model._logits_after((*text, *path)) for path in paths]


def held(model: ToyModel) -> list[tuple[int, ...]]:
    """Return what sequences hold, those that hold something."""
    description = model.describe()
    count = description.sequence_count + len(description.branch_sequences)
    return sorted(filter(None, map(model.held, range(count))))


@pytest.mark.parametrize("path", [[], [5], [5, 6], [5, 7], [5, 7, 9], [8]])
def test_a_session_holds_the_path_that_it_follows_and_nothing_else_is_left(
    serve: Serve, path: list[int]
) -> None:
    model = toy()
    host, text = serve(model), text_of(1, 20)
    rows = result(host.submit(b"a", verify(text, FORK, path)))
    np.testing.assert_array_equal(rows, rows_alone(model, text, FORK))
    assert held(model) == [(*text, *path)]
    assert host.held_count(b"a").result(WAIT) == 20 + len(path)
    row = result(host.submit(b"a", follow_on([*text, *path, 33])))
    np.testing.assert_array_equal(row, model._logits_after((*text, *path, 33)))
    assert model.decodes[-1].token_count == 1


def test_a_job_that_follows_nothing_leaves_a_text_that_is_true(serve: Serve) -> None:
    model = toy()
    host, text = serve(model), text_of(1, 20)
    result(host.submit(b"a", verify(text, FORK, None)))
    assert held(model) == [(*text, 5, 6)]
    assert host.held_count(b"a").result(WAIT) == 22
    row = result(host.submit(b"a", follow_on([*text, 5, 7])))
    np.testing.assert_array_equal(row, model._logits_after((*text, 5, 7)))


def test_a_job_that_fails_after_a_tree_leaves_no_branch(serve: Serve) -> None:
    model = toy()
    host, text = serve(model), text_of(1, 20)

    def failing(lease: Lease) -> Generator[Step, list[Row], None]:
        yield Step([*text, *FORK.token_ids], len(FORK) + 1, (), False, FORK.parents)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        result(host.submit(b"a", failing))
    host.held_count(b"a").result(WAIT)
    assert held(model) == [(*text, 5, 6)]


def at_once(
    host: EngineHost, model: ToyModel, jobs: Sequence[Callable[[Lease], Any]]
) -> list[Ticket]:
    """Let jobs of several sessions share their decodes: they are there before the first one."""
    going = threading.Event()
    own = model.before_decode

    def wait(chunks: Sequence[Chunk]) -> None:
        assert going.wait(WAIT)
        if own is not None:
            own(chunks)

    model.before_decode = wait
    first = host.submit(b"first", follow_on([9, 9]), room=30)
    tickets = [host.submit(bytes([number]), job, room=30) for number, job in enumerate(jobs)]
    going.set()
    result(first)
    return tickets


@pytest.mark.parametrize("seed", range(5))
def test_trees_of_several_sessions_share_a_decode(serve: Serve, seed: int) -> None:
    dice, model = Random(seed), toy()
    host = serve(model)
    trees = [random_tree(dice, count, 4) for count in (7, 3, 9)]
    texts = [text_of(number + 3 * seed, 12) for number in range(3)]
    paths = [tree.tokens(tree.path(dice.randrange(ROOT, len(tree)))) for tree in trees]
    jobs = [verify(*each) for each in zip(texts, trees, paths, strict=True)]
    tickets = at_once(host, model, jobs)
    for ticket, text, tree in zip(tickets, texts, trees, strict=True):
        np.testing.assert_array_equal(result(ticket), rows_alone(model, text, tree))
    assert [sum(bool(c.parents) for c in each.chunks) for each in model.decodes[-1:]] == [3]
    kept = [(*text, *path) for text, path in zip(texts, paths, strict=True)]
    assert held(model) == sorted([*kept, (9, 9)])


def test_a_tree_loses_its_end_where_sequences_are_few(serve: Serve) -> None:
    model = toy(sequence_count=1, branch_count=1)
    host = serve(model)
    tree = Tree([5, 6, 7, 8], [ROOT, 0, ROOT, ROOT])  # 8 would be a third leaf
    for name in range(3):
        host.pin(bytes([50 + name]), True)
        result(host.submit(bytes([50 + name]), follow_on([9, 40 + name]), room=8))
    host.pin(b"a", True)
    rows = result(host.submit(b"a", verify([3, 4], tree, []), room=8))
    np.testing.assert_array_equal(rows, rows_alone(model, [3, 4], tree.first(3)))


def test_a_busy_engine_leaves_out_the_nodes_that_gain_least(serve: Serve) -> None:
    model = toy()
    host = serve(model)
    scheduler = host._runner.scheduler
    scheduler.cost = type(scheduler.cost)([(1, 0.010), (64, 0.640)])  # every row costs as much
    tree = Tree([5, 6, 7], [ROOT, 0, ROOT])
    jobs = [verify(text_of(i, 9), tree, [], (0.9, 0.9, 0.05)) for i in range(2)]
    tickets = at_once(host, model, jobs)
    for i, ticket in enumerate(tickets):
        expected = rows_alone(model, text_of(i, 9), tree.first(len(result(ticket)) - 1))
        np.testing.assert_array_equal(result(ticket), expected)
        assert 1 <= len(expected) <= 3


def test_trees_that_find_no_room_together_are_decoded_one_by_one(serve: Serve) -> None:
    def before_decode(chunks: Sequence[Chunk]) -> None:
        if len(chunks) > 1:
            raise NoRoom("for both")

    model = toy()
    host = serve(model)
    model.before_decode = before_decode
    texts = [text_of(number, 12) for number in range(3)]
    tickets = at_once(host, model, [verify(text, FORK, [5, 7]) for text in texts])
    for ticket, text in zip(tickets, texts, strict=True):
        np.testing.assert_array_equal(result(ticket), rows_alone(model, text, FORK))
    assert held(model) == sorted([*((*text, 5, 7) for text in texts), (9, 9)])


def test_a_prompt_in_pieces_comes_before_its_tree(serve: Serve) -> None:
    model = toy(batch_rows=32)
    host, text = serve(model), text_of(1, 80)
    rows = result(host.submit(b"a", verify(text, FORK, [5, 7])))
    np.testing.assert_array_equal(rows, rows_alone(model, text, FORK))
    assert [bool(c.parents) for each in model.decodes[-3:] for c in each.chunks] == [0, 0, 1]
    assert held(model) == [(*text, 5, 7)]


def test_the_tiny_model_goes_on_behind_a_tree_as_behind_a_prefill(
    tmp_path: Path, serve: Serve
) -> None:
    path = write_model(tmp_path / "tiny.gguf", shape=Shape(layers=2))
    config = LlamaConfig(
        path=path,
        context=256,
        sequence_count=2,
        thread_count=1,
        pad_multiple=1,
        batch_rows=128,
        pool=True,
        flash_attention=False,
    )
    host, dice = serve(LlamaModel(config)), Random(3)
    text = text_of(1, 30)
    for _ in range(6):
        tree = random_tree(dice, 7, 4)
        way = tree.tokens(tree.path(dice.randrange(ROOT, len(tree))))
        result(host.submit(b"a", verify(text, tree, way)))
        text += [*way, dice.randrange(3, 290)]
    after = result(host.submit(b"a", follow_on(text)))
    host.forget(b"a").result(WAIT)
    fresh = result(host.submit(b"b", follow_on(text)))
    assert np.abs(after - fresh).max() < TOLERANCE
