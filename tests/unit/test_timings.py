"""Where the seconds of a generation went, added up."""

from __future__ import annotations

from orchestrator.timings import Timings
from outrider.messages import ServiceTime
from outrider.v1 import common_pb2 as common


def test_steps_of_a_service_that_does_not_count_them_stay_unknown() -> None:
    engine = ServiceTime()
    engine.add(ServiceTime(0.5))
    assert engine.steps is None
    engine.add(ServiceTime(steps=0))
    assert engine.steps == 0
    engine.add(ServiceTime(steps=3))
    engine.add(ServiceTime(0.5))
    assert engine.steps == 3


def test_the_parts_of_a_completion_add_up() -> None:
    whole, part = Timings(begin=0.0), Timings(begin=0.0)
    part.note_draft(ServiceTime(2.0, queue=1.0, sample=4.0, steps=3))
    whole.add(part)
    whole.add(Timings(begin=0.0))
    whole.add(part)
    assert (whole.draft.queue, whole.draft.decode, whole.draft.sample) == (2.0, 4.0, 8.0)
    assert (whole.draft.steps, whole.target.steps) == (6, None)
    assert whole.draft_prompt == 2.0, "of the first part alone"


_MOST = 2**31 - 1


def test_no_number_of_steps_is_more_than_a_statistic_holds() -> None:
    whole = ServiceTime(steps=_MOST - 1)
    whole.add(ServiceTime(steps=1000))
    assert common.ServiceTime(step_count=whole.steps).step_count == _MOST
