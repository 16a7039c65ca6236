"""A real model whose decodes can be held up, as a toy's can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk, Row


class GatedModel(LlamaModel):
    """A model for `tests.support.services.Gate`."""

    before_decode: Callable[[Sequence[Chunk]], None] = staticmethod(lambda chunks: None)

    def decode(self, chunks: Sequence[Chunk]) -> list[list[Row]]:
        """Wait at the gate, and decode."""
        self.before_decode(chunks)
        return super().decode(chunks)


def load_gated(path: Path) -> GatedModel:
    """Return the model of a file, in the numerics that make equal texts."""
    return GatedModel(
        LlamaConfig(
            path=path,
            context=256,
            sequence_count=4,
            thread_count=1,
            pad_multiple=1,
            batch_rows=128,
        )
    )
