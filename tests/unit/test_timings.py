"""Where the seconds of a generation went, added up."""

from __future__ import annotations

from orchestrator.timings import EngineSeconds, Timings
from outrider.v1 import common_pb2 as common


def test_steps_of_a_service_that_does_not_count_them_stay_unknown() -> None:
    engine = EngineSeconds()
    engine.add(common.ServiceTime(decode_us=5))
    assert engine.steps is None
    engine.add(common.ServiceTime(step_count=0))
    assert engine.steps == 0
    engine.add(common.ServiceTime(step_count=3))
    engine.add(common.ServiceTime(decode_us=5))
    assert engine.steps == 3


def test_the_parts_of_a_completion_add_up() -> None:
    whole, part = Timings(begin=0.0), Timings(begin=0.0)
    part.draft.add(common.ServiceTime(queue_us=1, decode_us=2, sample_us=4, step_count=3))
    whole.add(part)
    whole.add(Timings(begin=0.0))
    whole.add(part)
    assert (whole.draft.queue, whole.draft.decode, whole.draft.sample) == (2e-6, 4e-6, 8e-6)
    assert (whole.draft.steps, whole.target.steps) == (6, None)
