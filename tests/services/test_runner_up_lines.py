"""A draft's runner-up lines, through its service: what they hold, and what becomes of them.

Every token of the text counts for this model, so a cell that is wrong shows in what follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from outrider.engine.model import Layout
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_service_pb2 as messages
from tests.support.services import (
    DRAFT,
    OPTIONS,
    ModelProcess,
    eventually,
    generate,
    request,
    running,
    three_services,
    toy,
    written_alone,
)
from tests.support.streams import DraftStream, line_after, opening, session
from tests.support.toy import NEVER, ToyModel

TEXT = [0, 12, 40, 7]
LINES = 4


def model(*, is_pool: bool = True) -> ToyModel:
    return toy(seed=1, eos_bias=NEVER, spread=0.7, layouts=(Layout(is_pool=is_pool),))


@pytest_asyncio.fixture(loop_scope="session")
async def service() -> AsyncIterator[ModelProcess]:
    async with running(ModelProcess(DRAFT, model, pace=0.001)) as process:
        yield process


class Heard:
    """What a draft said of its lines, by their numbers: each as the text that it is."""

    def __init__(self) -> None:
        self.lines: dict[int, list[int]] = {0: list(TEXT)}
        self.forks: dict[int, int] = {0: len(TEXT)}
        self.bases: set[int] = set()
        self.alone_us = 0  # of decodes for runner-up lines alone
        self.reading: asyncio.Future[Any] | None = None  # a message that did not come yet

    def take(self, frame: Any) -> None:
        self.bases.add(frame.base)
        self._extend(frame.line, frame.position, frame.token_ids)
        for piece in frame.runner_up_lines:
            assert len(piece.confidences) == len(piece.token_ids)
            if piece.line not in self.lines:
                assert piece.position == piece.fork_position
                parent = self.lines[piece.parent_line]
                assert piece.token_ids[0] != parent[piece.fork_position]
                self.lines[piece.line] = parent[: piece.fork_position]
                self.forks[piece.line] = piece.fork_position
            self._extend(piece.line, piece.position, piece.token_ids)

    def _extend(self, number: int, position: int, token_ids: Sequence[int]) -> None:
        assert position == len(self.lines[number])
        self.lines[number] += token_ids

    def forked(self) -> list[int]:
        """Return the numbers of the runner-up lines with tokens behind their first."""
        return [n for n in self.lines if n and len(self.lines[n]) > self.forks[n] + 1]


async def order(
    stream: DraftStream, number: int, text: Sequence[int], until: int, lines: int = LINES
) -> None:
    span = common.TokenSpan(position=0, token_ids=text)
    await stream.send(
        messages.DraftRequest(
            order=messages.DraftOrder(
                order=number,
                committed=span,
                draft_until=until,
                parallel_line_count=lines,
                split_probability=0.02,
            )
        )
    )


async def listen(stream: DraftStream, heard: Heard, number: int) -> None:
    """Take in frames until an order is complete and no more comes."""
    is_complete = False
    while True:
        reading = heard.reading or asyncio.ensure_future(stream.receive())
        done, _ = await asyncio.wait([reading], timeout=0.3 if is_complete else 10.0)
        heard.reading = None if done else reading
        if not done:
            assert is_complete
            return
        message = reading.result()
        heard.take(message.frame)
        heard.alone_us += message.service_time.runner_up_us
        is_complete |= message.completed_order == number


def assert_drafted(text: Sequence[int], after: int) -> None:
    """Assert that a text goes on behind its first tokens as a draft of its own would."""
    assert list(text[after:]) == line_after(model(), text[:after], len(text))


async def test_every_runner_up_line_is_what_a_draft_of_its_own_would_write(
    service: ModelProcess,
) -> None:
    heard = Heard()
    async with DraftStream(service) as stream:
        await order(stream, 1, TEXT, 12)
        await listen(stream, heard, 1)
    assert_drafted(heard.lines[0], len(TEXT))
    assert len(heard.forked()) >= LINES
    for number in heard.forked():
        assert_drafted(heard.lines[number], heard.forks[number] + 1)


async def test_what_runner_up_lines_take_after_the_line_itself_is_told(
    service: ModelProcess,
) -> None:
    # A line that leaves another starts later, so that the last decodes are without that.
    heard, chain = Heard(), Heard()
    async with DraftStream(service) as stream:
        await order(stream, 1, TEXT, 12)
        await listen(stream, heard, 1)
    async with DraftStream(service) as stream:
        await order(stream, 1, TEXT, 12, lines=1)
        await listen(stream, chain, 1)
    assert heard.alone_us >= 1000, "a decode takes a millisecond"
    assert chain.alone_us == 0


async def test_a_correction_that_was_foreseen_starts_nothing_over(service: ModelProcess) -> None:
    heard = Heard()
    async with DraftStream(service) as stream:
        await order(stream, 1, TEXT, 12)
        await listen(stream, heard, 1)
        number = heard.forked()[0]
        fork = heard.forks[number]
        known = len(heard.lines[number])
        await order(stream, 2, heard.lines[number][: fork + 1], known + 4)
        await listen(stream, heard, 2)
    assert heard.bases == {len(TEXT)}
    assert len(heard.lines[number]) == known + 4, "it went on where it was"
    for each in (number, *heard.forked()):
        assert_drafted(heard.lines[each], heard.forks[each] + 1)


async def test_a_correction_that_nobody_foresaw_starts_over(service: ModelProcess) -> None:
    heard = Heard()
    async with DraftStream(service) as stream:
        await order(stream, 1, TEXT, 8)
        await listen(stream, heard, 1)
        seen = {line[4] for line in heard.lines.values() if len(line) > 4}
        text = [*TEXT, next(i for i in range(5, 64) if i not in seen)]
        await order(stream, 2, text, 9)
        while True:
            reading, heard.reading = heard.reading or stream.receive(), None
            frame = (await reading).frame
            if frame.base == len(text):
                break
    assert list(frame.token_ids) == line_after(model(), text, len(text) + len(frame.token_ids))


async def test_an_old_order_gets_one_line(service: ModelProcess) -> None:
    async with DraftStream(service) as stream:
        frame = await stream.draft(1, 0, TEXT, 12)
    assert list(frame.token_ids) == line_after(model(), TEXT, 12)
    assert not frame.runner_up_lines and not frame.line


async def test_streams_have_one_line_whatever_is_ordered() -> None:
    heard = Heard()
    async with running(ModelProcess(DRAFT, lambda: model(is_pool=False))) as service:
        described = await service.stub.GetModel(common.GetModelRequest())
        assert described.parallel_line_count == 0
        async with DraftStream(service) as stream:
            await order(stream, 1, TEXT, 12)
            await listen(stream, heard, 1)
    assert list(heard.lines) == [0]


async def test_no_block_of_the_rejection_rule_has_runner_ups(service: ModelProcess) -> None:
    heard = Heard()
    rule = common.ACCEPTANCE_RULE_REJECTION
    async with DraftStream(service, acceptance_rule=rule) as stream:
        await order(stream, 1, TEXT, 8)
        await listen(stream, heard, 1)
    assert list(heard.lines) == [0]


async def test_the_sequences_of_runner_up_lines_end_with_the_stream(service: ModelProcess) -> None:
    async with DraftStream(service) as stream:
        await order(stream, 1, TEXT, 12)
        await listen(stream, Heard(), 1)
    for _ in range(100):
        if service.host.session_count() == 1:
            break
        await asyncio.sleep(0.02)
    assert service.host.session_count() == 1
    assert opening().session_id, "the session's own stays, for whoever comes back"


async def test_runner_up_lines_evict_nobody() -> None:
    def small() -> ToyModel:
        # A pool of four sequences: the line's, two for runner-up lines, and the other session's.
        return toy(
            seed=1,
            eos_bias=NEVER,
            spread=0.7,
            context=600,
            sequence_count=1,
            layouts=(Layout(is_pool=True),),
        )

    heard = Heard()
    async with running(ModelProcess(DRAFT, small)) as service:
        async with DraftStream(service, session_id=session(99), token_limit=4) as other:
            await other.draft(1, 0, TEXT, 6)
        async with DraftStream(service, token_limit=4) as stream:
            await order(stream, 1, TEXT, 8)
            await listen(stream, heard, 1)
        held = await asyncio.wrap_future(service.host.held_count(session(99)))
    assert held > 0
    assert_drafted(heard.lines[0], len(TEXT))


@pytest.mark.parametrize("kept_seconds", [60.0, 0.0])
async def test_runner_up_lines_take_over_what_was_idle_for_long(kept_seconds: float) -> None:
    def pool() -> ToyModel:
        return toy(seed=1, eos_bias=NEVER, spread=0.7, layouts=(Layout(is_pool=True),))

    heard = Heard()
    options = replace(OPTIONS, modest_idle_seconds=kept_seconds)
    async with running(ModelProcess(DRAFT, pool, options)) as service:
        for number in range(50, 90):  # more texts that have ended than there are sequences
            ended = DraftStream(service, session_id=session(number), token_limit=4)
            async with ended as other:
                await other.draft(1, 0, [*TEXT, number], len(TEXT) + 2)
        async with DraftStream(service, token_limit=4) as stream:
            await order(stream, 1, TEXT, 8)
            await listen(stream, heard, 1)
    assert_drafted(heard.lines[0], len(TEXT))
    assert (len(heard.lines) > 1) == (kept_seconds == 0.0)


# --- with a target ---


def written() -> ToyModel:
    return toy(seed=3, eos_bias=NEVER)


def near() -> ToyModel:
    """Return a draft that is often right, and often nearly."""
    return toy(seed=4, like=3, agreement=0.8, eos_bias=NEVER, layouts=(Layout(is_pool=True),))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_the_text_is_the_targets_own_and_misses_are_foreseen(temperature: float) -> None:
    misses = foreseen = 0
    async with three_services(written, near, pace=0.004) as trio:
        for seed in range(4):
            asked = request(
                seed=seed, temperature=temperature, run_ahead=True, n_parallel=4, p_split=0.01
            )
            completion = await generate(trio.orchestrator, asked)
            assert completion.token_ids == written_alone(written(), asked)
            misses += completion.statistics.forked_miss_count
            foreseen += completion.statistics.foreseen_miss_count
    assert 0 < foreseen <= misses


async def test_a_draft_that_dies_with_its_lines_changes_no_text() -> None:
    async with three_services(written, near, pace=0.01) as trio:
        asked = request(run_ahead=True, n_parallel=8, p_split=0.01)
        completing = asyncio.ensure_future(generate(trio.orchestrator, asked))
        await eventually(lambda: trio.draft.decode_count > 8)
        await trio.draft.kill()
        await trio.draft.restart()
        completion = await completing
    assert completion.token_ids == written_alone(written(), asked)
