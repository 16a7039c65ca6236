"""llama-server's own API: its request bodies, answers and events. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from pydantic import Field

from gateway.accumulator import Addition, CommittedToken
from gateway.body_fields import (
    Body,
    Int32,
    ListOf,
    Prompt,
    PromptField,
    StreamedFields,
    check_choice_count,
    generate_request,
    read_prompts,
    refuse,
)
from gateway.openai.requests import Ask, ChatBody
from gateway.token_reports import STOP_TYPES, TokenReports, finite
from gateway.usage import StreamProgress, timings
from orchestrator.chat.template import ChatTemplate
from orchestrator.infill import File, Infill
from outrider.errors import InvalidRequest
from outrider.request import Detail
from outrider.response import Delta, Event, Finished, Logprob, Started
from outrider.sampling import NUMBERS, SamplingParameters
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages

# --- requests ---


class CompletionFields(StreamedFields):
    """The body of /completion."""

    prompt: PromptField
    max_completion_tokens: Int32 | None = None
    max_tokens: Int32 | None = None
    n_cmpl: Int32 | None = None
    n: Int32 | None = None
    return_tokens: bool | None = None
    response_fields: ListOf[str] | None = None
    report: bool | None = None
    n_indent: Int32 | None = None
    t_max_predict_ms: Int32 | None = None
    lora: ListOf[Any] | None = None
    image_data: ListOf[Any] | None = None


class ExtraFile(Body):
    """Another file, or a part of one."""

    text: str
    filename: str = "tmp"


class InfillFields(CompletionFields):
    """The body of /infill."""

    input_prefix: str
    input_suffix: str
    input_extra: ListOf[ExtraFile] | None = None
    prompt: str = Field("", description="Stands right before what is missing.")


class TokenizeBody(Body):
    """The body of /tokenize."""

    content: str = ""
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeBody(Body):
    """The body of /detokenize."""

    tokens: ListOf[Int32] = Field(default_factory=list)


class TemplateBody(ChatBody):
    """The body of /apply-template."""


class EmbeddingFields(Body):
    """The body of /embedding; `input` is another name for `content`."""

    content: PromptField | None = None
    input: PromptField | None = None
    embd_normalize: Int32 | None = None


def read_completion(fields: CompletionFields) -> Ask:
    """Return what /completion is asked for. Raises InvalidRequest."""
    refuse(fields, n_indent=(0,))
    return _read(fields)


def read_infill(fields: InfillFields) -> tuple[Ask, Infill, list[str]]:
    """Return what /infill is asked for, the text with the gap, and what of it is not kept.

    Editors always say how far a line is indented, by which llama-server ends a text sooner: that is
    passed over. Raises InvalidRequest.
    """
    stages = fields.samplers
    names = stages.split(";") if isinstance(stages, str) else stages or []
    kept = [name for name in names if name != _INFILL]
    passed_over = ["n_indent"] * bool(fields.n_indent)
    passed_over += [f"the sampler `{_INFILL}`"] * (len(kept) < len(names))
    files = [File(each.text, each.filename) for each in fields.input_extra or ()]
    text = Infill(fields.input_prefix, fields.input_suffix, fields.prompt, files)
    return _read(fields.model_copy(update={"samplers": kept})), text, passed_over


_INFILL = "infill"
"""llama.cpp's sampler that joins tokens which begin alike, and ends a text in doubt."""


def _read(fields: CompletionFields) -> Ask:
    refuse(fields, lora=([],), image_data=([],))
    prompts = read_prompts(fields.prompt)
    count = check_choice_count(fields.n if fields.n_cmpl is None else fields.n_cmpl, len(prompts))
    limit = (
        fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
    )
    progress, most_seconds = StreamProgress.of(fields), _most_seconds(fields, count)
    requests = [
        generate_request(
            fields,
            prompt,
            token_limit=-1 if limit is None else limit,
            completion_count=count,
            detail=Detail.TOKENS if fields.report else Detail.NOTHING,
            running_statistics=progress.needs_statistics or most_seconds is not None,
        )
        for prompt in prompts
    ]
    return Ask(
        requests,
        fields,
        count,
        streams=bool(fields.stream),
        most_seconds=most_seconds,
        progress=progress,
    )


def _most_seconds(fields: CompletionFields, choice_count: int) -> float | None:
    """Return how long a text may take, None for any time. Raises InvalidRequest."""
    milliseconds = fields.t_max_predict_ms or 0
    if milliseconds <= 0:
        return None
    if choice_count > 1:
        raise InvalidRequest("t_max_predict_ms", "goes with one completion of each prompt")
    return 1e-3 * milliseconds


def embedded_field(fields: EmbeddingFields) -> str:
    """Return the name under which the texts were sent."""
    return "input" if fields.content is None and fields.input is not None else "content"


def read_embedding(fields: EmbeddingFields) -> list[Prompt]:
    """Return the texts to embed. Raises InvalidRequest."""
    name = embedded_field(fields)
    content = getattr(fields, name)
    if content is None or content == []:
        raise InvalidRequest(name, "is missing")
    if fields.embd_normalize is not None and fields.embd_normalize < -1:
        raise InvalidRequest("embd_normalize", f"must be at least -1, not {fields.embd_normalize}")
    return read_prompts(content, name)


# --- answers ---


class NativeAnswer:
    """The answer of /completion: events of pieces, or one completion or a list of them.

    `clock` measures the seconds between messages, which a report holds.
    """

    def __init__(self, ask: Ask, fields: CompletionFields, clock: Callable[[], float]) -> None:
        self._ask = ask
        self._fields = fields
        self._prompts = read_prompts(fields.prompt)
        self.gathering = ask.gathering()
        self._reports = TokenReports(self.gathering, clock)

    def whole(self) -> dict[str, Any] | list[dict[str, Any]]:
        """Return the answer once everything is finished."""
        whole = [self._final(i, streamed=False) for i in range(len(self.gathering.completions))]
        return whole[0] if self._ask.is_single else whole

    def events(self, prompt: int, event: Event) -> Iterator[dict[str, Any]]:
        """Yield the events that an event of the orchestrator becomes."""
        addition = self.gathering.add(prompt, event)
        report = self._reports.of(prompt, event) if self._fields.report else {}
        index = self.gathering.index(prompt, event)
        timed = self._ask.progress.timings(event)
        read = self._ask.progress.prompt(prompt, event)
        if read:
            yield self._piece(index, Addition((), ()), []) | {"tokens_predicted": 0} | timed | read
        if addition is None:
            return
        ids = list(event.token_ids) if isinstance(event, Delta) else []
        if addition.text or addition.tokens or ids:
            yield self._piece(index, addition, ids) | report | timed
        if isinstance(event, Finished):
            yield self._final(index, streamed=True)

    def _piece(self, index: int, addition: Addition, ids: list[int]) -> dict[str, Any]:
        completion = self.gathering.completions[index]
        prompt = self.gathering.prompts[index // self._ask.choice_count]
        piece: dict[str, Any] = {
            "index": index,
            "content": addition.text,
            "tokens": ids,
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": len(completion.token_ids),
            "tokens_evaluated": len(prompt.prompt_token_ids),
        }
        if self._fields.n_probs:
            piece["completion_probabilities"] = _probabilities(self._fields, addition.tokens)
        return piece

    def _final(self, index: int, *, streamed: bool) -> dict[str, Any]:
        completion, fields = self.gathering.completions[index], self._fields
        number = index // self._ask.choice_count
        prompt, finished = self.gathering.prompts[number], completion.finished
        assert finished is not None
        statistics = finished.statistics
        stop_type = STOP_TYPES.get(finished.reason, "limit")
        shape: dict[str, Any] = {
            "index": index,
            "content": "" if streamed else completion.text,
            "tokens": completion.token_ids if fields.return_tokens and not streamed else [],
            "id_slot": -1,
            "stop": True,
            "model": prompt.model.name,
            "tokens_predicted": statistics.generated_token_count,
            "tokens_evaluated": len(prompt.prompt_token_ids),
            "generation_settings": generation_settings(self._ask, fields, prompt),
            "prompt": self._prompts[number],
            "has_new_line": "\n" in completion.text,
            "truncated": finished.truncated or prompt.truncated,
            "stop_type": stop_type,
            "stopping_word": finished.stop_sequence,
            "tokens_cached": statistics.prompt_token_count + statistics.generated_token_count,
            "timings": timings(statistics),
        }
        if fields.n_probs and not streamed:
            shape["completion_probabilities"] = _probabilities(fields, completion.shown)
        if fields.report:
            shape["statistics"] = asdict(statistics)
        return _selected(shape, fields.response_fields) if fields.response_fields else shape


def _selected(shape: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Return the members at the paths, each under its path."""
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = shape
        for name in path.split("/"):
            value = value.get(name, _ABSENT) if isinstance(value, dict) else _ABSENT
        if value is not _ABSENT:
            found[path] = value
    return found


_ABSENT = object()


def _probabilities(
    fields: CompletionFields, tokens: Sequence[CommittedToken]
) -> list[dict[str, Any]]:
    after = bool(fields.post_sampling_probs)
    return [_token_probability(token, after) for token in tokens]


_NO_LOGPROB = Logprob(0.0, ())


def _token_probability(token: CommittedToken, after: bool) -> dict[str, Any]:
    logprob = token.logprob or _NO_LOGPROB
    return {
        **_probability(token.token_id, token.text, logprob.value, after),
        "top_probs" if after else "top_logprobs": [
            _probability(each.token_id, each.text, value, after)
            for each, value in logprob.alternatives
        ],
    }


def _probability(token_id: int, text: bytes, value: float, after: bool) -> dict[str, Any]:
    return {
        "id": token_id,
        "token": text.decode("utf-8", "ignore"),
        "bytes": list(text),
        "prob" if after else "logprob": math.exp(value) if after else finite(value),
    }


def generation_settings(ask: Ask, fields: CompletionFields, prompt: Started) -> dict[str, Any]:
    """Return how a completion was sampled, everything resolved."""
    request = ask.requests[0]
    said = {name: getattr(request, name) for name in ("n_max", "n_min", "p_min")}
    return {
        **sampling_settings(prompt.sampling),
        "n_ctx": prompt.context_token_count,
        "seed": prompt.seed,
        "stop": list(request.stop_sequences),
        "max_tokens": request.token_limit,
        "n_predict": request.token_limit,
        "n_keep": fields.n_keep or 0,
        "n_discard": 0,
        "ignore_eos": bool(fields.ignore_eos),
        "stream": ask.streams,
        "n_probs": fields.n_probs or 0,
        "post_sampling_probs": bool(fields.post_sampling_probs),
        "timings_per_token": bool(fields.timings_per_token),
        "lora": [],
        **{f"speculative.{name}": value for name, value in said.items() if value is not None},
    }


def sampling_settings(sampling: SamplingParameters) -> dict[str, Any]:
    """Return sampling parameters under llama-server's names."""
    return {
        **{name: getattr(sampling, name) for name in NUMBERS},
        "dry_sequence_breakers": list(sampling.dry_sequence_breakers),
        "logit_bias": [
            {"token": token_id, "bias": bias if math.isfinite(bias) else None}
            for token_id, bias in sampling.logit_bias
        ],
        "grammar": sampling.grammar,
        "samplers": [stage.value for stage in sampling.stages],
    }


# --- everything else ---


def token_list(response: messages.TokenizeTextResponse, with_pieces: bool) -> dict[str, Any]:
    """Return the answer of /tokenize; a piece that is no whole character is a list of bytes."""
    if not with_pieces:
        return {"tokens": [token.token_id for token in response.tokens]}
    return {
        "tokens": [{"id": token.token_id, "piece": _piece(token.text)} for token in response.tokens]
    }


def _piece(text: bytes) -> str | list[int]:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return list(text)


def embeddings(
    found: Sequence[messages.Embedding], fields: EmbeddingFields
) -> list[dict[str, Any]]:
    """Return the answer of /embedding."""
    kind = 2 if fields.embd_normalize is None else fields.embd_normalize
    return [
        {"index": i, "embedding": [_scaled(embedding, kind)]} for i, embedding in enumerate(found)
    ]


def _scaled(embedding: messages.Embedding, kind: int) -> list[float]:
    """Return an embedding as `embd_normalize` wants it.

    -1 is the model's own length, 0 makes the largest value 32760, and any other p the p-norm 1.
    """
    sizes = np.abs(np.array(embedding.values, np.float64))
    if kind == 2 or not sizes.any():
        return list(embedding.values)
    if kind == -1:
        factor = embedding.norm
    elif kind == 0:
        factor = 32760 / sizes.max()
    else:  # the largest value is taken out, so that no power leaves the range of a float
        factor = 1 / (sizes.max() * ((sizes / sizes.max()) ** kind).sum() ** (1 / kind))
    return [value * float(factor) for value in embedding.values]


@dataclass(frozen=True, slots=True)
class RunningGeneration:
    """A generation in flight, as /slots shows it."""

    speculates: bool
    token_count: int


def properties(
    model: common.GetModelResponse,
    template: ChatTemplate | None,
    version: str,
    *,
    own_draft: str | None,
    endpoint_slots: bool,
) -> dict[str, Any]:
    """Return the answer of /props.

    The `template` is the one in use, if it is any good, `own_draft` the name of what drafts in the
    target's process, if anything does.
    """
    return {
        "default_generation_settings": {
            "params": {
                **sampling_settings(SamplingParameters()),
                "seed": -1,
                "stop": [],
                "max_tokens": -1,
                "n_predict": -1,
                "n_keep": 0,
                "ignore_eos": False,
                "stream": False,
                "n_probs": 0,
            },
            "n_ctx": model.context_token_count,
        },
        "total_slots": model.session_count,
        "model_alias": model.model_name,
        "model_ftype": model.file_type,
        "cpu_kernels": model.cpu_kernels,
        "own_draft": own_draft,
        "model_path": model.model_name,  # where the file lies is no client's business
        "modalities": {"vision": False, "video": False, "audio": False},
        "endpoint_slots": endpoint_slots,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "chat_template": template.source if template else model.chat_template,
        "chat_template_stands_in": template.stands_in if template else False,
        "chat_template_caps": _capabilities(template) if template else {},
        "chat_format": template.form.summary() if template else {},
        "bos_token": template.bos_token if template else "",
        "eos_token": template.eos_token if template else "",
        "build_info": f"outrider-{version}",
        "is_sleeping": False,
    }


def _capabilities(template: ChatTemplate) -> dict[str, bool]:
    return {
        "supports_string_content": True,
        "supports_typed_content": not template.takes_texts,  # else parts become one text before
        "supports_system_role": template.takes_system,
        "supports_tools": template.takes_tools,
        "supports_tool_calls": template.takes_calls,
        "supports_parallel_tool_calls": template.takes_parallel_calls,
        "supports_object_arguments": template.takes_objects,
        "supports_preserve_reasoning": template.keeps_thoughts,
        "supports_reasoning_effort": template.takes_effort,
    }


def slots(
    model: common.GetModelResponse, running: Sequence[RunningGeneration]
) -> list[dict[str, Any]]:
    """Return the answer of /slots: first the generations in flight, then what is free."""
    free = max(0, model.session_count - len(running))
    return [
        {
            "id": i,
            "n_ctx": model.context_token_count,
            "speculative": each.speculates if each else False,
            "is_processing": each is not None,
            **({"next_token": [{"n_decoded": each.token_count}]} if each else {}),
        }
        for i, each in enumerate([*running, *([None] * free)])
    ]
