"""Runs a model service: listen, load, say SERVING, drain."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from outrider import handshake, logs
from outrider.costs import CostTable
from outrider.engine.batching import limits_of
from outrider.engine.block_draft import draft_of
from outrider.engine.calibrate import token_seconds
from outrider.engine.core_lock import CoreLock, NoCoreLock, shared_core_lock
from outrider.engine.cuda_driver import driver_advice
from outrider.engine.gguf_check import check_draft, check_gguf, is_head
from outrider.engine.host import EngineHost
from outrider.engine.hosting import HostOptions, Loaded
from outrider.engine.kernel_trial import DRAFT_ROWS, TARGET_ROWS, choose
from outrider.engine.layout import draft_layouts, open_quickly
from outrider.engine.measurements import Measurements
from outrider.engine.model import Model, ModelDescription, Numerics, Rollback
from outrider.engine.model_draft import ModelDraft
from outrider.engine.own_draft import OwnDraft
from outrider.engine.preparation import Prepared
from outrider.engine.reading import Reading
from outrider.engine.row_keeper import Keeping, RowKeeper
from outrider.engine.thread_choice import use_quickest
from outrider.engine.translating import needed_translation
from outrider.errors import DecodeFailed, InvalidConfig, VocabularyMismatch
from outrider.model_service.config import ModelConfig, read_tensor_split
from outrider.model_service.servicer import ModelService, describe_vocabulary
from outrider.rpc.server import Server, ServerConfig
from outrider.tasks import first_of
from outrider.threads import available_threads
from outrider.vocabularies import compare

if TYPE_CHECKING:
    from outrider.engine.llama import LlamaModel
    from outrider.engine.llama_loading import LlamaConfig

_LOADING_SECONDS = 2.0
_TRIAL_SECONDS = 60.0  # that a trial of kernels waits for others' decodes at most
SWITCH_SECONDS = 1e-4
"""Of the interpreter, after which a thread that waits for it gets it: the engine's wants it back
after each decode, and Python's 5 ms are several decodes of a small model, or a half on a GPU."""
_MOST_HELPERS = 4  # of sampling: of a row's time a sixth to a half needs the interpreter
_USER_COUNTS = (1, 2, 4, 8)  # for which the log says what they are promised

Servicer = TypeVar("Servicer", bound=ModelService)


class LoadingLog:
    """Logs one event when a load starts, and how far it is every two seconds."""

    def __init__(self, config: ModelConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._next_time: float | None = None

    def __call__(self, share: float) -> None:
        """Take note of the share that is loaded, in [0, 1]."""
        now = self._clock()
        if self._next_time is None:
            self._log_start()
        elif now < self._next_time:
            return
        elif share < 1.0:
            logs.event("outrider.engine", "loading", percent=int(100 * share))
        self._next_time = now + _LOADING_SECONDS

    def _log_start(self) -> None:
        from outrider.engine.llama_library import system_info

        config = self._config
        logs.starting(
            "outrider.engine",
            llama_cpp_python=version("llama-cpp-python"),
            system=system_info(),
            file=str(config.model),
            bytes=config.model.stat().st_size,
        )


def choose_kernels(config: ModelConfig, beside: Sequence[ModelConfig] = ()) -> None:
    """Compute with the kernels that are configured, or else with those that suit the files best.

    Before the first model of a process is loaded, and for all that the CPU computes: those `beside`
    it too. Raises InvalidConfig for kernels that are not there.
    """
    from outrider.engine.llama_library import cpu_plugins, library_state, offloads, use_kernels

    _warn_without_gpu(config)
    if config.cpu_kernels:
        use_kernels(config.cpu_kernels, "as configured")
    elif on_cpu := [one for one in (config, *beside) if one.n_gpu_layers == 0 or not offloads()]:
        files, threads = [one.model for one in on_cpu], on_cpu[0].threads or available_threads()
        rows = DRAFT_ROWS if on_cpu[0].is_draft else TARGET_ROWS
        core_lock = shared_core_lock(threads)

        def on_trial(path: Path) -> None:
            logs.event("outrider.engine", "trying AMX", file=str(path))
            core_lock.wait(_TRIAL_SECONDS)  # beside another's work everything looks slow

        try:
            choice = choose(files, rows, list(cpu_plugins()), threads, library_state(), on_trial)
        finally:
            core_lock.give()
        if choice is not None:
            use_kernels(choice.name, choice.reason)


def _warn_without_gpu(config: ModelConfig) -> None:
    """Log that the CPU computes, where this build would use a GPU and finds none."""
    from outrider.engine.llama_library import gpu_fault

    if config.n_gpu_layers < 0 and (fault := gpu_fault()):
        logs.warning("outrider.engine", "no GPU, so the CPU computes", detail=fault)


def load_llama(
    config: ModelConfig, chooses_kernels: bool = False, beside: Sequence[ModelConfig] = ()
) -> Callable[[], Model]:
    """Return a loader of the configured model; llama.cpp is imported when it is called.

    It may choose the kernels of the process first, as `choose_kernels` says. Raises InvalidConfig
    at once for a file that is no model; a draft may be a head in a file of its own.
    """
    head = check_draft(config.model).head if config.is_draft else check_gguf(config.model).head

    def load() -> Model:
        try:
            from outrider.engine.llama import LlamaModel
            from outrider.engine.llama_head_model import LlamaHeadModel
        except RuntimeError as error:  # of llama_cpp, where its library cannot be mapped
            advice = driver_advice(str(error))
            reason = f"llama.cpp does not start: {error}"
            raise InvalidConfig("model", f"{reason}; {advice}" if advice else reason) from None

        if chooses_kernels:
            choose_kernels(config, beside)
        kind = LlamaHeadModel if head is not None and head.is_alone else LlamaModel
        return kind(llama_config(config))

    return load


def llama_config(config: ModelConfig) -> LlamaConfig:
    """Return what the engine's loader is told of a configured model."""
    from outrider.engine.llama_loading import LlamaConfig

    return LlamaConfig(
        path=config.model,
        context=config.context,
        sequence_count=config.sessions,
        thread_count=config.threads,
        batch_thread_count=config.threads_batch,
        pad_multiple=4,
        batch_rows=config.batch,
        gpu_layers=config.n_gpu_layers,
        main_gpu=config.main_gpu,
        tensor_split=read_tensor_split(config.tensor_split),
        numa=config.numa,
        mmap=config.mmap,
        mlock=config.mlock,
        mtp=config.mtp,
        hidden_rows=config.hidden_rows,
        cache_type_k=config.cache_type_k,
        cache_type_v=config.cache_type_v,
        pool={"pool": True, "streams": False}.get(config.kv_cache),
        flash_attention={"on": True, "off": False}.get(config.flash_attention),
        full_window=config.swa_full or config.numerics == "exact",
        snapshots=config.snapshots,
        pins_threads=True,
        is_draft=config.is_draft,
        embeddings=config.embeddings,
        progress=LoadingLog(config),
    )


def numerics_of(config: ModelConfig, default: str) -> Numerics | None:
    """Return the numerics profile to run; None lets the costs decide."""
    asked = config.numerics or default
    return None if asked == "auto" else Numerics(asked)


def kept_measurements(config: ModelConfig, numerics: Numerics | None) -> Measurements:
    """Return where the measurements of a configured model are kept."""

    def library() -> str:
        from outrider.engine.llama_library import library_state

        return library_state()

    threads = config.threads or available_threads()
    settings = replace(config, model=Path(), alias="", threads=threads)
    return Measurements(repr((settings, numerics)), library)


def find_core_lock(config: ModelConfig, model: ModelDescription) -> CoreLock:
    """Return whom the engine takes turns with: nobody, where a GPU does the work."""
    if model.is_on_gpu:
        return NoCoreLock()
    return shared_core_lock(max(model.thread_count, config.threads_batch))


def count_helpers(config: ModelConfig, model: ModelDescription) -> int:
    """Return for how many sampling threads the model leaves a core each."""
    threads = 1 if model.is_on_gpu else max(model.thread_count, config.threads_batch)
    return min(_MOST_HELPERS, max(0, available_threads() - threads))


async def _load(host: EngineHost, server: Server) -> Loaded | None:
    """Return what the host has loaded, or None where the server is to stop before that."""
    loading = asyncio.ensure_future(asyncio.wrap_future(host.start()))
    stopping = asyncio.ensure_future(server.stop_requested.wait())
    both: list[asyncio.Future[Any]] = [loading, stopping]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    return loading.result() if loading.done() else None


def make_host(
    config: ModelConfig,
    options: HostOptions,
    load: Callable[[], Model] | None,
    draft: ModelConfig | None = None,
    same_vocabulary: bool = False,
    keeping: Keeping | None = None,
) -> EngineHost:
    """Return an engine for the configured model, or for what `load` makes instead of it.

    `draft` is what drafts in its thread; with `same_vocabulary` not if its ids are others. Without
    one it is the model's own head, where that is configured. `keeping` is how it keeps its rows.
    """
    load_draft: Callable[[Model], OwnDraft | None] | None = open_own_head if config.mtp else None
    beside: list[ModelConfig] = []  # models whose kernels are chosen with its own
    if draft is not None and is_head(draft.model):
        load_draft = partial(open_own_head, config=draft)
    elif draft is not None:
        load_draft, beside = own_draft_loader(draft, same_vocabulary), [draft]
    find = partial(find_core_lock, config)
    make_keeper = partial(open_keeper, keeping) if keeping is not None else None
    if load is not None:
        return EngineHost(load, options, find, None, load_draft, make_keeper)
    options = replace(options, count_helpers=partial(count_helpers, config))
    kept = kept_measurements(config, options.numerics)
    load = load_llama(config, True, beside)
    return EngineHost(load, options, find, kept, load_draft, make_keeper)


def open_keeper(keeping: Keeping, target: Model) -> RowKeeper:
    """Return what keeps the rows of a target. Raises InvalidConfig where it has none to keep."""
    from outrider.engine.llama import LlamaModel

    if not isinstance(target, LlamaModel):
        raise InvalidConfig("keep-rows", "this model keeps no rows")
    return RowKeeper(keeping, target.kept_source(), target)


def open_own_head(target: Model, config: ModelConfig | None = None) -> OwnDraft | None:
    """Return the head that a target was loaded with as its draft, or one in a file of its own.

    None for one that it cannot use, with a warning; without one where its file has none.
    """
    from outrider.engine.llama import LlamaModel

    if not isinstance(target, LlamaModel):
        return None
    fault = target.head_fault if config is None else ""
    if (config or target.has_head) and not fault:
        try:
            return load_own_head(target, config)()
        except (InvalidConfig, DecodeFailed) as error:
            fault = str(error)
    if fault:
        logs.warning("outrider.target", "head not used", detail=fault)
    return None


def load_own_head(target: LlamaModel, config: ModelConfig | None = None) -> Callable[[], OwnDraft]:
    """Load a target's head, in any thread; return what makes it the draft, in the engine's.

    That raises DecodeFailed where it computes nothing. Raises InvalidConfig for one that the target
    cannot use.
    """
    if target.describe().rollback is Rollback.RESTART:
        raise InvalidConfig("draft-model", "the target's memory cannot be rolled back")
    # One that is mapped would change, or end the process, once somebody writes over its file.
    file = llama_config(replace(config, mmap=bool(config.mmap))) if config is not None else None
    return partial(draft_of, target.open_head(file), target)


def own_draft_loader(
    config: ModelConfig, same_vocabulary: bool = False
) -> Callable[[Model], OwnDraft | None]:
    """Return what loads a target's own draft; one that does not fit is left out, with a warning.

    Raises InvalidConfig at once for a file that is no model.
    """
    load = load_llama(config)

    def load_beside(target: Model) -> OwnDraft | None:
        draft = load()
        try:
            for role, model in (("target", target), ("draft", draft)):
                if model.describe().rollback is Rollback.RESTART:
                    said = f"the {role}'s memory cannot be rolled back"
                    raise VocabularyMismatch(said, rule="memory")
            _check_own_vocabulary(target, draft, same_vocabulary)
        except VocabularyMismatch as error:
            logs.warning("outrider.target", "own draft refused", detail=str(error))
            draft.close()
            return None
        draft.pad_multiple = 1
        use_quickest(draft, token_seconds(draft, time.perf_counter))
        open_quickly(
            draft, time.perf_counter, draft_layouts(draft.describe().layouts, config.sessions)
        )
        return ModelDraft(draft, target=target)

    return load_beside


def _check_own_vocabulary(target: Model, draft: Model, same_vocabulary: bool) -> None:
    """Raise VocabularyMismatch where a draft's ids are others and cannot be, or must not."""
    vocabularies = [
        describe_vocabulary(model.describe().vocabulary, b"") for model in (target, draft)
    ]
    try:
        handshake.check_vocabularies(*vocabularies)
        handshake.check_names(target.token_names(), draft.token_names())
    except VocabularyMismatch:
        translation = needed_translation(draft, target)
        if same_vocabulary or translation is None or not translation.shared_count:
            raise
        differences = compare(translation).sentence()
        logs.event("outrider.target", "own draft translates", differences=differences)


def _milliseconds(seconds: dict[Any, float | None]) -> dict[Any, float]:
    """Return times for the log, without those that are not known."""
    return {name: round(1e3 * each, 2) for name, each in seconds.items() if each is not None}


def _preparation(model: Model, prepared: Prepared) -> dict[str, object]:
    """Return how a model runs and what that costs, for the log."""
    return {
        "numerics": prepared.numerics.value,
        "padding": model.pad_multiple,
        "layout": prepared.layout,
        **({"threads_chosen": prepared.threads} if prepared.threads else {}),
        "plain_ms": _milliseconds(asdict(prepared.plain)),
        "decode_ms": _milliseconds({each.rows: each.seconds for each in prepared.costs}),
        "prompt_beside": _promises(model, prepared),
        "measured": prepared.measured,
    }


def _promises(model: Model, prepared: Prepared) -> dict[int, dict[str, float]]:
    """Return what users are promised while another's prompt is read, by their number."""
    reading = Reading(CostTable(prepared.costs), limits_of(model.describe()), model.padded)
    promises = {count: reading.promise(count) for count in _USER_COUNTS}
    return {
        count: {"ms": round(1e3 * each.seconds, 2), "tokens": each.token_count}
        for count, each in promises.items()
    }


def _log_serving(name: str, address: str, loaded: Loaded) -> None:
    model = loaded.model.describe()
    logs.event(
        f"outrider.{name.lower()}",
        "serving",
        address=address,
        model=model.name,
        identity=model.identity.hex()[:8],
        description=model.description,
        context=model.context,
        sessions=model.sequence_count,
        threads=model.thread_count,
        nice=os.nice(0),
        kernels=model.kernels,
        **_preparation(loaded.model, loaded.prepared),
        load_seconds=round(loaded.seconds, 2),
        system=model.system_info,
    )


def _take_in_preparations(
    name: str, host: EngineHost, model: Model, servicer: ModelService
) -> None:
    """Let the service say, from then on, what the engine measures after the load."""
    loop = asyncio.get_running_loop()

    def note(prepared: Prepared) -> None:
        servicer.set_prepared(prepared)
        logs.event(f"outrider.{name.lower()}", "measured", **_preparation(model, prepared))

    def on_prepared(prepared: Prepared) -> None:
        with suppress(RuntimeError):  # the loop is closed: it stops
            loop.call_soon_threadsafe(note, prepared)

    host.on_prepared = on_prepared


async def run_model_service(
    name: str,
    server_config: ServerConfig,
    host: EngineHost,
    make_servicer: Callable[[EngineHost], Servicer],
    register: Callable[[Servicer, grpc.aio.Server], None],
    beside: Callable[[Servicer], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """Serve until SIGTERM, and from the load on do what `beside` says.

    Raises what the loader raises, after saying nothing but that.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    servicer = make_servicer(host)
    server = Server(server_config, f"outrider.v1.{name}Service")
    register(servicer, server.grpc)
    try:
        await server.start_service(name.lower())
        loaded = await _load(host, server)
        if loaded is not None:
            servicer.set_loaded(loaded)
            _take_in_preparations(name, host, loaded.model, servicer)
            await server.set_serving(True)
    except BaseException:
        await server.grpc.stop(None)
        raise
    if loaded is None:
        await server.grpc.stop(None)  # there is nothing to drain
        return
    _log_serving(name, server.address, loaded)

    async def stop() -> None:
        await asyncio.to_thread(host.stop)

    async def until_engine_dies() -> None:
        await asyncio.wrap_future(host.died)

    parts = [until_engine_dies(), server.run_until_stopped(stop)]
    if beside is not None:
        parts.append(beside(servicer))
    await first_of(*parts)
