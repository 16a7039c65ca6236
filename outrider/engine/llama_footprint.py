"""Sizes a model, or a head, by a dry run of llama.cpp's own load.

With `no_alloc` llama.cpp lays out weights, caches and graphs and allocates nothing: that takes
some 10 to 90 ms and no memory, whatever the model's size. It says in its log what is where; its
function for that (llama_get_memory_breakdown) returns a C++ map, which cannot be called from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from outrider.engine.footprint import Footprint, read_footprint
from outrider.engine.gguf_check import check_draft, check_gguf
from outrider.engine.heads import Head
from outrider.engine.hidden_rows import rows_bytes
from outrider.engine.llama_devices import gpus
from outrider.engine.llama_head_files import fault_with, open_lender
from outrider.engine.llama_heads import missing_functions, unusable
from outrider.engine.llama_library import init_backend, last_error, ll, log_lines
from outrider.engine.llama_loading import (
    LlamaConfig,
    asked_context,
    cells_of,
    context_params,
    layouts_of,
    load_any,
    load_file,
    model_params,
    sequences_of,
)
from outrider.errors import InvalidConfig
from outrider.speculation import HeadKind


def footprint(config: LlamaConfig) -> Footprint:
    """Return what a model would take, without loading it. Raises InvalidConfig.

    With the head in its file, where that is configured and can be used.
    """
    init_backend()
    checked = check_gguf(config.path)
    head = None if unusable(checked.head, config.path) or not config.mtp else checked.head
    rows = _row_bytes(config, head) if head else 0
    with log_lines() as lines, _model(config, with_mtp=head is not None) as model:
        cells = _cells(config, model, checked.position_count)
        with _context(config, model, cells):
            pass
        if head is not None:
            with _context(config, model, cells, head.kind):
                pass
    return read_footprint(lines, checked.tensor_bytes, _gpu_names(), rows)


def head_footprint(config: LlamaConfig, target: LlamaConfig) -> Footprint:
    """Return what a head in a file of its own would take beside its target.

    Raises InvalidConfig for one that cannot be used, with this target or at all.
    """
    init_backend()
    checked, its = check_draft(config.path), check_gguf(target.path)
    head = checked.head
    assert head is not None, f"{config.path} is no head"
    if fault := missing_functions(head.kind):
        raise InvalidConfig("draft-model", fault)
    with _model(target) as model:
        if fault := head.fault or fault_with(head, model):
            raise InvalidConfig("draft-model", f"{config.path.name} {fault}")
        cells = _cells(target, model, its.position_count)
        with (
            log_lines() as lines,
            _lent(model, head) as lender,
            _model(config, with_mtp=True, is_head=True) as loaded,
            _context(target, loaded, cells, head.kind, lender),
        ):
            pass
    return read_footprint(lines, checked.tensor_bytes, _gpu_names(), _row_bytes(target, head))


@contextmanager
def _lent(target: Any, head: Head) -> Iterator[Any]:
    """Give the context of a target from which a head takes matrices, if it takes any."""
    lender = open_lender(target) if head.borrows else None
    try:
        yield lender
    finally:
        if lender is not None:
            ll.llama_free(lender)


@contextmanager
def _model(config: LlamaConfig, with_mtp: bool = False, is_head: bool = False) -> Iterator[Any]:
    params = model_params(config)
    params.load_mtp, params.no_alloc, params.load_mode = with_mtp, True, ll.LLAMA_LOAD_MODE_NONE
    model = (load_any if is_head else load_file)(config.path, params)
    try:
        yield model
    finally:
        ll.llama_model_free(model)


def _cells(config: LlamaConfig, model: Any, position_count: int | None) -> int:
    return cells_of(asked_context(config, ll.llama_model_n_ctx_train(model), position_count))


def _row_bytes(target: LlamaConfig, head: Head) -> int:
    """Return the bytes of the hidden rows that a target keeps for a head."""
    count = sequences_of(target, layouts_of(target, can_pool=False)[0])
    return count * rows_bytes(head.row_width)


@contextmanager
def _context(
    config: LlamaConfig, model: Any, cells: int, kind: HeadKind | None = None, lender: Any = None
) -> Iterator[Any]:
    """Open the context of a target, or of a head of this kind for it; `lender` is the target's."""
    layout = layouts_of(config, can_pool=False)[0]
    count = config.sequence_count if kind else sequences_of(config, layout)
    params = context_params(config, model, layout, cells, count)
    if kind is not None:
        params.n_rs_seq, params.ctx_other, params.swa_full = 0, lender, True
    if kind is HeadKind.MTP:
        params.ctx_type = ll.LLAMA_CONTEXT_TYPE_MTP
    context = ll.llama_init_from_model(model, params)
    if not context:
        raise InvalidConfig("ctx", f"no context of {cells} cells: {last_error()}")
    try:
        yield context
    finally:
        ll.llama_free(context)


def _gpu_names() -> set[str]:
    return {gpu.name for gpu in gpus()}
