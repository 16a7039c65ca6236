"""What `generate` tells beside the text: rounds, comparisons, counts, limits."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.commands import LOCAL, PROMPT, outrider_json, run_here

TOKENS = "48"
RUNS = {
    "greedy": ("--prompt", PROMPT, "--temperature", "0"),
    "sampled": ("--prompt", "import ", "--temperature", "0.8", "--seed", "7"),
    "rejection": ("--prompt", "import ", "--seed", "7", "--acceptance", "rejection"),
}

_TOKEN = r"(\d+) \(.*?\)"
_LINES = {
    "DRAFT": re.compile(rf"Token (\d+): {_TOKEN}"),
    "SOURCE": re.compile(r"[a-z]+ \d+( to \d+)?(, [a-z]+ \d+( to \d+)?)*"),
    "VERIFY": re.compile(rf"Draft: {_TOKEN}, Target: {_TOKEN}"),
    "ACCEPT": re.compile(r"Token (\d+) accepted"),
    "REJECT": re.compile(r"Token (\d+) rejected, using target token"),
    "ROLLBACK": re.compile(r"(\d+) draft tokens? dropped, (\d+) tokens kept"),
    "BONUS": re.compile(rf"Target: {_TOKEN}"),
    "PLAIN": re.compile(rf"Target: {_TOKEN}"),
    "STOP": re.compile(r"(\d+) drafted: .+"),
    "TOP": re.compile(r"Token (\d+): (.+)"),
}


_SOURCES = re.compile(r"([a-z]+) (\d+)(?: to (\d+))?")


@dataclass(slots=True)
class Told:
    """What the lines of `--verbose` say, taken at their word."""

    token_ids: list[int] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    sources: list[str | None] = field(default_factory=list)
    drafted: int = 0
    rounds: int = 0
    kept: list[tuple[int, int]] = field(default_factory=list)  # as told, and as it should be
    dropped: list[tuple[int, int]] = field(default_factory=list)


def read(lines: list[str]) -> Told:
    """Follow the lines; every line must be one of the known forms."""
    told = Told()
    draft: list[int] = []
    sources: list[str] = []
    verified = (0, 0)
    for line in lines:
        kind, rest = re.fullmatch(r"\[([A-Z]+)\] (.*)", line).groups()  # type: ignore[union-attr]
        match = _LINES[kind].fullmatch(rest)
        assert match, line
        numbers = [int(each) for each in match.groups() if each and each.isdigit()]
        if kind == "DRAFT":
            assert numbers[0] == len(draft)
            draft.append(numbers[1])
            told.drafted += 1
        elif kind == "SOURCE":
            for name, first, last in _SOURCES.findall(rest):
                assert int(first) == len(sources)
                sources += [name] * (int(last or first) - int(first) + 1)
            assert len(sources) == len(draft)
        elif kind == "VERIFY":
            verified = (numbers[0], numbers[1])
        elif kind == "ACCEPT":
            assert verified == (draft[numbers[0]], draft[numbers[0]])
            told.token_ids.append(verified[0])
            told.origins.append("drafted")
            told.sources.append(sources[numbers[0]])
        elif kind == "REJECT":
            assert verified[0] == draft[numbers[0]]
            rejected = numbers[0]
        elif kind == "ROLLBACK":
            told.dropped.append((numbers[0], len(draft) - rejected))
            told.kept.append((numbers[1], len(told.token_ids)))
            told.token_ids.append(verified[1])
            told.origins.append("corrected")
        elif kind in ("BONUS", "PLAIN"):
            assert bool(draft) is (kind == "BONUS")
            told.token_ids.append(numbers[0])
            told.origins.append(kind.lower())
        if kind in ("ROLLBACK", "BONUS", "PLAIN"):
            told.sources.append(None)
            told.rounds += 1
            draft, sources = [], []
    return told


def generate(orchestrator: str, *arguments: str) -> str:
    told = run_here("generate", "--orchestrator", orchestrator, *arguments)
    assert (told.code, told.err) == (0, "")
    return told.out


def split(out: str) -> tuple[list[str], str]:
    """Return the lines of the rounds, and what follows them."""
    rounds, _, rest = out.partition("\n\n")
    return rounds.split("\n"), rest


# --- rounds ---


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest, orchestrator: str) -> tuple[tuple[str, ...], Any, str]:
    """One generation: what was asked, its JSON object, and the output of `--verbose`."""
    asked = (*RUNS[request.param], "-n", TOKENS)
    object_ = outrider_json("--orchestrator", orchestrator, *asked)
    return asked, object_, generate(orchestrator, *asked, "--verbose")


def test_the_lines_tell_the_tokens_and_origins_of_the_text(run: Any):
    _, found, out = run
    told = read(split(out)[0])
    assert told.token_ids == found["token_ids"]
    assert told.origins == found["origins"]
    assert told.sources == found["sources"]
    assert {"drafted", "corrected", "plain"} <= set(told.origins)


def test_the_lines_tell_the_counts_of_the_statistics(run: Any):
    _, found, out = run
    told, numbers = read(split(out)[0]), found["statistics"]
    assert told.drafted == numbers["drafted_token_count"]
    assert told.rounds == numbers["round_count"]
    assert told.origins.count("drafted") == numbers["accepted_token_count"]
    for source in numbers["sources"]:
        assert told.sources.count(source["name"]) == source["accepted_token_count"]
    prompt = len(found["prompt_token_ids"])
    assert all(kept == prompt + before for kept, before in told.kept)
    assert all(dropped == left for dropped, left in told.dropped)


def test_the_text_and_the_statistics_follow_the_lines(run: Any):
    asked, found, out = run
    text = asked[1] + found["text"]
    assert split(out)[1].startswith(f"{text}\n\nprompt       ")
    counts = found["statistics"]
    drafted = f"{counts['drafted_token_count']} tokens, {counts['accepted_token_count']} accepted"
    assert f"\ndrafted      {drafted}, " in out


def test_more_detail_adds_candidates_and_changes_nothing_else(run: Any, orchestrator: str):
    asked, _, out = run
    detailed, _ = split(generate(orchestrator, *asked, "-vv"))
    assert [line for line in detailed if not line.startswith(("[STOP]", "[TOP]"))] == split(out)[0]
    assert sum(line.startswith("[STOP]") for line in detailed) == read(detailed).rounds
    for line in detailed:
        if line.startswith("[TOP]"):
            likely = [float(p) for p in re.findall(r"\) p (0\.\d{3}|1\.000)", line)]
            assert likely == sorted(likely, reverse=True) and 0 < sum(likely) < 1.01


def test_greedy_text_is_made_of_the_targets_first_candidates(orchestrator: str):
    lines, _ = split(generate(orchestrator, *RUNS["greedy"], "-n", TOKENS, "-vv"))
    told = read(lines)
    firsts = [int(line.split()[3]) for line in lines if line.startswith("[TOP]")]
    assert firsts == told.token_ids


# --- the comparison ---


def test_a_comparison_ends_in_a_verdict_and_finds_the_same_text(orchestrator: str):
    out = generate(orchestrator, *RUNS["sampled"], "-n", TOKENS, "--compare")
    *_, compared, verdict = out.splitlines()
    rates = r"\d+\.\d tokens/s with drafts, \d+\.\d without"
    assert re.fullmatch(rf"compared  \d+ runs? each: {rates}; same text", compared)
    assert re.match(r"verdict   Drafts (help|cost|make|would)", verdict)


def test_a_comparison_in_json(orchestrator: str):
    asked = ("--orchestrator", orchestrator, *RUNS["sampled"], "-n", "16")
    found = outrider_json(*asked, "--compare")
    compared = found["comparison"]
    assert compared["same_text"] and found["verdict"]
    assert len(compared["ratios"]) == len(compared["without"]) == len(compared["with_drafts"]) > 0
    assert outrider_json(*asked)["comparison"] is None


# --- counts and limits ---


@pytest.mark.parametrize("count", [1, 2, 7])
def test_exactly_as_many_tokens_as_asked_for(count: int, orchestrator: str):
    found = outrider_json(*RUNS["greedy"], "--orchestrator", orchestrator, "-n", str(count))
    assert len(found["token_ids"]) == len(found["origins"]) == count
    assert found["statistics"]["generated_token_count"] == count
    assert len(found["prompt_token_ids"]) == found["statistics"]["prompt_token_count"] > 0
    assert found["finish_reason"] == "token limit"


def test_no_tokens_are_the_prompt_alone(orchestrator: str):
    out = generate(orchestrator, *RUNS["greedy"], "-n", "0")
    assert out.startswith(f"{PROMPT}\n\nprompt    ")
    assert "\ngenerated 0 tokens in 0 ms, n/a tokens/s, 0.0 per decode, seed " in out
    assert out.endswith("\nverdict   The text is too short to tell.\n")


def test_no_limit_fills_the_context():
    found = outrider_json(*LOCAL, "-n", "-1", "--ctx", "96")
    assert found["finish_reason"] == "context full"
    assert found["models"]["target"]["context_token_count"] == 96
    assert found["models"]["draft"]["context_token_count"] == 96
    assert 90 <= len(found["prompt_token_ids"]) + len(found["token_ids"]) <= 97


def test_a_prompt_that_is_too_long_is_told_with_both_numbers(orchestrator: str):
    def count(times: int) -> int:
        asked = ("--orchestrator", orchestrator, "-p", "x = 1\n" * times, "-n", "0")
        return len(outrider_json(*asked)["prompt_token_ids"])

    short = count(10)
    step = (count(20) - short) // 10
    most = 10 + (1017 - short) // step
    assert count(most) == short + (most - 10) * step <= 1017
    too_long = short + (most + 1 - 10) * step
    told = run_here("generate", "--orchestrator", orchestrator, "-p", "x = 1\n" * (most + 1))
    assert (told.code, told.out) == (1, "")
    assert told.err == f"outrider: prompt too long ({too_long} tokens, max 1017)\n"


def test_the_seed_that_is_told_gives_the_text_again(orchestrator: str):
    asked = ("-n", "32", "--prompt", "import ")
    first, another = (generate(orchestrator, *asked) for _ in range(2))
    seed, other = (
        re.search(r", seed (\d+)\n", out)[1]  # type: ignore[index]
        for out in (first, another)
    )
    again = generate(orchestrator, *asked, "--seed", seed)
    text = first.partition("\n\nprompt    ")[0]
    assert text == again.partition("\n\nprompt    ")[0]
    assert seed != other and len(text) > len("import ")
