"""What a benchmark runs: variants by name, and prompts by seed."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from model_making.tasks import make_tasks, write_tasks
from outrider.client import Request
from outrider.errors import InvalidRequest
from outrider.messages import Rule
from outrider.speculation import Policy
from outrider_bench.peer_drafters import read_peer_drafters
from outrider_bench.prompts import (
    Tasks,
    ordinary_tokens,
    random_prompts,
    task_prompts,
    text_prompts,
)
from outrider_bench.variants import (
    distant_variants,
    length_variants,
    named_variants,
    peer_variants,
)

# --- variants ---


def test_greedy_text_needs_no_comparison_of_rules():
    greedy = [variant.name for variant in named_variants((), greedy=True)]
    assert greedy == ["plain", "serial", "ahead", "measured", "classic"]
    sampled = [variant.name for variant in named_variants((), greedy=False)]
    assert sampled == [*greedy, "match", "rejection"]


def test_the_variant_without_drafts_always_runs_and_comes_first():
    names = [variant.name for variant in named_variants(("rejection", "serial"), greedy=True)]
    assert names == ["plain", "serial", "rejection"]


def test_an_unknown_variant_is_refused():
    with pytest.raises(InvalidRequest, match="variants: has fast, which is none of plain, serial"):
        named_variants(("fast",), greedy=True)


def test_variants_are_options_of_a_request():
    options = {v.name: Request("", **v.changes) for v in named_variants((), greedy=False)}
    assert not options["plain"].enabled
    assert options["serial"].said_of_speculation == {
        "policy": Policy.FIXED,
        "n_max": 3,
        "run_ahead": False,
    }
    assert options["ahead"].run_ahead is True and options["ahead"].n_max == 3
    assert options["measured"].policy is Policy.MEASURED
    assert options["classic"].policy is Policy.CLASSIC
    assert options["match"].acceptance is Rule.MATCH
    assert options["rejection"].acceptance is Rule.REJECTION


def test_a_draft_length_is_pinned_as_the_command_line_does_it():
    two, eight = length_variants([2, 8])
    assert (two.name, two.length, eight.name, eight.length) == ("n=2", 2, "n=8", 8)
    assert two.changes == {"policy": Policy.FIXED, "n_max": 2}


@pytest.mark.parametrize("length", [0, 65])
def test_a_draft_length_out_of_range_is_refused(length: int):
    with pytest.raises(InvalidRequest, match=r"draft_lengths: must be in \[1, 64\]"):
        length_variants([length])


def test_a_peer_runs_without_drafts_and_with_each_length():
    assert [(v.name, v.length) for v in peer_variants([2, 7])] == [
        ("llama-server", 0),
        ("llama-server n=2", 2),
        ("llama-server n=7", 7),
    ]


def test_a_peer_runs_with_drafters_named_as_they_were_asked_for():
    plain, mod, pair = peer_variants(
        [], read_peer_drafters(["ngram-mod/8", "ngram-mod+draft-simple"])
    )
    assert (plain.name, plain.peer_drafters) == ("llama-server", ())
    assert (mod.name, str(mod.peer_drafters[0])) == ("llama-server ngram-mod/8", "ngram-mod/8")
    assert pair.name == "llama-server ngram-mod+draft-simple" and pair.length is None


def test_drafters_are_pinned_behind_the_variants_that_have_a_name():
    plain, one, two = named_variants(("only:suffix", "only:suffix+model", "plain"), greedy=True)
    assert plain.name == "plain"
    assert (one.name, one.changes) == ("only:suffix", {"drafters": frozenset({"suffix"})})
    assert (two.name, two.changes) == ("only:suffix+model", {"drafters": {"suffix", "model"}})
    assert Request("", **two.changes).said_of_speculation == two.changes


def test_only_who_names_the_prediction_is_sent_one():
    variants = named_variants(("measured", "only:suffix", "only:prediction+model"), greedy=True)
    assert [variant.name for variant in variants if variant.predicts] == ["only:prediction+model"]


def test_a_drafter_that_is_not_known_is_refused():
    with pytest.raises(InvalidRequest, match="drafters: 'lookup' is none of model, mtp"):
        named_variants(("only:suffix+lookup",), greedy=True)


def test_lines_of_a_draft_are_counted_and_measured_at_every_distance():
    plain, one, eight = named_variants(("lines:1", "lines:8"), greedy=True)
    assert [one.changes, eight.changes] == [{"n_parallel": 1}, {"n_parallel": 8}]
    distant = [each.name for each in distant_variants([plain, one, eight])]
    assert distant == ["plain", "serial", "measured", "lines:1", "lines:8"]


@pytest.mark.parametrize("name", ["lines:", "lines:0", "lines:9", "lines:two"])
def test_a_number_of_lines_that_no_request_may_have_is_refused(name):
    with pytest.raises(InvalidRequest, match=r"lines:|n_parallel: must be in \[1, 8\]"):
        named_variants((name,), greedy=True)


# --- prompts ---


def test_the_prompts_of_a_kind_are_read_from_a_file_of_tasks(tmp_path: Path):
    tasks = make_tasks(range(100, 1100), 2, 20)[0]
    write_tasks(tmp_path / "tasks.json", tasks)
    read = Tasks(tmp_path / "tasks.json", "extract").read()
    mine = [task for task in tasks if task.kind == "extract"]
    assert read == [(list(task.prompt), list(task.text)) for task in mine]
    assert list(task_prompts(read, 2, 20, 4096)) == [list(task.prompt) for task in mine]
    with pytest.raises(InvalidRequest, match=r"prompts: needs 3 tasks .*; the file has 2"):
        task_prompts(read, 3, 20, 4096)


def test_a_text_that_a_task_does_not_have_is_refused():
    with pytest.raises(InvalidRequest, match="tokens: must be at most 20"):
        task_prompts([([1, 2, 3], [4] * 20)], 1, 21, 4096)
    with pytest.raises(InvalidRequest, match=r"3 \+ 20 do not fit a context of 16"):
        task_prompts([([1, 2, 3], [4] * 20)], 1, 20, 16)


def test_what_holds_no_such_tasks_is_refused(tmp_path: Path):
    file = tmp_path / "tasks.json"
    with pytest.raises(InvalidRequest, match=r"tasks: .* holds none: FileNotFoundError"):
        Tasks(file, "prose").read()
    no_text = '[{"kind": "prose", "prompt": [1], "text": 3}]'
    for wrong in ("{", "[1]", '[{"kind": "prose"}]', no_text, "3"):
        file.write_text(wrong)
        with pytest.raises(InvalidRequest, match="holds none"):
            Tasks(file, "prose").read()
    write_tasks(file, make_tasks(range(100, 900), 1, 20)[0])
    with pytest.raises(InvalidRequest, match=r"has rewrite, .*, shuffled, not poem"):
        Tasks(file, "poem").read()


def test_what_looks_special_is_no_part_of_a_prompt():
    names = [b"<s>", b"</s>", b"a", b"<", b"end", b"<|im_end|>", b"b"]
    assert ordinary_tokens(names, {0, 1, 4, None}) == [2, 3, 6]


def test_random_prompts_are_new_each_time_and_the_same_for_a_seed():
    prompts = list(islice(random_prompts(range(5, 100), 6, [1], seed=3), 50))
    assert prompts == list(islice(random_prompts(range(5, 100), 6, [1], seed=3), 50))
    assert prompts != list(islice(random_prompts(range(5, 100), 6, [1], seed=4), 50))
    assert len({tuple(prompt) for prompt in prompts}) == 50
    assert {len(prompt) for prompt in prompts} == {6}
    assert {prompt[0] for prompt in prompts} == {1}
    assert all(5 <= token < 100 for prompt in prompts for token in prompt[1:])


def test_pieces_of_a_text_begin_at_different_places():
    text = list(range(10, 20))
    prompts = list(islice(text_prompts(text, 4, [1], seed=1), 8))
    assert sorted(prompt[1] for prompt in prompts) == list(range(10, 18))
    assert all(prompt == [1, *range(prompt[1], prompt[1] + 3)] for prompt in prompts)
    assert prompts == list(islice(text_prompts(text, 4, [1], seed=1), 8))


def test_a_text_that_is_used_up_is_refused():
    prompts = text_prompts(list(range(5)), 4, [], seed=1)
    assert len(list(islice(prompts, 2))) == 2
    with pytest.raises(InvalidRequest, match="prompt_file: has 5 tokens, which is too short"):
        next(prompts)
    with pytest.raises(InvalidRequest, match="for more than 0 prompts"):
        next(text_prompts([1, 2], 4, [], seed=1))
