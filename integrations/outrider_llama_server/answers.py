"""What llama-server is asked and what it may answer, checked before anything relies on it. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.errors import InvalidRequest
from outrider.messages import Rule, SessionParameters
from outrider.sampling import SamplingParameters

MOST_CANDIDATES = 64
_FEWEST_CANDIDATES = 2  # the best one and the next say by how much it leads
_MOST_SLOTS = 256
_MOST_VOCABULARY = 1 << 22
_MOST_CONTEXT = 1 << 24
_LONGEST_NAME = 256
_LONGEST_TOKEN = 3.6e6  # milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The model that a llama-server serves, by what it says of itself."""

    name: str
    path: str
    vocabulary: int  # ids are [0, vocabulary)
    vocabulary_type: int  # llama.cpp's number
    context: int  # tokens of one slot
    slots: int
    byte_count: int = 0
    parameter_count: int = 0

    @property
    def identity(self) -> bytes:
        """What another model has another of: 32 bytes. It knows no digest of the weights."""
        facts = (self.path, self.vocabulary, self.byte_count, self.parameter_count)
        return hashlib.sha256(f"llama-server {facts}".encode()).digest()


def read_served(props: Any, models: Any) -> Served:
    """Return what `/props` and `/v1/models` say. Raises InvalidRequest where that is no model."""
    settings = _object(_object(props, "props"), "props").get("default_generation_settings")
    listed = _object(models, "models").get("data")
    if not isinstance(listed, list) or not listed:
        raise InvalidRequest("models.data", "lists no model")
    first = _object(listed[0], "models.data")
    meta = _object(first.get("meta"), "models.data.meta")
    name, path = first.get("id", ""), props.get("model_path", "")
    return Served(
        name=str(name)[:_LONGEST_NAME],
        path=str(path),
        vocabulary=_whole(meta, "n_vocab", 1, _MOST_VOCABULARY),
        vocabulary_type=_whole({"vocab_type": 0} | meta, "vocab_type", 0, 1 << 16),
        context=_whole(_object(settings, "settings"), "n_ctx", 2, _MOST_CONTEXT),
        slots=min(_MOST_SLOTS, _whole({"total_slots": 1} | props, "total_slots", 1, 1 << 20)),
        byte_count=_whole({"size": 0} | meta, "size", 0, 1 << 62),
        parameter_count=_whole({"n_params": 0} | meta, "n_params", 0, 1 << 62),
    )


@dataclass(frozen=True, slots=True)
class Said:
    """A token that llama-server wrote, and the likeliest ids in its place, where it said them."""

    token_id: int
    token_ids: NDArray[np.int32]  # int32[candidates], distinct; empty where it did not
    log_probabilities: NDArray[np.float32]  # of each, before any sampler, in falling order


_UNSAID = np.empty(0, np.int32), np.empty(0, np.float32)


def completion_body(
    text: Sequence[int], count: int, session: SessionParameters, vocabulary: int
) -> dict[str, Any]:
    """Return what asks for `count` greedy tokens after a text, in ids below `vocabulary`.

    A fixed number is written under `rejection`, where no token may decide how many there are.
    """
    sampling = session.sampling
    asked: dict[str, Any] = {
        "prompt": list(text),
        "n_predict": count,
        "stream": False,
        "return_tokens": True,
        "cache_prompt": True,
        "ignore_eos": session.rule is Rule.REJECTION,
        "samplers": ["top_k"],
        "temperature": 0.0,
        "top_k": 1,
        "n_probs": candidate_count(session),
        "post_sampling_probs": False,
        "response_fields": ["tokens", "completion_probabilities", "timings"],
    }
    if biases := [[i, bias] for i, bias in sampling.logit_bias if i < vocabulary]:
        asked["logit_bias"] = [[i, False if bias == -math.inf else bias] for i, bias in biases]
    if sampling.penalizes:
        asked |= {
            "samplers": ["penalties", "top_k"],
            "repeat_last_n": sampling.repeat_last_n,
            "repeat_penalty": sampling.repeat_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
        }
    return asked


def candidate_count(session: SessionParameters) -> int:
    """Return how many of the likeliest tokens of a position are of use to a session."""
    count = max(_FEWEST_CANDIDATES, session.candidate_count)
    if session.rule is Rule.SHARED_NOISE and not session.sampling.greedy:
        count = max(count, session.sampling.top_k or MOST_CANDIDATES)
    return min(count, MOST_CANDIDATES)


def read_completion(answer: Any, count: int, vocabulary: int) -> list[Said]:
    """Return the tokens of an answer of `count` at most.

    Raises InvalidRequest for ids that are none, for more than was asked for, and for an answer
    without ids, as very old servers give.
    """
    body = _object(answer, "answer")
    ids = body.get("tokens")
    if not isinstance(ids, list) or len(ids) > count:
        raise InvalidRequest("tokens", f"is no list of {count} ids at most")
    rows = body.get("completion_probabilities", [])
    if not isinstance(rows, list):
        raise InvalidRequest("completion_probabilities", "is no list")
    said, rest = [], iter(rows)
    row = next(rest, None)
    for each in ids:
        token_id = _id(each, vocabulary)
        # A token that ends inside a character has no row of its own.
        likely = _UNSAID
        if row is not None and _object(row, "completion_probabilities").get("id") == token_id:
            likely, row = _read_row(row, vocabulary), next(rest, None)
        said.append(Said(token_id, *likely))
    return said


def _read_row(row: Any, vocabulary: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    listed = row.get("top_logprobs", [])
    if not isinstance(listed, list) or len(listed) > MOST_CANDIDATES:
        raise InvalidRequest("top_logprobs", f"is no list of {MOST_CANDIDATES} at most")
    known: dict[int, float] = {}
    for each in listed:
        value = _object(each, "top_logprobs").get("logprob")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value <= 0.001:
            raise InvalidRequest("logprob", f"{value!r} is no logarithm of a probability")
        if value > -1e30:
            known[_id(each.get("id"), vocabulary)] = float(value)
    ordered = sorted(known.items(), key=lambda pair: -pair[1])
    ids = np.array([i for i, _ in ordered], np.int32)
    return ids, np.array([value for _, value in ordered], np.float32)


def read_token_milliseconds(answer: Any) -> float:
    """Return what a token of a completion took by llama-server's own clock; 0 if not said."""
    timings = _object(answer, "answer").get("timings")
    value = timings.get("predicted_per_token_ms") if isinstance(timings, dict) else None
    is_time = isinstance(value, int | float) and 0.0 < value <= _LONGEST_TOKEN
    return float(value) if is_time and value is not None else 0.0


def read_content(answer: Any) -> str:
    """Return the text of an answer of `/detokenize`. Raises InvalidRequest."""
    content = _object(answer, "answer").get("content")
    if not isinstance(content, str):
        raise InvalidRequest("content", "is no text")
    return content


def takes_noise(sampling: SamplingParameters) -> bool:
    """Return whether the likeliest tokens are enough to sample as the target does."""
    return not sampling.greedy and set(sampling.beyond_basic()) <= {"logit_bias"}


def _id(value: Any, vocabulary: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < vocabulary:
        raise InvalidRequest("tokens", f"{value!r} is no id in [0, {vocabulary})")
    return value


def _whole(body: dict[str, Any], name: str, low: int, high: int) -> int:
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequest(name, f"{value!r} is no whole number in [{low}, {high}]")
    return value


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(name, "is no object")
    return value
