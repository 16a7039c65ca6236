"""Whether a draft and a target can share token ids: llama.cpp's rule, named when broken. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from outrider.descriptions import draft_source
from outrider.errors import VocabularyMismatch
from outrider.messages import VOCABULARY_SLACK
from outrider.speculation import MODEL, HeadKind
from outrider.v1 import common_pb2 as common

FIRST_COMPARED_ID = 5
"""Ids below are special in most vocabularies and may be named differently."""


def digest(names: Sequence[bytes]) -> bytes:
    """Return the SHA-256 of all token names, each with its length before it."""
    hashed = hashlib.sha256()
    for name in names:
        hashed.update(len(name).to_bytes(4, "little") + name)
    return hashed.digest()


def check_vocabularies(target: common.Vocabulary, draft: common.Vocabulary) -> bool:
    """Raise VocabularyMismatch by what the descriptions say.

    Returns whether the token names must still be compared. A draft without a model takes the ids
    of any target.
    """
    if draft.fits_any:
        return False
    facts = (
        ("vocabulary type", target.type, draft.type),
        ("add_bos", target.adds_bos, draft.adds_bos),
        ("add_eos", target.adds_eos, draft.adds_eos),
        ("BOS id", target.bos_token_id, draft.bos_token_id),
        ("EOS id", target.eos_token_id, draft.eos_token_id),
        ("EOT id", target.eot_token_id, draft.eot_token_id),
    )
    for rule, of_target, of_draft in facts:
        if of_target != of_draft:
            raise VocabularyMismatch(
                f"{rule} differs: target {of_target}, draft {of_draft}",
                rule=rule,
                target=of_target,
                draft=of_draft,
            )
    sizes = target.token_count, draft.token_count
    if abs(sizes[0] - sizes[1]) > VOCABULARY_SLACK:
        raise VocabularyMismatch(
            f"vocabulary sizes differ by more than {VOCABULARY_SLACK}: "
            f"target {sizes[0]}, draft {sizes[1]}",
            rule="size",
            target=sizes[0],
            draft=sizes[1],
        )
    return target.digest != draft.digest


def check_rollback(role: str, model: common.GetModelResponse) -> None:
    """Raise VocabularyMismatch for a model that would read its text again after each rejection."""
    if model.rollback_capability == common.ROLLBACK_CAPABILITY_NONE:
        raise VocabularyMismatch(f"the {role}'s memory cannot be rolled back", rule="memory")


def check_head(target: common.GetModelResponse, draft: common.GetModelResponse) -> None:
    """Raise VocabularyMismatch for a head that cannot read this target's hidden rows."""
    kind, its, width = draft_source(draft), target.architecture, target.hidden_row_width
    if kind == MODEL:
        return
    reason = ""
    if kind != HeadKind.MTP.value:
        reason = "it reads layers, which only a target in the same process shows"
    elif draft.architecture != its:
        reason = f"it is one of {draft.architecture}, and the target is {its}"
    elif not width:
        reason = "the target returns no hidden rows: start it with --hidden-rows"
    elif draft.hidden_row_width != width:
        reason = f"it reads rows of {draft.hidden_row_width} numbers, the target's have {width}"
    if reason:
        raise VocabularyMismatch(f"the draft is {HeadKind(kind).words}: {reason}", rule="head")


def check_names(target: Sequence[bytes], draft: Sequence[bytes]) -> None:
    """Raise VocabularyMismatch at the first token that is named differently."""
    for token_id in range(FIRST_COMPARED_ID, min(len(target), len(draft))):
        if target[token_id] != draft[token_id]:
            raise VocabularyMismatch(
                f"token {token_id} differs: target {_text(target[token_id])}, "
                f"draft {_text(draft[token_id])}",
                rule="token text",
                tokenId=token_id,
                target=_text(target[token_id]),
                draft=_text(draft[token_id]),
            )


def _text(name: bytes) -> str:
    return repr(name.decode("utf-8", "replace"))
