"""The line as the orchestrator received it, where frames come late or not at all."""

from __future__ import annotations

from outrider.core.draft_line import ReceivedLine
from outrider.messages import Frame


def frame(base: int, position: int, *token_ids: int) -> Frame:
    return Frame(
        base=base, position=position, token_ids=token_ids, confidences=bytes(len(token_ids))
    )


def test_what_follows_a_lost_frame_stands_on_its_own() -> None:
    line = ReceivedLine()
    line.add(frame(3, 5, 9, 9), [1, 2, 3, 4, 5])
    assert (line.start, line.token_ids) == (5, [9, 9])


def test_a_late_frame_that_agrees_changes_nothing() -> None:
    line = ReceivedLine()
    line.add(frame(3, 5, 9, 9), [1, 2, 3, 4, 5])
    assert line.add(frame(3, 3, 4, 5), [1, 2, 3, 4, 5]).mismatch is None
    assert (line.start, line.token_ids) == (5, [9, 9])


def test_a_late_frame_that_disagrees_ends_the_line_behind_it() -> None:
    line = ReceivedLine()
    line.add(frame(3, 5, 9, 9), [1, 2, 3, 4, 5])
    assert line.add(frame(3, 3, 4, 7), [1, 2, 3, 4, 5]).mismatch == 4
    assert line.token_ids == []
    assert not line.add(frame(3, 7, 9), [1, 2, 3, 4, 5]).is_news


def test_what_came_before_a_gap_must_agree_with_the_text_too() -> None:
    line = ReceivedLine()
    line.add(frame(3, 3, 4, 5), [1, 2, 3])
    line.add(frame(3, 7, 9, 9), [1, 2, 3])
    assert line.compare([1, 2, 3, 4]).mismatch is None
    assert line.compare([1, 2, 3, 4, 6]).mismatch == 4
    assert line.token_ids == []
    assert not line.add(frame(3, 9, 9), [1, 2, 3, 4, 6]).is_news


def test_a_late_frame_is_compared_when_the_text_gets_there() -> None:
    line = ReceivedLine()
    line.add(frame(3, 7, 9, 9), [1, 2, 3])
    assert line.add(frame(3, 3, 4, 5), [1, 2, 3]).mismatch is None
    assert line.compare([1, 2, 3, 4, 5]).mismatch is None
    assert line.token_ids == [9, 9]
    line.add(frame(3, 5, 6), [1, 2, 3, 4, 5])
    assert line.compare([1, 2, 3, 4, 5, 7]).mismatch == 5


def test_a_frame_of_an_older_base_changes_nothing() -> None:
    line = ReceivedLine()
    line.add(frame(5, 5, 8, 9), [1, 2, 3, 4, 5])
    assert not line.add(frame(3, 7, 6), [1, 2, 3, 4, 5]).is_news
    assert (line.base, line.start, line.token_ids) == (5, 5, [8, 9])
