"""The request fields that all endpoints share, and what they become in a Request. Pure."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from outrider.errors import InvalidRequest
from outrider.messages import LogprobOptions, Rule
from outrider.request import Request
from outrider.sampling import NUMBERS, SamplingNumbers, SamplingParameters, Stage, read_stages
from outrider.speculation import DraftTemplate, Policy, Verification

MOST_CHOICES = 128
"""Completions of one HTTP request at most, over all its prompts."""

MOST_DEPTH = 64
"""How deep a body may be nested."""

MOST_VALUES = 500_000
"""Names and values of a body, token ids not counted; so many take .1 s to check.

200 kB of an agent's calls or tools have 22,000."""

MOST_NUMBERS = 2**18
"""Whole numbers of a body, such as the token ids of a prompt."""

Item = TypeVar("Item")

ListOf = Annotated[list[Item], Field(fail_fast=True)]
"""A list of a body. Its first error is the only one: to describe 100,000 takes seconds."""

Int32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]

Prompt = str | ListOf[Int32 | str]
"""A text, or token ids and texts in turn."""

_NAMES = {
    "token_limit": ("n_predict", "max_completion_tokens", "max_tokens", "max_output_tokens"),
    "stop_sequences": ("stop_sequences", "stop"),
    "completion_count": ("n", "n_cmpl"),
    "beam_count": ("n_beams",),
    "logprobs.top_count": ("top_logprobs", "n_probs", "logprobs"),
    "penalize_newline": ("penalize_nl",),
    "keep_token_count": ("n_keep",),
    "json_schema": (
        *("json_schema", "response_format", "text", "output_config"),
        *("structured_outputs", "guided_json", "format"),
    ),
    "suffix": ("suffix", "input_suffix"),
    "grammar": ("grammar", "structured_outputs", "guided_choice", "guided_grammar"),
    "prompt": ("messages", "input", "prompt"),
}
"""What fields of a Request are called in bodies, the name that decides first."""


class Body(BaseModel):
    """A JSON object of which unknown members are ignored, and null is absent."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _check(cls, value: Any) -> Any:
        _check_json(value)
        return value


def _check_json(value: Any) -> None:
    """Raise ValueError for what JSON can spell and others cannot read."""
    left = [(value, 0)]
    seen_count = number_count = 0
    while left:
        inner, depth = left.pop()
        seen_count += 1
        if seen_count > MOST_VALUES:
            raise ValueError(f"holds more than {MOST_VALUES} names and values")
        if isinstance(inner, str):
            if not inner.isascii():
                _check_text(inner)
            continue
        # Right in the body, the field's own check names it.
        if depth > 1 and isinstance(inner, float) and not math.isfinite(inner):
            raise ValueError("holds a number that is not finite")
        if depth > MOST_DEPTH:
            raise ValueError(f"is nested deeper than {MOST_DEPTH}")
        if isinstance(inner, dict):
            left += ((each, depth + 1) for pair in inner.items() for each in pair)
        elif isinstance(inner, list):
            others = [(each, depth + 1) for each in inner if not isinstance(each, int)]
            number_count += len(inner) - len(others)
            if number_count > MOST_NUMBERS:
                raise ValueError(f"holds more than {MOST_NUMBERS} token ids")
            left += others


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("holds half of a surrogate pair") from None


class PromptObject(Body):
    """A prompt in llama-server's object."""

    prompt_string: Prompt
    multimodal_data: ListOf[Any] | None = None


PromptField = str | PromptObject | ListOf[Int32 | str | PromptObject | ListOf[Int32 | str]]
"""One prompt or several, as bodies spell them; see `read_prompts`."""


class SpeculativeFields(Body):
    """How to speculate; nothing here changes the distribution of the text."""

    enabled: bool | None = None
    n_max: Int32 | None = None
    n_min: Int32 | None = None
    p_min: float | None = None
    run_ahead: bool | None = None
    policy: Literal["measured", "fixed", "classic"] | None = None
    acceptance: Literal["match", "shared-noise", "rejection"] | None = None
    verification: Literal["block", "token"] | None = None
    drafters: ListOf[str] | None = None
    n_parallel: Int32 | None = None
    p_split: float | None = None
    draft_template: Literal["own", "target"] | None = None


class ContentPart(Body):
    """A part of a content that is only text."""

    type: Literal["text"] = "text"
    text: str


class PredictionFields(Body):
    """What the caller expects of the completion, in OpenAI's shape."""

    type: Literal["content"] = "content"
    content: str | ListOf[ContentPart]


if TYPE_CHECKING:
    _Numbers = Body
else:
    _Numbers = create_model(
        "_Numbers",
        __base__=Body,
        **{
            number.name: (Int32 | None if isinstance(number.default, int) else float | None, None)
            for number in dataclasses.fields(SamplingNumbers)
        },
    )
"""The numbers of sampling, each of them as a body may have it."""


class GenerationFields(_Numbers):
    """What every generating endpoint takes, under llama-server's names."""

    model: str | None = None
    penalize_nl: bool | None = None
    dry_sequence_breakers: ListOf[str] | None = None
    samplers: ListOf[str] | str | None = None
    logit_bias: (
        dict[str, float | Literal[False]]
        | ListOf[tuple[Int32 | str, float | Literal[False]]]
        | None
    ) = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    seed: Int64 | None = None
    stop: str | ListOf[str] | None = None
    stop_token_ids: ListOf[Int32] | None = None
    ignore_eos: bool | None = None
    finish_character: bool | None = None
    n_predict: Int32 | None = None
    n_probs: Int32 | None = None
    n_beams: Int32 | None = None
    post_sampling_probs: bool | None = None
    n_keep: Int32 | None = None
    context_shift: bool | None = None
    truncate_prompt: bool | None = None
    cache_prompt: bool | None = None
    cache_salt: str | None = None
    stream: bool | None = None
    prediction: PredictionFields | str | ListOf[Int32] | None = None
    drafters: ListOf[str] | None = None
    speculative: SpeculativeFields | None = None
    dotted_n_max: Int32 | None = Field(None, alias="speculative.n_max")
    dotted_n_min: Int32 | None = Field(None, alias="speculative.n_min")
    dotted_p_min: float | None = Field(None, alias="speculative.p_min")


class StreamedFields(GenerationFields):
    """What streams of llama-server report besides; without `stream` it changes nothing."""

    timings_per_token: bool | None = None
    return_progress: bool | None = None


def generate_request(
    fields: GenerationFields, prompt: Prompt, *, token_limit: int, **more: Any
) -> Request:
    """Return what is asked for, with what the endpoint says besides or before what the body says.

    A `n_predict` goes before `token_limit`. Raises InvalidRequest.
    """
    logprobs = None
    if fields.n_probs:
        logprobs = LogprobOptions(fields.n_probs, bool(fields.post_sampling_probs))
    overflows = bool(fields.context_shift or fields.truncate_prompt)
    values: dict[str, Any] = {
        "token_limit": token_limit if fields.n_predict is None else fields.n_predict,
        "sampling": more.get("sampling") or sampling_parameters(fields),
        "logit_bias": _biases(fields.logit_bias),
        "ignore_eos": bool(fields.ignore_eos),
        "finish_character": bool(fields.finish_character),
        "json_schema": "" if fields.json_schema is None else json.dumps(fields.json_schema),
        "logprobs": logprobs,
        "seed": None if fields.seed == -1 else fields.seed,
        "stop_sequences": _stops(fields.stop),
        "stop_token_ids": tuple(fields.stop_token_ids or ()),
        "beam_count": fields.n_beams or 1,
        "parse_special": True,
        "truncate_prompt": bool(fields.truncate_prompt),
        "shift": bool(fields.context_shift),
        "keep_token_count": (fields.n_keep or 0) if overflows else 0,
        "prediction": _prediction(fields.prediction),
        "cache_salt": fields.cache_salt or "",
        "ignore_cached_prefix": fields.cache_prompt is False,
        **_speculative(fields),
    }
    return Request(prompt, **(values | more))


@contextmanager
def named_as_in(fields: Body) -> Iterator[None]:
    """Have a refusal of a Request name the field as the client did."""
    try:
        yield
    except InvalidRequest as refusal:
        raise refusal.named(name_in(fields, refusal.field)) from refusal


def read_prompts(prompt: PromptField, name: str = "prompt") -> list[Prompt]:
    """Return one prompt or several, as llama-server and OpenAI distinguish them.

    Texts alone are several prompts; ids, also between texts, are one. Raises InvalidRequest for
    the field `name`.
    """
    if not isinstance(prompt, list):
        return [_read_prompt(prompt, name)]
    if not any(isinstance(part, int) for part in prompt):
        return [_read_prompt(part, name) for part in prompt]
    one = [part for part in prompt if isinstance(part, int | str)]
    if len(one) < len(prompt):
        raise InvalidRequest(name, "mixes token ids with whole prompts")
    return [one]


def _read_prompt(prompt: Any, name: str) -> Prompt:
    if not isinstance(prompt, PromptObject):
        return cast(Prompt, prompt)
    if prompt.multimodal_data:
        raise InvalidRequest(name, "has multimodal_data, which is not supported")
    return prompt.prompt_string


def check_choice_count(count: int | None, prompt_count: int) -> int:
    """Return how many completions each of the prompts gets. Raises InvalidRequest."""
    count = 1 if count is None else count
    if not (prompt_count >= 1 and 1 <= count * prompt_count <= MOST_CHOICES):
        raise InvalidRequest(
            "n", f"{prompt_count} prompts times {count} is not in [1, {MOST_CHOICES}]"
        )
    return count


def name_in(fields: Body, field: str) -> str:
    """Return the name under which a client sent a field of a Request, perhaps in `options`."""
    return _known_name(fields, field) or field


def _known_name(fields: Body, field: str) -> str | None:
    members = type(fields).model_fields
    known = [name for name in _NAMES.get(field, (field,)) if name in members]
    sent = [name for name in known if getattr(fields, name) is not None]
    if found := next(iter(sent + known), None):
        return members[found].alias or found
    options = getattr(fields, "options", None)
    within = _known_name(options, field) if isinstance(options, Body) else None
    return within and f"options.{within}"


def name_of_input(field: str, sent: str, count: int, first: int) -> str:
    """Return how a client calls `inputs[i]` of an EmbedRequest that begins with its text `first`.

    It sent `count` texts in the field `sent`.
    """
    number = re.fullmatch(r"inputs\[(\d+)\]", field)
    return f"{sent}[{first + int(number[1])}]" if number and count > 1 else sent


def without(kind: str) -> str:
    """Return what the result of a tool says in place of a part that no model here reads.

    The model has called the tool: it must hear of it, as the chat could not continue otherwise.
    """
    return f"[{kind} left out: this model reads text only]"


def string_in(field: str, item: Mapping[str, Any], name: str) -> str:
    """Return the text `name` of the object in a field. Raises InvalidRequest."""
    value = item.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{field}.{name}", "must be a string")
    return value


def refuse(fields: Body, **neutral: Iterable[Any]) -> None:
    """Raise InvalidRequest for a field that is set, and not to a value that changes nothing."""
    for name, values in neutral.items():
        value = getattr(fields, name)
        if value is not None and value not in values:
            raise InvalidRequest(name, "is not supported")


def sampling_parameters(fields: GenerationFields) -> SamplingParameters:
    """Return how to sample; what is not given has its default. Raises InvalidRequest."""
    known: dict[str, Any] = {name: getattr(fields, name) for name in NUMBERS}
    for name in ("temperature", "top_k"):  # a negative one is greedy or keeps all, as 0 is and does
        if known[name] is not None:
            known[name] = max(0, known[name])
    known["penalize_newline"] = fields.penalize_nl
    known["grammar"] = fields.grammar
    known["stages"] = _stages(fields.samplers) or None
    if fields.dry_sequence_breakers is not None:
        known["dry_sequence_breakers"] = tuple(fields.dry_sequence_breakers)
    return SamplingParameters(**{name: each for name, each in known.items() if each is not None})


def _stages(names: list[str] | str | None) -> tuple[Stage, ...]:
    if isinstance(names, str):
        names = [name for name in names.split(";") if name]
    return read_stages(names or ())


def _biases(
    biases: dict[str, float | Literal[False]]
    | list[tuple[int | str, float | Literal[False]]]
    | None,
) -> tuple[tuple[int | str, float], ...]:
    if isinstance(biases, dict):
        biases = [(int(token) if _is_id(token) else token, b) for token, b in biases.items()]
    return tuple((token, -math.inf if bias is False else bias) for token, bias in biases or ())


def _is_id(token: str) -> bool:
    return re.fullmatch("[0-9]{1,10}", token) is not None and int(token) < 2**31


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else stop or []
    return tuple(text for text in stops if text)


def _prediction(expected: PredictionFields | str | list[int] | None) -> str | tuple[int, ...]:
    if isinstance(expected, PredictionFields):
        content = expected.content
        return content if isinstance(content, str) else "".join(p.text for p in content)
    return tuple(expected) if isinstance(expected, list) else expected or ""


def _speculative(fields: GenerationFields) -> dict[str, Any]:
    """Return what is said about speculating, by the names of a Request."""
    said = (fields.speculative or SpeculativeFields()).model_dump()
    for name in ("n_max", "n_min", "p_min"):
        said[name] = getattr(fields, f"dotted_{name}") if said[name] is None else said[name]
    drafters = fields.drafters if said["drafters"] is None else said["drafters"]
    said["drafters"] = frozenset(drafters) if drafters else None
    for name, kind in _ENUMS.items():
        said[name] = kind(said[name]) if said[name] else None
    return said


_ENUMS = {
    "policy": Policy,
    "acceptance": Rule,
    "verification": Verification,
    "draft_template": DraftTemplate,
}
