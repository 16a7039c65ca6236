"""What an engine is given, and what it says of itself: bounds, what was loaded, counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from outrider.engine.core_lock import CoreLock
from outrider.engine.model import Model, ModelDescription, Numerics
from outrider.engine.own_draft import OwnDraft
from outrider.engine.preparation import Prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """Bounds of one engine."""

    numerics: Numerics | None  # None: exact where that is almost free; see `profile.choose`
    queue_limit: int = 64  # jobs that wait to start; more get Busy at once
    room_seconds: float = 1.0  # a job waits this long for a sequence, then gets Busy
    stream_idle_seconds: float = 1.0  # without work an open stream keeps its sequence, room or not
    idle_seconds: float = 600.0  # an idle session is forgotten after this
    modest_idle_seconds: float = 60.0  # and gives way to a modest job after this, if need be
    # Without a request before what is due is measured: after the load, and later.
    # Measuring takes the cores from everything else on the machine, and what is cached is lost.
    first_quiet_seconds: float = 1.0
    quiet_seconds: float = 120.0
    # Threads that sample beside the engine's, at most; called in that thread after the load.
    count_helpers: Callable[[ModelDescription], int] = lambda _: 0


@dataclass(frozen=True, slots=True)
class Loaded:
    """What is known once the model is loaded and warm."""

    model: Model
    prepared: Prepared
    seconds: float
    core_lock: CoreLock
    own_draft: OwnDraft | None = None
    """What drafts in the engine's own thread; None where the model has no such draft."""


@dataclass(slots=True)
class Counters:
    """What the engine did since it was loaded; written by its thread, read by anyone."""

    decodes: int = 0
    chunks: int = 0
    tokens: int = 0
    open_seconds: float = 0.0  # in which there was an open stream, up to its end or the last decode
    decode_seconds: float = 0.0  # of them, inside decodes
    counted: float = 0.0  # up to then `open_seconds` counts, while a stream is open
    decoding: int = 0  # tokens of the decode in flight

    def note_decode(self, begin: float, seconds: float, is_open: bool) -> None:
        """Count a decode; `is_open`: there is an open stream."""
        self.decodes += 1
        if is_open:
            self.decode_seconds += seconds
            self.count_open(begin + seconds, is_open)

    def embed(self, model: Model, token_ids: Sequence[int], is_open: bool) -> NDArray[np.float32]:
        """Return a model's embedding of a text, which it decodes at once."""
        begin, self.decoding = perf_counter(), len(token_ids)
        try:
            values = model.embed(token_ids)
        finally:
            self.decoding = 0
        self.note_decode(begin, perf_counter() - begin, is_open)
        self.chunks += 1
        self.tokens += len(token_ids)
        return values

    def count_open(self, now: float, is_open: bool) -> None:
        """Count the time until now, in which there was an open stream or none."""
        if is_open:
            self.open_seconds += now - self.counted
        self.counted = now
