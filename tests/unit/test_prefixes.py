"""What a model service probably holds: by digests, and never of another salt."""

from __future__ import annotations

from orchestrator.core.prefixes import BLOCK, HeldTexts, digests_of

KEY, SALT = b"key of this process", b"salt"


def digests(*ids: int, salt: bytes = SALT) -> tuple[bytes, ...]:
    return digests_of(ids, salt, KEY)


def held(*texts: tuple[bytes, ...], session_count: int = 4) -> HeldTexts:
    known = HeldTexts()
    for text in texts:
        known.note(text, session_count)
    return known


def test_there_is_a_digest_for_every_whole_block_and_none_for_the_rest() -> None:
    assert len(digests(*range(3 * BLOCK + 5))) == 3
    assert digests(*range(BLOCK - 1)) == ()


def test_equal_prefixes_have_equal_digests_up_to_the_block_that_differs() -> None:
    one, other = list(range(64)), list(range(64))
    other[2 * BLOCK] = 7
    assert digests(*one)[:2] == digests(*other)[:2]
    assert not set(digests(*one)[2:]) & set(digests(*other)[2:])


def test_the_same_block_after_another_one_has_another_digest() -> None:
    block = list(range(BLOCK))
    first, second = digests(*block, *block)
    assert first != second


def test_what_one_caller_s_text_is_says_nothing_of_the_text_of_a_caller_with_another_salt() -> None:
    text = range(10 * BLOCK)
    known = held(digests(*text))
    assert known.count(digests(*text)) == 10 * BLOCK
    assert known.count(digests(*text, salt=b"other")) == 0
    assert known.count(digests(*text, salt=b"")) == 0


def test_digests_of_another_process_are_others() -> None:
    assert not set(digests(*range(64))) & set(digests_of(range(64), SALT, b"another key"))


def test_the_next_turn_of_a_chat_finds_the_turns_before_it() -> None:
    known = held(digests(*range(5 * BLOCK)))
    assert known.count(digests(*range(8 * BLOCK))) == 5 * BLOCK


def test_a_text_takes_the_place_of_the_one_that_it_continues() -> None:
    known = held(digests(*range(2 * BLOCK)), digests(*range(4 * BLOCK)))
    assert len(known) == 1 and known.count(digests(*range(4 * BLOCK))) == 4 * BLOCK


def test_as_many_texts_are_held_as_there_are_sessions_and_the_oldest_goes() -> None:
    texts = [digests(*range(n, n + 2 * BLOCK)) for n in (0, 1000, 2000)]
    known = held(*texts, session_count=2)
    assert [known.count(text) for text in texts] == [0, 2 * BLOCK, 2 * BLOCK]


def test_a_text_that_was_used_again_goes_last() -> None:
    texts = [digests(*range(n, n + 2 * BLOCK)) for n in (0, 1000, 2000)]
    known = held(texts[0], texts[1], texts[0], texts[2], session_count=2)
    assert [known.count(text) for text in texts] == [2 * BLOCK, 0, 2 * BLOCK]


def test_a_prefix_of_a_held_text_uses_that_text() -> None:
    long, other, third = (digests(*range(n, n + 4 * BLOCK)) for n in (0, 1000, 2000))
    known = held(long, other, long[:2], third, session_count=2)
    assert len(known) == 2 and known.count(long) == 4 * BLOCK and known.count(other) == 0


def test_a_prefix_that_two_texts_share_is_held_until_both_are_gone() -> None:
    shared = list(range(2 * BLOCK))
    one, two = (digests(*shared, *range(n, n + BLOCK)) for n in (1000, 2000))
    known = held(one, two, digests(*range(3000, 3000 + BLOCK)), session_count=2)
    assert known.count(one) == 2 * BLOCK and known.count(two) == 3 * BLOCK


def test_what_a_service_says_that_it_did_not_hold_is_forgotten() -> None:
    text = digests(*range(6 * BLOCK))
    known = held(text)
    known.correct(text, 5 * BLOCK + 3)  # all but the last tokens: nothing is missing
    assert known.count(text) == 6 * BLOCK
    known.correct(text, 2 * BLOCK)
    assert known.count(text) == 0


def test_nothing_is_held_after_a_restart() -> None:
    text = digests(*range(64))
    known = held(text)
    known.clear()
    assert len(known) == 0 and known.count(text) == 0
