"""Durations of rounds, counted by how long they are."""

from __future__ import annotations

from outrider.core.round_times import BUCKET_LIMITS, Durations, RoundTimes


def test_a_duration_is_counted_below_the_first_bound_that_it_does_not_exceed():
    durations = Durations()
    for seconds in (0.0, 0.001, 0.0011, 10.0, 10.1):
        durations.note(seconds)
    assert durations.counts == [2, 1, *[0] * (len(BUCKET_LIMITS) - 3), 1, 1]
    assert durations.seconds == sum((0.0, 0.001, 0.0011, 10.0, 10.1))


def test_a_completion_has_the_rounds_of_all_its_parts():
    whole, part = RoundTimes(), RoundTimes()
    for phase in (part.draft, part.verify):
        phase.note(0.002)
    whole.add(part)
    whole.add(part)
    assert whole.verify.counts[1] == whole.draft.counts[1] == 2
    assert whole.verify.seconds == 0.004
    assert whole.decode == Durations()
