"""N-gram caches count and draft as llama.cpp's do."""

from __future__ import annotations

import random

import pytest

from outrider.drafters.ngram_cache import (
    LONGEST,
    MOST_COUNT,
    NgramCache,
    NgramDrafter,
    NgramGuess,
    pack,
    unpack,
)
from tests.support.repeating import Counts, counted, drafted, repeating_tokens


def read(cache: NgramCache) -> Counts:
    """Return all that a cache holds, and check what it says of its size."""
    found = {unpack(ngram): dict(counts) for ngram, counts in cache.items()}
    assert len(found) == len(cache)
    assert sum(map(len, found.values())) == cache.pair_count
    return found


def cache_of(counts: Counts) -> NgramCache:
    cache = NgramCache()
    for ngram, followers in counts.items():
        cache.put(pack(ngram), followers)
    return cache


def in_order(counts: Counts) -> list[tuple[tuple[int, ...], list[tuple[int, int]]]]:
    """Return counts with the order of the followers, which breaks ties."""
    return sorted((ngram, list(followers.items())) for ngram, followers in counts.items())


def ids(guesses: list[NgramGuess]) -> list[int]:
    return [guess.token_id for guess in guesses]


# --- counting ---


@pytest.mark.parametrize("sizes", [(1, 2, 3, 4), (2,), (1, 4)])
def test_every_ngram_counts_what_followed_it(sizes: tuple[int, ...]) -> None:
    for seed in range(20):
        history = repeating_tokens(300, seed)
        cache = NgramCache()
        cache.update(history, len(history), sizes)
        assert in_order(read(cache)) == in_order(counted(history, sizes))


def test_a_history_in_parts_counts_as_it_does_at_once() -> None:
    history = repeating_tokens(400, 1)
    drafter, cache, done = NgramDrafter(), NgramCache(), 0
    pick = random.Random(2)
    while done < len(history):
        step = pick.randrange(6)
        part = history[done : done + step]
        done += len(part)
        drafter.extend(part)
        cache.update(history[:done], len(part))
    assert read(drafter.context) == read(cache) == counted(history)


def test_one_new_token_a_call_still_counts_ngrams_across_calls() -> None:
    """llama-server passes only the new tokens, and then learns nothing of single ones."""
    history = repeating_tokens(200, 3)
    cache = NgramCache()
    for end in range(1, len(history) + 1):
        cache.update(history[:end], 1)
    assert read(cache) == counted(history)


def test_merging_adds_counts_and_puts_new_followers_behind() -> None:
    parts = [repeating_tokens(200, seed) for seed in (4, 5)]
    both: Counts = {}
    for part in parts:
        for ngram, followers in counted(part).items():
            known = both.setdefault(ngram, {})
            for token, count in followers.items():
                known[token] = known.get(token, 0) + count
    merged = cache_of(counted(parts[0]))
    added = cache_of(counted(parts[1]))
    merged.merge(added)
    assert in_order(read(merged)) == in_order(both)
    assert read(added) == counted(parts[1]), "the other is as it was"


def test_what_is_counted_after_a_merge_leaves_the_merged_cache_as_it_was() -> None:
    context, dynamic = NgramCache(), NgramCache()
    context.update([1, 2, 1, 3, 1, 2], 6)
    dynamic.merge(context)
    before = read(dynamic)
    context.update([1, 2, 1, 3, 1, 2, 1, 2], 2)
    assert read(dynamic) == before


def test_counts_stay_at_the_most_that_a_file_can_say() -> None:
    for followers in ({7: MOST_COUNT}, {7: MOST_COUNT, 8: 1}):
        cache = cache_of({(5,): followers})
        cache.update([5, 7], 1)
        cache.merge(cache_of({(5,): followers}))
        assert read(cache)[5,][7] == MOST_COUNT


def test_an_ngram_that_is_known_is_not_put_again() -> None:
    cache = cache_of({(1, 2): {3: 4}})
    cache.put(pack([1, 2]), {5: 6})
    assert read(cache) == {(1, 2): {3: 4}}


# --- drafting ---


def test_drafts_are_those_of_looking_at_every_follower() -> None:
    """With static counts of the same text, so that they weigh what the others say."""
    levels = set()
    for seed in range(60):
        texts = [repeating_tokens(n, 3 * seed + i, 12) for i, n in enumerate((150, 400, 300))]
        static = counted(texts[1][:250] + texts[0][:40], (2,)) if seed % 3 else {}
        dynamic = counted(texts[2] + texts[0][:40]) if seed % 2 else {}
        drafter = NgramDrafter(cache_of(dynamic), cache_of(static))
        for end in range(0, 150, 5):
            guesses = drafter.draft(8)
            history = texts[0][:end]
            assert ids(guesses) == drafted(history, 8, counted(history), dynamic, static)
            levels |= {guess.level for guess in guesses}
            drafter.extend(texts[0][end : end + 5])
    assert levels == {"context", "dynamic", "static"}


@pytest.mark.parametrize(
    ("ngram", "followers", "drafts"),
    [
        ((4,), {9: 1}, False),
        ((4,), {9: 2}, True),
        ((4,), {9: 65, 8: 35}, False),
        ((4,), {9: 66, 8: 34}, True),
        ((3, 4), {9: 1}, False),
        ((3, 4), {9: 2, 8: 1, 7: 1}, True),
        ((3, 4), {9: 2, 8: 1, 7: 1, 6: 1}, False),
        ((2, 3, 4), {9: 1}, True),
        ((1, 2, 3, 4), {9: 1}, True),
        ((1, 2, 3, 4), {9: 1, 8: 1, 7: 1}, False),
    ],
)
def test_the_context_needs_so_much_to_draft(
    ngram: tuple[int, ...], followers: dict[int, int], drafts: bool
) -> None:
    drafter = NgramDrafter()
    drafter.context = cache_of({ngram: followers})
    guess = NgramGuess(9, followers[9], sum(followers.values()), "context", False)
    assert drafter.draft(1, [1, 2, 3, 4]) == [guess] * drafts


@pytest.mark.parametrize(
    ("ngram", "followers", "drafts"),
    [
        ((4,), {9: 3}, False),
        ((4,), {9: 4}, True),
        ((4,), {9: 74, 8: 26}, False),
        ((4,), {9: 75, 8: 25}, True),
        ((3, 4), {9: 2}, False),
        ((3, 4), {9: 3}, True),
        ((2, 3, 4), {9: 1}, False),
        ((2, 3, 4), {9: 2}, True),
        ((1, 2, 3, 4), {9: 65, 8: 35}, False),
        ((1, 2, 3, 4), {9: 66, 8: 34}, True),
    ],
)
def test_past_texts_need_more(
    ngram: tuple[int, ...], followers: dict[int, int], drafts: bool
) -> None:
    drafter = NgramDrafter(dynamic=cache_of({ngram: followers}))
    guess = NgramGuess(9, followers[9], sum(followers.values()), "dynamic", False)
    assert drafter.draft(1, [1, 2, 3, 4]) == [guess] * drafts


def test_the_longest_ngram_that_is_sure_enough_is_asked() -> None:
    drafter = NgramDrafter()
    drafter.context = cache_of({(4,): {9: 5}, (2, 3, 4): {8: 1}, (1, 2, 3, 4): {5: 1, 6: 1, 7: 1}})
    assert ids(drafter.draft(1, [1, 2, 3, 4])) == [8]


def test_a_token_that_the_large_text_knows_there_goes_before_more_frequent_ones() -> None:
    drafter = NgramDrafter(static=cache_of({(3, 4): {8: 1, 5: 9}}))
    drafter.context = cache_of({(3, 4): {9: 2, 8: 2}})
    assert drafter.draft(1, [3, 4]) == [NgramGuess(8, 2, 4, "context", False)]
    drafter.context = cache_of({(3, 4): {9: 201, 8: 2}})
    assert drafter.draft(1, [3, 4])[0].token_id == 9, "200 times and more outweigh it"


def test_of_equals_the_one_first_seen_last_wins_and_it_says_so() -> None:
    drafter = NgramDrafter()
    drafter.extend([1, 2, 8, 1, 2, 9, 1, 2])
    assert drafter.draft(1) == [NgramGuess(9, 1, 2, "context", True)]
    drafter = NgramDrafter(static=cache_of({(1, 2): {8: 3, 7: 3}}))
    assert drafter.draft(1, [1, 2]) == [NgramGuess(7, 3, 6, "static", True)]


def test_nothing_is_drafted_behind_less_than_two_tokens_or_by_empty_caches() -> None:
    drafter = NgramDrafter(static=cache_of({(1, 1): {1: 9}}), dynamic=cache_of({(1,): {1: 9}}))
    assert drafter.draft(3) == []
    drafter.extend([1])
    assert drafter.draft(3) == []
    drafter.extend([1])
    assert ids(drafter.draft(3)) == [1, 1, 1]
    assert NgramDrafter().draft(3, [1, 2, 3]) == []


def test_drafting_behind_other_tokens_leaves_the_text_as_it_was() -> None:
    history = repeating_tokens(300, 6)
    drafter = NgramDrafter()
    drafter.extend(history)
    before = drafter.draft(8)
    behind = drafter.draft(8, history[40:43])
    oracle = drafted([*history, *history[40:43]], 8, counted(history), {}, {})
    assert ids(behind) == oracle and behind
    assert drafter.draft(8) == before


# --- bounds ---


def test_a_bounded_cache_never_holds_more_and_is_exact_below_its_bound() -> None:
    history = repeating_tokens(3000, 7)
    free, bounded = NgramCache(), NgramCache(500)
    at = 0
    while at < len(history):
        step = history[at : at + 10]
        free.update(history[: at + 10], len(step))
        bounded.update(history[: at + 10], len(step))
        at += 10
        assert bounded.pair_count <= 500
        if free.pair_count <= 500:
            assert read(bounded) == read(free)
    assert bounded.pair_count > 400, "it is not emptied for room"
    bounded.merge(free)
    assert bounded.pair_count <= 500
    read(bounded)


def test_what_was_counted_often_is_kept_when_room_is_made() -> None:
    cache = NgramCache(1000)
    often = [1, 2, 3, 4, 5] * 200
    cache.update(often, len(often))
    cache.update(list(range(1000, 1900)), 900)
    found = read(cache)
    assert found[1, 2, 3, 4][5] > 10
    assert (1890, 1891) in found and (1001, 1002) not in found


def test_one_ngram_with_more_followers_than_the_bound_is_cut_too() -> None:
    cache = NgramCache(100)
    for token in range(1000):
        cache.update([5, token], 1)
    assert cache.pair_count <= 100
    cache.update([5, 7], 1)
    assert read(cache)[5,][7] == 1


def test_tokens_at_the_ends_of_their_range_are_kept_apart() -> None:
    most = (1 << 31) - 1
    history = [0, most, 0, most, most - 1, 0, most]
    cache = NgramCache()
    cache.update(history, len(history))
    assert read(cache) == counted(history)
    assert max(len(ngram) for ngram, _ in cache.items()) == 4 * LONGEST
