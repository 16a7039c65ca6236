"""The predecessor library's requests and answers, under its own names. Pure.

Its options keep its defaults where they differ from ours: no min-p, a
repetition penalty of 1.1, and a full context that shifts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from gateway.gathering import ORIGINS, CommittedToken, Completion
from gateway.llama_server import sampling_settings
from gateway.options import GenerationFields, Int32, ListOf, SpeculativeFields, generate_request
from gateway.usage import timings
from outrider.errors import InvalidRequest, OutriderError
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages

_DEFAULTS: dict[str, Any] = {
    "n_predict": -1,
    "n_keep": 0,
    "n_probs": 0,
    "temperature": 0.8,
    "min_p": 0.0,
    "repeat_penalty": 1.1,
}
"""The library's, where others have none or another one."""


class LibraryFields(GenerationFields):
    """What `get_completion` and `async_completion_init` take."""

    prompt: str | ListOf[str | Int32] = ""
    stop: ListOf[str] | str | None = None
    origins: bool = False
    debug: bool = False


@dataclass(frozen=True, slots=True)
class LibraryRequest:
    """A completion that the library's caller wants: as a request, and as it was said."""

    request: messages.GenerateRequest
    fields: LibraryFields
    settings: dict[str, Any]
    """What was said, and the library's own defaults of the rest."""


def read_library_request(body: Mapping[str, Any], vocabulary_size: int) -> LibraryRequest:
    """Return what a caller wants; null is as good as absent, in a list of stop words too.

    Biases of ids outside the vocabulary and empty stop words are ignored, as
    the library did. Raises InvalidRequest.
    """
    given = {name: value for name, value in body.items() if value is not None}
    if given.get("stream"):
        raise InvalidRequest("stream", "is not for get_completion: use async_completion_init")
    said = _in_range(_DEFAULTS | given)
    said["debug"] = bool(said.pop("__debug", False))
    said["logit_bias"] = _known_biases(said.get("logit_bias"), vocabulary_size)
    try:
        fields = LibraryFields.model_validate(said)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidRequest(str(first["loc"][0] if first["loc"] else ""), first["msg"]) from None
    if fields.seed is not None and fields.seed < 0:
        fields.seed = None
    request = generate_request(fields, token_limit=-1)
    request.overflow.truncate_prompt = request.overflow.shift = True
    request.overflow.keep_token_count = fields.n_keep or 0
    request.parse_special = False
    request.finish_character = True  # as the library did
    _set_prompt(request, fields.prompt)
    if fields.n_probs:
        request.logprobs.top_count = fields.n_probs
        # The library reports what it drew from, and at temperature 0 the softmax.
        request.logprobs.after_sampling = bool(fields.temperature)
    return LibraryRequest(request, fields, said)


_RANGES = {
    "temperature": (0.0, math.inf),
    **dict.fromkeys(("top_p", "typical_p", "tfs_z"), (0.0, 1.0)),
    **dict.fromkeys(("repeat_last_n", "n_predict", "n_keep"), (-1, math.inf)),
    "n_probs": (0, math.inf),
}
"""Outside, numbers mean what the nearest end does; the library took all of them."""


def _in_range(said: dict[str, Any]) -> dict[str, Any]:
    """Return what was said with the library's liberties spelled out."""
    meant = dict(said)
    for name, (low, high) in _RANGES.items():
        if isinstance(said.get(name), int | float):
            meant[name] = min(max(said[name], low), high)
    if isinstance(said.get("stop"), list):
        meant["stop"] = [word for word in said["stop"] if word is not None]
    return meant


def _known_biases(biases: Any, vocabulary_size: int) -> list[Any]:
    """Return the pairs of a bias list that the library would have looked at."""
    if isinstance(biases, Mapping):
        biases = [[int(k) if str(k).isdecimal() else k, v] for k, v in biases.items()]
    known = []
    for pair in biases if isinstance(biases, list) else ():
        if not (isinstance(pair, list | tuple) and len(pair) == 2):
            continue
        token, bias = pair
        is_id = type(token) is int and 0 <= token < vocabulary_size
        if (is_id or isinstance(token, str)) and (bias is False or type(bias) in (int, float)):
            known.append([token, bias])
    return known


def _set_prompt(request: messages.GenerateRequest, prompt: str | Sequence[str | int]) -> None:
    parts = [prompt] if isinstance(prompt, str) else prompt
    request.prompt_parts.SetInParent()
    for part in parts:
        if isinstance(part, str):
            request.prompt_parts.parts.add(text=part)
        else:
            request.prompt_parts.parts.add(token_id=part)


# --- answers ---


def piece(text: bytes) -> str:
    """Return a token's text as the library showed it: a lone byte of a character by its number."""
    if len(text) == 1 and text[0] >= 0x80:
        return f"byte: \\x{text[0]:02x}"
    return text.decode("utf-8", "replace")


def prompt_stats(started: messages.GenerationStarted, texts: Sequence[bytes]) -> dict[str, Any]:
    """Return how a prompt was read: the library's own keys."""
    ids, cached = started.prompt_token_ids, started.cached_token_count

    def text(part: Iterable[int]) -> str:
        return b"".join(texts[token_id] for token_id in part).decode("utf-8", "replace")

    return {
        "n_ctx": started.context_token_count,
        "total_prompt_tokens": started.untruncated_token_count,
        "truncated": started.truncated,
        "n_past": cached,
        "cached": text(ids[:cached]),
        "to_eval": text(ids[cached:]),
    }


class Progress:
    """What has come of a completion, cut to the text that is shown."""

    def __init__(
        self, asked: LibraryRequest, started: messages.GenerationStarted, texts: Sequence[bytes]
    ) -> None:
        self.asked = asked
        self.started = started
        self.texts = texts
        self.origins: list[str] = []
        self._completion = Completion()

    @property
    def text(self) -> str:
        """The text so far."""
        return self._completion.text

    def add(self, delta: messages.GenerationDelta) -> dict[str, Any]:
        """Take in more; return the update that reports it."""
        addition = self._completion.add(delta)
        self.origins += [ORIGINS[origin] for origin in delta.origins]
        update: dict[str, Any] = {"content": addition.text, "stop": False}
        if self.asked.fields.n_probs:
            update["completion_probabilities"] = _probabilities(addition.tokens)
        return update

    def final(
        self,
        finished: messages.GenerationFinished,
        content: str | None = None,
        is_job: bool = False,
    ) -> dict[str, Any]:
        """Return the last message: the library's own keys, and what speculation brought."""
        its = finished.statistics
        reason = finished.reason
        fields = self.asked.fields
        answer: dict[str, Any] = {
            "content": self._completion.text if content is None else content,
            "stop": True,
            "model": self.started.model_name,
            "tokens_predicted": its.generated_token_count,
            "tokens_evaluated": len(self.started.prompt_token_ids),
            "generation_settings": settings(self.asked, self.started) | {"stream": is_job},
            "prompt": fields.prompt,
            "truncated": finished.truncated or self.started.truncated,
            "stopped_eos": reason == messages.FINISH_REASON_END_OF_TEXT,
            "stopped_word": reason == messages.FINISH_REASON_STOP_SEQUENCE,
            "stopped_limit": reason
            in (messages.FINISH_REASON_TOKEN_LIMIT, messages.FINISH_REASON_CONTEXT_FULL),
            "stopping_word": finished.stop_sequence,
            "tokens_cached": min(
                max(0, len(self.started.prompt_token_ids) + its.generated_token_count - 1),
                self.started.context_token_count,
            ),
            "timings": {
                name: value
                for name, value in timings(its).items()
                if name.startswith(("prompt_", "predicted_"))
            },
            "status": 200,
            "drafted": its.drafted_token_count,
            "accepted": its.accepted_token_count,
            "acceptance_rate": its.accepted_token_count / its.drafted_token_count
            if its.drafted_token_count
            else 0.0,
        }
        if reason == messages.FINISH_REASON_CANCELLED:
            answer["cancelled"] = True
        if fields.n_probs:
            answer["completion_probabilities"] = _probabilities(self._completion.shown)
        if fields.origins:
            answer["origins"] = self.origins
        return answer

    def interrupted(self, error: OutriderError) -> dict[str, Any]:
        """Return the answer of a completion that failed on the way: what there is, and why."""
        counted = messages.GenerationStatistics(
            prompt_token_count=len(self.started.prompt_token_ids),
            cached_token_count=self.started.cached_token_count,
            generated_token_count=len(self.origins),
        )
        answer = self.final(messages.GenerationFinished(statistics=counted))
        reported = {"reason": error.reason, "message": str(error), **error.metadata}
        return answer | {"status": 500, "error": reported}


def _probabilities(tokens: Iterable[CommittedToken]) -> list[dict[str, Any]]:
    return [
        {
            "content": piece(token.text),
            "probs": [
                {"tok_str": piece(each.token.text), "prob": math.exp(each.log_probability)}
                for each in (token.logprob.alternatives if token.logprob else ())
            ],
        }
        for token in tokens
    ]


def settings(asked: LibraryRequest, started: messages.GenerationStarted) -> dict[str, Any]:
    """Return `generation_settings`: every key of the library's and more, everything resolved."""
    sampling, fields, said = started.sampling, asked.fields, asked.settings
    shown = sampling_settings(sampling)
    temperature = shown.pop("temperature")
    return {
        **shown,
        "n_ctx": started.context_token_count,
        "model": started.model_name,
        "seed": started.seed,
        "temp": _short(temperature),
        "top_p": _short(sampling.top_p),
        "min_p": _short(sampling.min_p),
        "penalize_nl": sampling.penalize_newline,
        "stop": list(asked.request.stop_sequences),
        "n_predict": said["n_predict"],
        "n_keep": said["n_keep"],
        "ignore_eos": bool(fields.ignore_eos),
        "stream": False,
        "logit_bias": [_write_bias(each) for each in sampling.logit_biases],
        "n_probs": fields.n_probs or 0,
        "speculative": _write_speculative(fields.speculative),
    }


def _short(value: float) -> float:
    """Return the shortest number that is the same 32-bit float."""
    return float(f"{value:.7g}")


def _write_bias(bias: common.LogitBias) -> list[Any]:
    return [bias.token_id, False if bias.bias == -math.inf else bias.bias]


def _write_speculative(parsed: SpeculativeFields | None) -> dict[str, Any]:
    return {} if parsed is None else parsed.model_dump(exclude_none=True)


def failed(error: messages.JobError) -> dict[str, Any]:
    """Return the last message of a job that failed."""
    return {
        "content": "",
        "stop": True,
        "status": 500,
        "error": {"reason": error.reason, "message": error.message, **dict(error.metadata)},
    }


def read_command_line(text: str) -> dict[str, Any]:
    """Return what a command line of the library's `init` says, as its JSON form would.

    Quotes are not special: the library split at spaces. Raises InvalidRequest.
    """
    if text.lstrip().startswith("{"):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise InvalidRequest("params", f"is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise InvalidRequest("params", "must be an object")
        return found
    names = {
        **dict.fromkeys(("-m", "--model"), "model"),
        **dict.fromkeys(("-md", "--model-draft"), "model_draft"),
        **dict.fromkeys(("-a", "--alias"), "model_alias"),
        "--host": "hostname",
        "--port": "port",
        **dict.fromkeys(("-to", "--timeout"), "read_timeout"),
        **dict.fromkeys(("-t", "--threads"), "n_threads"),
        **dict.fromkeys(("-ngl", "--n-gpu-layers", "--gpu-layers"), "n_gpu_layers"),
        **dict.fromkeys(("-c", "--ctx-size"), "n_ctx"),
    }
    words = [word for word in text.split(" ") if word]
    if words and not words[0].startswith("-"):
        words = words[1:]  # the name of the program
    said: dict[str, Any] = {}
    while words:
        flag = words.pop(0)
        if flag not in names:
            raise InvalidRequest("params", f"{flag!r} is not known")
        if not words:
            raise InvalidRequest("params", f"{flag} needs a value")
        said[names[flag]] = words.pop(0)
    return said
