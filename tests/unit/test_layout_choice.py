"""Which layout a cache gets, by what typical requests take in each."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from outrider.engine.layout import (
    PROMPT,
    TEXT,
    TURN,
    WRITTEN,
    Decodes,
    LayoutSeconds,
    candidates,
    choose_layout,
    describe_layout,
    draft_layouts,
    measure_layouts,
    open_quickly,
    relative_seconds,
    request_seconds,
)
from outrider.engine.model import Layout, ModelDescription
from tests.support.toy import ToyModel

STREAMS, FLASH = Layout(), Layout(flash_attention=True)
POOL, POOL_FLASH = Layout(is_pool=True), Layout(is_pool=True, flash_attention=True)
ALL = (STREAMS, FLASH, POOL, POOL_FLASH)


def seconds(layout: Layout, *milliseconds: float, sessions: int = 1) -> LayoutSeconds:
    """Return what requests take where decodes take this: the third one reads 64 rows."""
    token, verify, read, *together = (each / 1e3 for each in milliseconds)
    decodes = Decodes(token, verify, read / 64, *together)
    return LayoutSeconds(layout, request_seconds(decodes, sessions))


# --- tables of processors: milliseconds after a text of 1,024 tokens, or about as many ---


def test_an_intel_cpu_with_amx_gets_no_flash_attention() -> None:
    # A prompt of 1,400 takes 12.0 s without it and 10.3 with it: 64 rows of it 549 and 471 ms.
    measured = [seconds(STREAMS, 42, 86, 549), seconds(FLASH, 80, 235, 471)]
    assert choose_layout(measured) == STREAMS
    assert relative_seconds(measured[1], measured[0]) > 1.3


def test_an_intel_cpu_without_amx_gets_no_flash_attention_although_it_reads_sooner() -> None:
    measured = [seconds(STREAMS, 68, 90, 928), seconds(FLASH, 95, 130, 736)]
    assert choose_layout(measured) == STREAMS


def test_flash_attention_that_is_sooner_in_everything_is_taken() -> None:
    without, flash = (46, 94, 535), (40, 84, 468)
    for layouts in ((STREAMS, FLASH), (FLASH, STREAMS)):
        its = {STREAMS: without, FLASH: flash}
        assert choose_layout([seconds(each, *its[each]) for each in layouts]) == FLASH


def test_a_pool_whose_single_user_pays_for_the_others_has_to_gain_more_with_several() -> None:
    # Four sessions on a Zen 4: one row takes 22 ms in streams and 33 in a pool in which the others
    # hold as much; 4, 2, 1 and 1 rows take 139 and 114.
    streams = seconds(FLASH, 22, 56, 320, 56, 139, sessions=4)
    assert choose_layout([streams, seconds(POOL_FLASH, 33, 70, 320, 62, 114, sessions=4)]) == FLASH
    cheaper = seconds(POOL_FLASH, 22, 56, 320, 45, 80, sessions=4)
    assert choose_layout([streams, cheaper]) == POOL_FLASH


def test_a_request_takes_what_its_decodes_take() -> None:
    assert request_seconds(Decodes(0.01, 0.02, 0.001)) == [
        pytest.approx(0.001 * PROMPT + WRITTEN / 2 * (0.01 + 0.02 / (1 + 0.6 + 0.36 + 0.216)))
    ]
    _, users = request_seconds(Decodes(0.01, 0.02, 0.001, 0.03, 0.06), sessions=2)
    written = (1 + 0.6 + 0.36 + 0.216 + 1 + 0.6) / 2  # of each, by four rows and two
    assert users == pytest.approx(2 * 0.001 * TURN + WRITTEN / 2 * (0.03 + 0.06 / written))


# --- the choice ---


def of(layout: Layout, *requests: float) -> LayoutSeconds:
    return LayoutSeconds(layout, requests)


def test_every_kind_of_request_counts_as_much_as_the_others() -> None:
    measured = [of(FLASH, 1.0, 100.0), of(STREAMS, 0.5, 150.0)]
    assert choose_layout(measured) == STREAMS
    assert relative_seconds(measured[1], measured[0]) == pytest.approx(0.75**0.5)


def test_what_may_be_noise_leaves_what_llama_cpp_takes_by_itself() -> None:
    assert choose_layout([of(STREAMS, 1.0), of(POOL, 0.97)]) == STREAMS
    for flash in (0.96, 1.04):
        assert choose_layout([of(STREAMS, 1.0), of(FLASH, flash)]) == FLASH
    assert choose_layout([of(STREAMS, 1.0), of(FLASH, 1.06)]) == STREAMS


def test_a_pool_is_no_candidate_for_one_session_unless_it_is_asked_for() -> None:
    assert candidates(ALL, sessions=1) == [STREAMS, FLASH]
    assert candidates(ALL, sessions=2) == list(ALL)
    assert candidates((POOL, POOL_FLASH), sessions=1) == [POOL, POOL_FLASH]


def test_a_draft_of_several_sessions_has_a_pool_where_it_can() -> None:
    assert draft_layouts(ALL, 1) == [STREAMS, FLASH]
    assert draft_layouts(ALL, 2) == [POOL, POOL_FLASH]
    assert draft_layouts((STREAMS, FLASH), 2) == [STREAMS, FLASH]


def test_the_reason_names_the_seconds_of_requests() -> None:
    measured = [of(STREAMS, 12.34, 40.0), of(FLASH, 20.0, 101.2)]
    assert describe_layout(STREAMS, measured) == (
        "streams; expected seconds of a long prompt, several users: streams 12.3, 40; "
        "streams with flash attention 20, 101"
    )
    assert describe_layout(POOL, []) == "pool"


# --- measuring ---


class Timed(ToyModel):
    """A toy of which decodes take what `seconds_of` says, on its own clock."""

    now = 0.0

    def clock(self) -> float:
        return self.now

    def seconds_of(self, position: int) -> float:
        raise NotImplementedError

    def decode(self, chunks):  # type: ignore[no-untyped-def]
        self.now += self.seconds_of(chunks[0].position)
        return super().decode(chunks)

    def leaves_nothing(self) -> bool:
        return not any(map(self.held, range(self.describe().sequence_count)))


@pytest.mark.parametrize("repeats_cells", [True, False])
@pytest.mark.parametrize("fastest", ALL)
def test_the_layout_that_is_measured_to_be_fastest_is_chosen(
    fastest: Layout, repeats_cells: bool
) -> None:
    class Toy(Timed):
        def seconds_of(self, position: int) -> float:
            return 0.001 if self.layout == fastest else 0.003

    model = Toy(sequence_count=3, layouts=ALL, keeps_decodes=False, repeats_cells=repeats_cells)
    measured = measure_layouts(model, model.clock)
    assert [each.layout for each in measured] == list(ALL)
    assert choose_layout(measured) == fastest
    assert model.leaves_nothing() and model.layout == STREAMS


class SlowAfterText(Timed):
    """A toy whose flash attention is sooner after nothing and slower after a text."""

    def seconds_of(self, position: int) -> float:
        by_token = 2e-6 if self.layout.flash_attention else 1e-7
        return (0.001 if self.layout.flash_attention else 0.0012) + by_token * position


def test_what_is_slow_after_a_long_text_alone_is_not_taken() -> None:
    model = SlowAfterText(layouts=(STREAMS, FLASH), context=4096, sequence_count=1)
    measured = measure_layouts(model, model.clock)
    assert choose_layout(measured) == STREAMS
    assert sum(each.token_count for each in model.decodes) < 2000, "cells are not read"


def test_a_context_too_small_to_see_a_difference_leaves_the_first_layout() -> None:
    model = ToyModel(context=64, layouts=ALL)
    assert list(measure_layouts(model, itertools.count().__next__)) == []


def test_decodes_of_few_rows_can_be_measured() -> None:
    model = ToyModel(context=512, batch_rows=32, layouts=(STREAMS, FLASH), pad_multiple=1)
    assert len(measure_layouts(model, itertools.count().__next__)) == 2


def test_one_context_for_all_sessions_of_a_pool_is_enough_to_measure() -> None:
    model = ToyModel(context=1024, sequence_count=1, layouts=(POOL, POOL_FLASH))
    measured = measure_layouts(model, itertools.count().__next__)
    assert [each.layout for each in measured] == [POOL, POOL_FLASH]


@pytest.mark.parametrize("layouts", [(STREAMS, FLASH), (POOL, POOL_FLASH)])
def test_a_start_looks_at_what_a_text_costs(layouts: tuple[Layout, ...]) -> None:
    model = SlowAfterText(layouts=layouts, context=4096)
    look = open_quickly(model, model.clock, layouts)
    assert model.layout == layouts[0] and model.leaves_nothing()
    assert look.token_count > 500
    assert look.seconds == pytest.approx({1: model.seconds_of(TEXT), 4: model.seconds_of(TEXT)})
    assert model.decode_count < 12


def test_a_start_takes_what_llama_cpp_does_where_a_text_shows_no_clear_difference() -> None:
    class Toy(Timed):
        def seconds_of(self, position: int) -> float:
            return 0.00102 if self.layout.flash_attention else 0.001

    model = Toy(layouts=(STREAMS, FLASH), context=4096)
    assert open_quickly(model, model.clock, model.layouts).seconds
    assert model.layout == FLASH


def test_a_start_on_a_gpu_takes_what_llama_cpp_does_at_once() -> None:
    class OnGpu(SlowAfterText):
        def describe(self) -> ModelDescription:
            return replace(super().describe(), is_on_gpu=True)

    model = OnGpu(layouts=(STREAMS, FLASH), context=4096)
    assert not open_quickly(model, model.clock, model.layouts).seconds
    assert model.layout == FLASH and model.decode_count == 0


def test_a_start_that_cannot_repeat_cells_takes_what_llama_cpp_does() -> None:
    model = SlowAfterText(layouts=(STREAMS, FLASH), repeats_cells=False)
    assert not open_quickly(model, model.clock, model.layouts).seconds
    assert model.layout == FLASH and model.leaves_nothing()
    assert model.decode_count == 1
