"""Where the seconds of a generation went, added up."""

from __future__ import annotations

import pytest

from orchestrator.timings import EngineSeconds, Timings
from outrider.errors import InvalidRequest
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


_MOST = 2**31 - 1


@pytest.mark.parametrize(
    "spent",
    [
        *({name: -1} for name in ("queue_us", "decode_us", "sample_us", "own_draft_us")),
        *({name: -(2**31)} for name in ("runner_up_us", "decoded_row_count", "step_count")),
        {"generating_session_count": -1},
        {"attended_token_count": -(2**63)},
        {"step_count": _MOST},
    ],
)
def test_a_time_that_no_service_can_have_taken_is_not_added(spent: dict[str, int]) -> None:
    engine = EngineSeconds()
    with pytest.raises(InvalidRequest):
        engine.add(common.ServiceTime(**spent))
    assert engine == EngineSeconds()


def test_no_number_of_steps_is_more_than_a_statistic_holds() -> None:
    whole, part = EngineSeconds(steps=_MOST - 1), EngineSeconds(steps=_MOST - 1)
    whole.add(common.ServiceTime(step_count=1000))
    whole.merge(part)
    assert common.ServiceTime(step_count=whole.steps).step_count == _MOST
