"""Sizes a model by a dry run of llama.cpp's own load.

With `no_alloc` llama.cpp lays out weights, caches and graphs and allocates nothing: that takes
some 10 to 90 ms and no memory, whatever the model's size. It says in its log what is where; its
function for that (llama_get_memory_breakdown) returns a C++ map, which cannot be called from here.
"""

from __future__ import annotations

from outrider.engine.footprint import Footprint, read_footprint
from outrider.engine.gguf_check import check_gguf
from outrider.engine.llama_devices import gpus
from outrider.engine.llama_library import init_backend, last_error, ll, log_lines
from outrider.engine.llama_loading import (
    LlamaConfig,
    asked_context,
    cells_of,
    context_params,
    layouts_of,
    load_file,
    model_params,
    sequences_of,
)
from outrider.errors import InvalidConfig


def footprint(config: LlamaConfig) -> Footprint:
    """Return what a model would take, without loading it. Raises InvalidConfig."""
    init_backend()
    checked = check_gguf(config.path)
    params = model_params(config)
    params.no_alloc, params.load_mode = True, ll.LLAMA_LOAD_MODE_NONE
    with log_lines() as lines:
        model = load_file(config.path, params)
        try:
            trained = ll.llama_model_n_ctx_train(model)
            cells = cells_of(asked_context(config, trained, checked.position_count))
            layout = layouts_of(config, can_pool=False)[0]
            context = ll.llama_init_from_model(
                model, context_params(config, model, layout, cells, sequences_of(config, layout))
            )
            if not context:
                raise InvalidConfig("ctx", f"no context of {cells} cells: {last_error()}")
            ll.llama_free(context)
        finally:
            ll.llama_model_free(model)
    return read_footprint(lines, checked.tensor_bytes, {gpu.name for gpu in gpus()})
