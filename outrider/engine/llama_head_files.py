"""Heads in files of their own, for a target in the same process or in another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from outrider.engine.gguf_check import Checked, check_draft
from outrider.engine.heads import Beside, Head, fault_beside
from outrider.engine.llama_block_heads import LlamaBlockHead
from outrider.engine.llama_heads import LlamaHead, Opening, head_bytes, missing_functions
from outrider.engine.llama_library import init_backend, last_error, ll, recent_errors
from outrider.engine.llama_loading import (
    LlamaConfig,
    architecture_of,
    asked_context,
    cells_of,
    load_model,
)
from outrider.engine.llama_vocabulary import Vocabulary
from outrider.engine.model import Layout
from outrider.errors import InvalidConfig
from outrider.speculation import HeadKind
from outrider.threads import available_threads

_STREAMS = Layout()
_LENT_CELLS = 256  # of a context of which nothing but the model is used; llama.cpp's fewest


def config_beside(file: LlamaConfig, target: LlamaConfig, capacity: int) -> LlamaConfig:
    """Return how to load a head for a target whose sequences hold so many tokens."""
    return replace(
        file,
        context=capacity,
        sequence_count=target.sequence_count,
        thread_count=file.thread_count or target.thread_count,
    )


def open_head_file(
    config: LlamaConfig, layout: Layout = _STREAMS, target: Any = None, names: Sequence[bytes] = ()
) -> LlamaHead | LlamaBlockHead:
    """Return the head in a file of its own, for a target in another process or this loaded one.

    `names` are those of the target's tokens. The head's sequences hold the tokens of the configured
    context. Raises InvalidConfig with one line that says what is wrong.
    """
    init_backend()
    checked, path = check_draft(config.path), config.path
    head = checked.head
    if head is None or not head.is_alone:
        raise InvalidConfig("draft-model", f"{path} is no head in a file of its own")
    if fault := head.fault or fault_with(head, target):
        raise InvalidConfig("draft-model", f"{path} {fault}")
    if fault := missing_functions(head.kind):
        raise InvalidConfig("draft-model", fault)
    config = replace(config, thread_count=config.thread_count or available_threads())
    model = load_model(config, checked.files, with_mtp=True, is_head=True)
    lender = None
    try:
        if target is not None and Vocabulary(model).names() != names:
            raise InvalidConfig("draft-model", f"{path} has other tokens than the target")
        context = asked_context(config, ll.llama_model_n_ctx_train(model), None)
        if head.borrows:
            lender = open_lender(target)
        opening = Opening(
            model=model,
            head=head,
            config=config,
            layout=layout,
            cells=cells_of(context),
            capacity=context,
            weight_bytes=_weight_bytes(checked),
            lender=lender,
        )
        drafts_blocks = head.kind in (HeadKind.DFLASH, HeadKind.DSPARK)
        return LlamaBlockHead(opening) if drafts_blocks else LlamaHead(opening)
    except InvalidConfig:
        if lender is not None:
            ll.llama_free(lender)
        ll.llama_model_free(model)
        raise


def fault_with(head: Head, target: Any) -> str:
    """Return why a head is not used with a loaded target, or with one that is elsewhere."""
    if target is None:
        borrowed = f"is {head.kind.words} without token embeddings, which needs its target here"
        return borrowed if head.borrows else ""
    architecture = architecture_of(target)
    layers, width = ll.llama_model_n_layer(target), ll.llama_model_n_embd_out(target)
    return fault_beside(head, Beside(architecture, int(layers), int(width)))


def open_lender(target: Any) -> Any:
    """Return a context of the target's model for one that uses its matrices.

    The target's own is opened anew now and then. Raises InvalidConfig where there is no memory.
    """
    params = ll.llama_context_default_params()
    params.n_ctx = _LENT_CELLS
    params.n_batch = params.n_ubatch = params.n_seq_max = params.n_outputs_max = 1
    params.flash_attn_type = ll.LLAMA_FLASH_ATTN_TYPE_DISABLED
    recent_errors.clear()
    context = ll.llama_init_from_model(target, params)
    if not context:
        raise InvalidConfig("draft-model", f"no context for its target's matrices: {last_error()}")
    return context


def _weight_bytes(checked: Checked) -> int:
    """Return the weights that a head reads for a token, without what it borrows."""
    sizes = checked.tensor_bytes
    if checked.head is not None and checked.head.kind is HeadKind.MTP:
        return head_bytes(sizes)
    return sum(size for name, size in sizes.items() if name not in ("token_embd.weight", "d2t"))
