"""Copying continues after an edit, in few steps and little memory."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence

import pytest

from outrider.drafters.copying import CopySource
from tests.support.operations import lines_run

FILE = list(range(100, 200))
A, B, C = 1, 2, 3  # tokens that are not in it


def behind(prompt: Sequence[int], *written: Sequence[int]) -> CopySource:
    source = CopySource()
    source.append(prompt)
    for each in written:
        source.append(each)
    return source


def misses(prompt: Sequence[int], text: Sequence[int]) -> int:
    """Return how many tokens of a text were not proposed just before they came."""
    source, missed = behind(prompt), 0
    for token_id in text:
        missed += [*source.propose(1).token_ids] != [token_id]
        source.append([token_id])
    return missed


def test_nothing_is_proposed_before_eight_tokens_are_copied() -> None:
    assert not behind(FILE, FILE[40:47]).propose(8).token_ids
    assert not behind(FILE, [A] * 20).propose(0).token_ids


@pytest.mark.parametrize("begin", range(8))
def test_a_copy_is_found_within_eleven_tokens(begin: int) -> None:
    source = behind(FILE, [A], FILE[begin : begin + 11])
    assert source.propose(4).token_ids == FILE[begin + 11 : begin + 15]
    assert source.propose(200).token_ids[:80] == FILE[begin + 11 :][:80]


@pytest.mark.parametrize(
    ("text", "missed"),
    [
        ([*FILE[:50], A, *FILE[51:]], 1),  # one replaced: no more than itself
        ([*FILE[:50], A, B, *FILE[52:]], 2),
        ([*FILE[:50], A, B, C, *FILE[53:]], 3),
        ([*FILE[:50], A, *FILE[52:]], 2),  # by fewer or more: a token to find the place
        ([*FILE[:50], A, B, C, *FILE[51:]], 4),
        (FILE[:50] + FILE[53:], 1),  # deleted: the first token behind it
        (FILE[:50] + FILE[60:], 1),
        ([*FILE[:50], A, *FILE[50:]], 2),  # inserted
        ([*FILE[:50], A, B, C, *FILE[50:]], 4),
        ([*FILE[:50], *[A] * 20, *FILE[50:]], 21),
    ],
)
def test_after_an_edit_it_goes_on(text: list[int], missed: int) -> None:
    found = 11  # tokens until the copy itself is found
    assert misses(FILE, text) <= found + missed


def test_an_edit_that_was_seen_is_proposed_at_the_next_place() -> None:
    file = [*FILE[:30], A, *FILE[30:60], A, *FILE[60:90], A, *FILE[90:]]
    text = [*FILE[:30], B, C, *FILE[30:60], B, C, *FILE[60:90], B, C, *FILE[90:]]
    source = behind(file, text[:40])
    assert source.propose(60).token_ids[20:40] == text[60:80]
    source.append(text[40:63])  # in the middle of the new name
    assert source.propose(40).token_ids == text[63:103]


def test_an_edit_that_is_not_repeated_is_given_up() -> None:
    file = [*FILE[:30], A, *FILE[30:60], A, *FILE[60:90], A, *FILE[90:]]
    text = [*FILE[:30], B, C, *FILE[30:60], A, *FILE[60:90], A, *FILE[90:]]
    assert behind(file, text[:64]).propose(40).token_ids == text[64:104]


def test_confidences_grow_with_the_tokens_since_an_edit() -> None:
    confidences = behind(FILE, FILE[:50], [A], FILE[51:52]).propose(30).confidences
    assert list(confidences) == sorted(confidences)
    assert confidences[0] < confidences[4] < confidences[-1]


def test_it_is_lost_where_nothing_of_the_copy_comes_back() -> None:
    source = behind(FILE, FILE[:50], range(1000, 1025))
    assert not source.propose(8).token_ids
    source.append(FILE[60:71])
    assert source.propose(8).token_ids == FILE[71:79]


def test_it_goes_on_behind_another_sources_tokens_where_they_are_those_it_expects() -> None:
    source = behind(FILE, FILE[:50])
    assert source.propose(5, after=FILE[50:53]).token_ids == FILE[53:58]
    assert not source.propose(5, after=[A]).token_ids
    assert source.propose(5).token_ids == FILE[50:55], "asking changed nothing"


HOSTILE = {
    "a run": [7] * 3000,
    "two in turns": [7, 8] * 1500,
    "nearly a run": ([7] * 25 + [8]) * 120,
    "edits that change": [x for i in range(150) for x in (*FILE[:12], i, *FILE[12:19])],
    "random": random.Random(1).choices(range(4), k=3000),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_token_takes_a_bounded_number_of_steps(text: list[int]) -> None:
    source = CopySource()
    most = max(lines_run(lambda each=each: source.append([each])) for each in text)  # type: ignore[misc]
    assert most < 400
    assert lines_run(lambda: source.propose(59)) < 1500


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_is_proposed_stood_in_the_text(text: list[int]) -> None:
    source, known = CopySource(), set[int]()
    for token_id in text[:1000]:
        source.append([token_id])
        known.add(token_id)
        proposal = source.propose(16)
        assert set(proposal.token_ids) <= known
        assert len(proposal.token_ids) == len(proposal.confidences) <= 16


@pytest.mark.parametrize("text", [*HOSTILE.values(), [*range(3000)]], ids=[*HOSTILE, "new"])
def test_memory_is_bounded(text: list[int]) -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        source = CopySource()
        source.append(text)
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held < 1.3 * source.size_bytes + 2000
    assert source.size_bytes < 60 * len(text) + 30_000
