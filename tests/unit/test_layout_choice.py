"""Which layout a cache gets, by what reading and writing take in each."""

from __future__ import annotations

import itertools

import pytest

from outrider.engine.layout import (
    LayoutSeconds,
    candidates,
    choose_layout,
    describe_layout,
    measure_layouts,
    relative_seconds,
)
from outrider.engine.model import Layout
from tests.support.toy import ToyModel

STREAMS, FLASH = Layout(), Layout(flash_attention=True)
POOL, POOL_FLASH = Layout(is_pool=True), Layout(is_pool=True, flash_attention=True)
ALL = (STREAMS, FLASH, POOL, POOL_FLASH)


def of(layout: Layout, reading: float, writing: float) -> LayoutSeconds:
    return LayoutSeconds(layout, [reading, reading], [writing, writing])


def test_the_layout_that_takes_the_least_time_is_chosen() -> None:
    measured = [of(STREAMS, 1.0, 1.0), of(FLASH, 0.9, 1.1), of(POOL_FLASH, 0.9, 0.8)]
    assert choose_layout(measured) == POOL_FLASH


def test_writing_weighs_twice_as_much_as_reading() -> None:
    # Flash attention on a processor that reads faster and writes slower with it.
    measured = [of(STREAMS, 1.0, 1.0), of(FLASH, 0.7, 1.4)]
    assert choose_layout(measured) == STREAMS
    assert choose_layout([of(STREAMS, 1.0, 1.0), of(FLASH, 1.3, 0.8)]) == FLASH
    assert relative_seconds(of(FLASH, 0.5, 1.0), measured[0]) == pytest.approx(0.5 ** (1 / 3))


def test_what_may_be_noise_leaves_what_llama_cpp_takes_by_itself() -> None:
    assert choose_layout([of(STREAMS, 1.0, 1.0), of(POOL, 0.97, 0.97)]) == STREAMS
    for flash in (0.96, 1.04):
        assert choose_layout([of(STREAMS, 1.0, 1.0), of(FLASH, flash, flash)]) == FLASH
    assert choose_layout([of(STREAMS, 1.0, 1.0), of(FLASH, 1.06, 1.06)]) == STREAMS


def test_what_is_slow_after_a_long_text_counts_as_much_as_after_a_short_one() -> None:
    first = LayoutSeconds(STREAMS, [1.0, 1.0], [1.0, 1.0])
    assert choose_layout([first, LayoutSeconds(FLASH, [1.0, 1.0], [0.7, 2.0])]) == STREAMS


def test_a_pool_is_no_candidate_for_one_session_unless_it_is_asked_for() -> None:
    assert candidates(ALL, sessions=1) == [STREAMS, FLASH]
    assert candidates(ALL, sessions=2) == list(ALL)
    assert candidates((POOL, POOL_FLASH), sessions=1) == [POOL, POOL_FLASH]


def test_the_reason_names_what_was_measured() -> None:
    measured = [of(STREAMS, 1.0, 1.0), of(FLASH, 0.5, 2.0)]
    words = "streams; times of streams: streams with flash attention 1.26 (reads 0.50, writes 2.00)"
    assert describe_layout(STREAMS, measured) == words
    assert describe_layout(POOL, []) == "pool"


@pytest.mark.parametrize("fastest", ALL)
def test_the_layout_that_is_measured_to_be_fastest_is_chosen(fastest: Layout) -> None:
    slower = {layout: 0.002 for layout in ALL if layout != fastest}
    model = ToyModel(sequence_count=3, layouts=ALL, keeps_decodes=False)
    ticks = itertools.count()
    real = model.decode

    def clock() -> float:
        return next(ticks) * 1e-6 + sum(spent)

    spent: list[float] = []

    def decode(chunks):  # type: ignore[no-untyped-def]
        spent.append(0.001 + slower.get(model.layout, 0.0))
        return real(chunks)

    model.decode = decode  # type: ignore[method-assign]
    measured = measure_layouts(model, clock, [5] * 200)
    assert [each.layout for each in measured] == list(ALL)
    assert choose_layout(measured) == fastest
    assert not any(map(model.held, range(model.describe().sequence_count)))


def test_a_context_too_small_to_see_a_difference_leaves_the_first_layout() -> None:
    model = ToyModel(context=64, layouts=ALL)
    assert list(measure_layouts(model, itertools.count().__next__, [5] * 64)) == []
