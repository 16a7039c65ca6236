"""What a target sends of its hidden rows to who asks for them, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.engine.hidden_rows import unpack
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk
from outrider.errors import InvalidConfig
from outrider.row_window import HIDDEN_ROWS, RowWindow
from outrider.v1 import common_pb2 as common
from tests.support.services import TARGET, ModelProcess, running
from tests.support.streams import VerifyStream
from tests.support.tiny_architectures import write_architecture
from tests.support.tiny_heads import write_mtp

PROMPT = [3 + 37 * i % 300 for i in range(20)]
GREEDY = common.SamplingParameters(temperature=0.0)


def load(path: Path, **options: Any) -> LlamaModel:
    config = LlamaConfig(
        path=path, context=512, sequence_count=2, thread_count=1, pad_multiple=4, **options
    )
    return LlamaModel(config)


@dataclass
class Alone:
    """A target of the same weights, to see what each token's row is."""

    model: LlamaModel

    def rows(self, text: Sequence[int]) -> np.ndarray[Any, Any]:
        self.model.truncate(0, 0)
        self.model.decode([Chunk(0, 0, text, 1)])
        first, rows = self.model.hidden_rows(0)
        return rows if not first else np.concatenate([np.zeros((first, rows.shape[1])), rows])


def rows_of(answer: Any) -> RowWindow:
    return RowWindow(answer.hidden_rows.position, tuple(answer.hidden_rows.rows))


def agree(window: RowWindow, alone: np.ndarray[Any, Any]) -> bool:
    sent = unpack(window, alone.shape[1])
    return np.allclose(sent, alone[window.position : window.end], rtol=0.01, atol=0.01)


async def test_rows_are_of_the_text_as_it_was_accepted(tmp_path: Path) -> None:
    path = write_mtp(tmp_path / "m.gguf", "glm4moe")
    alone = Alone(load(path, hidden_rows=True))
    asked = {"wants_hidden_rows": True}
    async with (
        running(ModelProcess(TARGET, partial(load, path, hidden_rows=True))) as service,
        VerifyStream(service, sampling=GREEDY, vocabulary_token_count=320) as stream,
    ):
        answer = await stream.verify(1, 0, PROMPT, **asked)
        text, first = [*PROMPT, answer.rows.token_ids[0]], rows_of(answer)
        assert (first.position, first.end) == (0, len(PROMPT))
        second = await stream.verify(2, len(PROMPT), text[-1:], [], **asked)
        text.append(second.rows.token_ids[0])
        right = (await stream.verify(3, len(text) - 1, text[-1:])).rows.token_ids[0]
        drafted = [right, (right + 1) % 300, 5]  # of which the first is accepted
        third = await stream.verify(4, len(text) - 1, text[-1:], drafted, **asked)
        last = rows_of(third)
        # Nothing of round 3, which did not ask; and up to the accepted token.
        assert (last.position, last.end) == (len(text) - 1, len(text) + 1)
        assert agree(rows_of(second), alone.rows([*text, right]))
        assert agree(first, alone.rows(text)) and agree(last, alone.rows([*text, right]))
    alone.model.close()


async def test_rows_that_were_not_asked_for_come_later_as_a_window(tmp_path: Path) -> None:
    path = write_mtp(tmp_path / "m.gguf", "qwen35")
    prompt = [3 + 41 * i % 300 for i in range(100)]
    async with running(ModelProcess(TARGET, partial(load, path, hidden_rows=True))) as service:
        async with VerifyStream(
            service, sampling=GREEDY, vocabulary_token_count=320, prompt_token_count=100
        ) as stream:
            answer = await stream.verify(1, 0, prompt)
            assert not rows_of(answer).rows
            text = [*prompt, answer.rows.token_ids[0]]
            answer = await stream.verify(2, 100, text[-1:], wants_hidden_rows=True)
            assert (rows_of(answer).end, len(rows_of(answer))) == (101, HIDDEN_ROWS)
        async with VerifyStream(
            service,
            attempt=2,
            sampling=GREEDY,
            vocabulary_token_count=320,
            prompt_token_count=100,
        ) as stream:  # a new stream has none of them
            answer = await stream.verify(3, 0, text, wants_hidden_rows=True)
            assert (rows_of(answer).end, len(rows_of(answer))) == (101, HIDDEN_ROWS)


async def test_what_a_target_writes_by_itself_comes_with_rows(tmp_path: Path) -> None:
    path = write_mtp(tmp_path / "m.gguf", "glm4moe")
    alone = Alone(load(path, hidden_rows=True))
    async with (
        running(ModelProcess(TARGET, partial(load, path, hidden_rows=True))) as service,
        VerifyStream(service, sampling=GREEDY, vocabulary_token_count=320) as stream,
    ):
        continuation = {"token_count": 30, "gathers": True}
        more: dict[str, Any] = {"continuation": continuation, "wants_hidden_rows": True}
        await stream.send_round(1, 0, PROMPT, **more)
        text, window = list(PROMPT), RowWindow()
        while len(text) < len(PROMPT) + 30:
            answer = await stream.receive()
            text += answer.rows.token_ids
            window = window.followed_by(rows_of(answer))
            assert window.end == len(text) - 1
        assert window.position == 0 and agree(window, alone.rows(text))
    alone.model.close()


@pytest.mark.parametrize(
    ("name", "options", "keeps"),
    [
        ("qwen35", {"hidden_rows": True}, True),  # without a head in its file
        ("qwen35", {}, False),
    ],
)
async def test_who_keeps_rows_says_so(
    tmp_path: Path, name: str, options: dict[str, Any], keeps: bool
) -> None:
    path = write_architecture(tmp_path / "m.gguf", name)
    async with (
        running(ModelProcess(TARGET, partial(load, path, **options))) as service,
        VerifyStream(service, sampling=GREEDY, vocabulary_token_count=320) as stream,
    ):
        model = await service.stub.GetModel(common.GetModelRequest())
        assert model.architecture == name and (model.hidden_row_width > 0) is keeps
        answer = await stream.verify(1, 0, PROMPT, wants_hidden_rows=True)
        assert (len(rows_of(answer)) == len(PROMPT)) is keeps


def test_a_target_that_has_none_is_refused_in_a_line(tmp_path: Path) -> None:
    path = write_architecture(tmp_path / "m.gguf", "llama")
    with pytest.raises(InvalidConfig, match="of llama, for which no MTP head drafts"):
        load(path, hidden_rows=True)
