"""What a model service may say of itself: checked before anything relies on it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.costs import MOST_ROWS
from outrider.errors import InvalidRequest
from outrider.messages import MAX_DRAFT
from outrider.speculation import MODEL, HeadKind
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_service_pb2 as draft
from outrider.v1 import orchestrator_service_pb2 as orchestrator
from outrider.wire import IDENTITY_BYTES, at_least, read_ids

MAX_VOCABULARY = 1 << 22  # tokens; the largest vocabularies have 256 Ki

MOST_DIFFERENCES = 1024
"""Characters of what differs between two vocabularies."""


def check_model(message: common.GetModelResponse) -> None:
    """Raise InvalidRequest for a description with which a peer could not be used."""
    if len(message.identity) != IDENTITY_BYTES:
        raise InvalidRequest("identity", f"{len(message.identity)} bytes, not {IDENTITY_BYTES}")
    for name, most in _MOST_CHARACTERS.items():
        if len(getattr(message, name)) > most:
            raise InvalidRequest(name, f"is longer than {most}")
    for name, least in _LEAST_OF_A_MODEL.items():
        at_least(name, getattr(message, name), least)
    check_vocabulary(message.vocabulary)
    if len(message.known_vocabulary_keys) > _MOST_KEYS:
        count = len(message.known_vocabulary_keys)
        raise InvalidRequest("known_vocabulary_keys", f"{count}, at most {_MOST_KEYS}")
    _check_costs(message.decode_costs)
    _check_plain_costs(message.plain_costs)
    if message.HasField("own_draft"):
        _check_own_draft(message.own_draft)


_MOST_CHARACTERS = {
    "service_version": 256,
    "model_name": 1024,
    "description": 4096,
    "system_info": 65536,
    "cpu_kernels": 4096,
    "thread_choice": 4096,
    "chat_template": 1 << 20,
    "machine_digest": 64,
    "cores_digest": 64,
    "bos_token_text": 256,
    "eos_token_text": 256,
    "architecture": 256,
}
_LEAST_OF_A_MODEL = {
    "context_token_count": 1,
    "session_count": 1,
    "weight_byte_count": 0,
    "parameter_count": 0,
    "thread_count": 0,
    "core_count": 0,
    "round_draft_token_limit": 0,
    "hidden_row_width": 0,
}
_MOST_COSTS = 256  # rows of a table of decode costs
_MOST_KEYS = 8  # vocabularies that a peer says it knows
_LONGEST_DECODE = 3.6e6  # milliseconds
_LARGEST_SLOPE = 1e6  # microseconds a token


def check_vocabulary(message: common.Vocabulary) -> None:
    """Raise InvalidRequest for a description of a vocabulary that there cannot be."""
    if message.fits_any:
        if message != common.Vocabulary(fits_any=True):
            raise InvalidRequest("vocabulary.fits_any", "is set beside what it stands for")
        return
    count = message.token_count
    if not 1 <= count <= MAX_VOCABULARY:
        raise InvalidRequest("vocabulary.token_count", f"{count} is not in [1, {MAX_VOCABULARY}]")
    for name in ("bos_token_id", "eos_token_id", "eot_token_id"):
        if not -1 <= getattr(message, name) < count:
            raise InvalidRequest(f"vocabulary.{name}", f"is outside [-1, {count})")
    read_ids("vocabulary.end_token_ids", message.end_token_ids, count)
    if message.HasField("fim_tokens"):
        _check_fim(message.fim_tokens, count)
    if len(message.digest) > 64:
        raise InvalidRequest("vocabulary.digest", "is longer than 64 bytes")


def _check_fim(tokens: common.FimTokens, count: int) -> None:
    """Raise InvalidRequest for ids out of the vocabulary; -1 is none, where there may be none."""
    for name in tokens.DESCRIPTOR.fields_by_name:
        least = -1 if name in ("repository_token_id", "file_token_id") else 0
        if not least <= getattr(tokens, name) < count:
            raise InvalidRequest(f"vocabulary.fim_tokens.{name}", f"is not in [{least}, {count})")


def check_learned(message: draft.LearnVocabularyResponse) -> None:
    """Raise InvalidRequest for what no draft that learned a vocabulary can answer."""
    if message.level not in (draft.TRANSLATION_LEVEL_TOKENS, draft.TRANSLATION_LEVEL_STRINGS):
        raise InvalidRequest("level", f"{message.level} is none that is known")
    if not 0 <= message.shared_token_count <= MAX_VOCABULARY:
        raise InvalidRequest("shared_token_count", f"is not in [0, {MAX_VOCABULARY}]")
    if not 0.0 <= message.shared_mass <= 1.0:
        raise InvalidRequest("shared_mass", f"{message.shared_mass} is not in [0, 1]")
    if len(message.differences) > MOST_DIFFERENCES:
        raise InvalidRequest("differences", f"is longer than {MOST_DIFFERENCES}")


def _check_costs(costs: Sequence[common.DecodeCost]) -> None:
    """Refuse what no table can be made of; times may fall where rows rise, and they do."""
    if len(costs) > _MOST_COSTS:
        raise InvalidRequest("decode_costs", f"{len(costs)}, at most {_MOST_COSTS}")
    before = 0
    for cost in costs:
        if not before < cost.row_count <= MOST_ROWS:
            wrong = f"{cost.row_count} after {before}, at most {MOST_ROWS}"
            raise InvalidRequest("decode_costs.row_count", wrong)
        if not 0.0 < cost.milliseconds <= _LONGEST_DECODE:
            wrong = f"{cost.milliseconds} is not in (0, {_LONGEST_DECODE:.0f}]"
            raise InvalidRequest("decode_costs.milliseconds", wrong)
        if not 0.0 <= cost.microseconds_per_token <= _LARGEST_SLOPE:
            wrong = f"{cost.microseconds_per_token} is not in [0, {_LARGEST_SLOPE:.0f}]"
            raise InvalidRequest("decode_costs.microseconds_per_token", wrong)
        before = cost.row_count


HEAD_NUMBERS: Mapping[HeadKind, Any] = {
    kind: common.HeadKind.Value(f"HEAD_KIND_{kind.name}") for kind in HeadKind
}


def own_source(draft: common.OwnDraft) -> str:
    """Return the name of a target's own draft among the drafters; of an unknown head MODEL."""
    return _source_of(draft.head)


def draft_source(draft: common.GetModelResponse) -> str:
    """Return the name of a draft service's model among the drafters, in the same way."""
    return _source_of(draft.head)


def _source_of(head: int) -> str:
    return next((kind.value for kind, number in HEAD_NUMBERS.items() if number == head), MODEL)


def _check_own_draft(draft: common.OwnDraft) -> None:
    if len(draft.model_name) > _MOST_CHARACTERS["model_name"]:
        raise InvalidRequest("own_draft.model_name", "is too long")
    at_least("own_draft.weight_byte_count", draft.weight_byte_count, 0)
    if not 0 <= draft.token_limit <= MAX_DRAFT:
        wrong = f"{draft.token_limit} is not in [0, {MAX_DRAFT}]"
        raise InvalidRequest("own_draft.token_limit", wrong)
    token, read = draft.token_milliseconds, draft.read_milliseconds
    if not 0.0 < token <= _LONGEST_DECODE:
        raise InvalidRequest("own_draft.token_milliseconds", f"{token} is not in (0, 3600000]")
    if not 0.0 <= read <= _LONGEST_DECODE:
        raise InvalidRequest("own_draft.read_milliseconds", f"{read} is not in [0, 3600000]")


def _check_plain_costs(costs: common.PlainCosts) -> None:
    for field, milliseconds in costs.ListFields():
        if not 0.0 <= milliseconds <= _LONGEST_DECODE:
            wrong = f"{milliseconds} is not in [0, {_LONGEST_DECODE:.0f}]"
            raise InvalidRequest(f"plain_costs.{field.name}", wrong)


def rollback_kind(model: common.GetModelResponse) -> str:
    """Return how a model's sessions are cut: "full", "window", ...; "unspecified" if not known."""
    return _word(common.RollbackCapability, "ROLLBACK_CAPABILITY_", model.rollback_capability)


def translation_level(peer: orchestrator.PeerStatus) -> str:
    """Return "native" for a draft with the target's ids, else at which level it translates."""
    return level_of(peer.translation) if peer.HasField("translation") else "native"


def level_of(learned: draft.LearnVocabularyResponse) -> str:
    """Return at which level a draft translates: "token" or "string"."""
    level = _word(draft.TranslationLevel, "TRANSLATION_LEVEL_", learned.level)
    return level.removesuffix("s")


def _word(kind: Any, prefix: str, value: int) -> str:
    """Return an enum value's name in lower case; a newer version's is "unspecified"."""
    name: str = kind.Name(value) if value in kind.values() else "unspecified"
    return name.removeprefix(prefix).lower()
