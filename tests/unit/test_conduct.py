"""When a target is left alone, for how long, and that somebody always writes."""

from __future__ import annotations

import pytest

from orchestrator.core.conduct import Conduct, doubled, not_left_alone
from orchestrator.link import Backoff


def conduct(ratio: float = 1.0, count: int = 10) -> Conduct:
    its = Conduct()
    for _ in range(count):
        its.note_text(ratio * 0.02, 0.02)
    return its


def test_a_target_that_takes_several_times_as_long_as_the_others_is_left_alone() -> None:
    slow, others = conduct(4.0), [conduct(1.0), conduct(1.1), conduct(0.9)]
    slow.note_others(others, 100.0)
    assert slow.left_alone(100.0) == 5.0 and slow.left_alone(103.0) == 2.0
    assert slow.left_alone(105.0) == 0.0
    assert slow.reason == "it takes 4.0 times as long as the others"


@pytest.mark.parametrize(
    ("ratio", "others"),
    [(2.0, [1.0, 1.0]), (8.0, [7.0, 7.0]), (8.0, []), (1.4, [0.4, 0.4])],
    ids=["a little slower", "all are loaded", "alone", "as quick as its load says"],
)
def test_what_is_nobody_s_fault_leaves_nobody_alone(ratio: float, others: list[float]) -> None:
    its = conduct(ratio)
    its.note_others([conduct(each) for each in others], 0.0)
    assert its.left_alone(0.0) == 0.0


def test_a_few_texts_say_nothing() -> None:
    slow = conduct(9.0, count=2)
    slow.note_others([conduct()], 0.0)
    assert slow.left_alone(0.0) == 0.0
    slow = conduct(9.0)
    slow.note_others([conduct(count=2)], 0.0)
    assert slow.left_alone(0.0) == 0.0


def test_each_pause_is_twice_as_long_until_it_behaves_for_a_while() -> None:
    now, pauses = 0.0, []
    its = Conduct()
    for _ in range(8):
        for _ in range(3):
            its.note_text(0.2, 0.02)
        its.note_others([conduct()], now)
        pauses.append(its.left_alone(now))
        now += its.left_alone(now)
    assert pauses == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]
    now += 601.0
    for _ in range(3):
        its.note_text(0.2, 0.02)
    its.note_others([conduct()], now)
    assert its.left_alone(now) == 5.0


def test_a_pause_is_the_longest_however_often_it_was_doubled() -> None:
    assert [doubled(5.0, times, 300.0) for times in (0, 3, 64, 1024, 10**9)] == [
        *(5.0, 40.0),
        *[300.0] * 3,
    ]
    backoff = Backoff()
    backoff.tries = 5000
    assert 2.5 <= backoff.next() <= 5.0


def test_it_is_judged_anew_after_a_pause() -> None:
    its = conduct(4.0)
    its.note_others([conduct()], 0.0)
    its.note_others([conduct()], 6.0)
    assert its.left_alone(6.0) == 0.0


def test_one_loss_is_no_fault_and_two_in_a_row_are() -> None:
    its = Conduct()
    for _ in range(8):  # all its texts at once, as when it is killed
        its.note_fault(10.0)
    assert its.left_alone(10.0) == 0.0
    its.note_fault(12.0)
    assert its.left_alone(12.0) == 5.0 and its.reason == "it lost 2 texts in a row"


def test_a_text_that_came_to_its_end_excuses_the_loss_before_it() -> None:
    its = Conduct()
    its.note_fault(10.0)
    its.note_text(0.02, 0.02)
    its.note_fault(20.0)
    assert its.left_alone(20.0) == 0.0


def test_at_least_half_of_the_targets_are_used_however_all_behave() -> None:
    bad = [conduct(4.0), conduct(5.0), conduct(6.0)]
    for i, each in enumerate(bad):
        each.note_others([conduct()], float(i))
    assert not_left_alone([*bad, conduct()], 3.0) == [0, 3]
    assert not_left_alone(bad[1:], 3.0) == [0]
    assert not_left_alone([conduct(), conduct(), bad[2]], 3.0) == [0, 1]
    assert not_left_alone([bad[0]], 3.0) == [0]
