"""Embeddings of texts by llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.engine.llama_batch import Batch
from outrider.engine.llama_library import last_error, ll, recent_errors
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk
from outrider.errors import DecodeFailed, InvalidRequest


class Embedder:
    """A context of its own that reads a text at once and pools its embeddings.

    As the model's file says, or their mean.
    """

    def __init__(self, model: Any, config: LlamaConfig, capacity: int) -> None:
        """Raises InvalidRequest for a reranker: it pools a text to a score, not to an embedding."""
        self._width = ll.llama_model_n_embd_out(model)
        self._ctx = self._open(model, config, capacity, ll.LLAMA_POOLING_TYPE_UNSPECIFIED)
        pooling = ll.llama_pooling_type(self._ctx)
        if pooling == ll.LLAMA_POOLING_TYPE_RANK:
            ll.llama_free(self._ctx)
            message = "this model is a reranker (pooling type rank): it has scores, no embeddings"
            raise InvalidRequest("embeddings", message)
        if pooling == ll.LLAMA_POOLING_TYPE_NONE:
            ll.llama_free(self._ctx)
            self._ctx = self._open(model, config, capacity, ll.LLAMA_POOLING_TYPE_MEAN)
        self._batch = Batch(capacity)

    @staticmethod
    def _open(model: Any, config: LlamaConfig, capacity: int, pooling: int) -> Any:
        params = ll.llama_context_default_params()
        # What is pooled has to be in one ubatch.
        params.n_ctx = params.n_batch = params.n_ubatch = capacity
        params.n_threads = config.thread_count
        params.n_threads_batch = config.batch_thread_count or config.thread_count
        params.embeddings = True
        params.pooling_type = pooling
        params.no_perf = True
        recent_errors.clear()
        context = ll.llama_init_from_model(model, params)
        if not context:
            raise DecodeFailed(f"no context for embeddings: {last_error()}")
        return context

    def embed(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the pooled embedding: float32[width]."""
        ll.llama_memory_clear(ll.llama_get_memory(self._ctx), True)
        whole = Chunk(0, 0, token_ids, len(token_ids))
        self._batch.fill([whole], [len(token_ids)], [len(token_ids)])
        code = ll.llama_decode(self._ctx, self._batch.struct)
        if code != 0:
            raise DecodeFailed(f"llama_decode returned {code}: {last_error()}", llamaCode=code)
        values = ll.llama_get_embeddings_seq(self._ctx, 0)
        return np.ctypeslib.as_array(values, (self._width,)).copy()

    def close(self) -> None:
        ll.llama_free(self._ctx)
