"""Tokens to whole characters; stop sequences never leak, however the text is cut."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.text import Piece, TextAssembler

SETTINGS = settings(derandomize=True, deadline=None, max_examples=200)


def pieces_of(tokens: Sequence[bytes], stops: Sequence[str] = ()) -> list[list[Piece[int]]]:
    """Return what is shown after each token, tagged by the token's index, and at the end."""
    assembler: TextAssembler[int] = TextAssembler(stops)
    shown = [assembler.add(token, i) for i, token in enumerate(tokens)]
    return [*shown, assembler.finish(len(tokens))]


def texts_of(tokens: Sequence[bytes], stops: Sequence[str] = ()) -> list[str]:
    return ["".join(piece.text for piece in pieces) for pieces in pieces_of(tokens, stops)]


def cut(tokens: Sequence[bytes], stops: Sequence[str]) -> str:
    """Return the text up to the stop sequence that the first token completes. The oracle."""
    for count in range(1, len(tokens) + 1):
        # An unfinished character at the end is no part of any stop sequence.
        text = b"".join(tokens[:count]).decode("utf-8", "ignore")
        found = [at for at in map(text.find, stops) if at >= 0]
        if found:
            return text[: min(found)]
    return b"".join(tokens).decode("utf-8", "replace")


def split(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(c % (len(data) + 1) for c in cuts), len(data)]
    return [data[left:right] for left, right in itertools.pairwise(edges)]


TEXTS = st.text(alphabet="ab\u00e9\u20ac\U0001f642", max_size=14)
STOPS = st.lists(st.text(alphabet="ab\u00e9", min_size=1, max_size=4), max_size=3)
CUTS = st.lists(st.integers(0, 60), max_size=14)


# characters


def test_a_character_is_shown_when_its_last_byte_is_there() -> None:
    assert texts_of([b"caf\xc3", b"\xa9!"]) == ["caf", "\u00e9!", ""]


def test_a_character_may_take_four_tokens() -> None:
    assert texts_of([b"\xf0", b"\x9f", b"\x99", b"\x82"]) == ["", "", "", "\U0001f642", ""]


def test_an_unfinished_character_becomes_a_mark_at_the_end() -> None:
    assert texts_of([b"a\xe2\x82"]) == ["a", "\ufffd"]


def test_a_byte_that_starts_no_character_becomes_a_mark_at_once() -> None:
    assert texts_of([b"\xff", b"a"]) == ["\ufffd", "a", ""]


def test_a_character_that_is_broken_off_becomes_a_mark() -> None:
    assert texts_of([b"\xe2\x82", b"a"]) == ["", "\ufffda", ""]


def test_a_token_without_text_shows_nothing() -> None:
    assert texts_of([b"", b"a", b""]) == ["", "a", "", ""]


# stop sequences


def test_nothing_comes_after_a_stop_sequence() -> None:
    assert texts_of([b"one\n", b"two", b"three"], ["\n"]) == ["one", "", "", ""]


def test_a_stop_sequence_is_found_across_tokens() -> None:
    assert texts_of([b"a<", b"en", b"d>b"], ["<end>"]) == ["a", "", "", ""]


def test_what_only_looked_like_a_stop_sequence_is_shown_later() -> None:
    assert texts_of([b"a<", b"en", b"g>"], ["<end>"]) == ["a", "", "<eng>", ""]


def test_what_only_looked_like_a_stop_sequence_is_shown_at_the_end() -> None:
    assert texts_of([b"a<", b"en"], ["<end>"]) == ["a", "", "<en"]


def test_the_start_of_a_repeating_stop_sequence_is_not_missed() -> None:
    assert texts_of([b"a", b"a", b"a", b"b"], ["aab"]) == ["", "", "a", "", ""]


def test_the_earliest_of_several_stop_sequences_cuts() -> None:
    assert texts_of([b"one two three"], ["three", "two"]) == ["one ", ""]


def test_a_stop_sequence_may_end_in_half_a_token() -> None:
    assert texts_of([b"x\xc3", b"\xa9y"], ["\u00e9"]) == ["x", "", ""]


def test_the_mark_of_an_unfinished_character_can_be_a_stop_sequence() -> None:
    assert texts_of([b"a\xc3"], ["\ufffd"]) == ["a", ""]


def test_an_assembler_says_that_it_stopped() -> None:
    assembler: TextAssembler[int] = TextAssembler(["b"])
    assembler.add(b"a", 0)
    assert not assembler.stopped_by
    assembler.add(b"b", 1)
    assert assembler.stopped_by
    assert assembler.finish(2) == []


# tags


def test_a_piece_has_the_tag_of_the_token_that_completed_it() -> None:
    assert pieces_of([b"a\xc3", b"\xa9"]) == [[Piece("a", 0)], [Piece("\u00e9", 1)], []]


def test_held_pieces_keep_their_tags() -> None:
    assert pieces_of([b"x<", b"e", b"!"], ["<end>"]) == [
        [Piece("x", 0)],
        [],
        [Piece("<", 0), Piece("e", 1), Piece("!", 2)],
        [],
    ]


def test_a_piece_that_is_cut_keeps_its_tag() -> None:
    assert pieces_of([b"ab<", b"c", b"end>"], ["<end>", "cend"]) == [
        [Piece("ab", 0)],
        [Piece("<", 0)],
        [],
        [],
    ]


# control tokens


def test_a_control_token_is_a_piece_of_its_own() -> None:
    assembler: TextAssembler[int] = TextAssembler(["<c>", "ab"])
    assert assembler.add_control("<c>", 0) == [Piece("<c>", 0, control=True)]
    assert assembler.add(b"x", 1) == [Piece("x", 1)]
    assert assembler.stopped_by == ""


def test_a_control_token_waits_for_the_text_before_it() -> None:
    assembler: TextAssembler[int] = TextAssembler(["ab"])
    assert assembler.add(b"xa", 0) == [Piece("x", 0)]
    assert assembler.add_control("<c>", 1) == []
    assert assembler.add(b"c", 2) == [Piece("a", 0), Piece("<c>", 1, control=True), Piece("c", 2)]


def test_a_control_token_that_waits_is_shown_at_the_end() -> None:
    assembler: TextAssembler[int] = TextAssembler(["ab"])
    assembler.add(b"a", 0)
    assembler.add_control("<c>", 1)
    assert assembler.finish(2) == [Piece("a", 0), Piece("<c>", 1, control=True)]


def test_nothing_comes_after_a_stop_sequence_not_even_a_control_token() -> None:
    assembler: TextAssembler[int] = TextAssembler(["ab"])
    assert assembler.add_control("<c>", 0) and not assembler.add(b"a", 1)
    assert assembler.add_control("<d>", 2) == []
    assert assembler.add(b"b", 3) == []
    assert assembler.stopped_by == "ab"
    assert assembler.add_control("<e>", 4) == assembler.finish(5) == []


@SETTINGS
@given(TEXTS, STOPS, CUTS, CUTS)
def test_control_tokens_change_nothing_about_the_text(
    text: str, stops: list[str], cuts: list[int], controls: list[int]
) -> None:
    tokens = split(text.encode(), cuts)
    assembler: TextAssembler[int] = TextAssembler(stops)
    shown = []
    for i, token in enumerate(tokens):
        shown += assembler.add(token, i)
        shown += assembler.add_control("ab", i) * (i in controls)
    shown += assembler.finish(len(tokens))
    assert "".join(each.text for each in shown if not each.control) == cut(tokens, stops)


# every split


@SETTINGS
@given(TEXTS, CUTS)
def test_without_stop_sequences_every_split_shows_the_text(text: str, cuts: list[int]) -> None:
    assert "".join(texts_of(split(text.encode(), cuts))) == text


@SETTINGS
@given(st.binary(max_size=14), CUTS)
def test_bytes_that_are_no_text_show_as_if_they_came_at_once(data: bytes, cuts: list[int]) -> None:
    assert "".join(texts_of(split(data, cuts))) == data.decode("utf-8", "replace")


@SETTINGS
@given(TEXTS, st.text(alphabet="ab\u00e9", min_size=1, max_size=4), CUTS)
def test_one_stop_sequence_cuts_every_split_at_the_same_place(
    text: str, stop: str, cuts: list[int]
) -> None:
    assert "".join(texts_of(split(text.encode(), cuts), [stop])) == text.partition(stop)[0]


@SETTINGS
@given(TEXTS, STOPS, CUTS)
def test_several_stop_sequences_cut_where_the_first_token_completes_one(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    tokens = split(text.encode(), cuts)
    assert "".join(texts_of(tokens, stops)) == cut(tokens, stops)


@SETTINGS
@given(TEXTS, STOPS, CUTS)
def test_only_a_possible_start_of_a_stop_sequence_is_held_back(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    tokens = split(text.encode(), cuts)
    assembler: TextAssembler[int] = TextAssembler(stops)
    shown = ""
    for count, token in enumerate(tokens, start=1):
        shown += "".join(piece.text for piece in assembler.add(token, 0))
        if assembler.stopped_by:
            return
        so_far = b"".join(tokens[:count]).decode("utf-8", "ignore")
        held = so_far.removeprefix(shown)
        assert so_far == shown + held
        assert not held or any(stop.startswith(held) for stop in stops)


@SETTINGS
@given(TEXTS, STOPS, CUTS)
def test_pieces_are_never_empty_and_their_tags_never_fall(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    shown = [piece for pieces in pieces_of(split(text.encode(), cuts), stops) for piece in pieces]
    assert all(piece.text for piece in shown)
    tags = [piece.tag for piece in shown]
    assert tags == sorted(tags)


@pytest.mark.parametrize("stops", [[], ["zzz"]])
def test_a_stop_sequence_that_never_starts_delays_nothing(stops: list[str]) -> None:
    assert texts_of([b"a", b"b", b"c"], stops) == ["a", "b", "c", ""]
