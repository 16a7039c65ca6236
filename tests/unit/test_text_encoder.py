"""Text in the tokens of a vocabulary of which only the texts are known."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.text_encoder import TextEncoder, TokenStream

BYTES = [bytes([i]) for i in range(97, 101)]  # a b c d


def random_texts(seed: int, count: int = 12) -> list[bytes]:
    """Return the letters a to d, a space, and random texts of them."""
    rng = np.random.default_rng(seed)
    longer = [bytes(rng.choice(list(b"abcd "), rng.integers(2, 6)).tolist()) for _ in range(count)]
    return [*BYTES, b" ", *dict.fromkeys(longer)]


def random_text(seed: int, length: int = 40) -> bytes:
    return bytes(np.random.default_rng([9, seed]).choice(list(b"abcd  "), length).tolist())


def test_the_pair_of_the_lowest_id_is_merged_first() -> None:
    encoder = TextEncoder([*BYTES, b"bc", b"ab", b"abc"])
    assert encoder.pieces(b"abcab") == [b"abc", b"ab"]  # bc first, then a and bc
    assert TextEncoder([*BYTES, b"ab", b"bc"]).pieces(b"abc") == [b"ab", b"c"]


def test_a_token_of_its_own_is_rather_taken_than_the_token_of_a_byte() -> None:
    texts = [b"a", b"b", b"a"]
    assert TextEncoder(texts).encode(b"ab") == [0, 1]
    assert TextEncoder(texts, byte_token_ids=[0]).encode(b"ab") == [2, 1]


def test_what_no_token_has_is_left_out() -> None:
    assert TextEncoder([b"a", b"ab"]).encode(b"a?b") == [0]


def test_a_character_is_taken_whole_where_nothing_leads_to_it() -> None:
    encoder = TextEncoder(["€".encode(), b"\xe2", b"\x82", b"\xac", b"a"])
    assert encoder.encode("a€a".encode()) == [4, 0, 4]
    assert encoder.encode(b"\xe2\x82") == [1, 2]  # the first half of it


def test_the_last_of_several_spaces_belongs_to_the_word() -> None:
    texts = [b" ", b"a", b"  ", b"   ", b" a"]
    assert TextEncoder(texts, spaces_lead=True).pieces(b"   a  ") == [b"  ", b" a", b"  "]
    assert TextEncoder(texts).pieces(b"   a") == [b"   ", b"a"]
    assert TextEncoder([*texts, b"  a"], spaces_lead=True).pieces(b"  a") == [b"  a"]


@pytest.mark.parametrize("spaces_lead", [False, True])
def test_tokens_that_were_given_are_those_of_the_whole_text(spaces_lead: bool) -> None:
    """Of random vocabularies and texts that grow by random pieces: no text takes one back."""
    for seed in range(300):
        encoder = TextEncoder(random_texts(seed), spaces_lead=spaces_lead)
        stream, text, given = TokenStream(encoder), random_text(seed), list[int]()
        rng, start = np.random.default_rng([3, seed]), 0
        while start < len(text):
            end = start + int(rng.integers(1, 5))
            given += stream.feed(text[start:end])
            assert given == encoder.encode(text[:])[: len(given)]
            start = end
        assert given + stream.finish() == encoder.encode(text)
        assert not stream.pending


def test_a_token_is_given_as_soon_as_no_text_can_change_it() -> None:
    stream = TokenStream(TextEncoder([*BYTES, b"ab", b"abcd"]))
    assert stream.feed(b"a") == []  # it may be ab, or abcd
    assert stream.feed(b"b") == []
    assert stream.open_count == 1
    assert stream.feed(b"d") == [4, 3]
    assert stream.feed(b"c") == [2]


def test_a_stream_stops_at_a_byte_that_no_token_has() -> None:
    stream = TokenStream(TextEncoder(BYTES))
    assert stream.feed(b"a?b") == [0]
    assert stream.is_stuck
    assert stream.feed(b"c") == []


def test_a_long_run_without_a_break_takes_no_time_to_speak_of() -> None:
    encoder = TextEncoder([b"a", *(b"a" * 2**i for i in range(1, 6))])
    assert len(encoder.encode(b"a" * 100_000)) == 100_000 // 32
