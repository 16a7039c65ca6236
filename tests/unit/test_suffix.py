"""The suffix automaton and its proposals, against a search through the whole text."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outrider.drafters.source import Proposal
from outrider.drafters.suffix import (
    Cursor,
    LengthRule,
    PastSource,
    PastTexts,
    SuffixAutomaton,
    SuffixSource,
)
from tests.support.operations import lines_run

SETTINGS = settings(derandomize=True, deadline=None)
TEXTS = st.lists(st.integers(0, 2), max_size=30)
"""No context ends a text in more than 32 states, so counts are exact."""

PROPORTIONAL = LengthRule(factor=1.0)
"""A draft is as long as its match."""

past_source = partial(PastSource, rule=PROPORTIONAL)
suffix_source = partial(SuffixSource, rule=PROPORTIONAL)


def automaton_of(text: Sequence[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    for token_id in text:
        automaton.append(token_id)
    return automaton


def ends_of(context: Sequence[int], text: Sequence[int]) -> list[int]:
    """Return where a context ends in a text, by trying every place."""
    size = len(context)
    return [end for end in range(size, len(text) + 1) if text[end - size : end] == [*context]]


def longest_followed(line: Sequence[int], text: Sequence[int]) -> list[int]:
    """Return the longest suffix of a line that stands in a text with a token behind it."""
    return next(
        [*line[start:]]
        for start in range(len(line) + 1)
        if any(end < len(text) for end in ends_of(line[start:], text))
    )


def most_frequent(context: Sequence[int], text: Sequence[int]) -> tuple[int, int]:
    """Return what followed a context most often, then most recently, and how often."""
    following = [text[end] for end in ends_of(context, text) if end < len(text)]
    last = {token_id: place for place, token_id in enumerate(following)}
    best = max(last, key=lambda token_id: (following.count(token_id), last[token_id]))
    return best, following.count(best)


def proposed(text: list[int], after: list[int], count: int, rule: LengthRule) -> list[int]:
    """Return what the rule proposes, by searching the text for each token."""
    if not text:
        return []
    line = text + after
    if not after:
        line = longest_followed(line, text)
    start = next(i for i in range(len(line) + 1) if ends_of(line[i:], text) or not line[i:])
    context, at_end = line[start:], not after
    most = min(count, int(rule.factor * len(context)))
    found: list[int] = []
    path = 1.0
    while len(found) < most:
        shorter = longest_followed(context, text)
        at_end = at_end or shorter != context
        context = shorter
        if not context:
            break
        token_id, often = most_frequent(context, text)
        path *= min(1.0, often / max(1, len(ends_of(context, text)) - at_end))
        if path < rule.min_probability:
            break
        found.append(token_id)
        context, at_end = [*context, token_id], False
    return found


@SETTINGS
@given(TEXTS)
def test_the_match_is_the_longest_suffix_that_occurred_before(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for i, token_id in enumerate(text):
        automaton.append(token_id)
        known = text[: i + 1]
        longest = next(n for n in range(i, -1, -1) if len(ends_of(known[i + 1 - n :], known)) > 1)
        assert automaton.lengths[automaton.match] == longest


@SETTINGS
@given(TEXTS)
def test_every_context_is_there_with_its_count_and_what_followed_most(text: list[int]) -> None:
    automaton = automaton_of(text)
    for start in range(len(text)):
        state: int | None = 0
        for end in range(start + 1, len(text) + 1):
            assert state is not None
            state = automaton.step(state, text[end - 1])
            assert state is not None
            context = text[start:end]
            assert automaton.counts[state] == len(ends_of(context, text))
            best = automaton.best(state)
            if any(place < len(text) for place in ends_of(context, text)):
                assert best is not None and best[0] == most_frequent(context, text)[0]
            else:
                assert best is None


@SETTINGS
@given(TEXTS, st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_nothing_else_is_there(text: list[int], other: list[int]) -> None:
    automaton = automaton_of(text)
    state: int | None = 0
    for token_id in other:
        state = None if state is None else automaton.step(state, token_id)
    assert (state is not None) == bool(ends_of(other, text))


@SETTINGS
@given(
    TEXTS,
    st.lists(st.integers(0, 3), max_size=4),
    st.sampled_from([LengthRule(), LengthRule(factor=2.5, min_probability=0.3)]),
)
@example([0] * 12, [], LengthRule(factor=4.0))
@example([0, 1, 2, 0, 1, 2, 0], [1], LengthRule(factor=4.0))
def test_a_proposal_is_what_a_search_finds(
    text: list[int], after: list[int], rule: LengthRule
) -> None:
    source = suffix_source(rule=rule)
    source.append(text)
    proposal = source.propose(8, after)
    assert proposal.token_ids == proposed(text, after, 8, rule)
    assert len(proposal.confidences) == len(proposal.token_ids)
    assert source.propose(8, after) == proposal  # asking changes nothing


def test_equal_counts_go_to_the_most_recent() -> None:
    source = suffix_source()
    source.append([1, 2, 10, 1, 3, 11, 1])
    assert source.propose(1).token_ids == [3]
    source.append([2, 12, 1])
    assert source.propose(1).token_ids == [2]


def test_a_draft_is_as_long_as_its_match() -> None:
    source = suffix_source()
    source.append([1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3])
    assert source.propose(8).token_ids == [4, 5]
    source.append([4, 5])
    assert source.propose(8).token_ids == [6, 7, 8, 9]
    assert source.propose(3).token_ids == [6, 7, 8]


def test_a_longer_match_is_surer_and_what_was_seen_to_vary_less_sure() -> None:
    sure, less = suffix_source(), suffix_source()
    sure.append([1, 2, 3, 4, 0, 1, 2, 3])
    less.append([9, 2, 3, 4, 0, 2, 3, 5, 1, 2, 3])
    confidences = sure.propose(2).confidences
    assert confidences[0] < confidences[1]
    assert less.propose(1).confidences < confidences[:1]


def test_a_run_goes_on_beyond_the_end_of_the_text() -> None:
    source = suffix_source(rule=LengthRule(factor=2.0))
    source.append([1, 2, 3] * 4)
    assert source.propose(16).token_ids == ([1, 2, 3] * 6)[:16]


# cost

HOSTILE = {
    "one token": [7] * 2000,
    "a period": [1, 2, 3, 4, 5] * 400,
    "all new": list(range(2000)),
    "squares": [i for n in range(63) for i in [0] * n + [1]][:2000],
    "a random text of two tokens": random.Random(1).choices([0, 1], k=2000),
    "new behind one": [i for n in range(1000) for i in (0, n + 1)],
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_token_costs_the_same_at_any_length(text: list[int]) -> None:
    source = suffix_source()
    first = lines_run(lambda: source.append(text[:1000]))
    second = lines_run(lambda: source.append(text[1000:]))
    assert second < 1.2 * first + 1000
    assert first + second < 500 * len(text)  # most for a run, in which 32 states are counted
    assert lines_run(lambda: source.propose(16)) < 500
    for after in (text[:400], text[-400:], [*text[:200], -3, *text[200:400]]):
        assert lines_run(lambda after=after: source.propose(16, after)) < 30 * 400 + 20 * 64


def test_no_text_is_left_slowly() -> None:
    source = suffix_source()
    source.append([7] * 2000)
    assert lines_run(lambda: source.propose(16, [8])) < 1000


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_memory_is_counted(text: list[int]) -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        source = suffix_source()
        source.append(text)
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.6 * held < source.size_bytes < 1.6 * held
    assert source.size_bytes < 200 * len(text)


def test_counts_in_a_run_stop_rising() -> None:
    """What makes a token cost the same; the proposal stays."""
    source = suffix_source()
    source.append([5] * 100 + [6])
    source.append([5] * 4)
    assert source.propose(3).token_ids == [5, 5, 5]


# past texts


def indexed(texts: PastTexts, *added: list[int]) -> None:
    for text in added:
        texts.add(text)
        texts.index(len(text) + 1)


def test_what_followed_in_a_past_text_is_proposed() -> None:
    texts = PastTexts(1000)
    indexed(texts, [1, 2, 3, 4, 5])
    source = past_source(texts, prompt=[9, 1, 2])
    assert source.propose(4).token_ids == [3, 4]
    source.append([3])
    assert source.propose(4).token_ids == [4, 5]
    assert source.propose(4, after=[4]).token_ids == [5]


def test_one_past_text_is_not_continued_with_the_next() -> None:
    texts = PastTexts(1000)
    indexed(texts, [1, 2, 3], [4, 5, 6])
    assert past_source(texts, prompt=[1, 2, 3]).propose(4).token_ids == []
    assert past_source(texts, prompt=[3, 4]).propose(4).token_ids == [5]


def test_the_oldest_are_dropped() -> None:
    texts = PastTexts(40, part_count=4)
    for start in range(0, 400, 8):
        indexed(texts, list(range(start, start + 8)))
    assert sum(len(part) for part in texts.parts) <= 40
    assert len(texts.parts) == 4
    source = past_source(texts, prompt=[0, 1, 2])
    assert source.propose(4).token_ids == []
    assert past_source(texts, prompt=[392, 393, 394]).propose(4).token_ids == [395, 396, 397]


def test_the_longest_match_wins_then_the_newest_text() -> None:
    texts = PastTexts(16, part_count=4)
    indexed(texts, [1, 2, 7], [8, 2, 9], [5, 2, 6])
    assert past_source(texts, prompt=[1, 2]).propose(1).token_ids == [7]
    assert past_source(texts, prompt=[4, 2]).propose(1).token_ids == [6]


def test_a_text_waits_until_it_is_indexed_bit_by_bit() -> None:
    texts = PastTexts(1000)
    source = past_source(texts)
    texts.add(list(range(100)))
    source.append([200])
    assert len(texts.parts[-1]) == 2
    for token_id in range(50, 60):
        source.append([token_id])
    assert len(texts.parts[-1]) == 22
    texts.index(1000)
    source.append([70, 71])
    assert source.propose(2).token_ids == [72, 73]
    waiting = PastTexts(40, part_count=4)
    waiting.add(list(range(1000)))
    assert waiting.size_bytes < 1000


def test_a_text_that_is_followed_is_found_in_what_comes_later() -> None:
    texts = PastTexts(1000, part_count=2)
    source = past_source(texts, prompt=[1, 2])
    source.append([3])
    indexed(texts, [0, 1, 2, 3, 4, 5, 6])
    assert source.propose(3).token_ids == []  # where it stood it was not yet known
    source.append([4])
    assert source.propose(3).token_ids == [5]
    for start in range(10, 1000, 100):
        indexed(texts, list(range(start, start + 100)))
    indexed(texts, [3, 4, 7, 8])
    assert past_source(texts, prompt=[3, 4]).propose(3).token_ids == [7, 8]


@SETTINGS
@given(st.lists(st.integers(0, 2), max_size=60), st.integers(0, 40))
def test_a_place_in_a_growing_text_is_the_one_a_search_finds(text: list[int], start: int) -> None:
    """The automaton splits states under a cursor that stands in them."""
    grown, followed = text[:start], text[start:]
    automaton = automaton_of(grown)
    cursor = Cursor(automaton)
    line: list[int] = []
    for token_id in followed:
        line.append(token_id)
        cursor.follow([token_id])
        longest = cursor.length
        assert ends_of(line[len(line) - longest :], grown)
        automaton.append(token_id)
        grown.append(token_id)
        context = line[len(line) - longest :]
        proposal = cursor.propose(1, LengthRule(min_probability=0.0), at_end=False)
        expected = (
            [most_frequent(context, grown)[0]]
            if longest and any(end < len(grown) for end in ends_of(context, grown))
            else None
        )
        if expected is not None:
            assert proposal.token_ids == expected
        assert isinstance(proposal, Proposal)
