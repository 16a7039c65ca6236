"""When a text has had enough of its targets."""

from __future__ import annotations

from orchestrator.core.routing import MOST_BUSY
from orchestrator.core.target_faults import MOST_FAULTS, TargetFaults


def test_faults_count_as_long_as_the_text_does_not_grow() -> None:
    faults = TargetFaults[str]()
    assert [faults.note_fault("a", 7) for _ in range(MOST_FAULTS)] == [1, 2, 3, 4]
    assert faults.distrusted == ["a"]


def test_a_text_that_grows_distrusts_nobody_any_more() -> None:
    faults = TargetFaults[str]()
    assert [faults.note_fault("a", length) for length in (7, 8, 8, 30)] == [1, 1, 2, 1]
    assert faults.note_fault("b", 30) == 2
    assert faults.distrusted == ["a", "b"]
    faults.note_fault("b", 31)
    assert faults.distrusted == ["b"]


def test_seventeen_losses_in_a_row_are_too_many() -> None:
    faults = TargetFaults[str]()
    assert [faults.note_missing(True) for _ in range(17)] == [False] * 16 + [True]


def test_what_rested_on_the_same_loss_is_no_other_one() -> None:
    faults = TargetFaults[str]()
    assert not any(faults.note_missing(i % 8 == 0) for i in range(128))


def test_growth_and_another_target_begin_the_count_of_losses_anew() -> None:
    faults = TargetFaults[str]()
    for i in range(100):
        assert not faults.note_missing(True)
        if i % 10 == 0:
            faults.note_growth()
        elif i % 15 == 0:
            faults.note_fault("a", 7)


def test_words_that_say_nothing_new_are_forgiven_by_growth_a_few_at_a_time() -> None:
    def words_until_enough(faults: TargetFaults[str], each_grows: int) -> int:
        for count in range(1, 20_000):
            if each_grows and count % each_grows == 0:
                faults.note_growth()
            if faults.note_idle():
                return count
        return 0

    faults = TargetFaults[str]()
    assert words_until_enough(faults, 0) == 2049
    faults.note_fault("a", 7)
    assert words_until_enough(faults, 0) == 2049
    # What a link repeats is forgiven; a flood between two tokens is not.
    assert words_until_enough(TargetFaults[str](), 16) == 0
    assert words_until_enough(TargetFaults[str](), 256) < 3000


def test_a_text_leaves_a_busy_target_at_once_before_its_first_token_and_later_the_third_time() -> (
    None
):
    faults = TargetFaults[str]()
    assert faults.note_busy(0)
    assert [faults.note_busy(5) for _ in range(MOST_BUSY)] == [False, False, True]
    faults.forget_busy(5)
    assert not faults.note_busy(5)
    assert [faults.note_busy(rounds) for rounds in (6, 7, 7, 8)] == [False] * 4
