"""What `outrider plan` says, and what it refuses."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from outrider.client import ControllerView, ModelInfo
from outrider.costs import RejectionCost
from outrider.errors import InvalidRequest
from outrider_cli import run
from outrider_cli.forecasting import LIKELY, MOST, head_pays_from, pays, reach, too_slow
from outrider_plan.command import WIDTH, read_costs
from outrider_plan.tables import answer, memory_of, place_lines, plan_lines, price_of

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


@pytest.mark.parametrize(
    "text", ["", "x", "4:", "4:55,1:66", "0:5", "1:0", "1:-5", "1:nan", "1:inf", "inf"]
)
def test_costs_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        list(read_costs(text))


@pytest.mark.parametrize("value", ["inf", "nan", "-1"])
@pytest.mark.parametrize("option", ["--draft-ms", "--round-trip-ms", "--away-ms"])
def test_times_that_make_no_sense_are_refused(
    capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    assert run(["plan", "--target-ms", "5", "--draft-ms", "1", option, value]) != 0
    said = capsys.readouterr().err
    assert "must be finite and at least 0" in said and said.count("\n") == 1


def table(measured: ControllerView, *acceptances: float, **more: Any) -> list[list[str]]:
    """Return the cells of the rows: accepted, alone, with drafts, times, how, pays up to."""
    lines = list(plan_lines(measured, acceptances, 16, **more))
    rows = [line for line in lines if re.match(r"[01]\.\d\d ", line)]
    return [re.split(r"\s{2,}", re.sub(r"(?<=\d) (?=[ \d.]+x )", "  ", row)) for row in rows]


def test_far_away_the_target_does_not_wait() -> None:
    lines = list(plan_lines(FAR, (0.8,), 16))
    assert lines[0] == "target        1:30.0 64:55.0 ms by rows"
    assert lines[1] == "draft         3.0 ms a token, 50.0 ms away"
    [[_, _, _, ratio, how, away]] = table(FAR, 0.8)
    assert (ratio, how) == ("1.64x", "run ahead, never wait")
    assert float(away.removesuffix(" ms")) > 50.0


def test_a_head_is_waited_for_in_every_round_and_so_pays_less_far_away() -> None:
    head = replace(FAR, head=True)
    [[_, _, _, ratio, how, away]] = table(replace(head, draft_latency_seconds=0.002), 0.8)
    assert how == "draft, then verify" and float(ratio.removesuffix("x")) > 1.5
    [[*_, further]] = table(replace(FAR, draft_latency_seconds=0.002), 0.8)
    assert float(away.removesuffix(" ms")) < float(further.removesuffix(" ms"))
    assert answer(head, (0.8,), 16).startswith("A head of 3 ms a token")
    assert list(plan_lines(head, (0.8,), 16))[1].startswith("head          3.0 ms a token")


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
    [[*_, how]] = table(FAR, 0.5, price=price_of(model))
    assert how == "alone"
    assert table(FAR, 0.5)[0][4] == "run ahead, never wait"


def test_a_draft_that_is_never_right_pays_nowhere() -> None:
    [[*_, ratio, how]] = table(FAR, 0.0)
    assert (ratio, how) == ("1.00x", "alone")


def test_on_shared_cores_only_what_the_two_can_do_is_planned() -> None:
    shared = replace(FAR, takes_turns=True)
    lines = list(plan_lines(shared, (0.8,), 16))
    assert lines[1].endswith("50.0 ms away, on the target's own cores")
    assert "pays up to" not in "".join(lines)
    [[*_, how]] = table(shared, 0.8)
    assert how == "in the target's process"


def test_the_target_alone_is_as_it_is_run() -> None:
    near = replace(FAR, draft_latency_seconds=0.0005)
    for measured in (near, replace(near, takes_turns=True)):
        [[_, alone, *_]] = table(measured, 0.8)
        assert alone == "32.8"  # 1 / (30 ms + .5): no round and no message


@pytest.mark.parametrize("seconds", [0.0001, 0.03, 1.0])
def test_the_table_fits_80_columns(seconds: float) -> None:
    machine = replace(FAR, decode_costs=((1, seconds), (64, 2.0 * seconds)))
    lines = [line for line in plan_lines(machine, (0.5, 0.9), 16) if not line.startswith("target")]
    assert max(map(len, lines)) <= WIDTH


QUICK = replace(FAR, decode_costs=((1, 0.001), (8, 0.004)))
H200 = replace(FAR, decode_costs=((1, 0.01), (8, 0.01), (16, 0.02)), draft_latency_seconds=0.0005)
ON_8_CORES = replace(H200, draft_token_seconds=0.012)


@pytest.mark.parametrize(
    ("measured", "acceptances", "said"),
    [
        (
            FAR,
            (0.8,),
            "A draft of 3 ms a token helps a target of 30 ms if 80 % of its tokens are accepted: "
            "1.6 times the target alone. It pays up to a round trip of 238 ms, at 80 %.",
        ),
        (
            FAR,
            (0.1, 0.7, 0.9),
            "A draft of 3 ms a token helps a target of 30 ms if 70 % or more of its tokens are "
            "accepted: 1.3 times the target alone, 2.5 times at 90 %. "
            "It pays up to a round trip of 542 ms, at 90 %.",
        ),
        (
            replace(H200, draft_latency_seconds=0.5),
            (0.5, 0.9),
            "A draft of 3 ms a token does not help a target of 10 ms with a round trip of 500 ms; "
            "up to 159 ms it would.",
        ),
        (
            replace(H200, decode_costs=((1, 0.01), (4, 0.03))),
            (0.2,),
            "A draft of 3 ms a token does not help a target of 10 ms where 20 % of its tokens are "
            "accepted; it would from 79 % on.",
        ),
        (
            ON_8_CORES,
            (0.5, 0.9),
            "A draft of 12 ms a token cannot help a target of 10 ms, however often it is right; "
            "it would help one of 16.2 ms (70 % accepted).",
        ),
        (
            replace(FAR, takes_turns=True),
            (0.8,),
            "A draft of 3 ms a token helps a target of 30 ms if 80 % of its tokens are accepted: "
            "2.4 times the target alone.",
        ),
    ],
)
def test_the_answer_says_whether_a_draft_pays_and_what_would_make_it(
    measured: ControllerView, acceptances: tuple[float, ...], said: str
) -> None:
    assert answer(measured, acceptances, 16) == said


def test_a_target_is_helped_by_what_the_answer_says_would_help_it() -> None:
    assert not pays(ON_8_CORES, MOST)
    slower = replace(ON_8_CORES, decode_costs=((1, 0.0162), (8, 0.0162), (16, 0.0324)))
    assert pays(slower, LIKELY)
    assert too_slow(ON_8_CORES) and not too_slow(slower)
    assert not too_slow(replace(ON_8_CORES, draft_token_seconds=0.0))  # which is not known


def test_a_target_that_checks_no_faster_than_it_writes_needs_no_faster_draft() -> None:
    costs = ((1, 0.0624), (2, 0.1297), (3, 0.1854), (4, 0.2224), (8, 0.3958))
    busy = replace(FAR, decode_costs=costs, draft_token_seconds=0.0005)
    assert too_slow(busy) == (
        "no draft can help a target of 62.4 ms a token that takes 396 ms to check 8 at once"
    )
    assert too_slow(ON_8_CORES).startswith("a draft of 12 ms a token cannot help")


def test_a_head_pays_from_an_acceptance_on_that_its_costs_decide() -> None:
    free_rows = [(1, 0.030), (8, 0.033)]
    cheap, dear = (head_pays_from(free_rows, seconds) for seconds in (0.001, 0.02))
    assert cheap is not None and dear is not None and 0.05 < cheap < 0.3 < dear
    one = head_pays_from(free_rows, 0.001, most_tokens=1)
    assert one is not None and one >= cheap
    assert head_pays_from([(1, 0.030), (2, 0.060), (8, 0.240)], 0.001) is None


def test_from_its_reach_on_a_draft_does_not_pay() -> None:
    for acceptance in (0.6, 0.9):
        far = reach(H200, acceptance)
        near, beyond = (replace(H200, draft_latency_seconds=each * far) for each in (0.95, 1.0))
        assert pays(near, acceptance) and not pays(beyond, acceptance)
    assert reach(QUICK, 0.5) == 0.0


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
