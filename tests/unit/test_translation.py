"""Which tokens of two vocabularies are the same, and a text in the draft's own."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.distribution import Distribution
from outrider.translation import ABSENT, TokenTable, Translation
from outrider.vocabularies import compare
from tests.support.vocabularies import AB_AND_BA, DISJOINT, REORDERED, table


def row(*weights: float) -> Distribution:
    return Distribution(np.arange(len(weights), dtype=np.int32), np.array(weights))


def test_tokens_are_the_same_that_add_the_same_bytes() -> None:
    its = Translation(*AB_AND_BA)
    assert its.to_target.tolist() == [0, 1, 2, 3, ABSENT]
    assert its.to_draft.tolist() == [0, 1, 2, 3, ABSENT]
    assert Translation(*REORDERED).to_target.tolist() == [2, 3, 1, 4, 0]
    assert Translation(*DISJOINT).to_target.tolist() == [0, 1, ABSENT, ABSENT]


def test_special_tokens_are_the_same_by_their_role_or_else_by_their_name() -> None:
    draft = TokenTable(
        texts=[b"a", b"", b"", b"", b""],
        names=[b"a", b"<end>", b"<pad>", b"<|user|>", b"<turn>"],
        type=2,
        eos=1,
        eot=4,
    )
    target = TokenTable(
        texts=[b"", b"", b"", b"a"], names=[b"<|user|>", b"</s>", b"<end>", b"a"], type=1, eos=1
    )
    its = Translation(draft, target)
    assert its.to_target.tolist() == [3, 1, ABSENT, 0, 1]
    assert its.to_draft.tolist() == [3, 1, ABSENT, 0]


def test_byte_tokens_stand_for_bytes_that_no_other_token_has() -> None:
    names = [b"<0x61>", b"<0x62>", b"a"]
    draft = TokenTable(texts=[b"a", b"b", b"a"], names=names, type=1)
    its = Translation(draft, TokenTable(texts=[b"a", b"b"], names=[b"a", b"b"], type=2))
    assert its.to_target.tolist() == [0, 1, 0]
    assert its.to_draft.tolist() == [2, 1]


ADDED = {
    "both": (b"<think>", b"<think>"),
    "silent at the target": (b"<think>", b""),
    "silent at the draft": (b"", b"<think>"),
}
"""What a token that was added to both vocabularies adds to a text of the draft, of the target."""


def letters(text: bytes) -> TokenTable:
    """Return a vocabulary of the letters of an added token, and that as the last one."""
    singles = [bytes([byte]) for byte in sorted(set(b"<think>ab"))]
    return TokenTable(texts=[*singles, text], names=[*singles, b"<think>"], type=2)


@pytest.mark.parametrize("kind", ADDED)
def test_an_added_token_is_the_same_by_its_text_or_its_name(kind: str) -> None:
    draft, target = map(letters, ADDED[kind])
    its = Translation(draft, target)
    assert its.to_target.tolist() == its.to_draft.tolist() == list(range(len(draft.texts)))


def test_a_text_token_is_none_of_the_others_name() -> None:
    """Only what no merge leads to is an added token."""
    names = [b"a", b"b", b"ab"]
    draft = TokenTable(texts=[b"a", b"b", b""], names=names, type=2)
    target = TokenTable(texts=[b"a", b"b", b"ab"], names=names, type=2)
    assert Translation(draft, target).to_target.tolist() == [0, 1, ABSENT]


def test_a_distribution_is_restricted_to_what_is_shared_and_renormalised() -> None:
    q = Translation(*AB_AND_BA).in_target(row(0.0, 0.0, 0.2, 0.3, 0.5))
    assert q.probability(2) == pytest.approx(0.4)
    assert q.probability(3) == pytest.approx(0.6)
    assert q.probability(4) == 0.0


def test_tokens_that_are_one_token_of_the_target_add_up() -> None:
    draft = TokenTable(texts=[b"a", b"b", b"a"], names=[b"a", b"b", b"A"], type=2)
    its = Translation(draft, TokenTable(texts=[b"b", b"a"], names=[b"b", b"a"], type=2))
    q = its.in_target(row(0.25, 0.5, 0.25))
    assert [q.probability(0), q.probability(1)] == [0.5, 0.5]
    assert len(set(q.token_ids.tolist())) == len(q.token_ids)


def test_nothing_in_common_is_no_distribution() -> None:
    with pytest.raises(ValueError, match="none of these"):
        Translation(*DISJOINT).in_target(row(0.0, 0.0, 0.5, 0.5))


def test_what_the_target_lacks_is_impossible_in_a_restricted_row() -> None:
    logits = np.arange(5, dtype=np.float32)
    restricted = Translation(*AB_AND_BA).restricted(logits)
    assert restricted.tolist() == [0, 1, 2, 3, -np.inf]
    assert logits[4] == 4


def test_noise_is_the_targets_where_it_has_the_token() -> None:
    ids = Translation(*AB_AND_BA).noise_ids.tolist()
    assert ids == [0, 1, 2, 3, 5 + 4]


def test_the_share_of_a_text_is_of_its_tokens_in_the_targets_encoding() -> None:
    its = Translation(table(b"a", b"b"), table(b"a", b"b", b"ba"))
    assert its.covered_share(b"aba") == 0.5  # a, ba
    assert its.covered_share(b"") == 0.0


# Texts


def test_a_text_is_told_in_the_draft_s_own_tokens() -> None:
    reader = Translation(*AB_AND_BA).reader()
    a, b, ba = 2, 3, 4
    assert reader.read([0, a, b], 3) == [0, 4]  # <s> ab
    assert reader.read([0, ba, ba], 3) == [0, 3, 4, 2]  # <s> b ab a


def test_what_the_draft_wrote_stays_as_it_wrote_it() -> None:
    reader = Translation(*AB_AND_BA).reader()
    assert reader.read([0, 2, 3], 1) == [0, 2, 3]
    assert reader.read([0, 2, 3], 2) == [0, 2, 3]
    assert reader.read([0, 2, 3], 3) == [0, 4]


def test_no_token_goes_across_the_end_of_the_prompt() -> None:
    assert Translation(*AB_AND_BA).reader(prompt_count=2).read([0, 2, 3], 3) == [0, 2, 3]


def test_a_draft_that_begins_with_bos_has_one_whatever_the_target_begins_with() -> None:
    draft, target = table(b"a"), TokenTable(texts=[b"a"], names=[b"a"], type=2)
    assert Translation(draft, target).reader().read([0], 1) == [0, 2]
    assert Translation(target, draft).reader().read([0, 2], 2) == [0]


@pytest.mark.fault(
    "text",
    "a text that changes right where one of a foreign draft's tokens began",
    before="the draft read it in other tokens than in a text of its own, and was right less often",
    now="it is read as if it were new",
)
def test_reading_on_is_the_same_as_reading_anew() -> None:
    its = Translation(table(b"a", b"b", b"c", b"ab", b"bc"), table(b"a", b"b", b"c", b"ca"))
    rng = np.random.default_rng(1)
    kept, text = its.reader(2), [0]
    for _ in range(3000):
        cut = int(rng.integers(1, len(text) + 1))
        text = [*text[:cut], *rng.integers(0, 6, rng.integers(0, 4)).tolist()][:8]
        base = len(text) if rng.random() < 0.7 else int(rng.integers(1, len(text) + 1))
        assert kept.read(text, base) == its.reader(2).read(text, base)


def test_a_line_that_grows_is_read_as_a_whole_would_be() -> None:
    its = Translation(table(b"a", b"b", b"c", b"bc"), table(b"a", b"b", b"c", b"ca", b"cab"))
    rng = np.random.default_rng(2)
    for base in (1, 3, 6):
        kept, line = its.reader(2), rng.integers(2, 7, base).tolist()
        for _ in range(30):
            line += rng.integers(2, 7, rng.integers(1, 4)).tolist()
            assert kept.read(line, base) == its.reader(2).read(line, base)


def test_a_text_is_read_no_further_than_anyone_can_use_it() -> None:
    its = Translation(table(b"a", b"b"), table(b"a", b"b"))
    reader = its.reader(most=10)
    assert 10 < len(reader.read([2, 3] * 40, 80)) < 20
    assert reader.read([2, 3, 3], 3) == [0, 2, 3, 3]


@pytest.mark.fault(
    "text",
    "a token that was added to the vocabularies of a target and of a foreign draft",
    before="the draft read the pieces of its text, `<`, `th`, `ink`, `>`, as in no text of its own",
    now="it reads its own token of that text, or of that name",
)
@pytest.mark.parametrize("kind", ADDED)
@pytest.mark.parametrize("base", [1, 4])
def test_an_added_token_is_read_as_the_drafts_own(kind: str, base: int) -> None:
    its = Translation(*map(letters, ADDED[kind]))
    a, b, think = its.draft.texts.index(b"a"), its.draft.texts.index(b"b"), len(its.draft.texts) - 1
    line = [a, think, think, b]
    assert its.reader().read(line, base) == line
    assert its.reader().own_ids(line) == line


SPECIAL = [b"<|im_start|>", b"<\xef\xbd\x9cUser\xef\xbd\x9c>", b"<unused7>", b"<pad>"]


@pytest.mark.parametrize("special", SPECIAL)
def test_a_special_token_that_the_draft_lacks_is_left_out_even_if_text(special: bytes) -> None:
    names = [bytes([byte]) for byte in range(256)]
    draft = TokenTable(texts=names, names=names, type=2)
    target = TokenTable(texts=[*names, special], names=[*names, special], type=2)
    reader = Translation(draft, target).reader()
    line = [97, 256, 98, 256]
    for base in range(len(line) + 1):
        assert reader.read(line, base) == [97, 98]


def test_an_added_token_of_plain_text_that_the_draft_lacks_is_read_as_text() -> None:
    """Gemma's runs of new lines are such tokens, and its HTML."""
    names = [bytes([byte]) for byte in range(256)]
    draft = TokenTable(texts=names, names=names, type=2)
    target = TokenTable(texts=[*names, b"\n\n\n"], names=[*names, b"\n\n\n"], type=2)
    assert Translation(draft, target).reader().read([97, 256], 2) == [97, 10, 10, 10]


# Reports


def test_a_comparison_counts_and_gives_examples() -> None:
    its = compare(Translation(*AB_AND_BA))
    assert (its.target_count, its.draft_count, its.shared_count, its.same_id_count) == (5, 5, 4, 4)
    assert its.sentence() == (
        "of the draft's 5 tokens the target, which has 5, has 4, 4 of them under the same id; "
        "only the draft has 'ab'; only the target has 'ba'"
    )
    assert "under other ids 'a', 'b', 'c'" in compare(Translation(*REORDERED)).sentence()


def test_a_draft_with_a_larger_vocabulary_shares_all_that_the_target_has() -> None:
    larger = table(b"a", b"b", *(b"a" * count for count in range(2, 300)))
    its = Translation(larger, table(b"a", b"b"))
    assert its.shared_count == 4
    assert compare(its).same_id_count == 4
