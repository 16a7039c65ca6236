"""When a peer is ejected and for how long, and what silence is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TypedDict

import pytest

from outrider.backoff import Backoff
from outrider.core.health import (
    LOOK_SECONDS,
    TIMEOUT,
    Health,
    Silence,
    State,
    admitted,
    doubled,
    overdue,
)

OPEN, HALF_OPEN, CLOSED = State.OPEN, State.HALF_OPEN, State.CLOSED


def told(script: str) -> str:
    """Run a transcript, a line each of TIME WORD, and return it with the state after each line."""
    health, lines = Health(), []
    for line in script.split("\n"):
        time, word = line.split()[:2]
        now = float(time)
        if word == "fails":
            health.note_failure(now, "it sent nonsense")
        elif word == "writes":
            health.note_success()
        left = health.seconds_left(now)
        state = health.state(now).name.lower() + (f" {left:g}" if left else "")
        lines.append(f"{time} {word:6} {state}")
    return "\n".join(lines)


@pytest.mark.parametrize(
    "transcript",
    [
        # What cannot be, and silence, eject at once; then one text tries.
        "0 fails  open 5\n4 looks  open 1\n5 looks  half_open\n6 writes closed",
        # While it is tried, any failure ejects it again, for twice as long.
        "0 fails  open 5\n5 fails  open 10\n15 fails  open 20\n35 fails  open 40",
        # A success closes it, and the next ejection soon after is a longer one all the same.
        "0 fails  open 5\n6 writes closed\n7 fails  open 10",
        # After ten minutes without a failure it is a short one again.
        "0 fails  open 5\n5 fails  open 10\n6 looks  open 9\n616 fails  open 5",
        # What was asked for before the ejection says nothing new.
        "0 fails  open 5\n1 fails  open 4\n2 fails  open 3",
    ],
)
def test_a_breaker_opens_half_opens_and_closes(transcript: str) -> None:
    assert told(transcript) == transcript


@pytest.mark.fault(
    "hang",
    "a draft breaks the protocol again after each ejection, for 17 hours",
    before="the 1,025th one could not be computed, which ended the text it was found in",
    now="every further one is as long as the longest",
)
def test_ejections_double_up_to_the_longest_however_many_there_are() -> None:
    health, now, seconds = Health(), 0.0, []
    for _ in range(2000):
        health.note_failure(now, "it sent nonsense")
        seconds.append(health.seconds_left(now))
        now += seconds[-1]
    assert seconds[:8] == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]
    assert set(seconds[8:]) == {300.0}
    assert doubled(5.0, 10**9, 300.0) == 300.0
    backoff = Backoff()
    backoff.tries = 5000
    assert 2.5 <= backoff.next() <= 5.0


def test_one_text_at_a_time_tries_a_peer_that_was_ejected() -> None:
    health = Health()
    assert health.admits(0.0, 7)
    health.note_failure(0.0, "it sent nonsense")
    assert not health.admits(4.0, 0)
    assert health.admits(5.0, 0) and not health.admits(5.0, 1)
    health.note_success()
    assert health.admits(5.0, 7)


def ejected(now: float) -> Health:
    health = Health()
    health.note_failure(now, "it sent nonsense")
    return health


def test_at_least_half_of_the_targets_are_used_however_all_behave() -> None:
    bad = [ejected(float(i)) for i in range(3)]
    assert admitted([*((each, 0) for each in bad), (Health(), 9)], 3.0) == [0, 3]
    assert admitted([(each, 0) for each in bad[1:]], 3.0) == [0]
    assert admitted([(Health(), 0), (Health(), 0), (bad[2], 0)], 3.0) == [0, 1]
    assert admitted([(bad[0], 0)], 3.0) == [0]
    assert admitted([(bad[0], 0), (Health(), 0)], 6.0) == [0, 1]
    assert admitted([(bad[0], 1), (Health(), 0)], 6.0) == [1]


# --- silence, on a virtual clock ---

LOOK_EVERY = 5.0  # of a peer at its engine, a little out of step with the generation's looks


class Expected(TypedDict):
    """The seconds that a decode and an answer should take."""

    decode: float
    answer: float


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


def given_up(
    decodes: Decodes,
    expected: Expected = QUICK,
    timeout: float = TIMEOUT,
    until: float = 600.0,
    sent: float = 0.0,
    stopped: tuple[float, float] = (-1.0, -1.0),
) -> tuple[str, float]:
    """Return why a round is given up that is never answered, and how long after it was sent.

    Nothing runs here from `stopped[0]` to `stopped[1]`.
    """
    idle, wait, next_look, known = Silence(LOOK_EVERY), Silence(LOOK_SECONDS), 0.3, -1
    for now in steps(0.0, until, LOOK_SECONDS):
        if stopped[0] < now < stopped[1]:
            continue
        if now >= next_look:
            idle.note_look(now)
            if decodes(now) != known:
                idle.note_word()
            known, next_look = decodes(now), now + LOOK_EVERY
        if now >= sent:
            wait.note_look(now)
        why = overdue(wait.seconds, idle.seconds, timeout, **expected)
        if why is not None:
            return why.name.lower(), now - sent
    return "", until - sent


@pytest.mark.parametrize("sent", [0.0, 1.0, 100.0, 103.0])
@pytest.mark.parametrize("timeout", [5.0, TIMEOUT, 60.0])
def test_a_target_that_decodes_nothing_is_left_soon_after_the_timeout(
    sent: float, timeout: float
) -> None:
    why, after = given_up(never, sent=sent, timeout=timeout)
    assert why == "stuck"
    assert timeout < after <= timeout + 2 * LOOK_EVERY


@pytest.mark.parametrize("decode", [1.0, 5.0, 20.0])
def test_a_slow_target_has_several_times_its_longest_decode(decode: float) -> None:
    why, after = given_up(never, Expected(decode=decode, answer=float("inf")))
    assert why == "stuck"
    enough = max(TIMEOUT, 8 * decode)
    assert enough < after <= enough + 2 * LOOK_EVERY


@pytest.mark.parametrize("answer", [100.0, float("inf")], ids=["a long prompt", "a full target"])
@pytest.mark.parametrize("between", [0.1, 1.0, 5.0, 14.0])
def test_a_target_that_works_is_waited_for(between: float, answer: float) -> None:
    assert given_up(each(between), Expected(decode=0.5, answer=answer)) == ("", 600.0)


@pytest.mark.parametrize("answer", [0.1, 2.0, 10.0, 20.0])
def test_a_target_that_works_and_says_nothing_is_asked_once_more(answer: float) -> None:
    why, after = given_up(each(0.1), Expected(decode=0.5, answer=answer))
    assert why == "late"
    enough = 2 * max(TIMEOUT, 8 * answer)
    assert enough < after <= enough + 2 * LOOK_SECONDS


def test_each_time_it_is_asked_again_it_has_twice_as_long() -> None:
    wait, tries, asked = Silence(LOOK_SECONDS), 0, []
    for now in steps(0.0, 1000.0, LOOK_SECONDS):
        wait.note_look(now)
        if overdue(wait.seconds, 0.0, 20.0, **QUICK, tries=tries):
            asked.append(now)
            tries += 1
            wait.note_word()
    assert [after - before for before, after in pairwise(asked)] == [81, 161, 321]


@pytest.mark.parametrize("length", [15.0, 60.0, 3600.0])
@pytest.mark.parametrize("begin", [0.5, 4.5, 9.5])
def test_time_in_which_this_process_was_stopped_is_not_the_targets(
    begin: float, length: float
) -> None:
    why, after = given_up(never, stopped=(begin, begin + length), until=7200.0)
    assert why == "stuck"
    assert after > length + TIMEOUT - begin - 2 * LOOK_SECONDS


def test_an_engine_that_was_idle_before_a_round_has_the_whole_time_for_it() -> None:
    idle, wait = Silence(LOOK_EVERY), Silence(LOOK_SECONDS)
    for now in steps(0.0, 1000.0, LOOK_EVERY):
        idle.note_look(now)
        wait.end()
    assert idle.seconds == 1000.0 and wait.seconds == 0.0
    assert overdue(wait.seconds, idle.seconds, TIMEOUT, **QUICK) is None


def test_a_word_begins_the_wait_anew_and_what_is_unknown_counts_for_nothing() -> None:
    silence = Silence(LOOK_EVERY)
    silence.note_look(0.0)
    silence.note_look(9.0)
    assert silence.seconds == 9.0
    silence.note_word()
    silence.note_unknown(14.0)
    silence.note_look(15.0)
    assert silence.seconds == 1.0
