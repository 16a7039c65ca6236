"""What a generation is asked for: one value for every surface, checked when it is made. Pure.

The gateway makes it of an HTTP body, a client by itself, and the orchestrator's socket of a
message. What depends on a model or on the orchestrator's own options is checked by whoever knows
those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from enum import Enum
from hashlib import sha256
from typing import Any

from outrider.errors import InvalidRequest
from outrider.messages import (
    ANY_MODEL,
    MAX_BEAMS,
    MAX_DRAFT,
    MAX_TOP_LOGPROBS,
    SALT_BYTES,
    Form,
    LogprobOptions,
    ModelReference,
    Rule,
)
from outrider.sampling import SamplingParameters, check_biases
from outrider.speculation import MODELS, DraftTemplate, Policy, Speculation, Verification
from outrider.texts import check_count

MAX_COMPLETIONS = 16
MAX_CONTROL_NAMES = 64
MAX_STOP_IDS = 64
MAX_STOPS = 256
"""Stop sequences of a request: looking for so many takes .3 ms a token."""
MAX_STOP_CHARACTERS = 4096
"""Of one stop sequence. A text that follows one so far and then parts takes .5 ms, and 110 ms where
it follows 256 of them: no other token is read meanwhile."""
MAX_SALT_BYTES = 256
_OF_CREDENTIALS = "credentials "
"""Before the salt of a caller with credentials who gave none."""
INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


class Detail(Enum):
    """How much to report of each round, by the numbers of the protobuf enum RoundDetail."""

    NOTHING = 0
    TOKENS = 1
    CANDIDATES = 2


class RollbackMode(Enum):
    """How the model services learn of a rejection."""

    SPAN = "span"  # with the next message
    RPC = "rpc"  # by a call of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A chat to render, in the objects of OpenAI's API. A template checks them."""

    chat: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    variables: Mapping[str, Any] | None = None
    add_generation_prompt: bool = True
    continuation: str = ""  # what a prompt has after the rendered chat


@dataclass(frozen=True, slots=True)
class Request:
    """What to generate, and how. None leaves the choice to the orchestrator.

    Raises InvalidRequest, with the field's name, for a value outside its range and for values that
    do not go together.
    """

    prompt: str | Sequence[int | str]  # text, ids of the target's vocabulary, or both in turn
    _: KW_ONLY
    model: ModelReference = ANY_MODEL  # that has to write the text
    token_limit: int = 128  # -1: until the end of the text or a full context
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    logit_bias: tuple[tuple[int | str, float], ...] = ()  # by id or by text; -inf: never
    ignore_eos: bool = False
    finish_character: bool = False  # with up to 3 tokens beyond the limit
    json_schema: str = ""  # in place of a grammar
    logprobs: LogprobOptions | None = None
    seed: int | None = None
    stop_sequences: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    control_token_names: tuple[str, ...] = ()  # to report where they stand in the text
    completion_count: int = 1
    beam_count: int = 1  # more: search the most probable completion in place of drawing one
    prompt_logprobs: bool = False  # needs `logprobs`
    parse_special: bool = False  # read control tokens in the prompt's text
    truncate_prompt: bool = False  # drop the middle of a prompt that is too long
    shift: bool = False  # continue when the context is full, without half of it
    keep_token_count: int = 0  # tokens at the start that are never dropped; -1: the prompt
    prediction: str | tuple[int, ...] = ""  # the completion is expected to be much like it
    cache_salt: str = ""  # only generations with the same one share cached prefixes
    ignore_cached_prefix: bool = False  # read the whole prompt anew
    enabled: bool | None = None  # whether to speculate
    n_max: int | None = None
    n_min: int | None = None
    p_min: float | None = None
    n_parallel: int | None = None
    p_split: float | None = None
    run_ahead: bool | None = None
    policy: Policy | None = None
    verification: Verification | None = None  # under the rejection rule
    drafters: frozenset[str] | None = None
    draft_template: DraftTemplate | None = None  # in which a draft reads the conversation
    conversation: Conversation | None = None  # what the prompt was rendered from
    acceptance: Rule | None = None
    row_form: Form | None = None
    rollback: RollbackMode | None = None
    detail: Detail = Detail.NOTHING
    running_statistics: bool = False  # with each delta

    def __post_init__(self) -> None:
        self._check_texts()
        _check("token_limit", self.token_limit, -1, INT32_MAX)
        _check("seed", self.seed or 0, -_INT64_MAX - 1, _INT64_MAX)
        _check("keep_token_count", self.keep_token_count, -1, INT32_MAX)
        _check("completion_count", self.completion_count, 1, MAX_COMPLETIONS)
        _check("beam_count", self.beam_count, 1, MAX_BEAMS)
        _check_most("stop_token_ids", len(self.stop_token_ids), MAX_STOP_IDS)
        _check_most("control_token_names", len(self.control_token_names), MAX_CONTROL_NAMES)
        if self.logprobs is not None:
            _check("logprobs.top_count", self.logprobs.top_count, 0, MAX_TOP_LOGPROBS)
        check_biases(self.logit_bias)
        Speculation(**{"n_max": MAX_DRAFT} | self.said_of_speculation)
        self._check_what_goes_together()

    def _check_texts(self) -> None:
        if isinstance(self.prompt, str):
            check_text("prompt", self.prompt)
        else:
            texts = [part for part in self.prompt if isinstance(part, str)]
            check_count("prompt", len(texts))
            for text in texts:
                check_text("prompt", text)
        if isinstance(self.prediction, str):
            check_text("prediction", self.prediction)
        if len(check_text("cache_salt", self.cache_salt).encode()) > MAX_SALT_BYTES:
            raise InvalidRequest("cache_salt", f"at most {MAX_SALT_BYTES} bytes")
        _check_most("stop_sequences", len(self.stop_sequences), MAX_STOPS)
        for stop in self.stop_sequences:
            if not stop:
                raise InvalidRequest("stop_sequences", "one of them is empty")
            if len(check_text("stop_sequences", stop)) > MAX_STOP_CHARACTERS:
                message = f"one of {len(stop)} characters, at most {MAX_STOP_CHARACTERS}"
                raise InvalidRequest("stop_sequences", message)

    def _check_what_goes_together(self) -> None:
        rule, form = self.rule, self.form
        if (form is Form.SAMPLED) == (rule is Rule.REJECTION):
            message = f"{form.value} does not go with acceptance {rule.value}"
            raise InvalidRequest("row_form", message)
        if self.sampling.mirostat and rule is Rule.REJECTION:
            # Its state follows from the tokens that the target itself draws.
            raise InvalidRequest("mirostat", "does not go with acceptance rejection")
        if form is Form.LOGITS and (beyond := self._beyond_basic()):
            raise InvalidRequest(beyond[0], "does not go with row form logits")
        if self.json_schema and self.sampling.grammar:
            raise InvalidRequest("json_schema", "does not go with a grammar")
        if self.prompt_logprobs and self.logprobs is None:
            raise InvalidRequest("prompt_logprobs", "needs logprobs")
        if self.logprobs is not None and form is Form.LOGITS:
            raise InvalidRequest("logprobs", "does not go with row form logits")
        if self.beam_count > 1 and self.completion_count > 1:
            raise InvalidRequest("beam_count", "does not go with several completions")
        if self.beam_count > 1 and form is not Form.SAMPLED:
            raise InvalidRequest("beam_count", "does not go with acceptance rejection")

    def _beyond_basic(self) -> list[str]:
        """Return the names of what only the target's own sampler chain does."""
        named = ("logit_bias", "ignore_eos", "json_schema")
        return [name for name in named if getattr(self, name)] + self.sampling.beyond_basic()

    @property
    def rule(self) -> Rule:
        """Who decides about draft tokens: the rule that is asked for, or what sampling needs."""
        usual = Rule.MATCH if self.sampling.greedy else Rule.SHARED_NOISE
        return self.acceptance or usual

    @property
    def form(self) -> Form:
        """What a row of the target's answers is."""
        usual = Form.DISTRIBUTIONS if self.rule is Rule.REJECTION else Form.SAMPLED
        return self.row_form or usual

    @property
    def said_of_speculation(self) -> dict[str, Any]:
        """What is said about speculating, by the names of Speculation's fields."""
        values = {each.name: getattr(self, each.name) for each in fields(Speculation)}
        return {name: value for name, value in values.items() if value is not None}

    def separated(self, credentials: bytes) -> Request:
        """Return the request with a salt that no caller with other credentials can give to its own.

        A cached prefix shows those who can reuse it what the text is: by the count of cached
        tokens, and by the time that reading the prompt takes. Without credentials callers cannot
        be distinguished, and the salt stays as it is.
        """
        if not credentials:
            return self
        kind = "" if self.cache_salt else _OF_CREDENTIALS
        own = sha256(credentials).digest() + self.cache_salt.encode()
        return replace(self, cache_salt=kind + sha256(own).hexdigest())

    @property
    def has_own_salt(self) -> bool:
        """Whether the caller gave a salt, before `separated` changed it."""
        return bool(self.cache_salt) and not self.cache_salt.startswith(_OF_CREDENTIALS)

    @property
    def salt_digest(self) -> bytes:
        """What model services are given for the salt; they never see the text itself."""
        return sha256(self.cache_salt.encode()).digest()[:SALT_BYTES] if self.cache_salt else b""

    def speculation(self, default: Speculation, drafts: bool = True) -> Speculation:
        """Return what is said about speculating over the orchestrator's own options.

        Without `drafts` there is nobody to draft. Raises InvalidRequest.
        """
        said = self.said_of_speculation
        if self.beam_count > 1:
            said["enabled"] = False
        said.setdefault("n_min", min(default.n_min, said.get("n_max", default.n_max)))
        speculation = replace(default, **said)
        speculation.check_rule(self.rule)
        if not drafts:
            speculation = replace(speculation, drafters=speculation.may_draft.difference(MODELS))
        return speculation


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidRequest(name, f"must be in [{low}, {high}], not {value}")


def _check_most(name: str, count: int, most: int) -> None:
    if count > most:
        raise InvalidRequest(name, f"{count}, at most {most}")


def check_text(name: str, text: str) -> str:
    """Return a text that can be sent. Raises InvalidRequest."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(name, "is not valid Unicode text") from None
    return text
