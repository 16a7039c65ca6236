"""Whether two models can share token ids, and what is said when they cannot."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.errors import VocabularyMismatch
from outrider.handshake import check_names, check_rollback, check_vocabularies, digest
from outrider.v1 import common_pb2 as common

NAMES = [b"<s>", b"</s>", b"<pad>", b"?", b"!", b"the", b" cat", b"\xff", b"sat"]


def vocabulary(**fields: Any) -> common.Vocabulary:
    message = common.Vocabulary(
        type=2,
        token_count=320,
        bos_token_id=0,
        eos_token_id=1,
        eot_token_id=-1,
        adds_bos=True,
        adds_eos=False,
        digest=b"same",
    )
    for name, value in fields.items():
        setattr(message, name, value)
    return message


def test_equal_vocabularies_need_no_comparison_of_names() -> None:
    assert check_vocabularies(vocabulary(), vocabulary()) is False


def test_another_digest_asks_for_a_comparison_of_names() -> None:
    assert check_vocabularies(vocabulary(), vocabulary(digest=b"other")) is True


def test_a_draft_without_a_model_fits_every_target() -> None:
    assert check_vocabularies(vocabulary(), common.Vocabulary(fits_any=True)) is False
    with pytest.raises(VocabularyMismatch):
        check_vocabularies(common.Vocabulary(fits_any=True), vocabulary())


@pytest.mark.parametrize(
    ("field", "value", "rule", "said"),
    [
        ("type", 1, "vocabulary type", "target 2, draft 1"),
        ("adds_bos", False, "add_bos", "target True, draft False"),
        ("adds_eos", True, "add_eos", "target False, draft True"),
        ("bos_token_id", 7, "BOS id", "target 0, draft 7"),
        ("eos_token_id", 7, "EOS id", "target 1, draft 7"),
        ("eot_token_id", 7, "EOT id", "target -1, draft 7"),
    ],
)
def test_a_differing_fact_is_named_with_both_values(
    field: str, value: int, rule: str, said: str
) -> None:
    with pytest.raises(VocabularyMismatch) as caught:
        check_vocabularies(vocabulary(), vocabulary(**{field: value}))
    assert str(caught.value) == f"{rule} differs: {said}"
    assert caught.value.metadata["rule"] == rule
    assert set(caught.value.metadata) == {"rule", "target", "draft"}


@pytest.mark.parametrize("difference", [128, -128])
def test_sizes_may_differ_by_the_slack(difference: int) -> None:
    other = vocabulary(token_count=320 + difference, digest=b"other")
    assert check_vocabularies(vocabulary(), other) is True


@pytest.mark.parametrize("count", [449, 191])
def test_sizes_that_differ_by_more_are_named(count: int) -> None:
    with pytest.raises(VocabularyMismatch) as caught:
        check_vocabularies(vocabulary(), vocabulary(token_count=count, digest=b"other"))
    assert str(caught.value) == (
        f"vocabulary sizes differ by more than 128: target 320, draft {count}"
    )
    assert caught.value.metadata == {"rule": "size", "target": "320", "draft": str(count)}


def test_equal_names_pass_and_a_longer_tail_is_no_difference() -> None:
    check_names(NAMES, NAMES)
    check_names(NAMES, [*NAMES, b"tail0", b"tail1"])
    check_names([*NAMES, b"tail0"], NAMES)


def test_the_first_differing_name_is_named_with_its_id_and_both_texts() -> None:
    other = [*NAMES]
    other[6], other[8] = b" dog", b"lay"
    with pytest.raises(VocabularyMismatch) as caught:
        check_names(NAMES, other)
    assert str(caught.value) == "token 6 differs: target ' cat', draft ' dog'"
    assert caught.value.metadata == {
        "rule": "token text",
        "tokenId": "6",
        "target": "' cat'",
        "draft": "' dog'",
    }


def test_a_name_that_is_no_text_can_be_named() -> None:
    with pytest.raises(VocabularyMismatch, match="token 7 differs: target '\ufffd', draft 'x'"):
        check_names(NAMES, [*NAMES[:7], b"x", NAMES[8]])


def test_the_first_ids_may_be_named_differently() -> None:
    check_names(NAMES, [b"a", b"b", b"c", b"d", b"e", *NAMES[5:]])
    with pytest.raises(VocabularyMismatch, match="token 5"):
        check_names(NAMES, [*NAMES[:5], b"The", *NAMES[6:]])


def test_a_digest_follows_every_name_and_where_it_ends() -> None:
    assert len(digest(NAMES)) == 32
    assert digest(NAMES) == digest(list(NAMES))
    assert digest([b"ab", b"c"]) != digest([b"a", b"bc"])
    assert digest(NAMES) != digest(NAMES[:-1])
    assert digest([b"", b"a"]) != digest([b"a", b""])


def test_a_model_that_cannot_be_rolled_back_is_refused_by_name() -> None:
    model = common.GetModelResponse(rollback_capability=common.ROLLBACK_CAPABILITY_NONE)
    with pytest.raises(VocabularyMismatch, match="the draft's memory cannot be rolled back"):
        check_rollback("draft", model)
    check_rollback("target", common.GetModelResponse())
