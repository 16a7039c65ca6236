"""What a benchmark prints, writes and draws of a made-up result."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.client import ModelInfo
from outrider.errors import InvalidConfig
from outrider.sampling import GREEDY, SamplingParameters
from outrider_bench.document import document
from outrider_bench.figures import Summary
from outrider_bench.machine import Machine
from outrider_bench.plots import check_matplotlib, draw, make_plots
from outrider_bench.prompts import Tasks
from outrider_bench.records import Block, Generated, Turn
from outrider_bench.report import (
    Measured,
    beware_lines,
    early_lines,
    legend_lines,
    pair_lines,
    run_lines,
    speed_table,
    verdict_lines,
)
from outrider_bench.run import PairResult
from outrider_bench.settings import Settings
from outrider_bench.variants import NAMED, length_variants, named_variants
from outrider_cli.intervals import Estimate

MACHINE = Machine(
    cpu="a CPU",
    core_count=2,
    system="Linux",
    load_before=0.04,
    load_after=1.96,
    others_share=0.013,
)
SETTINGS = Settings(
    variants=tuple(named_variants(("serial",), greedy=True)),
    lengths=tuple(length_variants([2, 8])),
    users=(1, 4),
    round_trips_ms=(0, 50),
    repetitions=10,
    token_limit=256,
    prompt_tokens=64,
    prompt_file=None,
    sampling=GREEDY,
    seed=1,
    peer=Path("llama-server"),
    peer_options=(),
)
MODEL = ModelInfo(
    name="large",
    description="llama 1.1B Q4_0",
    parameter_count=1_100_000_000,
    weight_byte_count=637_000_000,
    context_token_count=2048,
    session_count=4,
    thread_count=2,
    numerics_profile="exact",
    load_seconds=2.0,
)


def about(value: float) -> Estimate:
    """Return an estimate with 5 % to each side."""
    return Estimate(value, 0.95 * value, 1.05 * value)


def turns(variant: str, rate: float, away: float | None = None) -> list[Turn]:
    """Return two repetitions in which three tokens come at such a rate after the first."""
    deltas = ((0.5, 1), (0.5 + 3.0 / rate, 3))
    trial = Generated(begin=0.0, deltas=deltas, finish="token limit", round_count=1)
    return [
        Turn(variant=variant, repetition=i, trials=(trial,), round_trip_seconds=away)
        for i in range(2)
    ]


def summary(variant: str, rate: float, length: int | None = None) -> Summary:
    """Return what a variant without drafts did."""
    return Summary(
        variant=variant,
        length=length,
        turn_count=2,
        token_count=8,
        short_count=0,
        discarded_count=0,
        token_rate=about(rate),
        alone_rate=about(20.0),
        over_alone=about(rate / 20.0),
        over_plain=about(rate / 16.0) if variant != "plain" else Estimate(1.0, 1.0, 1.0),
        first_token_seconds=about(0.5),
        gap_seconds=(about(0.06), about(0.065), about(0.07)),
        acceptance=None,
        acceptance_by_position=(),
        tokens_per_round=Estimate(1.0, 1.0, 1.0),
        wire_bytes_per_token=about(33.0),
        cpu_seconds_per_token={
            "all": about(0.125),
            "target": about(0.12),
            "draft": Estimate(0.0, 0.0, 0.0),
            "orchestrator": about(0.005),
        },
        target_cpu_ratio=Estimate(1.0, 1.0, 1.0),
        formula=None,
        ceiling=about(rate / 0.98),
        of_ceiling=about(0.98),
    )


def drafting(variant: str, rate: float, length: int) -> Summary:
    """Return what a variant with drafts did."""
    return replace(
        summary(variant, rate, length),
        acceptance=about(0.65),
        acceptance_by_position=tuple(about(0.8**i) for i in range(1, length + 1)),
        tokens_per_round=about(2.9),
        formula=about(2.1),
    )


def peer(variant: str, rate: float, length: int) -> Summary:
    """Return what is known of a peer."""
    return replace(
        summary(variant, rate, length),
        tokens_per_round=about(2.8) if length else Estimate(1.0, 1.0, 1.0),
        acceptance=about(0.6) if length else None,
        wire_bytes_per_token=None,
        cpu_seconds_per_token={"all": about(0.06), "server": about(0.06)},
        target_cpu_ratio=None,
        ceiling=None,
        of_ceiling=None,
    )


ONE_USER = Measured(
    Block(
        user_count=1,
        turns=[
            *turns("plain", 16.0),
            *turns("serial", 32.0),
            *turns("n=2", 28.0),
            *turns("n=8", 24.0),
            *turns("llama-server", 15.0),
            *turns("llama-server n=3", 30.0),
        ],
    ),
    [
        summary("plain", 16.0, 0),
        drafting("serial", 32.0, 3),
        drafting("n=2", 28.0, 2),
        drafting("n=8", 24.0, 8),
        peer("llama-server", 15.0, 0),
        peer("llama-server n=3", 30.0, 3),
    ],
)
FOUR_USERS = Measured(
    Block(user_count=4, turns=[*turns("plain", 40.0), *turns("serial", 48.0)]),
    [
        replace(each, alone_rate=None, over_alone=None)
        for each in (summary("plain", 40.0, 0), drafting("serial", 48.0, 3))
    ],
)
FAR = [
    Measured(
        Block(
            user_count=1,
            turns=[*turns("plain", 16.0, ms / 1e3), *turns("serial", rate, ms / 1e3)],
            round_trip_ms=ms,
        ),
        [summary("plain", 16.0, 0), drafting("serial", rate, 3)],
    )
    for ms, rate in ((0, 31.0), (50, 18.0))
]
RESULT = PairResult(
    target=Path("large.gguf"),
    draft=Path("small.gguf"),
    models={
        "target": MODEL,
        "draft": replace(MODEL, name="small", weight_byte_count=61_000_000, thread_count=1),
    },
    blocks=[each.block for each in (ONE_USER, FOUR_USERS, *FAR)],
)
ALL = [ONE_USER, FOUR_USERS, *FAR]


def shown(width: int) -> str:
    lines = pair_lines(RESULT, ALL, 256, width, shows_all=True)
    assert max(map(len, lines)) <= width
    return "\n".join([*lines, ""])


# --- tables ---

AT_120 = """\
target   large, 637 MB, 2 threads
draft    small, 61 MB, 1 thread
alone    20.0 [19.0, 21.0] tokens/s, the target in llama.cpp

speed
variant                    tokens/s        times plain        times alone            formula         of ceiling
plain             16.0 [15.2, 16.8]               1.00  0.80 [0.76, 0.84]                  -  0.98 [0.93, 1.03]
serial            32.0 [30.4, 33.6]  2.00 [1.90, 2.10]  1.60 [1.52, 1.68]  2.10 [1.99, 2.21]  0.98 [0.93, 1.03]
n=2               28.0 [26.6, 29.4]  1.75 [1.66, 1.84]  1.40 [1.33, 1.47]  2.10 [1.99, 2.21]  0.98 [0.93, 1.03]
n=8               24.0 [22.8, 25.2]  1.50 [1.42, 1.58]  1.20 [1.14, 1.26]  2.10 [1.99, 2.21]  0.98 [0.93, 1.03]
llama-server      15.0 [14.2, 15.8]  0.94 [0.89, 0.98]  0.75 [0.71, 0.79]                  -                  -
llama-server n=3  30.0 [28.5, 31.5]  1.88 [1.78, 1.97]  1.50 [1.42, 1.58]                  -                  -

draft lengths
draft length            acceptance       tokens/round           tokens/s        times plain
0                                -               1.00  16.0 [15.2, 16.8]               1.00
2             0.650 [0.617, 0.683]  2.90 [2.75, 3.04]  28.0 [26.6, 29.4]  1.75 [1.66, 1.84]
8             0.650 [0.617, 0.683]  2.90 [2.75, 3.04]  24.0 [22.8, 25.2]  1.50 [1.42, 1.58]

tokens/s over those of llama-server n=3, the best of its settings
variant  times
plain     0.53
serial    1.07
n=2       0.93
n=8       0.80

latency, ms
variant                    first token            gap p50                p95                p99
plain             500.0 [475.0, 525.0]  60.0 [57.0, 63.0]  65.0 [61.8, 68.2]  70.0 [66.5, 73.5]
serial            500.0 [475.0, 525.0]  60.0 [57.0, 63.0]  65.0 [61.8, 68.2]  70.0 [66.5, 73.5]
n=2               500.0 [475.0, 525.0]  60.0 [57.0, 63.0]  65.0 [61.8, 68.2]  70.0 [66.5, 73.5]
n=8               500.0 [475.0, 525.0]  60.0 [57.0, 63.0]  65.0 [61.8, 68.2]  70.0 [66.5, 73.5]
llama-server      500.0 [475.0, 525.0]  60.0 [57.0, 63.0]  65.0 [61.8, 68.2]  70.0 [66.5, 73.5]
llama-server n=3  500.0 [475.0, 525.0]  60.0 [57.0, 63.0]  65.0 [61.8, 68.2]  70.0 [66.5, 73.5]

drafts
variant                     acceptance       tokens/round  bytes/token
plain                                -               1.00  33 [31, 35]
serial            0.650 [0.617, 0.683]  2.90 [2.75, 3.04]  33 [31, 35]
n=2               0.650 [0.617, 0.683]  2.90 [2.75, 3.04]  33 [31, 35]
n=8               0.650 [0.617, 0.683]  2.90 [2.75, 3.04]  33 [31, 35]
llama-server                         -               1.00            -
llama-server n=3  0.600 [0.570, 0.630]  2.80 [2.66, 2.94]            -

accepted by position in the draft, %
variant   1   2   3   4   5   6   7   8
serial   80  64  51
n=2      80  64
n=8      80  64  51  41  33  26  21  17

CPU, ms a token
variant                            all                target  draft    orchestrator  target ratio
plain             125.0 [118.8, 131.2]  120.0 [114.0, 126.0]    0.0  5.0 [4.8, 5.2]          1.00
serial            125.0 [118.8, 131.2]  120.0 [114.0, 126.0]    0.0  5.0 [4.8, 5.2]          1.00
n=2               125.0 [118.8, 131.2]  120.0 [114.0, 126.0]    0.0  5.0 [4.8, 5.2]          1.00
n=8               125.0 [118.8, 131.2]  120.0 [114.0, 126.0]    0.0  5.0 [4.8, 5.2]          1.00
llama-server         60.0 [57.0, 63.0]                     -      -               -             -
llama-server n=3     60.0 [57.0, 63.0]                     -      -               -             -

users at once: tokens/s of all together, and times plain at the same load
users                        1                       4
plain                16.0 1.00               40.0 1.00
serial  32.0 2.00 [1.90, 2.10]  48.0 3.00 [2.85, 3.15]

round trip to the draft: tokens/s, and times alone
ms  measured                   plain                  serial
0        0.0  16.0 0.80 [0.76, 0.84]  31.0 1.55 [1.47, 1.63]
50      50.0  16.0 0.80 [0.76, 0.84]  18.0 0.90 [0.85, 0.95]
"""  # noqa: E501

AT_80 = """\
target   large, 637 MB, 2 threads
draft    small, 61 MB, 1 thread
alone    20.0 [19.0, 21.0] tokens/s, the target in llama.cpp

speed
variant           tokens/s  times plain  times alone  formula  of ceiling
plain                 16.0         1.00         0.80        -        0.98
serial                32.0         2.00         1.60     2.10        0.98
n=2                   28.0         1.75         1.40     2.10        0.98
n=8                   24.0         1.50         1.20     2.10        0.98
llama-server          15.0         0.94         0.75        -           -
llama-server n=3      30.0         1.88         1.50        -           -

draft lengths
draft length            acceptance       tokens/round  tokens/s  times plain
0                                -               1.00      16.0         1.00
2             0.650 [0.617, 0.683]  2.90 [2.75, 3.04]      28.0         1.75
8             0.650 [0.617, 0.683]  2.90 [2.75, 3.04]      24.0         1.50

tokens/s over those of llama-server n=3, the best of its settings
variant  times
plain     0.53
serial    1.07
n=2       0.93
n=8       0.80

latency, ms
variant                    first token            gap p50   p95   p99
plain             500.0 [475.0, 525.0]  60.0 [57.0, 63.0]  65.0  70.0
serial            500.0 [475.0, 525.0]  60.0 [57.0, 63.0]  65.0  70.0
n=2               500.0 [475.0, 525.0]  60.0 [57.0, 63.0]  65.0  70.0
n=8               500.0 [475.0, 525.0]  60.0 [57.0, 63.0]  65.0  70.0
llama-server      500.0 [475.0, 525.0]  60.0 [57.0, 63.0]  65.0  70.0
llama-server n=3  500.0 [475.0, 525.0]  60.0 [57.0, 63.0]  65.0  70.0

drafts
variant                     acceptance       tokens/round  bytes/token
plain                                -               1.00  33 [31, 35]
serial            0.650 [0.617, 0.683]  2.90 [2.75, 3.04]  33 [31, 35]
n=2               0.650 [0.617, 0.683]  2.90 [2.75, 3.04]  33 [31, 35]
n=8               0.650 [0.617, 0.683]  2.90 [2.75, 3.04]  33 [31, 35]
llama-server                         -               1.00            -
llama-server n=3  0.600 [0.570, 0.630]  2.80 [2.66, 2.94]            -

accepted by position in the draft, %
variant   1   2   3   4   5   6   7   8
serial   80  64  51
n=2      80  64
n=8      80  64  51  41  33  26  21  17

CPU, ms a token
variant             all  target  draft  orchestrator  target ratio
plain             125.0   120.0    0.0           5.0          1.00
serial            125.0   120.0    0.0           5.0          1.00
n=2               125.0   120.0    0.0           5.0          1.00
n=8               125.0   120.0    0.0           5.0          1.00
llama-server       60.0       -      -             -             -
llama-server n=3   60.0       -      -             -             -

users at once: tokens/s of all together, and times plain at the same load
users                        1                       4
plain                16.0 1.00               40.0 1.00
serial  32.0 2.00 [1.90, 2.10]  48.0 3.00 [2.85, 3.15]

round trip to the draft: tokens/s, and times alone
ms  measured                   plain                  serial
0        0.0  16.0 0.80 [0.76, 0.84]  31.0 1.55 [1.47, 1.63]
50      50.0  16.0 0.80 [0.76, 0.84]  18.0 0.90 [0.85, 0.95]
"""


def test_what_was_forecast_stands_beside_what_was_measured() -> None:
    known = [ONE_USER.summaries[0], replace(ONE_USER.summaries[1], forecast=about(1.9))]
    titles, plain, serial = speed_table(known, 80, shows_all=True)
    end = titles.index("forecast") + len("forecast")
    assert plain[:end].endswith("-") and serial[:end].endswith("1.90")
    assert "forecast" not in speed_table(ONE_USER.summaries, 80, shows_all=True)[0]


def test_few_tables_are_shown_unless_all_are_wanted():
    few, every = (pair_lines(RESULT, [ONE_USER], 256, 80, each) for each in (False, True))
    titles = ("speed", "draft lengths", "latency, ms", "drafts", "CPU, ms a token")
    assert [title for title in titles if title in few] == ["speed", "draft lengths"]
    assert [title for title in titles if title in every] == list(titles)
    assert few[5].endswith("times alone") and "of ceiling" in every[5]


def test_every_name_and_column_of_the_tables_is_explained():
    told = "\n".join(legend_lines([ALL], shows_all=True))
    names = [name for name in NAMED if ONE_USER.of(name)]
    for name in (*names, "n=4", "times plain", "forecast", "formula", "of ceiling", "target ratio"):
        assert f"\n{name} " in told
    assert "\nclassic " not in told, "it did not run"
    assert "formula" not in "\n".join(legend_lines([ALL], shows_all=False))
    assert all(variant.about for variant in NAMED.values())
    assert max(map(len, told.splitlines())) <= 90


DEFAULT = drafting("measured", 24.0, 0)


def verdict_of(default: Summary, *others: Summary) -> list[str]:
    ran = [turn for turn in ONE_USER.block.turns if turn.variant != "serial"]
    block = Block(user_count=1, turns=[*ran, *turns("measured", 24.0)])
    return verdict_lines([Measured(block, [*ONE_USER.summaries[:1], default, *others])])


def test_a_benchmark_ends_in_what_to_do():
    assert verdict_of(DEFAULT) == ["Drafts help here: 1.5 times (1.4 to 1.6). Leave them on."]
    assert verdict_of(DEFAULT, *ONE_USER.summaries[2:]) == [
        "Drafts help here: 1.5 times (1.4 to 1.6). Leave them on.",
        "The best fixed length is 2: 1.8 times (1.7 to 1.8).",
        "Against llama-server n=3, the best of its settings: .80 times (.80 to .80).",
    ]


def test_a_benchmark_in_which_the_default_drafted_nothing_says_so():
    idle = replace(DEFAULT, acceptance=None, over_plain=about(1.0))
    assert verdict_of(idle) == ["Drafts would not save time here, so none were made."]


def test_a_benchmark_without_the_default_has_no_verdict():
    assert verdict_lines([ONE_USER]) == verdict_lines(FAR) == verdict_lines([]) == []


def test_at_120_columns_figures_have_their_intervals():
    assert shown(120) == AT_120


def test_at_80_columns_figures_have_intervals_from_the_left_as_far_as_they_fit():
    assert shown(80) == AT_80


def test_what_was_run_is_told_first():
    assert run_lines(SETTINGS, MACHINE) == [
        "run      10 repetitions, 256 tokens after 64 of prompt, greedy, seed 1",
        "machine  a CPU, 2 cores, load 0.04 before and 1.96 after, others took 1 %",
    ]
    tasks = replace(SETTINGS, tasks=Tasks(Path("copy/tasks.json"), "extract"))
    assert ", 256 tokens after the prompts of extract, tasks.json, " in run_lines(tasks, MACHINE)[0]
    assert run_lines(replace(SETTINGS, repetitions=1), MACHINE)[0].startswith(
        "run      1 repetition,"
    )
    warm = replace(SETTINGS, sampling=SamplingParameters(temperature=0.8))
    assert ", temperature 0.8, top-k 40, top-p 0.95, min-p 0.05, " in run_lines(warm, MACHINE)[0]
    unknown = replace(MACHINE, load_before=None, load_after=None, others_share=None)
    assert run_lines(SETTINGS, unknown)[1] == "machine  a CPU, 2 cores, load - before and - after"


def test_texts_that_ended_early_are_told():
    assert early_lines(ALL, 256) == []
    summaries = [replace(ONE_USER.summaries[0], short_count=2, discarded_count=3)]
    assert early_lines([Measured(ONE_USER.block, summaries)], 256) == [
        "",
        "note: 3 turns were taken again since a text ended early",
        "warning: 2 texts ended before 256 tokens",
    ]


def test_notes_and_warnings_come_last():
    assert beware_lines(MACHINE, ["not all was run"]) == ["note: not all was run"]
    assert beware_lines(replace(MACHINE, load_before=2.0), []) == [
        "warning: the load average was 2.00 before the run; measure again"
    ]


def test_what_nobody_drafted_needs_no_table_of_drafts():
    plain = Measured(Block(user_count=1, turns=turns("plain", 16.0)), ONE_USER.summaries[:1])
    lines = pair_lines(RESULT, [plain], 256, 80)
    assert "draft lengths" not in lines
    assert not any(line.startswith("accepted by position") for line in lines)
    assert not any(line.startswith("users at once") for line in lines)


# --- the JSON file ---


def test_the_document_holds_everything_down_to_the_deltas():
    made = document(["outrider", "bench"], MACHINE, SETTINGS, [(RESULT, ALL)], ["a note"])
    read = json.loads(json.dumps(made))
    assert read["command"] == ["outrider", "bench"] and read["notes"] == ["a note"]
    assert read["machine"]["cpu"] == "a CPU" and read["machine"]["warnings"] == []
    assert read["settings"]["peer"] == "llama-server"
    assert read["settings"]["variants"]["serial"] == {
        "policy": "fixed",
        "n_max": 3,
        "run_ahead": False,
    }
    (pair,) = read["pairs"]
    assert (pair["target"], pair["models"]["draft"]["name"]) == ("large.gguf", "small")
    places = [(block["user_count"], block["round_trip_ms"]) for block in pair["blocks"]]
    assert places == [(1, None), (4, None), (1, 0), (1, 50)]
    serial = pair["blocks"][0]["variants"][1]
    assert serial["token_rate"] == {"value": 32.0, "low": 30.4, "high": 33.6}
    first = pair["blocks"][0]["turns"][0]
    assert (first["variant"], first["repetition"]) == ("plain", 0)
    assert first["trials"][0]["deltas"] == [[0.5, 1], [0.6875, 3]]


# --- plots ---


def test_a_plot_is_made_of_what_was_measured_in_several_places():
    lengths, users, distances = make_plots(ALL)
    assert [plot.name for plot in (lengths, users, distances)] == [
        "draft-length",
        "users",
        "round-trip",
    ]
    assert [(line.name, [x for x, _ in line.points]) for line in lengths.lines] == [
        ("outrider", [2, 8]),
        ("llama-server", [3]),
        ("the papers' formula", [2, 8]),
    ]
    assert [(line.name, line.points) for line in users.lines] == [
        ("serial", [(1, about(2.0)), (4, about(3.0))])
    ]
    assert [x for x, _ in distances.lines[0].points] == [0, 50]
    assert make_plots([FOUR_USERS]) == []


def test_plots_are_png_files(tmp_path: Path):
    pytest.importorskip("matplotlib")
    paths = draw(make_plots(ALL), "large, small", tmp_path / "plots", "large-")
    assert [path.name for path in paths] == [
        "large-draft-length.png",
        "large-users.png",
        "large-round-trip.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_without_matplotlib_plots_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(InvalidConfig, match=r"^plots: needs matplotlib: .+ -m pip install "):
        check_matplotlib()


def test_a_far_target_has_a_table_and_a_plot_of_its_own():
    away = [replace(each, block=replace(each.block, far="target")) for each in FAR]
    lines = pair_lines(RESULT, [ONE_USER, *FAR, *away], 256, 120)
    titles = [line for line in lines if line.startswith("round trip to")]
    assert titles == [
        f"round trip to the {role}: tokens/s, and times alone" for role in ("draft", "target")
    ]
    first, second = (lines.index(title) for title in titles)
    assert lines[first + 1 : first + 4] == lines[second + 1 : second + 4]
    names = [plot.name for plot in make_plots([*FAR, *away])]
    assert names == ["round-trip", "target-round-trip"]


def test_cores_of_their_own_are_named():
    apart = replace(SETTINGS, cores={"target": [0, 1], "draft": [3], "orchestrator": [2]})
    assert "apart    target on 0,1, draft on 3, orchestrator on 2" in run_lines(apart, MACHINE)
    assert not any(line.startswith("apart") for line in run_lines(SETTINGS, MACHINE))
