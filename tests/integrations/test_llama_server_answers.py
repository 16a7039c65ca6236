"""What a llama-server is asked, what of its answers is taken, and which draft tokens that makes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from outrider.distribution import distribution_of
from outrider.errors import InvalidConfig, InvalidRequest
from outrider.messages import Rule, SessionParameters, Span
from outrider.sampling import GREEDY, SamplingParameters
from outrider_llama_server.answers import (
    Said,
    completion_body,
    read_completion,
    read_served,
    read_token_milliseconds,
)
from outrider_llama_server.guesses import Guessing
from outrider_llama_server.http import HttpServer

PROPS = {"default_generation_settings": {"n_ctx": 512}, "total_slots": 3, "model_path": "a.gguf"}
META = {"vocab_type": 2, "n_vocab": 40, "size": 7, "n_params": 5}
MODELS = {"data": [{"id": "a", "meta": META}]}


def session(rule: Rule = Rule.MATCH, **changes: Any) -> SessionParameters:
    sampling = GREEDY if rule is Rule.MATCH else SamplingParameters(temperature=0.8)
    known: dict[str, Any] = {
        "session_id": bytes(16),
        "attempt": 1,
        "rule": rule,
        "sampling": sampling,
        "seed": 3,
        "choice": 0,
        "prompt_count": 2,
        "token_limit": 8,
        "vocabulary": 40,
    }
    return SessionParameters(**known | changes)


def said(token_id: int, *likely: tuple[int, float]) -> Said:
    ids = np.array([i for i, _ in likely], np.int32)
    return Said(token_id, ids, np.log(np.array([p for _, p in likely], np.float32)))


def row(token_id: int, *likely: tuple[int, float]) -> dict[str, Any]:
    return {"id": token_id, "top_logprobs": [{"id": i, "logprob": value} for i, value in likely]}


def test_another_model_has_another_identity() -> None:
    served = read_served(PROPS, MODELS)
    assert (served.vocabulary, served.context, served.slots) == (40, 512, 3)
    other = read_served(PROPS | {"model_path": "b.gguf"}, MODELS)
    assert len(served.identity) == 32
    assert served.identity != other.identity


@pytest.mark.parametrize(
    ("props", "models"),
    [
        ([], MODELS),
        ({}, MODELS),
        (PROPS, {"data": []}),
        (PROPS, {"data": [{"id": "a"}]}),
        (PROPS, {"data": [{"meta": META | {"n_vocab": 0}}]}),
        (PROPS, {"data": [{"meta": META | {"n_vocab": True}}]}),
        (PROPS | {"default_generation_settings": {"n_ctx": "512"}}, MODELS),
    ],
)
def test_what_describes_no_model_is_refused(props: Any, models: Any) -> None:
    with pytest.raises(InvalidRequest):
        read_served(props, models)


def test_a_block_of_rejection_has_as_many_tokens_as_were_asked_for() -> None:
    assert completion_body([1], 4, session(Rule.REJECTION), 40)["ignore_eos"] is True
    assert completion_body([1], 4, session(), 40)["ignore_eos"] is False


def test_biases_and_penalties_go_along_where_llama_server_has_the_ids() -> None:
    sampling = replace(GREEDY, logit_bias=((5, 2.0), (6, -math.inf), (99, 1.0)), repeat_penalty=1.1)
    body = completion_body([1, 2], 4, session(sampling=sampling), 40)
    assert body["logit_bias"] == [[5, 2.0], [6, False]]
    assert body["samplers"] == ["penalties", "top_k"]
    assert body["repeat_penalty"] == 1.1


def test_a_token_that_ends_inside_a_character_has_no_row() -> None:
    answer = {
        "tokens": [5, 6, 7],
        "completion_probabilities": [row(5, (5, -0.1), (8, -3.0)), row(7, (7, -0.2))],
    }
    first, second, third = read_completion(answer, 3, 40)
    assert first.token_ids.tolist() == [5, 8]
    assert second.token_ids.tolist() == []
    assert third.token_ids.tolist() == [7]


def test_candidates_are_distinct_and_the_likeliest_first() -> None:
    answer = {
        "tokens": [5],
        "completion_probabilities": [row(5, (8, -3.0), (5, -0.1), (8, -2.0), (9, -3.4e38))],
    }
    [only] = read_completion(answer, 1, 40)
    assert only.token_ids.tolist() == [5, 8]
    assert only.log_probabilities.tolist() == pytest.approx([-0.1, -2.0])


def test_a_time_that_is_none_is_not_taken() -> None:
    assert read_token_milliseconds({"timings": {"predicted_per_token_ms": 2.5}}) == 2.5
    for wrong in (None, "2", -1.0, math.nan, math.inf):
        assert read_token_milliseconds({"timings": {"predicted_per_token_ms": wrong}}) == 0.0


def test_greedy_tokens_are_llama_servers_own() -> None:
    tokens = [said(5, (5, 0.75), (8, 0.25)), said(6, (6, 0.5)), said(7)]
    guesses = list(Guessing(session()).guesses(tokens, 4))
    assert [guess.token_id for guess in guesses] == [5, 6, 7]
    assert [guess.confidence for guess in guesses] == [191, 127, 127]


def test_a_token_that_the_target_lacks_is_replaced_and_ends_what_is_taken() -> None:
    tokens = [said(45, (45, 0.9), (8, 0.1)), said(6, (6, 1.0))]
    assert [guess.token_id for guess in Guessing(session()).guesses(tokens, 4)] == [8]
    assert [guess.token_id for guess in Guessing(session()).guesses([said(45)], 4)] == [39]


def test_above_temperature_0_tokens_are_drawn_with_the_targets_noise() -> None:
    its = session(Rule.SHARED_NOISE)
    likely = ((5, 0.5), (8, 0.3), (9, 0.2))
    drawn = []
    for position in range(60):
        [guess] = list(Guessing(its).guesses([said(5, *likely), said(6)], position))[:1]
        drawn.append(guess.token_id)
        values = np.full(40, -np.inf, np.float32)
        values[[5, 8, 9]] = np.log([0.5, 0.3, 0.2])
        target = distribution_of(values, its.sampling)
        assert guess.token_id == target.race(its.seed, 0, position)[0]
    assert set(drawn) == {5, 8, 9}


def test_noise_counts_what_was_dropped_of_the_text() -> None:
    its = session(Rule.SHARED_NOISE)
    shorter = replace(its, dropped=Span(1, (2,) * 10))
    token = said(5, (5, 0.4), (8, 0.3), (9, 0.3))
    for position in range(20):
        [there] = Guessing(its).guesses([token], position + 10)
        [here] = Guessing(shorter).guesses([token], position)
        assert there == here


def test_what_llama_server_wrote_is_taken_up_to_the_first_that_is_not_drawn() -> None:
    guessing = Guessing(session(Rule.SHARED_NOISE))
    tokens = [said(5, (5, 0.5), (8, 0.5))] * 8
    for position in range(40):
        guesses = list(guessing.guesses(tokens, position))
        assert all(guess.token_id == 5 for guess in guesses[:-1])
        assert len(guesses) == 8 or guesses[-1].token_id == 8


def test_under_rejection_a_token_is_sent_as_certain() -> None:
    its = session(Rule.REJECTION, min_probability=0.9)
    for guess in Guessing(its).guesses([said(5, (5, 0.5), (8, 0.5))] * 3, 4):
        assert guess.row is not None
        assert guess.row.token_ids.tolist() == [5]
        assert not guess.doubtful


def test_a_session_gets_no_token_that_it_does_not_want() -> None:
    token = said(5, (5, 0.5), (8, 0.4))
    [unlikely] = Guessing(session(min_probability=0.6)).guesses([token], 4)
    [close] = Guessing(session(min_ratio=2.0)).guesses([token], 4)
    [wanted] = Guessing(session(min_probability=0.4, min_ratio=1.2)).guesses([token], 4)
    assert (unlikely.doubtful, close.doubtful, wanted.doubtful) == (True, True, False)


def test_candidates_are_reported_where_a_session_asks_for_them() -> None:
    token = said(5, (5, 0.5), (45, 0.3), (8, 0.2))
    [guess] = Guessing(session(candidate_count=2)).guesses([token], 4)
    assert [i for i, _ in guess.candidates] == [5, 8]
    [guess] = Guessing(session(candidate_count=2)).guesses([said(5)], 4)
    assert [i for i, _ in guess.candidates] == [5]


@pytest.mark.parametrize(
    "url", ["", "localhost:8080", "ftp://a", "http://", "http://a:99999", "http://a/?b", "http://ä"]
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfig, match="llama-server"):
        HttpServer(url)
