"""What is known of texts before they are tokenized."""

from __future__ import annotations

import pytest

from outrider.errors import InvalidRequest
from outrider.texts import (
    MAX_TEXTS,
    check_count,
    least_token_count,
    longest_token,
    most_bytes,
    starts,
)


def test_a_token_stands_for_its_text_or_its_name() -> None:
    assert longest_token([b"a", b"abc", b""], [b"a", b"abc", b"<control>"]) == 9
    assert longest_token([], []) == longest_token([b""], [b""]) == 1


def test_no_text_has_fewer_tokens_than_it_is_said_to_have_at_least() -> None:
    for longest in range(1, 6):
        for byte_count in range(30):
            least = least_token_count(byte_count, longest)
            assert least * longest >= byte_count > (least - 1) * longest


def test_every_text_that_could_fit_the_context_is_taken_up_to_8_mib() -> None:
    assert most_bytes(context=4096, longest=16) == 1 << 20
    assert most_bytes(context=131072, longest=16) == 2 << 20
    assert most_bytes(context=1 << 20, longest=256) == 8 << 20


def test_a_prompt_is_cut_to_so_many_bytes_of_text_on_a_character() -> None:
    prompt: list[int | str] = ["añb", 7, "cd", 8]
    assert [starts(prompt, most) for most in (0, 2, 3)] == [[""], ["a"], ["añ"]]
    assert starts(prompt, 4) == ["añb", 7, ""] and starts(prompt, 5) == ["añb", 7, "c"]
    assert starts(prompt, 6) == starts(prompt, 99) == prompt


def test_texts_are_counted() -> None:
    check_count("prompt_parts", MAX_TEXTS)
    with pytest.raises(InvalidRequest, match="prompt_parts: 4097 texts, at most 4096"):
        check_count("prompt_parts", MAX_TEXTS + 1)
