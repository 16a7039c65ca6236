"""A decode that fails costs nobody else anything, whatever the memory loses by it."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.engine.host import EngineHost
from outrider.engine.hosting import HostOptions
from outrider.engine.job import Job, Lease, Step
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_library import ll
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk, Numerics, Rollback, Row
from outrider.errors import DecodeFailed
from tests.support.tiny_architectures import write_architecture
from tests.support.toy import ToyModel

BAD = 5
PATIENCE = 10.0
LENGTH = 40  # tokens of a prompt, more than one decode takes


class Losing(ToyModel):
    """A toy whose sequences lose everything in a decode that fails, as recurrent ones may."""

    bad = -1  # a token whose decode fails

    def decode(self, chunks: Sequence[Chunk]) -> list[list[Row]]:
        """Decode, or empty the sequences and fail."""
        if any(self.bad in chunk.token_ids for chunk in chunks):
            for chunk in chunks:
                self.truncate(chunk.sequence, 0)
            raise DecodeFailed("llama_decode returned -3", llamaCode=-3)
        return super().decode(chunks)


def text_of(number: int, count: int) -> list[int]:
    return [6 + (7 + number) * i % 50 for i in range(count)]


def written(number: int, last: int) -> Job:
    """Return a job that reads a prompt and decodes four tokens, one after the other."""

    def job(lease: Lease) -> Generator[Step, list[Row], list[Row]]:
        lease.keep(0)
        rows = []
        for token_ids in [text_of(number, LENGTH), [8], [last], [9], [10]]:
            [row] = yield Step(token_ids, 1)
            rows.append(row.copy())
        return rows

    return job


@pytest.mark.fault(
    "text",
    "A decode of several sessions of a recurrent model fails",
    before="all of them failed, as none held afterwards what it had held before",
    now="each is decoded again by itself, with what it lost, and only what fails alone fails",
)
def test_a_session_whose_decode_fails_fails_alone_where_memory_is_not_cut() -> None:
    model = Losing(order=4096, context=64, batch_rows=16, rollback=Rollback.CHECKPOINTS)
    model.pad_multiple = 1
    host = EngineHost(lambda: model, HostOptions(numerics=Numerics.NATIVE))
    host.start().result(PATIENCE)
    model.bad = BAD
    lasts = [20, BAD, 30]
    results: list[Future[Any]] = []
    gate = threading.Event()
    host._inbox.put(lambda: gate.wait(PATIENCE) and None)  # so that they begin together
    for number, last in enumerate(lasts):
        results.append(host.submit(bytes([number]) * 16, written(number, last)).future)
    gate.set()
    assert isinstance(results[1].exception(PATIENCE), DecodeFailed)
    fresh = ToyModel(order=4096, context=64, batch_rows=64)
    for number in (0, 2):
        rows = results[number].result(PATIENCE)
        text = [*text_of(number, LENGTH), 8, lasts[number], 9, 10]
        fresh.truncate(0, 0)
        [expected] = fresh.decode([Chunk(0, 0, text, 5)])
        np.testing.assert_array_equal(rows, expected)
    host.stop()


def test_tokens_that_are_decoded_first_fail_without_a_loss_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_architecture(tmp_path / "mamba.gguf", "mamba")
    config = LlamaConfig(path=path, context=128, sequence_count=2, thread_count=1, pad_multiple=1)
    model = LlamaModel(config)
    assert model.describe().rollback is Rollback.CHECKPOINTS
    model.decode([Chunk(0, 0, text_of(0, 30), 0)])
    chunks = [Chunk(0, 30, [7], 1), Chunk(1, 0, text_of(1, 30), 3)]  # 27 of them come first
    with monkeypatch.context() as patched:
        patched.setattr(ll, "llama_decode", lambda *_: -3)
        with pytest.raises(DecodeFailed):
            model.decode(chunks)
    assert [model.truncate(sequence, 30) for sequence in (0, 1)] == [30, 0]
    model.close()
