"""Finds out what a loaded model's decodes cost and which profile it runs.

Nobody waits for it: what has to be known before the first request is measured at once, and the
rest when the engine has nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter, process_time
from typing import Any

from outrider.engine.calibrate import (
    decode_costs,
    exact_padding,
    quick_costs,
    warm_up,
    was_disturbed,
)
from outrider.engine.core_lock import CoreLock
from outrider.engine.measurements import Measured, Measurements
from outrider.engine.model import Chunk, Model, Numerics, Row
from outrider.engine.profile import Costs, PlainCosts, choose, padded_costs, plain_costs

_LOCK_SECONDS = 60.0

SOON = "soon"
"""Instead of a day: costs are rough until nobody waits."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """How a model runs, and what that costs."""

    numerics: Numerics
    costs: Costs
    """Of the profile that runs."""
    plain: PlainCosts
    measured: str
    """The day on which costs and numerics were measured, `now` or `soon`."""


class _GaveWay(Exception):
    """There is work to do; measuring can wait."""


class Preparation:
    """Measures one model under one set of options. The engine's thread calls it."""

    def __init__(
        self,
        model: Model,
        numerics: Numerics | None,
        measurements: Measurements | None,
        core_lock: CoreLock,
    ) -> None:
        self._model = model
        self._wanted = numerics  # None: exact where that is almost free
        self._measurements = measurements  # None: they are kept nowhere, so every start measures
        self._core_lock = core_lock
        self._known: Measured | None = None  # costs of which may be rough, or too high
        self._has_padding = False  # whether `_known` has the padding too, as far as it is wanted
        self.is_due = False
        """Whether to call `measure` once nobody waits."""

    def begin(self) -> Prepared:
        """Warm up, find or measure what has to be known now, and return what that is."""
        self._model.pad_multiple = 1
        warm_up(self._model)
        kept = self._measurements.find(self._model.describe()) if self._measurements else None
        if kept is not None:
            self._know(kept)
        elif self._measurements is None or self._wanted is Numerics.EXACT:
            self._core_lock.wait(_LOCK_SECONDS)  # beside another's work everything looks expensive
            try:
                self._measure(self._model)
            finally:
                self._core_lock.give()
        else:
            rough = Measured(None, quick_costs(self._model, perf_counter), True, SOON)
            self._know(rough, has_padding=self._wanted is Numerics.NATIVE)
        assert self._known is not None
        self.is_due = self._known.is_disturbed and self._measurements is not None
        return self._run()

    def measure(self, gives_way: Callable[[], bool]) -> Prepared | None:
        """Measure what is due, unless it `gives_way` before a decode: then return None.

        So it does while others have the cores. All sequences have to be empty, and are afterwards.
        """
        if self._core_lock.take(perf_counter()):
            return None
        multiple = self._model.pad_multiple
        try:
            self._measure(_Yielding(self._model, gives_way))
        except _GaveWay:
            for sequence in range(self._model.describe().sequence_count):
                self._model.truncate(sequence, 0)
            self._model.pad_multiple = multiple
            return None
        finally:
            self._core_lock.give()
        self.is_due = False
        return self._run()

    def _know(self, measured: Measured, has_padding: bool = True) -> None:
        self._known, self._has_padding = measured, has_padding

    def _measure(self, model: Model) -> None:
        """Find the padding of `exact` if it may run and is not known, and what decodes cost."""
        padding = self._known.padding if self._known else None
        is_pool = model.describe().layout.is_pool  # where bits depend on what others hold
        if not self._has_padding and self._wanted is not Numerics.NATIVE and not is_pool:
            padding = exact_padding(model)
            if self._known is not None:  # to be found once, should the costs give way
                self._know(replace(self._known, padding=padding))
        model.pad_multiple = 1
        begin, work = perf_counter(), process_time()
        costs = decode_costs(model, perf_counter)
        seconds, work = perf_counter() - begin, process_time() - work
        threads = model.describe().thread_count
        self._know(Measured(padding, costs, was_disturbed(seconds, work, threads)))
        if self._measurements is not None:
            assert self._known is not None
            self._measurements.keep(model.describe(), self._known)

    def _run(self) -> Prepared:
        """Pad as the profile wants; return how it runs."""
        assert self._known is not None
        known, padding = self._known, self._known.padding
        plain = plain_costs(known.costs, padding)
        profile = choose(self._wanted, plain)
        costs: Costs = known.costs
        self._model.pad_multiple = 1
        if profile is Numerics.EXACT and padding:
            self._model.pad_multiple = padding
            costs = padded_costs(costs, padding)
        return Prepared(profile, costs, plain, known.day or "now")


class _Yielding:
    """A model that raises _GaveWay instead of decoding once it is to give way."""

    def __init__(self, model: Model, gives_way: Callable[[], bool]) -> None:
        self._model = model
        self._gives_way = gives_way

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    @property
    def pad_multiple(self) -> int:
        return self._model.pad_multiple

    @pad_multiple.setter
    def pad_multiple(self, multiple: int) -> None:
        self._model.pad_multiple = multiple

    def decode(self, chunks: Sequence[Chunk]) -> list[list[Row]]:
        if self._gives_way():
            raise _GaveWay
        return self._model.decode(chunks)
