"""The parts of the Ray Serve application that need no Ray: settings, routes, who is there."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from outrider.errors import InvalidConfig
from outrider_ray.directory import LEASE_SECONDS, Drafts, Roll, followed
from outrider_ray.routing import (
    BLOCK,
    PARSED_BYTES,
    READ_BYTES,
    HeldPrefixes,
    Route,
    digests_of,
    job_name,
    prompt_of,
    ranked,
    read_job_name,
    salt_of,
)
from outrider_ray.scaling import WANTED, by_generations
from outrider_ray.settings import Count, Settings, deployments, orchestrator_file

# --- settings ---


def read(**args: Any) -> Settings:
    return Settings.read({"model": "/m/large.gguf", **args})


def test_arguments_are_texts_of_a_command_line_or_values_of_a_file():
    typed = read(drafts="1-4", generations="8", serving_load="2.5", target_args="--ctx=8 -v")
    filed = read(drafts="1-4", generations=8, serving_load=2.5, target_args=["--ctx=8", "-v"])
    assert typed == filed
    assert (typed.drafts, typed.generations) == (Count(1, 4), 8)
    assert typed.target_args == ("--ctx=8", "-v")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"draft": "/m/small.gguf"}, "did you mean drafts"),
        ({"model": ""}, "path of the target's GGUF file"),
        ({"model": 3}, "must be a text"),
        ({"drafts": "4-1"}, "must be within 1-1000"),
        ({"drafts": 0}, "must be within 1-1000"),
        ({"drafts": "some"}, "must be a number or a range"),
        ({"serving": True}, "must be a number or a range"),
        ({"generations": "2.5"}, "must be a whole number"),
        ({"generations": 0}, "must be more than 0"),
        ({"serving_cpus": -1}, "must not be negative"),
        ({"draft_gpus": "-0.5"}, "must not be negative"),
        ({"draft_load": "nan"}, "must be a number"),
        ({"draft_load": True}, "must be a number"),
        ({"draft_load": 1e12}, "below a thousand million"),
        ({"draft_args": [1]}, "must be a list of texts"),
    ],
)
def test_what_is_wrong_is_refused_by_name(args: dict[str, Any], words: str):
    with pytest.raises(InvalidConfig, match=words):
        read(**args)


def test_each_service_gets_its_options_and_as_many_threads_as_cores():
    settings = read(
        draft_model="/m/small.gguf",
        serving_cpus=8,
        draft_cpus=2,
        draft_args="--threads=1",
        token_file="/etc/outrider/token",
        orchestrator_args="--request-timeout=60",
    )
    assert settings.target_words == ("--model=/m/large.gguf", "--threads=8")
    token = "--token-file=/etc/outrider/token"
    assert settings.draft_words == (
        *("--model=/m/small.gguf", "--threads=1", token, "--allow-remote"),
    )
    assert settings.orchestrator_words("127.0.0.1:7") == (
        *("--target=plain://127.0.0.1:7", "--http=127.0.0.1:0", "--generations=64"),
        *(token, "--request-timeout=60"),
    )


def test_without_a_token_nothing_listens_beyond_its_node():
    settings = read(draft_model="/m/small.gguf")
    assert "--allow-remote" not in (*settings.draft_words, *settings.orchestrator_words("h:1"))


def test_an_orchestrator_reads_the_drafts_from_a_file():
    assert orchestrator_file(()) == "[orchestrator]\ndraft = []\n"
    assert orchestrator_file(("a:1", "b:2")) == (
        '[orchestrator]\ndraft = ["plain://a:1", "plain://b:2"]\n'
    )


def test_replicas_are_fixed_or_follow_the_generations_in_flight():
    found = deployments(
        read(
            draft_model="/m/small.gguf", serving="1-3", drafts="1-5", serving_load=6, serving_gpus=1
        )
    )
    assert found["Serving"]["autoscaling_config"]["target_ongoing_requests"] == 6
    assert found["Serving"]["ray_actor_options"] == {"num_cpus": 1.0, "num_gpus": 1.0}
    drafts = found["Draft"]["autoscaling_config"]
    assert (drafts["min_replicas"], drafts["max_replicas"]) == (1, 5)
    assert drafts["policy"]["policy_function"] == "outrider_ray.scaling:by_generations"
    assert found["Ingress"]["num_replicas"] == found["Directory"]["num_replicas"] == 1


def test_without_a_draft_model_there_are_no_drafts():
    assert set(deployments(read())) == {"Ingress", "Directory", "Serving"}


# --- how many drafts ---


def context(target: int, reported: dict[str, float] | None) -> Any:
    metrics = None if reported is None else {WANTED: reported}
    return SimpleNamespace(target_num_replicas=target, aggregated_metrics=metrics)


def test_drafts_follow_what_is_in_flight_and_stay_while_nobody_says():
    assert by_generations(context(2, {"a": 2.5, "b": 2.0}))[0] == 2.5
    assert by_generations(context(2, {"a": 0.0}))[0] == 1.0
    assert by_generations(context(3, {}))[0] == 3
    assert by_generations(context(3, None))[0] == 3


# --- who is there ---


def test_a_draft_is_there_for_as_long_as_it_says_so():
    roll = Roll(begun=0.0)
    roll.note_draft(100.0, "d1", "a:1")
    roll.note_draft(100.0, "d2", "b:1")
    assert roll.note_load(101.0, "s1", 3, "n1") == Drafts(("a:1", "b:1"), True)
    later = 100.0 + LEASE_SECONDS
    roll.note_draft(later, "d2", "b:1")
    assert roll.note_load(later, "s1", 0, "n1").addresses == ("b:1",)


def test_drafts_learn_what_is_in_flight_at_all_orchestrators():
    roll = Roll(begun=0.0)
    roll.note_load(1.0, "s1", 3, "n1")
    roll.note_load(2.0, "s2", 4, "n2")
    assert roll.note_draft(3.0, "d1", "a:1") == 7
    roll.note_load(2.0 + LEASE_SECONDS, "s2", 1, "n2")
    assert roll.note_draft(2.0 + LEASE_SECONDS, "d1", "a:1") == 1  # s1 was silent


def test_a_draft_on_loopback_is_for_its_own_node():
    roll = Roll(begun=0.0)
    roll.note_draft(1.0, "d1", "127.0.0.1:1", node="n1")
    roll.note_draft(1.0, "d2", "10.0.0.2:1")
    assert roll.note_load(1.0, "s1", 0, "n1").addresses == ("10.0.0.2:1", "127.0.0.1:1")
    assert roll.note_load(1.0, "s2", 0, "n2").addresses == ("10.0.0.2:1",)


def test_no_draft_is_left_by_the_word_of_a_directory_that_has_just_begun():
    known = ("a:1", "b:1")
    assert followed(known, Drafts(("c:1",), complete=False)) == ("a:1", "b:1", "c:1")
    assert followed(known, Drafts(("c:1",), complete=True)) == ("c:1",)
    assert not Roll(begun=50.0).note_load(50.0 + LEASE_SECONDS / 2, "s", 0, "n").complete


# --- where a text is written ---


def chat(*texts: str, **more: Any) -> bytes:
    roles = ("user", "assistant")
    turns = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return json.dumps({"model": "m", "messages": turns, **more}).encode()


LONG = "the rain in spain stays mainly in the plain " * 20


def test_the_next_turn_of_a_chat_has_the_digests_of_this_one():
    first, second = prompt_of(chat(LONG)), prompt_of(chat(LONG, "so it does", "and the wind?"))
    assert second.startswith(first)
    digests = digests_of(first)
    assert len(digests) == len(first) // BLOCK > 3
    assert digests_of(second)[: len(digests)] == digests


def test_callers_and_salts_have_digests_of_their_own():
    prompt = prompt_of(chat(LONG))
    mine, yours = digests_of(prompt, b"Bearer mine"), digests_of(prompt, b"Bearer yours")
    assert not set(mine) & set(yours)
    assert salt_of(chat(LONG, cache_salt="pepper")) == b"pepper"
    assert salt_of(chat(LONG)) == salt_of(b"[1]") == salt_of(b"\xff") == b""


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"prompt": null}'),
        json.dumps({"prompt": "x" * PARSED_BYTES}).encode(),
    ],
)
def test_a_body_without_a_prompt_is_routed_by_load_alone(body: bytes):
    assert prompt_of(body) == b""
    assert digests_of(b"") == ()


def test_prompts_are_found_where_each_api_has_them():
    for body in (
        {"prompt": LONG},
        {"input": LONG},
        {"content": LONG},
        {"params": {"prompt": LONG}},
    ):
        assert LONG.encode() in prompt_of(json.dumps(body).encode())
    assert prompt_of(json.dumps({"prompt": [1, 2]}).encode()) == b"12"


def test_what_is_looked_at_of_a_prompt_has_a_bound():
    assert len(digests_of(b"x" * (4 * READ_BYTES))) == READ_BYTES // BLOCK


def test_a_text_goes_where_its_prefix_was_read_unless_that_has_more_to_do_than_reading_takes():
    held, route = HeldPrefixes(), Route(digests_of(b"x" * 20 * BLOCK))
    held.note("b", route.digests)
    reading = 10 * BLOCK  # so the prompt weighs as much as two generations
    assert ranked(route, {"a": 0, "b": 0, "c": 0}, held, reading)[0] == "b"
    assert ranked(route, {"a": 0, "b": 1, "c": 0}, held, reading)[0] == "b"
    assert ranked(route, {"a": 0, "b": 3, "c": 1}, held, reading)[0] == "a"
    assert held.count("b", route.digests) == 20 and held.count("a", route.digests) == 0


def test_the_least_busy_replica_is_first_and_all_are_ranked():
    assert ranked(Route(), {"a": 2, "b": 0, "c": 1}, HeldPrefixes(), 100) == ["b", "c", "a"]


def test_prompts_that_nobody_has_read_are_spread_the_same_way_by_every_router():
    routes = [Route(digests_of(f"{n}".encode() * BLOCK)) for n in range(64)]
    loads = {"a": 0, "b": 0}
    chosen = [ranked(route, loads, HeldPrefixes(), 100)[0] for route in routes]
    assert chosen == [ranked(route, loads, HeldPrefixes(), 100)[0] for route in routes]
    assert 16 < chosen.count("a") < 48


def test_a_replica_that_is_asked_for_comes_first_and_others_where_it_is_gone():
    loads = {"a": 9, "b": 0}
    assert ranked(Route(replica="a"), loads, HeldPrefixes(), 100) == ["a", "b"]
    assert ranked(Route(replica="gone"), loads, HeldPrefixes(), 100) == ["b", "a"]


def test_replicas_that_are_gone_are_forgotten_and_old_prefixes_too(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("outrider_ray.routing._KEPT_DIGESTS", 3)
    held, digests = HeldPrefixes(), digests_of(b"x" * 5 * BLOCK)
    held.note("a", digests[:3])
    held.note("a", digests[3:])
    assert held.count("a", digests[3:]) == 2 and held.count("a", digests) == 0
    held.keep(["b"])
    assert held.count("a", digests[3:]) == 0


def test_a_job_says_where_it_is():
    assert read_job_name(job_name("job-1", "r7")) == ("job-1", "r7")
    assert read_job_name("job-1") == ("job-1", "")
