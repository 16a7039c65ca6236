"""What a generation is asked for, as one value that is read and checked once. Pure.

Everything that can be refused without a model is refused here; for the rest, the planner asks
the target.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.salts import digest, has_its_own
from outrider import wire
from outrider.errors import InvalidRequest
from outrider.messages import (
    MAX_BEAMS,
    MAX_CANDIDATES,
    Form,
    LogprobOptions,
    ModelReference,
    Rule,
)
from outrider.sampling import SamplingParameters, check_biases
from outrider.speculation import MODEL, DraftTemplate, Speculation
from outrider.texts import check_count
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages

DEFAULT_LIMIT = 128
MAX_COMPLETIONS = 16
MAX_CONTROL_NAMES = 64
MAX_STOP_IDS = 64
MAX_STOPS = 256
"""Stop sequences of a request: looking for so many takes .3 ms a token."""
MAX_STOP_CHARACTERS = 4096
"""Of one stop sequence. A text that follows one so far and then parts takes .5 ms, and 110 ms where
it follows 256 of them: no other token is read meanwhile."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Texts and token ids in turn, and the field that they came in."""

    field: str
    parts: Sequence[str | int]
    parse_special: bool = False  # whether control tokens are read in the texts

    @property
    def texts(self) -> list[str]:
        """The texts among the parts; BOS goes before a first part that is one."""
        return [part for part in self.parts if isinstance(part, str)]

    @property
    def begins_with_text(self) -> bool:
        """Whether the first part is a text."""
        return isinstance(next(iter(self.parts), 0), str)


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a prompt was rendered from: what came out of JSON."""

    messages: object
    tools: object
    variables: object
    adds_generation_prompt: bool
    continuation: str  # what the prompt has after the rendered chat


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """What a generation is asked for. What names tokens by text or by id waits for a vocabulary."""

    prompt: Prompt
    model: ModelReference  # that is meant; empty is whichever there is
    sampling: SamplingParameters  # without biases; its grammar is as it was sent
    biases: Sequence[tuple[str | int, float]]  # of a token's id, or of each token of a text
    json_schema: str  # in place of a grammar; "" is none
    ignore_eos: bool
    prediction: Prompt | None  # of the completion
    seed: int | None  # None: any
    rule: Rule
    form: Form
    speculation: Speculation
    rollback_calls: bool
    completion_count: int
    beam_count: int
    token_limit: int  # -1 is none
    stops: Sequence[str]
    stop_ids: Sequence[int]
    control_names: Sequence[str]
    finish_character: bool
    truncates_prompt: bool  # the middle of one that is too long is left out
    shifts_context: bool  # a full context is no end
    keep_count: int  # tokens at the start that are never dropped; -1 is the whole prompt
    candidate_count: int
    logprobs: LogprobOptions | None
    prompt_logprobs: bool
    wants_report: bool
    wants_statistics: bool
    salt: bytes
    ignores_cache: bool  # a salt of its own in place of that one
    is_shared: bool  # its text may be among those that generations share, where they do
    conversation: Conversation | None  # for drafts that are to read it in their own template


def read_request(
    message: messages.GenerateRequest, default: Speculation, drafts: bool = True
) -> GenerationRequest:
    """Return a request over the orchestrator's own options. Raises InvalidRequest.

    Without `drafts`, there is nobody to draft.
    """
    sampling = wire.read_settings(message.sampling)
    biases = _read_biases(message.sampling.logit_biases)
    beyond = _beyond_basic(message, sampling)
    rule, form = _read_rule_and_form(message.speculative, sampling, beyond)
    beam_count = _read_beam_count(message, form)
    speculation = _read_speculation(
        message.speculative, rule, default, drafts, is_searched=beam_count > 1
    )
    _check_count("stop_token_ids", len(message.stop_token_ids), MAX_STOP_IDS)
    _check_count("control_token_names", len(message.control_token_names), MAX_CONTROL_NAMES)
    if message.prompt_logprobs and not message.HasField("logprobs"):
        raise InvalidRequest("prompt_logprobs", "needs logprobs")
    if message.json_schema and sampling.grammar:
        raise InvalidRequest("json_schema", "does not go with a grammar")
    return GenerationRequest(
        prompt=_read_prompt(message),
        model=wire.read_reference(message.model),
        sampling=sampling if beam_count == 1 else _as_searched(sampling),
        biases=biases,
        json_schema=message.json_schema,
        ignore_eos=message.ignore_eos,
        prediction=_read_prediction(message),
        seed=message.seed if message.HasField("seed") else None,
        rule=rule,
        form=form,
        speculation=speculation,
        rollback_calls=message.speculative.rollback == messages.ROLLBACK_MODE_RPC,
        completion_count=_read_count(message),
        beam_count=beam_count,
        token_limit=_read_limit(message),
        stops=_read_stops(message.stop_sequences),
        stop_ids=list(message.stop_token_ids),
        control_names=list(message.control_token_names),
        finish_character=message.finish_character,
        truncates_prompt=message.overflow.truncate_prompt,
        shifts_context=message.overflow.shift,
        keep_count=_read_keep_count(message.overflow.keep_token_count),
        candidate_count=MAX_CANDIDATES
        if message.round_detail == messages.ROUND_DETAIL_CANDIDATES
        else 0,
        logprobs=_read_logprobs(message, form),
        prompt_logprobs=message.prompt_logprobs,
        wants_report=message.round_detail != messages.ROUND_DETAIL_UNSPECIFIED,
        wants_statistics=message.running_statistics,
        salt=digest(message.cache_salt),
        ignores_cache=message.ignore_cached_prefix,
        is_shared=not has_its_own(message),
        conversation=_read_conversation(message, speculation),
    )


def _read_conversation(
    message: messages.GenerateRequest, speculation: Speculation
) -> Conversation | None:
    """Return the conversation that the prompt is; None where no draft is to read it."""
    wants = speculation.draft_template is DraftTemplate.OWN and speculation.drafts
    if not wants or not message.HasField("conversation"):
        return None
    chat = message.conversation.chat
    adds = chat.add_generation_prompt if chat.HasField("add_generation_prompt") else True
    return Conversation(
        messages=read_json("conversation.chat.messages_json", chat.messages_json),
        tools=read_json("conversation.chat.tools_json", chat.tools_json),
        variables=read_json("conversation.chat.variables_json", chat.variables_json),
        adds_generation_prompt=adds,
        continuation=message.conversation.continuation,
    )


def read_json(field: str, text: str) -> Any:
    """Return what a JSON text says; None for an empty one. Raises InvalidRequest."""
    if not text:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(field, f"is not JSON: {error}") from None


def read_parts(parts: messages.PromptParts) -> Prompt:
    """Return a prompt of texts and ids in turn; control tokens in its texts are plain text."""
    read = [
        part.text if part.WhichOneof("part") == "text" else part.token_id for part in parts.parts
    ]
    check_count("prompt_parts", sum(isinstance(part, str) for part in read))
    return Prompt("prompt_parts", read)


def _read_prompt(message: messages.GenerateRequest) -> Prompt:
    kind = message.WhichOneof("prompt")
    if kind is None:
        raise InvalidRequest("prompt", "is missing")
    if kind == "prompt_tokens":
        return Prompt(kind, list(message.prompt_tokens.token_ids))
    if kind == "prompt_parts":
        return replace(read_parts(message.prompt_parts), parse_special=message.parse_special)
    return Prompt(kind, [message.prompt_text], message.parse_special)


def _read_prediction(message: messages.GenerateRequest) -> Prompt | None:
    kind = message.prediction.WhichOneof("kind")
    if kind == "text":
        return Prompt("prediction", [message.prediction.text])
    if kind == "tokens":
        return Prompt("prediction", list(message.prediction.tokens.token_ids))
    return None


def _read_biases(biases: Sequence[common.LogitBias]) -> list[tuple[str | int, float]]:
    read: list[tuple[str | int, float]] = []
    for each in biases:
        kind = each.WhichOneof("token")
        if kind is None:
            raise InvalidRequest("logit_bias", "each needs a token, by its id or by text")
        read.append((each.text if kind == "text" else each.token_id, each.bias))
    check_biases(read)
    return read


def _beyond_basic(message: messages.GenerateRequest, sampling: SamplingParameters) -> list[str]:
    """Return the names of what only the target's own sampler chain does."""
    named = {
        "logit_bias": bool(message.sampling.logit_biases),
        "ignore_eos": message.ignore_eos,
        "json_schema": bool(message.json_schema),
    }
    return [name for name, is_set in named.items() if is_set] + sampling.beyond_basic()


def _read_rule_and_form(
    options: messages.SpeculativeOptions, sampling: SamplingParameters, beyond: Sequence[str]
) -> tuple[Rule, Form]:
    """Return the acceptance rule and the row form, refusing what does not go together."""
    rule = Rule.MATCH if sampling.greedy else Rule.SHARED_NOISE
    if options.acceptance:
        rule = wire.RULES.read(options.acceptance)
    form = Form.DISTRIBUTIONS if rule is Rule.REJECTION else Form.SAMPLED
    if options.row_form:
        form = wire.FORMS.read(options.row_form)
    if (form is Form.SAMPLED) == (rule is Rule.REJECTION):
        raise InvalidRequest(
            "speculative.row_form", f"{form.value} does not go with acceptance {rule.value}"
        )
    if sampling.mirostat and rule is Rule.REJECTION:
        # Its state follows from the tokens that the target itself draws.
        raise InvalidRequest("mirostat", "does not go with acceptance rejection")
    if beyond and form is Form.LOGITS:
        raise InvalidRequest(beyond[0], "does not go with row form logits")
    return rule, form


def _read_speculation(
    options: messages.SpeculativeOptions,
    rule: Rule,
    default: Speculation,
    drafts: bool,
    is_searched: bool,
) -> Speculation:
    """Return the request's options over the orchestrator's own."""
    known = {
        name: getattr(options, name)
        for name in ("enabled", "n_max", "n_min", "p_min", "run_ahead", "n_parallel", "p_split")
        if options.HasField(name)
    }
    if options.policy:
        known["policy"] = wire.POLICIES.read(options.policy)
    if options.verification:
        known["verification"] = wire.VERIFICATIONS.read(options.verification)
    if options.drafters:
        known["drafters"] = frozenset(options.drafters)
    if options.draft_template:
        known["draft_template"] = wire.DRAFT_TEMPLATES.read(options.draft_template)
    if is_searched:
        known["enabled"] = False
    known.setdefault("n_min", min(default.n_min, known.get("n_max", default.n_max)))
    speculation = replace(default, **known)
    speculation.check_rule(rule)
    if not drafts:
        speculation = replace(speculation, drafters=speculation.may_draft - {MODEL})
    return speculation


def _as_searched(sampling: SamplingParameters) -> SamplingParameters:
    """Return what a beam search goes by: the biases that follow and the grammar, no draws."""
    return SamplingParameters(
        temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, grammar=sampling.grammar
    )


def _read_logprobs(message: messages.GenerateRequest, form: Form) -> LogprobOptions | None:
    if not message.HasField("logprobs"):
        return None
    if form is Form.LOGITS:
        raise InvalidRequest("logprobs", "does not go with row form logits")
    return wire.read_logprob_options(message.logprobs)


def _read_beam_count(message: messages.GenerateRequest, form: Form) -> int:
    count = message.beam_count if message.HasField("beam_count") else 1
    if not 1 <= count <= MAX_BEAMS:
        raise InvalidRequest("beam_count", f"must be in [1, {MAX_BEAMS}], not {count}")
    if count > 1 and message.completion_count > 1:
        raise InvalidRequest("beam_count", "does not go with several completions")
    if count > 1 and form is not Form.SAMPLED:
        raise InvalidRequest("beam_count", "does not go with acceptance rejection")
    return count


def _read_count(message: messages.GenerateRequest) -> int:
    """Return how many completions are asked for."""
    count = message.completion_count if message.HasField("completion_count") else 1
    if not 1 <= count <= MAX_COMPLETIONS:
        raise InvalidRequest("completion_count", f"must be in [1, {MAX_COMPLETIONS}], not {count}")
    return count


def _read_limit(message: messages.GenerateRequest) -> int:
    limit = message.token_limit if message.HasField("token_limit") else DEFAULT_LIMIT
    if limit < -1:
        raise InvalidRequest("token_limit", f"must be at least -1, not {limit}")
    return limit


def _read_keep_count(count: int) -> int:
    if count < -1:
        raise InvalidRequest("overflow.keep_token_count", f"must be at least -1, not {count}")
    return count


def _read_stops(sequences: Sequence[str]) -> list[str]:
    if not all(sequences):
        raise InvalidRequest("stop_sequences", "one of them is empty")
    _check_count("stop_sequences", len(sequences), MAX_STOPS)
    longest = max(map(len, sequences), default=0)
    if longest > MAX_STOP_CHARACTERS:
        message = f"one of {longest} characters, at most {MAX_STOP_CHARACTERS}"
        raise InvalidRequest("stop_sequences", message)
    return list(sequences)


def _check_count(field: str, count: int, most: int) -> None:
    if count > most:
        raise InvalidRequest(field, f"{count}, at most {most}")
