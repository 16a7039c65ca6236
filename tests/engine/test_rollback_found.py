"""What a loaded model's memory can, found out by trying."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.llama_memory import LlamaMemory, find_rollback
from outrider.engine.model import Rollback
from outrider.errors import DecodeFailed
from tests.support.tiny_architectures import write_architecture
from tests.support.toy import ToyModel


def test_one_snapshot_is_tried_by_a_cut_of_one_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts: list[int] = []
    cut = LlamaMemory.cut

    def noted(self: LlamaMemory, sequence: int, token_count: int) -> bool:
        cuts.append(token_count)
        return cut(self, sequence, token_count)

    monkeypatch.setattr(LlamaMemory, "cut", noted)
    path = write_architecture(tmp_path / "qwen35.gguf", "qwen35")
    sizes = {"context": 64, "sequence_count": 1, "thread_count": 1, "pad_multiple": 1}
    model = LlamaModel(LlamaConfig(path=path, snapshots=1, **sizes))
    assert model.describe().rollback is Rollback.SNAPSHOTS
    assert 5 in cuts, "six tokens were cut by one"
    model.close()


def test_a_model_whose_snapshots_cannot_be_set_up_has_checkpoints() -> None:
    class Trying(ToyModel):
        snapshot_count = 4

        def open_memory(self, rollback: Rollback) -> None:
            if rollback is Rollback.SNAPSHOTS:
                raise DecodeFailed("sequences have no states of their own")

    model = Trying(rollback=Rollback.CHECKPOINTS, pad_multiple=1)
    assert find_rollback(model, Rollback.SNAPSHOTS) is Rollback.CHECKPOINTS
