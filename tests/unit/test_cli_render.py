"""What the command prints, as values."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from outrider.client import (
    ControllerView,
    Delta,
    DraftEnd,
    EngineTime,
    Finished,
    FinishReason,
    ModelInfo,
    Origin,
    PeerState,
    PeerStatus,
    RoundReport,
    SourceStatistics,
    Started,
    Statistics,
    Status,
    TextPiece,
    Token,
)
from outrider.messages import Rule
from outrider.speculation import LOCAL_DRAFTERS, MODELS
from outrider_cli.render import STYLES, Line, Transcript, Words, source_style
from outrider_cli.screen import Prose
from outrider_cli.statistics import (
    Comparison,
    cut_lines,
    json_object,
    statistics_lines,
    table_lines,
)
from outrider_cli.terminal import visible, wrapped

STATISTICS = Statistics(
    prompt_token_count=9,
    generated_token_count=5,
    drafted_token_count=4,
    accepted_token_count=3,
    round_count=2,
    drafted_round_count=1,
    draft_length=4,
    accepted_by_position=(1, 1, 1, 0),
    drafted_by_position=(1, 1, 1, 1),
    first_token_seconds=0.25,
    prompt_seconds=0.2,
    generation_seconds=1.75,
    draft_wait_seconds=0.5,
    verify_wait_seconds=1.25,
    target_time=EngineTime(
        queue_seconds=0.125, decode_seconds=1.0, sample_seconds=0.0625, prompt_seconds=0.25
    ),
    draft_time=EngineTime(decode_seconds=0.25),
    wire_byte_count=300,
    draft_fault_count=0,
    target_fault_count=0,
    verify_network_seconds=0.125,
    draft_network_seconds=0.0625,
    plain_round_seconds=0.875,
    controller=ControllerView(target_alone_token_rate=1 / 0.875),
)
MODEL = ModelInfo(
    name="small",
    description="llama 2M Q8_0",
    parameter_count=2_000_000,
    weight_byte_count=2_100_000,
    context_token_count=512,
    session_count=1,
    thread_count=2,
    numerics_profile="exact",
    identity="0a1b2c3d" * 8,
    load_seconds=0.5,
)
READY = PeerStatus(
    role="target",
    address="127.0.0.1:7",
    state=PeerState.READY,
    detail="",
    model=MODEL,
    round_trip_seconds=0.0004,
)
REFUSED = PeerStatus(
    role="draft",
    address="127.0.0.1:8",
    state=PeerState.REFUSED,
    detail="EOS id differs: target 1, draft 2",
    model=MODEL,
    round_trip_seconds=0.0004,
)
STATUS = Status(
    version="0.1.0",
    active_generation_count=1,
    peers=(READY, REFUSED),
    speculating=False,
    reason=REFUSED.detail,
)
LONG = {"generated_token_count": 17, "round_count": 8, "generation_seconds": 7.0}
COMPARED = Comparison((3.0, 3.2, 3.1), (2.0, 2.0, 2.1), drafted=True, same_text=True)


def transcript_of(numbers: Statistics = STATISTICS) -> Transcript:
    transcript = Transcript()
    transcript.add(Started((0, 1, 2), 42, Rule.SHARED_NOISE))
    transcript.add(Delta((7,), (Origin.PLAIN,), (TextPiece("a", Origin.PLAIN),)))
    origins = (Origin.DRAFTED, Origin.DRAFTED, Origin.DRAFTED, Origin.CORRECTED)
    pieces = (TextPiece("b", Origin.DRAFTED), TextPiece("c", Origin.CORRECTED))
    transcript.add(Delta((8, 9, 10, 11), origins, pieces))
    transcript.add(Finished(FinishReason.TOKEN_LIMIT, numbers))
    return transcript


def plain(lines: list[Line]) -> dict[str, str]:
    """Return what a reader without colours sees, by label."""
    texts = ["".join(words.text for words in line) for line in lines]
    return {text[:13].strip(): text[13:] for text in texts}


def shown(numbers: Statistics = STATISTICS, comparison: Comparison | None = None) -> dict[str, str]:
    """Return all statistics as a reader without colours sees them."""
    return plain(table_lines(transcript_of(numbers), STATUS, comparison))


def brief(
    numbers: Statistics = STATISTICS,
    comparison: Comparison | None = None,
    status: Status = STATUS,
) -> list[str]:
    """Return the few lines as a reader without colours sees them."""
    lines = statistics_lines(transcript_of(numbers), status, comparison)
    return ["".join(words.text for words in line) for line in lines]


def test_a_delta_shows_each_piece_in_the_style_of_its_origin():
    delta = Delta((7, 8), (Origin.DRAFTED, Origin.BONUS), (TextPiece("x", Origin.DRAFTED),))
    assert Transcript.words(delta) == [Words("x", STYLES[Origin.DRAFTED])]


def test_origins_that_need_telling_apart_have_styles_of_their_own():
    told = [Origin.DRAFTED, Origin.CORRECTED, Origin.BONUS, Origin.PLAIN]
    assert len({STYLES[origin] for origin in told}) == len(told)


def test_every_origin_has_a_style():
    assert STYLES.keys() == set(Origin)


def test_statistics_are_four_lines_of_a_narrow_terminal():
    numbers = replace(STATISTICS, **LONG, sources=(MODEL_DRAFTS, SUFFIX, IDLE))
    assert brief(numbers) == [
        "prompt    9 tokens, 45.0 tokens/s, first token after 250 ms",
        "generated 17 tokens in 7.00 s, 2.3 tokens/s, 2.1 per decode, seed 42",
        "drafts    3 of 4 accepted (75 %): 12 model, 3 suffix; 1 corrected, 0 bonus",
        "verdict   Drafts help here: about 2.0 times the target alone.",
    ]
    assert max(map(len, brief(numbers, COMPARED))) <= 80


def test_a_comparison_is_one_line_more_and_the_verdict():
    assert brief(comparison=COMPARED)[3:] == [
        "compared  3 runs each: 3.1 tokens/s with drafts, 2.0 without; same text",
        "verdict   Drafts help here: 1.5 times (1.5 to 1.6). Leave them on.",
    ]
    assert shown(comparison=COMPARED)["verdict"] == brief(comparison=COMPARED)[4][10:]


def test_a_cached_prompt_has_no_rate_for_it_was_not_read():
    numbers = replace(STATISTICS, cached_token_count=8)
    assert brief(numbers)[0] == "prompt    9 tokens, 8 of them cached, first token after 250 ms"


def test_every_statistic_is_in_the_table():
    assert shown() == {
        "prompt": "9 tokens in 200 ms, 45.0 tokens/s",
        "generated": "5 tokens in 1.75 s, 2.3 tokens/s",
        "drafted": "4 tokens, 3 accepted, acceptance rate 0.750",
        "origins": "3 drafted, 1 corrected, 0 bonus, 1 plain",
        "rounds": "2, 2.50 tokens per round, draft length 4 at the end",
        "first token": "after 250 ms",
        "time": "2.00 s = draft 438 ms (22 %) + verify 1.12 s (56 %)",
        "": "+ network 188 ms (9 %) + other 250 ms (12 %)",
        "target": "load 500 ms, prompt 250 ms, decode 750 ms, sampling 62 ms",
        "draft": "load 500 ms, prompt 0 ms, decode 250 ms, sampling 0 ms",
        "speed-up": "2.00 times the target alone, estimated",
        "seed": "42 (shared-noise)",
        "finished": "token limit",
        "verdict": "The text is too short to tell.",
    }


MODEL_DRAFTS = SourceStatistics(
    name="model",
    drafted_token_count=20,
    accepted_token_count=12,
    decided_token_count=None,
    agreed_token_count=None,
    seconds=1.5,
)
SUFFIX = SourceStatistics(
    name="suffix",
    drafted_token_count=4,
    accepted_token_count=3,
    decided_token_count=80,
    agreed_token_count=61,
    seconds=0.0012,
)


IDLE = replace(SUFFIX, name="copy", drafted_token_count=0, accepted_token_count=0)


def test_each_source_has_a_line_with_what_it_did_and_cost():
    unused = replace(SUFFIX, name="prediction", drafted_token_count=0, accepted_token_count=0)
    numbers = replace(STATISTICS, sources=(MODEL_DRAFTS, replace(unused, seconds=None), SUFFIX))
    lines = table_lines(transcript_of(numbers), STATUS)
    assert ["".join(words.text for words in line) for line in lines[3:7]] == [
        "sources      drafted  accepted   right of proposed   cost",
        "  model           20        12                 n/a   1.50 s, 75.0 ms a token",
        "  prediction       0         0            61 of 80   n/a",
        "  suffix           4         3            61 of 80   1.2 ms, 300 us a token",
    ]
    assert lines[4][0].style and lines[4][0].style != lines[6][0].style
    idle = replace(SUFFIX, drafted_token_count=0, accepted_token_count=0)
    assert shown(replace(STATISTICS, sources=(idle,)))["suffix"].endswith("   1.2 ms")


def test_every_source_without_a_model_has_a_style_of_its_own():
    assert {source_style(name) for name in MODELS} == {STYLES[Origin.DRAFTED]}
    told = {source_style(name) for name in LOCAL_DRAFTERS} - {"", STYLES[Origin.DRAFTED]}
    assert len(told) == len(LOCAL_DRAFTERS)
    assert source_style("of a later version") == ""


def test_draft_steps_are_told_where_they_are_known():
    numbers = replace(STATISTICS, draft_time=EngineTime(step_count=1))
    assert shown(numbers)["drafted"] == (
        "4 tokens, 3 accepted, acceptance rate 0.750, 1 draft step"
    )


def test_the_parts_of_the_time_add_up_to_the_whole():
    waits = STATISTICS.draft_wait_seconds + STATISTICS.verify_wait_seconds
    assert waits + STATISTICS.other_seconds == STATISTICS.total_seconds == 2.0
    assert STATISTICS.network_seconds == 0.1875
    late = replace(STATISTICS, draft_wait_seconds=9.0)
    assert late.other_seconds == 0.0


def test_tokens_of_the_prompt_that_were_cached_are_told():
    numbers = replace(STATISTICS, cached_token_count=6)
    assert shown(numbers)["prompt"] == "9 tokens in 200 ms, 45.0 tokens/s, 6 of them cached"


def test_a_cut_generation_tells_what_came():
    transcript = transcript_of()
    transcript.finished = None
    assert plain(cut_lines(transcript)) == {
        "generated": "5 tokens before the cut",
        "origins": "3 drafted, 1 corrected, 0 bonus, 1 plain",
    }


def test_a_model_that_is_not_there_has_no_times():
    alone = replace(STATUS, peers=(READY,))
    lines = plain(table_lines(transcript_of(), alone))
    assert lines["draft"] == "n/a" and lines["target"].startswith("load 500 ms")
    waiting = replace(STATUS, peers=(replace(READY, model=None), REFUSED))
    assert plain(table_lines(transcript_of(), waiting))["target"] == "n/a"


# --- the speed-up ---


def run_of(seconds: float, last: int = 11, drafted: int = 4) -> Transcript:
    """Return a text of five tokens that took this long after its first."""
    numbers = replace(STATISTICS, generation_seconds=seconds, drafted_token_count=drafted)
    transcript = Transcript()
    transcript.add(Delta((7, 8, 9, 10, last), (Origin.PLAIN,) * 5, ()))
    transcript.add(Finished(FinishReason.TOKEN_LIMIT, numbers))
    return transcript


def test_a_comparison_is_of_pairs():
    found = Comparison.of([(run_of(1.0), run_of(2.0)), (run_of(2.0), run_of(1.0))])
    assert found == Comparison((4.0, 2.0), (2.0, 4.0), drafted=True, same_text=True)
    assert found.ratios == [2.0, 0.5]
    assert found.verdict.startswith("Drafts make no clear difference")
    other = Comparison.of([(run_of(1.0, drafted=0), run_of(2.0, last=12))])
    assert other == Comparison((4.0,), (2.0,), drafted=False, same_text=False)


def test_one_pair_has_no_interval():
    found = Comparison.of([(run_of(1.0), run_of(2.0))])
    assert found is not None and found.verdict == "Drafts help here: 2.0 times. Leave them on."


def test_a_text_without_a_rate_is_not_compared():
    assert Comparison.of([(run_of(1.0), run_of(0.0))]) is None


@pytest.mark.parametrize(
    ("changes", "speculating", "verdict"),
    [
        ({"generated_token_count": 5}, True, "The text is too short to tell."),
        ({"generation_seconds": 0.0}, True, "The text is too short to tell."),
        ({"controller": ControllerView()}, True, "How fast the target is alone is not known here."),
        ({"drafted_token_count": 0}, True, "The target wrote this alone."),
        (
            {"drafted_token_count": 0, "sources": (SUFFIX,)},
            True,
            "Drafts would not save time here, so none were made.",
        ),
        ({"drafted_token_count": 0, "sources": (SUFFIX,)}, False, "Nothing was drafted."),
    ],
)
def test_the_verdict_says_no_more_than_is_known(
    changes: dict[str, Any], speculating: bool, verdict: str
):
    status = replace(STATUS, speculating=speculating)
    assert (
        brief(replace(STATISTICS, **{**LONG, **changes}), status=status)[3]
        == f"verdict   {verdict}"
    )


# --- styles and odd numbers ---


def test_the_legend_is_in_the_styles_of_the_text():
    line = table_lines(transcript_of(), STATUS)[3]
    styled = {words.text: words.style for words in line}
    assert {origin: styled[origin.value] for origin in list(Origin)[1:]} == {
        origin: STYLES[origin] for origin in list(Origin)[1:]
    }


def test_the_colours_of_the_text_are_named_in_the_few_lines():
    styled = {words.text: words.style for words in statistics_lines(transcript_of(), STATUS)[2]}
    assert styled["accepted"] == STYLES[Origin.DRAFTED]
    for origin in (Origin.CORRECTED, Origin.BONUS):
        assert styled[origin.value] == STYLES[origin]


def test_what_was_mended_on_the_way_is_told():
    numbers = replace(STATISTICS, draft_fault_count=1, target_fault_count=2)
    assert shown(numbers)["mended"] == "draft 1 time, target 2 times"


def test_wrong_tokens_that_were_foreseen_are_told_where_a_draft_wrote_several_lines():
    numbers = replace(STATISTICS, forked_miss_count=9, foreseen_miss_count=4)
    assert shown(numbers)["foreseen"] == "4 of 9 wrong draft tokens"
    assert "foreseen" not in shown(STATISTICS)


def test_ratios_over_nothing_are_not_numbers():
    numbers = replace(
        STATISTICS,
        generated_token_count=0,
        drafted_token_count=0,
        accepted_token_count=0,
        round_count=0,
        prompt_seconds=0.0,
        generation_seconds=0.0,
        first_token_seconds=0.0,
    )
    lines = shown(numbers)
    assert lines["prompt"].endswith("n/a tokens/s")
    assert lines["generated"] == "0 tokens in 0 ms, n/a tokens/s"
    assert lines["drafted"].endswith("acceptance rate n/a")
    assert lines["rounds"].startswith("0, n/a tokens per round")
    assert "n/a" in lines["time"]
    found = json_object(transcript_of(numbers), STATUS)
    assert found["statistics"]["acceptance_rate"] is None
    assert found["statistics"]["speedup"] is None and found["comparison"] is None


def test_nothing_accepted_is_a_rate_of_zero():
    numbers = replace(STATISTICS, accepted_token_count=0)
    assert shown(numbers)["drafted"].endswith("rate 0.000")


def test_the_json_object_survives_json():
    found = json_object(transcript_of(), STATUS, COMPARED)
    assert json.loads(json.dumps(found))["origins"] == found["origins"]
    assert found["text"] == "abc"
    assert found["prompt_token_ids"] == [0, 1, 2]
    assert found["token_ids"] == [7, 8, 9, 10, 11]
    assert found["origins"] == ["plain", "drafted", "drafted", "drafted", "corrected"]
    assert found["sources"] == [None] * 5  # nothing was reported of the rounds
    assert (found["seed"], found["acceptance"]) == (42, "shared-noise")
    assert found["finish_reason"] == "token limit"
    assert found["models"]["draft"]["parameter_count"] == 2_000_000
    assert found["comparison"]["with_drafts"] == (3.0, 3.2, 3.1)
    assert found["comparison"]["ratios"] == COMPARED.ratios
    assert found["verdict"] == COMPARED.verdict


def test_the_json_object_names_the_source_of_each_drafted_token():
    a, b = Token(8, b"b"), Token(11, b"c")
    report = RoundReport(
        round=2,
        committed_token_count=4,
        draft=(a, a, a),
        accepted_token_count=2,
        target=b,
        draft_end=DraftEnd.LENGTH,
        positions=(),
        draft_sources=("suffix", "model", "model"),
    )
    origins = (Origin.DRAFTED, Origin.DRAFTED, Origin.CORRECTED)
    transcript = transcript_of(replace(STATISTICS, sources=(MODEL_DRAFTS, SUFFIX)))
    transcript.add(Delta((8, 8, 11), origins, (), report))
    alone = replace(report, draft_sources=(), draft_lines=(0, 2, 2))
    transcript.add(Delta((8, 8, 11), origins, (), alone))
    found = json_object(transcript, STATUS)
    assert found["sources"][5:] == ["suffix", "model", None, "model", "model", None]
    assert found["lines"][5:] == [0, 0, None, 0, 2, None]
    told = found["statistics"]["sources"]
    assert told[0]["agreed_token_count"] is None
    assert told[1] == {
        "name": "suffix",
        "drafted_token_count": 4,
        "accepted_token_count": 3,
        "decided_token_count": 80,
        "agreed_token_count": 61,
        "seconds": 0.0012,
        "microseconds_per_token": pytest.approx(300.0),
    }


def test_the_json_statistics_hold_every_number_and_the_ratios():
    found = json_object(transcript_of(), STATUS)["statistics"]
    ratios = {"acceptance_rate", "tokens_per_round", "tokens_per_second", "speedup"}
    assert found.keys() == {field.name for field in fields(Statistics)} | ratios | {
        "prompt_tokens_per_second"
    }
    assert found["acceptance_rate"] == 0.75
    assert found["tokens_per_round"] == 2.5
    assert found["target_time"]["decode_seconds"] == 1.0
    assert found["target_time"]["queue_seconds"] == 0.125


def test_text_for_a_terminal_cannot_give_it_orders():
    assert visible("a\tb\n\x1b[31mc\r\x07\x9b2J\x7f é") == (
        "a\tb\n\\x1b[31mc\\x0d\\x07\\x9b2J\\x7f é"
    )


# --- lines for a terminal ---


def test_no_word_is_broken_and_none_is_lost() -> None:
    text = "a pair of models /srv/models/a-very-long-folder/of-models/large.gguf and some words"
    for width in (20, 40, 80):
        lines = wrapped(text, width, "  ")
        assert " ".join(" ".join(lines).split()) == text
        assert all(len(line) <= width for line in lines if "/" not in line)


class Shown:
    """Keeps what is printed."""

    def __init__(self) -> None:
        self.text = ""

    def show(self, words: Words) -> None:
        self.text += words.text


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (("one two th", "ree four"), "one two\nthree four"),
        (("a  b\n    in", "dented"), "a  b\n    indented"),
        (("x" * 25, " y"), "x" * 25 + "\ny"),
        (("中文" * 4, "字"), "中文" * 2 + "中\n" + "文中文字"),
        (("exactly 11\n\n",), "exactly 11\n\n"),
    ],
)
def test_an_answer_is_broken_between_words_as_it_comes(
    pieces: tuple[str, ...], shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "11")
    screen = Shown()
    prose = Prose(screen)
    for piece in pieces:
        prose.show(Words(piece))
    prose.flush()
    assert screen.text == shown


def test_a_pipe_gets_one_line() -> None:
    assert wrapped("some words " * 40, None) == ["some words " * 40]
    assert wrapped("", 80) == [""]
