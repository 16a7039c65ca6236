"""When the next frame of a draft is due, and what its frames say of how fast and far it is."""

from __future__ import annotations

import pytest

from outrider.core.expected_frames import ExpectedFrames
from outrider.core.rates import DraftRates, Mean


def draft(latency: float = 0.010, token_time: float = 0.005) -> DraftRates:
    return DraftRates(latency=Mean(latency), token_time=Mean(token_time))


def frame(
    frames: ExpectedFrames,
    its: DraftRates,
    now: float,
    base: int,
    seconds: float = 0.010,
    waited: float = 0.0,
) -> None:
    """Bring the first frame of a base, of two tokens."""
    frames.note_frame(its, now, base, 2, seconds, waited, True)


def test_a_frame_is_due_after_the_way_and_its_tokens() -> None:
    frames, its = ExpectedFrames(), draft()
    frames.note_order(its, 1.0, 5, size=2, reading=0)
    assert frames.due == pytest.approx(1.0 + 0.010 + 2 * 0.005)
    frames.note_order(its, 7.0, 6, size=2, reading=0)
    assert frames.due < 7.0, "the older order is answered first"
    its.loaded_token_time = 0.005
    frame(frames, its, 2.0, 5)
    assert frames.due == pytest.approx(2.0 + 2 * its.token_time.value)


def test_the_first_frame_of_a_base_says_how_far_the_draft_is() -> None:
    frames, its = ExpectedFrames(), draft(latency=0.020)
    frames.note_order(its, 1.0, 5, size=2, reading=0)
    frame(frames, its, 1.0 + 0.030, 5, seconds=0.010)
    assert its.latency.value == pytest.approx(0.020)
    frame(frames, its, 1.0 + 0.020, 5, seconds=0.010)
    assert its.latency.value < 0.020


def test_what_is_no_answer_to_an_order_says_nothing_of_the_way() -> None:
    frames, its = ExpectedFrames(), draft()
    frames.note_order(its, 1.0, 5, size=2, reading=0)
    frame(frames, its, 3.0, 4)
    assert its.latency.value == 0.010


def test_waiting_for_its_turn_is_no_part_of_the_way() -> None:
    frames, its = ExpectedFrames(), draft(latency=0.020)
    frames.note_order(its, 1.0, 5, size=2, reading=0)
    frame(frames, its, 1.0 + 0.130, 5, seconds=0.010, waited=0.100)
    assert its.latency.value == pytest.approx(0.020)


def test_a_line_that_is_lost_is_expected_from_the_next_order_on() -> None:
    frames, its = ExpectedFrames(), draft()
    frames.note_order(its, 1.0, 5, size=2, reading=0)
    frames.note_order(its, 2.0, 9, size=2, reading=0)
    frames.line_lost(its, 7)
    assert frames.due == pytest.approx(2.0 + 0.010 + 2 * 0.005)


def test_what_is_read_before_the_first_token_is_not_taken_for_drafting() -> None:
    frames, its = ExpectedFrames(), draft()
    its.loaded_token_time = 0.005
    its.read_time.note(0.001)
    frames.note_order(its, 1.0, 101, size=2, reading=101)
    frame(frames, its, 1.2, 101, seconds=0.110)
    assert its.token_time.value == pytest.approx(0.005)
    assert its.read_time.value == pytest.approx(0.001)


def test_the_first_frame_of_a_stream_says_only_that_a_draft_is_better_than_was_thought() -> None:
    frames, its = ExpectedFrames(), draft(latency=1.0, token_time=0.1)
    its.loaded_token_time = 0.005
    for _ in range(2):  # of which the second is no news
        frames.note_order(its, 1.0, 5, size=2, reading=5)
        frames.note_better(its, 1.0 + 0.030, 5, 2, 0.010, 0.0)
        assert its.latency.value == pytest.approx(0.020)
        assert its.token_time.value == pytest.approx(0.005)
        frames.note_better(its, 3.0, 5, 2, 1.0, 0.0)  # it read a prompt, perhaps
    assert its.latency.value == pytest.approx(0.020)
    assert its.token_time.value == pytest.approx(0.005)


def test_texts_that_were_cached_do_not_make_others_look_like_slow_tokens() -> None:
    """What reading takes was once thought to be next to nothing, for good; each text that was read
    then made the draft's tokens look slower, until it was not used any more."""
    its = draft()
    its.loaded_token_time, its.read_time = 0.005, Mean(0.001)
    for seconds, count in ((0.01, 200), (1.01, 60)):  # cached, then read
        for _ in range(count):
            frames = ExpectedFrames()
            frames.note_order(its, 1.0, 1001, size=2, reading=1001)
            frame(frames, its, 3.0, 1001, seconds=seconds)
            assert its.read_time.value < 0.0011
            assert its.token_time.value < 0.0055
    assert its.read_time.value == pytest.approx(0.001, rel=0.1)


def test_one_slow_frame_does_not_make_a_draft_look_hopeless_and_several_do() -> None:
    its = draft(token_time=0.002)
    its.loaded_token_time = 0.002
    for i, most in enumerate((0.004, 0.006)):
        frames = ExpectedFrames()
        frames.note_order(its, 1.0 + i, 80, size=3, reading=1)
        frame(frames, its, 1.5 + i, 80, seconds=0.3)
        assert its.token_time.value == pytest.approx(most)
    for i in range(12):
        frames.note_frame(its, 2.5 + i, 80, 3, 0.3, 0.0, False)
    assert its.token_time.value > 0.03
