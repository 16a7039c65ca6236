"""The table of figures in README.md is what the committed results say."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from benchmarks.readme_figures import (
    LLAMA_SERVER,
    OUTRIDER,
    RESULTS,
    Arm,
    Result,
    Row,
    read_result,
    table,
    write_result,
)

README = Path(__file__).resolve().parents[3] / "README.md"


def an_arm(program: str, draft_tokens: int | None, rates: list[float], flash: str = "auto") -> Arm:
    return Arm(
        program=program,
        draft_tokens=draft_tokens,
        flash_attention=flash,
        tokens_per_second=rates,
        first_token_seconds=[0.04 for _ in rates],
        drafted=100 if draft_tokens else 0,
        accepted=50 if draft_tokens else 0,
    )


def a_result(*ours: float, round_trip_ms: float | None = None) -> Result:
    arms = [
        an_arm(OUTRIDER, None, list(ours)),
        an_arm(OUTRIDER, 0, [12.0, 12.0]),
        an_arm(LLAMA_SERVER, 0, [10.0, 11.0]),
        an_arm(LLAMA_SERVER, 0, [10.0, 10.0], flash="off"),
        an_arm(LLAMA_SERVER, 1, [15.0, 16.0]),
        an_arm(LLAMA_SERVER, 3, [20.0, 10.0], flash="off"),
    ]
    return Result(
        name="1B",
        date="2026-11-26",
        commit="abc1234",
        machine={"cpu": "A CPU", "core_count": 2, "kernels": "zen4", "gpus": []},
        models={},
        threads=2,
        round_trip_ms=round_trip_ms,
        tokens=128,
        left_out=[],
        disturbed=0,
        rows=[Row(temperature=0.0, users=1, prompt_tokens=64, arms=arms)],
    )


def cells(result: Result) -> list[str]:
    return [cell.strip() for cell in table([result]).splitlines()[2].strip("|").split("|")]


def test_readme_shows_what_the_committed_results_say():
    shown = re.search(
        r"<!-- figures -->\n(.*?)\n<!-- end of figures -->", README.read_text("utf-8"), re.DOTALL
    )
    assert shown is not None
    results = [read_result(path) for path in sorted(RESULTS.glob("*.json"))]
    assert results
    assert shown[1] == table(results), "run python -m benchmarks.readme_figures"


def test_the_fastest_draft_length_of_llama_server_is_named():
    _, _, alone, drafted, plain, ours, *_ = cells(a_result(30.0, 32.0))
    assert (alone, drafted, plain, ours) == ("10.5", "15.5 (of 1)", "12.0", "31.0")


def test_ratios_are_prompt_by_prompt_to_the_best_of_llama_server():
    assert cells(a_result(30.0, 32.0))[6] == "**2.00 [2.00, 2.00]**"


def test_where_llama_server_is_faster_the_cell_says_so():
    assert cells(a_result(7.5, 8.0))[6] == "0.50 [0.50, 0.50]: llama-server is faster"


def test_a_range_around_one_is_no_difference():
    assert cells(a_result(18.0, 8.0))[6] == "0.85 [0.50, 1.20]: no clear difference"


def test_drafts_that_do_not_pay_are_measured_against_llama_server_without_them():
    result = a_result(21.0, 22.0)
    row = result.rows[0]
    slow = replace(row, arms=[*row.arms[:4], an_arm(LLAMA_SERVER, 3, [5.0, 5.0])])
    assert cells(replace(result, rows=[slow]))[6] == "**2.05 [2.00, 2.10]**"


def test_the_lines_below_count_who_is_faster_and_whose_first_token_is_later():
    faster, slower, neither = a_result(30.0, 32.0), a_result(7.5, 8.0), a_result(18.0, 8.0)
    row = slower.rows[0]
    late = replace(row, arms=[replace(row.arms[0], first_token_seconds=[0.05]), *row.arms[1:]])
    text = table([faster, replace(slower, rows=[late, row]), neither])
    assert "faster in 1 and llama-server in 2; 1 show no clear difference." in text
    assert "Of 4 rows" in text and "first token comes later in 1." in text


def test_machines_are_named_by_what_computes():
    assert cells(a_result(1.0, 1.0))[0] == "A CPU, 2 cores"
    apart = cells(a_result(1.0, 1.0, round_trip_ms=20.0))
    assert apart[:2] == ["A CPU, 1 core each", "1B, greedy, draft 20 ms away"]
    gpu = replace(a_result(1.0, 1.0), machine={"gpus": ["NVIDIA H200"]})
    assert cells(gpu)[0] == "NVIDIA H200"
    amx = replace(gpu, machine={**a_result(1.0).machine, "kernels": "sapphirerapids"})
    assert cells(amx)[0] == "A CPU, 2 cores (AMX)"
    assert "2026-11-26 at abc1234" in table([gpu])


def test_an_arm_that_could_not_run_is_named_below_the_table():
    text = table([replace(a_result(1.0, 1.0), left_out=["llama-server, drafts of 8: no memory"])])
    assert text.endswith("\nLeft out: llama-server, drafts of 8: no memory.")


def test_what_other_processes_disturbed_is_counted():
    text = table([a_result(1.0, 1.0), replace(a_result(1.0, 1.0), disturbed=3)])
    assert text.endswith("\nOther processes computed, too, during 3 of 24 measurements.")


def test_a_result_is_read_as_it_was_written(tmp_path: Path):
    result = a_result(30.0, 32.0, round_trip_ms=20.0)
    write_result(result, tmp_path / "one.json")
    assert read_result(tmp_path / "one.json") == result
