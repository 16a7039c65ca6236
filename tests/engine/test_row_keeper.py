"""What a keeper writes down of a target's decodes: what was certain, with the rows of its text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from outrider.engine import row_keeper
from outrider.engine.cache import Session
from outrider.engine.head_draft import HeadTarget
from outrider.engine.host import EngineHost
from outrider.engine.hosting import HostOptions
from outrider.engine.job import Lease, Step
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk, Numerics
from outrider.engine.row_keeper import Keeping, RowKeeper
from outrider.errors import InvalidConfig
from outrider.kept_rows import TOP, Kept, KeptSource, KeptText, open_folder
from outrider.model_service.run import open_keeper
from outrider.row_window import HIDDEN_ROWS
from tests.support.tiny_architectures import write_architecture
from tests.support.tiny_heads import write_llama

SIZE = 100
SOURCE = KeptSource(model="ab", layers=(0, 1, 2), width=2, vocabulary=SIZE)


def keeping(folder: Path) -> Keeping:
    return Keeping(folder=folder, most_bytes=1 << 30, seconds=1e9)


def row_of(text: Sequence[int]) -> list[float]:
    """Return what layers read at the last token of a text: it depends on all of them."""
    return [float(sum(text) % 97), float(len(text)), text[-1], 0.0, 0.0, 1.0]


def logits_of(text: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(list(text)).normal(size=SIZE).astype(np.float32)


class Target:
    """A target of one session, whose newest rows are those of what it decoded."""

    def __init__(self, folder: Path) -> None:
        self.session = Session(b"s", 0.0, sequence=0)
        self.keeper = RowKeeper(keeping(folder), SOURCE, cast(HeadTarget, self))

    def hidden_rows(self, sequence: int) -> tuple[int, Any]:
        text = self._decoded
        first = max(0, len(text) - HIDDEN_ROWS)
        rows = [row_of(text[: i + 1]) for i in range(first, len(text))]
        return first, np.array(rows, np.float32)

    def decode(self, token_ids: Sequence[int], wanted: int = 1, cut: int = 0) -> None:
        """Take back the last tokens, then decode others of which the last rows are wanted."""
        held = self.session.token_ids
        del held[len(held) - cut :]
        self._decoded = [*held, *token_ids]
        chunk = Chunk(0, len(held), list(token_ids), wanted)
        count = len(self._decoded)
        logits = [logits_of(self._decoded[: count - wanted + 1 + i]) for i in range(wanted)]
        self.keeper.note(self.session, chunk, logits)
        held.extend(token_ids)


def check(kept: KeptText, text: Sequence[int], asked: int) -> None:
    """Assert that rows and likeliest tokens are those of this text, from `asked` on."""
    assert kept.tokens.tolist() == list(text[kept.first : kept.first + len(kept.tokens)])
    for i in range(len(kept.tokens)):
        upto = text[: kept.first + i + 1]
        assert kept.rows[i].tolist() == row_of(upto)
        if len(upto) < asked:
            assert kept.top_ids[i, 0] == -1
            continue
        logits = logits_of(upto)
        best = np.argsort(-logits)[:TOP]
        assert kept.top_ids[i].tolist() == best.tolist()
        logprobs = logits[best] - np.log(np.exp(logits).sum())
        assert np.allclose(kept.top_logprobs[i], logprobs, atol=0.01)


def test_a_text_is_kept_with_what_was_accepted_of_drafts(tmp_path: Path) -> None:
    target = Target(tmp_path)
    target.decode([5, 6, 7], wanted=1)
    target.decode([8, 20, 21, 22], wanted=4)  # three drafts, of which one is accepted
    target.decode([9, 30, 31], wanted=3, cut=2)  # none is
    target.decode([10], cut=2)
    target.decode([11])
    target.keeper.close()
    [kept] = Kept(tmp_path).texts
    text = [5, 6, 7, 8, 20, 9, 10, 11]
    assert (kept.first, len(kept.tokens), kept.answered) == (0, len(text), 6)
    check(kept, text, asked=3)


def test_drafts_of_the_last_round_are_not_kept(tmp_path: Path) -> None:
    target = Target(tmp_path)
    for token in range(5):
        target.decode([token])
    target.decode([5, 50, 51], wanted=3)
    target.keeper.end(b"s")
    target.keeper.close()
    [kept] = Kept(tmp_path).texts
    check(kept, [0, 1, 2, 3, 4, 5], asked=1)
    assert len(kept.tokens) == 6


def test_of_a_long_prompt_the_newest_rows_are_kept(tmp_path: Path) -> None:
    target = Target(tmp_path)
    prompt = [i % SIZE for i in range(300)]
    target.decode(prompt[:200], wanted=0)
    target.decode(prompt[200:], wanted=1)
    for token in (1, 2, 3, 4):
        target.decode([token])
    target.keeper.close()
    [kept] = Kept(tmp_path).texts
    assert kept.first == 300 - HIDDEN_ROWS and kept.answered == 5
    check(kept, [*prompt, 1, 2, 3, 4], asked=300)


def test_a_text_that_goes_on_brings_the_newest_rows_of_what_was_before(tmp_path: Path) -> None:
    target = Target(tmp_path)
    first = [i % 7 for i in range(20)]
    for token in first:
        target.decode([token])
    target.keeper.end(b"s")
    target.decode([40, 41, 42], wanted=1)
    for token in (43, 44, 45):
        target.decode([token])
    target.keeper.close()
    before, after = Kept(tmp_path).texts
    check(before, first, asked=1)
    assert after.first == 0 and after.answered == 4
    check(after, [*first, 40, 41, 42, 43, 44, 45], asked=23)


def test_a_very_long_text_is_kept_in_parts_that_overlap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_keeper, "_MOST_ROWS", 100)
    target = Target(tmp_path)
    text = [i * i % SIZE for i in range(130)]
    for token in text:
        target.decode([token])
    target.keeper.close()
    first, second = Kept(tmp_path).texts
    assert (first.first, first.answered) == (0, 100)
    assert (second.first, second.answered) == (100 - HIDDEN_ROWS + 1, 30)
    check(first, text, asked=1)
    check(second, text, asked=101)


def test_what_comes_too_fast_is_left_out_and_the_text_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(tmp_path)
    for token in range(6):
        target.decode([token])
    with monkeypatch.context() as patched:
        patched.setattr(row_keeper, "_MOST_WAITING", 0)
        target.decode([6])
    for token in range(7, 12):
        target.decode([token])
    target.keeper.close()
    before, after = Kept(tmp_path).texts
    check(before, range(12), asked=1)
    assert before.answered == 6
    check(after, range(12), asked=8)
    assert after.answered == 5


def test_a_full_disk_loses_texts_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_keeper, "_SHARD_BYTES", 1)

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    target = Target(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(row_keeper, "write_shard", full)
        for token in range(6):
            target.decode([token])
        target.keeper.end(b"s")
        target.keeper._inbox.put(None)
        target.keeper._thread.join()
    assert Kept(tmp_path).texts == []
    target.keeper = RowKeeper(keeping(tmp_path), SOURCE, cast(HeadTarget, target))
    target.session.token_ids.clear()
    for token in range(6):
        target.decode([token])
    target.keeper.close()
    assert len(Kept(tmp_path).texts) == 1


# --- of a real model ---


def load(path: Path) -> LlamaModel:
    return LlamaModel(
        LlamaConfig(path=path, context=256, sequence_count=2, thread_count=1, pad_multiple=4)
    )


def write_greedily(host: EngineHost, prompt: list[int], count: int) -> list[int]:
    """Return a text that a session of the host wrote."""

    def job(lease: Lease) -> Any:
        text = list(prompt)
        step = Step(lease.reconcile(text, 1), 1)
        while len(text) < len(prompt) + count:
            [row] = yield step
            text.append(int(np.argmax(row)))
            step = Step(text[-1:], 1)
        return text

    host.pin(b"session", True)
    text: list[int] = host.submit(b"session", job, prompt).future.result(20)
    host.pin(b"session", False)
    return text


def read(text: list[int], lease: Lease) -> Any:
    """A job that decodes a text with all of its rows."""
    yield Step(lease.reconcile(text, len(text)), len(text))


def test_rows_of_a_real_model_are_those_of_its_layers(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "target.gguf")
    make_keeper = partial(open_keeper, keeping(tmp_path / "kept"))
    host = EngineHost(
        partial(load, path), HostOptions(numerics=Numerics.EXACT), make_keeper=make_keeper
    )
    host.start().result(20)
    text = write_greedily(host, [3 + 37 * i % 300 for i in range(90)], 20)
    # Scores and beams have no stream, and no end that a keeper would know of.
    host.submit(b"score", partial(read, [5] * 40), [5] * 40).future.result(20)
    host.stop()
    kept = Kept(tmp_path / "kept")
    [found] = kept.texts  # nothing of what was decoded to measure
    assert kept.source.layers == (1, 2, 3) and kept.source.vocabulary == 320
    assert found.tokens.tolist() == text[found.first : -1]
    alone = load(path)
    alone.keep_rows(kept.source.layers)
    [logits] = alone.decode([Chunk(0, 0, text[:-1], 20)])
    first, rows = alone.hidden_rows(0)
    alone_rows = rows[-len(found.rows) :]
    assert np.allclose(found.rows[first - found.first :], alone_rows, rtol=0.01, atol=0.01)
    assert found.top_ids[-20:, 0].tolist() == [int(np.argmax(row)) for row in logits]
    assert found.top_ids[-20:, 0].tolist() == text[-20:]
    alone.close()


def test_of_a_model_that_shows_no_layers_all_tokens_are_kept_alone(tmp_path: Path) -> None:
    path = write_architecture(tmp_path / "phi3.gguf", "phi3")
    make_keeper = partial(open_keeper, keeping(tmp_path / "kept"))
    host = EngineHost(
        partial(load, path), HostOptions(numerics=Numerics.EXACT), make_keeper=make_keeper
    )
    host.start().result(20)
    text = write_greedily(host, [3 + 37 * i % 300 for i in range(90)], 20)
    host.stop()
    kept = Kept(tmp_path / "kept")
    assert (kept.source.layers, kept.source.width, kept.source.vocabulary) == ((), 64, 320)
    [found] = kept.texts
    assert found.first == 0 and found.tokens.tolist() == text[:-1]
    assert found.rows.shape == (109, 0)
    assert (found.top_ids[:89, 0] == -1).all()
    assert found.top_ids[89:, 0].tolist() == text[90:]


def test_a_folder_of_rows_takes_no_tokens_alone(tmp_path: Path) -> None:
    open_folder(tmp_path / "kept", SOURCE)
    model = load(write_architecture(tmp_path / "gpt2.gguf", "gpt2"))
    with pytest.raises(InvalidConfig, match="rows of another model or layers"):
        open_keeper(keeping(tmp_path / "kept"), model)
    model.close()
