"""Loads GGUF models with llama.cpp: options, refusals, and vocabularies without weights."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.engine.gguf_check import check_gguf
from outrider.engine.llama_devices import gpus
from outrider.engine.llama_library import (
    gpu_fault,
    init_backend,
    kernels_in_use,
    last_error,
    ll,
    recent_errors,
)
from outrider.engine.llama_threads import cores_of_their_own
from outrider.engine.llama_vocabulary import Vocabulary
from outrider.engine.model import MAX_ROWS_OUT, Layout, VocabularyDescription
from outrider.engine.thread_choice import thread_choices
from outrider.errors import InvalidConfig
from outrider.memory import available_memory, has_huge_pages, huge_pages
from outrider.threads import available_cores, available_threads

_NUMA = {
    "distribute": ll.GGML_NUMA_STRATEGY_DISTRIBUTE,
    "isolate": ll.GGML_NUMA_STRATEGY_ISOLATE,
    "numactl": ll.GGML_NUMA_STRATEGY_NUMACTL,
}
_MOST_OF_MEMORY = 0.4  # of what is available, that a model which is read may take
_LOAD_MODES = {  # by (mmap, mlock)
    (True, False): ll.LLAMA_LOAD_MODE_AUTO,  # mmap, unless a device cannot
    (True, True): ll.LLAMA_LOAD_MODE_MMAP_MLOCK,
    (False, True): ll.LLAMA_LOAD_MODE_MLOCK,
    (False, False): ll.LLAMA_LOAD_MODE_NONE,
}
_CACHE_TYPES = {
    "f32": ll.GGML_TYPE_F32,
    "f16": ll.GGML_TYPE_F16,
    "bf16": 30,  # which the binding leaves out
    "q8_0": ll.GGML_TYPE_Q8_0,
    "q5_1": ll.GGML_TYPE_Q5_1,
    "q5_0": ll.GGML_TYPE_Q5_0,
    "q4_1": ll.GGML_TYPE_Q4_1,
    "q4_0": ll.GGML_TYPE_Q4_0,
    "iq4_nl": ll.GGML_TYPE_IQ4_NL,
}
_BLOCK = 32  # values of a block, in every quantised type that a cache may have
MOST_CELLS = 2**31 - 1
_POOLED = 4  # sequences of a pool for each session that could hold a whole context
_MOST_POOLED = 64  # every row of a batch is masked against all of them
_numa_strategy: list[str] = []  # what this process has set in llama.cpp, once


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """How to load a model."""

    path: Path
    context: int  # tokens of one session; 0 takes what the model was trained on, at most 4096
    sequence_count: int
    thread_count: int  # 0: as `thread_choices` says
    batch_thread_count: int = 0  # of a decode of more than one row; 0 is `thread_count`
    pad_multiple: int  # each chunk's rows are padded to a multiple, so that kernels do not vary
    batch_rows: int = 512  # of one decode; also llama.cpp's ubatch, so a cancel waits for one
    gpu_layers: int = -1  # -1 is every layer where this build has a GPU, else none
    main_gpu: int = -1  # the one GPU that holds the whole model; -1: all of them
    tensor_split: Sequence[float] = ()  # shares of the layers, GPU by GPU; () goes by free memory
    numa: str = ""  # distribute, isolate or numactl; the first model of a process decides
    mmap: bool | None = None  # map the file, or read it; None: as tokens are sooner, if it fits
    mlock: bool = False
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"  # a quantised one turns flash attention on: llama.cpp wants it
    pool: bool | None = None  # one pool of cells for all sequences, or streams; None: either
    flash_attention: bool | None = None  # None: either
    full_window: bool = True  # sliding windows keep every cell; else only what they look at
    snapshots: int = 4  # of a recurrent state that each sequence keeps, where llama.cpp can
    pins_threads: bool = False  # to a core each, where they are as many; for a thread of its own
    is_draft: bool = False  # off the GPU it leaves cores to the target that uses that
    mtp: bool = False  # load the MTP head of the file, and keep the hidden rows that it reads
    hidden_rows: bool = False  # keep them without that, for heads elsewhere, where the graph can
    embeddings: bool = False  # whether `embed` works; costs a context when it is first used
    progress: Callable[[float], None] | None = None
    """Called with the share that is loaded: 0.0 once the file was found sound, up to 1.0."""


def load_model(
    config: LlamaConfig, files: Sequence[Path], with_mtp: bool = False, is_head: bool = False
) -> Any:
    """Return the model or the head that these files hold, with its MTP layers or without.

    Raises InvalidConfig with one line that says what is wrong.
    """
    if is_quantised(config.cache_type_v) and config.flash_attention is False:
        raise InvalidConfig("flash-attention", f"must be on for a cache of {config.cache_type_v}")
    params = model_params(config)
    params.load_mtp = with_mtp
    params.load_mode = _LOAD_MODES[_maps(config, files), config.mlock]
    _init_numa(config.numa)
    report = config.progress or _ignore
    report(0.0)

    @ll.llama_progress_callback  # type: ignore[untyped-decorator]
    def go_on(share: float, _: Any) -> bool:
        report(share)
        return True

    params.progress_callback = go_on
    model = (load_any if is_head else load_file)(config.path, params)
    if config.mlock and recent_errors:
        reason = last_error().removeprefix("warning: ")
        ll.llama_model_free(model)
        raise InvalidConfig("mlock", f"{reason} (see `ulimit -l`)")
    return model


def load_file(path: Path, params: Any) -> Any:
    """Return a model that reads forwards. Raises InvalidConfig."""
    model = load_any(path, params)
    if not ll.llama_model_has_decoder(model) or ll.llama_model_has_encoder(model):
        ll.llama_model_free(model)
        raise InvalidConfig("model", f"{path} is not a decoder-only model")
    if ll.llama_model_is_diffusion(model):
        ll.llama_model_free(model)
        raise InvalidConfig("model", f"{path} is a diffusion model: it is not causal")
    return model


def load_any(path: Path, params: Any) -> Any:
    """Return what a file holds, a model or a head. Raises InvalidConfig."""
    recent_errors.clear()
    model = ll.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise InvalidConfig("model", f"llama.cpp cannot load {path}: {last_error()}")
    return model


def _ignore(_: float) -> None:
    return None


def model_params(config: LlamaConfig) -> Any:
    params = ll.llama_model_default_params()
    params.n_gpu_layers = gpu_layers_of(config)
    if config.main_gpu >= 0:
        _need_gpus("main-gpu", config.main_gpu + 1)
        params.split_mode = ll.LLAMA_SPLIT_MODE_NONE
        params.main_gpu = config.main_gpu
    if config.tensor_split:
        _need_gpus("tensor-split", len(config.tensor_split))
        # llama.cpp reads as many as it could have devices.
        shares = (ctypes.c_float * ll.llama_max_devices())(*config.tensor_split)
        params.tensor_split = shares
    return params


def context_params(
    config: LlamaConfig, model: Any, layout: Layout, cells: int, sequence_count: int
) -> Any:
    """Return how a model's context is made: `cells` for each session, and so many sequences.

    Raises InvalidConfig.
    """
    params = ll.llama_context_default_params()
    all_cells = cells * config.sequence_count
    if all_cells > MOST_CELLS:
        raise InvalidConfig("ctx", f"{all_cells} cells in all sessions; {MOST_CELLS} at most")
    params.n_ctx = all_cells
    params.n_batch = params.n_ubatch = config.batch_rows
    params.n_seq_max = sequence_count
    params.n_outputs_max = max(min(config.batch_rows, MAX_ROWS_OUT), sequence_count)
    params.n_threads = config.thread_count
    params.n_threads_batch = config.batch_thread_count or config.thread_count
    params.type_k = cache_type(model, "cache-type-k", config.cache_type_k)
    params.type_v = cache_type(model, "cache-type-v", config.cache_type_v)
    params.kv_unified = layout.is_pool
    params.swa_full = config.full_window
    params.n_rs_seq = config.snapshots if is_recurrent(model) else 0
    params.no_perf = True
    params.flash_attn_type = (
        ll.LLAMA_FLASH_ATTN_TYPE_ENABLED
        if layout.flash_attention
        else ll.LLAMA_FLASH_ATTN_TYPE_DISABLED
    )
    return params


def is_recurrent(model: Any) -> bool:
    """Return whether some or all of a model's layers keep a state in place of a cache."""
    return bool(ll.llama_model_is_recurrent(model) or ll.llama_model_is_hybrid(model))


def _maps(config: LlamaConfig, files: Sequence[Path]) -> bool:
    """Return whether to map the file: where nothing is gained by reading it, or memory is short.

    What is read is in memory of malloc's, where that is in huge pages; a file's is not. It is not
    shared with other processes, and not given back under pressure.
    """
    if config.mmap is not None:
        return config.mmap
    if gpu_layers_of(config) or not has_huge_pages(os.environ, huge_pages()):
        return True
    memory = available_memory()
    size = sum(path.stat().st_size for path in files)
    return memory is None or size > _MOST_OF_MEMORY * memory[0]


def gpu_layers_of(config: LlamaConfig) -> int:
    """Return the layers to offload; -1, which is all, only where there is a GPU."""
    if config.gpu_layers > 0:
        _need_gpus("n-gpu-layers", 1)
    return config.gpu_layers if ll.llama_supports_gpu_offload() else 0


def is_on_gpu(config: LlamaConfig, model: Any) -> bool:
    """Return whether a GPU computes all layers, of which llama.cpp counts the output as one."""
    layers = gpu_layers_of(config)
    return layers < 0 or layers > ll.llama_model_n_layer(model)


def is_beside_gpu(config: LlamaConfig) -> bool:
    """Return whether it is a draft that is kept off a GPU, which is left to its target."""
    return config.is_draft and config.gpu_layers == 0 and bool(ll.llama_supports_gpu_offload())


def thread_choices_of(config: LlamaConfig, is_on_gpu: bool) -> tuple[int, ...]:
    """Return the numbers of threads to choose from, the most first; none where one was given."""
    if config.thread_count:
        return ()
    return thread_choices(available_threads(), is_on_gpu, is_beside_gpu(config))


def cores_of(config: LlamaConfig) -> list[int]:
    """Return the cores that the model's threads are kept on, one each; none: where it likes."""
    if not config.pins_threads or config.numa or gpu_layers_of(config) != 0:
        return []
    if is_beside_gpu(config):  # what waits for the GPU spins; a thread kept there would wait, too
        return []
    counts = config.thread_count, config.batch_thread_count or config.thread_count
    return cores_of_their_own(counts, available_cores())


def _need_gpus(option: str, count: int) -> None:
    """Raise InvalidConfig where there are fewer: llama.cpp ignores shares, or divides by zero."""
    if not ll.llama_supports_gpu_offload():
        fault = gpu_fault()
        reason = "this build of llama.cpp finds no GPU"
        raise InvalidConfig(option, f"{reason}: {fault}" if fault else reason)
    names = [gpu.name for gpu in gpus()]
    if count > len(names):
        found = f"{', '.join(names)}, counted from 0"
        raise InvalidConfig(option, f"needs {count} GPUs; this build of llama.cpp finds {found}")


def _init_numa(strategy: str) -> None:
    """Bind threads to nodes; for the whole process, once."""
    if strategy and not _numa_strategy:
        _numa_strategy.append(strategy)
        ll.llama_numa_init(_NUMA[strategy])


def is_quantised(cache_type: str) -> bool:
    return cache_type not in ("f32", "f16", "bf16")


def cache_type(model: Any, option: str, name: str) -> int:
    """Return ggml's number of a cache type that suits the model's heads."""
    heads = _head_sizes(model, "key" if option == "cache-type-k" else "value")
    if is_quantised(name) and any(size % _BLOCK for size in heads):
        sizes = ", ".join(map(str, sorted(heads)))
        raise InvalidConfig(
            option, f"{name} needs heads of a multiple of {_BLOCK}; the model's are of {sizes}"
        )
    return _CACHE_TYPES[name]


def _head_sizes(model: Any, kind: str) -> set[int]:
    """Return the sizes that the file gives for its key or value heads."""
    prefix = f"{architecture_of(model)}.attention.{kind}_length"
    sizes = {metadata(model, prefix), metadata(model, f"{prefix}_swa")} - {""}
    heads = ll.llama_model_n_head(model)
    default = {ll.llama_model_n_embd(model) // heads} if heads else set()
    return {int(size) for size in sizes} or default


def facts_of(model: Any) -> dict[str, Any]:
    """Return what a description says of a loaded model, however it is opened."""
    text = ctypes.create_string_buffer(256)
    ll.llama_model_desc(model, text, len(text))
    template = ll.llama_model_chat_template(model, None) or b""
    return {
        "description": text.value.decode("utf-8", "replace"),
        "weight_bytes": ll.llama_model_size(model),
        "parameter_count": ll.llama_model_n_params(model),
        "file_type": ll.llama_ftype_name(ll.llama_model_ftype(model)).decode(),
        "architecture": architecture_of(model),
        "embedding_width": ll.llama_model_n_embd(model),
        "trained_context": ll.llama_model_n_ctx_train(model),
        "system_info": ll.llama_print_system_info().decode("utf-8", "replace").strip(),
        "kernels": kernels_in_use(),
        "chat_template": template.decode("utf-8", "replace"),
    }


def architecture_of(model: Any) -> str:
    """Return what a model's file says its layers are."""
    return metadata(model, "general.architecture")


def metadata(model: Any, key: str) -> str:
    """Return the value of a key of a model's file as text; empty: it has none."""
    buffer = ctypes.create_string_buffer(64)
    ll.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace")


def layouts_of(config: LlamaConfig, can_pool: bool) -> tuple[Layout, ...]:
    """Return the layouts that options and memory allow, streams without flash attention first.

    Raises InvalidConfig where there is none.
    """
    if config.pool and not can_pool:
        raise InvalidConfig("kv-cache", "this model's memory cannot be one pool; leave it out")
    pools = [False, True] if config.pool is None else [config.pool]
    flash = [False, True] if config.flash_attention is None else [config.flash_attention]
    return tuple(
        Layout(is_pool, attention)
        for is_pool in pools
        for attention in flash
        if (can_pool or not is_pool) and (attention or not is_quantised(config.cache_type_v))
    )


def sequences_of(config: LlamaConfig, layout: Layout) -> int:
    """Return how many sequences a context has: a pool's cells may do for more short sessions."""
    if not layout.is_pool:
        return config.sequence_count
    return max(config.sequence_count, min(_MOST_POOLED, _POOLED * config.sequence_count))


def asked_context(config: LlamaConfig, trained: int, learned: int | None) -> int:
    """Return the context that is asked for. Raises InvalidConfig for more than was learned."""
    asked = config.context or min(trained, 4096)
    if asked < 32:
        raise InvalidConfig("ctx", f"must be at least 32 tokens, not {asked}")
    if learned is not None and asked > learned:
        raise InvalidConfig(
            "ctx", f"must be at most {learned}, the positions the model has learned, not {asked}"
        )
    return asked


def cells_of(context: int) -> int:
    """Return the cells that llama.cpp gives a sequence of this context, as in every program.

    More must not be asked for: it chooses rotary factors by this number.
    """
    return -(-context // 256) * 256


def check_added_tokens(path: Path, vocabulary: VocabularyDescription) -> None:
    """Refuse a tokenizer that adds what it does not have: llama.cpp would abort at a prompt."""
    begins = vocabulary.adds_bos and vocabulary.bos is None
    ends = vocabulary.adds_eos and vocabulary.eos is None
    if begins or ends:
        raise InvalidConfig("model", f"{path} adds a token to texts that it does not have")


# --- looking at files and at this build, without weights ---


@dataclass(frozen=True, slots=True)
class FileVocabulary:
    """The vocabulary of a file and the trained context."""

    description: VocabularyDescription
    names: list[bytes]  # the texts its tokens are stored under
    texts: list[bytes]  # what each of them adds to a text
    trained_context: int


@dataclass(frozen=True, slots=True)
class FileTokens:
    """A text in the tokens of a file's model, their number in all, and the trained context."""

    token_ids: list[int]
    token_count: int
    trained_context: int


def read_vocabulary(path: Path) -> FileVocabulary:
    """Read a file without its weights. Raises InvalidConfig for what cannot be loaded."""
    with _vocabulary_only(path) as model:
        vocabulary = Vocabulary(model)
        return FileVocabulary(
            vocabulary.describe(), vocabulary.names(), vocabulary.texts(), _trained_context(model)
        )


def tokenize(path: Path, text: bytes) -> FileTokens:
    """Return a text in tokens, special ones added and read, without loading the file's weights.

    Raises InvalidConfig for what cannot be loaded, EngineBusy as Vocabulary.tokenize does.
    """
    with _vocabulary_only(path) as model:
        vocabulary = Vocabulary(model)
        check_added_tokens(path, vocabulary.describe())
        token_ids = vocabulary.tokenize(text, add_special=True, parse_special=True)
        return FileTokens(token_ids, vocabulary.size, _trained_context(model))


@contextmanager
def _vocabulary_only(path: Path) -> Iterator[Any]:
    """Yield a file's model without weights."""
    init_backend()
    check_gguf(path)
    params = ll.llama_model_default_params()
    params.vocab_only = True
    model = load_file(path, params)
    try:
        yield model
    finally:
        ll.llama_model_free(model)


def _trained_context(model: Any) -> int:
    trained = metadata(model, f"{architecture_of(model)}.context_length")
    return int(trained or 0)
