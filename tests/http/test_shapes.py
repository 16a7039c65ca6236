"""The shapes of answers and streams, from messages alone, against transcripts kept beside."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway import llama_server
from gateway.accumulator import Completion
from gateway.body_fields import GenerationFields, generate_request, read_prompts
from gateway.event_streams import event
from gateway.openai import answers, requests
from gateway.usage import acceptance_histogram, acceptance_metrics, timings
from outrider.errors import InvalidRequest
from outrider.messages import FinishReason, LogprobOptions, Origin
from outrider.request import Request
from outrider.response import Delta, Event, Finished, Statistics, TextPiece
from outrider.sampling import SamplingNumbers, SamplingParameters, Stage
from outrider.speculation import DraftTemplate, Policy, Verification
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.support.fake_orchestrator import FakeOrchestrator

ROOT = Path(__file__).parents[2]

GOLDEN = Path(__file__).with_name("golden")
HEAD = answers.Head("id-1", 1700000000, "fp_1")
COMPLETIONS: dict[str, dict[str, Any]] = {
    "completion": {"prompt": "ab"},
    "completion_usage": {"prompt": "ab", "stream_options": {"include_usage": True}},
    "completion_logprobs_stop": {"prompt": "ab", "logprobs": 1, "stop": ["ö"]},
}
CHATS: dict[str, dict[str, Any]] = {
    "chat": {"max_tokens": 5},
    "chat_two_choices": {"max_tokens": 3, "n": 2, "stream_options": {"include_usage": True}},
    "chat_logprobs": {"max_tokens": 3, "logprobs": True, "top_logprobs": 1},
    "chat_progress": {
        "max_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "timings_per_token": True,
        "return_progress": True,
    },
    "chat_report": {"max_tokens": 5, "stream": True, "report": True},
}
NATIVE: dict[str, dict[str, Any]] = {
    "native": {"prompt": "ab", "n_predict": 4},
    "native_progress": {
        "prompt": "ab",
        "n_predict": 4,
        "timings_per_token": True,
        "return_progress": True,
    },
    "native_report": {"prompt": [100, "b"], "n_predict": 4, "n_probs": 1, "report": True},
}


async def responses_to(request: Request) -> list[Event]:
    return [each async for each in FakeOrchestrator().generate(request)]


def check(name: str, chunks: list[bytes]) -> None:
    """Compare with the transcript; OUTRIDER_TEST_WRITE=1 writes it."""
    path, text = GOLDEN / f"{name}.txt", b"".join(chunks).decode()
    if os.environ.get("OUTRIDER_TEST_WRITE"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", COMPLETIONS)
async def test_a_stream_of_completions_is_as_written_down(name: str):
    parsed = requests.read_completion(requests.CompletionBody(**COMPLETIONS[name]))
    shape = answers.TextShape(parsed.requests[0].logprobs is not None)
    answer = answers.OpenAIAnswer(HEAD, shape, parsed)
    responses = await responses_to(parsed.requests[0])
    check(name, [event(chunk) for each in responses for chunk in answer.events(0, each)])


@pytest.mark.parametrize("name", CHATS)
async def test_a_stream_of_a_chat_is_as_written_down(name: str):
    body = requests.ChatBody(messages=[{"role": "user", "content": "a"}], **CHATS[name])
    parsed = requests.read_chat(body, [1, 100])
    shape = answers.ChatShape(parsed.requests[0].logprobs is not None, "1")
    answer = answers.OpenAIAnswer(HEAD, shape, parsed, partial(next, itertools.count(0, 0.5)))
    responses = await responses_to(parsed.requests[0])
    check(name, [event(chunk) for each in responses for chunk in answer.events(0, each)])


@pytest.mark.parametrize("name", NATIVE)
async def test_a_stream_of_llama_server_is_as_written_down(name: str):
    fields = llama_server.CompletionFields(**NATIVE[name], stream=True)
    asked = llama_server.read_completion(fields)
    answer = llama_server.NativeAnswer(asked, fields, partial(next, itertools.count(0, 0.5)))
    responses = await responses_to(asked.requests[0])
    check(name, [event(one) for each in responses for one in answer.events(0, each)])


@pytest.mark.parametrize("name", NATIVE)
async def test_what_is_streamed_is_what_is_answered_at_once(name: str):
    fields = llama_server.CompletionFields(**NATIVE[name])
    asked = llama_server.read_completion(fields)
    streamed, at_once = (llama_server.NativeAnswer(asked, fields, lambda: 0.0) for _ in range(2))
    pieces = []
    for response in await responses_to(asked.requests[0]):
        at_once.gathering.add(0, response)
        pieces += list(streamed.events(0, response))
    answer = at_once.whole()
    assert isinstance(answer, dict)
    assert answer["content"] == "".join(piece["content"] for piece in pieces)
    told = [one for piece in pieces for one in piece.get("completion_probabilities", [])]
    assert answer.get("completion_probabilities", []) == told
    for piece in (*pieces, answer):
        json.dumps(piece, allow_nan=False)


# --- requests ---


def test_every_option_arrives():
    options: dict[str, Any] = {
        "temperature": 0.5,
        "top_k": -1,
        "top_p": 0.25,
        "min_p": 0.125,
        "typical_p": 0.9,
        "repeat_penalty": 1.5,
        "penalize_nl": False,
        "dry_sequence_breakers": [],
        "mirostat": 2,
        "samplers": ["top_k", "temperature"],
        "grammar": 'root ::= "a"',
        "ignore_eos": True,
        "n_predict": 7,
        "seed": 5,
        "stop": "x",
        "stop_token_ids": [9],
        "logit_bias": [[5, 1.5], ["text", False]],
        "n_probs": 3,
        "post_sampling_probs": True,
        "context_shift": True,
        "n_keep": -1,
        "speculative": {
            "n_max": 4,
            "run_ahead": False,
            "policy": "fixed",
            "verification": "token",
            "n_parallel": 1,
            "draft_template": "own",
        },
        "speculative.p_min": 0.5,
    }
    assert asked(options) == Request(
        "a",
        token_limit=7,
        seed=5,
        sampling=SamplingParameters(
            temperature=0.5,
            top_k=0,
            top_p=0.25,
            min_p=0.125,
            typical_p=0.9,
            repeat_penalty=1.5,
            penalize_newline=False,
            dry_sequence_breakers=(),
            mirostat=2,
            stages=(Stage.TOP_K, Stage.TEMPERATURE),
            grammar='root ::= "a"',
        ),
        logit_bias=((5, 1.5), ("text", -float("inf"))),
        ignore_eos=True,
        stop_sequences=("x",),
        stop_token_ids=(9,),
        logprobs=LogprobOptions(3, after_sampling=True),
        parse_special=True,
        shift=True,
        keep_token_count=-1,
        n_max=4,
        run_ahead=False,
        policy=Policy.FIXED,
        p_min=0.5,
        verification=Verification.TOKEN,
        n_parallel=1,
        draft_template=DraftTemplate.OWN,
    )


def asked(options: dict[str, Any]) -> Request:
    """Return what options of a body become."""
    return generate_request(GenerationFields.model_validate(options), "a", token_limit=3)


def test_what_is_not_said_is_left_to_the_orchestrator():
    assert asked({}) == Request("a", token_limit=3, parse_special=True)


def test_without_a_cached_prompt_the_cache_is_ignored() -> None:
    assert not asked({}).ignore_cached_prefix
    assert not asked({"cache_prompt": True}).ignore_cached_prefix
    assert asked({"cache_prompt": False}).ignore_cached_prefix


@pytest.mark.parametrize(
    ("biases", "expected"),
    [
        ({"15": -100}, (15, -100)),
        ({"a b": 2}, ("a b", 2)),
        ([[15, False]], (15, -float("inf"))),
        ({"99999999999999999999": 1}, ("99999999999999999999", 1)),
    ],
)
def test_biases_come_as_a_map_or_as_a_list(biases: Any, expected: tuple[int | str, float]):
    assert asked({"logit_bias": biases}).logit_bias == (expected,)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([1, "a"], [[1, "a"]]),
        ([[1], [2, "b"], "c"], [[1], [2, "b"], "c"]),
        ({"prompt_string": "a"}, ["a"]),
        (["a", {"prompt_string": "b"}, {"prompt_string": [1, "c"]}], ["a", "b", [1, "c"]]),
        ([], []),
    ],
)
@pytest.mark.fault(
    "text",
    '`prompt` as llama-server\'s object, `{"prompt_string": ...}`, alone or in a list',
    before="It was refused.",
    now="It is the text or the list in it.",
)
def test_prompts_are_told_apart(prompt: Any, prompts: list[Any]):
    fields = llama_server.CompletionFields.model_validate({"prompt": prompt})
    assert read_prompts(fields.prompt) == prompts
    if prompts:
        content = llama_server.EmbeddingFields.model_validate({"content": prompt})
        assert llama_server.read_embedding(content) == prompts


@pytest.mark.parametrize(
    "prompt",
    [[1, [2]], [1, {"prompt_string": "a"}], {"prompt_string": "a", "multimodal_data": ["aGk="]}],
)
def test_what_is_no_prompt_is_refused_under_the_name_it_was_sent_by(prompt: Any):
    with pytest.raises(InvalidRequest) as refused:
        llama_server.read_embedding(llama_server.EmbeddingFields.model_validate({"input": prompt}))
    assert refused.value.field == "input"


@pytest.mark.fault(
    "text",
    "`max_tokens` or `max_completion_tokens` at `/completion`",
    before="It was ignored, and the text continued to its end.",
    now="It is the limit, unless there is `n_predict`, as in llama-server.",
)
@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        ({}, -1),
        ({"max_tokens": 3}, 3),
        ({"max_tokens": 0}, 0),
        ({"max_completion_tokens": 4, "max_tokens": 3}, 4),
        ({"n_predict": 5, "max_completion_tokens": 4, "max_tokens": 3}, 5),
    ],
)
def test_the_token_limit_of_a_native_completion_has_three_names(limits: Any, limit: int):
    fields = llama_server.CompletionFields.model_validate({"prompt": "a", **limits})
    [request] = llama_server.read_completion(fields).requests
    assert request.token_limit == limit


@pytest.mark.fault(
    "text",
    "`temperature` below 0, by which clients of llama-server ask for greedy decoding",
    before="It was refused.",
    now="It is greedy.",
)
def test_a_temperature_below_zero_is_greedy():
    assert asked({"temperature": -1}).sampling.temperature == 0


@pytest.mark.parametrize("text", ["\ud800", ["a", "\udc00"], {"\ud800": 1}])
def test_half_a_surrogate_pair_is_refused(text: Any):
    with pytest.raises(ValueError, match="surrogate"):
        GenerationFields.model_validate({"stop": text})


def test_lines_of_a_draft_are_asked_for_by_the_names_that_people_know():
    request = asked({"speculative": {"n_parallel": 4, "p_split": 0.1}})
    assert (request.n_parallel, request.p_split) == (4, 0.1)
    request = asked({"speculative": {}})
    assert (request.n_parallel, request.p_split) == (None, None)


# --- counts ---


def test_the_histogram_follows_from_the_counts_by_position():
    # Four rounds with drafts of 3, 3, 2 and 1 tokens, of which 3, 1, 2 and 0 were accepted.
    statistics = Statistics(
        drafted_round_count=4,
        drafted_token_count=9,
        accepted_token_count=6,
        drafted_by_position=(4, 3, 2),
        accepted_by_position=(3, 2, 1),
        drafted_by_round=(3, 3, 2, 1),
        accepted_by_round=(3, 1, 2, 0),
    )
    assert acceptance_histogram(statistics) == [1, 1, 1, 1]
    told = acceptance_metrics(statistics)["speculative_decoding"]
    assert told["mean_acceptance_length"] == 2.5
    assert sum(told["acceptance_histogram"]) == told["num_spec_steps"]
    assert told["num_spec_tokens"] == 3
    assert told["per_step_drafted"] == [3, 3, 2, 1]
    assert told["per_step_accepted"] == [3, 1, 2, 0]


def test_nothing_drafted_divides_by_nothing():
    told = acceptance_metrics(Statistics())["speculative_decoding"]
    assert (told["mean_acceptance_length"], told["acceptance_histogram"]) == (1.0, [0])
    assert "draft_n" not in timings(Statistics())


# --- tokens and text ---


def delta(ids: list[int], texts: list[bytes], shown: str) -> Delta:
    return Delta(
        token_ids=tuple(ids),
        token_texts=tuple(texts),
        origins=(Origin.DRAFTED,) * len(ids),
        pieces=(TextPiece(shown, Origin.DRAFTED),) if shown else (),
    )


def test_tokens_come_with_the_start_of_their_text_and_those_of_a_stop_sequence_never():
    completion = Completion()
    addition = completion.add(delta([1, 2], [b"ab", b"cS"], "abc"))
    assert [token.token_id for token in addition.tokens] == [1, 2]
    assert completion.add(delta([3], [b"TO"], "")).tokens == ()
    end = Finished(FinishReason.STOP_SEQUENCE, Statistics())
    assert completion.finish(end).tokens == ()
    assert [token.token_id for token in completion.shown] == [1, 2]


def test_what_only_looked_like_a_stop_sequence_comes_at_the_end():
    completion = Completion()
    completion.add(delta([1, 2], [b"ab", b"S"], "ab"))
    end = Finished(FinishReason.TOKEN_LIMIT, Statistics())
    assert [token.token_id for token in completion.finish(end).tokens] == [2]


@pytest.mark.fault(
    "text",
    "`embd_normalize` at `/embedding`",
    before="It was ignored: every vector had length 1.",
    now="It decides the length, as in llama-server.",
)
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (None, [0.6, -0.8]),
        (2, [0.6, -0.8]),
        (-1, [3.0, -4.0]),
        (0, [24570.0, -32760.0]),
        (1, [3 / 7, -4 / 7]),
        (2**31 - 1, [0.75, -1.0]),
    ],
)
def test_an_embedding_has_the_length_that_is_asked_for(kind: int | None, values: list[float]):
    fields = llama_server.EmbeddingFields.model_validate({"content": "a", "embd_normalize": kind})
    found = [messages.Embedding(values=[0.6, -0.8], norm=5.0)]
    [answer] = llama_server.embeddings(found, fields)
    assert answer["embedding"] == [pytest.approx(values, rel=1e-6)]


def test_an_embedding_has_no_negative_norm():
    with pytest.raises(InvalidRequest, match="embd_normalize: must be at least -1, not -2"):
        llama_server.read_embedding(llama_server.EmbeddingFields(content="a", embd_normalize=-2))


def test_an_embedding_of_nothing_but_zeros_stays_one():
    for kind in (-1, 0, 1):
        fields = llama_server.EmbeddingFields(content="a", embd_normalize=kind)
        [answer] = llama_server.embeddings([messages.Embedding(values=[0, 0], norm=1.0)], fields)
        assert answer["embedding"] == [[0, 0]]


@pytest.mark.fault(
    "text",
    "the speed in `timings` of a short text",
    before="The first token counted as generated in no time: one token had thousands a second.",
    now="It is that of the tokens after the first, and 0 where there are none, as in llama-server.",
)
def test_the_speed_of_a_text_is_that_of_the_tokens_after_the_first():
    shape = timings(Statistics(generated_token_count=5, generation_seconds=0.04))
    assert (shape["predicted_n"], shape["predicted_ms"]) == (5, 40)
    assert (shape["predicted_per_token_ms"], shape["predicted_per_second"]) == (10, 100)
    shape = timings(Statistics(generated_token_count=1))
    assert (shape["predicted_per_token_ms"], shape["predicted_per_second"]) == (0, 0)


def test_a_bias_that_json_cannot_write_is_null_in_the_settings():
    sampling = SamplingParameters(logit_bias=((1, -math.inf), (2, 0.5)))
    settings = llama_server.sampling_settings(sampling)
    assert settings["logit_bias"] == [{"token": 1, "bias": None}, {"token": 2, "bias": 0.5}]


def test_the_page_has_every_number_of_sampling_from_its_lowest_value_on() -> None:
    text = (ROOT / "gateway/page_files/sampling.js").read_text()
    shown = dict(re.findall(r'\["(\w+)", "[^"]+", ([-.\d]+), ', text))
    numbers = {each.name: each.metadata["low"] for each in dataclasses.fields(SamplingNumbers)}
    del numbers["temperature"]  # its field is not among those of the samplers
    assert {name: float(low) for name, low in shown.items()} == numbers


def test_the_documents_name_the_range_and_the_default_of_every_number_of_sampling() -> None:
    text = (ROOT / "docs/reference/sampling.md").read_text()
    rows = [line.split("|")[1:4] for line in text.splitlines() if line.startswith("| `")]
    said = {name: (said, default) for names, said, default in rows for name in names.split("`")}
    for each in dataclasses.fields(SamplingNumbers):
        (bounds, default), low = said[each.name], each.metadata["low"]
        assert bounds.split()[0].strip(",") == f"{low:g}", each.name
        assert float(default) == each.default, each.name
