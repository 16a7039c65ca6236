"""Finds out what a loaded model's decodes cost and which profile it runs.

Nobody waits for it: what has to be known before the first request is measured at once, and the
rest when the engine has nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter, process_time, sleep
from typing import Any

from outrider.costs import NO_REJECTION_COST, NOISE, Point, RejectionCost
from outrider.engine.calibrate import (
    PRICED,
    can_be_exact,
    decode_costs,
    exact_padding,
    quick_costs,
    rejection_cost,
    token_seconds,
    warm_up,
    was_disturbed,
    with_slopes,
)
from outrider.engine.core_lock import CoreLock
from outrider.engine.layout import (
    LayoutSeconds,
    candidates,
    choose_layout,
    describe_layout,
    measure_layouts,
    open_quickly,
)
from outrider.engine.measurements import MeasuredModel, Measurements
from outrider.engine.model import Chunk, Model, NoRoom, Numerics, Row
from outrider.engine.profile import Costs, PlainCosts, choose, padded_costs, plain_costs
from outrider.engine.thread_choice import describe_threads, use_quickest
from outrider.errors import DecodeFailed
from outrider.trees import MAX_LEAVES

_LOCK_SECONDS = 60.0
_LOOK_SECONDS = 0.5  # between two looks whether others use the cores
_MOST_LOOKS = 5  # at a few decodes, before a start that is soon over takes what was seen

SOON = "soon"
"""Instead of a day: costs are rough until nobody waits."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """How a model runs, and what that costs."""

    numerics: Numerics
    costs: Costs
    """Of the profile that runs."""
    plain: PlainCosts
    layout: str
    """How the cache is laid out, and what was measured of the other layouts; for people."""
    is_rough: bool
    """Whether the costs were looked at in passing, or beside others' work: they may be too high."""
    measured: str
    """The day on which costs and numerics were measured, `now` or `soon`."""
    tree_leaves: int = 0
    """Leaves that a tree of draft tokens may have; 0: chains alone are verified."""
    rejection: RejectionCost = NO_REJECTION_COST
    """What taking back draft tokens costs, beside decodes."""
    threads: str = ""
    """How many compute it and why, for people; empty where there was no choice."""


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
        self._known: MeasuredModel | None = None  # costs of which may be rough, or too high
        self._has_padding = False  # whether `_known` has the padding too, as far as it is wanted
        self._rejection = NO_REJECTION_COST
        self._token_seconds: Mapping[int, float] = {}  # by threads; empty without a choice
        self.is_due = False
        """Whether to call `measure` once nobody waits."""

    def begin(self) -> Prepared:
        """Warm up, find or measure what has to be known now, and return what that is."""
        self._model.pad_multiple = 1
        warm_up(self._model)
        if self._model.describe().rollback in PRICED:
            with self._turn():
                self._rejection = rejection_cost(self._model, perf_counter)
        kept = self._measurements.find(self._model.describe()) if self._measurements else None
        self._choose_threads(kept)
        if kept is not None:
            self._know(kept)
        elif self._measurements is None or self._wanted is Numerics.EXACT:
            with self._turn():
                self._measure(self._model)
        else:
            rough = MeasuredModel(None, self._open_quickly(), True, day=SOON)
            self._know(rough, has_padding=self._wanted is Numerics.NATIVE)
        assert self._known is not None
        self.is_due = self._known.is_disturbed and self._measurements is not None
        return self._run()

    def _choose_threads(self, kept: MeasuredModel | None) -> None:
        """Compute with the number of threads that was quickest, or is, where nobody knows."""
        if kept is not None:
            self._token_seconds = kept.token_seconds
        elif len(self._model.describe().thread_choices) > 1:
            with self._turn():
                self._token_seconds = token_seconds(self._model, perf_counter)
        use_quickest(self._model, self._token_seconds)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Take the cores: beside another's work everything looks expensive."""
        self._core_lock.wait(_LOCK_SECONDS)
        try:
            yield
        finally:
            self._core_lock.give()

    def _open_quickly(self) -> Costs:
        """Open streams as a few decodes after a text say; return roughly what decodes cost."""
        layouts = candidates(self._model.describe().layouts, 1)
        with self._turn():
            others = _Others(self._core_lock, self._model)
            look = open_quickly(self._model, perf_counter, layouts)
            is_alone = not others.work()
        costs = self._rough_costs()
        return with_slopes(costs, *look) if is_alone else costs

    def _rough_costs(self) -> list[Point]:
        """Look at a few decodes until another look is hardly quicker, and nobody else works.

        The first ones after a load are slow, and others, such as a draft that loads, may work.
        """
        quickest: dict[int, Point] = {}
        for _ in range(_MOST_LOOKS):
            with self._turn():
                others = _Others(self._core_lock, self._model)
                look = quick_costs(self._model, perf_counter)
                is_alone = not others.work()
            before = quickest.get(look[0].rows)
            for each in look:
                known = quickest.get(each.rows, each)
                quickest[each.rows] = min(each, known, key=lambda point: point.seconds)
            if not is_alone:
                sleep(_LOOK_SECONDS)
            elif before and look[0].seconds > (1.0 - NOISE) * before.seconds:
                break
        return [quickest[rows] for rows in sorted(quickest)]

    def measure(
        self, look: Callable[[], None], empty: Callable[[], None], gives_way: Callable[[], bool]
    ) -> Prepared | None:
        """Measure what is due, unless it `gives_way` before a decode: then return None.

        So it does while others use the cores, whom it would slow down, and be slowed down by.
        Whether they do is seen in decodes, so it takes a `look` first, which decodes where nothing
        is lost by it. Only then it lets the caller `empty` all sequences, and leaves them empty.
        """
        if not self._core_lock.try_take():
            return None
        try:
            if not self._finds_quiet(look, gives_way):
                return None
            empty()
            if not self._measure_or_yield(gives_way):
                return None
        finally:
            self._core_lock.give()
        self.is_due = False
        return self._run()

    def _finds_quiet(self, look: Callable[[], None], gives_way: Callable[[], bool]) -> bool:
        """Return whether nobody asks for anything and no other process uses the cores for now."""
        others = _Others(self._core_lock, self._model)
        end = perf_counter() + _LOOK_SECONDS if others.can_be_seen else 0.0
        while perf_counter() < end:
            if gives_way():
                return False
            try:
                look()
            except (NoRoom, DecodeFailed):
                return False
        return not others.work()

    def _measure_or_yield(self, gives_way: Callable[[], bool]) -> bool:
        multiple, layout = self._model.pad_multiple, self._model.describe().layout
        others = _Others(self._core_lock, self._model)
        try:
            self._measure(_Yielding(self._model, lambda: gives_way() or others.work(_LOOK_SECONDS)))
        except _GaveWay:
            self._model.open(layout)
            self._model.pad_multiple = multiple
            return False
        return True

    def _know(self, measured: MeasuredModel, has_padding: bool = True) -> None:
        self._known, self._has_padding = measured, has_padding

    def _measure(self, model: Model) -> None:
        """Find the padding of `exact` if it may run and is not known, and what decodes cost."""
        padding = self._known.padding if self._known else None
        description = model.describe()
        if description.layout != description.layouts[0]:
            model.open(description.layouts[0])
            description = model.describe()
        looks = not self._has_padding and self._wanted is not Numerics.NATIVE
        if looks and can_be_exact(description):
            padding = exact_padding(model)
            if self._known is not None:  # to be found once, should the costs give way
                self._know(replace(self._known, padding=padding))
        model.pad_multiple = 1
        others = _Others(self._core_lock, model)
        costs = decode_costs(model, perf_counter)
        layouts: Sequence[LayoutSeconds] = ()
        if self._wanted is not Numerics.EXACT:
            layouts = measure_layouts(model, perf_counter)
        disturbed = others.work()
        if disturbed:  # that may have met any of them
            layouts = ()
        chosen_costs: Costs = ()
        if layouts and choose_layout(layouts) != description.layout:
            model.open(choose_layout(layouts))
            chosen_costs = decode_costs(model, perf_counter)
            disturbed = others.work()
        tokens = self._token_seconds
        self._know(MeasuredModel(padding, costs, disturbed, layouts, chosen_costs, tokens))
        if self._measurements is not None:
            assert self._known is not None
            self._measurements.keep(description, self._known)

    def _run(self) -> Prepared:
        """Open the cache and pad as the profile wants; return how it runs."""
        assert self._known is not None
        known, padding = self._known, self._known.padding
        plain = plain_costs(known.costs, padding, known.chosen_costs)
        profile = choose(self._wanted, plain)
        description = self._model.describe()
        layouts = description.layouts
        if profile is Numerics.EXACT and padding:
            layout, costs = layouts[0], padded_costs(known.costs, padding)
        else:
            layout = choose_layout(known.layouts) if known.layouts else description.layout
            costs = known.chosen_costs or known.costs
        self._model.pad_multiple = padding if profile is Numerics.EXACT and padding else 1
        if layout != description.layout:
            self._model.open(layout)
        words = describe_layout(layout, known.layouts)
        day = known.day or "now"
        branches = self._model.describe().branch_sequences if profile is Numerics.NATIVE else ()
        leaves = min(MAX_LEAVES, 1 + len(branches)) if branches else 0
        is_rough, price = known.is_disturbed, self._rejection
        threads = describe_threads(description, self._token_seconds)
        return Prepared(profile, costs, plain, words, is_rough, day, leaves, price, threads)


class _Others:
    """Looks whether other processes use the cores while we decode."""

    def __init__(self, core_lock: CoreLock, model: Model) -> None:
        # 0 where a GPU decodes, or the cores are not known: then nobody can be seen.
        self._thread_count = model.describe().thread_count if core_lock.core_count else 0
        self._time, self._work = perf_counter(), process_time()  # when it looked last

    @property
    def can_be_seen(self) -> bool:
        """Whether a look can find others at work."""
        return self._thread_count > 0

    def work(self, least_seconds: float = 0.0) -> bool:
        """Return whether they did since the last look, if that is long ago enough."""
        seconds, work = perf_counter() - self._time, process_time() - self._work
        if not self._thread_count or seconds < least_seconds:
            return False
        self._time, self._work = perf_counter(), process_time()
        return was_disturbed(seconds, work, self._thread_count)


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
