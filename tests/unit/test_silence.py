"""How long a target may leave a round unanswered: by enumeration, on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from orchestrator.core.conduct import Conduct
from orchestrator.core.silence import (
    LEAST_SECONDS,
    LOOK_SECONDS,
    EngineSigns,
    Expected,
    Fate,
    RoundWait,
    judge,
)

LOOK_EVERY = 5.0  # of a peer at its engine, a little out of step with the generation's looks
QUICK = Expected(decode=0.5, answer=2.0)

Decodes = Callable[[float], int]
"""What an engine has decoded by a time in seconds."""


def never(now: float) -> int:
    return 7


def each(seconds: float) -> Decodes:
    return lambda now: int(now / seconds)


def steps(begin: float, end: float, seconds: float) -> Iterator[float]:
    while begin <= end:
        yield begin
        begin += seconds


def first_fate(
    decodes: Decodes,
    expected: Expected = QUICK,
    least: float = LEAST_SECONDS,
    until: float = 600.0,
    sent: float = 0.0,
    stopped: tuple[float, float] = (-1.0, -1.0),
) -> tuple[Fate, float]:
    """Return what becomes of a round that is never answered, and how long after it was sent.

    Nothing runs here from `stopped[0]` to `stopped[1]`.
    """
    signs, wait, next_look = EngineSigns(), RoundWait(), 0.3
    for now in steps(0.0, until, LOOK_SECONDS):
        if stopped[0] < now < stopped[1]:
            continue
        if now >= next_look:
            signs.note_look(now, [decodes(now)])
            next_look = now + LOOK_EVERY
        wait.note_look(now, now >= sent)
        fate = judge(wait, signs.still, least, expected)
        if fate is not Fate.WAIT:
            return fate, now - sent
    return Fate.WAIT, until - sent


@pytest.mark.parametrize("sent", [0.0, 1.0, 100.0, 103.0])
@pytest.mark.parametrize("least", [5.0, LEAST_SECONDS, 60.0])
def test_a_target_that_decodes_nothing_is_left_soon_after_the_least_time(
    sent: float, least: float
) -> None:
    fate, after = first_fate(never, sent=sent, least=least)
    assert fate is Fate.GIVE_UP
    assert least < after <= least + 2 * LOOK_EVERY


@pytest.mark.parametrize("decode", [1.0, 5.0, 20.0])
def test_a_slow_target_has_several_times_its_longest_decode(decode: float) -> None:
    fate, after = first_fate(never, Expected(decode=decode, answer=decode))
    assert fate is Fate.GIVE_UP
    enough = max(LEAST_SECONDS, 8 * decode)
    assert enough < after <= enough + 2 * LOOK_EVERY


@pytest.mark.parametrize("between", [0.1, 1.0, 5.0, 14.0])
def test_a_target_that_reads_a_long_prompt_is_waited_for(between: float) -> None:
    reading = Expected(decode=0.5, answer=100.0)
    assert first_fate(each(between), reading)[0] is Fate.WAIT


@pytest.mark.parametrize("between", [0.1, 1.0, 5.0, 14.0])
def test_in_a_queue_that_is_longer_than_the_room_a_round_is_waited_for(between: float) -> None:
    assert first_fate(each(between), Expected(0.5, 2.0, is_full=True))[0] is Fate.WAIT


@pytest.mark.parametrize("answer", [0.1, 2.0, 10.0, 20.0])
def test_a_target_that_works_and_says_nothing_is_asked_once_more(answer: float) -> None:
    fate, after = first_fate(each(0.1), Expected(0.5, answer))
    assert fate is Fate.ASK_AGAIN
    enough = max(3 * LEAST_SECONDS, 8 * answer)
    assert enough < after <= enough + 2 * LOOK_SECONDS


def test_each_time_it_is_asked_again_it_has_twice_as_long() -> None:
    wait, asked = RoundWait(), []
    for now in steps(0.0, 1000.0, LOOK_SECONDS):
        wait.note_look(now, True)
        if judge(wait, 0.0, 10.0, QUICK) is Fate.ASK_AGAIN:
            asked.append(now)
            wait.note_asked_again()
    assert [after - before for before, after in pairwise(asked)] == [
        61,
        121,
        241,
        481,
    ]
    wait.note_rows()
    assert wait.asked_again == 0


@pytest.mark.parametrize("length", [15.0, 60.0, 3600.0])
@pytest.mark.parametrize("begin", [0.5, 4.5, 9.5])
def test_time_in_which_this_process_was_stopped_is_not_the_targets(
    begin: float, length: float
) -> None:
    fate, after = first_fate(never, stopped=(begin, begin + length), until=7200.0)
    assert fate is Fate.GIVE_UP
    assert after > length + LEAST_SECONDS - begin - 2 * LOOK_SECONDS


def test_an_engine_that_was_idle_before_a_round_has_the_whole_time_for_it() -> None:
    signs, wait = EngineSigns(), RoundWait()
    for now in steps(0.0, 1000.0, LOOK_EVERY):
        signs.note_look(now, [3, 4])
        wait.note_look(now, False)
    assert signs.still == 1000.0 and wait.seconds == 0.0
    assert judge(wait, signs.still, LEAST_SECONDS, QUICK) is Fate.WAIT


def test_a_word_of_the_target_begins_the_wait_anew() -> None:
    wait = RoundWait()
    for now in steps(0.0, 100.0, LOOK_SECONDS):
        wait.note_look(now, True)
        if now % 15.0 == 0.0:
            wait.note_word()
        assert judge(wait, 1e6, LEAST_SECONDS, QUICK) is Fate.WAIT


def test_an_engine_that_does_not_even_say_what_it_does_is_still() -> None:
    signs = EngineSigns()
    signs.note_look(0.0, [1])
    signs.note_silent(6.0)
    signs.note_silent(12.0)
    assert signs.still == 12.0
    signs.note_look(13.0, [2])
    assert signs.still == 0.0


def test_what_nothing_is_known_of_counts_for_nothing() -> None:
    signs = EngineSigns()
    signs.note_look(0.0, [1])
    signs.note_blind(9.0)
    signs.note_look(10.0, [1])
    assert signs.still == 1.0


def test_a_target_that_is_stuck_is_left_alone_at_once() -> None:
    its = Conduct()
    its.note_broken(100.0, "it is stuck")
    assert its.left_alone(100.0) == 5.0 and its.reason == "it is stuck"
