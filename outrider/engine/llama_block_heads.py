"""Heads by llama.cpp that draft a block in one pass: DFlash, and DSpark with a Markov head."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.engine.head_draft import Pairs
from outrider.engine.hidden_rows import Rows
from outrider.engine.llama_batch import Batch, RowBatch
from outrider.engine.llama_heads import HeadContext, Opening
from outrider.engine.llama_library import ll
from outrider.engine.llama_loading import metadata
from outrider.engine.model import Chunk, Row
from outrider.speculation import HeadKind

_TRAINED_SIZE = 16  # tokens of a block where the file does not say; llama.cpp's


class LlamaBlockHead(HeadContext):
    """A head that drafts blocks. Implements `Head`.

    DFlash sees masks in place of the tokens that it drafts. DSpark drafts from the place of the
    token before on; its Markov head, in llama.cpp's graph, sees the most probable one there.
    """

    lag = 0

    def __init__(self, opening: Opening) -> None:
        super().__init__(opening)
        model, self.row_width = opening.model, opening.head.row_width
        size = int(metadata(model, "dflash.block_size") or _TRAINED_SIZE)
        anchored = metadata(model, "dflash.sample_from_anchor") != "false"
        # Whether the place of the newest token drafts, too.
        self._skipped = 0 if opening.head.kind is HeadKind.DSPARK and anchored else 1
        self.size = size - self._skipped
        self.context -= size  # all blocks of a decode are as long as the longest
        is_causal = metadata(model, "dflash.attention.causal") == "true"
        ll.llama_set_causal_attn(self.context_pointer, is_causal)
        self._mask = int(ll.llama_vocab_mask(self.vocabulary.pointer))
        self._rows = RowBatch(self.batch_rows, self.row_width)
        self._tokens = Batch(self.batch_rows)
        self._no_row = np.empty((0, self.row_width), np.float32)

    def _decode_rising(
        self, rising: Sequence[Pairs], block: int
    ) -> list[tuple[Sequence[Row], Rows]]:
        size = min(max(each.count for each in rising), self.size) + self._skipped
        assert len(rising) * size <= self.batch_rows, f"{len(rising)} blocks of {size}"
        for each in rising:
            assert len(each.rows) == len(each.token_ids) - 1, f"{len(each.rows)} rows"
            self.check(each.sequence, each.position, each.token_ids, len(each.token_ids))
        reading = [each for each in rising if len(each.rows)]
        if reading:
            self._put(
                [Chunk(e.sequence, e.position, e.token_ids[:-1], 0) for e in reading],
                np.concatenate([each.rows for each in reading]),
            )
        masks = [self._mask] * (size - 1)
        blocks = [
            Chunk(e.sequence, e.position + len(e.rows), [e.token_ids[-1], *masks], size)
            for e in rising
        ]
        sizes = [size] * len(blocks)
        self._tokens.fill(blocks, sizes, sizes)
        self._decode(self._tokens)
        for drafted in blocks:
            self.truncate(drafted.sequence, drafted.position)
        logits = self._logits(len(blocks) * size).reshape(len(blocks), size, -1)
        return [
            (list(logits[n][self._skipped :][: each.count]), self._no_row)
            for n, each in enumerate(rising)
        ]

    def read(self, sequence: int, position: int, rows: Rows) -> None:
        for first in range(0, len(rows), self.batch_rows):
            part = rows[first : first + self.batch_rows]
            self.check(sequence, position + first, [0], len(part))
            self._put([Chunk(sequence, position + first, [0] * len(part), 0)], part)

    def _put(self, chunks: Sequence[Chunk], rows: Rows) -> None:
        """Append rows of the target to sequences."""
        assert len(rows) <= self.batch_rows, f"{len(rows)} rows in one decode"
        self._rows.put(chunks, rows)
        self._decode(self._rows)
        for chunk in chunks:
            self._read[chunk.sequence] = chunk.position + len(chunk.token_ids)
