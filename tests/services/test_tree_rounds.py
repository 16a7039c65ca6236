"""Trees at the target, message by message: what is answered, refused, and what becomes of texts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import Any

import grpc
import pytest
import pytest_asyncio

from outrider.engine.host import HostOptions
from outrider.engine.model import Layout, Numerics
from outrider.trees import MAX_LEAVES, ROOT, Tree
from outrider.v1 import common_pb2 as common
from tests.support.services import TARGET, ModelProcess, eventually, running, toy
from tests.support.streams import VerifyStream, sampled, session
from tests.support.toy import ToyModel

TEXT = [0, 12, 40, 7]
NATIVE = HostOptions(numerics=Numerics.NATIVE)


def model() -> ToyModel:
    return toy(seed=1)


def pooled() -> ToyModel:
    return toy(seed=1, layouts=(Layout(is_pool=True),))


@pytest_asyncio.fixture(loop_scope="session")
async def service() -> AsyncIterator[ModelProcess]:
    async with running(ModelProcess(TARGET, pooled, NATIVE)) as process:
        yield process


def written(count: int, text: Sequence[int] = TEXT) -> list[int]:
    """Return a text, and the target's own after it."""
    text = list(text)
    for _ in range(count):
        text += sampled(model(), text, 1)
    return text


def bushy(right: Sequence[int], dice: Random) -> Tree:
    """Return a tree with a path that is right, and a wrong token beside some of its nodes."""
    tokens, parents = list[int](), list[int]()
    way = ROOT
    for i, token_id in enumerate(right):
        if i < MAX_LEAVES - 1 and dice.random() < 0.7:
            tokens, parents = [*tokens, (token_id + 1) % 64], [*parents, way]
        tokens, parents = [*tokens, token_id], [*parents, way]
        way = len(tokens) - 1
    return Tree.checked(tokens, parents)


def fields(tree: Tree, **more: Any) -> dict[str, Any]:
    parents = bytes(parent + 1 for parent in tree.parents)
    return {"drafted": tree.token_ids, "draft": {"parents": parents}, **more}


def walked(tree: Tree, answer: Any) -> list[int]:
    """Return what an answer adds to the text."""
    walk = tree.first(answer.drafted_token_count).walk(answer.rows.token_ids)
    return [*tree.tokens(walk.nodes), walk.next_token_id]


# --- who takes trees ---


async def test_a_target_with_a_pool_says_how_many_leaves_it_takes(service: ModelProcess) -> None:
    described = await service.stub.GetModel(common.GetModelRequest())
    assert described.tree_leaf_limit == MAX_LEAVES


@pytest.mark.parametrize(
    ("numerics", "why"),
    [(Numerics.EXACT, "under `exact` numerics"), (Numerics.NATIVE, "without a pool of cells")],
)
async def test_any_other_target_refuses_a_tree_by_name(numerics: Numerics, why: str) -> None:
    async with running(ModelProcess(TARGET, model, HostOptions(numerics=numerics))) as process:
        described = await process.stub.GetModel(common.GetModelRequest())
        assert described.tree_leaf_limit == 0
        async with VerifyStream(process) as stream:
            await stream.send_round(1, 0, TEXT, **fields(Tree([5, 6], [ROOT, ROOT])))
            with pytest.raises(grpc.aio.AioRpcError, match=why) as refused:
                await stream.receive()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        async with VerifyStream(process, attempt=2) as stream:
            answer = await stream.verify(1, 0, TEXT, [5])
            assert list(answer.rows.token_ids) == sampled(model(), [*TEXT, 5], 2)


@pytest.mark.parametrize(
    "parents", [b"\1\2", b"\0", b"\0\0\0", b"\0\xff"], ids=["self", "short", "long", "outside"]
)
async def test_a_tree_that_is_none_ends_the_stream_and_nothing_else(
    service: ModelProcess, parents: bytes
) -> None:
    async with VerifyStream(service) as stream:
        await stream.send_round(1, 0, TEXT, [5, 6], draft={"parents": parents})
        assert await stream.end() is grpc.StatusCode.INVALID_ARGUMENT
    async with VerifyStream(service, session_id=session(9)) as stream:
        answer = await stream.verify(1, 0, TEXT)
        assert list(answer.rows.token_ids) == sampled(model(), TEXT, 1)


# --- what is answered ---


async def test_every_node_has_a_row_and_those_on_the_path_their_own(service: ModelProcess) -> None:
    right = written(3)[len(TEXT) :]
    tree = Tree([9, right[0], right[1], 9, right[2]], [ROOT, ROOT, 1, 1, 2])
    async with VerifyStream(service) as stream:
        answer = await stream.verify(1, 0, TEXT, **fields(tree))
        after = sampled(model(), written(3), 1)[0]
        # Nobody looks after what was not sampled: there it is the row of the node before.
        assert list(answer.rows.token_ids) == [
            right[0],
            right[0],
            right[1],
            right[2],
            right[1],
            after,
        ]
        assert (answer.position, answer.drafted_token_count) == (len(TEXT), 5)
        assert walked(tree, answer) == [*right, after]


@pytest.mark.parametrize("seed", range(3))
async def test_texts_of_several_sessions_are_the_targets_own(
    service: ModelProcess, seed: int
) -> None:
    async def write(number: int) -> None:
        dice, prompt = Random(10 * seed + number), [*TEXT[:3], 20 + number]
        whole = written(30, prompt)
        text, held = list(prompt), 0
        async with VerifyStream(service, session_id=session(number)) as stream:
            for round_ in range(1, 20):
                right = whole[len(text) :][: dice.randrange(5)]
                if dice.random() < 0.2:
                    right = [(each + 7) % 64 for each in right]
                tree = bushy(right, dice)
                answer = await stream.verify(round_, held, text[held:], **fields(tree))
                added = walked(tree, answer)
                held, text = len(text) + len(added) - 1, text + added
        assert text[: len(whole)] == whole[: len(text)] and len(text) > len(prompt) + 19

    await asyncio.gather(*(write(number) for number in range(4)))
    await service.close_sessions()
    # The engine's thread cuts them after the answer.
    await eventually(lambda: not any(map(service.model.held, range(len(service.model._cells)))))


async def test_it_goes_on_by_itself_behind_a_tree(service: ModelProcess) -> None:
    whole = written(12)
    tree = bushy(whole[len(TEXT) :][:4], Random(1))
    async with VerifyStream(service) as stream:
        await stream.send_round(1, 0, TEXT, **fields(tree, continuation={"token_count": 12}))
        answer = await stream.receive()
        text = [*TEXT, *walked(tree, answer)]
        assert len(text) == len(TEXT) + 5
        while len(text) < len(whole):
            answer = await stream.receive()
            assert (answer.position, answer.drafted_token_count) == (len(text), 0)
            text += answer.rows.token_ids
        assert text == whole


async def test_a_tree_is_used_as_far_as_it_extends_what_was_written(service: ModelProcess) -> None:
    whole = written(20)
    right = whole[len(TEXT) :][:16]
    # Beside the right path stand a wrong token at its start and one where the text has come to.
    fork = [(right[0] + 1) % 64, (right[12] + 1) % 64]
    tree = Tree(
        [fork[0], *right[:12], fork[1], *right[12:]],
        [ROOT, ROOT, *range(1, 12), 12, 12, *range(14, 17)],
    )
    async with VerifyStream(service) as stream:
        await stream.send_round(1, 0, TEXT, continuation={"token_count": 12})
        text = list(TEXT)
        while len(text) < len(TEXT) + 12:
            text += (await stream.receive()).rows.token_ids
        answer = await stream.verify(
            2, len(TEXT), [], **fields(tree, continuation={"token_count": 20})
        )
        assert answer.position == len(TEXT) + 12
        assert answer.drafted_token_count == 5
        left = tree.subtree(12)
        assert [*text, *walked(left, answer)] == whole[: len(text) + 5]


async def test_a_round_that_is_sent_again_is_answered_from_what_was_kept(
    service: ModelProcess,
) -> None:
    tree = bushy(written(4)[len(TEXT) :], Random(2))
    async with VerifyStream(service) as stream:
        first = await stream.verify(1, 0, TEXT, **fields(tree))
        before = service.decode_count
        assert await stream.verify(1, 0, TEXT, **fields(tree)) == first
        assert service.decode_count == before
        chain = await stream.verify(2, 0, TEXT, tree.token_ids)
        assert chain.rows.token_ids != first.rows.token_ids or tree.is_chain


async def test_a_tree_near_the_end_of_the_context_is_cut_to_what_fits() -> None:
    def small() -> ToyModel:
        return toy(seed=1, context=12, layouts=(Layout(is_pool=True),))

    async with (
        running(ModelProcess(TARGET, small, NATIVE)) as process,
        VerifyStream(process) as stream,
    ):
        text = written(6)
        answer = await stream.verify(1, 0, text, **fields(Tree(list(range(3, 11)), [ROOT] * 8)))
        assert answer.drafted_token_count == 2
        assert answer.rows.token_ids[0] == written(7)[-1]
