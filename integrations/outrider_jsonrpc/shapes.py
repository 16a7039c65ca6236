"""The predecessor library's requests and answers, under its own names.

Its options keep its defaults where they differ from ours: no min-p, a
repetition penalty of 1.1, and a full context that shifts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.client import Delta, Finished, FinishReason, Logprob, Request, Started
from outrider.errors import InvalidRequest, OutriderError
from outrider.messages import LogprobOptions, Rule
from outrider.sampling import NUMBERS, SamplingParameters, read_stages
from outrider.speculation import DraftTemplate, Policy, Verification

_DEFAULTS: dict[str, Any] = {
    "n_predict": -1,
    "n_keep": 0,
    "n_probs": 0,
    "temperature": 0.8,
    "min_p": 0.0,
    "repeat_penalty": 1.1,
}
"""The library's, where others have none or another one."""

_RANGES = {
    "temperature": (0.0, math.inf),
    **dict.fromkeys(("top_p", "typical_p", "tfs_z"), (0.0, 1.0)),
    **dict.fromkeys(("repeat_last_n", "n_predict", "n_keep"), (-1, math.inf)),
    **dict.fromkeys(("n_probs", "top_k"), (0, math.inf)),
}
"""Outside, numbers mean what the nearest end does; the library took all of them."""

Read = Callable[[str, Any], Any]
"""Returns the value of an option, by its name. Raises InvalidRequest."""


def _real(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(name, "must be a number")
    return value


def _whole(name: str, value: Any) -> int:
    if _real(name, value) != int(value):
        raise InvalidRequest(name, "must be a whole number")
    return int(value)


def _yes_or_no(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(name, "must be true or false")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(name, "must be a text")
    return value


def _texts(name: str, value: Any) -> list[str]:
    if not isinstance(value, list):
        raise InvalidRequest(name, "must be a list of texts")
    return [_text(name, each) for each in value]


def _one_of(kind: Any) -> Read:
    known = {each.value: each for each in kind}

    def read(name: str, value: Any) -> Any:
        if not isinstance(value, str) or value not in known:
            raise InvalidRequest(name, f"must be one of {', '.join(known)}")
        return known[value]

    return read


SPECULATIVE: Mapping[str, Read] = {
    "enabled": _yes_or_no,
    **dict.fromkeys(("n_max", "n_min", "n_parallel"), _whole),
    **dict.fromkeys(("p_min", "p_split"), _real),
    "run_ahead": _yes_or_no,
    "policy": _one_of(Policy),
    "acceptance": _one_of(Rule),
    "verification": _one_of(Verification),
    "drafters": lambda name, value: frozenset(_texts(name, value)),
    "draft_template": _one_of(DraftTemplate),
}
"""What `speculative` takes; nothing of it changes the distribution of the text."""


@dataclass(frozen=True, slots=True)
class LibraryRequest:
    """A completion that the library's caller wants: as a request, and as it was said."""

    request: Request
    said: Mapping[str, Any]
    """What was said, and the library's own defaults of the rest."""

    @property
    def top_count(self) -> int:
        """How many probabilities of each token are wanted; 0: none."""
        return self.request.logprobs.top_count if self.request.logprobs else 0


def read_library_request(body: Mapping[str, Any], vocabulary_size: int) -> LibraryRequest:
    """Return what a caller wants; null is as good as absent, in a list of stop words too.

    Biases of ids outside the vocabulary and empty stop words are ignored, as
    the library did. Raises InvalidRequest.
    """
    said = _DEFAULTS | {name: value for name, value in body.items() if value is not None}
    if said.get("stream"):
        raise InvalidRequest("stream", "is not for get_completion: use async_completion_init")

    def read(name: str, reader: Read, default: Any) -> Any:
        return reader(name, said[name]) if name in said else default

    for name, (low, high) in _RANGES.items():
        if name in said:
            said[name] = min(max(_real(name, said[name]), low), high)
    seed, top_count = read("seed", _whole, -1), read("n_probs", _whole, 0)
    speculative = said.get("speculative", {})
    if not isinstance(speculative, dict):
        raise InvalidRequest("speculative", "must be an object")
    chosen = {
        name: reader(name, speculative[name])
        for name, reader in SPECULATIVE.items()
        if speculative.get(name) is not None
    }
    said["speculative"] = {name: speculative[name] for name in chosen}
    request = Request(
        _prompt(said.get("prompt", "")),
        token_limit=read("n_predict", _whole, -1),
        sampling=_sampling(said),
        logit_bias=tuple(_known_biases(said.get("logit_bias"), vocabulary_size)),
        ignore_eos=read("ignore_eos", _yes_or_no, False),
        finish_character=True,  # as the library did
        seed=seed if seed >= 0 else None,
        stop_sequences=tuple(_stops(said.get("stop"))),
        beam_count=read("n_beams", _whole, 0) or 1,
        truncate_prompt=True,
        shift=True,
        keep_token_count=read("n_keep", _whole, 0),
        prediction=read("prediction", _prediction, ""),
        # The library reports what it drew from, and at temperature 0 the softmax.
        logprobs=LogprobOptions(top_count, bool(said["temperature"])) if top_count else None,
        **chosen,
    )
    return LibraryRequest(request, said)


_OURS = SamplingParameters()


def _sampling(said: Mapping[str, Any]) -> SamplingParameters:
    known: dict[str, Any] = {
        name: (_whole if type(getattr(_OURS, name)) is int else _real)(name, said[name])
        for name in NUMBERS
        if name in said
    }
    if "penalize_nl" in said:
        known["penalize_newline"] = _yes_or_no("penalize_nl", said["penalize_nl"])
    if "dry_sequence_breakers" in said:
        name = "dry_sequence_breakers"
        known[name] = tuple(_texts(name, said[name]))
    if samplers := said.get("samplers"):
        names = samplers.split(";") if isinstance(samplers, str) else _texts("samplers", samplers)
        known["stages"] = read_stages([name for name in names if name])
    return SamplingParameters(grammar=_text("grammar", said.get("grammar", "")), **known)


def _known_biases(biases: Any, vocabulary_size: int) -> Iterable[tuple[int | str, float]]:
    """Yield the pairs of a bias list that the library would have looked at."""
    if isinstance(biases, Mapping):
        biases = [[int(k) if str(k).isdecimal() else k, v] for k, v in biases.items()]
    for pair in biases if isinstance(biases, list) else ():
        if not (isinstance(pair, list) and len(pair) == 2):
            continue
        token, bias = pair
        is_id = type(token) is int and 0 <= token < vocabulary_size
        if (is_id or isinstance(token, str)) and (bias is False or type(bias) in (int, float)):
            yield token, -math.inf if bias is False else float(bias)


def _stops(stop: Any) -> list[str]:
    words = [stop] if isinstance(stop, str) or stop is None else stop
    if not isinstance(words, list):
        raise InvalidRequest("stop", "must be a text or a list of texts")
    return [_text("stop", word) for word in words if word not in (None, "")]


def _prompt(prompt: Any, name: str = "prompt") -> str | tuple[int | str, ...]:
    """Return a text, or texts and token ids in turn. Raises InvalidRequest."""
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list) or any(type(part) not in (int, str) for part in prompt):
        raise InvalidRequest(name, "must be a text, or texts and token ids in turn")
    return tuple(prompt)


def _prediction(name: str, value: Any) -> str | tuple[int, ...]:
    """Return what is expected: a text, token ids, or OpenAI's object. Raises InvalidRequest."""
    if isinstance(value, dict):
        value = value.get("content")
        if isinstance(value, list):
            texts = (part.get("text") if isinstance(part, dict) else None for part in value if part)
            value = "".join(_text(name, text) for text in texts)
    if isinstance(value, list) and any(type(part) is not int for part in value):
        raise InvalidRequest(name, "must be a text, token ids or an object with a content")
    return tuple(value) if isinstance(value, list) else _text(name, value)


# --- answers ---


def piece(text: bytes) -> str:
    """Return a token's text as the library showed it: a lone byte of a character by its number."""
    if len(text) == 1 and text[0] >= 0x80:
        return f"byte: \\x{text[0]:02x}"
    return text.decode("utf-8", "replace")


def prompt_stats(started: Started, cached_count: int, cached: str, rest: str) -> dict[str, Any]:
    """Return how a prompt was read: the library's own keys. The texts are of its two parts."""
    return {
        "n_ctx": started.context_token_count,
        "total_prompt_tokens": started.untruncated_token_count,
        "truncated": started.truncated,
        "n_past": cached_count,
        "cached": cached,
        "to_eval": rest,
    }


_Token = tuple[bytes, Logprob | None]


@dataclass(slots=True)
class Progress:
    """What has come of a completion, cut to the text that is shown.

    A stop sequence holds text back, so tokens arrive before their text. They
    are reported with the beginning of their text, and those of a stop sequence
    never.
    """

    asked: LibraryRequest
    started: Started
    origins: list[str] = field(default_factory=list)
    text: str = ""
    _shown: list[_Token] = field(default_factory=list)
    _held: deque[tuple[int, _Token]] = field(default_factory=deque)  # with where its text begins
    _shown_bytes: int = 0
    _token_bytes: int = 0

    def add(self, delta: Delta) -> dict[str, Any]:
        """Take in more; return the update that reports it."""
        self.origins += [origin.value for origin in delta.origins]
        for i, text in enumerate(delta.token_texts):
            logprob = delta.logprobs[i] if delta.logprobs else None
            self._held.append((self._token_bytes, (text, logprob)))
            self._token_bytes += len(text)
        new = "".join(each.text for each in delta.pieces if not each.control)
        self.text += new
        self._shown_bytes += len(new.encode())
        first = len(self._shown)
        while self._held and self._held[0][0] + bool(self._held[0][1][0]) <= self._shown_bytes:
            self._shown.append(self._held.popleft()[1])
        update: dict[str, Any] = {"content": new, "stop": False}
        if self.asked.top_count:
            update["completion_probabilities"] = _probabilities(self._shown[first:])
        return update

    def final(
        self, finished: Finished | None, content: str | None = None, is_job: bool = False
    ) -> dict[str, Any]:
        """Return the last message: the library's own keys, and what speculation brought.

        `finished` is None where the completion did not come to its end.
        """
        prompt_count = len(self.started.prompt_token_ids)
        its = finished.statistics if finished else None
        count = its.generated_token_count if its else len(self.origins)
        drafted, accepted = (its.drafted_token_count, its.accepted_token_count) if its else (0, 0)
        reason = finished.reason if finished else FinishReason.UNSPECIFIED
        cached = its.cached_token_count if its else self.started.cached_token_count
        answer: dict[str, Any] = {
            "content": self.text if content is None else content,
            "stop": True,
            "model": self.started.model.name,
            "tokens_predicted": count,
            "tokens_evaluated": prompt_count,
            "generation_settings": settings(self.asked, self.started) | {"stream": is_job},
            "prompt": self.asked.said.get("prompt", ""),
            "truncated": self.started.truncated or bool(finished and finished.truncated),
            "stopped_eos": reason is FinishReason.END_OF_TEXT,
            "stopped_word": reason is FinishReason.STOP_SEQUENCE,
            "stopped_limit": reason in (FinishReason.TOKEN_LIMIT, FinishReason.CONTEXT_FULL),
            "stopping_word": finished.stop_sequence if finished else "",
            "tokens_cached": min(
                max(0, prompt_count + count - 1), self.started.context_token_count
            ),
            "timings": {
                "prompt_n": prompt_count - cached,
                **_speed("prompt", prompt_count - cached, its.prompt_seconds if its else 0.0),
                "predicted_n": count,
                # The time begins with the first token, which it is therefore not the time of.
                **_speed("predicted", max(0, count - 1), its.generation_seconds if its else 0.0),
            },
            "status": 200,
            "drafted": drafted,
            "accepted": accepted,
            "acceptance_rate": accepted / drafted if drafted else 0.0,
        }
        if reason is FinishReason.CANCELLED:
            answer["cancelled"] = True
        if self.asked.top_count:
            answer["completion_probabilities"] = _probabilities(self._all(reason))
        if self.asked.said.get("origins"):
            answer["origins"] = self.origins
        return answer

    def _all(self, reason: FinishReason) -> list[_Token]:
        """Return the tokens of the whole text, to which what is held belongs unless it was cut."""
        is_cut = reason in (FinishReason.STOP_SEQUENCE, FinishReason.UNSPECIFIED)
        return self._shown + [token for _, token in (() if is_cut else self._held)]

    def interrupted(self, error: OutriderError) -> dict[str, Any]:
        """Return the answer of a completion that failed on the way: what there is, and why."""
        return self.final(None) | failure(error)


def failure(error: OutriderError) -> dict[str, Any]:
    """Return the keys that say that a completion failed."""
    reported = {"reason": error.reason, "message": str(error), **error.metadata}
    return {"status": 500, "error": reported}


def _speed(what: str, count: int, seconds: float) -> dict[str, Any]:
    return {
        f"{what}_ms": 1e3 * seconds,
        f"{what}_per_token_ms": 1e3 * seconds / count if count else 0.0,
        f"{what}_per_second": count / seconds if seconds else 0.0,
    }


def _probabilities(tokens: Sequence[_Token]) -> list[dict[str, Any]]:
    return [
        {
            "content": piece(text),
            "probs": [
                {"tok_str": piece(token.text), "prob": math.exp(log_probability)}
                for token, log_probability in (logprob.alternatives if logprob else ())
            ],
        }
        for text, logprob in tokens
    ]


def settings(asked: LibraryRequest, started: Started) -> dict[str, Any]:
    """Return `generation_settings`: every key of the library's and more, everything resolved."""
    sampling, said = started.sampling, asked.said
    shown = {name: _short(getattr(sampling, name)) for name in NUMBERS}
    temperature = shown.pop("temperature")
    return {
        **shown,
        "dry_sequence_breakers": list(sampling.dry_sequence_breakers),
        "grammar": sampling.grammar,
        "samplers": [stage.value for stage in sampling.stages],
        "n_ctx": started.context_token_count,
        "model": started.model.name,
        "seed": started.seed,
        "temp": temperature,
        "penalize_nl": sampling.penalize_newline,
        "stop": list(asked.request.stop_sequences),
        "n_predict": said["n_predict"],
        "n_keep": said["n_keep"],
        "ignore_eos": asked.request.ignore_eos,
        "stream": False,
        "logit_bias": [
            [token_id, False if bias == -math.inf else bias]
            for token_id, bias in sampling.logit_bias
        ],
        "n_probs": asked.top_count,
        "speculative": said["speculative"],
    }


def _short(value: float) -> float:
    """Return the shortest number that is the same 32-bit float; whole numbers as they are."""
    return float(f"{value:.7g}") if isinstance(value, float) else value


def read_command_line(text: str) -> dict[str, Any]:
    """Return what a command line of the library's `init` says, as its JSON form does.

    Quotes are not special: the library split at spaces. Raises InvalidRequest.
    """
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
