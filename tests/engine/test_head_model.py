"""A head as a model of its own: what it reads of a text, with which rows, and when again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.engine.head_draft import Pairs
from outrider.engine.head_model import HeadModel
from outrider.engine.hidden_rows import pack, unpack
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_heads import LlamaHead
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk, Rollback
from outrider.errors import InvalidConfig
from outrider.model_service.config import ModelConfig
from outrider.model_service.run import load_llama
from outrider.row_window import HIDDEN_ROWS, NO_ROWS, RowWindow
from outrider.speculation import HeadKind
from tests.support.tiny_heads import write_dflash, write_eagle3, write_mtp

TEXT = [3 + 37 * i % 300 for i in range(150)]

Logits = NDArray[np.float32]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    path = write_mtp(tmp_path_factory.mktemp("heads") / "m.gguf", "glm4moe")
    config = LlamaConfig(
        path=path, context=512, sequence_count=3, thread_count=1, pad_multiple=1, mtp=True
    )
    model = LlamaModel(replace(config, batch_rows=160))
    model.keep_rows(())
    yield model
    model.close()


class Words:
    """The target's vocabulary, which stays open."""

    def __init__(self, target: LlamaModel) -> None:
        self.token_texts, self.token_names = target.token_texts, target.token_names
        self.tokenize, self.sampler = target.tokenize, target.sampler

    def close(self) -> None:
        """Nothing of it is the head's own."""


@pytest.fixture
def head(target: LlamaModel) -> Iterator[HeadModel]:
    model = HeadModel(target.open_head(), Words(target), target.describe())
    yield model
    model.close()


@pytest.fixture
def fresh(target: LlamaModel) -> Iterator[LlamaHead]:
    head = target.open_head()
    yield head
    head.close()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[list[Pairs]]:
    """What heads decode from now on."""
    seen: list[list[Pairs]] = []
    decode = LlamaHead.decode

    def noted(head: LlamaHead, pairs: Sequence[Pairs]) -> Any:
        seen.append(list(pairs))
        return decode(head, pairs)

    monkeypatch.setattr(LlamaHead, "decode", noted)
    return seen


def rows_of(target: LlamaModel, text: Sequence[int], position: int = 0) -> RowWindow:
    """Return a target's rows of a text, but for its last token, from a position on."""
    target.truncate(0, 0)
    target.decode([Chunk(0, 0, text[:-1], 1)])
    return pack(*target.hidden_rows(0)).since(position)


def row(head: HeadModel, text: Sequence[int], sequence: int = 0) -> Logits:
    """Return the logits after a text, of which the sequence holds a part."""
    held = min(head.truncate(sequence, len(text) - 1), len(text) - 1)
    [[found]] = head.decode([Chunk(sequence, held, text[held:], 1)])
    return found


def read_at_once(fresh: LlamaHead, text: Sequence[int], rows: RowWindow) -> Logits:
    """Return the logits of a head that reads all that there are rows for at once."""
    fresh.truncate(0, 0)
    before = unpack(rows, fresh.width)
    if not rows.position:
        before = np.concatenate([np.zeros((1, fresh.width), np.float32), before])
    position = len(text) - len(before)
    [(logits, _)] = fresh.decode([Pairs(0, position, text[position:], before)])
    return logits.copy()


def close(left: Logits, right: Logits) -> bool:
    return bool(np.allclose(left, right, rtol=1e-3, atol=1e-3))


def test_it_reads_a_text_with_the_rows_that_it_was_given(
    target: LlamaModel, head: HeadModel, fresh: LlamaHead
) -> None:
    text = TEXT[:20]
    head.give_rows(0, rows_of(target, text))
    assert close(row(head, text), read_at_once(fresh, text, rows_of(target, text)))


def test_a_prompt_costs_one_decode_of_a_window(
    target: LlamaModel, head: HeadModel, reads: list[list[Pairs]]
) -> None:
    head.give_rows(0, rows_of(target, TEXT))
    assert head.decode([Chunk(0, 0, TEXT[:100], 0)]) == [[]]
    assert not reads
    [[_]] = head.decode([Chunk(0, 100, TEXT[100:], 1)])
    [[pairs]] = reads
    assert (pairs.position, len(pairs.token_ids)) == (len(TEXT) - HIDDEN_ROWS, HIDDEN_ROWS)


def test_after_a_verdict_it_reads_again_what_it_chained(
    target: LlamaModel, head: HeadModel, fresh: LlamaHead, reads: list[list[Pairs]]
) -> None:
    text = TEXT[:20]
    head.give_rows(0, rows_of(target, text))
    row(head, text)
    for count in (21, 22, 23):  # a draft, on its own rows
        row(head, TEXT[:count])
    held, accepted = head.truncate(0, 21), [*TEXT[:21], 7]
    assert held == 21
    rows = rows_of(target, accepted, 19)
    head.give_rows(0, rows_of(target, text).followed_by(rows))
    reads.clear()
    found = row(head, accepted)
    assert [(each.position, len(each.token_ids)) for [each] in reads] == [(20, 2)]
    assert close(found, read_at_once(fresh, accepted, rows_of(target, accepted)))


def test_a_draft_that_goes_on_is_chained_on_its_own_rows(
    target: LlamaModel, head: HeadModel, reads: list[list[Pairs]]
) -> None:
    text = TEXT[:20]
    head.give_rows(0, rows_of(target, text))
    row(head, text)
    reads.clear()
    row(head, TEXT[:21])
    row(head, TEXT[:22])
    assert [(each.position, len(each.token_ids)) for [each] in reads] == [(20, 1), (21, 1)]
    assert not np.array_equal(reads[0][0].rows, reads[1][0].rows)
    # All of it was accepted: what was chained is read with the target's rows, the end as it was.
    head.give_rows(0, rows_of(target, text).followed_by(rows_of(target, TEXT[:22], 19)))
    row(head, TEXT[:23])
    [again] = reads[-1]
    assert (again.position, len(again.token_ids)) == (20, 3)


def test_after_a_gap_it_begins_anew_with_the_newest_rows(
    target: LlamaModel, head: HeadModel, fresh: LlamaHead
) -> None:
    head.give_rows(0, rows_of(target, TEXT[:20]))
    row(head, TEXT[:20])
    newest = rows_of(target, TEXT, 140)
    head.give_rows(0, newest)
    assert close(row(head, TEXT), read_at_once(fresh, TEXT, newest))


def test_a_copied_prefix_is_not_read_again(
    target: LlamaModel, head: HeadModel, fresh: LlamaHead, reads: list[list[Pairs]]
) -> None:
    text = TEXT[:20]
    rows = rows_of(target, text)
    head.give_rows(0, rows)
    row(head, text)
    assert head.copy_prefix(0, 1, 15) == 15
    other = [*TEXT[:15], 9, 8]
    its = rows_of(target, other)
    head.give_rows(1, its)
    reads.clear()
    found = row(head, other, 1)
    assert [(each.position, len(each.token_ids)) for [each] in reads] == [(15, 2)]
    assert close(found, read_at_once(fresh, other, its))
    assert close(row(head, text), read_at_once(fresh, text, rows))


def test_texts_are_read_together_and_apart_where_they_do_not_fit(
    target: LlamaModel, head: HeadModel, reads: list[list[Pairs]]
) -> None:
    texts = [TEXT[:70], [*TEXT[:69], 5], [*TEXT[:69], 6]]
    alone = []
    for text in texts:
        head.give_rows(0, rows_of(target, text))
        head.truncate(0, 0)
        alone.append(row(head, text))
    reads.clear()
    for sequence, text in enumerate(texts):
        head.truncate(sequence, 0)
        head.give_rows(sequence, rows_of(target, text))
    found = head.decode([Chunk(i, 0, text, 1) for i, text in enumerate(texts)])
    assert [len(pairs) for pairs in reads] == [2, 1]  # 64 tokens each, 160 at once
    assert all(close(one, other) for [one], other in zip(found, alone, strict=True))


def test_rows_that_are_no_numbers_spoil_no_other_text(
    target: LlamaModel, head: HeadModel, fresh: LlamaHead
) -> None:
    text = TEXT[:20]
    nothing = bytes(np.full(head.width, np.nan, "<f2"))
    head.give_rows(0, RowWindow(0, (nothing,) * 19))
    assert np.isfinite(row(head, text)).all()
    head.truncate(0, 0)
    head.give_rows(0, rows_of(target, text))
    assert close(row(head, text), read_at_once(fresh, text, rows_of(target, text)))


def test_without_rows_it_drafts_nonsense_and_nothing_breaks(
    target: LlamaModel, head: HeadModel
) -> None:
    head.give_rows(0, NO_ROWS)
    assert np.isfinite(row(head, TEXT[:20])).all()
    assert np.isfinite(row(head, TEXT[:21])).all()


@pytest.mark.parametrize(
    ("name", "write", "said"),
    [
        ("eagle3", write_eagle3, "is an EAGLE-3 head, which reads layers of its target"),
        ("dflash", write_dflash, "is a DFlash head, which reads layers of its target"),
        (
            "mtp",
            partial(write_mtp, architecture="step35", is_alone=True, blocks=2),
            "has 2 MTP blocks, which draft beside their target",
        ),
    ],
)
def test_heads_that_draft_beside_their_target_alone_are_refused_in_a_line(
    tmp_path: Path, name: str, write: Callable[..., Path], said: str
) -> None:
    config = ModelConfig(model=write(tmp_path / f"{name}.gguf"), is_draft=True)
    with pytest.raises(InvalidConfig, match=f"{said}: name it there as --draft-model") as caught:
        load_llama(config)()
    assert "\n" not in str(caught.value)


def test_a_draft_service_loads_a_head_from_a_file_of_its_own(tmp_path: Path) -> None:
    path = write_mtp(tmp_path / "mtp.gguf", "qwen35", is_alone=True)
    model = load_llama(ModelConfig(model=path, is_draft=True, context=128, threads=1))()
    described = model.describe()
    assert described.head_kind is HeadKind.MTP and described.architecture == "qwen35"
    assert described.context == 128 and described.rollback is Rollback.FULL
    assert described.hidden_row_width == described.embedding_width
    assert model.tokenize(b"tea", False, False)
    model.close()
    with pytest.raises(InvalidConfig, match="head of another model"):
        load_llama(ModelConfig(model=path))
