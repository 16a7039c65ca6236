"""What `outrider plan` says, and what it refuses."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from outrider.client import ControllerView, ModelInfo
from outrider.costs import RejectionCost
from outrider.errors import InvalidRequest
from outrider_plan.command import WIDTH, read_costs
from outrider_plan.tables import memory_of, place_lines, plan_lines, plan_verdict, price_of

FAR = ControllerView(
    decode_costs=((1, 0.030), (64, 0.055)),
    draft_token_seconds=0.003,
    draft_latency_seconds=0.05,
    round_overhead_seconds=0.0015,
)


def test_one_figure_is_a_target_whose_rows_are_free_at_first() -> None:
    assert list(read_costs("66")) == [(1, 0.066), (8, 0.066), (16, 0.132)]


def test_a_table_of_rows_is_taken_as_it_is() -> None:
    assert list(read_costs("1:66,4:55")) == [(1, 0.066), (4, 0.055)]


@pytest.mark.parametrize("text", ["", "x", "4:", "4:55,1:66", "0:5", "1:0", "1:-5", "1:nan"])
def test_costs_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        list(read_costs(text))


def test_far_away_the_target_does_not_wait() -> None:
    lines = list(plan_lines(FAR, (0.8,), 16))
    assert lines[0] == "target        1:30.0 64:55.0 ms by rows"
    assert lines[1] == "draft         3.0 ms a token, 50.0 ms away"
    row = next(line for line in lines if line.startswith("0.80"))
    assert row.endswith("never wait")
    assert lines[-1].startswith("at 0.80: 1.6")


def test_what_a_rejection_costs_is_in_the_forecast_and_the_memory_is_named() -> None:
    model = ModelInfo(
        name="hybrid",
        description="",
        parameter_count=1,
        weight_byte_count=1,
        context_token_count=512,
        session_count=1,
        thread_count=1,
        numerics_profile="native",
        load_seconds=0.0,
        rollback_capability="checkpoints",
        checkpoint_milliseconds=20.0,
        restore_milliseconds=20.0,
    )
    assert price_of(model) == RejectionCost(0.02, 0.02)
    lines = list(plan_lines(FAR, (0.5,), 16, price_of(model), memory_of(model)))
    assert lines[1].startswith("memory        checkpoints: a draft costs a checkpoint (20.0 ms)")
    assert lines[-1].startswith("at 0.50: do not speculate")
    assert not list(plan_lines(FAR, (0.5,), 16))[-1].startswith("at 0.50: do not speculate")


def test_a_draft_that_is_never_right_is_not_worth_it() -> None:
    assert list(plan_lines(FAR, (0.0,), 16))[-1] == (
        "at 0.00: do not speculate; waiting for drafts pays up to 0 ms away"
    )


def test_on_shared_cores_only_what_the_two_can_do_is_planned() -> None:
    shared = replace(FAR, takes_turns=True)
    lines = list(plan_lines(shared, (0.8,), 16))
    assert lines[1].endswith("50.0 ms away, on the target's own cores")
    row = next(line for line in lines if line.startswith("0.80"))
    assert "run ahead" not in row and row.endswith("at the target")
    head = next(line for line in lines if line.startswith("accept"))
    assert re.split(r"\s{2,}", head) == ["accept", "plain", "serial", "at the target", "best"]
    assert "x in the target's process; " in lines[-1]


def test_a_draft_in_the_targets_process_costs_no_way_and_the_alone_is_as_it_is_run() -> None:
    shared = replace(FAR, takes_turns=True, draft_latency_seconds=0.0005)
    [row] = [line for line in plan_lines(shared, (0.8,), 16) if line.startswith("0.80")]
    alone, serial, in_process = (float(row.split()[i]) for i in (1, 2, 5))
    assert alone == 32.8  # 1 / (30 ms + .5): no round and no message
    assert in_process > serial > alone


@pytest.mark.parametrize("seconds", [0.0001, 0.03, 1.0])
def test_the_table_fits_80_columns(seconds: float) -> None:
    machine = replace(FAR, decode_costs=((1, seconds), (64, 2.0 * seconds)))
    table = [line for line in plan_lines(machine, (0.5, 0.9), 16) if not line.startswith("target")]
    assert max(map(len, table)) <= WIDTH


QUICK = replace(FAR, decode_costs=((1, 0.001), (8, 0.004)))


@pytest.mark.parametrize(
    ("measured", "acceptances", "verdict"),
    [
        (FAR, (0.8,), "Drafts are expected to help here: about 1.6 times the target alone."),
        (QUICK, (0.8,), "Drafts are not expected to save time here."),
        (
            QUICK,
            (0.5, 0.9),
            "Drafts are not expected to save time here, however often they are right.",
        ),
        (
            FAR,
            (0.1, 0.7, 0.9),
            "Drafts are expected to help where 70 % of them or more are accepted:"
            " 1.3 times the target alone there to 2.6 times at 0.90.",
        ),
    ],
)
def test_a_plan_ends_in_a_verdict(
    measured: ControllerView, acceptances: tuple[float, ...], verdict: str
) -> None:
    assert plan_verdict(measured, acceptances, 16) == verdict


# --- two machines ---


def places(acceptance: float, away_ms: float, beside_ms: float | None = None) -> list[str]:
    return list(place_lines(NEAR, (acceptance,), away_ms, beside_ms, 16))


NEAR = replace(FAR, draft_latency_seconds=0.0005)


def rates(lines: list[str]) -> list[float]:
    """Return the tokens per second of every layout, the target alone first."""
    [row] = [line for line in lines if line.startswith("0.")]
    return [float(cell.split()[0]) for cell in re.split(r"\s{2,}", row)[1:]]


def test_a_good_draft_dials_in_and_a_useless_one_is_left_out() -> None:
    assert places(0.8, 20)[-1].startswith("at 0.80: choose draft dials in, ")
    assert places(0.0, 20)[-1] == "at 0.00: choose target alone"


def test_side_by_side_no_layout_is_further_than_another() -> None:
    alone, dials_in, far_target, in_process, beside = rates(places(0.8, 0, beside_ms=3.0))
    assert dials_in == far_target > in_process > beside > alone


@pytest.mark.parametrize("away_ms", [20, 50, 200])
@pytest.mark.parametrize("acceptance", [0.5, 0.7, 0.9])
def test_a_far_target_is_never_better_than_a_far_draft(acceptance: float, away_ms: float) -> None:
    alone, dials_in, far_target = rates(places(acceptance, away_ms))
    assert dials_in >= far_target >= alone


def test_a_draft_beside_the_target_is_chosen_where_the_way_is_long() -> None:
    chosen = "at 0.70: choose draft in the target's process"
    assert places(0.7, 400, beside_ms=4.0)[-1] == chosen
    # What an orchestrator measured of a draft on the target's own cores is its time there.
    there = replace(NEAR, takes_turns=True, draft_token_seconds=0.004)
    assert list(place_lines(there, (0.7,), 400, None, 16))[-1] == chosen
    assert any("--beside-ms" in line for line in places(0.7, 400))


def test_the_layouts_fit_80_columns() -> None:
    assert max(map(len, places(0.8, 20, beside_ms=3.0))) <= WIDTH
