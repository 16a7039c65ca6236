"""What is said to a llama-server, and what is understood of its answers."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from outrider.errors import InvalidConfig, InvalidRequest, PeerUnavailable
from outrider.sampling import GREEDY, SamplingParameters
from outrider_bench.llama_server import (
    PeerPlan,
    check_binary,
    command_line,
    read_events,
    read_trial,
    request_body,
)
from outrider_bench.peer_drafters import draft_model, drafting_options, read_peer_drafters

PLAN = PeerPlan(
    binary=Path("bin/llama-server"),
    target=Path("large.gguf"),
    draft=Path("small.gguf"),
    threads=2,
    context=1024,
    users=4,
    variants=(),
    options=("--flash-attn", "off"),
)


def test_a_server_without_a_draft():
    assert command_line(PLAN, (), 8080) == [
        *("bin/llama-server", "--model", "large.gguf", "--host", "127.0.0.1", "--port", "8080"),
        *("--threads", "2", "--parallel", "4", "--ctx-size", "4096", "--cache-ram", "0"),
        *("--flash-attn", "off"),
    ]


def test_a_draft_model_is_named_and_turned_on():
    words = command_line(PLAN, [draft_model(3)], 8080)
    assert words[words.index("--cache-ram") + 2 :] == [
        *("--spec-type", "draft-simple", "--spec-draft-model", "small.gguf"),
        *("--spec-draft-n-max", "3", "--flash-attn", "off"),
    ]


def test_a_head_is_turned_on_in_the_targets_file_or_in_its_own():
    head = [draft_model(2, "draft-mtp")]
    words = ["--spec-type", "draft-mtp", "--spec-draft-n-max", "2"]
    assert drafting_options(head, None) == words
    own = drafting_options([draft_model(2, "draft-eagle3")], Path("head.gguf"))
    assert own == [
        *("--spec-type", "draft-eagle3", "--spec-draft-model", "head.gguf"),
        *("--spec-draft-n-max", "2"),
    ]


def test_drafters_are_asked_in_their_order_each_with_its_sizes():
    (drafters,) = read_peer_drafters(["ngram-mod/8/4/32+ngram-map-k4v/4+draft-simple"])
    assert drafting_options(drafters, Path("small.gguf")) == [
        *("--spec-type", "ngram-mod,ngram-map-k4v,draft-simple"),
        *("--spec-ngram-mod-n-match", "8", "--spec-ngram-mod-n-min", "4"),
        *("--spec-ngram-mod-n-max", "32", "--spec-ngram-map-k4v-size-n", "4"),
        *("--spec-draft-model", "small.gguf"),
    ]


def test_a_drafter_without_sizes_keeps_its_defaults():
    for name in ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"):
        (drafters,) = read_peer_drafters([name])
        assert drafting_options(drafters, Path("small.gguf")) == ["--spec-type", name]


def test_all_are_eight_and_a_grid_has_them_and_their_sizes():
    every = ["+".join(map(str, each)) for each in read_peer_drafters(["all"])]
    assert every == [
        *("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"),
        *("draft-simple", "ngram-mod+draft-simple", "ngram-map-k4v+draft-simple"),
    ]
    grid = ["+".join(map(str, each)) for each in read_peer_drafters(["grid", "ngram-mod"])]
    assert set(every) < set(grid) and len(grid) == len(set(grid))
    assert {"ngram-simple/4/16", "ngram-mod/4/2/16", "draft-simple/7"} < set(grid)
    assert "ngram-map-k4v/4/16+draft-simple" in grid


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("ngram-suffix", "has ngram-suffix, which is none of ngram-simple, "),
        ("ngram-mod+lookup", "has lookup, which is none of"),
        ("ngram-cache/4", "ngram-cache takes 0 numbers at most"),
        ("ngram-simple/4/x", "has ngram-simple/4/x; ngram-simple takes 3 numbers at most"),
    ],
)
def test_what_is_no_drafter_is_refused(word: str, message: str):
    with pytest.raises(InvalidRequest, match=message):
        read_peer_drafters([word])


def test_a_request_asks_for_what_ours_asks_for():
    sampling = SamplingParameters(temperature=0.7, top_k=30, top_p=0.9, min_p=0.1)
    assert request_body([1, 2, 3], 16, sampling, seed=2**32 + 5) == {
        "prompt": [1, 2, 3],
        "n_predict": 16,
        "stream": True,
        "cache_prompt": False,
        "ignore_eos": True,
        "seed": 5,
        "samplers": ["top_k", "top_p", "min_p", "temperature"],
        "temperature": 0.7,
        "top_k": 30,
        "top_p": 0.9,
        "min_p": 0.1,
    }


def test_a_greedy_request_cuts_to_the_best_token_at_once():
    body = request_body([1], 16, GREEDY, seed=0)
    assert (body["top_k"], body["temperature"]) == (1, 0.0)


# --- answers ---


def test_events_are_read_from_lines():
    lines = [b'data: {"tokens_predicted": 1}\n', b"\n", b": ping\n", b"data: [DONE]\n"]
    assert list(read_events(lines)) == [{"tokens_predicted": 1}]


@pytest.mark.parametrize(
    "line", [b'error: {"message": "no room"}\n', b'data: {"error": {"message": "no room"}}\n']
)
def test_an_error_in_the_stream_is_raised(line: bytes):
    with pytest.raises(PeerUnavailable, match="no room"):
        list(read_events([line]))


def test_a_trial_counts_what_the_server_has_predicted():
    ticks = count(10)
    begun: list[bool] = []
    events = [
        {"tokens_predicted": 0, "tokens": []},
        {"tokens_predicted": 1},
        # The token before did not end a character.
        {"tokens_predicted": 3},
        {"tokens_predicted": 4},
        {
            "stop": True,
            "stop_type": "limit",
            "tokens_predicted": 4,
            "timings": {"predicted_n": 4, "draft_n": 4, "draft_n_accepted": 2},
        },
    ]
    trial = read_trial(events, lambda: next(ticks), lambda: begun.append(True))
    assert trial.begin == 10
    assert trial.deltas == ((1, 1), (2, 2), (3, 1))
    assert (trial.token_count, trial.finish, begun) == (4, "limit", [True])
    # Three tokens after the first, two of them accepted: one round.
    assert (trial.drafted_count, trial.accepted_count, trial.round_count) == (4, 2, 1)
    assert trial.target_seconds is None and trial.wire_bytes is None


def test_without_drafts_every_token_is_a_round():
    events = [{"tokens_predicted": n, "timings": {}} for n in range(1, 6)]
    trial = read_trial(events, lambda: 0.0, lambda: None)
    assert (trial.round_count, trial.drafted_count) == (4, 0)


# --- the option ---


def test_a_peer_is_a_program_of_a_known_kind(tmp_path: Path):
    program = tmp_path / "llama-server"
    with pytest.raises(InvalidConfig, match="peer: there is no program"):
        check_binary(f"llama-server={program}")
    program.touch(0o755)
    assert check_binary(f"llama-server={program}") == program
    for wrong in (str(program), f"vllm={program}"):
        with pytest.raises(InvalidConfig, match="must be llama-server=PATH"):
            check_binary(wrong)
